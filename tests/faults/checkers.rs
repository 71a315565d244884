//! The checkers, each in a file of its own: pure functions from the runs of a log to violations.
//!
//! The checkers report no false violations on a loaded machine, because they compare only certain
//! facts. At one instant a fact held already: a command had started, or a request was queued. At
//! the other instant a fact still held: a command ran, or a request had not been made.

#[path = "checkers/counter.rs"]
mod counter;
#[path = "checkers/cycles.rs"]
mod cycles;
#[path = "checkers/exclusion.rs"]
mod exclusion;
#[path = "checkers/fifo.rs"]
mod fifo;
#[path = "checkers/history.rs"]
mod history;
#[path = "checkers/newest.rs"]
mod newest;
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
pub(crate) use history::{Entry, RING};

/// The exit code for a lost lease.
const LOST: i32 = 76;

/// The longest scheduling delay under which the promise counts as covered. A slower machine may
/// keep an rlock from renewing its lease, or from ending its command in time.
const MAX_SCHEDULING_DELAY: Duration = GRACE;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// A sentence.
    pub(crate) message: String,
    /// The runs whose lines show the violation.
    pub(crate) runs: Vec<String>,
}

impl Violation {
    fn new(message: impl Into<String>, runs: &[&Run]) -> Self {
        Self { message: message.into(), runs: runs.iter().map(|run| run.id.clone()).collect() }
    }
}

/// The rules that a scenario must obey.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether the promise covers all faults, so that conflicting commands never overlap. If not,
    /// an overlap requires that one of the runs reported its loss.
    pub(crate) covered: bool,
    /// Whether waiters keep their connections to the store, so that only stopped waiters may be
    /// passed over.
    pub(crate) fifo: bool,
    /// The exit codes of rlock, besides 0 and busy, that a run without a fault may have.
    pub(crate) codes: &'static [i32],
    /// Whether the store may forget entries of its history: it loses its data, or has no room.
    pub(crate) forgets: bool,
    /// How long the grant of a dead holder lasts.
    pub(crate) lease: Duration,
    /// How long no command may run while a run waits, not counting the leases of dead and stopped
    /// runs. None if the time has no limit.
    pub(crate) idle: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    /// The longest time for which a run waited while no command ran.
    pub(crate) longest_wait: Duration,
}

pub(crate) fn check(history: &History, entries: &[Entry], rules: &Rules) -> Findings {
    let runs = history.runs.as_slice();
    let scheduling_delay = history.scheduling_delay();
    let covered = rules.covered && scheduling_delay < MAX_SCHEDULING_DELAY;
    let mut violations = exclusion::check(runs, covered);
    violations.extend(counter::check(runs, covered));
    violations.extend(register::check(runs));
    violations.extend(tokens::check(runs));
    violations.extend(outcomes::check(runs, rules.codes, scheduling_delay));
    // A request to a store that cannot be reached is delayed for as long as the store recovers.
    let delay = if rules.codes.is_empty() { Duration::ZERO } else { rules.idle.unwrap_or(Duration::MAX) };
    violations.extend(cycles::check(runs, delay.saturating_add(10 * scheduling_delay)));
    violations.extend(self::history::check(runs, entries, rules.forgets));
    if rules.fifo {
        violations.extend(fifo::check(runs));
        violations.extend(newest::check(runs));
    }
    let waits = waits::idle_periods(runs, rules.lease);
    if let Some(idle) = rules.idle {
        // Several processes start and end between two commands, and each may be delayed.
        violations.extend(waits::check(&waits, idle + 10 * scheduling_delay, rules.lease));
    }
    let longest_wait = waits.iter().map(waits::IdlePeriod::length).max().unwrap_or_default();
    Findings { violations, longest_wait }
}

/// Helpers for the tests of the checkers.
#[cfg(test)]
mod logs {
    use super::Violation;
    use crate::log::{History, Run};

    /// The runs of a log with these lines, `INSTANT RUN EVENT`, in any order.
    pub(super) fn runs(lines: &[&str]) -> Vec<Run> {
        History::parse(&lines.join("\n")).runs
    }

    /// The lines of a run that starts, ends and exits with 0.
    pub(super) fn run(id: &str, claims: &str, asked: u64, token: u64, life: std::ops::Range<u64>) -> String {
        let (start, end) = (life.start, life.end);
        let left = end + 1;
        format!("{asked} {id} asked {claims} -\n{start} {id} start s{id} {token} 1\n{end} {id} end\n{left} {id} exit 0")
    }

    /// The ids of the runs of each violation.
    pub(super) fn run_ids(violations: &[Violation]) -> Vec<Vec<&str>> {
        violations.iter().map(|violation| violation.runs.iter().map(String::as_str).collect()).collect()
    }
}
