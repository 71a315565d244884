//! What came of an episode, or of many.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use super::coverage::Coverage;
use super::faults::Fault;

#[derive(Default)]
pub(super) struct Summary {
    pub(super) events: u64,
    /// The calls at the server.
    pub(super) calls: u64,
    pub(super) sessions: u64,
    pub(super) time: Duration,
    pub(super) longest_wait: Duration,
    pub(super) faults: BTreeMap<Fault, u64>,
    pub(super) coverage: Coverage,
    pub(super) violations: Vec<String>,
    /// The last events of one episode, the latest first.
    pub(super) timeline: VecDeque<String>,
}

impl Summary {
    pub(super) fn add(&mut self, other: Self) {
        self.events += other.events;
        self.calls += other.calls;
        self.sessions += other.sessions;
        self.time += other.time;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        for (fault, times) in other.faults {
            *self.faults.entry(fault).or_default() += times;
        }
        self.coverage.add(&other.coverage);
        self.violations.extend(other.violations);
    }

    /// The timeline, the earliest event first, and the violations.
    pub(super) fn story(&self) -> String {
        let lines = self.timeline.iter().rev().chain(&self.violations);
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// What was played in this time of a processor. The last line ends in the number of violations.
    pub(super) fn summary(&self, took: Duration) -> String {
        let mut text = String::new();
        for (fault, times) in &self.faults {
            let _ = writeln!(text, "{times:>10} {fault:?}");
        }
        let Self { events, calls, sessions, time, longest_wait, violations, .. } = self;
        text + &format!(
            "{sessions} sessions, {calls} commands ({:.0} in a second of processor time), {events} events, \
             {} h of virtual time, longest wait {:.1} s, {} violations",
            *calls as f64 / took.as_secs_f64(),
            time.as_secs() / 3600,
            longest_wait.as_secs_f64(),
            violations.len(),
        )
    }
}
