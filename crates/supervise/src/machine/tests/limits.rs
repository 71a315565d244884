//! The limits for cron: skips of a busy request, and the maximum run time of a command.

use super::*;

const RUNTIME: Duration = Duration::from_secs(20);
const LOST: Action = stopped(Cause::Lost);
const TIMEOUT: Action = stopped(Cause::Timeout);
/// The grant is held until what was killed has ended.
const AWAITED: [Action; 3] = [Action::Kill, Action::Reap, Action::AwaitRest];
const UNKILLED: Action = Action::Say(Line::Unkilled { holds: true });

fn busy(seconds: Option<u64>) -> Event {
    Event::Busy { skipped_for: seconds.map(Duration::from_secs) }
}

#[test]
fn skip_is_silent_until_the_job_was_skipped_for_too_long() {
    let hour = Skip::For(Duration::from_secs(3600));
    let spoken = [Action::Say(Line::Busy), Action::Exit(75)];
    for (skip, event, expected) in [
        (Skip::Never, busy(Some(0)), &spoken[..]),
        (Skip::Always, busy(None), &[Action::Exit(0)]),
        (Skip::Always, busy(Some(9999)), &[Action::Exit(0)]),
        (hour, busy(Some(0)), &[Action::Exit(0)]),
        (hour, busy(Some(3599)), &[Action::Exit(0)]),
        (hour, busy(Some(3600)), &spoken),
        // The store cannot count, so nobody would ever be told.
        (hour, busy(None), &spoken),
        (Skip::For(Duration::ZERO), busy(Some(0)), &spoken),
    ] {
        let settings = Settings { skip, notice: Notice::Never, ..settings(Group::Own) };
        for path in [&[][..], &[Event::Queued], &[Event::Queued, Event::Tick]] {
            let mut machine = Machine::new(settings);
            for earlier in path {
                machine.on(*earlier, if *earlier == Event::Tick { START + WAIT } else { START });
            }
            assert_eq!(machine.on(event, START + WAIT), expected, "{skip:?}, {event:?} after {path:?}");
        }
    }
}

#[test]
fn lines_tell_of_a_wait_after_a_second_on_change_and_every_half_or_five_minutes() {
    for (notice, seconds) in [(Notice::Log, 300), (Notice::Progress, 30)] {
        let mut machine = Machine::new(Settings { notice, wait: None, ..settings(Group::Own) });
        assert_eq!(machine.on(Event::Queued, START), []);
        assert_eq!(machine.on(Event::Queued, START), [], "a short wait is not told");
        let (tell, period) = (|at| (at, Action::Say(Line::Waiting)), Duration::from_secs(seconds));
        let expected = [tell(NOTICE_AFTER), tell(NOTICE_AFTER + period), tell(NOTICE_AFTER + period * 2)];
        assert_eq!(pass_time(&mut machine, START + NOTICE_AFTER + period * 2), expected);
        assert_eq!(machine.on(Event::Queued, LATE), [Action::Say(Line::Change)]);
        assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), LATE), []);
        assert_eq!(machine.on(granted(None), LATE), [Action::Start]);
        assert_eq!(machine.next_timeout(), None);
    }
}

#[test]
fn wait_that_is_granted_at_its_end_runs_the_command() {
    let mut machine = machine(Column::GivingUp, None);
    assert_eq!(machine.on(granted(None), START + WAIT), [Action::Start]);
    machine.on(Event::Started, START + WAIT);
    assert_eq!(machine.next_timeout(), None);
}

fn limited(group: Group, deadline: Option<Boottime>) -> Machine {
    let mut machine = Machine::new(Settings { max_runtime: Some(RUNTIME), ..settings(group) });
    machine.on(granted(deadline), START);
    assert_eq!(machine.on(Event::Started, START), []);
    machine
}

