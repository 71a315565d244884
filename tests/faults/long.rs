//! The long run plays all scenarios in turn for RLOCK_MINUTES and prints a table of the results.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::scenario::{Report, Scenario};
use rlock_testkit::random::Random;

/// The longest time for which a scenario is played at a time. Each time has another seed.
const SLICE: Duration = Duration::from_secs(60);

/// The sum of all reports of a scenario.
#[derive(Default)]
struct Row {
    faults: BTreeMap<String, usize>,
    commands: usize,
    longest_wait: Duration,
    /// Each violation with its seed.
    violations: Vec<String>,
}

impl Row {
    fn add(&mut self, seed: u64, outcome: Result<Option<Report>, String>) {
        match outcome {
            Ok(None) => {}
            Ok(Some(report)) => {
                for (fault, count) in report.faults {
                    *self.faults.entry(fault).or_default() += count;
                }
                self.commands += report.commands;
                self.longest_wait = self.longest_wait.max(report.longest_wait);
                let with_seed = |violation: String| format!("RLOCK_SEED={seed}: {violation}");
                self.violations.extend(report.violations.into_iter().map(with_seed));
            }
            Err(message) => self.violations.push(format!("RLOCK_SEED={seed}: {message}")),
        }
    }
}

#[test]
#[ignore = "it takes RLOCK_MINUTES: tests/faults-long --minutes 30 --seed 7"]
fn long_run() {
    let minutes = std::env::var("RLOCK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let time = Duration::from_secs_f64(60.0 * minutes);
    let seed = Random::seed();
    let only = std::env::var("RLOCK_SCENARIO").ok();
    let is_selected = |scenario: &&Scenario| only.as_ref().is_none_or(|only| scenario.name == only);
    let scenarios: Vec<_> = super::all().filter(is_selected).collect();
    assert!(!scenarios.is_empty(), "unknown scenario {only:?}; the scenarios are {:?}", super::NAMES);
    let rows = play_all(&scenarios, time, seed);
    print(&scenarios, &rows, seed);
    let violations: Vec<_> = rows.iter().flat_map(|row| &row.violations).map(String::as_str).collect();
    assert!(violations.is_empty(), "{} violations", violations.len());
}

/// Plays each scenario at least once, as many at a time as there are processors.
fn play_all(scenarios: &[&Scenario], time: Duration, seed: u64) -> Vec<Row> {
    let workers = thread::available_parallelism().map_or(2, usize::from).min(scenarios.len());
    let slice = (time * workers as u32 / scenarios.len() as u32).min(SLICE);
    let rows: Vec<Mutex<Row>> = scenarios.iter().map(|_| Mutex::default()).collect();
    let (turn, started) = (AtomicUsize::new(0), Instant::now());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let turn = turn.fetch_add(1, Ordering::Relaxed);
                    if turn >= scenarios.len() && started.elapsed() + slice > time {
                        return;
                    }
                    let (index, seed) = (turn % scenarios.len(), seed.wrapping_add(turn as u64));
                    let outcome = catch_unwind(AssertUnwindSafe(|| scenarios[index].play(seed, slice)));
                    let outcome = outcome.map_err(|panic| message(panic.as_ref()));
                    rows[index].lock().expect("no thread panics with the lock").add(seed, outcome);
                }
            });
        }
    });
    rows.into_iter().map(|row| row.into_inner().expect("no thread panics with the lock")).collect()
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}

fn print(scenarios: &[&Scenario], rows: &[Row], seed: u64) {
    let mut table = vec!["scenario|covered|faults|commands|violations|longest wait".to_owned()];
    for (scenario, row) in scenarios.iter().zip(rows) {
        let faults: Vec<_> = row.faults.iter().map(|(name, count)| format!("{count} {name}")).collect();
        table.push(format!(
            "{}|{}|{}|{}|{}|{:.1} s",
            scenario.name,
            if scenario.is_covered() { "yes" } else { "no" },
            faults.join(", "),
            row.commands,
            row.violations.len(),
            row.longest_wait.as_secs_f64(),
        ));
    }
    let cells: Vec<Vec<&str>> = table.iter().map(|line| line.split('|').collect()).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..cells[0].len()).map(width).collect();
    println!("seed {seed}");
    for row in &cells {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        println!("{}", padded.collect::<Vec<_>>().join("  ").trim_end());
    }
    for (scenario, row) in scenarios.iter().zip(rows) {
        row.violations.iter().take(5).for_each(|violation| println!("\n{}: {violation}", scenario.name));
    }
}
