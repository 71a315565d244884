//! Finds out whether the process of a session lives, by its record and its beacon, and removes the
//! sessions whose processes have died.

use std::os::fd::OwnedFd;

use super::super::beacon::{self, Identity, Peer};
use super::super::directory::Directory;
use super::super::ending;
use super::super::failure::Error;
use super::super::records::{self, Transaction};
use super::Work;
use rlock_model::op::Op;
use rlock_model::records::{Records, Session};
use rlock_model::request::SessionId;
use rlock_store::engine::Engine;
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_sys::processes;

impl Work<'_> {
    /// The state of a holder's or waiter's process, see [`fate`].
    pub(crate) fn fate(&self, id: SessionId) -> Result<Peer, Error> {
        fate(self.directory, self.records(), id)
    }

    /// Removes a dead session from the table, and wakes the sessions that this grants something.
    pub(crate) fn reap(&mut self, id: SessionId) -> Result<(), Error> {
        let op = self.burial(id)?;
        self.apply(op).map(drop)
    }

    /// The operation that removes a dead session, once what is left of its tree has ended.
    pub(super) fn burial(&mut self, id: SessionId) -> Result<Op, Error> {
        if self.is_patient
            && let Some(holder) = self.records().session(id)?.filter(Session::is_holder)
        {
            let mut ends: Vec<_> = ending::end_of(holder.process.pid).into_iter().collect();
            // A hold of `acquire` has no guardian, and its processes go on without it.
            if !holder.job.is_acquire {
                ends.extend(self.kill_rest(id)?);
            }
            if !ends.is_empty() || self.is_end_unseen(id)? {
                return Err(Error::Ending(ends));
            }
        }
        self.reaped.push(id);
        let ended = self.tree_end(id)?;
        Ok(Op::Reap { session: id, ended })
    }

    /// Kills what a dead holder of this pid namespace has left of its tree, as its guardian does:
    /// the guardian was killed as well. A guardian that has come to its end has noted that. Returns
    /// what tells when these processes have ended. A request from below the holder kills nothing.
    fn kill_rest(&mut self, id: SessionId) -> Result<Vec<OwnedFd>, Error> {
        let is_near = |identity: &Identity| identity.is_near();
        let is_left = match records::beacon(self.records(), id)?.filter(is_near) {
            Some(identity) => beacon::tree_end(self.directory, id, &identity).is_none(),
            None => false,
        };
        if !is_left {
            return Ok(Vec::new());
        }
        // A server that has died had many sessions, so /proc is read once.
        let session = id.to_string();
        let nested = self.nested.get_or_insert_with(processes::nested);
        let rest: Vec<_> = nested.iter().filter(|process| process.is_of(&session)).collect();
        let is_below = rest.iter().any(|process| process.is_this());
        Ok(rest.iter().filter(|_| !is_below).filter_map(|process| process.kill()).collect())
    }

    /// Whether a dead holder ran in another pid namespace, and its guardian has not noted the end
    /// of the tree.
    fn is_end_unseen(&self, id: SessionId) -> Result<bool, Error> {
        let identity = records::beacon(self.records(), id)?.filter(|identity| !identity.is_near());
        Ok(identity.is_some_and(|identity| beacon::tree_end(self.directory, id, &identity).is_none()))
    }

    /// The instant at which the process tree of a dead holder ended, if its guardian has noted it.
    pub(crate) fn tree_end(&self, id: SessionId) -> Result<Option<StoreTime>, Error> {
        let Some(session) = self.records().session(id)? else { return Ok(None) };
        let identity = records::beacon(self.records(), id)?;
        let Some(end) = identity.and_then(|it| beacon::tree_end(self.directory, id, &it)) else { return Ok(None) };
        let end = self.time()? - (Boottime::now() - end);
        Ok(Some(end).filter(|end| *end >= session.since))
    }

    /// Lets the transaction begin anew once the process trees of these killed holders have ended,
    /// if it may still wait for that.
    pub(crate) fn await_trees(&self, holders: &[SessionId]) -> Result<(), Error> {
        let mut ends = Vec::new();
        for holder in holders.iter().filter(|holder| self.awaits_trees && !self.own.has(**holder)) {
            if let Peer::Ending(pipe) = self.fate(*holder)? {
                ends.push(pipe);
            }
        }
        if ends.is_empty() { Ok(()) } else { Err(Error::Ending(ends)) }
    }

    /// Removes the beacons of dead processes that have no session in the table.
    pub(crate) fn sweep(&mut self) -> Result<(), Error> {
        let known = self.records().map.session_ids()?;
        for id in self.directory.beacons()? {
            if !known.contains(&id) && matches!(beacon::look(self.directory, id, None), Ok(Peer::Dead)) {
                beacon::remove(self.directory, id);
            }
        }
        Ok(())
    }
}

/// The state of a holder's or waiter's process. A kept hold needs none. A waiter without its beacon
/// counts as dead: no process can wake it, and it runs no command. It learns that it is lost when
/// it looks.
pub(crate) fn fate(directory: &Directory, records: &Transaction<'_>, id: SessionId) -> Result<Peer, Error> {
    let identity = records::beacon(records, id)?;
    Ok(match beacon::look(directory, id, identity.as_ref())? {
        Peer::Dead if records.session(id)?.is_some_and(|session| session.is_kept()) => Peer::Missing,
        Peer::Missing if records.session(id)?.is_none_or(|session| !session.is_holder()) => Peer::Dead,
        peer => peer,
    })
}
