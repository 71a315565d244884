//! Random histories of the lock table. The table must give the same replies as a naive model of
//! docs/design.md. Its listings must show that holders do not conflict, that every waiter is
//! blocked, that no waiter is overtaken, and that tokens rise. What it remembers of ended sessions
//! must be what the model's diaries say.

mod checks;
mod diary;
mod oracle;
mod room;
mod world;

use std::time::Duration;

use rlock_model::mode::Mode::{self, Prewrite, Read, Slot, Write};
use rlock_model::resource::Resource;

use rlock_testkit::histories::{History, Profile};
use rlock_testkit::random::Random;
use rlock_testkit::share::share;
use world::World;

/// So many resources, and intervals with whole ends from 0 to `grid`.
fn mixed(resources: usize, grid: u32) -> Profile {
    Profile {
        resources: (0..resources).map(|number| Resource::new(&format!("r{number}")).unwrap()).collect(),
        ends: if grid == 0 { Vec::new() } else { (0..=grid).map(|end| end.to_string()).collect() },
        modes: &[Read, Prewrite, Write, Write, Slot],
        claims: 3,
        acquire: 58,
        nested: 35,
        leases: 31,
        jobs: 23,
        live_max: usize::MAX,
        is_entangled: false,
        is_free: true,
    }
}

/// Plays histories of so many steps, with new seeds in each run.
fn play(profile: &Profile, length: u32, histories: u64) {
    History::play_all("--test properties", Random::seed(), histories, length, |history| {
        let mut world = World::new(profile.resources.clone());
        history.play(profile.clone(), &mut world)?;
        world.release_all(history.seed as usize % 7)
    });
}

fn histories() -> u64 {
    share(80, 250)
}

#[test]
fn table_matches_the_oracle_in_mixed_histories() {
    play(&mixed(3, 5), 60, histories());
}

#[test]
fn table_matches_the_oracle_with_nested_sessions() {
    play(&Profile { nested: 86, claims: 2, ..mixed(2, 3) }, 60, histories());
}

#[test]
fn table_matches_the_oracle_with_upgrades() {
    const MODES: &[Mode] = &[Read, Read, Prewrite, Prewrite, Write];
    play(&Profile { modes: MODES, nested: 62, claims: 2, leases: 0, ..mixed(1, 5) }, 60, histories());
}

#[test]
fn table_matches_the_oracle_with_requests_that_meet_around_a_prewrite_hold() {
    play(&Profile { is_entangled: true, live_max: 12, leases: 0, ..mixed(3, 5) }, 60, histories());
}

#[test]
fn table_matches_the_oracle_with_slots() {
    play(
        &Profile { modes: &[Slot, Slot, Slot, Slot, Read, Write], nested: 43, claims: 2, ..mixed(3, 0) },
        60,
        histories(),
    );
}

#[test]
fn table_matches_the_oracle_with_slots_below_slots() {
    const MODES: &[Mode] = &[Slot, Slot, Slot, Slot, Slot, Slot, Slot, Write];
    play(
        &Profile { modes: MODES, nested: 86, claims: 1, leases: 4, acquire: 70, jobs: 8, ..mixed(1, 0) },
        80,
        histories(),
    );
}

#[test]
fn table_matches_the_oracle_with_jobs_and_kept_holds() {
    play(&Profile { jobs: 86, claims: 2, acquire: 47, ..mixed(2, 2) }, 60, histories());
}

#[test]
fn table_matches_the_oracle_with_a_queue_of_jobs() {
    play(&Profile { jobs: 98, modes: &[Write, Write, Read], claims: 1, ..mixed(1, 0) }, 80, histories());
}

#[test]
fn table_matches_the_oracle_with_leases_that_expire() {
    play(&Profile { leases: 100, ..mixed(3, 5) }, 60, histories());
}

#[test]
fn table_matches_the_oracle_with_long_queues() {
    play(&Profile { nested: 8, acquire: 74, leases: 0, claims: 2, ..mixed(1, 40) }, 120, histories() / 4);
}

/// The grant has the token of the hold above it, though its span is no longer the claimed one.
#[test]
fn table_matches_the_oracle_when_one_step_grants_and_shrinks_a_nested_claim() {
    let mut world = World::new(mixed(2, 0).resources);
    let lease = Duration::from_micros(20);
    world.request(1, &[(0, Prewrite, "[0,2]")], &[], None);
    world.request(2, &[(1, Write, "[0,2]")], &[], Some(lease));
    world.check();
    world.request(3, &[(0, Prewrite, "[0,2]"), (1, Write, "[0,2]")], &[1], None);
    world.check();
    world.shrink(lease, 3, "[1,2]");
    world.check();
}

/// So many claims fill an index tree of three levels. Every seventh claim is a write, so that
/// holders and waiters are mixed.
#[test]
fn table_matches_the_oracle_with_1300_claims_on_one_resource() {
    let profile = Profile { nested: 12, acquire: 39, leases: 0, claims: 2, ..mixed(1, 200) };
    let mut world = World::new(profile.resources.clone());
    for number in 0..1_300_u32 {
        let lo = number * 617 % 1_300;
        let mode = if number % 7 == 3 { Write } else { Read };
        let width = if number % 50 == 49 { 40 } else { number % 3 };
        world.request(number, &[(0, mode, &format!("[{lo},{}]", lo + width))], &[], None);
    }
    world.check();
    let history = History::new(Random::seed(), 40);
    history.play(profile, &mut world).unwrap_or_else(|difference| panic!("seed {}: {difference}", history.seed));
}
