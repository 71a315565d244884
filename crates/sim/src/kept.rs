//! Checks kept holds: each lasts exactly as long as its request says, and excludes others until its
//! end.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::checkers::{Checkers, Run};
use rlock_model::lease::HEARTBEAT;
use rlock_model::request::SessionId;
use rlock_sys::clock::StoreTime;

/// How long a waiter may take to notice the end of a kept hold: nobody wakes the waiter, which
/// looks after a third of a heartbeat at the latest. The place in the queue and a round trip add to
/// that.
pub(super) const NOTICE_MAX: Duration = Duration::from_secs(HEARTBEAT.as_secs() / 3 + 2);

/// A kept hold at the server.
struct Kept {
    /// When the clock of the server reaches the end.
    ends: Duration,
    /// The earliest end. After a step back, each call lets the clock of the resources go on a
    /// little, so it may reach the end sooner than the clock of the server.
    ends_not_before: Duration,
    /// Whether somebody counts on the hold. A script that releases it does not.
    is_in_use: bool,
}

/// The kept holds, by their runs.
#[derive(Default)]
pub(super) struct KeptHolds {
    holds: BTreeMap<usize, Kept>,
}

impl KeptHolds {
    /// The server keeps a hold until an instant. The clock of its resources is `ahead` of its own.
    pub(super) fn keep(&mut self, run: usize, ends: Duration, ahead: Duration) {
        let is_in_use = self.holds.get(&run).is_none_or(|kept| kept.is_in_use);
        let ends_not_before = ends.saturating_sub(ahead);
        self.holds.insert(run, Kept { ends, ends_not_before, is_in_use });
    }

    /// Nobody counts on the hold any more, which the server may still have.
    pub(super) fn leave(&mut self, run: usize) {
        if let Some(kept) = self.holds.get_mut(&run) {
            kept.is_in_use = false;
        }
    }

    /// The server has ended the hold. Returns whether it had the hold.
    pub(super) fn end(&mut self, run: usize) -> bool {
        self.holds.remove(&run).is_some()
    }

    pub(super) fn contains(&self, run: usize) -> bool {
        self.holds.contains_key(&run)
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &usize> {
        self.holds.keys()
    }

    /// The runs whose holds exclude others now.
    pub(super) fn in_use(&self, now: Duration) -> impl Iterator<Item = usize> {
        self.holds.iter().filter(move |(_, kept)| kept.is_in_use && now < kept.ends_not_before).map(|(run, _)| *run)
    }

    /// The runs whose holds have ended by now.
    pub(super) fn over(&self, now: Duration) -> Vec<usize> {
        self.holds.iter().filter(|(_, kept)| kept.ends <= now).map(|(run, _)| *run).collect()
    }
}

impl Checkers {
    /// The server keeps the hold of a session, which the checkers expect to end as its request and
    /// its extensions say. `ends` is that instant in virtual time, and `ahead` as for
    /// [`KeptHolds::keep`].
    pub(super) fn keep(&mut self, session: SessionId, expiry: Option<StoreTime>, ends: Duration, ahead: Duration) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let is_uncovered = self.is_uncovered(run);
        let Run { job, granted, kept_until, .. } = &mut self.runs[run];
        let length = job.keep_for.or(job.hold_at_least).unwrap_or_default();
        let expected = kept_until.clone().unwrap_or(*granted + length..=*granted + length);
        let right = expiry.filter(|expiry| expected.contains(expiry));
        if right.is_none() && !is_uncovered {
            self.violations.push(format!("the hold of run {run} is kept until {expiry:?}, and not {expected:?}"));
        }
        *kept_until = Some(right.map_or(expected, |expiry| expiry..=expiry));
        self.kept.keep(run, ends, ahead);
    }

    /// The server lets a kept hold last for `by` from now, or for as long as its request asked.
    /// `now` begins with the earliest and ends with the latest of the clocks of its resources, and
    /// the lease that ends first is the one that counts.
    pub(super) fn extend(&mut self, session: SessionId, by: Option<Duration>, now: RangeInclusive<StoreTime>) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let Run { job, granted, kept_until, .. } = &mut self.runs[run];
        let Some(length) = job.keep_for else {
            return self.violations.push(format!("run {run} is no kept hold of acquire, and is extended"));
        };
        let until = kept_until.clone().unwrap_or(*granted + length..=*granted + length);
        let by = by.unwrap_or(length);
        *kept_until = Some(*until.start().max(&(*now.start() + by))..=*until.end().max(&(*now.end() + by)));
    }

    /// The command of a run with `--nested` starts.
    pub(super) fn check_nested(&mut self, run: usize) {
        if !self.runs[run].is_covered && !self.is_uncovered(run) {
            self.violations.push(format!("run {run} starts its command, though no hold around it covers its claims"));
        }
    }

    /// The server has ended the hold of a session, or its wait. A hold with a minimum length stays
    /// for that long after the end of a command, unless it is revoked.
    pub(super) fn end_hold(&mut self, session: SessionId, has_run: bool, now: StoreTime, at: Duration) {
        let Some(run) = self.by_session.get(&session).copied() else { return };
        let Run { job, granted, is_revoked, .. } = &self.runs[run];
        let must_stay = has_run && !is_revoked && job.hold_at_least.is_some_and(|length| now < *granted + length);
        if must_stay && !self.is_uncovered(run) {
            self.violations.push(format!("the hold of run {run} ends before its minimum length"));
        }
        if self.kept.end(run) {
            self.make_way(run, at);
        }
    }
}
