//! Runs one locked transaction on the table: applies operations, reaps the dead sessions that it
//! meets, and wakes the live ones after the commit.
//!
//! A waiter watches the beacons of those that block it, so nobody is told of a death. All else that
//! can matter to a session is told to it. A session of this process is noted in `concerned`; any
//! other gets a message, see `wakeups`.
//!
//! | what has happened | who looks again | by |
//! | --- | --- | --- |
//! | a session was granted its request, or its run is done (1) | this session | `wake_granted` |
//! | the same, and its process has just let a grant pass (2) | its waiters, too | `wake_granted` |
//! | the session has to claim the grant | some behind it, later (3) | `appoint_watchers` |
//! | a session left whose process goes on | those that it may have blocked | `leave` |
//! | the lease of a session has ended | its waiters, and it if it is own | `apply_alone` |
//! | an operator took a grant away (4) | the holder and its waiters | `break_grants` |
//! | a hold gave up a part of itself (4) | the waiters for the resource | `wake_waiters_of` |
//!
//! "Its waiters" wait for any resource of the session.
//!
//! 1. A dead session is reaped instead, and the next one gets the grant.
//! 2. The session is reaped, and its process, which may be stopped, is told.
//! 3. When the claim lease ends: the session's process may be stopped.
//! 4. The messages go out before the commit (`wake_now`), as those of the release of another
//!    process's session do.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::geteuid;

use super::beacon::{self, Beacon, Identity, Peer, Wake};
use super::directory::{Age, Directory, Locked};
use super::ending::{self, Patience};
use super::fault::Guard;
use super::file::{Damaged, TableFile};
use super::records::{self, SUCCESSES_SHARE, Transaction};
use super::snapshot::without_the_dead;
use super::wakeups::Wakeups;
use super::{Embedded, Error, boot, file};
use crate::lock::index::Rank;
use crate::lock::lease::CLAIM;
use crate::lock::op::{Op, Reply, ResourceListing};
use crate::lock::past::{End, Remembered};
use crate::lock::records::{Phase, Records, Session};
use crate::lock::request::{CLAIMS_MAX, Place, Request, SessionId};
use crate::lock::resource::Resource;
use crate::lock::table::LockTable;
use crate::store::{Grant, Standing};
use crate::system::clock::{Boottime, StoreTime};
use crate::words::Explained;

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
    /// The beacons of the processes that did not claim a grant in time.
    passed_over: HashSet<Identity>,
    /// The sessions that the operations so far have granted something, and that are not yet known
    /// to live.
    granted: VecDeque<SessionId>,
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
enum Tried<T> {
    Done(T),
    /// The lock was not free in time.
    NoLock,
    /// Nothing was changed, because processes are about to end. The descriptors tell when they have
    /// ended.
    Ends(Vec<OwnedFd>),
    /// Nothing was changed, because more sessions are due than a transaction ends.
    Crowd,
    /// A part of the dead sessions was removed.
    Portion,
    /// Nothing was changed, because the table has no room.
    Full(Error),
}

