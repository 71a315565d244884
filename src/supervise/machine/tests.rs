use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_secs(60);
const START: Duration = Duration::from_secs(1_000);
/// When the command must be gone, where there is a lease.
const DEADLINE: Duration = Duration::from_secs(1_030);

fn settings(group: Group) -> Settings {
    Settings { group, grace: GRACE, wait: Some(WAIT), busy_code: 75, notice: true }
}

fn signal(signal: Signal, sender: Sender) -> Event {
    Event::Signal { signal, sender }
}

/// The columns of the table: how to get a machine there, and in which group the command is.
#[derive(Clone, Copy, Debug)]
enum Column {
    Requesting,
    Waiting,
    Shown,
    Starting,
    RunningOwn,
    RunningShared,
    StoppingOwn,
    StoppingShared,
    Killed,
    Leaving,
    Done,
}

const COLUMNS: [Column; 11] = [
    Column::Requesting,
    Column::Waiting,
    Column::Shown,
    Column::Starting,
    Column::RunningOwn,
    Column::RunningShared,
    Column::StoppingOwn,
    Column::StoppingShared,
    Column::Killed,
    Column::Leaving,
    Column::Done,
];

fn granted(deadline: Option<Duration>) -> Event {
    Event::Granted { deadline }
}

fn machine(column: Column, deadline: Option<Duration>) -> Machine {
    use Event::{Ended as End, Lost, Queued, Started};
    let granted = granted(deadline);
    let (group, path): (Group, &[Event]) = match column {
        Column::Requesting => (Group::Own, &[]),
        Column::Waiting | Column::Shown => (Group::Own, &[Queued]),
        Column::Starting => (Group::Own, &[granted]),
        Column::RunningOwn => (Group::Own, &[granted, Started]),
        Column::RunningShared => (Group::Shared, &[granted, Started]),
        Column::StoppingOwn | Column::Killed => (Group::Own, &[granted, Started, Lost]),
        Column::StoppingShared => (Group::Shared, &[granted, Started, Lost]),
        Column::Leaving => (Group::Own, &[granted, Started, End(Ended::Code(0))]),
        Column::Done => (Group::Own, &[granted, Started, End(Ended::Code(0)), Event::Released]),
    };
    let mut machine = Machine::new(settings(group));
    for event in path {
        machine.on(*event, START);
    }
    match column {
        Column::Shown => assert_eq!(machine.on(Event::Tick, START + NOTICE_AFTER), [Action::ShowWaiting]),
        Column::Killed => assert_eq!(machine.on(Event::Tick, START + GRACE), [Action::Kill]),
        _ => {}
    }
    machine
}

fn every_event() -> Vec<Event> {
    let mut events = vec![Event::Queued, granted(None), granted(Some(DEADLINE * 2)), Event::Denied(75), Event::Lost];
    events.extend([Event::StoreFailed, Event::Started, Event::StartFailed(127), Event::Released, Event::Tick]);
    events.extend([Stop::Tstp, Stop::Stop, Stop::Ttin, Stop::Ttou].map(Event::CommandStopped));
    events.extend([Ended::Code(3), Ended::Signal(15)].map(Event::Ended));
    for sender in [Sender::Terminal, Sender::Command, Sender::Other] {
        events.extend(Signal::ALL.map(|which| signal(which, sender)));
    }
    events
}

