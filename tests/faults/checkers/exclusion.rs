//! Commands whose claims conflict do not overlap (invariant 1 of the lock table).
//!
//! The checker sweeps over the holds of each resource in the order of their starts, and compares
//! only holds of the same time.

use std::collections::BTreeMap;

use super::{LOST, Violation};
use crate::claims::Claim;
use crate::log::{Instant, Run};
use crate::rules::{self, Exclusion};

/// A claim that was certainly held between two instants.
struct Hold<'a> {
    run: &'a Run,
    claim: &'a Claim,
    from: Instant,
    to: Instant,
}

impl rules::Hold for &Hold<'_> {
    fn claim(&self) -> &Claim {
        self.claim
    }

    fn is_related_to(&self, other: &Self) -> bool {
        self.run.is_related_to(other.run)
    }

    fn shares_slot_with(&self, other: &Self) -> bool {
        self.run.root() == other.run.root()
    }
}

/// Where the promise does not cover the faults, two commands may overlap if one of them exits with
/// 76.
pub(super) fn check(runs: &[Run], covered: bool) -> Vec<Violation> {
    let mut by_resource: BTreeMap<&str, Vec<Hold<'_>>> = BTreeMap::new();
    for hold in runs.iter().flat_map(holds) {
        by_resource.entry(&hold.claim.resource).or_default().push(hold);
    }
    let mut found = Vec::new();
    for holds in by_resource.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        sweep(holds, &mut found);
    }
    found.retain(|(_, is_reported)| !rules::may_overlap(covered, *is_reported));
    found.into_iter().map(|(violation, _)| violation).collect()
}

fn sweep<'a>(holds: &'a [Hold<'a>], found: &mut Vec<(Violation, bool)>) {
    let mut current: Vec<&Hold<'_>> = Vec::new();
    for hold in holds {
        current.retain(|other| other.to >= hold.from);
        found.extend(rules::exclusions(&current, hold).map(|exclusion| describe_exclusion(&exclusion, hold)));
        current.push(hold);
    }
}

/// The violation, and whether one of its runs reported its loss.
fn describe_exclusion(exclusion: &Exclusion<&Hold<'_>>, hold: &Hold<'_>) -> (Violation, bool) {
    let (message, runs) = match exclusion {
        Exclusion::Conflict(other) => {
            let (one, other) = (other.run, hold.run);
            let message = format!("'{}' was granted while {} held it: {}", hold.claim, one.id, describe(one, other));
            (message, vec![one, other])
        }
        Exclusion::TooManySlots { slots, holders } => {
            let runs: Vec<_> = holders.iter().map(|hold| hold.run).chain([hold.run]).collect();
            (format!("more sessions than {slots} held the slots of '{}'", hold.claim.resource), runs)
        }
    };
    (Violation::new(message, &runs), runs.iter().any(|run| has_reported_loss(run)))
}

/// Whether the run reported its loss, or could not because its enclosing command was killed.
fn has_reported_loss(run: &Run) -> bool {
    run.code() == Some(LOST) || (run.exit.is_none() && run.parent().is_some())
}

fn describe(one: &Run, other: &Run) -> String {
    let until = |run: &Run| if run.ended { "ended" } else { "was last seen" };
    let code = |run: &Run| run.code().map_or("killed".to_owned(), |code| format!("exit {code}"));
    format!("{} started before {} {} ({}, {})", other.id, one.id, until(one), code(one), code(other))
}

