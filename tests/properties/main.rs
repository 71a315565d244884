//! Random histories of the lock table: it must say what a naive model of the design says, and its listings must show that nobody
//! holds against another, waits in vain, is overtaken, or has a token that does not rise.

mod checks;
mod oracle;
mod world;

use proptest::prelude::*;
use rlock::lock::mode::Mode;

use world::{ANY, Step, Taste, World, history};

fn play(taste: Taste, steps: &[Step]) {
    let mut world = World::new(taste);
    steps.iter().for_each(|step| world.play(step));
    world.end(steps.len() as u8);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn histories_of_all_kinds(steps in history(ANY, 60)) {
        play(ANY, &steps);
    }

    #[test]
    fn trees_of_sessions(steps in history(Taste { nested: 220, claims: 2, grid: 3, resources: 2, ..ANY }, 60)) {
        play(Taste { nested: 220, claims: 2, grid: 3, resources: 2, ..ANY }, &steps);
    }

    #[test]
    fn upgrades(steps in history(Taste { modes: UPGRADES, nested: 160, claims: 2, resources: 1, leases: 0, ..ANY }, 60)) {
        play(Taste { modes: UPGRADES, nested: 160, claims: 2, resources: 1, leases: 0, ..ANY }, &steps);
    }

    #[test]
    fn slots(steps in history(Taste { modes: SLOTS, grid: 0, nested: 110, claims: 2, ..ANY }, 60)) {
        play(Taste { modes: SLOTS, grid: 0, nested: 110, claims: 2, ..ANY }, &steps);
    }

    #[test]
    fn leases_that_end(steps in history(Taste { leases: 255, ..ANY }, 60)) {
        play(Taste { leases: 255, ..ANY }, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn long_queues_on_one_resource(steps in history(QUEUE, 120)) {
        play(QUEUE, &steps);
    }
}

const UPGRADES: &[Mode] = &[Mode::Read, Mode::Read, Mode::Prewrite, Mode::Prewrite, Mode::Write];
const SLOTS: &[Mode] = &[Mode::Slot, Mode::Slot, Mode::Slot, Mode::Slot, Mode::Read, Mode::Write];
const QUEUE: Taste = Taste { resources: 1, grid: 40, nested: 20, acquire: 190, leases: 0, claims: 2, ..ANY };

/// A tree of three levels: readers and a writer here and there on a grid, so that holders and waiters lie mixed.
#[test]
fn a_crowd_on_one_resource() {
    let runner_config = ProptestConfig { cases: 1, failure_persistence: None, ..ProptestConfig::default() };
    let taste = Taste { resources: 1, grid: 200, nested: 30, acquire: 100, leases: 0, claims: 2, ..ANY };
    let mut runner = proptest::test_runner::TestRunner::new(runner_config);
    let steps = prop::collection::vec(history(taste, 40), 1..=1);
    runner
        .run(&steps, |steps| {
            let mut world = World::new(taste);
            for number in 0..1_300_u32 {
                let lo = number * 617 % 1_300;
                let mode = if number % 7 == 3 { Mode::Write } else { Mode::Read };
                let width = if number % 50 == 49 { 40 } else { number % 3 };
                world.ask(mode, &format!("[{lo},{}]", lo + width));
            }
            world.check();
            steps[0].iter().for_each(|step| world.play(step));
            Ok(())
        })
        .unwrap();
}