#[test]
fn command_that_runs_too_long_is_stopped_and_exits_124_after_the_release() {
    let mut machine = limited(Group::Own, None);
    let expected = [(RUNTIME, TIMEOUT), (RUNTIME, Action::Terminate)];
    assert_eq!(pass_time(&mut machine, START + RUNTIME), expected);
    let now = START + RUNTIME;
    assert_eq!(machine.on(Event::Ended(Ended::Code(0)), now), [Action::Reap, Action::AwaitRest]);
    assert_eq!(machine.on(Event::RestEnded, now), [Action::Release], "the lock is held until the tree is gone");
    assert_eq!(machine.on(Event::Released, now), [Action::Exit(124)]);
}

#[test]
fn command_that_ignores_the_end_of_its_time_is_killed_after_the_grace() {
    let mut machine = limited(Group::Shared, None);
    let expected = [(RUNTIME, TIMEOUT), (RUNTIME, Action::Terminate), (RUNTIME + GRACE, Action::Kill)];
    assert_eq!(pass_time(&mut machine, START + RUNTIME + GRACE), expected);
    assert_eq!(machine.on(Event::Ended(Ended::Signal(9)), START + RUNTIME + GRACE), AWAITED);
    assert_eq!(machine.on(Event::RestEnded, LATE), [Action::Release]);
    assert_eq!(machine.on(Event::Released, LATE), [Action::Exit(124)]);
}

#[test]
fn rest_of_a_tree_that_runs_too_long_is_killed_after_the_grace() {
    let mut machine = limited(Group::Own, None);
    pass_time(&mut machine, START + RUNTIME);
    machine.on(Event::Ended(Ended::Signal(15)), START + RUNTIME);
    let killed = [Action::Kill, Action::AwaitRest].map(|action| (RUNTIME + GRACE, action));
    assert_eq!(pass_time(&mut machine, START + RUNTIME + GRACE), killed);
    assert_eq!(machine.on(Event::RestEnded, LATE), [Action::Release]);
    assert_eq!(machine.on(Event::Released, LATE), [Action::Exit(124)]);
}

/// "A line after a second and each 30 s"; "`break` is 75; `break --now` frees"; "124 and 76 come
/// when the tree is gone".
#[test]
fn killed_tree_holds_the_lock_until_it_ends_or_the_lock_is_lost() {
    let killed_at = RUNTIME + GRACE;
    let (second, half_minute) = (Duration::from_secs(1), Duration::from_secs(30));
    let reports = [0, 1, 2].map(|count| (killed_at + second + half_minute * count, UNKILLED));
    for command_ends in [false, true] {
        let killed = || {
            let mut machine = limited(Group::Own, None);
            pass_time(&mut machine, START + RUNTIME);
            if !command_ends {
                machine.on(Event::Ended(Ended::Signal(15)), START + RUNTIME);
            }
            pass_time(&mut machine, START + killed_at);
            if command_ends {
                assert_eq!(machine.on(Event::Ended(Ended::Signal(9)), START + killed_at), AWAITED);
            }
            machine
        };
        let mut patient = killed();
        assert_eq!(pass_time(&mut patient, START + killed_at + second + half_minute * 2), reports);
        assert_eq!(patient.on(Event::RestEnded, LATE), [Action::Release]);
        assert_eq!(patient.on(Event::Released, LATE), [Action::Exit(124)]);
        let mut lost = killed();
        assert_eq!(lost.on(Event::Lost, LATE), [LOST, Action::Release, Action::Exit(76)]);
        let mut silent = killed();
        silent.on(granted(Some(LATE)), START + killed_at);
        let actions = pass_time(&mut silent, LATE);
        let overdue = [stopped(Cause::Overdue), Action::Release, Action::Exit(76)];
        let overdue = overdue.map(|action| (LATE - GRACE - START, action));
        assert_eq!(actions[actions.len() - 3..], overdue, "there the lease ends");
    }
}

#[test]
fn line_about_a_killed_command_that_holds_nothing_promises_nothing() {
    let mut machine = machine(Column::Killed, None);
    let report = (GRACE + Duration::from_secs(1), Action::Say(Line::Unkilled { holds: false }));
    assert_eq!(pass_time(&mut machine, START + GRACE + Duration::from_secs(1)), [report]);
}

