//! Read, add one, write back: every number is written once.

use std::collections::BTreeMap;

use super::Violation;
use crate::log::Run;

/// Numbers rise from one to the next; one that is left out was written by a command that was killed before it could say so. Nothing can
/// be said where commands may overlap.
pub(super) fn check(runs: &[Run], covered: bool) -> Vec<Violation> {
    let mut by_name: BTreeMap<&str, Vec<(u64, &Run)>> = BTreeMap::new();
    for run in runs {
        for (_, name, number) in &run.counted {
            by_name.entry(name).or_default().push((*number, run));
        }
    }
    let mut found = Vec::new();
    for (name, mut counts) in by_name.into_iter().filter(|_| covered) {
        counts.sort_by_key(|(number, _)| *number);
        for pair in counts.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            found.push(Violation::new(format!("{name} was set to {} twice", pair[0].0), &[pair[0].1, pair[1].1]));
        }
        let last = counts.last().map_or(0, |(number, _)| *number);
        let killed = runs.iter().filter(|run| run.start.is_some() && !run.ended).count() as u64;
        if last > counts.len() as u64 + killed {
            let what = format!("{name} is {last}, {} have counted and {killed} were killed", counts.len());
            found.push(Violation::new(what, &[]));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::logs::{named, run, runs};
    use super::*;

    fn counts(id: &str, number: u64) -> String {
        format!("{}\n5 {id} counted n {number}", run(id, "k:write", 0, 1, 1..9))
    }

    #[test]
    fn all_numbers_once_are_well() {
        assert_eq!(check(&runs(&[&counts("1", 1), &counts("2", 2), &counts("3", 3)]), true), []);
    }

    #[test]
    fn a_number_written_twice_was_lost_once() {
        let runs = runs(&[&counts("1", 1), &counts("2", 2), &counts("3", 2)]);
        assert_eq!(named(&check(&runs, true)), [["2", "3"]]);
        assert_eq!(check(&runs, false), []);
    }

    #[test]
    fn a_number_is_missing_for_each_that_was_killed_and_no_more() {
        let killed = "0 4 asked k:write -\n1 4 start s 1 1\n3 4 left signal";
        assert_eq!(check(&runs(&[&counts("1", 1), &counts("3", 3), killed]), true), []);
        assert_eq!(check(&runs(&[&counts("1", 1), &counts("3", 4), killed]), true).len(), 1);
    }
}
