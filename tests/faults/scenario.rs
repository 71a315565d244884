//! Plays a scenario and judges what its log tells.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use std::{env, fmt, fs, thread};

use super::checkers::{self, Rules};
use super::log::{self, History};
use super::nemesis::{self, Fault};
use super::site::Site;
use super::stage::Stage;
use super::support::DEADLINE;
use super::support::random::Random;
use super::workloads::Workload;

/// Who works where, and what goes wrong meanwhile.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// None if this machine lacks what it needs.
    pub(crate) site: fn() -> Option<Site>,
    /// Of these, [`MIXED`] are mixed by chance.
    pub(crate) workloads: &'static [Workload],
    /// Whether some runs outlast a lease as well.
    pub(crate) long: bool,
    /// Stands in the names of all resources.
    pub(crate) tag: &'static str,
    /// How many runs there are at a time, dealt out among the workloads.
    pub(crate) runs: usize,
    pub(crate) faults: &'static [Fault],
    /// The longest pause between two faults.
    pub(crate) pace: Duration,
    pub(crate) fifo: bool,
    pub(crate) codes: &'static [i32],
    /// See [`Rules::lease`] and [`Rules::idle`].
    pub(crate) lease: Duration,
    pub(crate) idle: Option<Duration>,
}

/// How many workloads share a store, so that enough runs are left to each to be in the way of each other.
const MIXED: usize = 2;

/// What came of it.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) name: &'static str,
    workloads: Vec<Workload>,
    pub(crate) faults: BTreeMap<String, usize>,
    pub(crate) commands: usize,
    /// Each with the lines of the log that show it.
    pub(crate) violations: Vec<String>,
    pub(crate) longest_wait: Duration,
    /// What else rlocks had to say.
    pub(crate) said: Vec<String>,
}

impl Scenario {
    /// Whether the promise covers all that is broken.
    pub(crate) fn is_covered(&self) -> bool {
        self.faults.iter().all(|fault| fault.covered)
    }

    fn rules(&self) -> Rules {
        Rules { covered: self.is_covered(), fifo: self.fifo, codes: self.codes, lease: self.lease, idle: self.idle }
    }

    /// Plays it, if this machine has what it needs.
    pub(crate) fn play(&self, seed: u64, time: Duration) -> Option<Report> {
        let stage = Stage::new((self.site)()?);
        let mut random = Random::seeded(seed);
        let workloads = self.mix(&mut random);
        thread::scope(|scope| {
            for number in 0..self.runs {
                let (workload, mut random) = (workloads[number % workloads.len()], random.branch());
                let stage = &stage;
                scope.spawn(move || {
                    while !stage.is_over() {
                        stage.perform(&workload.plan(self.tag, &mut random));
                    }
                });
            }
            let (stage, mut random) = (&stage, random.branch());
            let nemesis = scope.spawn(move || nemesis::haunt(stage, self.faults, self.pace, &mut random));
            thread::sleep(time);
            stage.end();
            let mended = nemesis.join();
            stage.close(DEADLINE);
            mended.expect("what is broken can be mended");
        });
        stage.site.assert_quiet();
        Some(self.judge(&stage, workloads))
    }

    fn mix(&self, random: &mut Random) -> Vec<Workload> {
        let mut workloads = self.workloads.to_vec();
        while workloads.len() > MIXED {
            workloads.remove(random.below(workloads.len() as u64) as usize);
        }
        workloads.extend(self.long.then_some(Workload::Long));
        workloads
    }

    fn judge(&self, stage: &Stage, workloads: Vec<Workload>) -> Report {
        let text = stage.text();
        if let Some(folder) = env::var_os("RLOCK_LOGS") {
            let path = Path::new(&folder).join(self.name);
            fs::write(&path, &text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        let history = History::read(&text);
        let findings = checkers::check(&history, &self.rules());
        let shown =
            |violation: &checkers::Violation| format!("{}\n{}", violation.what, log::excerpt(&text, &violation.runs));
        Report {
            name: self.name,
            workloads,
            commands: history.commands(),
            violations: findings.violations.iter().map(shown).collect(),
            longest_wait: findings.longest_wait,
            faults: history.faults,
            said: stage.said(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<_> = self.faults.iter().map(|(name, count)| format!("{count} × {name}")).collect();
        write!(
            f,
            "{} ({:?}): {}; {} commands, {} violations, longest wait {:.1?}",
            self.name,
            self.workloads,
            faults.join(", "),
            self.commands,
            self.violations.len(),
            self.longest_wait
        )
    }
}