/// One row of the table: what each column answers while no time presses. The match makes the compiler ask for a row for
/// every event.
#[rustfmt::skip]
fn expected(event: Event, leased: bool) -> [String; 11] {
    let row = |cells: [&str; 11]| cells.map(str::to_owned);
    match event {
        //                             requesting  waiting  shown          starting  run own  run shared  stop own  stop shared  killed  leaving  done
        Event::Queued          => row(["",         "",      "ShowWaiting", "",       "",      "",         "",       "",          "",     "",      ""]),
        Event::Granted { .. }  => row(["Start",    "Start", "HideWaiting, Start", "", "",     "",         "",       "",          "",     "",      ""]),
        Event::Started         => row(["",         "",      "",            "",       "",      "",         "",       "",          "",     "",      ""]),
        Event::Released        => row(["",         "",      "",            "",       "",      "",         "",       "",          "",     "Exit(0)", ""]),
        Event::Tick            => row(["",         "",      "",            "",       "",      "",         "",       "",          "",     "",      ""]),
        Event::Denied(_) => {
            let deny = "ReportFailure, Exit(75)";
            row([deny, deny, "HideWaiting, ReportFailure, Exit(75)", "", "", "", "", "", "", "", ""])
        }
        Event::Lost => {
            let lost = "ReportLost(NotStarted), Release, Exit(69)";
            row([
                lost, lost, &format!("HideWaiting, {lost}"), "ReportLost(NotStarted), Release, Exit(76)",
                "ReportLost(Stopped), Terminate", "ReportLost(Stopped), Terminate",
                "", "", "", "ReportLost(EndedLate), Exit(76)", "",
            ])
        }
        Event::StoreFailed => {
            let failed = "ReportFailure, Release, Exit(69)";
            row([failed, failed, &format!("HideWaiting, {failed}"), "Warn", "Warn", "Warn", "", "", "", "", ""])
        }
        Event::StartFailed(_)  => row(["", "", "", "ReportFailure, Release, Exit(127)", "", "", "", "", "", "", ""]),
        Event::CommandStopped(stop) => {
            let stop_too = format!("StopSelf({stop:?})");
            row(["", "", "", "", "", &stop_too, "", "", "", "", ""])
        }
        Event::Ended(_) => {
            let (end, lost) = ("Reap, Release", "Kill, Reap, Release, Exit(76)");
            row(["", "", "", "", end, end, lost, lost, lost, "", ""])
        }
        Event::Signal { signal: signal @ (Signal::Term | Signal::Int | Signal::Hup | Signal::Quit | Signal::Usr1 | Signal::Usr2), sender } => {
            let cancel = cancel(signal, sender);
            let pass = format!("Pass({signal:?})");
            let pass_new = if sender == Sender::Other { pass.as_str() } else { "" };
            row([&cancel, &cancel, &format!("HideWaiting, {cancel}"), &cancel, &pass, pass_new, &pass, pass_new, "", "", ""])
        }
        Event::Signal { signal: Signal::Winch, sender } => {
            let pass_new = if sender == Sender::Other { "Pass(Winch)" } else { "" };
            row(["", "", "", "", "Pass(Winch)", pass_new, "Pass(Winch)", pass_new, "", "", ""])
        }
        Event::Signal { signal: Signal::Cont, .. } =>
            row(["", "", "ShowWaiting", "", "Pass(Cont)", "Pass(Cont)", "Pass(Cont)", "Pass(Cont)", "", "", ""]),
        Event::Signal { signal: Signal::Tstp, sender } => {
            let pass_new = if sender == Sender::Other { "Pass(Tstp)" } else { "" };
            let (stop, hide) = ("StopSelf(Tstp)", "HideWaiting, StopSelf(Tstp)");
            let own = if leased { "Pass(Tstp)" } else { "Pass(Tstp), StopSelf(Tstp)" };
            row([stop, stop, hide, stop, own, pass_new, "", "", "", "", ""])
        }
    }
}

fn cancel(signal: Signal, sender: Sender) -> String {
    let by_key = signal == Signal::Int && sender == Sender::Terminal;
    if by_key { "Release, ExitBy(Int)".into() } else { format!("Release, Exit({})", 128 + signal.kernel().as_raw()) }
}

