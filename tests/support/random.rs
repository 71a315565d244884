//! Pseudo-random numbers, repeatable by their seed.

#![allow(dead_code, reason = "each crate that includes this module uses a part of it")]

use std::time::{SystemTime, UNIX_EPOCH};

/// Marsaglia's xorshift, "Xorshift RNGs", 2003.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator with the seed from RLOCK_SEED or the time. The seed is printed when the test
    /// fails.
    pub(crate) fn new() -> Self {
        let seed = Self::seed();
        eprintln!("RLOCK_SEED={seed}");
        Self::seeded(seed)
    }

    /// The seed in RLOCK_SEED, else the time.
    pub(crate) fn seed() -> u64 {
        let given = std::env::var("RLOCK_SEED").ok().and_then(|seed| seed.parse().ok());
        given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64))
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        // A zero would stay zero for ever, and small seeds would start alike.
        let mut random = Self((seed ^ 0x9E37_79B9_7F4A_7C15).max(1));
        for _ in 0..8 {
            random.next();
        }
        random
    }

    /// Another generator, for another thread.
    pub(crate) fn branch(&mut self) -> Self {
        Self::seeded(self.next())
    }

    /// A number from 0 up to, but not including, `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns true once in `times` calls on average.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.below(among.len() as u64) as usize]
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
