//! Applies an operation to the table, and finds out which sessions are gone.

use std::mem;

use super::super::beacon::{self, Peer, Wake};
use super::super::failure::Error;
use super::super::records::{self, SUCCESSES_SHARE, Transaction};
use super::{EXPIRED_MAX, Work};
use rlock_model::op::{Op, Outcome, Reply};
use rlock_model::records::{Phase, Records, Session};
use rlock_model::request::{CLAIMS_MAX, SessionId};
use rlock_model::table::LockTable;
use rlock_store::engine::{self, Engine};
use rlock_sys::clock::{Boottime, StoreTime};

impl<'t> Engine for Work<'t> {
    type Records = Transaction<'t>;
    type Error = Error;

    fn table(&self) -> &LockTable<Transaction<'t>> {
        &self.table
    }

    fn step(&mut self, op: Op) -> Result<Outcome, Error> {
        let now = records::advance_clock(self.table.records_mut(), StoreTime::of_machine(), Boottime::now())?;
        let due = self.records().due_until(now, EXPIRED_MAX + 1)?;
        if !self.ends_portion && is_crowd(&due) {
            return Err(Error::Crowd);
        }
        for (id, session) in due.into_iter().take(EXPIRED_MAX) {
            self.left.extend(session.resources().into_iter().cloned());
            // The other sessions that are due are kept holds. Their processes may have ended, and a
            // file system gives their inodes to other beacons.
            if session.phase == Phase::Granted {
                self.passed_over.extend(records::beacon(self.records(), id)?);
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
        self.changed |= !outcome.expired.is_empty()
            || !matches!(outcome.reply, Reply::Refused(_) | Reply::Unknown | Reply::Listing(_));
        for session in &outcome.expired {
            if self.own.has(*session) {
                self.concerned.push((*session, Wake::Now));
            } else if matches!(beacon::look(self.directory, *session, None)?, Peer::Dead) {
                self.reaped.push(*session);
            }
        }
        Ok(outcome)
    }

    fn tell(&mut self, session: SessionId) -> Result<Option<Op>, Error> {
        if self.own.has(session) {
            // This process runs, so the grant need not wait for another transaction.
            self.concerned.push((session, Wake::Now));
            return Ok(Some(Op::Renew(session)));
        }
        match self.fate(session)? {
            Peer::Alive(pipe) | Peer::Ending(pipe) => {
                let beacon = records::beacon(self.records(), session)?;
                self.woken.keep(beacon, pipe);
                self.call(session, Wake::Now)?;
                if beacon.is_some_and(|beacon| self.passed_over.contains(&beacon)) {
                    // Its process has just failed to claim another grant, and may have many
                    // sessions in the queue.
                    let passed_over = self.records().session(session)?;
                    self.left.extend(passed_over.iter().flat_map(Session::resources).cloned());
                    return Ok(Some(Op::Reap { session, ended: None }));
                }
                self.appoint_watchers(session)?;
                Ok(None)
            }
            Peer::Dead => self.burial(session).map(Some),
            Peer::Missing => Ok(None),
        }
    }

    /// The waiters behind the sessions that left look once, however many of these there were.
    fn tell_all(&mut self, granted: Vec<SessionId>) -> Result<(), Error> {
        engine::pass_on(self, granted)?;
        let left = mem::take(&mut self.left);
        self.call_waiters_of(&left)
    }

    fn drop_due(&mut self) -> Result<(), Error> {
        if self.records().due(self.time()?)?.is_some() {
            self.apply(Op::Expire)?;
        }
        Ok(())
    }

    fn remove_gone(&mut self, suspects: &[SessionId]) -> Result<bool, Error> {
        let mut found = false;
        let own = self.own;
        for suspect in suspects.iter().filter(|suspect| !own.has(**suspect)) {
            if self.records().session(*suspect)?.is_some() && matches!(self.fate(*suspect)?, Peer::Dead) {
                if self.reaped.len() >= EXPIRED_MAX {
                    return Err(Error::Portion);
                }
                self.reap(*suspect)?;
                found = true;
            }
        }
        Ok(found)
    }
}

impl Work<'_> {
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
