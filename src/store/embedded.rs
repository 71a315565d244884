//! The embedded store: the lock table in an LMDB file, shared by the processes of one machine.
//!
//! - `directory`: the files, their place, who may use them, and the lock on the state; `lock_file`:
//!   the text of the file that is locked.
//! - `gate`: the wait for that lock.
//! - `file`: the table's file; `records`, `codec`: the table's records; `lmdb`: the calls into
//!   LMDB.
//! - `verify`: reads a whole table that another process may have damaged; `fault`: handles damage
//!   that `verify` could not see.
//! - `beacon`: tells which sessions live, and wakes and watches them; `names`: notices releases of
//!   holders whose processes go on; `ending`: waits until the command of a dead holder is sure to
//!   die.
//! - `fate`: tells whether the process of a session lives.
//! - `transaction`: one operation from lock to wake-up; `wakeups`: its messages to other processes;
//!   `snapshot`: builds an answer after the transaction has released the lock.
//! - `boot`: opens the table, and carries it over a boot of the machine.
//! - `sessions`: the requests of one process; `handle`: the only request of a process;
//!   `stuck`: notices that the lock is not free for too long.
//!
//! There is no daemon. Each process changes the table itself, under the lock of the directory, and
//! wakes the waiters that it grants a request. A grant lives as long as the holder's process, so
//! nothing is renewed. A kept hold has no process and ends at an instant, for which each waiter
//! sets a timer. Each waiter watches the sessions that block it ([`LockTable::blockers`]), and so
//! notices their death.
//!
//! Therefore one of these statements is true for every waiter at any time:
//!
//! - The waiter's request is granted, and the waiter was woken.
//! - The waiter watches a live session that blocks it.
//! - A kept hold blocks the waiter, which looks again when the first kept hold or claim lease ends.
//! - The waiter is awake and about to find out which of these holds.
//!
//! This is true even if a process dies between a grant and the wake-up, because the waiter watches
//! that process. A session may stop blocking without ending (shrink, downgrade, break). Then the
//! process that makes the change wakes all waiters of the resource, and each looks again. A holder
//! cannot be watched if somebody removed its beacon. The release of such a holder wakes its
//! waiters.
//!
//! A process may have many sessions. They share a beacon, which does not show the end of one of
//! them. So such a process wakes the waiters that a session may have blocked when it releases the
//! session (`LockTable::waiters_behind`), unless it has no other. Its own waiters watch only
//! sessions of other processes.
//!
//! [`LockTable::blockers`]: crate::lock::table::LockTable::blockers

mod beacon;
mod boot;
mod codec;
mod directory;
mod ending;
mod fate;
mod fault;
mod file;
mod gate;
mod handle;
mod lmdb;
mod lock_file;
mod names;
mod records;
mod sessions;
mod snapshot;
mod stuck;
mod transaction;
mod verify;
mod wakeups;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use self::beacon::{Peer, Wake};
use self::directory::Directory;
use self::fault::Guard;
use self::file::TableFile;
use self::gate::Gate;
use self::handle::{EmbeddedHandle, LEAVE_LIMIT};
use self::records::Raw;
use self::sessions::EmbeddedSessions;
use self::snapshot::{Answer, Interest};
use self::transaction::Work;
use self::wakeups::Missed;
use super::error::Error;
use super::facts::Facts;
use super::handle::{AcquireOptions, Handle, Released, Replicas};
use super::operations::{Changed, Elsewhere, Inspection, Notices, Store};
use super::sessions::Sessions;
use crate::lock::deadlock::Reading;
use crate::lock::index::Rank;
use crate::lock::mode::Mode;
use crate::lock::op::{Op, Reply};
use crate::lock::past::{End, Ended, Remembered};
use crate::lock::records::{Records, Session};
use crate::lock::request::{Request, SessionId};
use crate::lock::resource::Resource;
use crate::lock::span::Span;
use crate::words::Explained;

/// The maximum size of the table in bytes, enough for some hundred thousand claims. LMDB reserves
/// so many addresses; the file is as large as its content.
pub const TABLE_BYTES_MAX: usize = 256 << 20;

