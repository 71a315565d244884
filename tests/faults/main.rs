//! Faults: real rlocks work while processes, servers, disks and connections break under them, and
//! checkers read what came of it.
//!
//! Each command writes down in a log that it starts, still runs and ends ([`log`], [`command`]).
//! Workloads make the runs, a nemesis breaks things, and then the checkers look for what must never
//! be: two at a time that conflict, a number lost, a token that does not rise, somebody overtaken,
//! somebody who waits for nobody, anything left behind.
//!
//! A scenario lasts a few seconds here; `tests/faults-long --minutes 30 --seed 7` plays all of them
//! for longer and prints a table. RLOCK_SEED repeats the chances of a scenario (though not its
//! time), RLOCK_SECONDS says how long each is to last, and RLOCK_LOGS names a folder to keep the
//! logs in.

#[path = "../support/mod.rs"]
mod support;

mod checkers;
mod claims;
mod command;
mod embedded;
mod log;
mod long;
mod nemesis;
mod plan;
mod scenario;
mod server_faults;
mod servers;
mod site;
mod stage;
mod workloads;

use std::time::Duration;

use scenario::Scenario;
use support::random::Random;

/// How long a scenario lasts where nobody says otherwise.
const SECONDS: u64 = 8;

/// Makes a test of each scenario, by its name.
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
    embedded_stops
    embedded_full_disk
    undisturbed
    rlocks_killed
    rlocks_stopped_for_a_moment
    rlocks_stopped_beyond_their_leases
    server_stopped
    server_killed_with_all_on_disk
    server_killed_with_most_on_disk
    server_killed_with_nothing_on_disk
    network_lossy
    network_slow_or_silent
    network_forgetful_or_flooded
    clients_killed_and_paused
    server_flushed
    crowds_expired_on_a_lossy_network
    keys_deleted
    server_out_of_memory
    failover_to_a_replica_that_lags
    slot_migrated
    clock_stepped
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
    let scenario = all().find(|scenario| scenario.name == name).expect("it is listed");
    let seconds = std::env::var("RLOCK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let seed = Random::seed();
    let report = scenario.play(seed, Duration::from_secs(seconds));
    eprintln!("RLOCK_SEED={seed} {report}");
    assert!(
        report.violations.is_empty(),
        "{report}\nrlock said, among other things:\n{}\n\n{}\n\nagain, as far as chance goes: \
         RLOCK_SEED={seed} RLOCK_SECONDS={seconds} cargo test --test faults {name}",
        report.said.join("\n"),
        report.violations.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n"),
    );
}
