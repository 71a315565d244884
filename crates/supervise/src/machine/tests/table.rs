//! Two tables with the machine's actions after every event in every state.

use super::*;

const COLUMNS: [Column; 15] = [
    Column::Requesting,
    Column::Waiting,
    Column::Shown,
    Column::OutOfReach,
    Column::GivingUp,
    Column::Starting,
    Column::RunningOwn,
    Column::RunningShared,
    Column::StoppingOwn,
    Column::StoppingShared,
    Column::Clearing,
    Column::Killed,
    Column::Leaving,
    Column::Done,
    Column::Draining,
];

/// SIGALRM.
const FOREIGN: Signal = Signal::Foreign(14);

pub(super) fn every_event() -> Vec<Event> {
    let mut events =
        vec![Event::Queued, Event::OutOfReach, granted(None), granted(Some(LATE)), Event::Denied(75), Event::Lost];
    events.extend([Event::Deadlock, Event::NotNested, Event::Revoked { deadline: Some(LATE) }]);
    events.extend([
        Event::StoreFailed,
        Event::NoRoom,
        Event::Room,
        Event::Moved,
        Event::Started,
        Event::Ready,
        Event::HandedOver,
        Event::Kept { hears: true },
        Event::StartFailed(127),
        Event::Released,
        BUSY,
        Event::AlreadyDone,
        Event::RestEnded,
        Event::SpareEnded(Ended::Code(3)),
        Event::SpareFailed,
        Event::Tick,
    ]);
    events.extend([Stop::Tstp, Stop::Unconditional, Stop::Ttin, Stop::Ttou].map(Event::CommandStopped));
    events.extend([Ended::Code(3), Ended::Signal(15)].map(Event::Ended));
    for sender in [Sender::Terminal, Sender::Command, Sender::Everyone, Sender::Other] {
        events.extend(Signal::ALL.into_iter().chain([FOREIGN]).map(|which| signal(which, sender)));
    }
    events
}

