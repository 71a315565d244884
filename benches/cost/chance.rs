//! Chance, the same in every run.

/// Numbers that look random: xorshift64.
pub(crate) struct Chance(u64);

impl Chance {
    /// From the beginning.
    pub(crate) fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    /// Puts things in another order, each as likely as the others.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            things.swap(last, (self.0 % (last as u64 + 1)) as usize);
        }
    }
}
