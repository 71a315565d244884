//! What must be true of every log, each in a file of its own: pure functions from runs to violations.
//!
//! All of them are sound, however loaded the machine: what they compare are instants at which something certainly was so already
//! (a command had started, a request was queued) or certainly still was (a command ran, a request had not been made).

#[path = "checkers/counter.rs"]
mod counter;
#[path = "checkers/exclusion.rs"]
mod exclusion;
#[path = "checkers/fifo.rs"]
mod fifo;
#[path = "checkers/outcomes.rs"]
mod outcomes;
#[path = "checkers/register.rs"]
mod register;
#[path = "checkers/tokens.rs"]
mod tokens;
#[path = "checkers/waits.rs"]
mod waits;

use std::time::Duration;

use super::command::GRACE;
use super::log::{History, Run};

/// The code that says that the lease was lost.
const LOST: i32 = 76;

/// A machine that lets processes wait for longer may keep an rlock from renewing its lease, and from ending its command in time: the
/// promise holds for those that get their turn within a grace.
const TOO_SLUGGISH: Duration = GRACE;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// A sentence.
    pub(crate) what: String,
    /// The runs whose lines show it.
    pub(crate) runs: Vec<String>,
}

impl Violation {
    fn new(what: impl Into<String>, runs: &[&Run]) -> Self {
        Self { what: what.into(), runs: runs.iter().map(|run| run.id.clone()).collect() }
    }
}

/// What a scenario may be held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The promise covers all that is broken: nothing that conflicts overlaps. Else whoever overlaps has to be told that he lost.
    pub(crate) covered: bool,
    /// Waiters stay in reach of the store, so nobody is passed over but those who are stopped.
    pub(crate) fifo: bool,
    /// Exit codes of rlock's own, beside being busy, that whoever was let alone may have.
    pub(crate) codes: &'static [i32],
    /// How long a grant of the dead lasts.
    pub(crate) lease: Duration,
    /// How long nobody may run while somebody waits, but for what the dead and the stopped cost; none where it can't be said.
    pub(crate) idle: Option<Duration>,
}

/// What was found in a log.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    /// The longest time for which nobody ran although somebody waited.
    pub(crate) longest_wait: Duration,
}

pub(crate) fn check(history: &History, rules: &Rules) -> Findings {
    let runs = history.runs.as_slice();
    let sluggishness = history.sluggishness();
    let covered = rules.covered && sluggishness < TOO_SLUGGISH;
    let mut violations = exclusion::check(runs, covered);
    violations.extend(counter::check(runs, covered));
    violations.extend(register::check(runs));
    violations.extend(tokens::check(runs));
    violations.extend(outcomes::check(runs, rules.codes, sluggishness));
    if rules.fifo {
        violations.extend(fifo::check(runs));
    }
    let waits = waits::idle_stretches(runs, rules.lease);
    if let Some(idle) = rules.idle {
        // Several processes start and end between two commands, each of them as slowly as the machine is.
        violations.extend(waits::check(&waits, idle + 10 * sluggishness, rules.lease));
    }
    let longest_wait = waits.iter().map(waits::Stretch::length).max().unwrap_or_default();
    Findings { violations, longest_wait }
}

/// Logs for the tests of the checkers.
#[cfg(test)]
mod logs {
    use super::Violation;
    use crate::log::{History, Run};

    /// The runs of a log whose lines are written as `INSTANT RUN WHAT`, in any order.
    pub(super) fn runs(lines: &[&str]) -> Vec<Run> {
        History::read(&lines.join("\n")).runs
    }

    /// A run from its start to its end, all told.
    pub(super) fn run(id: &str, claims: &str, asked: u64, token: u64, life: std::ops::Range<u64>) -> String {
        let (start, end) = (life.start, life.end);
        let left = end + 1;
        format!("{asked} {id} asked {claims} -\n{start} {id} start s{id} {token} 1\n{end} {id} end\n{left} {id} left 0")
    }

    /// The runs that the violations name.
    pub(super) fn named(violations: &[Violation]) -> Vec<Vec<&str>> {
        violations.iter().map(|violation| violation.runs.iter().map(String::as_str).collect()).collect()
    }
}
