//! A command that says that it is ready, and goes on without the lock.

use super::*;

/// A leased command that was ready, and whose lock was released.
fn released(settings: Settings) -> Machine {
    let mut machine = Machine::new(settings);
    machine.on(granted(Some(DEADLINE)), START);
    machine.on(Event::Started, START);
    assert_eq!(machine.on(Event::Ready, START), [Action::ReleaseEarly]);
    assert_eq!(machine.on(Event::Released, START), []);
    machine
}

/// "After that, nobody can take the lock away from the command."
#[test]
fn nothing_ends_a_command_that_has_given_the_lock_back() {
    let mut machine = released(settings(Group::Own));
    assert_eq!(machine.next_timeout(), None);
    for event in [Event::Lost, granted(Some(DEADLINE)), Event::Ready, Event::Tick] {
        assert_eq!(machine.on(event, LATE), [], "{event:?}");
    }
    assert_eq!(machine.on(TERM, LATE), [Action::Pass(Signal::Term)]);
    let ended = [Action::PassGroup(Signal::Term), Action::Reap, Action::Dismiss, Action::Exit(143)];
    assert_eq!(machine.on(Event::Ended(Ended::Signal(15)), LATE), ended);
}

#[test]
fn maximum_run_time_goes_on_after_the_release() {
    let mut machine = released(Settings { max_runtime: Some(WAIT), ..settings(Group::Own) });
    let terminate = [stopped(Cause::TimeoutReleased), Action::Terminate].map(|act| (WAIT, act));
    assert_eq!(pass_time(&mut machine, START + WAIT), terminate);
    assert_eq!(machine.on(Event::Lost, START + WAIT), [], "there is no lock to lose");
    assert_eq!(machine.on(Event::Ended(Ended::Code(0)), START + WAIT), [Action::Reap, Action::AwaitRest]);
    assert_eq!(machine.on(Event::RestEnded, START + WAIT), [Action::Dismiss, Action::Exit(124)]);
}

/// A command that starts beside the next holder must not go on.
#[test]
fn command_is_stopped_if_its_release_finds_the_lock_lost() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    assert_eq!(machine.on(Event::Ready, START), [Action::ReleaseEarly]);
    let lost = [stopped(Cause::Lost), Action::Terminate];
    assert_eq!(machine.on(Event::Lost, START), lost);
    machine.on(Event::Ended(Ended::Code(0)), START);
    assert_eq!(machine.on(Event::RestEnded, START), [Action::Release, Action::Exit(76)]);
}

#[test]
fn command_that_ends_before_it_is_ready_releases_the_lock_at_its_end() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    assert_eq!(machine.on(Event::Ended(Ended::Code(3)), START), [Action::Reap, Action::Release]);
    assert_eq!(machine.on(Event::Ready, START), [], "the message came too late");
    assert_eq!(machine.on(Event::Released, START), [Action::Exit(3)]);
}
