//! First come, first served, among those who conflict.
//!
//! Whoever was asked for after another had said that it waits came after it in the queue. It must not start while that one still waits.
//! Nested requests may go first, and whoever was stopped is passed over.

use std::time::Duration;

use super::Violation;
use crate::claims;
use crate::log::{Instant, Run};

pub(super) fn check(runs: &[Run]) -> Vec<Violation> {
    let ordinary = || runs.iter().filter(|run| run.parent().is_none());
    let mut waiters: Vec<_> = ordinary().filter(|run| !run.touched).filter_map(wait).collect();
    waiters.sort_by_key(|wait| wait.from);
    let mut waiters = waiters.into_iter().peekable();
    let mut waiting: Vec<Wait<'_>> = Vec::new();
    let mut found = Vec::new();
    // They come in the order in which they were asked for.
    for run in ordinary() {
        while let Some(wait) = waiters.next_if(|wait| wait.from < run.asked) {
            waiting.push(wait);
        }
        waiting.retain(|wait| wait.to > run.asked);
        let Some(start) = run.start else { continue };
        for first in waiting.iter().filter(|wait| start < wait.to && wait.run.id != run.id) {
            if claims::conflict(&first.run.claims, &run.claims) {
                let what = format!("{} was granted before {}, which waited already when it came", run.id, first.run.id);
                found.push(Violation::new(what, &[first.run, run]));
            }
        }
    }
    found
}

/// A run that certainly was in the queue all that time.
struct Wait<'a> {
    run: &'a Run,
    from: Instant,
    to: Instant,
}

fn wait(run: &Run) -> Option<Wait<'_>> {
    let from = run.queued?;
    let to = match (run.start, run.patience) {
        (Some(start), _) => start,
        // Its time is counted from when it came into the queue, which was after it was asked for.
        (None, Some(patience)) if run.code() == Some(75) => run.asked + nanos(patience),
        (None, _) => return None,
    };
    (from < to).then_some(Wait { run, from, to })
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::super::logs::{named, run, runs};
    use super::*;

    /// As [`run`], and it said that it waits at `queued`.
    fn waiter(id: &str, claims: &str, asked: u64, queued: u64, start: u64) -> String {
        format!("{}\n{queued} {id} queued", run(id, claims, asked, 1, start..start + 5))
    }

    #[test]
    fn served_in_the_order_of_arrival_is_well() {
        let lines = [waiter("1", "k:write", 10, 15, 100), waiter("2", "k:write", 20, 25, 110)];
        assert_eq!(check(&runs(&[&lines[0], &lines[1]])), []);
    }

    #[test]
    fn whoever_overtakes_is_found() {
        for late in [waiter("2", "k:write", 20, 25, 90), run("2", "k:read", 20, 1, 30..35)] {
            let runs = runs(&[&waiter("1", "k:write", 10, 15, 100), &late]);
            assert_eq!(named(&check(&runs)), [["1", "2"]]);
        }
    }

    #[test]
    fn those_who_came_together_have_no_order() {
        let runs = runs(&[&waiter("1", "k:write", 10, 25, 100), &waiter("2", "k:write", 20, 26, 90)]);
        assert_eq!(check(&runs), []);
    }

    #[test]
    fn who_conflicts_with_nobody_ahead_passes() {
        let first = waiter("1", "k:write:[0,1]", 10, 15, 100);
        assert_eq!(check(&runs(&[&first, &run("2", "k:write:[2,3]", 20, 1, 30..35)])), []);
        assert_eq!(check(&runs(&[&first, &run("2.1", "k:write", 20, 1, 30..35)])), [], "it is nested");
        let stopped = format!("{first}\n12 1 touched stop");
        assert_eq!(check(&runs(&[&stopped, &run("2", "k:write", 20, 1, 30..35)])), []);
    }

    #[test]
    fn one_that_gave_up_waited_until_then() {
        let gave_up = "0 1 asked k:write 1\n100 1 queued\n1000100 1 left 75";
        assert_eq!(check(&runs(&[gave_up, &run("2", "k:write", 200, 1, 999_999..1_000_001)])).len(), 1);
        assert_eq!(check(&runs(&[gave_up, &run("2", "k:write", 200, 1, 1_000_000..1_000_001)])), []);
    }
}
