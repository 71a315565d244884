//! The spare work: when it starts, what ends it, and which exits wait for it.

use proptest::prelude::*;

use super::*;

const OK: Event = Event::SpareEnded(Ended::Code(0));
const END: Event = Event::Ended(Ended::Code(4));

fn with_spare() -> Settings {
    Settings { has_spare: true, notice: Notice::Never, ..settings(Group::Own) }
}

const USR1: Event = Event::Signal { signal: Signal::Usr1, sender: Sender::Other };
/// The end by SIGQUIT.
const DUMP: Event = Event::Ended(Ended::Signal(3));

/// The actions of these events, of which a tick comes at the end of the wait, and any other event
/// at the start.
fn actions(settings: Settings, events: &[Event]) -> String {
    let mut machine = Machine::new(settings);
    let instant = |event: &Event| if *event == Event::Tick { START + WAIT } else { START };
    let actions: Vec<Action> = events.iter().flat_map(|event| machine.on(*event, instant(event))).collect();
    actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>().join(", ")
}

/// Whether the request is queued, whether it is granted, how it ends, and when a signal comes.
#[test]
fn spare_work_runs_once_beside_the_wait_or_after_the_release() {
    use Event::{
        AlreadyDone, Lost, OutOfReach, Queued, Released, RestEnded, SpareFailed, StartFailed, Started, StoreFailed,
        Tick,
    };
    let granted = granted(None);
    let denied = Event::Denied(65);
    let rows: &[(&[Event], &str)] = &[
        // Granted at once.
        (&[granted, Started, END, Released, OK], "Start, Reap, Release, StartSpare, Exit(4)"),
        (&[granted, Started, END, Lost, OK], "Start, Reap, Release, Say(Ends(Lost, EndedLate)), StartSpare, Exit(76)"),
        (&[granted, StartFailed(127), OK], "Start, Say(Failure), Release, StartSpare, Exit(127)"),
        (&[granted, Lost, OK], "Start, Say(Ends(Lost, NotStarted)), Release, StartSpare, Exit(76)"),
        (&[granted, Started, USR1, END, Released, OK], "Start, Survey, Pass(Usr1), Reap, Release, StartSpare, Exit(4)"),
        (&[granted, TERM], "Start, Release, Exit(143)"),
        (&[granted, Started, END, Released, TERM, OK], "Start, Reap, Release, StartSpare, PassSpare(Term), Exit(4)"),
        (&[granted, Started, END, Released, SpareFailed], "Start, Reap, Release, StartSpare, Say(Failure), Exit(4)"),
        // Queued and granted. The command does not wait for the spare work, but the exit does.
        (&[Queued, granted, Started, END, Released, OK], "StartSpare, Start, Reap, Release, Exit(4)"),
        (&[Queued, OK, granted, Started, END, Released], "StartSpare, Start, Reap, Release, Exit(4)"),
        (
            &[Queued, Event::SpareEnded(Ended::Code(3)), granted, Started, END, Released],
            "StartSpare, Say(Spare(Code(3))), Start, Reap, Release, Exit(4)",
        ),
        (
            &[Queued, granted, Started, USR1, OK, DUMP, RestEnded, Released],
            "StartSpare, Start, Survey, Pass(Usr1), Reap, AwaitRest, Release, Exit(131)",
        ),
        // Queued and not granted.
        (&[Queued, TERM, OK], "StartSpare, PassSpare(Term), Release, Exit(143)"),
        (&[Queued, Queued, Tick, BUSY, OK], "StartSpare, GiveUp, Say(Busy), Exit(75)"),
        (&[Queued, StoreFailed, OK], "StartSpare, Say(Failure), Release, Exit(69)"),
        (&[Queued, Lost, OK], "StartSpare, Say(Ends(Lost, NotStarted)), Release, Exit(69)"),
        (&[OutOfReach, Queued, OK, granted, Started, END, Released], "StartSpare, Start, Reap, Release, Exit(4)"),
        // Not queued and not granted.
        (&[BUSY, OK], "Say(Busy), StartSpare, Exit(75)"),
        (&[AlreadyDone, OK], "StartSpare, Exit(0)"),
        (&[TERM], "Release, Exit(143)"),
        (&[denied], "Say(Failure), Exit(65)"),
        (&[StoreFailed], "Say(Failure), Release, Exit(69)"),
        (&[OutOfReach, StoreFailed], "Say(Failure), Release, Exit(69)"),
        (&[OutOfReach, Tick], "Say(Failure), Release, Exit(69)"),
    ];
    for (events, expected) in rows {
        assert_eq!(actions(with_spare(), events), *expected, "{events:?}");
    }
    for other in [Signal::Usr1, Signal::Winch, Signal::Cont] {
        let events = [granted, Started, signal(other, Sender::Other), END, Released, OK];
        assert!(actions(with_spare(), &events).ends_with("StartSpare, Exit(4)"), "{other:?} ends no spare work");
    }
}

