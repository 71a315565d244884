//! Runs one transaction on the table, under the lock of the directory.
//!
//! - `step`: applies an operation.
//! - `reap`: finds and removes the sessions whose processes have died.
//! - `wake`: notes which sessions have to look at the table again.
//! - `standing`: makes the request of a session, and finds out how the session stands.
//!
//! The [`Engine`](rlock_store::engine::Engine) puts them together.
//!
//! Each of these files is a part of [`Work`], the transaction in progress.

mod reap;
mod standing;
mod step;
mod wake;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::geteuid;

pub(super) use self::reap::fate;
use super::beacon::{self, Identity, Peer, Wake, Watched};
use super::directory::Directory;
use super::ending::Patience;
use super::fault::Guard;
use super::file::{Damaged, TableFile};
use super::records::{self, Transaction};
use super::snapshot::without_the_dead;
use super::store::Embedded;
use super::wakeups::Wakeups;
use super::{boot, failure, file};
use rlock_model::lease::CLAIM;
use rlock_model::op::{Op, Reply, ResourceListing};
use rlock_model::request::{Place, SessionId};
use rlock_model::resource::Resource;
use rlock_model::table::LockTable;
use rlock_store::error::Error;
use rlock_store::handle::Standing;
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_sys::processes::Nested;
use rlock_words::Explained;

/// Maximum number of due sessions, and of dead ones, that a transaction ends.
pub(super) const EXPIRED_MAX: usize = 100;

/// The sessions of this process. They live, and they need no wake-up.
pub(super) trait Own {
    fn has(&self, session: SessionId) -> bool;
}

impl Own for Option<SessionId> {
    fn has(&self, session: SessionId) -> bool {
        *self == Some(session)
    }
}

impl<S> Own for &HashMap<SessionId, S> {
    fn has(&self, session: SessionId) -> bool {
        self.contains_key(&session)
    }
}

/// A transaction in progress.
pub(super) struct Work<'t> {
    directory: &'t Directory,
    table: LockTable<Transaction<'t>>,
    own: &'t dyn Own,
    changed: bool,
    /// The sessions of this process that have to look at the table again.
    concerned: Vec<(SessionId, Wake)>,
    /// The wake-ups of sessions of other processes.
    woken: Wakeups,
    reaped: Vec<SessionId>,
    /// The processes below any rlock, when a dead session was first looked at.
    nested: Option<Vec<Nested>>,
    /// The beacons of the processes that did not claim a grant in time.
    passed_over: HashSet<Identity>,
    /// The resources of which a session left whose process goes on. Their waiters have to look.
    left: BTreeSet<Resource>,
    /// The part of the file that the table may have, if a request was granted or queued.
    admitted: Option<[usize; 2]>,
    /// Whether this transaction ends a portion of a crowd of due sessions, and does nothing else.
    ends_portion: bool,
    /// Whether this process may still wait for the end of other processes.
    is_patient: bool,
    /// Whether this process may still wait for the end of process trees.
    awaits_trees: bool,
}

/// What became of an attempt to run a transaction.
enum Attempt<T> {
    Done(T),
    /// The lock was not free in time.
    NoLock,
    /// Nothing was changed, because processes are about to end. The descriptors show when they have
    /// ended.
    Ends(Vec<OwnedFd>),
    /// Nothing was changed, because more sessions are due than a transaction ends.
    Crowd,
    /// A part of the dead sessions was removed.
    Portion,
    /// Nothing was changed, because the table has no room.
    Full(Error),
}

/// The state of a session, and what changes it.
pub(super) struct View {
    pub(super) standing: Standing,
    /// The sessions to watch while this one waits.
    pub(super) watched: Vec<Watched>,
    /// The instant at which the next session ends of itself.
    pub(super) look_at: Option<Boottime>,
    /// The place in the queue; the number is 0 for a session that does not wait.
    pub(super) place: Place,
}

impl View {
    /// A view of a session that does not wait.
    pub(super) fn settled(standing: Standing) -> Self {
        Self { standing, watched: Vec::new(), look_at: None, place: Place::default() }
    }
}

/// The error of a process whose files were replaced, so that other processes use another lock.
const REPLACED: &str = "somebody has removed or replaced its files while it was in use";
/// How often idle resources forget for one request, before it counts as one too many.
const ROOMS_MAX: u32 = 1_000;
/// Maximum number of times that a directory is opened again while somebody keeps replacing it.
const OPENINGS: usize = 8;
/// The number that no user has, see chown(2).
const NO_USER: u32 = u32::MAX;

