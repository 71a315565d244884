//! The arithmetic of leases: how long a holder may rely on its grant, and when it renews the grant.
//!
//! All instants are on the clock of the holder's machine. The store counts a lease from the instant
//! at which it executes a renewal. The holder counts from the earlier instant at which it sent that
//! renewal. The holder also stops a margin early, because the rates of two clocks differ. So the
//! deadline precedes the expiry, however late the reply arrives.

use std::time::Duration;

use super::request::Terms;
use rlock_sys::clock::{Boottime, micros};

/// How long a grant from the queue lasts until the waiter claims it, unless the ttl is shorter.
pub const CLAIM: Duration = Duration::from_secs(3);

/// How long a waiter keeps its place in the queue unless it renews the place. With a shorter ttl it
/// is the ttl, but no less than [`CLAIM`].
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// The minimum margin. It allows for clock ticks and for the time that a signal takes to end a
/// command.
const MARGIN_MIN: Duration = Duration::from_millis(50);

/// The delay before the second retry. Each later delay is twice as long as the delay before it.
const RETRY_MIN: Duration = Duration::from_millis(50);

/// A lease that its holder renews repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    ttl: Duration,
}

impl Lease {
    /// A lease that lasts for `ttl` from each renewal.
    #[must_use]
    pub const fn new(ttl: Duration) -> Self {
        Self { ttl }
    }

    /// The terms that a request under this lease sends to the store, which counts whole
    /// microseconds.
    #[must_use]
    pub fn terms(self) -> Terms {
        let ttl = Duration::from_micros(micros(self.ttl));
        Terms { ttl, claim: CLAIM.min(ttl), heartbeat: HEARTBEAT.min(ttl.max(CLAIM)) }
    }

    /// The time between the deadline and the end of the ttl: 2 % of the ttl, at least 50 ms, but at
    /// most a tenth of the ttl.
    #[must_use]
    pub fn margin(self) -> Duration {
        (self.ttl / 50).max(MARGIN_MIN).min(self.ttl / 10)
    }

    /// The instant by which the command must have ended. `sent` is the instant at which the holder
    /// sent the last renewal that the store confirmed.
    #[must_use]
    pub fn deadline(self, sent: Boottime) -> Boottime {
        sent + (self.ttl - self.margin())
    }

    /// The instant of the next renewal, after a renewal that was sent at `sent`.
    #[must_use]
    pub fn renew_at(self, sent: Boottime) -> Boottime {
        sent + self.ttl / 3
    }

    /// How long the holder waits for the reply to a renewal before it retries over another
    /// connection. The ttl leaves time for two attempts and for the command's end.
    #[must_use]
    pub fn patience(self) -> Duration {
        self.ttl / 6
    }

    /// The delay before the next attempt after `failures` failures in a row. The first retry has no
    /// delay, because its failure may come from a connection that had died unnoticed. Later delays
    /// grow up to a tenth of the ttl.
    #[must_use]
    pub fn retry_after(self, failures: u32) -> Duration {
        let longest = self.ttl / 10;
        match failures.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => RETRY_MIN.saturating_mul(2_u32.saturating_pow(doublings)).min(longest),
        }
    }
}

