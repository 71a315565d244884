//! The scripts against the model: random histories are played on a lock table in memory and on a real server, and must give equal
//! replies and equal tables, step by step. Then what only a server can show.
//!
//! A history is a seed and the numbers of its steps. One that fails is made as short as possible, and told with the command that
//! plays it again.

mod both;
mod directed;
mod history;
mod numbers;
mod party;
mod raw;
mod side;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Once;

use history::History;
use support::servers::{Kind, Server, on_each_kind};

/// How many histories each kind of server is given, and how long they are.
const HISTORIES: u64 = 30;
const STEPS: u32 = 90;

on_each_kind!(agree);

fn agree(kind: Kind) {
    let server = Server::shared(kind);
    if let Some(history) = asked_for() {
        history.play(&server).unwrap_or_else(|difference| panic!("{difference}"));
        return;
    }
    // Other seeds for each server, and new ones with each day of the year would be no test that can be trusted: these are fixed.
    let histories = variable("RLOCK_HISTORIES").map_or(HISTORIES, |histories| histories.parse().expect("a number"));
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
fn asked_for() -> Option<History> {
    let seed = variable("RLOCK_SEED")?.parse().expect("RLOCK_SEED is a number");
    let steps = variable("RLOCK_STEPS").expect("RLOCK_STEPS are the numbers of the steps, separated by commas");
    let steps = steps.split(',').map(|step| step.parse().expect("RLOCK_STEPS are numbers")).collect();
    static TOLD: Once = Once::new();
    TOLD.call_once(|| println!("seed {seed}"));
    Some(History::new(seed, steps))
}