/// The columns of the second table, each at the instant at which it is asked. Overdue is between a grace before the
/// deadline and the deadline.
fn pressed() -> [(&'static str, Machine, Duration); 6] {
    let leased = |column| machine(column, Some(DEADLINE));
    [
        ("starting, overdue", leased(Column::Starting), DEADLINE - GRACE),
        ("running in its own group, overdue", leased(Column::RunningOwn), DEADLINE - GRACE),
        ("running in a shared group, overdue", leased(Column::RunningShared), DEADLINE - Duration::from_nanos(1)),
        ("running in its own group past the deadline", leased(Column::RunningOwn), DEADLINE),
        ("running in a shared group past the deadline", leased(Column::RunningShared), DEADLINE * 2),
        ("stopping when its grace is over", leased(Column::StoppingOwn), START + GRACE),
    ]
}

/// One row of the second table: what each column answers when its time is over.
#[rustfmt::skip]
fn expected_late(event: Event) -> [String; 6] {
    let row = |cells: [&str; 6]| cells.map(str::to_owned);
    let (stop, kill) = ("ReportOverdue(Stopped), Terminate", "ReportOverdue(Stopped), Kill");
    match event {
        //                                                         starting  overdue own  overdue shared  past own  past shared  stopping
        // A renewal may have come in time, and a store that fails ends nothing.
        Event::Queued | Event::Granted { .. } | Event::Denied(_) => row(["", "",           "",             "",       "",          ""]),
        Event::StoreFailed                              => row(["Warn",     "Warn",       "Warn",         "Warn",   "Warn",      ""]),
        Event::Started | Event::Released                => row(["",         "",           "",             "",       "",          ""]),
        Event::StartFailed(_)                           => row(["ReportFailure, Release, Exit(127)", "", "", "",    "",          ""]),
        Event::Tick => row(["ReportOverdue(NotStarted), Release, Exit(76)", stop,         stop,           kill,     kill,        "Kill"]),
        Event::CommandStopped(_)                        => row(["",         stop,         stop,           kill,     kill,        ""]),
        Event::Lost => {
            let (stop, kill) = ("ReportLost(Stopped), Terminate", "ReportLost(Stopped), Kill");
            row(["ReportLost(NotStarted), Release, Exit(76)", stop, stop, kill, kill, ""])
        }
        Event::Ended(_) => {
            let end = "Reap, Release";
            let late = "ReportOverdue(EndedLate)";
            let lost = "Kill, Reap, Release, Exit(76)";
            let late = &format!("{late}, {lost}");
            row(["", end, end, late, late, lost])
        }
        Event::Signal { signal: Signal::Tstp, .. } => row(["StopSelf(Tstp)", stop, stop, kill, kill, "Kill"]),
        Event::Signal { signal, sender } => {
            let starting = if signal.ends_by_default() { cancel(signal, sender) } else { String::new() };
            let own = format!("{stop}, Pass({signal:?})");
            let shared = if sender == Sender::Other || signal == Signal::Cont { &own } else { stop };
            row([&starting, &own, shared, kill, kill, "Kill"])
        }
    }
}

fn text(actions: &[Action]) -> String {
    actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn every_state_answers_every_event_as_the_table_says() {
    for event in every_event() {
        for deadline in [None, Some(DEADLINE)] {
            for (column, expected) in COLUMNS.into_iter().zip(expected(event, deadline.is_some())) {
                let mut machine = machine(column, deadline);
                let now = START + if let Column::Shown = column { NOTICE_AFTER } else { Duration::ZERO };
                assert_eq!(text(&machine.on(event, now)), expected, "{event:?} in {column:?} with {deadline:?}");
            }
        }
    }
}

#[test]
fn every_state_whose_time_is_over_answers_every_event_as_the_table_says() {
    for event in every_event() {
        for ((name, mut machine, now), expected) in pressed().into_iter().zip(expected_late(event)) {
            assert_eq!(text(&machine.on(event, now)), expected, "{event:?} while {name}");
        }
    }
}

/// Of two events in a row, whatever they are: at most one exit, nothing after it, each thing at most once where twice
/// would be wrong, and nothing passed on to who was killed.
#[test]
fn every_pair_of_events_ends_at_most_once() {
    let plain = || COLUMNS.map(|column| (format!("{column:?}"), machine(column, None), START + NOTICE_AFTER));
    let late = || pressed().map(|(name, machine, now)| (name.to_owned(), machine, now));
    for first in every_event() {
        for second in every_event() {
            for (name, mut machine, now) in plain().into_iter().chain(late()) {
                let case = || format!("{first:?}, {second:?}, {name}");
                let mut actions = machine.on(first, now);
                let is_exit = |action: &Action| matches!(action, Action::Exit(_) | Action::ExitBy(_));
                let over = actions.last().is_some_and(is_exit);
                let more = machine.on(second, now);
                assert!(!over || more.is_empty(), "{}", case());
                actions.extend(more);
                let once = [Action::Start, Action::Release, Action::Reap, Action::Terminate];
                for action in once {
                    assert!(actions.iter().filter(|other| **other == action).count() <= 1, "{action:?}: {}", case());
                }
                let exit = actions.iter().position(is_exit);
                assert!(exit.is_none_or(|at| at + 1 == actions.len()), "{}", case());
                assert!(exit.is_none() || machine.next_timeout().is_none(), "{}", case());
                // Whoever is to be continued is not dead.
                let killed = actions.iter().position(|action| *action == Action::Kill);
                let passed = actions.iter().rposition(|action| matches!(action, Action::Pass(_)));
                assert!(killed.is_none_or(|killed| passed.is_none_or(|passed| passed < killed)), "{}", case());
            }
        }
    }
}

/// Lets virtual time pass up to `end`, ticking when the machine asks for it; gives each action with its instant.
fn pass_time(machine: &mut Machine, end: Duration) -> Vec<(Duration, Action)> {
    let mut done = Vec::new();
    while let Some(at) = machine.next_timeout().filter(|at| *at <= end) {
        done.extend(machine.on(Event::Tick, at).into_iter().map(|action| (at - START, action)));
    }
    done
}

#[test]
fn a_wait_is_shown_after_a_second_and_over_when_it_is_over() {
    let mut machine = machine(Column::Waiting, None);
    let expected = [
        (NOTICE_AFTER, Action::ShowWaiting),
        (WAIT, Action::HideWaiting),
        (WAIT, Action::ReportBusy),
        (WAIT, Action::Release),
        (WAIT, Action::Exit(75)),
    ];
    assert_eq!(pass_time(&mut machine, START + WAIT * 2), expected);
}

#[test]
fn a_wait_of_nothing_is_over_at_once_and_one_without_end_never() {
    let mut machine = Machine::new(Settings { wait: Some(Duration::ZERO), busy_code: 9, ..settings(Group::Own) });
    machine.on(Event::Queued, START);
    assert_eq!(machine.on(Event::Tick, START), [Action::ReportBusy, Action::Release, Action::Exit(9)]);
    let mut machine = Machine::new(Settings { wait: None, notice: false, ..settings(Group::Own) });
    machine.on(Event::Queued, START);
    assert_eq!(machine.next_timeout(), None);
}

#[test]
fn the_wait_runs_from_the_first_place_in_the_queue() {
    let mut machine = machine(Column::Waiting, None);
    machine.on(Event::Queued, START + WAIT / 2);
    pass_time(&mut machine, START + WAIT / 2);
    assert_eq!(machine.next_timeout(), Some(START + WAIT));
}

#[test]
fn a_grant_ends_the_timers_of_the_wait() {
    let mut machine = machine(Column::Shown, None);
    assert_eq!(machine.on(granted(None), START + WAIT), [Action::HideWaiting, Action::Start]);
    assert_eq!(machine.next_timeout(), None);
    machine.on(Event::Started, START + WAIT);
    assert_eq!(machine.next_timeout(), None);
}

#[test]
fn a_lost_command_has_its_grace_and_is_killed_once() {
    let mut machine = machine(Column::StoppingOwn, None);
    assert_eq!(pass_time(&mut machine, START + GRACE * 3), [(GRACE, Action::Kill)]);
    let end = machine.on(Event::Ended(Ended::Signal(9)), START + GRACE);
    assert_eq!(end, [Action::Kill, Action::Reap, Action::Release, Action::Exit(76)]);
}

#[test]
fn a_lost_command_that_ends_well_is_lost_all_the_same() {
    let mut machine = machine(Column::StoppingShared, None);
    let end = machine.on(Event::Ended(Ended::Code(0)), START);
    assert_eq!(end, [Action::Kill, Action::Reap, Action::Release, Action::Exit(76)]);
    assert_eq!(machine.next_timeout(), None);
}

#[test]
fn a_start_is_off_when_a_signal_comes_first() {
    let mut machine = machine(Column::Starting, None);
    assert!(machine.may_start());
    machine.on(signal(Signal::Winch, Sender::Other), START);
    assert!(machine.may_start());
    assert_eq!(machine.on(signal(Signal::Hup, Sender::Other), START), [Action::Release, Action::Exit(129)]);
    assert!(!machine.may_start());
}

#[test]
fn death_by_a_passed_signal_reaches_the_rest_of_the_group() {
    let mut own = machine(Column::RunningOwn, None);
    own.on(signal(Signal::Int, Sender::Other), START);
    own.on(signal(Signal::Int, Sender::Other), START);
    let end = own.on(Event::Ended(Ended::Signal(2)), START);
    assert_eq!(end, [Action::PassGroup(Signal::Int), Action::Reap, Action::Release]);
    let ordinary = [Action::Reap, Action::Release];
    let mut other = machine(Column::RunningOwn, None);
    other.on(signal(Signal::Int, Sender::Other), START);
    assert_eq!(other.on(Event::Ended(Ended::Signal(15)), START), ordinary, "not by the one that was passed");
    let mut shared = machine(Column::RunningShared, None);
    shared.on(signal(Signal::Term, Sender::Other), START);
    let end = shared.on(Event::Ended(Ended::Signal(15)), START);
    assert_eq!(end, [Action::PassGroup(Signal::Term), Action::Reap, Action::Release]);
    let mut shared = machine(Column::RunningShared, None);
    shared.on(signal(Signal::Int, Sender::Terminal), START);
    assert_eq!(shared.on(Event::Ended(Ended::Signal(2)), START), ordinary, "the terminal has sent it to all");
}

#[test]
fn ctrl_c_ends_rlock_as_it_ended_the_command() {
    let interrupt = |sender| {
        let mut machine = machine(Column::RunningShared, None);
        machine.on(signal(Signal::Int, sender), START);
        machine
    };
    let died = Event::Ended(Ended::Signal(2));
    let exit = |sender, end| {
        let mut machine = interrupt(sender);
        machine.on(end, START);
        machine.on(Event::Released, START)
    };
    assert_eq!(exit(Sender::Terminal, died), [Action::ExitBy(Signal::Int)]);
    assert_eq!(exit(Sender::Other, died), [Action::Exit(130)], "by hand");
    let handled = Event::Ended(Ended::Code(130));
    assert_eq!(exit(Sender::Terminal, handled), [Action::Exit(130)], "it exited");
}

#[test]
fn ctrl_z_stops_rlock_once_and_after_the_command() {
    let mut machine = machine(Column::RunningShared, None);
    assert_eq!(machine.on(signal(Signal::Tstp, Sender::Terminal), START), []);
    assert_eq!(machine.on(Event::CommandStopped(Stop::Tstp), START), [Action::StopSelf(Stop::Tstp)]);
    assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), START), [Action::Pass(Signal::Cont)]);
}

