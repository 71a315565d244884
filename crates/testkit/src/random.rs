//! Pseudo-random numbers, repeatable by their seed.

use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators",
/// 2014). Generators with neighbouring seeds have nothing in common.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with the seed from RLOCK_SEED or the time. The seed is printed when the test
    /// fails.
    pub fn new() -> Self {
        let seed = Self::seed();
        eprintln!("RLOCK_SEED={seed}");
        Self::seeded(seed)
    }

    /// The seed in RLOCK_SEED.
    pub fn given() -> Option<u64> {
        std::env::var("RLOCK_SEED").ok().and_then(|seed| seed.parse().ok())
    }

    /// The seed in RLOCK_SEED, else the time.
    pub fn seed() -> u64 {
        Self::given()
            .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64))
    }

    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Another generator, for another thread.
    pub fn branch(&mut self) -> Self {
        Self(self.next())
    }

    /// A number from 0 up to, but not including, `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns true once in `times` calls on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns true in `percent` of a hundred calls on average.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.below(among.len() as u64) as usize]
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}
