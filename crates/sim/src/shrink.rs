//! Shrinks an episode with a violation, so that its timeline can be read.

use std::time::{Duration, Instant};

use super::episode;
use super::faults::Fault;
use super::location::Servers;
use super::setup::Setup;

/// How many episodes an attempt to shrink plays at most.
const EPISODES: usize = 400;
/// How long it goes on beginning episodes. One with many sessions and a real server takes a minute.
const LIMIT: Duration = Duration::from_secs(120);

/// The number of seeds for each smaller episode. The events of a smaller episode differ, so its
/// violation seldom has the same seed.
const SEEDS: u64 = 10;

/// A smaller episode with the same kind of violation, or the episode itself if none is found.
pub(super) fn shrink(mut setup: Setup) -> Setup {
    let kind = violation(&setup);
    let (mut left, start) = (EPISODES, Instant::now());
    while let Some(smaller) = next(&setup, &kind, &mut left, start) {
        setup = smaller;
    }
    setup
}

fn next(setup: &Setup, kind: &Option<String>, left: &mut usize, start: Instant) -> Option<Setup> {
    let seeds = (0..SEEDS).map(|number| setup.seed.wrapping_add(number));
    let attempts = setup.smaller().flat_map(|setup| seeds.clone().map(move |seed| Setup { seed, ..setup.clone() }));
    let mut goes_on = || start.elapsed() < LIMIT && std::mem::replace(left, left.saturating_sub(1)) > 0;
    attempts.take_while(|_| goes_on()).find(|setup| violation(setup) == *kind)
}

/// The first violation of an episode, without the words that contain a number.
fn violation(setup: &Setup) -> Option<String> {
    let has_number = |word: &&str| word.contains(|letter: char| letter.is_ascii_digit());
    let text = episode::play(setup, false).violations.into_iter().next()?;
    Some(text.split(' ').filter(|word| !has_number(word)).collect())
}

/// The options that the shrunk episode is printed with replay the same violation.
#[test]
fn shrunk_episode_is_smaller_and_replays_its_violation() {
    let faults = vec![Fault::SlowNetwork, Fault::ConnectionsCut, Fault::RlockStopped];
    let random =
        Setup { is_strict: true, sessions: 3, servers: Servers::One, faults, seconds: 20, seed: 0, scripts: None };
    let strict = |seed| Setup { seed, ..random.clone() };
    let violated = |seed| Some(strict(seed)).filter(|setup| violation(setup).is_some());
    let found = (0..).find_map(violated).expect("stopped holders let commands overlap");
    let shrunk = shrink(found.clone());
    assert!(shrunk.sessions <= found.sessions && shrunk.seconds < found.seconds, "{found} shrank to {shrunk}");
    assert!(shrunk.faults.len() <= found.faults.len(), "{found} shrank to {shrunk}");
    let options: super::setup::Options = shrunk.to_string().parse().unwrap();
    let replayed = episode::play(&options.setup(shrunk.seed), true);
    assert_eq!(replayed.violations, episode::play(&shrunk, false).violations);
    assert!(!replayed.violations.is_empty() && !replayed.timeline.is_empty());
}
