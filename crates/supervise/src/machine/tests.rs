//! Tests the machine: its timers here, every pair of state and event in `table`, random histories
//! in `life`.

use super::super::event::{Ended, Stop};
use super::*;

mod at_gate;
mod draining;
mod keeping;
mod life;
mod limits;
mod ready;
mod spare;
mod table;

const GRACE: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_secs(60);
const START: Boottime = Boottime::since_boot(Duration::from_secs(1_000));
/// The deadline of the command, if there is a lease.
const DEADLINE: Boottime = Boottime::since_boot(Duration::from_secs(1_030));
/// An instant long after the deadline.
const LATE: Boottime = Boottime::since_boot(Duration::from_secs(2_060));

/// A busy request whose skips the store does not count.
const BUSY: Event = Event::Busy { skipped_for: None };

fn settings(group: Group) -> Settings {
    Settings {
        group,
        grace: GRACE,
        wait: Some(WAIT),
        conflict_exit_code: 75,
        notice: Notice::Line,
        quiet: false,
        verbose: false,
        max_runtime: None,
        skip: Skip::Never,
        has_spare: false,
        has_else: false,
        has_gate: false,
        sums_up: false,
        deadlock_timeout: None,
    }
}

/// A SIGTERM for rlock alone.
const TERM: Event = Event::Signal { signal: Signal::Term, sender: Sender::Other };

fn signal(signal: Signal, sender: Sender) -> Event {
    Event::Signal { signal, sender }
}

/// The columns of the table. Each is a way to bring a machine into a state, with the group of the
/// command.
#[derive(Clone, Copy, Debug)]
enum Column {
    Requesting,
    Waiting,
    Shown,
    OutOfReach,
    GivingUp,
    Starting,
    RunningOwn,
    RunningShared,
    StoppingOwn,
    StoppingShared,
    Clearing,
    Killed,
    Leaving,
    Done,
    Draining,
}

/// The line about a command that is ended.
const fn stopped(cause: Cause) -> Action {
    Action::Say(Line::Ends(cause, Consequence::Stopped))
}

fn granted(deadline: Option<Boottime>) -> Event {
    Event::Granted { deadline }
}

fn machine(column: Column, deadline: Option<Boottime>) -> Machine {
    use Event::{Ended as End, Lost, Queued, Started};
    let granted = granted(deadline);
    let (group, path): (Group, &[Event]) = match column {
        Column::Requesting => (Group::Own, &[]),
        Column::Waiting | Column::Shown | Column::GivingUp => (Group::Own, &[Queued]),
        Column::OutOfReach => (Group::Own, &[Event::OutOfReach]),
        Column::Starting => (Group::Own, &[granted]),
        Column::RunningOwn => (Group::Own, &[granted, Started]),
        Column::RunningShared => (Group::Shared, &[granted, Started]),
        Column::StoppingOwn | Column::Killed => (Group::Own, &[granted, Started, Lost]),
        Column::Clearing => (Group::Own, &[granted, Started, Lost, End(Ended::Code(0))]),
        Column::StoppingShared => (Group::Shared, &[granted, Started, Lost]),
        Column::Leaving => (Group::Own, &[granted, Started, End(Ended::Code(0))]),
        Column::Done => (Group::Own, &[granted, Started, End(Ended::Code(0)), Event::Released]),
        Column::Draining => (Group::Own, &[granted, Started, TERM, End(Ended::Signal(15))]),
    };
    let mut machine = Machine::new(settings(group));
    for event in path {
        machine.on(*event, START);
    }
    match column {
        Column::Shown => assert_eq!(machine.on(Event::Tick, START + NOTICE_AFTER), [Action::ShowWaiting]),
        Column::GivingUp => assert_eq!(machine.on(Event::Tick, START + WAIT), [Action::GiveUp]),
        Column::Killed => assert_eq!(machine.on(Event::Tick, START + GRACE), [Action::Kill]),
        _ => {}
    }
    machine
}

/// Lets virtual time pass until `end`, with a tick whenever the machine asks for one. Returns each
/// action with its instant.
fn pass_time(machine: &mut Machine, end: Boottime) -> Vec<(Duration, Action)> {
    let mut done = Vec::new();
    while let Some(at) = machine.next_timeout().filter(|at| *at <= end) {
        done.extend(machine.on(Event::Tick, at).into_iter().map(|action| (at - START, action)));
    }
    done
}

