//! The whole system in virtual time: real supervision, real conversations and the real lock table,
//! with a network, processes and clocks that are simulated. In some episodes, databases of a real
//! server with the real scripts take the place of the tables.
//!
//! An episode runs in one thread. The next event comes from a queue in the order of virtual time,
//! and all randomness comes from a seed, so a seed replays an episode exactly.
//!
//! | module | contents |
//! | --- | --- |
//! | `setup` | what an episode is made of, and the options that describe it |
//! | `episode` | plays one episode |
//! | `shrink` | makes an episode with a violation smaller |
//! | `report` | what came of an episode |
//! | `world` | time and the queue of events |
//! | `clocks` | the rates of clocks |
//! | `network` | connections between the clients and the nodes |
//! | `location` | where a connection leads |
//! | `nodes` | each node takes what arrives in turn |
//! | `observe` | shows the checkers what the nodes do for calls |
//! | `cluster` | slots, and their migration key by key |
//! | `replication` | replicas that lag, WAIT, and failovers |
//! | `processes` | the rlock of each task, and the processes that work under its locks |
//! | `tree` | what else belongs to a command: inner rlocks, processes left behind, spare work |
//! | `task` | one process after another: a command or a lock server |
//! | `client` | supervises one command, with the real machine and the real conversation |
//! | `change` | an `rlock shrink` or `rlock downgrade` in a command, or an `rlock cleanup --break` |
//! | `serve` | a lock server, with the real machines of its clients |
//! | `sessions` | the real conversations of a lock server about its sessions |
//! | `customer` | a client of a lock server |
//! | `desk` | the real machines of such clients |
//! | `route` | carries out the actions of a conversation |
//! | `script` | a script that locks by `rlock acquire` and runs its steps under that lock |
//! | `plan` | what a session asks for, and how its command behaves |
//! | `data` | what a server knows about locks |
//! | `database`, `link` | a database of a real server in the place of a table |
//! | `told` | what a script has done, as the scripts list it |
//! | `deadlocks` | whether a request that reports a deadlock was in one |
//! | `server` | the lock table behind the replies of the scripts |
//! | `wire` | reads commands and writes replies |
//! | `faults` | what breaks, and whether the promise covers it |
//! | `coverage` | counts which event came in which state |
//! | `checkers` | exclusion, tokens, order, leases, waits, commands per session |
//! | `kept` | checks how long kept holds last |
//! | `jobs` | checks what the server remembers of successes and skips |
//!
//! The fault suite checks real processes by some of the same rules. They are in `rlock-testkit`, as
//! `claims` and `rules`.

#![cfg(test)]

/// Makes the simulation faster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod change;
mod checkers;
mod client;
mod clocks;
mod cluster;
mod coverage;
mod customer;
mod data;
mod database;
mod deadlocks;
mod desk;
mod episode;
mod faults;
mod jobs;
mod kept;
mod link;
mod location;
mod network;
mod nodes;
mod observe;
mod plan;
mod processes;
mod replication;
mod report;
mod route;
mod script;
mod serve;
mod server;
mod sessions;
mod setup;
mod shrink;
mod task;
mod told;
mod tree;
mod wire;
mod world;

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use report::Summary;
use setup::{Options, Setup};

use rlock_testkit::random::{self, Random};
use rlock_testkit::servers::Kind;
use rlock_testkit::share;
use rlock_testkit::{claims, rules};

/// How long the test plays unless it is asked for minutes.
fn ordinary() -> Duration {
    Duration::from_secs(share::share(8, 30))
}

#[test]
fn random_episodes_keep_the_promise() {
    play(&Options::default(), ordinary());
}

#[test]
fn server_that_is_stopped_for_longer_than_a_lease_keeps_the_promise() {
    play(&"--faults ServerStopped".parse().unwrap(), Duration::from_secs(share::share(2, 8)));
}

#[test]
fn connections_clogged_one_by_one_and_released_in_another_order_keep_the_promise() {
    play(&"--faults ConnectionsClogged".parse().unwrap(), Duration::from_secs(share::share(2, 8)));
}