impl Embedded {
    /// Runs `work` under the directory's lock, and waits for the lock without a limit. If `work`
    /// changed the table, the transaction is committed and the sessions concerned are woken. An
    /// error leaves the table unchanged. If `work` finds a damaged table that no session uses, it
    /// runs again on a new table. It also runs again after a wait for processes that are about to
    /// end, and after each portion of a crowd of sessions that are due or dead.
    pub(super) fn transact<T>(
        &mut self,
        own: impl Own,
        work: impl FnMut(&mut Work<'_>) -> Result<T, failure::Error>,
    ) -> Result<T, Error> {
        let done = self.transact_within(None, own, work)?;
        Ok(done.expect("a wait without a limit ends with the lock"))
    }

    /// Like [`transact`](Self::transact), but returns `None` if the wait for the lock takes longer
    /// than `limit`.
    pub(super) fn transact_within<T>(
        &mut self,
        limit: Option<Duration>,
        own: impl Own,
        mut work: impl FnMut(&mut Work<'_>) -> Result<T, failure::Error>,
    ) -> Result<Option<T>, Error> {
        let mut patience = Patience::default();
        let mut rooms = 0..ROOMS_MAX;
        loop {
            match self.try_transact(limit, &own, patience.is_left(), &mut work)? {
                Attempt::Done(result) => return Ok(Some(result)),
                Attempt::NoLock => return Ok(None),
                // Other processes use the store meanwhile.
                Attempt::Ends(ends) => patience.wait(&ends),
                Attempt::Crowd => match self.try_transact(limit, &own, false, &mut |work| work.drop_portion())? {
                    Attempt::NoLock => return Ok(None),
                    Attempt::Full(error) => self.make_room(limit, &own, rooms.next(), error)?,
                    _ => {}
                },
                Attempt::Portion => {}
                Attempt::Full(error) => self.make_room(limit, &own, rooms.next(), error)?,
            }
        }
    }

    /// Lets idle resources forget, or returns the error of a full table if none is left to ask, or
    /// enough were asked.
    fn make_room(
        &mut self,
        limit: Option<Duration>,
        own: &dyn Own,
        turn: Option<u32>,
        error: Error,
    ) -> Result<(), Error> {
        if turn.is_none() {
            return Err(error);
        }
        match self.try_transact(limit, own, false, &mut |work| work.forget_idle())? {
            Attempt::Done(0) => Err(error),
            Attempt::Done(_) | Attempt::NoLock => Ok(()),
            _ => Err(error),
        }
    }

    fn try_transact<T>(
        &mut self,
        limit: Option<Duration>,
        own: &dyn Own,
        is_patient: bool,
        work: &mut dyn FnMut(&mut Work<'_>) -> Result<T, failure::Error>,
    ) -> Result<Attempt<T>, Error> {
        if !self.lock(limit)? {
            return Ok(Attempt::NoLock);
        }
        let Self { directory, table, namespace, concerned, missed, serves, forgets, .. } = self;
        let locked = directory.locked();
        let _guard = Guard::new(directory);
        let directory = locked.directory();
        let mut attempt = |table: &mut Option<TableFile>| -> Result<_, failure::Error> {
            let table = match table {
                Some(table) => table,
                None => table.insert(boot::open(&locked)?),
            };
            let mut records = Transaction::new(table.write(directory)?, namespace.as_str());
            records.map.forgets = *forgets;
            let mut locks = LockTable::with_claim_lease(records, CLAIM);
            locks.expire_at_most(EXPIRED_MAX);
            let mut running = Work {
                directory,
                table: locks,
                own,
                changed: false,
                concerned: concerned.clone(),
                woken: Wakeups::default(),
                reaped: Vec::new(),
                nested: None,
                passed_over: HashSet::new(),
                left: BTreeSet::new(),
                admitted: None,
                ends_portion: false,
                is_patient,
                awaits_trees: is_patient && !*serves,
            };
            let result = match work(&mut running) {
                Err(failure::Error::Portion) => None,
                result => Some(result?),
            };
            let Work { table: records, changed, concerned: still, woken, reaped, admitted, ends_portion, .. } = running;
            if let Some(part) = admitted {
                if !records.records().map.fits(part)? {
                    return Err(failure::Error::Full);
                }
                table.reserve(records.records().map.txn.pages()?)?;
            }
            if changed {
                records.into_records().map.txn.commit()?;
                table.seal(directory);
            }
            *concerned = if result.is_none() || ends_portion { still } else { Vec::new() };
            // A dead session's beacon is removed after the session, so that every session in the
            // table has a beacon.
            reaped.iter().for_each(|session| beacon::remove(directory, *session));
            Ok((result, woken))
        };
        let mut done = attempt(table);
        // A new table that is damaged as well is not put aside, because it would replace the first.
        let mut is_new = false;
        while matches!(done, Err(failure::Error::Damaged)) && !is_new {
            match file::put_aside(&locked, table).map_err(|error| directory.unusable(&error))? {
                Damaged::InUse => break,
                Damaged::PutAside => is_new = true,
                Damaged::Replaced => {}
            }
            done = attempt(table);
        }
        if matches!(done, Err(failure::Error::Io(_))) {
            // LMDB refuses all further transactions after a failed write.
            *table = None;
            *table = boot::open(&locked).ok();
        }
        let (result, woken) = match done {
            Err(failure::Error::Ending(ends)) => return Ok(Attempt::Ends(ends)),
            Err(failure::Error::Crowd) => return Ok(Attempt::Crowd),
            Err(full @ failure::Error::Full) => return Ok(Attempt::Full(directory.unusable(&full))),
            done => done.map_err(|error| directory.unusable(&error))?,
        };
        drop(locked);
        missed.send(directory, woken);
        Ok(result.map_or(Attempt::Portion, Attempt::Done))
    }

    /// Gets the lock that other processes use as well. If the directory was replaced, it is opened
    /// again, unless this process has used the old one.
    fn lock(&mut self, limit: Option<Duration>) -> Result<bool, Error> {
        for _ in 0..OPENINGS {
            let passed = self.lock_wait.get(self.directory.lock_file(), limit);
            if !passed.map_err(|error| self.directory.unusable(&error))? {
                return Ok(false);
            }
            match self.directory.is_in_place() {
                Ok(true) => return Ok(true),
                Ok(false) => self.directory.unlock(),
                Err(error) => {
                    self.directory.unlock();
                    return Err(self.directory.unusable(&error));
                }
            }
            if self.table.is_some() {
                break;
            }
            self.directory.reopen()?;
        }
        Err(self.directory.unusable(Explained::new(REPLACED, "run rlock again")))
    }
}

impl<'t> Work<'t> {
    /// The owner of a session for which this process may not act, `None` otherwise. Root may act
    /// for everybody. Everybody may act for a session of root, because root's command started them.
    /// A session counts as foreign if its owner cannot be determined.
    pub(super) fn foreign_owner(&self, session: SessionId) -> Result<Option<u32>, failure::Error> {
        let own = geteuid();
        let beacon = records::beacon(self.records(), session)?;
        let owner = beacon.map(|beacon| beacon.owner_here(self.directory, session).unwrap_or(NO_USER));
        Ok(owner.filter(|owner| !own.is_root() && *owner != 0 && *owner != own.as_raw()))
    }

    pub(super) fn directory(&self) -> &'t Directory {
        self.directory
    }

    pub(super) fn records(&self) -> &Transaction<'t> {
        self.table.records()
    }

    /// The records, for a test that damages them. The transaction is committed.
    #[cfg(test)]
    pub(super) fn records_mut(&mut self) -> &mut Transaction<'t> {
        self.changed = true;
        self.table.records_mut()
    }

    /// The instant of an operation that would be applied now.
    pub(super) fn time(&self) -> Result<StoreTime, failure::Error> {
        records::time(self.records(), StoreTime::of_machine(), Boottime::now())
    }

    /// Lists the live holders and waiters of the named resources.
    pub(super) fn inspect(&mut self, resources: Vec<Resource>) -> Result<Vec<ResourceListing>, failure::Error> {
        match self.table.apply(StoreTime::default(), Op::Inspect(resources))?.reply {
            Reply::Listing(listings) => without_the_dead(listings, &mut |id| Ok(!matches!(self.fate(id)?, Peer::Dead))),
            reply => unreachable!("inspect answers with a listing, not {reply:?}"),
        }
    }
}