#[test]
fn wait_is_shown_after_a_second_and_ends_at_its_limit() {
    let mut machine = machine(Column::Waiting, None);
    let expected = [(NOTICE_AFTER, Action::ShowWaiting), (WAIT, Action::HideWaiting), (WAIT, Action::GiveUp)];
    assert_eq!(pass_time(&mut machine, START + WAIT * 2), expected);
    assert_eq!(machine.on(BUSY, START + WAIT), [Action::Say(Line::Busy), Action::Exit(75)]);
}

#[test]
fn wait_of_zero_ends_at_once_and_wait_without_a_limit_never() {
    let mut machine =
        Machine::new(Settings { wait: Some(Duration::ZERO), conflict_exit_code: 9, ..settings(Group::Own) });
    machine.on(Event::Queued, START);
    assert_eq!(machine.on(Event::Tick, START), [Action::GiveUp]);
    assert_eq!(machine.on(BUSY, START), [Action::Say(Line::Busy), Action::Exit(9)]);
    let mut machine = Machine::new(Settings { wait: None, notice: Notice::Never, ..settings(Group::Own) });
    machine.on(Event::Queued, START);
    assert_eq!(machine.next_timeout(), None);
}

#[test]
fn store_out_of_reach_is_reported_once_and_its_wait_never_ends_as_busy() {
    let mut machine = machine(Column::OutOfReach, None);
    for second in 1..TROUBLE_AFTER.as_secs() {
        assert_eq!(machine.on(Event::OutOfReach, START + Duration::from_secs(second)), []);
    }
    let expected = [
        (NOTICE_AFTER, Action::ShowWaiting),
        (TROUBLE_AFTER, Action::HideWaiting),
        (TROUBLE_AFTER, Action::Say(Line::WaitGoesOn)),
        (TROUBLE_AFTER, Action::ShowWaiting),
        (WAIT, Action::HideWaiting),
        (WAIT, Action::Say(Line::Failure)),
        (WAIT, Action::Release),
        (WAIT, Action::Exit(69)),
    ];
    assert_eq!(pass_time(&mut machine, START + WAIT * 2), expected);
}

#[test]
fn wait_continues_when_the_store_comes_back() {
    let settings = Settings { notice: Notice::Never, ..settings(Group::Own) };
    let mut machine = Machine::new(settings);
    machine.on(Event::OutOfReach, START);
    let back = START + TROUBLE_AFTER - Duration::from_nanos(1);
    assert_eq!(pass_time(&mut machine, back), []);
    assert_eq!(machine.on(Event::Queued, back), []);
    machine.on(Event::OutOfReach, back);
    let warning = (back + TROUBLE_AFTER - START, Action::Say(Line::WaitGoesOn));
    assert_eq!(pass_time(&mut machine, back + TROUBLE_AFTER), [warning], "the time starts again");
    assert_eq!(machine.on(Event::Queued, back + TROUBLE_AFTER), []);
    assert_eq!(pass_time(&mut machine, START + WAIT), [(WAIT, Action::GiveUp)]);
}

#[test]
fn wait_is_limited_from_the_first_place_in_the_queue() {
    let mut machine = machine(Column::Waiting, None);
    machine.on(Event::Queued, START + WAIT / 2);
    pass_time(&mut machine, START + WAIT / 2);
    assert_eq!(machine.next_timeout(), Some(START + WAIT));
}

#[test]
fn grant_ends_the_timers_of_the_wait() {
    let mut machine = machine(Column::Shown, None);
    assert_eq!(machine.on(granted(None), START + WAIT), [Action::HideWaiting, Action::Start]);
    assert_eq!(machine.next_timeout(), None);
    machine.on(Event::Started, START + WAIT);
    assert_eq!(machine.next_timeout(), None);
}

#[test]
fn command_of_a_lost_grant_has_its_grace_and_is_killed_once() {
    let mut machine = machine(Column::StoppingOwn, None);
    assert_eq!(pass_time(&mut machine, START + GRACE), [(GRACE, Action::Kill)]);
    let end = machine.on(Event::Ended(Ended::Signal(9)), START + GRACE);
    assert_eq!(end, [Action::Kill, Action::Reap, Action::Release, Action::Exit(76)]);
}

#[test]
fn lost_grant_exits_76_even_if_the_command_ends_with_0() {
    let mut machine = machine(Column::StoppingShared, None);
    assert_eq!(machine.on(Event::Ended(Ended::Code(0)), START), [Action::Reap, Action::AwaitRest]);
    assert_eq!(machine.on(Event::RestEnded, START), [Action::Release, Action::Exit(76)]);
    assert_eq!(machine.next_timeout(), None);
}