/// One row of the table: the actions of each column while no time limit is near. The match makes
/// the compiler demand a row for every event.
#[rustfmt::skip]
fn expected(event: Event, leased: bool) -> [String; 14] {
    let row = |cells: [&str; 14]| cells.map(str::to_owned);
    match event {
        //                             requesting  waiting  shown    out of reach  giving up  starting  run own  run shared  stop own  stop shared  clearing  killed  leaving  done
        Event::Queued          => row(["",         "",      "ShowWaiting", "",     "",        "",       "",      "",         "",       "",          "",       "",     "",      ""]),
        Event::OutOfReach      => row(["",         "",      "",            "",     "",        "",       "",      "",         "",       "",          "",       "",     "",      ""]),
        Event::Granted { .. }  => row(["Start",    "Start", "HideWaiting, Start", "Start", "Start", "",      "",      "",         "",       "",          "",       "",     "",      ""]),
        Event::NoRoom | Event::Room | Event::Moved | Event::Kept { .. } => row([""; 14]),
        Event::Started         => row(["",         "",      "",            "",     "",        "",       "",      "",         "",       "",          "",       "",     "",      ""]),
        Event::Ready           => row(["",         "",      "",            "",     "",        "",       "ReleaseEarly", "ReleaseEarly", "", "",      "",       "",     "",      ""]),
        Event::HandedOver      => row(["",         "",      "",            "",     "",        "Exit(0)", "",     "",         "",       "",          "",       "",     "",      ""]),
        Event::Released        => row(["",         "",      "",            "",     "",        "",       "",      "",         "",       "",          "",       "",     "Exit(0)", ""]),
        Event::NotNested       => row([""; 14]),
        Event::Busy { .. }     => {
            let busy = "Say(Busy), Exit(75)";
            row([busy, busy, "HideWaiting, Say(Busy), Exit(75)", busy, busy, "", "", "", "", "", "", "", "", ""])
        }
        Event::AlreadyDone     => row(["Exit(0)", "Exit(0)", "HideWaiting, Exit(0)", "Exit(0)", "Exit(0)", "", "", "", "", "", "", "", "", ""]),
        Event::Tick            => row(["",         "",      "",            "",     "",        "",       "",      "",         "",       "",          "",       "",     "",      ""]),
        // A machine with spare work has tests of its own.
        Event::SpareEnded(_) | Event::SpareFailed => row([""; 14]),
        Event::RestEnded       => row(["",         "",      "",            "",     "",        "",       "",      "",         "",       "",          "Release, Exit(76)", "", "", ""]),
        Event::Denied(_) => {
            let deny = "Say(Failure), Exit(75)";
            row([deny, deny, "HideWaiting, Say(Failure), Exit(75)", deny, deny, "", "", "", "", "", "", "", "", ""])
        }
        Event::Deadlock => {
            let end = "Say(Failure), Release, Exit(65)";
            row([end, end, "HideWaiting, Say(Failure), Release, Exit(65)", end, "", "", "", "", "", "", "", "", "", ""])
        }
        Event::Lost => {
            let lost = "Say(Ends(Lost, NotStarted)), Release, Exit(69)";
            row([
                lost, lost, &format!("HideWaiting, {lost}"), lost, lost, "Say(Ends(Lost, NotStarted)), Release, Exit(76)",
                "Say(Ends(Lost, Stopped)), Terminate", "Say(Ends(Lost, Stopped)), Terminate",
                "", "", "", "", "Say(Ends(Lost, EndedLate)), Exit(76)", "",
            ])
        }
        Event::Revoked { .. } => {
            let early = "Say(Ends(Revoked, NotStarted)), Release, Exit(76)";
            let stop = "Say(Ends(Revoked, Stopped)), Terminate";
            row([
                early, early, &format!("HideWaiting, {early}"), early, early, early, stop, stop, "", "", "", "", "", "",
            ])
        }
        Event::StoreFailed => {
            let failed = "Say(Failure), Release, Exit(69)";
            let hide = format!("HideWaiting, {failed}");
            let warn = "Say(Warning)";
            row([failed, failed, &hide, failed, failed, warn, warn, warn, "", "", "", "", "", ""])
        }
        Event::StartFailed(_) => {
            let failed = "Say(Failure), Release, Exit(127)";
            row(["", "", "", "", "", failed, "", "", "", "", "", "", "", ""])
        }
        Event::CommandStopped(stop) => {
            let stop_too = format!("StopSelf({stop:?})");
            row(["", "", "", "", "", "", "", &stop_too, "", "", "", "", "", ""])
        }
        Event::Ended(_) => {
            let (rest, lost) = ("Reap, AwaitRest", "Kill, Reap, Release, Exit(76)");
            // A death by a signal leaves the grant held until the tree is gone.
            let end = if let Event::Ended(Ended::Signal(_)) = event { rest } else { "Reap, Release" };
            row(["", "", "", "", "", "", end, end, rest, rest, "", lost, "", ""])
        }
        Event::Signal { signal: signal @ (Signal::Term | Signal::Int | Signal::Hup | Signal::Quit | Signal::Usr1 | Signal::Usr2 | Signal::Foreign(_)), sender } => {
            let cancel = cancel(signal, sender);
            let hide = format!("HideWaiting, {cancel}");
            let (own, shared) = passed(signal, sender);
            let [run_own, run_shared] = [&own, &shared].map(|pass| joined(&["Survey", pass]));
            row([&cancel, &cancel, &hide, &cancel, "", &cancel, &run_own, &run_shared, &own, &shared, "", "", "", ""])
        }
        Event::Signal { signal: signal @ Signal::Winch, sender } => {
            let (own, shared) = passed(signal, sender);
            row(["", "", "", "", "", "", &own, &shared, &own, &shared, "", "", "", ""])
        }
        Event::Signal { signal: Signal::Cont, sender } => {
            let pass = if sender == Sender::Everyone { "PassUncaught(Cont)" } else { "Pass(Cont)" };
            row(["", "", "ShowWaiting", "", "", "", pass, pass, pass, pass, "", "", "", ""])
        }
        Event::Signal { signal: signal @ Signal::Tstp, sender } => {
            let (own, shared) = passed(signal, sender);
            let (stop, hide) = ("StopSelf(Tstp)", "HideWaiting, StopSelf(Tstp)");
            let own = joined(&[&own, if leased { "" } else { stop }]);
            row([stop, stop, hide, stop, "", stop, &own, &shared, "", "", "", "", "", ""])
        }
    }
}

/// How a signal is passed to a command in its own group and in a shared one.
fn passed(signal: Signal, sender: Sender) -> (String, String) {
    let (pass, uncaught) = (format!("Pass({signal:?})"), format!("PassUncaught({signal:?})"));
    match sender {
        Sender::Other => (pass.clone(), pass),
        Sender::Terminal | Sender::Command => (pass, String::new()),
        Sender::Everyone => (uncaught.clone(), uncaught),
    }
}

fn joined(actions: &[&str]) -> String {
    let some: Vec<_> = actions.iter().copied().filter(|actions| !actions.is_empty()).collect();
    some.join(", ")
}

