//! The newest request of a job wins.
//!
//! A request that supersedes others is queued while another command holds the lock. A run that
//! waited before that request was made is superseded then: its command never starts.

use super::Violation;
use crate::log::Run;
use crate::workloads::NEWEST;

/// Whether a request may be busy before its wait is over.
pub(super) fn may_be_superseded(run: &Run) -> bool {
    run.claims.first().is_some_and(|claim| claim.resource.starts_with(NEWEST))
}

pub(super) fn check(runs: &[Run]) -> Vec<Violation> {
    let runs: Vec<_> = runs.iter().filter(|run| may_be_superseded(run)).collect();
    let is_held_at = |at| runs.iter().any(|run| run.start.is_some_and(|start| start < at) && run.last_seen > at);
    let mut found = Vec::new();
    for newer in &runs {
        let Some(queued) = newer.queued.filter(|queued| is_held_at(*queued)) else { continue };
        for older in &runs {
            let waited = older.queued.is_some_and(|queued| queued < newer.asked);
            if waited && older.start.is_some_and(|start| start > queued) {
                let message = format!("{} ran, though {} had superseded it while it waited", older.id, newer.id);
                found.push(Violation::new(message, &[older, newer]));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, run_ids, runs};
    use super::*;

    fn waiter(id: &str, asked: u64, queued: u64, start: u64) -> String {
        format!("{}\n{queued} {id} queued", run(id, "newest:write", asked, 1, start..start + 5))
    }

    #[test]
    fn older_run_that_starts_after_the_newer_request_is_a_violation() {
        let holder = run("1", "newest:write", 0, 1, 10..80);
        let (older, newer) = (waiter("2", 11, 15, 90), waiter("3", 20, 25, 100));
        assert_eq!(run_ids(&check(&runs(&[&holder, &older, &newer]))), [["2", "3"]]);
        let superseded = "11 2 asked newest:write -\n15 2 queued\n26 2 exit 75";
        assert_eq!(check(&runs(&[&holder, superseded, &newer])), []);
    }

    #[test]
    fn run_that_may_have_been_granted_before_the_newer_request_may_start() {
        let holder = run("1", "newest:write", 0, 1, 10..22);
        let (older, newer) = (waiter("2", 11, 15, 90), waiter("3", 20, 25, 100));
        assert_eq!(check(&runs(&[&holder, &older, &newer])), []);
    }

    #[test]
    fn requests_at_the_same_time_have_no_order() {
        let holder = run("1", "newest:write", 0, 1, 10..80);
        assert_eq!(check(&runs(&[&holder, &waiter("2", 11, 21, 90), &waiter("3", 20, 25, 100)])), []);
    }
}