#[test]
fn random_episodes_keep_the_promise_with_the_scripts_on_redis_7() {
    Kind::Redis7.run(play_with_scripts);
}

#[test]
fn random_episodes_keep_the_promise_with_the_scripts_on_valkey_9() {
    Kind::Valkey9.run(play_with_scripts);
}

fn play_with_scripts(kind: Kind) {
    play(&Options::with_scripts(kind), Duration::from_secs(share::share(5, 30)));
}

/// `tests/simulate` runs this with its options.
#[test]
#[ignore = "plays for minutes"]
fn random_episodes_keep_the_promise_for_minutes() {
    let set = |name| std::env::var(name).unwrap_or_default();
    let options: Options = set("RLOCK_SIMULATE").parse().unwrap_or_else(|reason| panic!("RLOCK_SIMULATE: {reason}"));
    let minutes = options.minutes.or(set("RLOCK_MINUTES").parse().ok()).unwrap_or(10.0);
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = if options.is_replay() { 1 } else { processors };
    play_in(threads, &options, Duration::from_secs_f64(60.0 * minutes));
}

#[test]
fn episode_is_the_same_for_the_same_setup() {
    is_played_the_same_twice(&Setup::random(11));
}

/// The scripts take no instant from the real server.
#[test]
fn episode_with_the_scripts_is_the_same_for_the_same_setup() {
    Kind::Redis7.run(|kind| is_played_the_same_twice(&Setup { scripts: Some(kind), ..Setup::random(11) }));
}

fn is_played_the_same_twice(setup: &Setup) {
    let [one, other] = [(); 2].map(|()| episode::play(setup, true));
    assert_eq!((one.events, one.time), (other.events, other.time));
    assert_eq!(one.timeline, other.timeline);
}

/// `tests/simulate` then exits with 1.
#[test]
#[should_panic(expected = "run ")]
fn violation_fails_the_run() {
    let episodes = "--strict --sessions 2 --servers One --faults RlockStopped --seconds 20";
    // The run ends with the first violation.
    play(&episodes.parse().unwrap(), Duration::from_secs(60));
}

/// The time for which a processor has run this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.try_into().expect("the time is not negative")
}

fn play(options: &Options, length: Duration) {
    play_in(1, options, length);
}

/// Plays episodes in some threads until one has a violation or the time is over, the first with the
/// seed itself. A replay is one episode.
fn play_in(threads: usize, options: &Options, length: Duration) {
    let first = options.seed.unwrap_or_else(Random::seed);
    eprintln!("RLOCK_SEED={first}");
    let (next, end) = (&AtomicU64::new(first), &(Instant::now() + length));
    let is_over = &AtomicBool::new(false);
    let play_some = move || {
        let (mut sum, began_at) = (Summary::default(), processor_time());
        while !is_over.load(Ordering::Relaxed) {
            let setup = options.setup(next.fetch_add(1, Ordering::Relaxed));
            sum.add(episode::play(&setup, false));
            if !sum.violations.is_empty() || options.is_replay() || Instant::now() >= *end {
                is_over.store(true, Ordering::Relaxed);
            }
            if !sum.violations.is_empty() {
                // Shrinking may take long.
                eprintln!("{:#?}\nshrinks: tests/simulate {setup}", sum.violations);
                let shrunk = if options.is_replay() { setup } else { shrink::shrink(setup) };
                eprintln!("{}replay: tests/simulate {shrunk}", episode::play(&shrunk, true).story());
            }
        }
        (sum, processor_time() - began_at)
    };
    let (sum, took) = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(play_some)).collect();
        others.into_iter().fold(play_some(), |(mut sum, took), other| {
            let (part, part_took) = other.join().expect("an episode does not panic");
            sum.add(part);
            (sum, took + part_took)
        })
    });
    eprintln!("{}{}", sum.coverage.shown(), sum.summary(took));
    assert!(sum.violations.is_empty(), "{:#?}", sum.violations);
}