#[test]
fn rest_of_a_lost_tree_is_killed_after_the_grace() {
    let mut machine = machine(Column::StoppingOwn, Some(DEADLINE));
    machine.on(Event::Ended(Ended::Signal(15)), START + GRACE / 2);
    let killed = [Action::Kill, Action::Release, Action::Exit(76)].map(|action| (GRACE, action));
    assert_eq!(pass_time(&mut machine, DEADLINE), killed);
}

#[test]
fn rest_of_a_lost_tree_is_killed_at_the_deadline() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    machine.on(Event::Lost, DEADLINE - GRACE / 2);
    machine.on(Event::Ended(Ended::Signal(15)), DEADLINE - GRACE / 4);
    let killed = [Action::Kill, Action::Release, Action::Exit(76)];
    assert_eq!(pass_time(&mut machine, LATE), killed.map(|action| (DEADLINE - START, action)));
}

/// The lease is renewed every ttl/3, so the limit of the start leaves time for a renewal.
#[test]
fn start_is_limited_to_half_of_the_remaining_lease() {
    let leased = machine(Column::Starting, Some(DEADLINE));
    assert_eq!(leased.start_limit(START), (DEADLINE - GRACE - START) / 2);
    assert_eq!(leased.start_limit(DEADLINE), START_LIMIT_LEAST);
    assert_eq!(machine(Column::Starting, Some(LATE)).start_limit(START), START_LIMIT);
    assert_eq!(machine(Column::Starting, None).start_limit(START), START_LIMIT);
}

#[test]
fn signal_before_the_start_cancels_the_start() {
    let mut machine = machine(Column::Starting, None);
    assert!(machine.may_start());
    machine.on(signal(Signal::Winch, Sender::Other), START);
    assert!(machine.may_start());
    assert_eq!(machine.on(signal(Signal::Hup, Sender::Other), START), [Action::Release, Action::Exit(129)]);
    assert!(!machine.may_start());
}

#[test]
fn ctrl_c_that_kills_the_command_ends_rlock_by_the_same_signal() {
    let interrupt = |sender| {
        let mut machine = machine(Column::RunningShared, None);
        machine.on(signal(Signal::Int, sender), START);
        machine
    };
    let died = Event::Ended(Ended::Signal(2));
    let exit = |sender, end| {
        let mut machine = interrupt(sender);
        machine.on(end, START);
        machine.on(Event::RestEnded, START);
        machine.on(Event::Released, START)
    };
    assert_eq!(exit(Sender::Terminal, died), [Action::ExitBy(Signal::Int)]);
    assert_eq!(exit(Sender::Other, died), [Action::Exit(130)], "another process sent the signal");
    let handled = Event::Ended(Ended::Code(130));
    assert_eq!(exit(Sender::Terminal, handled), [Action::Exit(130)], "the command exited");
}

#[test]
fn ctrl_z_stops_rlock_once_after_the_command() {
    let mut machine = machine(Column::RunningShared, None);
    assert_eq!(machine.on(signal(Signal::Tstp, Sender::Terminal), START), []);
    assert_eq!(machine.on(Event::CommandStopped(Stop::Tstp), START), [Action::StopSelf(Stop::Tstp)]);
    assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), START), [Action::Pass(Signal::Cont)]);
}

#[test]
fn ctrl_z_while_waiting_hides_the_waiting_line_until_the_continue() {
    let mut machine = machine(Column::Shown, None);
    let now = START + NOTICE_AFTER;
    let stop = [Action::HideWaiting, Action::StopSelf(Stop::Tstp)];
    assert_eq!(machine.on(signal(Signal::Tstp, Sender::Terminal), now), stop);
    assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), now), [Action::ShowWaiting]);
}

#[test]
fn command_runs_while_renewed_and_is_stopped_before_the_deadline_otherwise() {
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
        (deadline - GRACE - START, stopped(Cause::Overdue)),
        (deadline - GRACE - START, Action::Terminate),
        (deadline - START, Action::Kill),
    ];
    assert_eq!(pass_time(&mut machine, deadline), expected);
    let killed = pass_time(&mut machine, deadline + GRACE);
    assert!(killed.iter().all(|(_, action)| *action != Action::Kill), "the command is killed once");
    assert_eq!(machine.on(Event::Ended(Ended::Code(0)), deadline).last(), Some(&Action::Exit(76)));
}

