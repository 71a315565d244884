//! Trees let loose: commands compete for a lock, each with a random tree of real processes, and random
//! signals meet the trees, their rlocks and their guardians.
//!
//! A round has one lock. Its commands run shells, python, perl, setsid(1), double forks, vfork(2),
//! threads and chains of forks ([`scripts`]); a process may be stopped, hang in a write, or have
//! much memory. Meanwhile the round sends signals, breaks the lock, stops the server, and kills
//! guardians and their copies ([`plan`], [`round`]). All processes of a tree share the locks of two
//! files, a referee that the kernel keeps: each command looks first whether a process of an
//! earlier tree lives. [`judge`] knows which of these overlaps the contract permits. After that the
//! lock is free, nothing is left stopped, and no process of rlock has spun.
//!
//! A run lasts 20 s; `tests/faults-long --scenario trees` plays for longer. RLOCK_SEED plays the round
//! of a seed again and again; it repeats the trees and what is done to them, but not the timing.

mod census;
mod judge;
mod plan;
mod round;
mod scripts;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plan::Plan;
use rlock_testkit::late_disk::LateDisk;
use rlock_testkit::needs::{left_out, programs, skip_unless};
use rlock_testkit::random::Random;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::share::share;
use round::{Outcome, Round};
use scripts::PYTHON;

/// The number of rounds that are played at the same time. They mostly wait.
const AT_ONCE: u64 = 4;

/// The first seed of an ordinary run. The long run plays others.
const SEED: u64 = 70_000;

/// A run ends early after so many rounds with faults.
const FAULTY_MAX: usize = 20;

/// The sum of all rounds.
#[derive(Default)]
struct Sum {
    rounds: usize,
    commands: usize,
    moves: usize,
    permitted: usize,
    used: Duration,
    reports: Vec<String>,
}

/// Plays rounds from this seed on for a time. With `repeats`, the round of the seed is played again
/// and again.
fn run(first: u64, time: Duration, repeats: bool, has_big: bool) {
    let has_python = || Path::new(PYTHON).exists() || left_out(&format!("not installed: {PYTHON}"));
    skip_unless!(programs(&["perl", "setsid"]) && has_python());
    let folder = tempfile::tempdir().expect("a folder can be made");
    // Without it, no write hangs.
    let late = LateDisk::mount(folder.path());
    let late = late.as_ref().map(LateDisk::place);
    let has_server = Kind::Redis7.is_present();
    // The server lives as long as the run.
    let _server = has_server.then(|| Server::shared(Kind::Redis7));
    let (begun, turn, is_over) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
    let sum = Mutex::new(Sum::default());
    let work = || {
        while begun.elapsed() < time && !is_over.load(Ordering::Relaxed) {
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            let seed = if repeats { first } else { first.wrapping_add(turn) };
            let mut random = Random::seeded(seed);
            let plan = Plan::new(&mut random, has_big, has_server);
            let outcome = Round::play(&plan, random, late);
            let mut sum = sum.lock().expect("no thread panics with the lock");
            sum.add(seed, turn, begun.elapsed(), outcome);
            is_over.fetch_or(sum.reports.len() >= FAULTY_MAX, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let Sum { rounds, commands, moves, permitted, used, reports } = sum.into_inner().expect("no thread panics");
    println!(
        "RLOCK_SEED={first}: {rounds} rounds, {commands} commands, {moves} moves, {permitted} permitted overlaps, at most \
         {used:.1?} of a processor, {} rounds with faults",
        reports.len()
    );
    assert!(reports.is_empty(), "{} rounds with faults, which are told above:\n{}", reports.len(), reports.join("\n"));
}

impl Sum {
    fn add(&mut self, seed: u64, turn: u64, after: Duration, outcome: Outcome) {
        let Outcome { commands, moves, permitted, used, faults, story } = outcome;
        self.rounds += 1;
        self.commands += commands;
        self.moves += moves;
        self.permitted += permitted;
        self.used = self.used.max(used);
        if !faults.is_empty() {
            let report = format!("RLOCK_SEED={seed}: {}", faults.join("\n"));
            let again = format!("RLOCK_SEED={seed} RLOCK_TESTS_LENGTH=full tests/run --test trees");
            println!(
                "{report}\nround {turn}, after {:.0} s; to play it again: {again}\n{story}\n",
                after.as_secs_f64()
            );
            self.reports.push(report);
        }
    }
}

#[test]
fn commands_with_random_trees_never_overlap() {
    let seconds = std::env::var("RLOCK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(share(20, 180)));
    run(Random::given().unwrap_or(SEED), time, Random::given().is_some(), share(false, true));
}

/// `tests/faults-long --scenario trees`.
#[test]
#[ignore = "plays for RLOCK_MINUTES"]
fn long_run() {
    let minutes = std::env::var("RLOCK_MINUTES").ok().and_then(|minutes| minutes.parse().ok());
    let time = Duration::from_secs_f64(60.0 * minutes.unwrap_or(60.0_f64));
    run(Random::seed(), time, false, true);
}
