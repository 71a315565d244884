//! Decides how long a hold lasts: by its lease, by its claim lease, or as a kept hold.
//!
//! A **kept hold** has no process. The store ends it at its instant, and nothing renews it. One
//! that lasts for [`EVER`] ends only by a release or a break. A kept hold begins when a request
//! with [`Job::keep_for`] is granted, or claims a grant from the queue. A release before the end of
//! [`Job::hold_at_least`] leaves one, too.
//!
//! [`Job::keep_for`]: super::request::Job::keep_for
//! [`Job::hold_at_least`]: super::request::Job::hold_at_least

use std::time::Duration;

use super::records::{Phase, Session};
use crate::tables;
use rlock_sys::clock::StoreTime;

/// How long a kept hold may last, from its grant or from its last extension.
pub const KEPT_MAX: Duration = Duration::from_secs(tables::KEPT_MAX);

/// The length of a kept hold without an end. It is also the longest length that a call to a script
/// has.
pub const EVER: Duration = Duration::from_micros(tables::EVER);

/// The instant at which a kept hold ends that lasts for `length` from an instant.
fn end(from: StoreTime, length: Duration) -> StoreTime {
    if length < EVER { from + length.min(KEPT_MAX) } else { StoreTime::NEVER }
}

impl Session {
    /// Begins a hold that needs no claim.
    pub(super) fn begin(&mut self, now: StoreTime) {
        self.since = now;
        self.hold(now);
    }

    /// Begins a hold that the session has to claim within the claim lease, if there is one.
    pub(super) fn begin_unclaimed(&mut self, now: StoreTime, claim_lease: Option<Duration>) {
        let Some(lease) = self.terms.map(|terms| terms.claim).or(claim_lease) else { return self.begin(now) };
        self.since = now;
        self.phase = Phase::Granted;
        self.expiry = Some(now + self.job.keep_for.map_or(lease, |length| lease.min(length)));
    }

    /// Renews a lease, and claims a grant from the queue. A kept hold stays as it is. No renewal
    /// lowers the expiry of a lease.
    pub(super) fn renew(&mut self, now: StoreTime) {
        let before = self.expiry;
        match self.phase {
            Phase::Waiting => self.expiry = self.terms.map(|terms| now + terms.heartbeat),
            Phase::Granted | Phase::Held => self.hold(now),
            Phase::Kept => return,
        }
        if self.phase != Phase::Kept && self.expiry.is_some() {
            self.expiry = self.expiry.max(before);
        }
    }

    fn hold(&mut self, now: StoreTime) {
        if let Some(length) = self.job.keep_for {
            self.phase = Phase::Kept;
            self.expiry = Some(end(self.since, length));
        } else {
            self.phase = Phase::Held;
            self.expiry = self.terms.map(|terms| now + terms.ttl);
        }
    }

    /// Turns the hold of a command that has ended into a kept hold, if it has to stay for longer
    /// and nobody has revoked it. Returns the instant at which the kept hold ends.
    pub(super) fn keep_after_run(&mut self, now: StoreTime) -> Option<StoreTime> {
        let until = self.since + self.job.hold_at_least?.min(KEPT_MAX);
        if self.phase == Phase::Waiting || self.revoked.is_some() || until <= now {
            return None;
        }
        self.phase = Phase::Kept;
        self.expiry = Some(until);
        self.expiry
    }

    /// Lets a kept hold of `acquire` last for `by` from now, or for as long as its request asked.
    /// The hold never ends sooner. Returns whether the session has such a hold.
    pub(super) fn extend(&mut self, now: StoreTime, by: Option<Duration>) -> bool {
        let (Phase::Kept, Some(length)) = (self.phase, self.job.keep_for) else { return false };
        self.expiry = self.expiry.max(Some(end(now, by.unwrap_or(length))));
        true
    }
}
