//! Applies an operation to the table.

use std::collections::BTreeSet;

use super::super::beacon::{self, Peer, Wake};
use super::super::failure::Error;
use super::super::fate::EXPIRED_MAX;
use super::super::records::SUCCESSES_SHARE;
use super::Work;
use crate::lock::op::{Op, Reply};
use crate::lock::records::{Phase, Records, Session};
use crate::lock::request::{CLAIMS_MAX, SessionId};
use crate::system::clock::{Boottime, StoreTime};

impl Work<'_> {
    /// Applies an operation at the current time. A session that the operation grants something is
    /// woken later. If that session is dead, it is reaped, and the next waiter gets the grant.
    pub(in crate::store::embedded) fn apply(&mut self, op: Op) -> Result<Reply, Error> {
        let reply = self.apply_alone(op)?;
        self.wake_granted()?;
        Ok(reply)
    }

    pub(super) fn apply_alone(&mut self, op: Op) -> Result<Reply, Error> {
        let now = self.table.records_mut().advance_clock(StoreTime::of_machine(), Boottime::now())?;
        let mut left = BTreeSet::new();
        let due = self.records().due_until(now, EXPIRED_MAX + 1)?;
        if !self.ends_portion && is_crowd(&due) {
            return Err(Error::Crowd);
        }
        for (id, session) in due.into_iter().take(EXPIRED_MAX) {
            left.extend(session.resources().into_iter().cloned());
            // The other sessions that are due are kept holds. Their processes may have ended, and a
            // file system gives their inodes to other beacons.
            if session.phase == Phase::Granted {
                self.passed_over.extend(self.records().beacon(id)?);
            }
        }
        let part = match &op {
            Op::Acquire { request, .. } if request.job.once_per.is_some() => SUCCESSES_SHARE,
            _ => [1, 1],
        };
        let is_request = matches!(op, Op::Acquire { .. });
        let outcome = self.table.apply(now, op)?;
        if is_request && matches!(outcome.reply, Reply::Granted { .. } | Reply::Waiting) {
            self.admitted = Some(part);
        }
        self.call_waiters_of(&left)?;
        self.changed |= !outcome.expired.is_empty()
            || !matches!(outcome.reply, Reply::Refused(_) | Reply::Unknown | Reply::Listing(_));
        self.granted.extend(outcome.granted);
        for session in outcome.expired {
            if self.own.has(session) {
                self.concerned.push((session, Wake::Now));
            } else if matches!(beacon::look(self.directory, session, None)?, Peer::Dead) {
                self.reaped.push(session);
            }
        }
        Ok(outcome.reply)
    }

    /// Removes the sessions whose time is over.
    pub(in crate::store::embedded) fn drop_due(&mut self) -> Result<(), Error> {
        if self.records().due(self.time()?)?.is_some() {
            self.apply(Op::Expire)?;
        }
        Ok(())
    }

    /// Removes as many of the sessions whose time is over as a transaction ends.
    pub(super) fn drop_portion(&mut self) -> Result<(), Error> {
        self.ends_portion = true;
        self.apply(Op::Expire).map(drop)
    }

    /// Lets idle resources forget what they need not keep. Returns how many have forgotten
    /// something.
    pub(super) fn forget_idle(&mut self) -> Result<usize, Error> {
        let now = self.time()?;
        let looked_at = self.table.records_mut().forget_idle(now)?;
        self.changed |= looked_at > 0;
        Ok(looked_at)
    }
}

/// Whether these due sessions are more than one operation ends.
fn is_crowd(due: &[(SessionId, Session)]) -> bool {
    let before = &due[..due.len().saturating_sub(1)];
    due.len() > EXPIRED_MAX || before.iter().map(|(_, session)| session.claims.len()).sum::<usize>() >= CLAIMS_MAX
}
