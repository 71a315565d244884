//! Random histories of the lock table. The table must give the same replies as a naive model of
//! docs/design.md. Its listings must show that holders do not conflict, that every waiter is
//! blocked, that no waiter is overtaken, and that tokens rise. What it remembers of ended sessions
//! must be what the model's diaries say.

mod checks;
mod diary;
mod oracle;
mod world;

use proptest::prelude::*;
use rlock::lock::mode::Mode;

use world::{ANY, Profile, Step, World, history};

fn play(profile: Profile, steps: &[Step]) {
    let mut world = World::new(profile);
    steps.iter().for_each(|step| world.play(step));
    world.release_all(steps.len() as u8);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn table_matches_the_oracle_in_mixed_histories(steps in history(ANY, 60)) {
        play(ANY, &steps);
    }

    #[test]
    fn table_matches_the_oracle_with_nested_sessions(steps in history(NESTED, 60)) {
        play(NESTED, &steps);
    }

    #[test]
    fn table_matches_the_oracle_with_upgrades(steps in history(UPGRADES, 60)) {
        play(UPGRADES, &steps);
    }

    #[test]
    fn table_matches_the_oracle_with_slots(steps in history(SLOTS, 60)) {
        play(SLOTS, &steps);
    }

    #[test]
    fn table_matches_the_oracle_with_jobs_and_kept_holds(steps in history(JOBS, 60)) {
        play(JOBS, &steps);
    }

    #[test]
    fn table_matches_the_oracle_with_a_queue_of_jobs(steps in history(JOB_QUEUE, 80)) {
        play(JOB_QUEUE, &steps);
    }

    #[test]
    fn table_matches_the_oracle_with_leases_that_expire(steps in history(LEASES, 60)) {
        play(LEASES, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn table_matches_the_oracle_with_long_queues(steps in history(QUEUE, 120)) {
        play(QUEUE, &steps);
    }
}

const NESTED: Profile = Profile { nested: 220, claims: 2, grid: 3, resources: 2, ..ANY };
const UPGRADES: Profile = Profile {
    modes: &[Mode::Read, Mode::Read, Mode::Prewrite, Mode::Prewrite, Mode::Write],
    nested: 160,
    claims: 2,
    resources: 1,
    leases: 0,
    ..ANY
};
const SLOTS: Profile = Profile {
    modes: &[Mode::Slot, Mode::Slot, Mode::Slot, Mode::Slot, Mode::Read, Mode::Write],
    grid: 0,
    nested: 110,
    claims: 2,
    ..ANY
};
const JOBS: Profile = Profile { jobs: 220, grid: 2, resources: 2, claims: 2, acquire: 120, ..ANY };
const JOB_QUEUE: Profile =
    Profile { jobs: 250, modes: &[Mode::Write, Mode::Write, Mode::Read], grid: 0, resources: 1, claims: 1, ..ANY };
const LEASES: Profile = Profile { leases: 255, ..ANY };
const QUEUE: Profile = Profile { resources: 1, grid: 40, nested: 20, acquire: 190, leases: 0, claims: 2, ..ANY };

/// So many claims fill an index tree of three levels. Every seventh claim is a write, so that
/// holders and waiters are mixed.
#[test]
fn table_matches_the_oracle_with_1300_claims_on_one_resource() {
    let runner_config = ProptestConfig { cases: 1, failure_persistence: None, ..ProptestConfig::default() };
    let profile = Profile { resources: 1, grid: 200, nested: 30, acquire: 100, leases: 0, claims: 2, ..ANY };
    let mut runner = proptest::test_runner::TestRunner::new(runner_config);
    let steps = prop::collection::vec(history(profile, 40), 1..=1);
    runner
        .run(&steps, |steps| {
            let mut world = World::new(profile);
            for number in 0..1_300_u32 {
                let lo = number * 617 % 1_300;
                let mode = if number % 7 == 3 { Mode::Write } else { Mode::Read };
                let width = if number % 50 == 49 { 40 } else { number % 3 };
                world.request_one(mode, &format!("[{lo},{}]", lo + width));
            }
            world.check();
            steps[0].iter().for_each(|step| world.play(step));
            Ok(())
        })
        .unwrap();
}
