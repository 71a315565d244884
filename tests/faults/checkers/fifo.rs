//! Requests that conflict are granted first come, first served (invariant 3 of the lock table).
//!
//! A request that was made after another run printed that it waits is behind that run in the queue.
//! The later request must not start while the earlier one waits. Nested requests may go first, and
//! stopped waiters may be passed over.

use std::time::Duration;

use super::{Violation, newest};
use crate::claims;
use crate::log::{Instant, Run};

pub(super) fn check(runs: &[Run]) -> Vec<Violation> {
    let ordinary = || runs.iter().filter(|run| run.parent().is_none());
    let mut waiters: Vec<_> = ordinary().filter(|run| !run.faulted).filter_map(wait).collect();
    waiters.sort_by_key(|wait| wait.from);
    let mut waiters = waiters.into_iter().peekable();
    let mut waiting: Vec<Wait<'_>> = Vec::new();
    let mut found = Vec::new();
    // The runs are in the order of their requests.
    for run in ordinary() {
        while let Some(wait) = waiters.next_if(|wait| wait.from < run.asked) {
            waiting.push(wait);
        }
        waiting.retain(|wait| wait.to > run.asked);
        let Some(start) = run.start else { continue };
        for first in waiting.iter().filter(|wait| start < wait.to && wait.run.id != run.id) {
            // Two slots may be granted together, and their commands then start in any order.
            if claims::conflict(&first.run.claims, &run.claims) {
                let message = format!(
                    "{} was granted before {}, which had waited since before the request",
                    run.id, first.run.id
                );
                found.push(Violation::new(message, &[first.run, run]));
            }
        }
    }
    found
}

/// A time during which a run was certainly in the queue.
struct Wait<'a> {
    run: &'a Run,
    from: Instant,
    to: Instant,
}

fn wait(run: &Run) -> Option<Wait<'_>> {
    let from = run.queued?;
    let to = match (run.start, run.wait_limit) {
        (Some(start), _) => start,
        _ if newest::may_be_superseded(run) => return None,
        // The limit counts from the entry into the queue, which was after `asked`.
        (None, Some(wait_limit)) if run.code() == Some(75) => run.asked + nanos(wait_limit),
        (None, _) => return None,
    };
    (from < to).then_some(Wait { run, from, to })
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, run_ids, runs};
    use super::*;

    /// As [`run`], with a line `queued`.
    fn waiter(id: &str, claims: &str, asked: u64, queued: u64, start: u64) -> String {
        format!("{}\n{queued} {id} queued", run(id, claims, asked, 1, start..start + 5))
    }

    #[test]
    fn grants_in_queue_order_are_accepted() {
        let lines = [waiter("1", "k:write", 10, 15, 100), waiter("2", "k:write", 20, 25, 110)];
        assert_eq!(check(&runs(&[&lines[0], &lines[1]])), []);
    }

    #[test]
    fn overtaking_a_waiter_is_a_violation() {
        for late in [waiter("2", "k:write", 20, 25, 90), run("2", "k:read", 20, 1, 30..35)] {
            let runs = runs(&[&waiter("1", "k:write", 10, 15, 100), &late]);
            assert_eq!(run_ids(&check(&runs)), [["1", "2"]]);
        }
    }

    #[test]
    fn requests_at_the_same_time_have_no_order() {
        let runs = runs(&[&waiter("1", "k:write", 10, 25, 100), &waiter("2", "k:write", 20, 26, 90)]);
        assert_eq!(check(&runs), []);
    }

    #[test]
    fn run_that_no_waiter_blocks_may_go_first() {
        let first = waiter("1", "k:write:[0,1]", 10, 15, 100);
        assert_eq!(check(&runs(&[&first, &run("2", "k:write:[2,3]", 20, 1, 30..35)])), []);
        assert_eq!(check(&runs(&[&first, &run("2.1", "k:write", 20, 1, 30..35)])), [], "a nested run may go first");
        let stopped = format!("{first}\n12 1 faulted stop");
        assert_eq!(check(&runs(&[&stopped, &run("2", "k:write", 20, 1, 30..35)])), []);
    }

    #[test]
    fn waiter_that_timed_out_counts_until_its_limit() {
        let gave_up = "0 1 asked k:write 1\n100 1 queued\n1000100 1 exit 75";
        assert_eq!(check(&runs(&[gave_up, &run("2", "k:write", 200, 1, 999_999..1_000_001)])).len(), 1);
        assert_eq!(check(&runs(&[gave_up, &run("2", "k:write", 200, 1, 1_000_000..1_000_001)])), []);
    }
}
