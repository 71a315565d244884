//! Pseudo-random numbers, the same in every run.

/// Marsaglia's xorshift64.
pub(crate) struct Chance(u64);

impl Chance {
    /// Starts the sequence.
    pub(crate) fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    /// Shuffles a slice. Every order is equally likely.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            things.swap(last, (self.0 % (last as u64 + 1)) as usize);
        }
    }
}