#[test]
fn ctrl_z_in_the_queue_takes_the_line_away_until_it_goes_on() {
    let mut machine = machine(Column::Shown, None);
    let now = START + NOTICE_AFTER;
    let stop = [Action::HideWaiting, Action::StopSelf(Stop::Tstp)];
    assert_eq!(machine.on(signal(Signal::Tstp, Sender::Terminal), now), stop);
    assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), now), [Action::ShowWaiting]);
}

#[test]
fn renewals_keep_the_command_running_and_silence_stops_it_in_time() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    let third = (DEADLINE - START) / 3;
    let mut deadline = DEADLINE;
    for renewal in 1..20 {
        let now = START + third * renewal;
        assert_eq!(pass_time(&mut machine, now), []);
        deadline = now + third * 3;
        assert_eq!(machine.on(granted(Some(deadline)), now), []);
    }
    let expected = [
        (deadline - GRACE - START, Action::ReportOverdue(Consequence::Stopped)),
        (deadline - GRACE - START, Action::Terminate),
        (deadline - START, Action::Kill),
    ];
    assert_eq!(pass_time(&mut machine, deadline * 2), expected);
    assert_eq!(machine.next_timeout(), None, "it is killed once");
    assert_eq!(machine.on(Event::Ended(Ended::Code(0)), deadline).last(), Some(&Action::Exit(76)));
}

