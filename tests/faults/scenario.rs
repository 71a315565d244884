//! Plays a scenario and judges its log.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fmt, fs, thread};

use super::checkers::{self, Entry, Rules};
use super::client;
use super::log::{self, History};
use super::nemesis::{self, Fault};
use super::site::Site;
use super::stage::Stage;
use super::workloads::Workload;
use rlock_testkit::DEADLINE;
use rlock_testkit::random::Random;

/// A store, the workloads that use it, and the faults that are injected meanwhile.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Sets up the store, or returns none if this machine lacks a program or a privilege for it.
    pub(crate) site: fn() -> Option<Site>,
    /// The workloads to choose from: each play uses [`WORKLOADS_PER_STORE`] of them at random.
    pub(crate) workloads: &'static [Workload],
    /// Whether [`Workload::Long`] is added, whose commands outlast a lease.
    pub(crate) long: bool,
    /// A part of the names of all resources, see [`Workload::plan`].
    pub(crate) tag: &'static str,
    /// The number of runs at a time, distributed over the workloads.
    pub(crate) runs: usize,
    /// The number of `rlock serve`s on the store.
    pub(crate) servers: usize,
    /// The number of their clients at a time, distributed over the workloads.
    pub(crate) clients: usize,
    pub(crate) faults: &'static [Fault],
    /// The longest pause between two faults.
    pub(crate) pace: Duration,
    /// For this and the following fields see [`Rules`].
    pub(crate) fifo: bool,
    pub(crate) codes: &'static [i32],
    pub(crate) forgets: bool,
    pub(crate) lease: Duration,
    pub(crate) idle: Option<Duration>,
}

/// The number of workloads that share a store. It is low, so that the runs of a workload conflict
/// often.
const WORKLOADS_PER_STORE: usize = 2;

/// The result of a scenario.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) name: &'static str,
    workloads: Vec<Workload>,
    pub(crate) faults: BTreeMap<String, usize>,
    pub(crate) commands: usize,
    /// Each violation with the lines of the log that show it.
    pub(crate) violations: Vec<String>,
    pub(crate) longest_wait: Duration,
    /// See [`History::scheduling_delay`].
    scheduling_delay: Duration,
    /// Some messages of the rlocks.
    pub(crate) messages: Vec<String>,
}

impl Scenario {
    /// Whether the promise covers all faults of the scenario.
    pub(crate) fn is_covered(&self) -> bool {
        self.faults.iter().all(|fault| fault.covered)
    }

    fn rules(&self) -> Rules {
        let Self { fifo, codes, forgets, lease, idle, .. } = *self;
        Rules { covered: self.is_covered(), fifo, codes, forgets, lease, idle }
    }

    /// Plays the scenario, or returns none if this machine lacks a program or a privilege for it.
    pub(crate) fn play(&self, seed: u64, time: Duration) -> Option<Report> {
        let stage = Stage::new((self.site)()?, self.servers);
        let mut random = Random::seeded(seed);
        let workloads = self.mix(&mut random);
        let process_time = thread::scope(|scope| {
            let gauge = scope.spawn(|| longest_process(|| stage.is_over()));
            for number in 0..self.runs + self.clients {
                let (workload, mut random) = (workloads[number % workloads.len()], random.branch());
                let stage = &stage;
                scope.spawn(move || {
                    while !stage.is_over() {
                        let plan = workload.plan(self.tag, &mut random);
                        if number < self.runs {
                            stage.execute(&plan);
                        } else {
                            client::execute(stage, &plan, &mut random);
                        }
                    }
                });
            }
            let (stage, mut random) = (&stage, random.branch());
            let nemesis = scope.spawn(move || nemesis::run(stage, self.faults, self.pace, &mut random));
            thread::sleep(time);
            stage.stop();
            let repaired = nemesis.join();
            stage.finish(DEADLINE);
            repaired.expect("every fault is repaired");
            gauge.join().expect("a process starts")
        });
        // The servers have released everything by themselves, and not by their end.
        stage.site.assert_free();
        let entries = stage.site.history();
        stage.servers.end();
        stage.site.assert_idle();
        Some(self.judge(&stage, &entries, workloads, process_time))
    }

    fn mix(&self, random: &mut Random) -> Vec<Workload> {
        let mut workloads = self.workloads.to_vec();
        while workloads.len() > WORKLOADS_PER_STORE {
            workloads.remove(random.below(workloads.len() as u64) as usize);
        }
        workloads.extend(self.long.then_some(Workload::Long));
        workloads
    }

    fn judge(&self, stage: &Stage, entries: &[Entry], workloads: Vec<Workload>, process_time: Duration) -> Report {
        let text = stage.text();
        if let Some(folder) = env::var_os("RLOCK_LOGS") {
            let path = Path::new(&folder).join(self.name);
            fs::write(&path, &text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        let history = History { process_time, ..History::parse(&text) };
        let findings = checkers::check(&history, entries, &self.rules());
        let messages = stage.messages();
        let describe = |violation: &checkers::Violation| {
            let is_of = |line: &&String| violation.runs.iter().any(|id| line.starts_with(&format!("{id}: ")));
            let said: Vec<_> = messages.iter().filter(is_of).map(String::as_str).collect();
            format!("{}\n{}{}", violation.message, log::excerpt(&text, &violation.runs), said.join("\n"))
        };
        Report {
            name: self.name,
            workloads,
            commands: history.commands(),
            violations: findings.violations.iter().map(describe).collect(),
            longest_wait: findings.longest_wait,
            scheduling_delay: history.scheduling_delay(),
            faults: history.faults,
            messages,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<_> = self.faults.iter().map(|(name, count)| format!("{count} × {name}")).collect();
        write!(
            f,
            "{} ({:?}): {}; {} commands, {} violations, longest wait {:.1?}, machine slow by {:.1?}",
            self.name,
            self.workloads,
            faults.join(", "),
            self.commands,
            self.violations.len(),
            self.longest_wait,
            self.scheduling_delay
        )
    }
}

/// The pause between two measurements of the machine.
const GAUGE_PAUSE: Duration = Duration::from_millis(50);

/// Starts one process after another until `is_over`. Returns the longest time that one took.
fn longest_process(is_over: impl Fn() -> bool) -> Duration {
    let mut longest = Duration::ZERO;
    while !is_over() {
        let started = Instant::now();
        let status = Command::new("true").status().expect("true(1) is installed");
        assert!(status.success());
        longest = longest.max(started.elapsed());
        thread::sleep(GAUGE_PAUSE);
    }
    longest
}
