//! A register that refuses tokens below the highest it has seen is safe, whatever was broken.
//!
//! After the register has accepted a write of another run, it accepts no more writes of the first
//! one. It refuses only runs that have lost their lease.

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
                let message = format!("{name} accepted {} again after it had accepted {}", run.id, between.id);
                found.push(Violation::new(message, &[run, between]));
            }
        }
        for (.., run) in writes.iter().filter(|(_, accepted, run)| !accepted && !may_be_stale(run)) {
            let message = format!("{name} refused {}, which reported no loss", run.id);
            found.push(Violation::new(message, &[run]));
        }
    }
    found
}

/// Whether the run reported a loss, or was killed and could not.
fn may_be_stale(run: &Run) -> bool {
    run.code().is_none_or(|code| code == LOST)
}

#[cfg(test)]
mod tests {
    use super::super::logs::{run, run_ids, runs};
    use super::*;

    fn writer(id: &str, life: std::ops::Range<u64>, writes: &[&str]) -> String {
        let writes = writes.iter().map(|write| format!("\n{}", write.replace(" ", &format!(" {id} wrote k "))));
        run(id, "k:write", 0, 1, life) + &writes.collect::<String>()
    }

    #[test]
    fn consecutive_writes_are_accepted() {
        let one = writer("1", 10..20, &["11 accepted", "19 accepted"]);
        let two = writer("2", 21..30, &["22 accepted"]);
        assert_eq!(check(&runs(&[&one, &two])), []);
    }

    #[test]
    fn accepted_stale_token_is_a_violation() {
        let stale = writer("1", 10..40, &["11 accepted", "35 accepted"]).replace("exit 0", "exit 76");
        let next = writer("2", 21..30, &["22 accepted"]);
        assert_eq!(run_ids(&check(&runs(&[&stale, &next]))), [["1", "2"]]);
    }

    #[test]
    fn refused_write_requires_a_reported_loss() {
        let stale = writer("1", 10..40, &["11 accepted", "35 refused"]);
        let next = writer("2", 21..30, &["22 accepted"]);
        assert_eq!(run_ids(&check(&runs(&[&stale, &next]))), [["1"]]);
        assert_eq!(check(&runs(&[&stale.replace("exit 0", "exit 76"), &next])), []);
        assert_eq!(check(&runs(&[&stale.replace("exit 0", "exit signal"), &next])), []);
    }
}