#[test]
fn maximum_run_time_counts_from_the_start_and_ends_with_the_command() {
    let mut machine = Machine::new(Settings { max_runtime: Some(RUNTIME), ..settings(Group::Own) });
    machine.on(Event::Queued, START);
    machine.on(granted(None), START + GRACE);
    assert_eq!(machine.next_timeout(), None);
    machine.on(Event::Started, START + GRACE);
    assert_eq!(machine.next_timeout(), Some(START + GRACE + RUNTIME));
    assert_eq!(machine.on(Event::Ended(Ended::Code(3)), LATE), [Action::Reap, Action::Release], "the end came first");
    assert_eq!(machine.on(Event::Released, LATE), [Action::Exit(3)]);
}

/// The lease is renewed while the command is stopped, so the lock stays held.
#[test]
fn timeout_keeps_the_lease_and_becomes_a_loss_if_the_lease_is_lost() {
    let deadline = START + RUNTIME + GRACE * 2;
    let stopping = || {
        let mut machine = limited(Group::Own, Some(deadline));
        assert_eq!(pass_time(&mut machine, START + RUNTIME).len(), 2);
        machine
    };
    let now = START + RUNTIME;
    let mut renewed = stopping();
    assert_eq!(renewed.on(granted(Some(LATE)), now), []);
    assert_eq!(pass_time(&mut renewed, now + GRACE), [(RUNTIME + GRACE, Action::Kill)]);
    let mut lost = stopping();
    assert_eq!(lost.on(Event::Lost, now), [LOST]);
    assert_eq!(lost.on(Event::Lost, now), [], "a loss is reported once");
    assert_eq!(lost.on(Event::Ended(Ended::Code(0)), now), [Action::Reap, Action::AwaitRest]);
    assert_eq!(lost.on(Event::RestEnded, now), [Action::Release, Action::Exit(76)]);
    let mut clearing = stopping();
    clearing.on(Event::Ended(Ended::Code(0)), now);
    assert_eq!(clearing.on(Event::Lost, now), [LOST]);
    assert_eq!(clearing.on(Event::RestEnded, now), [Action::Release, Action::Exit(76)]);
    let overdue = stopped(Cause::Overdue);
    let mut silent = stopping();
    assert_eq!(silent.on(Event::Tick, deadline - GRACE), [overdue, Action::Kill], "the grace is over as well");
    let mut killed = stopping();
    killed.on(granted(Some(LATE + GRACE)), now);
    assert_eq!(killed.on(Event::Tick, now + GRACE), [Action::Kill]);
    assert_eq!(killed.on(Event::Lost, now + GRACE), [LOST]);
    assert_eq!(killed.on(Event::Ended(Ended::Signal(9)), now + GRACE).last(), Some(&Action::Exit(76)));
    let mut gone = stopping();
    gone.on(Event::Ended(Ended::Code(0)), now);
    gone.on(Event::RestEnded, now);
    let late = [Action::Say(Line::Ends(Cause::Lost, Consequence::EndedLate)), Action::Exit(76)];
    assert_eq!(gone.on(Event::Lost, now), late, "the release finds the grant lost");
}

#[test]
fn loss_comes_before_the_end_of_the_run_time() {
    let deadline = START + RUNTIME + GRACE;
    let mut machine = limited(Group::Own, Some(deadline));
    let overdue = [stopped(Cause::Overdue), Action::Terminate];
    assert_eq!(machine.on(Event::Tick, deadline - GRACE), overdue);
}

/// rlock was stopped, and the command ended by itself in time. The end comes after the signal.
#[test]
fn command_that_ended_while_rlock_was_stopped_keeps_its_exit_code() {
    let limited = Settings { max_runtime: Some(WAIT), ..settings(Group::Own) };
    let mut machine = Machine::new(limited);
    machine.on(granted(None), START);
    machine.on(Event::Started, START);
    assert_eq!(machine.on(signal(Signal::Cont, Sender::Other), LATE), [Action::Pass(Signal::Cont)]);
    assert_eq!(machine.on(Event::Ended(Ended::Code(0)), LATE), [Action::Reap, Action::Release]);
    assert_eq!(machine.on(Event::Released, LATE), [Action::Exit(0)]);
}

