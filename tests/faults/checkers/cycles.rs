//! A nested request that reported a deadlock was in a cycle of requests that wait for each other.
//!
//! The checker looks for a cycle at one instant before the report. It counts what may have been
//! so: a request may wait from the time at which it was made until its command starts. So a cycle
//! that was real is always found, but a report without a cycle may be missed.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Violation;
use crate::claims;
use crate::log::{Instant, Run};

/// The time from the first of the two looks that have seen a cycle to the end of the request.
const TWO_LOOKS: Duration = Duration::from_secs(2);

/// `delay` is how long the last look and the end of the request may have been delayed.
pub(super) fn check(runs: &[Run], delay: Duration) -> Vec<Violation> {
    let window = TWO_LOOKS.saturating_add(delay);
    let is_false = |run: &&Run| run.deadlock.is_some_and(|end| !was_in_a_cycle(runs, run, end, window));
    runs.iter().filter(is_false).map(no_cycle).collect()
}

fn no_cycle(run: &Run) -> Violation {
    Violation::new(format!("{} reported a deadlock, but was in no cycle", run.id), &[run])
}

/// Whether the run was in a cycle within the window before `end`.
fn was_in_a_cycle(runs: &[Run], run: &Run, end: Instant, window: Duration) -> bool {
    let begin = run.asked.max(end.saturating_sub(window.as_nanos().try_into().unwrap_or(Instant::MAX)));
    // What waits for what changes only at these instants.
    let changes = runs.iter().flat_map(|other| [Some(other.asked), other.start]).flatten();
    changes.filter(|at| (begin..end).contains(at)).chain([begin]).any(|at| is_in_a_cycle(runs, run, at))
}

fn is_in_a_cycle(runs: &[Run], run: &Run, at: Instant) -> bool {
    let living: Vec<&Run> = runs.iter().filter(|run| lives(run, at)).collect();
    let mut seen = BTreeSet::new();
    let mut next = vec![run];
    while let Some(waiter) = next.pop() {
        for other in living.iter().filter(|other| waits_for(waiter, other, at)) {
            if other.id == run.id {
                return true;
            }
            if seen.insert(&other.id) {
                next.push(other);
            }
        }
    }
    false
}

/// Whether the run has made its request and has neither ended nor been killed.
fn lives(run: &Run, at: Instant) -> bool {
    let end = run.exit.map(|exit| exit.at).into_iter().chain(run.killed).min();
    run.asked <= at && end.is_none_or(|end| at < end)
}

/// Whether the command of the run has not started.
fn waits(run: &Run, at: Instant) -> bool {
    run.start.is_none_or(|start| at < start)
}

/// A holder waits for the requests below it. A request waits for the holders with which it
/// conflicts, and for the requests that were made before it had its place.
fn waits_for(run: &Run, other: &Run, at: Instant) -> bool {
    if !waits(run, at) {
        return other.is_below(run) && waits(other, at);
    }
    let is_ahead = !waits(other, at) || run.queued.is_none_or(|queued| other.asked < queued);
    is_ahead && !run.is_related_to(other) && claims::conflict(&run.claims, &other.claims)
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run_ids, runs};
    use super::*;

    /// 1 holds a and asks for b below it; 2 holds b and asks for a below it at `asked`, and reports
    /// a deadlock at 90.
    fn two(asked: u64, other: &str) -> Vec<Run> {
        let held = "0 1 asked a:write -\n1 1 start s 1 1\n0 2 asked b:write -\n1 2 start s 1 1";
        let nested = "10 1.1 asked b:write -\n11 1.1 queued";
        let report = format!("{asked} 2.1 asked a:write -\n89 2.1 deadlock\n90 2.1 exit 65");
        runs(&[held, nested, &report].into_iter().chain((!other.is_empty()).then_some(other)).collect::<Vec<_>>())
    }

    #[test]
    fn cycle_of_two_is_accepted() {
        assert_eq!(check(&two(20, ""), Duration::ZERO), []);
    }

    #[test]
    fn report_after_the_other_request_has_ended_or_was_killed_is_a_violation() {
        for end in ["15 1.1 exit 75", "15 1.1 faulted killed", "15 1.1 start s 1 1"] {
            assert_eq!(run_ids(&check(&two(20, end), Duration::ZERO)), [["2.1"]], "{end}");
        }
        assert_eq!(check(&two(20, "25 1.1 exit 75"), Duration::ZERO), [], "they have met");
    }

    /// The nested rlock outlives the command around it, and the outer rlock holds until it ends.
    #[test]
    fn holder_whose_command_was_killed_is_in_the_cycle() {
        assert_eq!(check(&two(20, "15 1 faulted command-killed"), Duration::ZERO), []);
        assert_eq!(run_ids(&check(&two(20, "15 1 faulted killed"), Duration::ZERO)), [["2.1"]]);
    }

    #[test]
    fn cycle_that_ended_long_before_the_report_is_a_violation() {
        let mut late = two(20, "25 1.1 exit 75");
        let end = 25 + TWO_LOOKS.as_nanos() as u64;
        let report = late.iter_mut().find(|run| run.deadlock.is_some()).unwrap();
        report.deadlock = Some(end);
        assert_eq!(check(&late, Duration::ZERO).len(), 1);
    }

    /// The command around the request was killed, so nobody logged the exit of the request.
    #[test]
    fn report_without_an_exit_is_judged() {
        let mut runs = two(20, "");
        runs.iter_mut().find(|run| run.deadlock.is_some()).unwrap().exit = None;
        assert_eq!(check(&runs, Duration::ZERO), []);
    }

    #[test]
    fn waiter_closes_a_cycle_for_those_behind_it() {
        let ahead = "5 3 asked b:write+c:write -\n6 3 queued\n0 4 asked c:write -\n1 4 start s 1 1\n\
                     30 4.1 asked a:write -\n80 4.1 deadlock\n81 4.1 exit 65";
        let held = "0 1 asked a:write -\n1 1 start s 1 1\n10 1.1 asked b:write -\n11 1.1 queued";
        assert_eq!(check(&runs(&[held, ahead]), Duration::ZERO), []);
        let behind = ahead.replace("5 3 asked", "12 3 asked").replace("6 3 queued", "13 3 queued");
        assert_eq!(run_ids(&check(&runs(&[held, &behind]), Duration::ZERO)), [["4.1"]]);
    }
}
