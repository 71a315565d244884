//! The clock of the holder's machine.
//!
//! An instant of this clock is a type of its own. The compiler therefore refuses to compare a
//! deadline, which is an instant of this clock, with an expiry, which is an instant of the store's
//! clock. Lengths of time are [`Duration`]s.

use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// An instant of CLOCK_BOOTTIME, which runs through suspend. Arithmetic stops at the ends of the
/// clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boottime(Duration);

impl Boottime {
    /// This instant.
    #[must_use]
    pub fn now() -> Self {
        Self(Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default())
    }

    /// The instant that is this long after the start of the machine.
    #[must_use]
    pub const fn since_boot(length: Duration) -> Self {
        Self(length)
    }
}

impl Add<Duration> for Boottime {
    type Output = Self;

    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length))
    }
}

impl Sub<Duration> for Boottime {
    type Output = Self;

    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(length))
    }
}

impl Sub for Boottime {
    type Output = Duration;

    /// The time since an earlier instant; none if that instant is later.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_the_ends_of_the_clock() {
        let at = |seconds| Boottime::since_boot(Duration::from_secs(seconds));
        assert_eq!(at(5) - at(3), Duration::from_secs(2));
        assert_eq!(at(3) - at(5), Duration::ZERO);
        assert_eq!(at(3) - Duration::from_secs(5), at(0));
        assert_eq!(at(3) + Duration::MAX, Boottime::since_boot(Duration::MAX));
        assert!(Boottime::now() <= Boottime::now());
    }
}