#[test]
fn signal_at_the_end_of_the_run_time_is_passed_after_the_termination() {
    let mut machine = limited(Group::Own, None);
    let hup = signal(Signal::Hup, Sender::Other);
    assert_eq!(machine.on(hup, START + RUNTIME), [TIMEOUT, Action::Terminate, Action::Pass(Signal::Hup)]);
    assert_eq!(machine.on(signal(Signal::Tstp, Sender::Other), START + RUNTIME), [], "only rlock kills the command");
}

/// As in the table of every pair of events, with a run time that is over.
#[test]
fn every_event_after_the_run_time_ends_at_most_once() {
    for first in super::table::every_event() {
        for second in super::table::every_event() {
            for deadline in [None, Some(DEADLINE)] {
                let mut machine = limited(Group::Own, deadline);
                let mut actions = machine.on(Event::Tick, START + RUNTIME);
                actions.extend(machine.on(first, START + RUNTIME));
                actions.extend(machine.on(second, START + RUNTIME));
                let case = format!("{first:?}, {second:?}: {actions:?}");
                let exit = actions.iter().position(Action::is_exit);
                assert!(exit.is_none_or(|at| at + 1 == actions.len()), "{case}");
                for once in [Action::Release, Action::Terminate, TIMEOUT, LOST] {
                    assert!(actions.iter().filter(|action| **action == once).count() <= 1, "{case}");
                }
            }
        }
    }
}

#[test]
fn nested_wait_looks_for_a_deadlock_after_its_timeout_and_then_every_second() {
    let settings = Settings { deadlock_timeout: Some(GRACE), notice: Notice::Never, ..settings(Group::Own) };
    let mut machine = Machine::new(settings);
    machine.on(Event::Queued, START);
    let looks = |from: Duration, count: u32| (0..count).map(move |n| (from + LOOK_EVERY * n, Action::Look));
    let now = START + GRACE + LOOK_EVERY * 3;
    assert_eq!(pass_time(&mut machine, now), looks(GRACE, 4).collect::<Vec<_>>());
    machine.on(Event::OutOfReach, now);
    assert_eq!(pass_time(&mut machine, now + LOOK_EVERY * 3), [], "a store out of reach tells nothing");
    machine.on(Event::Queued, now + LOOK_EVERY * 3);
    assert_eq!(pass_time(&mut machine, now + LOOK_EVERY * 4), [(now + LOOK_EVERY * 4 - START, Action::Look)]);
    let end = [Action::Say(Line::Failure), Action::Release, Action::Exit(65)];
    assert_eq!(machine.on(Event::Deadlock, now + LOOK_EVERY * 4), end);
}

/// Most requests are not nested, so a waiter must not wake every second for nothing.
#[test]
fn wait_of_a_request_that_is_not_nested_looks_once() {
    let settings = Settings { deadlock_timeout: Some(GRACE), notice: Notice::Never, ..settings(Group::Own) };
    let mut machine = Machine::new(settings);
    machine.on(Event::Queued, START);
    assert_eq!(pass_time(&mut machine, START + GRACE), [(GRACE, Action::Look)]);
    machine.on(Event::NotNested, START + GRACE);
    assert_eq!(pass_time(&mut machine, START + GRACE + LOOK_EVERY * 3), []);
}

/// "A deadlock is not busy": it is not skipped, and the work of `--else` does not run.
#[test]
fn deadlock_is_reported_where_a_busy_request_would_be_silent() {
    let skips = Settings { skip: Skip::Always, notice: Notice::Never, ..settings(Group::Own) };
    for settings in [skips, Settings { has_else: true, conflict_exit_code: 9, quiet: true, ..skips }] {
        let mut machine = Machine::new(settings);
        machine.on(Event::Queued, START);
        let end = [Action::Say(Line::Failure), Action::Release, Action::Exit(65)];
        assert_eq!(machine.on(Event::Deadlock, START), end);
    }
}
