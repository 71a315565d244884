//! The clocks of machines, which run at different rates.

use std::time::Duration;

use super::random::Random;
use crate::clock::{Boottime, StoreTime};

/// The rate of a clock: how many parts per million it is fast.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock(i64);

impl Clock {
    pub(super) fn random(random: &mut Random) -> Self {
        Self(random.below(1001) as i64 - 500)
    }

    fn shown(self, at: Duration) -> Duration {
        Duration::from_nanos((at.as_nanos() as i128 * (1_000_000 + i128::from(self.0)) / 1_000_000) as u64)
    }

    /// The instant at which the clock has shown this time.
    fn when(self, shown: Duration) -> Duration {
        let at = shown.as_nanos() as i128 * 1_000_000 / (1_000_000 + i128::from(self.0));
        Duration::from_nanos(at as u64 + 1_000)
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