/// The actions after the end of a command that died of a passed SIGTERM.
#[rustfmt::skip]
fn draining(event: Event) -> &'static str {
    match event {
        Event::Lost             => "Say(Ends(Lost, Stopped)), Terminate",
        Event::Revoked { .. }   => "Say(Ends(Revoked, Stopped)), Terminate",
        Event::StoreFailed      => "Say(Warning)",
        Event::RestEnded        => "Release",
        Event::Queued | Event::OutOfReach | Event::Granted { .. } | Event::Denied(_) | Event::Deadlock | Event::NotNested => "",
        Event::NoRoom | Event::Room | Event::Moved | Event::Kept { .. } => "",
        Event::Started | Event::HandedOver | Event::StartFailed(_) | Event::Ready | Event::Released    => "",
        Event::Busy { .. } | Event::AlreadyDone | Event::CommandStopped(_) | Event::Ended(_)           => "",
        Event::SpareEnded(_) | Event::SpareFailed | Event::Tick                                        => "",
        Event::Signal { signal, sender } => match (signal, sender) {
            (Signal::Tstp, _)                                        => "Freeze, StopSelf(Tstp)",
            (Signal::Cont, _)                                        => "Thaw",
            (Signal::Usr1 | Signal::Usr2 | Signal::Winch | Signal::Foreign(_), _) => "",
            (_, Sender::Everyone)                                    => "",
            (Signal::Term | Signal::Int | Signal::Quit, _)           => "TellRest { signal: Term, spares_group: false }",
            (Signal::Hup, Sender::Terminal)                          => "TellRest { signal: Hup, spares_group: true }",
            (Signal::Hup, _)                                         => "TellRest { signal: Hup, spares_group: false }",
        },
    }
}

fn cancel(signal: Signal, sender: Sender) -> String {
    let by_key = signal == Signal::Int && sender == Sender::Terminal;
    if by_key { "Release, ExitBy(Int)".into() } else { format!("Release, Exit({})", 128 + signal.kernel().as_raw()) }
}

