//! Fault injection: real rlocks run while processes, servers, disks and connections fail. Checkers
//! then judge the log of the run.
//!
//! Each command logs its start, its heartbeats and its end ([`log`], [`command`]), and so does each
//! client of an `rlock serve` ([`client`]). Workloads make the runs, and a nemesis injects faults.
//! The checkers look for commands that overlap although they conflict, lost increments, tokens that
//! do not rise, overtaken waiters, waiters that no session blocks, reported deadlocks that were
//! none, and commands that the history of the store does not have once. After each scenario the
//! store must be idle.
//!
//! Here a scenario lasts a few seconds, and more with `tests/run --all`. `tests/faults-long
//! --minutes 30 --seed 7` plays all scenarios for longer and prints a table. RLOCK_SEED repeats the
//! random choices of a scenario, but not its timing. RLOCK_SECONDS sets the length of a scenario,
//! and RLOCK_LOGS names a folder for the logs.

mod checkers;
mod client;
mod command;
mod embedded;
mod log;
mod long;
mod nemesis;
mod plan;
mod scenario;
mod served;
mod server_faults;
mod servers;
mod shared;
mod site;
mod stage;
mod workloads;

use std::time::Duration;

use rlock_testkit::{claims, rules};

use rlock_testkit::random::Random;
use rlock_testkit::share::share;
use scenario::Scenario;

/// Defines a test for each scenario, under the name of the scenario.
macro_rules! scenarios {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(#[test]
        fn $name() {
            play(stringify!($name));
        })*
    };
}

scenarios! {
    embedded_kill_storm
    embedded_rlocks_terminated
    embedded_rlocks_and_commands_stopped
    embedded_locks_broken
    embedded_locks_of_clients_broken
    embedded_full_disk
    embedded_cycles_and_rlocks_killed_and_stopped
    embedded_serve_and_its_clients_killed
    no_faults
    rlocks_killed
    rlocks_terminated
    locks_broken
    locks_of_clients_broken
    rlocks_stopped_shorter_than_the_grace
    rlocks_stopped_beyond_their_leases
    server_stopped
    server_killed_with_fsync_always
    server_killed_with_fsync_everysec
    server_killed_without_persistence
    network_lossy
    network_slow_or_silent
    connections_silent_or_flooded
    clients_killed_and_paused
    server_flushed
    crowds_expired_on_a_lossy_network
    keys_deleted
    server_out_of_memory
    noisy_neighbour
    scripts_of_a_neighbour_beyond_their_limit
    postgres_noisy_neighbour
    postgres_and_rlocks_stopped_and_killed
    failover_to_a_replica_that_lags
    slot_migrated
    clock_stepped
    cycles_and_rlocks_killed_and_paused
    cycles_and_server_killed
    serve_and_its_clients_and_server_killed
}

fn all() -> impl Iterator<Item = &'static Scenario> {
    embedded::SCENARIOS.iter().chain(servers::SCENARIOS)
}

#[test]
fn every_scenario_is_a_test() {
    assert_eq!(all().map(|scenario| scenario.name).collect::<Vec<_>>(), NAMES);
}

#[track_caller]
fn play(name: &str) {
    let scenario = all().find(|scenario| scenario.name == name).expect("the scenario is listed");
    let seconds = std::env::var("RLOCK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(share(3, 8));
    let seed = Random::seed();
    let Some(report) = scenario.play(seed, Duration::from_secs(seconds)) else { return };
    eprintln!("RLOCK_SEED={seed} {report}");
    assert!(
        report.violations.is_empty(),
        "{report}\nsome messages of rlock:\n{}\n\n{}\n\nrepeat the random choices with: \
         RLOCK_SEED={seed} RLOCK_SECONDS={seconds} cargo test --test faults {name}",
        report.messages.iter().take(40).map(String::as_str).collect::<Vec<_>>().join("\n"),
        report.violations.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n"),
    );
}
