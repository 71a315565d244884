//! A register that refuses tokens below the highest it has seen is safe, whatever was broken.
//!
//! It takes from nobody again once it has taken from another; and it refuses none but those who lost what they held.

use std::collections::BTreeMap;

use super::{LOST, Violation};
use crate::log::Run;

pub(super) fn check(runs: &[Run]) -> Vec<Violation> {
    let mut by_name: BTreeMap<&str, Vec<(u64, bool, &Run)>> = BTreeMap::new();
    for run in runs {
        for (at, name, accepted) in &run.wrote {
            by_name.entry(name).or_default().push((*at, *accepted, run));
        }
    }
    let mut found = Vec::new();
    for (name, mut writes) in by_name {
        writes.sort_by_key(|(at, ..)| *at);
        let mut last_of: BTreeMap<&str, usize> = BTreeMap::new();
        let accepted: Vec<_> = writes.iter().filter(|(_, accepted, _)| *accepted).map(|(.., run)| *run).collect();
        for (index, run) in accepted.iter().enumerate() {
            if let Some(before) = last_of.insert(run.root(), index).filter(|before| before + 1 < index) {
                let between = accepted[before + 1];
                let what = format!("{name} took from {} again after it had taken from {}", run.id, between.id);
                found.push(Violation::new(what, &[run, between]));
            }
        }
        for (.., run) in writes.iter().filter(|(_, accepted, run)| !accepted && !may_be_stale(run)) {
            let what = format!("{name} refused {}, which held it as far as anybody said", run.id);
            found.push(Violation::new(what, &[run]));
        }
    }
    found
}

/// Whether it was said to have lost what it held, or nobody was there to say so.
fn may_be_stale(run: &Run) -> bool {
    run.code().is_none_or(|code| code == LOST)
}

#[cfg(test)]
mod tests {
    use super::super::logs::{named, run, runs};
    use super::*;

    fn writer(id: &str, life: std::ops::Range<u64>, writes: &[&str]) -> String {
        let writes = writes.iter().map(|write| format!("\n{}", write.replace(" ", &format!(" {id} wrote k "))));
        run(id, "k:write", 0, 1, life) + &writes.collect::<String>()
    }

    #[test]
    fn one_after_another_is_well() {
        let one = writer("1", 10..20, &["11 accepted", "19 accepted"]);
        let two = writer("2", 21..30, &["22 accepted"]);
        assert_eq!(check(&runs(&[&one, &two])), []);
    }

    #[test]
    fn a_stale_token_that_is_taken_is_found() {
        let stale = writer("1", 10..40, &["11 accepted", "35 accepted"]).replace("left 0", "left 76");
        let next = writer("2", 21..30, &["22 accepted"]);
        assert_eq!(named(&check(&runs(&[&stale, &next]))), [["1", "2"]]);
    }

    #[test]
    fn only_the_lost_are_refused() {
        let stale = writer("1", 10..40, &["11 accepted", "35 refused"]);
        let next = writer("2", 21..30, &["22 accepted"]);
        assert_eq!(named(&check(&runs(&[&stale, &next]))), [["1"]]);
        assert_eq!(check(&runs(&[&stale.replace("left 0", "left 76"), &next])), []);
        assert_eq!(check(&runs(&[&stale.replace("left 0", "left signal"), &next])), []);
    }
}