/// "Done also where the wait ends busy … and after 76, 124, 126, 127 and `done`".
#[test]
fn spare_work_runs_after_a_skip_and_after_a_timeout() {
    use Event::{Queued, Released, RestEnded, Started, Tick};
    let skips = Settings { skip: Skip::Always, ..with_spare() };
    assert_eq!(actions(skips, &[BUSY, OK]), "StartSpare, Exit(0)");
    assert_eq!(actions(skips, &[Queued, OK, Tick, BUSY]), "StartSpare, GiveUp, Exit(0)");
    let limited = Settings { max_runtime: Some(WAIT), ..with_spare() };
    let timeout = "Say(Ends(Timeout, Stopped)), Terminate, Reap, AwaitRest, Release";
    assert_eq!(
        actions(limited, &[granted(None), Started, Tick, END, RestEnded, Released, OK]),
        format!("Start, {timeout}, StartSpare, Exit(124)")
    );
    assert_eq!(
        actions(limited, &[Queued, granted(None), Started, Tick, END, RestEnded, Released, OK]),
        format!("StartSpare, Start, {timeout}, Exit(124)")
    );
    let granted_late = [Queued, Tick, granted(None), Started, END, Released, OK];
    assert_eq!(actions(with_spare(), &granted_late), "StartSpare, GiveUp, Start, Reap, Release, Exit(4)");
}

#[test]
fn work_of_else_takes_the_place_of_the_busy_line_after_the_spare_work() {
    use Event::{Queued, Tick};
    let plain = Settings { has_else: true, ..settings(Group::Own) };
    assert_eq!(actions(plain, &[BUSY]), "RunElse");
    let both = Settings { has_else: true, ..with_spare() };
    assert_eq!(actions(both, &[BUSY, OK]), "StartSpare, RunElse");
    assert_eq!(actions(both, &[Queued, Tick, BUSY, OK]), "StartSpare, GiveUp, RunElse");
    assert_eq!(actions(both, &[BUSY, TERM, OK]), "StartSpare, PassSpare(Term), Exit(143)");
}

#[test]
fn signalled_spare_work_is_killed_after_the_grace() {
    let mut machine = Machine::new(with_spare());
    machine.on(BUSY, START);
    assert_eq!(machine.next_timeout(), None);
    assert_eq!(machine.on(TERM, START), [Action::PassSpare(Signal::Term)]);
    assert_eq!(machine.next_timeout(), Some(START + GRACE));
    // A second signal does not prolong the grace.
    machine.on(TERM, START + GRACE / 2);
    assert_eq!(machine.on(Event::Tick, START + GRACE), [Action::KillSpare]);
    assert_eq!(machine.next_timeout(), None);
    let killed = Ended::Signal(9);
    assert_eq!(machine.on(Event::SpareEnded(killed), LATE), [Action::Say(Line::Spare(killed)), Action::Exit(75)]);
}

#[test]
fn ctrl_z_stops_an_rlock_that_waits_for_its_spare_work() {
    let mut machine = Machine::new(with_spare());
    machine.on(BUSY, START);
    assert_eq!(machine.on(signal(Signal::Tstp, Sender::Terminal), START), [Action::StopSelf(Stop::Tstp)]);
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let plain = [
        Event::Queued,
        Event::OutOfReach,
        granted(None),
        granted(Some(DEADLINE)),
        Event::Denied(65),
        Event::Lost,
        Event::StoreFailed,
        BUSY,
        Event::Started,
        Event::StartFailed(126),
        END,
        Event::RestEnded,
        Event::Released,
        Event::Tick,
        OK,
        Event::SpareFailed,
    ];
    let signals = Signal::ALL.map(|which| signal(which, Sender::Other));
    let all = [plain.as_slice(), &signals].concat();
    proptest::collection::vec(proptest::sample::select(all), 0..20)
}

proptest! {
    /// The spare work changes nothing else: without its own actions, and up to the exit, the
    /// machine does the same as one without spare work.
    #[test]
    fn spare_work_starts_at_most_once_and_delays_only_the_exit(events in events()) {
        let mut machine = Machine::new(with_spare());
        let mut plain = Machine::new(Settings { has_spare: false, ..with_spare() });
        let (mut starts, mut runs, mut signalled, mut exited) = (0, false, false, false);
        for event in events {
            let is_of_spare = matches!(event, Event::SpareEnded(_) | Event::SpareFailed);
            // The loop reports the end of the spare work only while the work runs.
            if is_of_spare && !runs {
                continue;
            }
            signalled |= matches!(event, Event::Signal { signal: Signal::Term | Signal::Int | Signal::Hup | Signal::Quit, .. });
            runs &= !is_of_spare;
            let mut own = machine.on(event, START);
            let expected = plain.on(event, START);
            prop_assert!(!exited || own.is_empty(), "an action follows the exit");
            if own.contains(&Action::StartSpare) {
                prop_assert!(!signalled, "the spare work starts after a signal");
                (starts, runs) = (starts + 1, true);
            }
            exited |= own.iter().any(Action::is_exit);
            prop_assert!(!exited || !runs, "rlock ends before its spare work");
            own.retain(|action| !matches!(action, Action::StartSpare | Action::PassSpare(_) | Action::StopSelf(_)));
            own.retain(|action| !action.is_exit() && !is_of_spare);
            let expected: Vec<_> =
                expected.into_iter().filter(|action| !action.is_exit() && !matches!(action, Action::StopSelf(_))).collect();
            prop_assert_eq!(own, expected);
        }
        prop_assert!(starts <= 1);
    }
}
