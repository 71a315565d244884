//! A command that was ended, and the lock that is held until its tree is gone.

use super::*;

const TEN: Duration = Duration::from_secs(10);
const DIED: Event = Event::Ended(Ended::Signal(15));
const EXITED: Event = Event::Ended(Ended::Code(3));

fn int(sender: Sender) -> Event {
    signal(Signal::Int, sender)
}

fn text(actions: &[Action]) -> String {
    actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>().join(", ")
}

fn rest(by: i32, had_term: bool) -> Action {
    Action::Say(Line::Rest { by, had_term })
}

/// What the signals, so long before the end, and the end of the command lead to.
fn end(group: Group, signals: &[Event], before: Duration, end: Event) -> String {
    let mut machine = machine(if group == Group::Own { Column::RunningOwn } else { Column::RunningShared }, None);
    signals.iter().for_each(|event| drop(machine.on(*event, START)));
    text(&machine.on(end, START + before))
}

/// "A command that was ended: it died of a signal, whoever sent it; or rlock got TERM while it ran,
/// from whomever; or INT that rlock passed. INT of a terminal, HUP and QUIT count only if the
/// command died of them or ended within 10 s of them."
#[test]
fn lock_stays_held_for_the_rest_of_a_command_that_was_ended() {
    use Sender::{Command, Everyone, Other, Terminal};
    let (now, late) = (Duration::ZERO, TEN + Duration::from_nanos(1));
    let (term, hup, quit, usr1) = (
        |sender| signal(Signal::Term, sender),
        |sender| signal(Signal::Hup, sender),
        |sender| signal(Signal::Quit, sender),
        |sender| signal(Signal::Usr1, sender),
    );
    let (free, held) = ("Reap, Release", "Reap, AwaitRest");
    let told =
        |signal: &str, spares| format!("Reap, TellRest {{ signal: {signal}, spares_group: {spares} }}, AwaitRest");
    let (own, shared) = (Group::Own, Group::Shared);
    let rows: &[(Group, &[Event], Duration, Event, &str)] = &[
        // By itself.
        (own, &[], now, EXITED, free),
        (own, &[usr1(Other)], now, EXITED, free),
        (own, &[hup(Other)], late, EXITED, free),
        (own, &[quit(Other)], late, EXITED, free),
        (shared, &[int(Terminal)], late, EXITED, free),
        // A death by a signal that rlock never got, or got long before.
        (own, &[], now, DIED, held),
        (own, &[hup(Other)], late, DIED, held),
        (own, &[usr1(Other)], now, DIED, held),
        // By a signal that rlock got.
        (own, &[term(Other)], late, DIED, &told("Term", false)),
        (own, &[term(Other)], late, EXITED, &told("Term", false)),
        (own, &[term(Everyone)], late, EXITED, held),
        (own, &[term(Everyone)], late, DIED, held),
        (shared, &[term(Command)], late, EXITED, &told("Term", true)),
        (own, &[int(Other)], late, EXITED, &told("Int", false)),
        (own, &[int(Everyone)], late, EXITED, held),
        (own, &[hup(Other)], TEN, EXITED, &told("Hup", false)),
        (own, &[quit(Other)], TEN, EXITED, &told("Quit", false)),
        (shared, &[int(Terminal)], TEN, EXITED, &told("Int", true)),
        (shared, &[int(Terminal)], late, Event::Ended(Ended::Signal(2)), &told("Int", true)),
        (own, &[usr1(Other)], late, Event::Ended(Ended::Signal(10)), &told("Usr1", false)),
        // The last signal counts.
        (own, &[int(Other), term(Other)], now, EXITED, &told("Term", false)),
        (own, &[term(Other), int(Other)], now, EXITED, &told("Int", false)),
        (own, &[term(Other), usr1(Other)], now, EXITED, &told("Term", false)),
        (own, &[term(Everyone), term(Other)], now, EXITED, &told("Term", false)),
    ];
    for (group, signals, before, event, expected) in rows {
        assert_eq!(end(*group, signals, *before, *event), *expected, "{signals:?}, then {event:?} after {before:?}");
    }
}

#[test]
fn tree_is_looked_at_before_a_signal_that_may_end_the_command_is_passed() {
    let mut machine = machine(Column::RunningOwn, None);
    for ends in [Signal::Term, Signal::Usr1, Signal::Usr2, Signal::Foreign(14)] {
        assert_eq!(machine.on(signal(ends, Sender::Other), START), [Action::Survey, Action::Pass(ends)]);
    }
    let everyone = signal(Signal::Term, Sender::Everyone);
    let uncaught = [Action::Survey, Action::PassUncaught(Signal::Term)];
    assert_eq!(machine.on(everyone, START), uncaught, "everyone has had it");
    assert_eq!(machine.on(signal(Signal::Winch, Sender::Other), START), [Action::Pass(Signal::Winch)]);
}

