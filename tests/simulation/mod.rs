//! The whole system in virtual time: real supervision, real conversations and the real lock table,
//! with a network, processes and clocks that are simulated.
//!
//! Everything runs in one thread. The next event comes from a queue in the order of virtual time,
//! and all randomness comes from a seed, so a seed replays an episode exactly.
//!
//! | module | contents |
//! | --- | --- |
//! | `episode` | plays one episode and reports what came of it |
//! | `world` | time and the queue of events |
//! | `clocks` | the rates of clocks |
//! | `network` | connections between the clients and the server |
//! | `nodes` | the server takes what arrives in turn |
//! | `processes` | the rlock of each task, and its command |
//! | `task` | one process after another |
//! | `tree` | what else belongs to a command: inner rlocks, processes left behind, spare work |
//! | `client` | supervises one command, with the real machine and the real conversation |
//! | `route` | carries out the actions of a conversation |
//! | `plan` | what a session asks for, and how its command behaves |
//! | `server` | the lock table behind the replies of the scripts |
//! | `wire` | reads commands and writes replies |
//! | `faults` | what breaks, and whether the promise covers it |
//! | `checkers` | exclusion, tokens, order, leases, waits, commands per session |
//! | `claims`, `rules` | what the checkers share with the fault suite |

mod checkers;
#[path = "../support/claims.rs"]
mod claims;
mod client;
mod clocks;
mod episode;
mod faults;
mod network;
mod nodes;
mod plan;
mod processes;
#[path = "../support/random.rs"]
mod random;
mod route;
#[path = "../support/rules.rs"]
mod rules;
mod server;
mod task;
mod tree;
mod wire;
mod world;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use episode::Report;
use random::Random;

/// How long the test plays in an ordinary run of the tests.
const ORDINARY: Duration = Duration::from_secs(5);

/// A violation with the seed of its episode.
type Found = Vec<(u64, String)>;

#[test]
fn random_episodes_keep_the_promise() {
    play(ORDINARY);
}

/// `tests/simulate` runs this.
#[test]
#[ignore = "plays for minutes"]
fn random_episodes_keep_the_promise_for_minutes() {
    let minutes = std::env::var("RLOCK_MINUTES").ok().and_then(|minutes| minutes.parse().ok());
    play(Duration::from_secs_f64(60.0 * minutes.unwrap_or(1.0)));
}

/// The same seed leads to the same episode.
#[test]
fn episode_is_the_same_for_the_same_seed() {
    let [one, other] = [(); 2].map(|()| episode::play(11, true));
    assert_eq!((one.calls, one.time), (other.calls, other.time));
    assert_eq!(one.timeline, other.timeline);
}

/// Plays episodes for a time, the first with the seed itself, and prints a summary.
fn play(length: Duration) {
    let first = Random::seed();
    eprintln!("RLOCK_SEED={first}");
    let began = Instant::now();
    let mut sum = Report::default();
    let mut found = Found::new();
    for seed in (0..).map(|number| first.wrapping_add(number)) {
        if began.elapsed() >= length && seed != first {
            break;
        }
        let report = episode::play(seed, false);
        if !report.violations.is_empty() && found.is_empty() {
            eprintln!("{}", replayed(seed));
        }
        found.extend(report.violations.iter().map(|violation| (seed, violation.clone())));
        sum.add(report);
    }
    eprintln!("{}{} violations", sum.summary(began.elapsed()), found.len());
    assert!(found.is_empty(), "{found:#?}");
}

/// The timeline of an episode with a violation, and the command that replays it.
fn replayed(seed: u64) -> String {
    let Report { timeline, violations, .. } = episode::play(seed, true);
    let mut text = String::new();
    for line in timeline.iter().rev().chain(&violations) {
        let _ = writeln!(text, "{line}");
    }
    text + &format!("replay: RLOCK_SEED={seed} cargo test --lib random_episodes_keep_the_promise")
}

impl Report {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.sessions += other.sessions;
        self.time += other.time;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        for (fault, times) in other.faults {
            *self.faults.entry(fault).or_default() += times;
        }
    }

    fn summary(&self, took: Duration) -> String {
        let mut text = String::new();
        for (fault, times) in &self.faults {
            let _ = writeln!(text, "{times:>10} {fault:?}");
        }
        let Self { calls, sessions, time, longest_wait, .. } = self;
        let rate = *calls as f64 / took.as_secs_f64();
        text + &format!(
            "{sessions} sessions, {calls} commands ({rate:.0} a second), {} h of virtual time, longest wait {:.1} s, ",
            time.as_secs() / 3600,
            longest_wait.as_secs_f64(),
        )
    }
}
