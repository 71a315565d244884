//! Commands increment a number without atomicity, so each number must be written exactly once.

use std::collections::BTreeMap;

use super::Violation;
use crate::log::Run;

/// A missing number is excused by a command that was killed after its write and before its log
/// line. Where commands may overlap, every sequence is accepted.
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
            let message = format!("{name} is {last}, but {} commands counted and {killed} were killed", counts.len());
            found.push(Violation::new(message, &[]));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, run_ids, runs};
    use super::*;

    fn counts(id: &str, number: u64) -> String {
        format!("{}\n5 {id} counted n {number}", run(id, "k:write", 0, 1, 1..9))
    }

    #[test]
    fn each_number_once_is_accepted() {
        assert_eq!(check(&runs(&[&counts("1", 1), &counts("2", 2), &counts("3", 3)]), true), []);
    }

    #[test]
    fn number_written_twice_is_a_violation_if_covered() {
        let runs = runs(&[&counts("1", 1), &counts("2", 2), &counts("3", 2)]);
        assert_eq!(run_ids(&check(&runs, true)), [["2", "3"]]);
        assert_eq!(check(&runs, false), []);
    }

    #[test]
    fn each_killed_command_excuses_one_missing_number() {
        let killed = "0 4 asked k:write -\n1 4 start s 1 1\n3 4 exit signal";
        assert_eq!(check(&runs(&[&counts("1", 1), &counts("3", 3), killed]), true), []);
        assert_eq!(check(&runs(&[&counts("1", 1), &counts("3", 4), killed]), true).len(), 1);
    }
}