/// The number of copies of the records in which a listing may meet holders that have just been
/// released. After that it is made under the lock.
const COPIES: usize = 3;

/// What a copy of the records tells.
enum Found {
    Answer(Answer),
    /// These holders have no beacon: they were released since, or somebody has removed the beacons.
    Missing(Vec<SessionId>),
    Damage,
}

/// The embedded store.
pub struct Embedded {
    directory: Directory,
    /// The table is opened under the lock of the first transaction. If this process gave up the
    /// lock in between, another process could see no live session. That process could then replace
    /// a table that it takes for damaged, or for one of an earlier boot.
    table: Option<TableFile>,
    gate: Gate,
    namespace: String,
    /// The sessions of this process that a portion of a crowd has concerned: the work after it
    /// takes them.
    concerned: Vec<(SessionId, Wake)>,
    /// The wake-ups of other processes that failed after a commit.
    missed: Missed,
    /// Whether this process serves clients. It gives the trees of killed holders no time to end
    /// before it reports that a request is busy, and reports trouble instead of waiting for its
    /// end.
    serves: bool,
    /// Whether this process adds nothing to the past any more, because a change of the table
    /// failed.
    forgets: bool,
}

impl Embedded {
    /// Opens the store in `path`, or in the default directory, and makes a missing directory.
    ///
    /// # Errors
    /// The directory cannot be used. The content of the directory is checked at its first use.
    pub fn open(path: Option<PathBuf>, namespace: &str) -> Result<Self, Error> {
        let directory = Directory::open(path)?;
        Ok(Self {
            directory,
            table: None,
            gate: Gate::default(),
            namespace: namespace.to_owned(),
            concerned: Vec::new(),
            missed: Missed::default(),
            serves: false,
            forgets: false,
        })
    }
}

impl Embedded {
    /// Lists the holders and waiters. Only the copying of the records runs under the lock, because
    /// building an answer with many claims takes long.
    fn listings(
        &mut self,
        limit: Option<Duration>,
        names: &[Resource],
        watched: Interest,
    ) -> Result<Option<Answer>, Error> {
        let mut missing = Vec::new();
        for _ in 0..COPIES {
            let Some(raw) = self.copy(limit, names)? else { return Ok(None) };
            match self.listings_of(&raw, names, watched, &missing)? {
                Found::Answer(answer) => return Ok(Some(answer)),
                Found::Missing(holders) => missing = holders,
                Found::Damage => break,
            }
        }
        // A transaction that meets damage puts the table aside.
        self.transact_within(limit, None, |work| {
            snapshot::listings(&work.records().copy(work.time()?, names)?, work.directory(), names, watched)
        })
    }

    fn copy(&mut self, limit: Option<Duration>, names: &[Resource]) -> Result<Option<Raw>, Error> {
        self.transact_within(limit, None, |work| work.records().copy(work.time()?, names))
    }

    /// Lists the holders and waiters in a copy of the records. `missing` are the holders that had
    /// no beacon before the copy was made: somebody has removed their beacons, because a release
    /// removes the session first.
    fn listings_of(
        &self,
        raw: &Raw,
        names: &[Resource],
        watched: Interest,
        missing: &[SessionId],
    ) -> Result<Found, Error> {
        // As in a transaction, the records may contradict each other.
        let _guard = Guard::new(&self.directory);
        match snapshot::listings(raw, &self.directory, names, watched) {
            Err(records::Error::Damaged) => Ok(Found::Damage),
            Ok(answer) if answer.missing.iter().any(|id| !missing.contains(id)) => Ok(Found::Missing(answer.missing)),
            listings => listings.map(Found::Answer).map_err(|error| self.directory.unusable(&error)),
        }
    }

    fn change(&mut self, session: SessionId, resource: &Resource, op: &Op) -> Result<Changed, Error> {
        self.act_for(session, Some(session), |work| {
            let changed = changed(work.apply(op.clone())?);
            if changed == Changed::Done {
                work.call_waiters_of([resource])?;
                // The waiters do not watch this process. They are woken before the transaction
                // ends, so that the death of this process cannot lose the wake-up.
                work.wake_now()?;
            }
            Ok(changed)
        })
    }