/// The instant at which a command that needs `grace` to end must be asked to end, so that it is
/// gone by the deadline.
#[must_use]
pub fn terminate_at(deadline: Boottime, grace: Duration) -> Boottime {
    deadline - grace
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(millis: u64) -> Boottime {
        Boottime::since_boot(ms(millis))
    }

    #[test]
    fn margin_is_two_percent_within_its_limits() {
        for (ttl, margin) in [(100, 10), (500, 50), (1_000, 50), (2_500, 50), (5_000, 100), (30_000, 600)] {
            assert_eq!(Lease::new(ms(ttl)).margin(), ms(margin), "{ttl}");
        }
    }

    #[test]
    fn lease_of_thirty_seconds_is_renewed_every_ten() {
        let lease = Lease::new(ms(30_000));
        assert_eq!(lease.renew_at(at(1_000)), at(11_000));
        assert_eq!(lease.deadline(at(1_000)), at(30_400));
        assert_eq!(terminate_at(at(30_400), ms(5_000)), at(25_400));
    }

    #[test]
    fn terms_are_those_of_the_lease_in_whole_microseconds() {
        let terms = |ttl, claim, heartbeat| Terms { ttl: ms(ttl), claim: ms(claim), heartbeat: ms(heartbeat) };
        assert_eq!(Lease::new(ms(30_000)).terms(), terms(30_000, 3_000, 15_000));
        assert_eq!(Lease::new(ms(10_000)).terms(), terms(10_000, 3_000, 10_000));
        assert_eq!(Lease::new(ms(1_000) + Duration::from_nanos(999)).terms(), terms(1_000, 1_000, 3_000));
    }

    #[test]
    fn first_retry_is_immediate_and_later_ones_slow_down() {
        let lease = Lease::new(ms(3_000));
        let after: Vec<_> = (0..8).map(|failures| lease.retry_after(failures)).collect();
        assert_eq!(after, [0, 0, 50, 100, 200, 300, 300, 300].map(ms));
        assert_eq!(lease.retry_after(u32::MAX), ms(300));
    }

    prop_compose! {
        /// Lengths from a tenth of a second to years, with more weight on short lengths.
        fn ttls()(exponent in 2_u32..11, factor in 1_u64..10) -> Duration {
            ms(factor * 10_u64.pow(exponent))
        }
    }

    proptest! {
        /// The store counts the lease from the arrival of the renewal. So the store grants to no
        /// other session before the deadline, however late the renewal arrives.
        #[test]
        fn deadline_precedes_the_expiry(ttl in ttls(), sent: u32, on_the_way: u32) {
            let lease = Lease::new(ttl);
            let expiry = at(sent.into()) + ms(on_the_way.into()) + ttl;
            prop_assert!(lease.deadline(at(sent.into())) < expiry);
        }

        /// The margin allows for a clock of the store that runs up to two percent fast.
        #[test]
        fn deadline_precedes_the_expiry_on_a_clock_two_percent_fast(ttl in ttls(), sent: u32) {
            let deadline = Lease::new(ttl).deadline(at(sent.into()));
            prop_assert!(deadline <= at(sent.into()) + ttl.mul_f64(0.98));
            prop_assert!(deadline >= at(sent.into()) + ttl.mul_f64(0.9));
        }

        /// A late reply never extends the lease. Of two renewals, the one sent later has the later
        /// deadline, in whichever order the replies arrive.
        #[test]
        fn deadline_depends_only_on_the_instant_of_sending(ttl in ttls(), first: u32, later: u32) {
            let deadline = |sent: u32| Lease::new(ttl).deadline(at(sent.into()));
            prop_assert_eq!(first.cmp(&later), deadline(first).cmp(&deadline(later)));
        }

        #[test]
        fn command_is_not_terminated_before_the_renewal_is_due(ttl in ttls(), sent: u32, part in 0.0..=1.0_f64) {
            let (lease, sent) = (Lease::new(ttl), at(sent.into()));
            let terminate = terminate_at(lease.deadline(sent), (ttl / 3).mul_f64(part).min(ttl / 3));
            prop_assert!(terminate >= lease.renew_at(sent));
            prop_assert!(terminate <= lease.deadline(sent));
        }

        /// Between a failed renewal and the deadline there are no long pauses and no rapid retries.
        #[test]
        fn retries_continue_without_long_pauses_up_to_the_deadline(ttl in ttls(), took in 0_u64..50) {
            let lease = Lease::new(ttl);
            let mut left = lease.deadline(at(0)) - lease.renew_at(at(0));
            let mut failures = 0;
            while left > Duration::ZERO {
                failures += 1;
                let pause = lease.retry_after(failures);
                prop_assert!(pause <= ttl / 10 && failures < 60, "{pause:?} after {failures}");
                left = left.saturating_sub(pause + ms(took));
            }
        }
    }
}
