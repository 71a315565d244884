//! The two clocks: the clock of the holder's machine and the clock of the store.
//!
//! Each clock has a type for its instants. So the compiler refuses to compare a deadline, which is
//! a [`Boottime`], with an expiry, which is a [`StoreTime`]. Lengths of time are [`Duration`]s; the
//! records and the scripts have them as whole microseconds, which [`micros`] counts.

use std::ops::{Add, AddAssign, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

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

/// An instant of the store's clock, in microseconds since the Unix epoch. Arithmetic stops at the
/// ends of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoreTime(u64);

impl StoreTime {
    /// The expiry of a hold without an end, in the year 2255. It is an instant like any other, so
    /// no arithmetic treats it apart, and the numbers of Lua are exact up to it.
    pub const NEVER: Self = Self(1 << 53);

    /// The instant that is so many microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The number of microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This instant by the clock of the machine, which is the clock of an embedded store.
    #[must_use]
    pub fn of_machine() -> Self {
        Self(micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

impl Add<Duration> for StoreTime {
    type Output = Self;

    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(micros(length)))
    }
}

impl AddAssign<Duration> for StoreTime {
    fn add_assign(&mut self, length: Duration) {
        *self = *self + length;
    }
}

impl Sub<Duration> for StoreTime {
    type Output = Self;

    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(micros(length)))
    }
}

impl Sub for StoreTime {
    type Output = Duration;

    /// The time since an earlier instant; none if that instant is later.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// A length of time in whole microseconds.
#[must_use]
pub fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
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
        let at = StoreTime::from_micros;
        assert_eq!(at(5) - at(3), Duration::from_micros(2));
        assert_eq!(at(3) - at(5), Duration::ZERO);
        assert_eq!(at(3) - Duration::from_micros(5), at(0));
        assert_eq!(at(3) + Duration::MAX, at(u64::MAX));
        assert!(at(0) < StoreTime::of_machine());
    }
}
