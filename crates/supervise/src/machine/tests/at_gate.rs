//! The machine of a command that needs room on its machine.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at_gate(settings: Settings, deadline: Option<Boottime>) -> Machine {
    let mut machine = Machine::new(Settings { has_gate: true, ..settings });
    assert_eq!(machine.on(granted(deadline), START), [Action::EnterGate]);
    machine
}

#[test]
fn command_starts_when_there_is_room() {
    let mut machine = at_gate(settings(Group::Own), None);
    assert!(!machine.may_start());
    assert_eq!(machine.on(Event::NoRoom, START), []);
    assert_eq!(machine.on(Event::Room, START), [Action::Start]);
    assert!(machine.may_start());
    assert_eq!(machine.on(Event::Started, START), []);
    // The maximum run time begins with the start, and the wait is over.
    assert_eq!(machine.next_timeout(), None);
}

/// "The wait counts as waiting, bounded by `-w`."
#[test]
fn wait_at_the_gate_is_a_part_of_the_wait_with_its_limit_and_its_line() {
    let mut machine = Machine::new(Settings { has_gate: true, ..settings(Group::Own) });
    machine.on(Event::Queued, START);
    assert_eq!(machine.on(Event::Tick, START + NOTICE_AFTER), [Action::ShowWaiting]);
    let at = START + SECOND * 10;
    assert_eq!(machine.on(granted(None), at), [Action::HideWaiting, Action::EnterGate]);
    assert_eq!(machine.on(Event::Tick, at), [Action::ShowWaiting]);
    assert_eq!(machine.on(Event::NoRoom, at), [Action::ShowWaiting], "what is missing changes");
    assert_eq!(machine.next_timeout(), Some(START + WAIT));
    assert_eq!(machine.on(Event::Tick, START + WAIT), [Action::HideWaiting, Action::LeaveGate]);
    let end = [Action::HideWaiting, Action::Release, Action::Say(Line::Busy), Action::Exit(75)];
    assert_eq!(machine.on(BUSY, START + WAIT), end);
}

#[test]
fn request_without_a_wait_looks_once() {
    let mut machine =
        at_gate(Settings { wait: Some(Duration::ZERO), skip: Skip::Always, ..settings(Group::Own) }, None);
    assert_eq!(machine.on(Event::NoRoom, START), []);
    assert_eq!(machine.on(Event::Tick, START), [Action::LeaveGate]);
    assert_eq!(machine.on(BUSY, START), [Action::Release, Action::Exit(0)]);
}

#[test]
fn grant_at_the_gate_is_renewed_and_freed_at_once_when_it_is_broken_or_lost() {
    let machine = || at_gate(settings(Group::Own), Some(DEADLINE));
    let overdue = DEADLINE - GRACE;
    let mut renewed = machine();
    renewed.on(granted(Some(LATE)), START);
    assert_eq!(renewed.on(Event::Tick, overdue), [Action::ShowWaiting]);
    let ends = |report| vec![report, Action::Release, Action::Exit(76)];
    for (event, now, report) in [
        (Event::Revoked { deadline: None }, START, Action::Say(Line::Ends(Cause::Revoked, Consequence::NotStarted))),
        (Event::Lost, START, Action::Say(Line::Ends(Cause::Lost, Consequence::NotStarted))),
        (Event::Tick, overdue, Action::Say(Line::Ends(Cause::Overdue, Consequence::NotStarted))),
    ] {
        assert_eq!(machine().on(event, now), ends(report), "{event:?}");
    }
    assert_eq!(machine().on(TERM, START), [Action::Release, Action::Exit(143)]);
    assert_eq!(
        machine().on(Event::StartFailed(69), START),
        [Action::Say(Line::Failure), Action::Release, Action::Exit(69)]
    );
}

#[test]
fn request_that_is_granted_as_its_wait_ends_looks_once() {
    let mut machine = Machine::new(Settings { has_gate: true, ..settings(Group::Own) });
    machine.on(Event::Queued, START);
    machine.on(Event::Tick, START + NOTICE_AFTER);
    let at = START + WAIT;
    assert_eq!(machine.on(Event::Tick, at), [Action::HideWaiting, Action::GiveUp]);
    assert_eq!(machine.on(granted(None), at), [Action::EnterGate]);
    assert_eq!(machine.on(Event::Tick, at), [Action::LeaveGate]);
}

/// "The lock is held and renewed meanwhile", whoever waits for it.
#[test]
fn grant_at_the_gate_is_kept_for_as_long_as_the_wait_lasts() {
    let mut machine = at_gate(Settings { wait: None, notice: Notice::Never, ..settings(Group::Own) }, None);
    assert_eq!(machine.next_timeout(), None);
    assert_eq!(machine.on(Event::Tick, START + SECOND * 1000), []);
    assert_eq!(machine.on(Event::Room, START + SECOND * 1000), [Action::Start]);
}

#[test]
fn request_whose_paths_have_moved_waits_for_the_rest_of_its_wait() {
    let settings = Settings { deadlock_timeout: Some(SECOND * 2), ..settings(Group::Own) };
    let mut machine = at_gate(settings, Some(LATE));
    assert_eq!(machine.on(Event::Tick, START + NOTICE_AFTER), [Action::ShowWaiting]);
    let at = START + SECOND * 10;
    assert_eq!(machine.on(Event::Moved, at), [Action::HideWaiting, Action::AskAnew]);
    machine.on(Event::Queued, at);
    assert_eq!(machine.on(Event::Tick, at), [Action::ShowWaiting]);
    // Behind others, the request may wait for itself again.
    assert_eq!(machine.on(Event::Tick, at + SECOND * 2), [Action::Look]);
    assert_eq!(machine.on(Event::Tick, START + WAIT), [Action::HideWaiting, Action::GiveUp]);
    assert_eq!(machine.on(BUSY, START + WAIT), [Action::Say(Line::Busy), Action::Exit(75)]);
}
