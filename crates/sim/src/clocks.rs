//! The clocks of machines, which run at different rates.

use std::time::Duration;

use super::random::Random;
use rlock_sys::clock::{Boottime, StoreTime};

/// The rate of a clock: how many parts per million it is fast.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock(i64);

impl Clock {
    pub(super) fn random(random: &mut Random) -> Self {
        Self(random.below(1001) as i64 - 500)
    }

    fn shown(self, at: Duration) -> Duration {
        let (millions, rest) = split(at, MILLION);
        Duration::from_nanos((millions * (MILLION + self.0) + rest * (MILLION + self.0) / MILLION) as u64)
    }

    /// The instant at which the clock has shown this time.
    fn when(self, shown: Duration) -> Duration {
        let rate = MILLION + self.0;
        let (times, rest) = split(shown, rate);
        Duration::from_nanos((times * MILLION + rest * MILLION / rate) as u64 + 1_000)
    }

    /// The instant as CLOCK_BOOTTIME.
    pub(super) fn boottime(self, at: Duration) -> Boottime {
        Boottime::since_boot(BOOT + self.shown(at))
    }

    pub(super) fn when_boottime(self, at: Boottime) -> Duration {
        self.when(at - Boottime::since_boot(BOOT))
    }

    /// The instant on the clock of a server.
    pub(super) fn store_time(self, at: Duration) -> StoreTime {
        EPOCH + self.shown(at)
    }

    pub(super) fn when_store_time(self, at: StoreTime) -> Duration {
        self.when(at - EPOCH)
    }
}

const BOOT: Duration = Duration::from_secs(1_000);
const EPOCH: StoreTime = StoreTime::from_micros(1_700_000_000_000_000);

const MILLION: i64 = 1_000_000;

/// How often a number of nanoseconds fits into a time, and the rest. So no product is too large.
fn split(time: Duration, nanos: i64) -> (i64, i64) {
    let all = (time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())) as i64;
    (all / nanos, all % nanos)
}
