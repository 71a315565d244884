//! Compares the scripts with the model. Random histories run on a lock table in memory and on a
//! real server, and must give equal replies and equal tables after each step. The module
//! [`directed`] tests behaviour that only a server has.
//!
//! A history is a seed and the numbers of its steps. The test shortens a failing history and prints
//! the command that plays it again.

mod both;
mod clients;
mod directed;
mod history;
mod raw;
mod rng;
mod side;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Once;

use history::History;
use support::servers::{Kind, Server, on_each_kind};

/// The number of histories for each kind of server, and the number of steps of each.
const HISTORIES: u64 = 30;
const STEPS: u32 = 90;

on_each_kind!(agree);

fn agree(kind: Kind) {
    let server = Server::shared(kind);
    if let Some(history) = history_from_environment() {
        history.play(&server).unwrap_or_else(|difference| panic!("{difference}"));
        return;
    }
    // Each kind of server has other seeds. The seeds are fixed, so that the test is reproducible.
    let histories = variable("RLOCK_HISTORIES")
        .map_or(HISTORIES, |histories| histories.parse().expect("RLOCK_HISTORIES is a number"));
    for number in 0..histories {
        let history = History::new(1000 * (kind as u64 + 1) + number, (0..STEPS).collect());
        if let Err(difference) = history.play(&server) {
            let (shortest, difference) = history.shortened(&server, difference);
            panic!(
                "{difference}\nplay it again:\n  RLOCK_SEED={} RLOCK_STEPS={} tests/run --test differential {} -- --exact --nocapture",
                shortest.seed,
                shortest.steps.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
                std::thread::current().name().unwrap_or_default(),
            );
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The history that the environment names.
fn history_from_environment() -> Option<History> {
    let seed = variable("RLOCK_SEED")?.parse().expect("RLOCK_SEED is a number");
    let steps = variable("RLOCK_STEPS").expect("RLOCK_STEPS are the rng of the steps, separated by commas");
    let steps = steps.split(',').map(|step| step.parse().expect("RLOCK_STEPS are rng")).collect();
    static PRINT_SEED: Once = Once::new();
    PRINT_SEED.call_once(|| println!("seed {seed}"));
    Some(History::new(seed, steps))
}