    /// Runs `work`, which changes what a session of another process holds. Only its user and root
    /// may do so. A session in `own` needs no wake-up.
    fn act_for<T>(
        &mut self,
        session: SessionId,
        own: Option<SessionId>,
        mut work: impl FnMut(&mut Work<'_>) -> Result<T, records::Error>,
    ) -> Result<T, Error> {
        let done = self.transact(own, |running| match running.foreign_owner(session)? {
            Some(owner) => Ok(Err(owner)),
            None => work(running).map(Ok),
        })?;
        done.map_err(|owner| {
            let what = format!("session {session} belongs to uid {owner}");
            Error::Refused(Explained::new(what, "only that user and root can change what it holds"))
        })
    }
}

/// What the reply to a change of a hold means.
fn changed(reply: Reply) -> Changed {
    match reply {
        Reply::Refused(refusal) => Changed::Refused(refusal),
        Reply::Unknown => Changed::Lost,
        _ => Changed::Done,
    }
}

impl Store for Embedded {
    fn url(&self) -> String {
        super::url::of_directory(self.directory.path())
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn leases(&self) -> bool {
        false
    }

    fn examine(&mut self) -> Result<Facts, Error> {
        Ok(Facts::Directory(self.directory.examine().map_err(|error| self.directory.unusable(&error))?))
    }

    fn elsewhere(&self) -> Elsewhere {
        self.directory.others()
    }

    fn acquire(self: Box<Self>, request: Request, options: AcquireOptions) -> Result<Box<dyn Handle>, Error> {
        if options.replicas != Replicas::default() {
            return Err(Error::Refused(Explained::new("the embedded store has no replicas", "leave out --replicas")));
        }
        Ok(Box::new(EmbeddedHandle::ask(*self, request, options.from)?))
    }

    fn sessions(mut self: Box<Self>) -> Result<Box<dyn Sessions>, Error> {
        self.serves = true;
        Ok(Box::new(EmbeddedSessions::new(*self)))
    }

    fn session(&mut self, id: SessionId, _resources: &[Resource]) -> Result<Option<Session>, Error> {
        self.transact(None, |work| {
            let now = work.time()?;
            let is_over = |session: &Session| session.is_kept() && session.expiry.is_some_and(|expiry| expiry <= now);
            let found = work.records().session(id)?.filter(|session| !is_over(session));
            Ok(if found.is_some() && matches!(work.fate(id)?, Peer::Dead) { None } else { found })
        })
    }

    fn extend(&mut self, id: SessionId, _: &[Resource], by: Option<Duration>) -> Result<Changed, Error> {
        self.act_for(id, Some(id), |work| work.apply(Op::Extend { session: id, by }).map(changed))
    }

    fn release(&mut self, id: SessionId, _: &Session, end: Option<End>) -> Result<Released, Error> {
        self.act_for(id, None, |work| {
            work.reap_dead(&[id])?;
            // The process of the session, if there is one, has to learn that its hold has ended.
            work.wake_later(&[id])?;
            let reply = work.leave(id, Rank::HELD, end)?;
            work.wake_now()?;
            Ok(if reply == Reply::Unknown { Released::Lost } else { Released::Done })
        })
    }

    fn history(&mut self, resources: &[Resource], entries: u32) -> Result<Vec<Remembered>, Error> {
        self.transact(None, |work| {
            let all = if resources.is_empty() { work.records().pasts()? } else { Vec::new() };
            let mut found = Vec::new();
            for name in resources.iter().chain(&all) {
                found.extend(work.past(name, entries)?);
            }
            Ok(found)
        })
    }

    fn forget(&mut self, resource: &Resource) -> Result<(), Error> {
        self.transact(None, |work| work.apply(Op::Forget(resource.clone())).map(drop))
    }

    fn unrecorded(&mut self, resources: &[Resource]) -> Result<Vec<(Session, Ended)>, Error> {
        self.transact(None, |work| {
            let now = work.time()?;
            let mut found = Vec::new();
            for (id, session) in work.records().sessions()? {
                let concerned = |name: &Resource| session.claims.iter().any(|claim| claim.claim.resource == *name);
                if !session.is_holder() || !resources.is_empty() && !resources.iter().any(concerned) {
                    continue;
                }
                let over = session.expiry.filter(|expiry| *expiry <= now);
                if over.is_some() || matches!(work.fate(id)?, Peer::Dead) {
                    let end = if over.is_some() { over } else { work.tree_end(id)? };
                    found.push((session, end.map_or(Ended::Noticed(now), Ended::At)));
                }
            }
            Ok(found)
        })
    }

    fn shrink(&mut self, session: SessionId, resource: &Resource, span: Span) -> Result<Changed, Error> {
        self.change(session, resource, &Op::Shrink { session, resource: resource.clone(), span })
    }

    fn downgrade(&mut self, session: SessionId, resource: &Resource, mode: Mode) -> Result<Changed, Error> {
        self.change(session, resource, &Op::Downgrade { session, resource: resource.clone(), mode })
    }

    fn inspect(&mut self, resources: &[Resource]) -> Result<Inspection, Error> {
        let answer = self.listings(None, resources, Interest::Holders)?.unwrap_or_default();
        let Answer { now, listings: resources, sessions, .. } = answer;
        Ok(Inspection { now, resources, sessions })
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        Ok(self.listings(Some(LEAVE_LIMIT), resources, Interest::Holders)?.map(|answer| answer.sessions))
    }

    fn inspect_and_watch(&mut self, resources: &[Resource]) -> Result<(Inspection, Option<Notices>), Error> {
        // The watch begins before the listing, so that no change escapes both. A user may have too
        // many of such watches.
        let changes = self.directory.watch().ok();
        let answer = self.listings(None, resources, Interest::All)?.unwrap_or_default();
        let are_complete = changes.is_some() && !answer.is_incomplete;
        let descriptors = answer.watched.into_iter().map(|(_, pipe)| pipe).chain(changes).collect();
        let inspection = Inspection { now: answer.now, resources: answer.listings, sessions: answer.sessions };
        Ok((inspection, Some(Notices { descriptors, are_complete })))
    }

    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error> {
        let dead = self.transact(None, |work| {
            let sessions = work.records().sessions()?;
            work.await_trees(&sessions.iter().map(|(id, _)| *id).collect::<Vec<_>>())?;
            let mut dead = Vec::new();
            for (id, session) in sessions {
                let concerned = |name: &Resource| session.claims.iter().any(|claim| claim.claim.resource == *name);
                if (resources.is_empty() || resources.iter().any(concerned)) && matches!(work.fate(id)?, Peer::Dead) {
                    dead.push((id, session));
                }
            }
            Ok(dead)
        })?;
        if !dry_run {
            self.transact(None, |work| work.drop_due())?;
            // Each dead session has a transaction of its own. A full table has room for a small
            // transaction, and other processes get their turn in between.
            for (id, _) in &dead {
                self.transact(None, |work| work.reap_dead(&[*id]).map(drop))?;
            }
            if resources.is_empty() {
                self.transact(None, |work| work.sweep())?;
            }
        }
        Ok(dead)
    }

    fn break_grants(
        &mut self,
        resource: &Resource,
        only: Option<SessionId>,
        dry_run: bool,
    ) -> Result<Vec<(SessionId, Session)>, Error> {
        self.transact(None, |work| {
            let mut holders = work.sessions_of(resource, Rank::is_held)?;
            holders.retain(|holder| only.is_none_or(|only| *holder == only));
            let mut broken = Vec::new();
            for id in &holders {
                broken.extend(work.records().session(*id)?.map(|session| (*id, session)));
            }
            if !dry_run {
                work.wake_later(&holders)?;
                work.apply(Op::Break { resource: resource.clone(), only })?;
                let freed: BTreeSet<_> = broken.iter().flat_map(|(_, session)| session.resources()).collect();
                work.call_waiters_of(freed)?;
                work.wake_now()?;
            }
            Ok(broken)
        })
    }
}