/// A session of another process, and its beacon.
pub(super) type Watched = (SessionId, OwnedFd);

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
/// Maximum number of times that a directory is opened again while somebody keeps replacing it.
const OPENINGS: usize = 8;
/// Maximum number of due sessions, and of dead ones, that a transaction ends.
pub(super) const EXPIRED_MAX: usize = 100;
/// The number of waiters of whom some are asked to look when a claim lease ends.
const WATCHERS_AMONG: usize = 64;
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
        work: impl FnMut(&mut Work<'_>) -> Result<T, records::Error>,
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
        mut work: impl FnMut(&mut Work<'_>) -> Result<T, records::Error>,
    ) -> Result<Option<T>, Error> {
        let mut patience = Patience::default();
        loop {
            match self.try_transact(limit, &own, patience.is_left(), &mut work)? {
                Tried::Done(result) => return Ok(Some(result)),
                Tried::NoLock => return Ok(None),
                // Other processes use the store meanwhile.
                Tried::Ends(ends) => patience.wait(&ends),
                Tried::Crowd => match self.try_transact(limit, &own, false, &mut |work| work.drop_portion())? {
                    Tried::NoLock => return Ok(None),
                    Tried::Full(error) => self.make_room(limit, &own, error)?,
                    _ => {}
                },
                Tried::Portion => {}
                Tried::Full(error) => self.make_room(limit, &own, error)?,
            }
        }
    }

    /// Lets idle resources forget, or returns the error of a full table if they have nothing to
    /// forget.
    fn make_room(&mut self, limit: Option<Duration>, own: &dyn Own, error: Error) -> Result<(), Error> {
        match self.try_transact(limit, own, false, &mut |work| work.forget_idle())? {
            Tried::Done(0) => Err(error),
            Tried::Done(_) | Tried::NoLock => Ok(()),
            _ => Err(error),
        }
    }

    fn try_transact<T>(
        &mut self,
        limit: Option<Duration>,
        own: &dyn Own,
        is_patient: bool,
        work: &mut dyn FnMut(&mut Work<'_>) -> Result<T, records::Error>,
    ) -> Result<Tried<T>, Error> {
        if !self.lock(limit)? {
            return Ok(Tried::NoLock);
        }
        let Self { directory, table, namespace, concerned, missed, serves, forgets, .. } = self;
        let locked = directory.locked();
        let _guard = Guard::new(directory);
        let directory = locked.directory();
        let mut attempt = |table: &mut Option<TableFile>| -> Result<_, records::Error> {
            let table = match table {
                Some(table) => table,
                None => table.insert(open(&locked)?),
            };
            let txn = table.write(directory)?;
            let mut records = Transaction::new(txn, namespace, table.pages_max());
            if *forgets {
                records.forget();
            }
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
                passed_over: HashSet::new(),
                granted: VecDeque::new(),
                admitted: None,
                ends_portion: false,
                is_patient,
                awaits_trees: is_patient && !*serves,
            };
            let result = match work(&mut running) {
                Err(records::Error::Portion) => None,
                result => Some(result?),
            };
            let Work { table: records, changed, concerned: left, woken, reaped, admitted, ends_portion, .. } = running;
            if let Some(part) = admitted {
                if !records.records().fits(part)? {
                    return Err(records::Error::Full);
                }
                table.reserve(records.records().pages()?)?;
            }
            if changed {
                records.into_records().commit()?;
                table.seal(directory);
            }
            *concerned = if result.is_none() || ends_portion { left } else { Vec::new() };
            // A dead session's beacon is removed after the session, so that every session in the
            // table has a beacon.
            reaped.iter().for_each(|session| beacon::remove(directory, *session));
            Ok((result, woken))
        };
        let mut done = attempt(table);
        // A new table that is damaged as well is not put aside, because it would replace the first.
        let mut is_new = false;
        while matches!(done, Err(records::Error::Damaged)) && !is_new {
            match file::put_aside(&locked, table).map_err(|error| directory.unusable(&error))? {
                Damaged::InUse => break,
                Damaged::PutAside => is_new = true,
                Damaged::Replaced => {}
            }
            done = attempt(table);
        }
        if matches!(done, Err(records::Error::Io(_))) {
            // LMDB refuses all further transactions after a failed write.
            *table = None;
            *table = open(&locked).ok();
        }
        let (result, woken) = match done {
            Err(records::Error::Ending(ends)) => return Ok(Tried::Ends(ends)),
            Err(records::Error::Crowd) => return Ok(Tried::Crowd),
            Err(full @ records::Error::Full) => return Ok(Tried::Full(directory.unusable(&full))),
            done => done.map_err(|error| directory.unusable(&error))?,
        };
        drop(locked);
        missed.send(directory, woken);
        Ok(result.map_or(Tried::Portion, Tried::Done))
    }

    /// Gets the lock that other processes use as well. If the directory was replaced, it is opened
    /// again, unless this process has used the old one.
    fn lock(&mut self, limit: Option<Duration>) -> Result<bool, Error> {
        for _ in 0..OPENINGS {
            let passed = self.gate.pass(self.directory.lock_file(), limit);
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

/// Opens the table. The first process of a boot removes the sessions that ended with the last boot.
fn open(locked: &Locked<'_>) -> Result<TableFile, records::Error> {
    let directory = locked.directory();
    let age = directory.prepare(locked)?;
    let table = TableFile::open(directory)?;
    if age == Age::EarlierBoot {
        boot::forget_processes(directory, &table)?;
        directory.remove_beacons()?;
        directory.put_boot(locked)?;
        table.seal(directory);
    }
    Ok(table)
}

/// The state of a holder's or waiter's process. A kept hold needs none. A waiter without its beacon
/// counts as dead: no process can wake it, and it runs no command. It learns that it is lost when
/// it looks.
pub(super) fn fate(directory: &Directory, records: &Transaction<'_>, id: SessionId) -> Result<Peer, records::Error> {
    let identity = records.beacon(id)?;
    Ok(match beacon::look(directory, id, identity.as_ref())? {
        Peer::Dead if records.session(id)?.is_some_and(|session| session.is_kept()) => Peer::Missing,
        Peer::Missing if records.session(id)?.is_none_or(|session| !session.is_holder()) => Peer::Dead,
        peer => peer,
    })
}

impl<'t> Work<'t> {
    /// Makes the request of a new session. `beacon` is the beacon of this process, which the first
    /// session makes.
    pub(super) fn enter(&mut self, request: Request, beacon: &mut Option<Beacon>) -> Result<View, records::Error> {
        let session = request.session;
        let is_first = beacon.is_none();
        let identity = match beacon {
            Some(beacon) => {
                beacon.share(self.directory, session)?;
                *beacon.identity()
            }
            None => *beacon.insert(Beacon::light(self.directory, session)?).identity(),
        };
        let view = self.ask(request, None, &identity);
        if view.is_err() {
            // The session is not in the table, so its beacon must not count as that of a user.
            beacon::remove(self.directory, session);
            if is_first {
                *beacon = None;
            }
        }
        view
    }

    /// Returns the state of a session that waits or holds. A waiter that was passed over, or that
    /// another process took for dead, returns to its place. `is_only` says that no other session
    /// has this beacon.
    pub(super) fn stand_or_return(
        &mut self,
        request: &Request,
        place: Place,
        beacon: &mut Beacon,
        is_only: bool,
    ) -> Result<View, records::Error> {
        let view = self.stand(request.session)?;
        if view.standing != Standing::Lost {
            return Ok(view);
        }
        beacon.restore(self.directory, request.session, is_only)?;
        self.ask(request.clone(), Some(place), beacon.identity())
    }

    fn ask(&mut self, mut request: Request, place: Option<Place>, identity: &Identity) -> Result<View, records::Error> {
        let session = request.session;
        let mut ancestors = Vec::with_capacity(request.ancestors.len());
        for ancestor in request.ancestors {
            // Any process can read the id of a session and claim it as an ancestor. The owner of
            // the beacon comes from the kernel.
            if self.foreign_owner(ancestor)?.is_none() {
                ancestors.push(ancestor);
            }
        }
        request.ancestors = ancestors;
        let view = Embedded::ask(self, request, place)?;
        if self.records().session(session)?.is_some() {
            self.table.records_mut().put_beacon(session, identity)?;
        }
        Ok(view)
    }

    /// Releases a session whose process goes on. The waiters that it blocked cannot learn this from
    /// its beacon, so they look again. `queued` is the rank at which the session waited, or
    /// [`Rank::HELD`] if it did not wait.
    pub(super) fn leave(&mut self, id: SessionId, queued: Rank, end: Option<End>) -> Result<Reply, records::Error> {
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
    fn call(&mut self, session: SessionId, wake: Wake) -> Result<(), records::Error> {
        if self.own.has(session) {
            self.concerned.push((session, wake));
        } else {
            let identity = self.records().beacon(session)?;
            self.woken.add(self.directory, session, identity, wake)?;
        }
        Ok(())
    }

    /// Takes the sessions of this process that have to look at the table again: they were granted
    /// something, or what blocked them has changed.
    pub(super) fn take_concerned(&mut self) -> Vec<(SessionId, Wake)> {
        std::mem::take(&mut self.concerned)
    }

    /// The owner of a session for which this process may not act, `None` otherwise. Root may act
    /// for everybody. Everybody may act for a session of root, because root's command started them.
    /// A session counts as foreign if its owner cannot be determined.
    pub(super) fn foreign_owner(&self, session: SessionId) -> Result<Option<u32>, records::Error> {
        let own = geteuid();
        let beacon = self.records().beacon(session)?;
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

    /// Applies an operation at the current time. A session that the operation grants something is
    /// woken later. If that session is dead, it is reaped, and the next waiter gets the grant.
    pub(super) fn apply(&mut self, op: Op) -> Result<Reply, records::Error> {
        let reply = self.apply_alone(op)?;
        self.wake_granted()?;
        Ok(reply)
    }

    fn apply_alone(&mut self, op: Op) -> Result<Reply, records::Error> {
        let now = self.table.records_mut().advance_clock(StoreTime::of_machine(), Boottime::now())?;
        let mut left = BTreeSet::new();
        let due = self.records().due_until(now, EXPIRED_MAX + 1)?;
        if !self.ends_portion && self.is_crowd(&due)? {
            return Err(records::Error::Crowd);
        }
        for id in due.into_iter().take(EXPIRED_MAX) {
            let Some(session) = self.records().session(id)? else { continue };
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

    /// Whether these due sessions are more than one operation ends.
    fn is_crowd(&self, due: &[SessionId]) -> Result<bool, records::Error> {
        let mut claims = 0;
        for id in due.split_last().map_or(&[][..], |(_, before)| before) {
            claims += self.records().session(*id)?.map_or(0, |session| session.claims.len());
        }
        Ok(due.len() > EXPIRED_MAX || claims >= CLAIMS_MAX)
    }

    /// The instant of an operation that would be applied now.
    pub(super) fn time(&self) -> Result<StoreTime, records::Error> {
        self.records().time(StoreTime::of_machine(), Boottime::now())
    }

    /// Goes through the granted sessions in a loop and not by recursion, because a long queue of
    /// dead sessions may stand behind a dead one.
    fn wake_granted(&mut self) -> Result<(), records::Error> {
        let mut left = BTreeSet::new();
        while let Some(session) = self.granted.pop_front() {
            if self.own.has(session) {
                // This process runs, so the grant need not wait for another transaction.
                self.apply_alone(Op::Renew(session))?;
                self.concerned.push((session, Wake::Now));
                continue;
            }
            match self.fate(session)? {
                Peer::Alive(_) | Peer::Ending(_) => {
                    self.call(session, Wake::Now)?;
                    let beacon = self.records().beacon(session)?;
                    if beacon.is_some_and(|beacon| self.passed_over.contains(&beacon)) {
                        // Its process has just failed to claim another grant, and may have many
                        // sessions in the queue.
                        let passed_over = self.records().session(session)?;
                        left.extend(passed_over.iter().flat_map(Session::resources).cloned());
                        self.apply_alone(Op::Reap { session, ended: None })?;
                    } else {
                        self.appoint_watchers(session)?;
                    }
                }
                Peer::Dead => self.reap_alone(session)?,
                Peer::Missing => {}
            }
        }
        self.call_waiters_of(&left)
    }

    /// Notes that the waiters for these resources have to look. Sessions have left whose processes
    /// go on, so nobody learns of it from their beacons.
    fn call_waiters_of(&mut self, resources: &BTreeSet<Resource>) -> Result<(), records::Error> {
        for resource in resources {
            for waiter in self.sessions_of(resource, |rank| !rank.is_held())? {
                self.call(waiter, Wake::Now)?;
            }
        }
        Ok(())
    }

    /// Asks some of the waiters behind a session to look when its claim lease ends. The session's
    /// process may be stopped, and so may the processes of the waiters behind it. The nearest
    /// waiters are asked, and then ever fewer, so that a hand-over wakes a handful of processes
    /// whatever the length of the queue. A waiter that looks sets a timer for the next expiry.
    fn appoint_watchers(&mut self, granted: SessionId) -> Result<(), records::Error> {
        let Some(session) = self.records().session(granted)?.filter(|session| session.phase == Phase::Granted) else {
            return Ok(());
        };
        for resource in session.resources() {
            let waiters = self.table.first_waiters(resource, WATCHERS_AMONG)?;
            for (place, waiter) in (1..).zip(&waiters) {
                // 1, 2, 3, 4, 6, 8, 12, 16 and so on.
                let is_appointed = usize::is_power_of_two(place) || place % 3 == 0 && (place / 3).is_power_of_two();
                if is_appointed || place == waiters.len() {
                    self.call(*waiter, Wake::AtEndOfClaim)?;
                }
            }
        }
        Ok(())
    }

    /// Registers sessions to be woken after the commit. Dead sessions are reaped instead.
    pub(super) fn wake_later(&mut self, sessions: &[SessionId]) -> Result<(), records::Error> {
        self.granted.extend(sessions);
        self.wake_granted()
    }

    /// Makes all waiters for these resources check their blockers again. The sessions that they
    /// watch may not block them any more.
    pub(super) fn wake_waiters_of<'r>(
        &mut self,
        resources: impl IntoIterator<Item = &'r Resource>,
    ) -> Result<(), records::Error> {
        for resource in resources {
            let waiters = self.sessions_of(resource, |rank| !rank.is_held())?;
            self.wake_later(&waiters)?;
        }
        Ok(())
    }

    /// Wakes the registered sessions before the commit. They then wait for the lock, and read the
    /// result.
    pub(super) fn wake_now(&mut self) -> Result<(), records::Error> {
        self.woken.send_now(self.directory)
    }

    /// The state of a holder's or waiter's process, see [`fate`].
    pub(super) fn fate(&self, id: SessionId) -> Result<Peer, records::Error> {
        fate(self.directory, self.records(), id)
    }

    /// Removes a dead session from the table, and wakes the sessions that this grants something.
    pub(super) fn reap(&mut self, id: SessionId) -> Result<(), records::Error> {
        self.reap_alone(id)?;
        self.wake_granted()
    }

    fn reap_alone(&mut self, id: SessionId) -> Result<(), records::Error> {
        if self.is_patient
            && let Some(holder) = self.records().session(id)?.filter(Session::is_holder)
            && let Some(end) = ending::end_of(holder.process.pid)
        {
            return Err(records::Error::Ending(vec![end]));
        }
        self.reaped.push(id);
        let ended = self.tree_end(id)?;
        self.apply_alone(Op::Reap { session: id, ended }).map(drop)
    }

    /// The instant at which the process tree of a dead holder ended, if its guardian has noted it.
    pub(super) fn tree_end(&self, id: SessionId) -> Result<Option<StoreTime>, records::Error> {
        let Some(session) = self.records().session(id)? else { return Ok(None) };
        let identity = self.records().beacon(id)?;
        let Some(end) = identity.and_then(|it| beacon::tree_end(self.directory, id, &it)) else { return Ok(None) };
        let end = self.time()? - (Boottime::now() - end);
        Ok(Some(end).filter(|end| *end >= session.since))
    }

    /// Reaps the dead sessions among `suspects` that hold or wait. Returns whether there were any.
    pub(super) fn reap_dead(&mut self, suspects: &[SessionId]) -> Result<bool, records::Error> {
        let mut found = false;
        let own = self.own;
        for suspect in suspects.iter().filter(|suspect| !own.has(**suspect)) {
            if self.records().session(*suspect)?.is_some() && matches!(self.fate(*suspect)?, Peer::Dead) {
                if self.reaped.len() >= EXPIRED_MAX {
                    return Err(records::Error::Portion);
                }
                self.reap(*suspect)?;
                found = true;
            }
        }
        Ok(found)
    }

    /// Lets the transaction begin anew once the process trees of these killed holders have ended,
    /// if it may still wait for that.
    pub(super) fn await_trees(&self, holders: &[SessionId]) -> Result<(), records::Error> {
        let mut ends = Vec::new();
        for holder in holders.iter().filter(|holder| self.awaits_trees && !self.own.has(**holder)) {
            if let Peer::Ending(pipe) = self.fate(*holder)? {
                ends.push(pipe);
            }
        }
        if ends.is_empty() { Ok(()) } else { Err(records::Error::Ending(ends)) }
    }

    /// Reaps the dead sessions that block a new request, or that count against its limit of
    /// waiters.
    pub(super) fn clear_the_way(&mut self, request: &Request) -> Result<(), records::Error> {
        self.drop_due()?;
        if request.job.max_waiting.is_some() {
            for claim in &request.claims {
                let waiters = self.sessions_of(&claim.resource, |rank| !rank.is_held())?;
                self.reap_dead(&waiters)?;
            }
        }
        loop {
            let blockers = self.table.blockers_of_request(request)?;
            if !self.reap_dead(&blockers)? {
                return Ok(());
            }
        }
    }

    /// Removes the sessions whose time is over.
    pub(super) fn drop_due(&mut self) -> Result<(), records::Error> {
        if self.records().due(self.time()?)?.is_some() {
            self.apply(Op::Expire)?;
        }
        Ok(())
    }

    /// Removes as many of the sessions whose time is over as a transaction ends.
    fn drop_portion(&mut self) -> Result<(), records::Error> {
        self.ends_portion = true;
        self.apply(Op::Expire).map(drop)
    }

    /// Lets idle resources forget what they need not keep. Returns how many have forgotten
    /// something.
    fn forget_idle(&mut self) -> Result<usize, records::Error> {
        let now = self.time()?;
        let forgotten = self.table.records_mut().forget_idle(now)?;
        self.changed |= forgotten > 0;
        Ok(forgotten)
    }

    /// Returns the state of a session once no dead session blocks it, and the beacons to watch
    /// while it waits. The sessions of this process need not be watched.
    ///
    /// A grant from the queue is claimed. So a waiter that is stopped when its turn comes is passed
    /// over, and its command never starts on a grant that has ended.
    pub(super) fn stand(&mut self, id: SessionId) -> Result<View, records::Error> {
        loop {
            self.drop_due()?;
            let place = match self.records().session(id)? {
                None => return Ok(View::settled(Standing::Lost)),
                Some(session) if session.phase == Phase::Granted => {
                    self.apply(Op::Renew(id))?;
                    continue;
                }
                Some(session) if session.is_holder() => {
                    let (tokens, slots) = (session.tokens(), session.slots());
                    let grant = Grant { tokens, slots, last: session.last, deadline: None };
                    return Ok(View::settled(Standing::Granted(grant)));
                }
                Some(session) => Place { number: session.place(), asked: session.asked },
            };
            let mut watched = Vec::new();
            let mut dead = Vec::new();
            for blocker in self.table.blockers(id)? {
                if self.own.has(blocker) {
                    continue;
                }
                match self.fate(blocker)? {
                    Peer::Alive(pipe) | Peer::Ending(pipe) => watched.push((blocker, pipe)),
                    Peer::Dead => dead.push(blocker),
                    Peer::Missing => {}
                }
            }
            if dead.is_empty() {
                // Any session that ends may let the next one in, and that one may be stopped, too.
                let ends = self.records().first_expiry()?;
                let left = ends.map(|ends| self.time().map(|now| ends - now)).transpose()?;
                let look_at = left.map(|left| Boottime::now() + left);
                return Ok(View { standing: Standing::Waiting, watched, look_at, place });
            }
            for blocker in dead {
                self.reap(blocker)?;
            }
        }
    }

    /// Lists the live holders and waiters of the named resources.
    pub(super) fn inspect(&mut self, resources: Vec<Resource>) -> Result<Vec<ResourceListing>, records::Error> {
        match self.table.apply(StoreTime::default(), Op::Inspect(resources))?.reply {
            Reply::Listing(listings) => without_the_dead(listings, &mut |id| Ok(!matches!(self.fate(id)?, Peer::Dead))),
            reply => unreachable!("inspect answers with a listing, not {reply:?}"),
        }
    }

    /// What a resource remembers.
    pub(super) fn past(&self, name: &Resource, entries: u32) -> Result<Option<Remembered>, records::Error> {
        self.table.past(self.time()?, name, entries)
    }

    /// The sessions with a claim on a resource, including dead ones. `wanted` chooses the claims.
    pub(super) fn sessions_of(
        &self,
        resource: &Resource,
        wanted: impl Fn(Rank) -> bool,
    ) -> Result<Vec<SessionId>, records::Error> {
        self.table.sessions_of(resource, wanted)
    }

    /// Removes the beacons of dead processes that have no session in the table.
    pub(super) fn sweep(&mut self) -> Result<(), records::Error> {
        let known = self.records().all_session_ids()?;
        for id in self.directory.beacons()? {
            if !known.contains(&id) && matches!(beacon::look(self.directory, id, None), Ok(Peer::Dead)) {
                beacon::remove(self.directory, id);
            }
        }
        Ok(())
    }
}