#[test]
fn a_grant_that_is_lost_shortly_before_the_deadline_leaves_less_than_a_grace() {
    let mut machine = machine(Column::RunningShared, Some(START + GRACE + GRACE / 4));
    machine.on(Event::Lost, START + GRACE / 5);
    assert_eq!(pass_time(&mut machine, DEADLINE), [(GRACE + GRACE / 5, Action::Kill)], "the grace is over first");
    let mut machine = self::machine(Column::RunningShared, Some(START + GRACE + GRACE / 4));
    machine.on(Event::Lost, START + GRACE / 2);
    assert_eq!(pass_time(&mut machine, DEADLINE), [(GRACE + GRACE / 4, Action::Kill)], "the deadline comes first");
}

/// After a suspend there may be little left of the grace. What a late renewal brings is used, but the command was told.
#[test]
fn a_renewal_after_the_command_was_told_to_end_gives_it_its_whole_grace_and_no_more() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    let now = DEADLINE - GRACE / 10;
    machine.on(Event::Tick, now);
    assert_eq!(machine.next_timeout(), Some(DEADLINE));
    assert_eq!(machine.on(granted(Some(DEADLINE * 2)), now), []);
    assert_eq!(pass_time(&mut machine, DEADLINE * 3), [(now + GRACE - START, Action::Kill)]);
    let end = [Action::Kill, Action::Reap, Action::Release, Action::Exit(76)];
    assert_eq!(machine.on(Event::Ended(Ended::Code(0)), DEADLINE * 3), end);
}