#[test]
fn release_follows_the_end_of_the_rest_and_the_exit_code_is_that_of_the_command() {
    let mut machine = machine(Column::RunningOwn, None);
    machine.on(TERM, START);
    machine.on(EXITED, START);
    assert_eq!(pass_time(&mut machine, START + TEN), [(Duration::from_secs(1), rest(15, true))]);
    assert_eq!(machine.on(Event::RestEnded, LATE), [Action::Release]);
    assert_eq!(machine.on(Event::Released, LATE), [Action::Exit(3)]);
}

/// "KILL to rlock, a lost lock and `--max-runtime` end the tree as today, also meanwhile; 76 and
/// 124 go before the command's code."
#[test]
fn lost_lock_and_maximum_run_time_end_the_rest() {
    let mut lost = machine(Column::Draining, Some(DEADLINE));
    assert_eq!(text(&lost.on(Event::Lost, START)), "Say(Ends(Lost, Stopped)), Terminate");
    assert_eq!(text(&lost.on(Event::RestEnded, START)), "Release, Exit(76)");
    let limited = Settings { max_runtime: Some(TEN), ..settings(Group::Own) };
    let draining = || {
        let mut machine = Machine::new(limited);
        [granted(None), Event::Started, TERM, DIED].iter().for_each(|event| drop(machine.on(*event, START)));
        machine
    };
    let mut patient = draining();
    let actions = pass_time(&mut patient, START + TEN);
    let (report, timeout) = ((Duration::from_secs(1), rest(15, true)), TEN);
    assert_eq!(actions, [report, (timeout, stopped(Cause::Timeout)), (timeout, Action::Terminate)]);
    assert_eq!(text(&patient.on(Event::RestEnded, START + TEN)), "Release");
    assert_eq!(text(&patient.on(Event::Released, START + TEN)), "Exit(124)");
    let mut stubborn = draining();
    pass_time(&mut stubborn, START + TEN);
    let killed = pass_time(&mut stubborn, START + TEN + GRACE);
    assert_eq!(killed, [Action::Kill, Action::AwaitRest].map(|action| (TEN + GRACE, action)));
    assert_eq!(text(&stubborn.on(Event::RestEnded, LATE)), "Release");
}

/// "The line says `rlock break`, and TERM only where the rest has not had it."
#[test]
fn line_about_the_rest_knows_whether_the_rest_has_had_term() {
    let int = |sender| signal(Signal::Int, sender);
    let hup = signal(Signal::Hup, Sender::Other);
    let rows: [(&[Event], Event, &[Event], Action); 7] = [
        (&[], Event::Ended(Ended::Signal(9)), &[], rest(9, false)),
        (&[], DIED, &[], rest(15, false)),
        (&[TERM], EXITED, &[], rest(15, true)),
        (&[signal(Signal::Term, Sender::Everyone)], EXITED, &[], rest(15, true)),
        (&[hup], EXITED, &[], rest(1, false)),
        (&[hup], EXITED, &[int(Sender::Other)], rest(1, true)),
        (&[int(Sender::Other)], EXITED, &[hup], rest(2, false)),
    ];
    for (before, end, after, expected) in rows {
        let mut machine = machine(Column::RunningOwn, None);
        before.iter().chain([&end]).chain(after).for_each(|event| drop(machine.on(*event, START)));
        assert_eq!(machine.on(Event::Tick, START + TEN), [expected], "{before:?}, {end:?}, {after:?}");
    }
}

/// "TSTP stops rest and rlock at once." A rest that is stopped would not hear SIGTERM.
#[test]
fn rest_stops_with_rlock_and_is_continued_to_be_ended() {
    let stop = signal(Signal::Tstp, Sender::Terminal);
    let mut machine = machine(Column::Draining, Some(DEADLINE));
    assert_eq!(machine.on(stop, START), [Action::Freeze, Action::StopSelf(Stop::Tstp)]);
    assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), START), [Action::Thaw]);
    machine.on(stop, START);
    let ended = machine.on(signal(Signal::Cont, Sender::Other), DEADLINE - GRACE);
    assert_eq!(text(&ended), "Say(Ends(Overdue, Stopped)), Terminate", "a termination continues the rest");
}
