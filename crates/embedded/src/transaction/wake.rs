//! Notes which sessions have to look at the table again after what a transaction does.
//!
//! A waiter watches the beacons of those that block it, so no message reports a death. Everything
//! else that can matter to a session is reported to it. A session of this process is noted in
//! `concerned`; any other gets a message, see `wakeups`.
//!
//! | what has happened | which sessions look again | by |
//! | --- | --- | --- |
//! | a session was granted its request, or its run is done (1) | this session | `tell` |
//! | the same, and its process has just let a grant pass (2) | its waiters, too | `tell` |
//! | the session has to claim the grant | some behind it, later (3) | `appoint_watchers` |
//! | a session left whose process goes on | those that it may have blocked | `leave` |
//! | the lease of a session has ended | its waiters, and it if it is own | `step` |
//! | an operator revoked a grant (4) | the holder and its waiters | `break_grants` |
//! | a hold gave up a part of itself (4) | the waiters for the resource | `call_waiters_of` |
//!
//! "Its waiters" wait for any resource of the session.
//!
//! 1. A dead session is reaped instead, and the next one gets the grant.
//! 2. The session is reaped, and its process, which may be stopped, gets a message.
//! 3. When the claim lease ends: the session's process may be stopped.
//! 4. The messages go out before the commit (`wake_now`), as those of the release of another
//!    process's session do.

use std::collections::BTreeSet;

use super::super::beacon::Wake;
use super::super::failure::Error;
use super::super::records;
use super::Work;
use rlock_model::index::Rank;
use rlock_model::op::{Op, Reply};
use rlock_model::past::End;
use rlock_model::records::{Phase, Records};
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_store::engine::Engine;

/// The number of waiters of whom some are asked to look when a claim lease ends.
const WATCHERS_AMONG: usize = 64;

impl Work<'_> {
    /// Releases a session whose process goes on. The waiters that it blocked cannot learn this from
    /// its beacon, so they look again. `queued` is the rank at which the session waited, or
    /// [`Rank::HELD`] if it did not wait.
    pub(crate) fn leave(&mut self, id: SessionId, queued: Rank, end: Option<End>) -> Result<Reply, Error> {
        let claims = self.records().session(id)?.map(|session| session.claims).unwrap_or_default();
        let reply = self.apply(Op::Release { session: id, end })?;
        let mut waiters = BTreeSet::new();
        for record in &claims {
            waiters.extend(self.table.waiters_behind(&record.claim, queued)?);
        }
        waiters.into_iter().try_for_each(|waiter| self.call(waiter, Wake::Now))?;
        Ok(reply)
    }

    /// Notes that a session has to look at the table.
    pub(super) fn call(&mut self, session: SessionId, wake: Wake) -> Result<(), Error> {
        if self.own.has(session) {
            self.concerned.push((session, wake));
        } else {
            let identity = records::beacon(self.records(), session)?;
            self.woken.add(self.directory, session, identity, wake)?;
        }
        Ok(())
    }

    /// Takes the sessions of this process that have to look at the table again: they were granted
    /// something, or what blocked them has changed.
    pub(crate) fn take_concerned(&mut self) -> Vec<(SessionId, Wake)> {
        std::mem::take(&mut self.concerned)
    }

    /// Notes that the waiters for these resources have to look. The sessions that they watch may
    /// not block them any more, and the beacons of these sessions do not show it: their processes
    /// go on.
    pub(crate) fn call_waiters_of<'r>(
        &mut self,
        resources: impl IntoIterator<Item = &'r Resource>,
    ) -> Result<(), Error> {
        for resource in resources {
            for waiter in self.table.sessions_of(resource, |rank| !rank.is_held())? {
                self.call(waiter, Wake::Now)?;
            }
        }
        Ok(())
    }

    /// Asks some of the waiters behind a session to look when its claim lease ends. The session's
    /// process may be stopped, and so may the processes of the waiters behind it, neighbours most
    /// likely together. So the first waiters are asked, few of the others, and the last: each costs
    /// a hand-over two context switches. A waiter that looks sets a timer for the next expiry.
    pub(super) fn appoint_watchers(&mut self, granted: SessionId) -> Result<(), Error> {
        let Some(session) = self.records().session(granted)?.filter(|session| session.phase == Phase::Granted) else {
            return Ok(());
        };
        for resource in session.resources() {
            let waiters = self.table.first_waiters(resource, WATCHERS_AMONG)?;
            for (place, waiter) in (1..).zip(&waiters) {
                if watches(place, waiters.len()) {
                    self.call(*waiter, Wake::AtEndOfClaim)?;
                }
            }
        }
        Ok(())
    }

    /// Wakes the registered sessions before the commit. They then wait for the lock, and read the
    /// result.
    pub(crate) fn wake_now(&mut self) -> Result<(), Error> {
        self.woken.send_now(self.directory)
    }
}

/// Whether the waiter at this place, counted from 1, of so many is asked to look: the first four,
/// the 16th, the 64th and so on, and the last.
fn watches(place: usize, waiters: usize) -> bool {
    place < 4 || place == waiters || place.is_power_of_two() && place.ilog2().is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_waiters_watch_a_grant_with_few_between() {
        let watchers = |waiters: usize| (1..=waiters).filter(|place| watches(*place, waiters)).collect::<Vec<_>>();
        assert_eq!(watchers(0), [0; 0]);
        assert_eq!(watchers(1), [1]);
        assert_eq!(watchers(5), [1, 2, 3, 4, 5]);
        assert_eq!(watchers(50), [1, 2, 3, 4, 16, 50]);
        assert_eq!(watchers(WATCHERS_AMONG), [1, 2, 3, 4, 16, 64]);
    }
}