/// The columns of the second table, each with the instant of the event. "Overdue" means between the
/// terminate instant and the deadline.
fn pressed() -> [(&'static str, Machine, Boottime); 9] {
    let leased = |column| machine(column, Some(DEADLINE));
    [
        ("starting, overdue", leased(Column::Starting), DEADLINE - GRACE),
        ("running in its own group, overdue", leased(Column::RunningOwn), DEADLINE - GRACE),
        ("running in a shared group, overdue", leased(Column::RunningShared), DEADLINE - Duration::from_nanos(1)),
        ("running in its own group past the deadline", leased(Column::RunningOwn), DEADLINE),
        ("running in a shared group past the deadline", leased(Column::RunningShared), LATE),
        ("stopping when its grace is over", leased(Column::StoppingOwn), START + GRACE),
        ("clearing when its grace is over", leased(Column::Clearing), START + GRACE),
        ("draining, overdue", leased(Column::Draining), DEADLINE - GRACE),
        ("draining past the deadline", leased(Column::Draining), LATE),
    ]
}

/// One row of the second table: the actions of each column after its time limit.
#[rustfmt::skip]
fn expected_late(event: Event) -> [String; 7] {
    let row = |cells: [&str; 7]| cells.map(str::to_owned);
    let (stop, kill) = ("Say(Ends(Overdue, Stopped)), Terminate", "Say(Ends(Overdue, Stopped)), Kill");
    let lost = "Kill, Release, Exit(76)";
    match event {
        //                                                         starting  overdue own  overdue shared  past own  past shared  stopping  clearing
        // A renewal may have come in time, and a failing store ends nothing.
        Event::Granted { .. }                           => row(["",         "",           "",             "",       "",          "",       ""]),
        Event::Queued | Event::OutOfReach | Event::Denied(_) | Event::Deadlock => row(["", "",       "",             "",       "",          "",       ""]),
        Event::StoreFailed => {
            let warn = "Say(Warning)";
            row([warn, warn, warn, warn, warn, "", ""])
        }
        Event::Started | Event::Released | Event::Busy { .. } | Event::AlreadyDone => row(["",  "",           "",             "",       "",          "",       ""]),
        Event::RestEnded                                => row(["",         "",           "",             "",       "",          "",       "Release, Exit(76)"]),
        Event::HandedOver                               => row(["Exit(0)",  "",           "",             "",       "",          "",       ""]),
        Event::SpareEnded(_) | Event::SpareFailed       => row([""; 7]),
        Event::NotNested | Event::NoRoom | Event::Room | Event::Moved | Event::Kept { .. } => row([""; 7]),
        Event::StartFailed(_) => {
            let failed = "Say(Failure), Release, Exit(127)";
            row([failed, "", "", "", "", "", ""])
        }
        Event::Tick => row(["Say(Ends(Overdue, NotStarted)), Release, Exit(76)", stop,         stop,           kill,     kill,        "Kill",   lost]),
        Event::Ready | Event::CommandStopped(_)         => row(["",         stop,         stop,           kill,     kill,        "",       ""]),
        Event::Lost => {
            let (stop, kill) = ("Say(Ends(Lost, Stopped)), Terminate", "Say(Ends(Lost, Stopped)), Kill");
            row(["Say(Ends(Lost, NotStarted)), Release, Exit(76)", stop, stop, kill, kill, "", ""])
        }
        // A revoked grant is renewed, and the renewal may have come in time.
        Event::Revoked { .. } => {
            let stop = "Say(Ends(Revoked, Stopped)), Terminate";
            let kill = "Say(Ends(Revoked, Stopped)), Kill";
            row(["Say(Ends(Revoked, NotStarted)), Release, Exit(76)", stop, stop, stop, kill, "", ""])
        }
        Event::Ended(ended) => {
            let end = if let Ended::Signal(_) = ended { "Reap, AwaitRest" } else { "Reap, Release" };
            let late = "Say(Ends(Overdue, EndedLate)), Kill, Reap, Release, Exit(76)";
            row(["", end, end, late, late, "Reap, AwaitRest", ""])
        }
        Event::Signal { signal: Signal::Tstp, .. } => row(["StopSelf(Tstp)", stop, stop, kill, kill, "Kill", lost]),
        Event::Signal { signal, sender } => {
            let starting = if signal.ends_by_default() { cancel(signal, sender) } else { String::new() };
            let (own, shared) = passed(signal, sender);
            let shared = if signal == Signal::Cont { &own } else { &shared };
            row([&starting, &joined(&[stop, &own]), &joined(&[stop, shared]), kill, kill, "Kill", lost])
        }
    }
}

/// The actions of a draining machine that is overdue, and past its deadline.
fn expected_late_draining(event: Event) -> [String; 2] {
    let lost = "Kill, Release, Exit(76)";
    let ended = |report: &str| [format!("{report}, Terminate"), format!("{report}, {lost}")];
    match event {
        Event::Lost => ended("Say(Ends(Lost, Stopped))"),
        Event::Tick | Event::Signal { .. } => ended("Say(Ends(Overdue, Stopped))"),
        Event::Revoked { .. } => {
            [draining(event).to_owned(), "Say(Ends(Revoked, Stopped)), Kill, AwaitRest".to_owned()]
        }
        _ => [draining(event), draining(event)].map(str::to_owned),
    }
}

fn text(actions: &[Action]) -> String {
    actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn every_event_in_every_state_leads_to_the_actions_of_the_table() {
    for event in every_event() {
        for deadline in [None, Some(DEADLINE)] {
            let expected = expected(event, deadline.is_some()).into_iter().chain([draining(event).to_owned()]);
            for (column, expected) in COLUMNS.into_iter().zip(expected) {
                let mut machine = machine(column, deadline);
                let now = START + if let Column::Shown = column { NOTICE_AFTER } else { Duration::ZERO };
                assert_eq!(text(&machine.on(event, now)), expected, "{event:?} in {column:?} with {deadline:?}");
            }
        }
    }
}

#[test]
fn every_event_after_a_time_limit_leads_to_the_actions_of_the_table() {
    for event in every_event() {
        let expected = expected_late(event).into_iter().chain(expected_late_draining(event));
        for ((name, mut machine, now), expected) in pressed().into_iter().zip(expected) {
            assert_eq!(text(&machine.on(event, now)), expected, "{event:?} while {name}");
        }
    }
}

/// After any two consecutive events there is at most one exit and no action after it. Actions that
/// must not be repeated occur at most once, and no signal is passed to a killed command.
#[test]
fn every_pair_of_events_ends_at_most_once() {
    let plain = || COLUMNS.map(|column| (format!("{column:?}"), machine(column, None), START + NOTICE_AFTER));
    let late = || pressed().map(|(name, machine, now)| (name.to_owned(), machine, now));
    for first in every_event() {
        for second in every_event() {
            for (name, mut machine, now) in plain().into_iter().chain(late()) {
                let case = || format!("{first:?}, {second:?}, {name}");
                let mut actions = machine.on(first, now);
                let is_exit = Action::is_exit;
                let over = actions.last().is_some_and(is_exit);
                let more = machine.on(second, now);
                assert!(!over || more.is_empty(), "{}", case());
                actions.extend(more);
                // A second `Reap` does nothing, so it is not counted here.
                let once = [Action::Start, Action::Release, Action::Terminate];
                for action in once {
                    assert!(actions.iter().filter(|other| **other == action).count() <= 1, "{action:?}: {}", case());
                }
                let exit = actions.iter().position(is_exit);
                assert!(exit.is_none_or(|at| at + 1 == actions.len()), "{}", case());
                assert!(exit.is_none() || machine.next_timeout().is_none(), "{}", case());
                // After a kill no signal is passed, not even a SIGCONT.
                let killed = actions.iter().position(|action| *action == Action::Kill);
                let passed = actions.iter().rposition(|action| matches!(action, Action::Pass(_)));
                assert!(killed.is_none_or(|killed| passed.is_none_or(|passed| passed < killed)), "{}", case());
            }
        }
    }
}