#[test]
fn grant_lost_shortly_before_the_deadline_leaves_less_than_a_grace() {
    let mut machine = machine(Column::RunningShared, Some(START + GRACE + GRACE / 4));
    machine.on(Event::Lost, START + GRACE / 5);
    let end = START + GRACE + GRACE / 4;
    assert_eq!(pass_time(&mut machine, end), [(GRACE + GRACE / 5, Action::Kill)], "the grace is over first");
    let mut machine = self::machine(Column::RunningShared, Some(START + GRACE + GRACE / 4));
    machine.on(Event::Lost, START + GRACE / 2);
    assert_eq!(pass_time(&mut machine, end), [(GRACE + GRACE / 4, Action::Kill)], "the deadline comes first");
}

/// After a suspend, only a part of the grace may be left. The command was told to end, so a late
/// renewal only gives back the rest of the grace.
#[test]
fn renewal_after_the_terminate_restores_the_whole_grace_and_no_more() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    let now = DEADLINE - GRACE / 10;
    machine.on(Event::Tick, now);
    assert_eq!(machine.next_timeout(), Some(DEADLINE));
    assert_eq!(machine.on(granted(Some(LATE)), now), []);
    assert_eq!(pass_time(&mut machine, now + GRACE), [(now + GRACE - START, Action::Kill)]);
    let end = [Action::Kill, Action::Reap, Action::Release, Action::Exit(76)];
    assert_eq!(machine.on(Event::Ended(Ended::Code(0)), LATE), end, "the command was killed");
}

#[test]
fn lease_is_renewed_while_a_signalled_command_is_still_ending() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    machine.on(signal(Signal::Term, Sender::Other), START);
    machine.on(granted(Some(LATE)), START);
    assert_eq!(pass_time(&mut machine, DEADLINE), []);
    machine.on(Event::Ended(Ended::Code(0)), DEADLINE);
    assert_eq!(machine.on(Event::RestEnded, DEADLINE), [Action::Release]);
    assert_eq!(machine.on(Event::Released, DEADLINE), [Action::Exit(0)]);
}

#[test]
fn grant_that_is_missing_at_its_release_was_lost() {
    for end in [Ended::Code(0), Ended::Code(3), Ended::Signal(15)] {
        let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
        machine.on(Event::Ended(end), START);
        machine.on(Event::RestEnded, START);
        let lost = [Action::Say(Line::Ends(Cause::Lost, Consequence::EndedLate)), Action::Exit(76)];
        assert_eq!(machine.on(Event::Lost, START), lost);
    }
}

#[test]
fn terminate_instant_of_the_lease_cancels_the_start() {
    let mut machine = machine(Column::Starting, Some(DEADLINE));
    assert_eq!(machine.on(Event::Tick, DEADLINE - GRACE - Duration::from_nanos(1)), []);
    assert!(machine.may_start());
    machine.on(Event::Tick, DEADLINE - GRACE);
    assert!(!machine.may_start());
}

#[test]
fn continue_past_the_deadline_kills_the_command() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    machine.on(signal(Signal::Tstp, Sender::Other), START);
    machine.on(Event::CommandStopped(Stop::Tstp), START);
    let kill = [stopped(Cause::Overdue), Action::Kill];
    assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), DEADLINE), kill);
}

/// TSTP stops the command and rlock, and with a lease also all other processes of the tree.
#[test]
fn leased_tree_stops_before_rlock_and_continues_with_rlock() {
    let mut machine = machine(Column::RunningOwn, Some(DEADLINE));
    assert_eq!(machine.on(signal(Signal::Tstp, Sender::Other), START), [Action::Pass(Signal::Tstp)]);
    machine.on(signal(Signal::Winch, Sender::Other), START);
    let stop = [Action::Freeze, Action::StopSelf(Stop::Tstp)];
    assert_eq!(machine.on(Event::CommandStopped(Stop::Tstp), START), stop);
    let cont = signal(Signal::Cont, Sender::Other);
    assert_eq!(machine.on(cont, START), [Action::Thaw]);
    assert_eq!(machine.on(cont, START), [Action::Pass(Signal::Cont)]);
    assert_eq!(machine.on(Event::CommandStopped(Stop::Unconditional), START), [], "rlock was not told to stop");
    machine.on(signal(Signal::Tstp, Sender::Other), START);
    machine.on(cont, START);
    assert_eq!(machine.on(Event::CommandStopped(Stop::Unconditional), START), [], "the stop was cancelled");
}