#[test]
fn renewal_goes_on_while_the_command_winds_down_by_itself() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    machine.on(signal(Signal::Term, Sender::Other), START);
    machine.on(granted(Some(DEADLINE * 2)), START);
    assert_eq!(pass_time(&mut machine, DEADLINE), []);
    assert_eq!(machine.on(Event::Ended(Ended::Code(0)), DEADLINE), [Action::Reap, Action::Release]);
    assert_eq!(machine.on(Event::Released, DEADLINE), [Action::Exit(0)]);
}

#[test]
fn a_grant_that_is_gone_when_it_is_to_be_given_back_was_lost() {
    for end in [Ended::Code(0), Ended::Code(3), Ended::Signal(15)] {
        let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
        machine.on(Event::Ended(end), START);
        let lost = [Action::ReportLost(Consequence::EndedLate), Action::Exit(76)];
        assert_eq!(machine.on(Event::Lost, START), lost);
    }
}

#[test]
fn a_start_is_off_when_its_lease_may_not_last() {
    let mut machine = machine(Column::Starting, Some(DEADLINE));
    assert_eq!(machine.on(Event::Tick, DEADLINE - GRACE - Duration::from_nanos(1)), []);
    assert!(machine.may_start());
    machine.on(Event::Tick, DEADLINE - GRACE);
    assert!(!machine.may_start());
}

#[test]
fn a_command_that_is_continued_past_its_deadline_is_killed_instead() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    machine.on(signal(Signal::Tstp, Sender::Other), START);
    machine.on(Event::CommandStopped(Stop::Tstp), START);
    let kill = [Action::ReportOverdue(Consequence::Stopped), Action::Kill];
    assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), DEADLINE), kill);
}

/// "TSTP stops command and rlock", and with a lease to lose whatever else is in the group.
#[test]
fn a_leased_group_stops_before_rlock_and_goes_on_with_it() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    assert_eq!(machine.on(signal(Signal::Tstp, Sender::Other), START), [Action::Pass(Signal::Tstp)]);
    machine.on(signal(Signal::Winch, Sender::Other), START);
    let stop = [Action::Freeze, Action::StopSelf(Stop::Tstp)];
    assert_eq!(machine.on(Event::CommandStopped(Stop::Tstp), START), stop);
    let cont = signal(Signal::Cont, Sender::Other);
    assert_eq!(machine.on(cont, START), [Action::PassGroup(Signal::Cont)]);
    assert_eq!(machine.on(cont, START), [Action::Pass(Signal::Cont)]);
    assert_eq!(machine.on(Event::CommandStopped(Stop::Stop), START), [], "nobody told rlock to");
    machine.on(signal(Signal::Tstp, Sender::Other), START);
    machine.on(cont, START);
    assert_eq!(machine.on(Event::CommandStopped(Stop::Stop), START), [], "it was taken back");
}

/// What happens to a leased command in the life below.
#[derive(Clone, Debug)]
enum Step {
    /// Time passes, and rlock ticks when it wants to.
    Pass(Duration),
    /// Time passes while rlock is suspended or stopped; then this signal comes.
    Sleep(Duration, Signal),
    /// The answer to a renewal comes that was sent so long ago.
    Renew(Duration),
    /// A signal comes.
    Signal(Signal),
    /// The command stops.
    Stop,
    /// The store fails.
    Fail,
    /// The store says that the grant is lost.
    Lose,
}

