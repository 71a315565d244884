//! Shrinks an episode with a violation, so that its timeline can be read.

use super::episode;
use super::setup::Setup;

/// How many episodes an attempt to shrink plays at most.
const EPISODES: usize = 400;

/// The number of seeds for each smaller episode. The events of a smaller episode differ, so its
/// violation seldom has the same seed.
const SEEDS: u64 = 10;

/// A smaller episode with a violation, or the episode itself if none is found. The smaller episode
/// may violate the promise in another way.
pub(super) fn shrink(mut setup: Setup) -> Setup {
    let mut left = EPISODES;
    while let Some(smaller) = next(&setup, &mut left) {
        setup = smaller;
    }
    setup
}

fn next(setup: &Setup, left: &mut usize) -> Option<Setup> {
    let seeds = (0..SEEDS).map(|number| setup.seed.wrapping_add(number));
    let attempts = setup.smaller().flat_map(|setup| seeds.clone().map(move |seed| Setup { seed, ..setup.clone() }));
    attempts.take_while(|_| std::mem::replace(left, left.saturating_sub(1)) > 0).find(is_violated)
}

fn is_violated(setup: &Setup) -> bool {
    !episode::play(setup, false).violations.is_empty()
}

/// The options that the shrunk episode is printed with replay the same violation.
#[test]
fn shrunk_episode_is_smaller_and_replays_its_violation() {
    let violated = |seed| Some(Setup { is_strict: true, ..Setup::random(seed) }).filter(is_violated);
    let found = (0..).find_map(violated).expect("lost data lets commands overlap");
    let shrunk = shrink(found.clone());
    assert!(shrunk.sessions <= found.sessions && shrunk.seconds < found.seconds, "{found} shrank to {shrunk}");
    assert!(shrunk.faults.len() <= 1, "{found} shrank to {shrunk}");
    let options: super::setup::Options = shrunk.to_string().parse().unwrap();
    let replayed = episode::play(&options.setup(shrunk.seed), true);
    assert_eq!(replayed.violations, episode::play(&shrunk, false).violations);
    assert!(!replayed.violations.is_empty() && !replayed.timeline.is_empty());
}