/// The claims that a run certainly held, with their times.
fn holds(run: &Run) -> Vec<Hold<'_>> {
    let Some(start) = run.start else { return Vec::new() };
    let mut held = Vec::new();
    let mut from = start;
    let mut claims = &run.claims;
    for (at, kept) in &run.kept {
        held.extend(claims.iter().map(|claim| Hold { run, claim, from, to: *at }));
        (from, claims) = (*at, kept);
    }
    held.extend(claims.iter().map(|claim| Hold { run, claim, from, to: run.last_seen }));
    held
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, run_ids, runs};
    use super::*;

    fn found(lines: &[&str]) -> Vec<Vec<String>> {
        let runs = runs(lines);
        let found = check(&runs, true);
        run_ids(&found).into_iter().map(|runs| runs.into_iter().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn consecutive_writers_are_accepted() {
        let one = run("1", "k:write", 0, 1, 10..20);
        let two = run("2", "k:write", 0, 2, 21..30);
        let elsewhere = run("3", "l:write", 0, 2, 15..25);
        assert!(found(&[&one, &two, &elsewhere]).is_empty());
    }

    #[test]
    fn overlapping_writers_are_a_violation() {
        let one = run("1", "k:write", 0, 1, 10..20);
        let two = run("2", "k:write", 0, 2, 19..30);
        let three = run("3", "k:write", 0, 2, 31..40);
        assert_eq!(found(&[&three, &two, &one]), [["1", "2"]]);
    }

    #[test]
    fn long_hold_is_compared_with_every_later_hold() {
        let long = run("1", "k:read", 0, 1, 10..90);
        let readers = [run("2", "k:read", 0, 1, 11..12), run("3", "k:prewrite", 0, 1, 13..95)];
        let writer = run("4", "k:write", 0, 1, 80..81);
        assert_eq!(found(&[&long, &readers[0], &readers[1], &writer]), [["1", "4"], ["3", "4"]]);
    }

    #[test]
    fn hold_of_a_killed_command_lasts_until_its_last_heartbeat() {
        let killed = "0 1 asked k:write -\n10 1 start s 1 1\n15 1 beat\n18 1 beat\n30 1 exit signal";
        assert!(found(&[killed, &run("2", "k:write", 0, 2, 19..25)]).is_empty());
        assert_eq!(found(&[killed, &run("2", "k:write", 0, 2, 17..25)]), [["1", "2"]]);
    }

    #[test]
    fn interval_conflicts_until_it_is_shrunk() {
        let shrunk = "0 1 asked k:write:[0,9] -\n10 1 start s 1 1\n20 1 kept k:write:[0,5)\n30 1 end\n31 1 exit 0";
        assert!(found(&[shrunk, &run("2", "k:write:[5,6]", 0, 2, 21..25)]).is_empty());
        assert_eq!(found(&[shrunk, &run("2", "k:write:[5,6]", 0, 2, 19..25)]), [["1", "2"]]);
        assert_eq!(found(&[shrunk, &run("2", "k:read:[4,6]", 0, 2, 25..35)]), [["1", "2"]]);
    }

    #[test]
    fn nested_run_conflicts_with_other_runs_but_not_with_its_ancestor() {
        let outer = run("1", "k:prewrite", 0, 1, 10..50);
        let inner = run("1.1", "k:write", 0, 2, 20..30);
        assert!(found(&[&outer, &inner, &run("2", "k:read", 0, 3, 31..60)]).is_empty());
        assert_eq!(found(&[&outer, &inner, &run("2", "k:read", 0, 3, 29..60)]), [["1.1", "2"]]);
    }

    #[test]
    fn more_slot_holders_than_slots_are_a_violation() {
        let slot = |id: &str, life| run(id, "s:slot:2", 0, 1, life);
        let shared = slot("1.1", 10..40);
        assert!(found(&[&slot("1", 5..50), &shared, &slot("2", 10..20), &slot("3", 21..30)]).is_empty());
        assert_eq!(found(&[&slot("1", 5..50), &shared, &slot("2", 10..20), &slot("3", 19..30)]).len(), 1);
        let writer = run("4", "s:write", 0, 1, 45..46);
        assert_eq!(found(&[&slot("1", 5..50), &writer]), [["1", "4"]]);
    }

    #[test]
    fn uncovered_overlap_requires_a_reported_loss() {
        let one = run("1", "k:write", 0, 1, 10..20);
        let two = run("2", "k:write", 0, 2, 15..30);
        assert_eq!(check(&runs(&[&one, &two]), false).len(), 1);
        let told = one.replace("exit 0", "exit 76");
        assert_eq!(check(&runs(&[&told, &two]), false), []);
        assert_eq!(check(&runs(&[&told, &two]), true).len(), 1, "a reported loss does not excuse a covered overlap");
    }
}