const TTL: Duration = Duration::from_secs(30);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let millis = |most: u64| (0..=most).prop_map(Duration::from_millis);
    let signal = proptest::sample::select(Signal::ALL.as_slice());
    let step = prop_oneof![
        8 => millis(12_000).prop_map(Step::Pass),
        8 => millis(4_000).prop_map(Step::Renew),
        2 => millis(40_000).prop_map(Step::Renew),
        2 => (millis(40_000), signal.clone()).prop_map(|(time, signal)| Step::Sleep(time, signal)),
        2 => signal.prop_map(Step::Signal),
        1 => Just(Step::Stop),
        1 => Just(Step::Fail),
        1 => Just(Step::Lose),
    ];
    proptest::collection::vec(step, 0..40)
}

/// A leased command that ends by nothing but SIGKILL, and what its rlock knows.
struct Life {
    machine: Machine,
    now: Duration,
    /// The deadline as last told.
    deadline: Duration,
    lost: bool,
    terminated: Option<Duration>,
    killed: bool,
}

impl Life {
    fn look(&mut self, event: Event) {
        let actions = self.machine.on(event, self.now);
        for action in actions {
            match action {
                Action::Terminate => {
                    assert!(self.lost || self.now >= self.deadline - GRACE, "not asked to end before its time");
                    assert_eq!(self.terminated.replace(self.now), None, "asked once");
                }
                Action::Kill => {
                    let had_its_grace = self.terminated.is_some_and(|told| self.now >= told + GRACE);
                    assert!(had_its_grace || self.now >= self.deadline, "not killed before its time");
                    assert!(!std::mem::replace(&mut self.killed, true), "killed once");
                }
                Action::Pass(_) | Action::PassGroup(_) | Action::Freeze => {
                    assert!(!self.killed && self.now < self.deadline, "nothing is passed on after that");
                }
                Action::StopSelf(_) => assert!(!self.killed && self.terminated.is_none(), "who must kill doesn't stop"),
                Action::ReportOverdue(_) | Action::ReportLost(_) | Action::Warn => {}
                other => panic!("not {other:?} while the command runs"),
            }
        }
    }

    /// A turn of the loop: something happened, and then the time is looked at.
    fn turn(&mut self, event: Event) {
        self.look(event);
        self.look(Event::Tick);
        assert!(self.killed || self.now < self.deadline, "nobody outlives the deadline");
        assert!(self.killed || self.now < self.deadline - GRACE || self.terminated.is_some(), "who must end is told");
    }

    fn pass(&mut self, end: Duration) {
        while let Some(at) = self.machine.next_timeout().filter(|at| *at <= end) {
            self.now = at;
            self.turn(Event::Tick);
        }
        self.now = end;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Pass(time) => self.pass(self.now + time),
            Step::Sleep(time, which) => {
                self.now += time;
                self.turn(signal(which, Sender::Other));
            }
            // The store answers nothing to who has lost.
            Step::Renew(_) if self.lost => {}
            Step::Renew(ago) => {
                // An answer that was overtaken changes nothing.
                self.deadline = self.deadline.max(self.now - ago + TTL);
                self.turn(granted(Some(self.deadline)));
            }
            Step::Signal(which) => self.turn(signal(which, Sender::Other)),
            Step::Stop => self.turn(Event::CommandStopped(Stop::Tstp)),
            Step::Fail => self.turn(Event::StoreFailed),
            Step::Lose => {
                self.lost = true;
                self.turn(Event::Lost);
            }
        }
    }
}

proptest! {
    /// "The command is gone before the store may grant another", whatever the renewals do; and it is not disturbed
    /// before it must be.
    #[test]
    fn no_command_outlives_its_deadline_and_none_ends_early(steps in steps(), group: bool, code: u8) {
        let group = if group { Group::Own } else { Group::Shared };
        let mut machine = Machine::new(settings(group));
        machine.on(granted(Some(START + TTL)), START);
        machine.on(Event::Started, START);
        let mut life =
            Life { machine, now: START, deadline: START + TTL, lost: false, terminated: None, killed: false };
        for step in steps {
            life.step(step);
        }
        let undisturbed = life.terminated.is_none() && !life.killed;
        let mut end = life.machine.on(Event::Ended(Ended::Code(code)), life.now);
        end.extend(life.machine.on(Event::Released, life.now));
        prop_assert_eq!(end.last(), Some(&Action::Exit(if undisturbed { code } else { 76 })));
    }
}
