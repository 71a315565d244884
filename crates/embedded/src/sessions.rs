//! The requests of one process in the embedded store: one open table, one beacon, and one
//! descriptor for each session of another process that blocks any of them.
//!
//! `rlock serve` has many requests, and `rlock exec` has one. An advance never waits for the lock
//! on the state. While a thread waits for the lock, an advance is due as soon as the lock is free or
//! trouble begins, and nothing else counts. Otherwise an advance is due at a wake-up, at the end of
//! a watched holder, at the next end of a lease, and when a holder that a line on the terminal names
//! ends or its name changes.
//!
//! The process that holds the lock on the state may be stopped, so nothing here waits for that
//! lock. A session for which there is something to do is **due**. The due sessions are served in
//! order, as many in one transaction as [`batch`] allows. An error undoes the transaction.
//! Then each of the sessions is served in a transaction of its own, so that the error concerns one
//! session only. If the lock is not free, the sessions stay due until a thread has got it.
//!
//! A session becomes due when it is new or released, when another process names it in the beacon,
//! and when a session of another process that blocks it dies. A session to which a transaction of
//! this process grants something, or whose blocker it releases, looks in the same transaction, or
//! becomes due. So an idle session costs nothing.

mod batch;
mod local_session;
mod looks;
mod reports;
mod watches;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFlags;

use self::batch::{Batch, withdraw};
use self::local_session::{LocalSession, Stage};
use self::looks::Shown;
use self::watches::Watches;
use super::beacon::{self, Beacon, Wake};
use super::failure;
use super::lock_wait::{LockWait, Stuck, TROUBLE_AFTER};
use super::store::Embedded;
use super::transaction::Work;
use rlock_model::deadlock::Reading;
use rlock_model::lease::CLAIM;
use rlock_model::past::{End, Remembered};
use rlock_model::request::{Place, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_store::engine::Engine;
use rlock_store::error::Error;
use rlock_store::handle::{AcquireOptions, Obstruction, Released, Replicas, Return};
use rlock_store::operations::Store as _;
use rlock_store::sessions::{Report, Sessions};
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_sys::timers::Timers;
use rlock_words::Explained;

/// Maximum wait of a holder for the lock to release its grant. The end of its process releases the
/// grant as well.
const RELEASE_LIMIT: Duration = TROUBLE_AFTER;

/// How long the release of a command that goes on is tried: for ever, as far as anybody can tell.
const AS_LONG_AS_IT_TAKES: Duration = Duration::from_secs(1 << 32);

/// Maximum wait of a waiter for the lock, to leave the queue or to look for a deadlock. Its place
/// disturbs no other session, and the end of its process removes the place.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_millis(100);

/// The sessions of this process.
pub(super) struct EmbeddedSessions {
    store: Embedded,
    sessions: HashMap<SessionId, LocalSession>,
    due: VecDeque<SessionId>,
    /// How many of the due sessions are served in transactions of their own, because a transaction
    /// with all of them failed.
    alone: usize,
    /// The beacon while the table contains any of the sessions. Without a session, nobody looks for
    /// the beacon, and it would have no name.
    beacon: Option<Beacon>,
    watches: Watches,
    /// When which session looks again.
    timers: Timers<SessionId>,
    stuck: Stuck,
    shown: Shown,
    /// The sessions whose release failed, and the instant of the next attempt.
    failed: Vec<SessionId>,
    retry_at: Option<Boottime>,
    events: VecDeque<(SessionId, Report)>,
}

/// Whether the lock was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Done,
    Stuck,
}

impl EmbeddedSessions {
    /// No sessions yet.
    pub(super) fn new(store: Embedded) -> Self {
        Self {
            store,
            sessions: HashMap::new(),
            due: VecDeque::new(),
            alone: 0,
            beacon: None,
            watches: Watches::default(),
            timers: Timers::default(),
            stuck: Stuck::default(),
            shown: Shown::default(),
            failed: Vec::new(),
            retry_at: None,
            events: VecDeque::new(),
        }
    }

    fn add(&mut self, request: Request) -> SessionId {
        let id = request.session;
        let claims = request.claims.len();
        let stage = Stage::Asking(Box::new(request));
        self.sessions.insert(id, LocalSession { stage, claims, is_due: false, place: Place::default() });
        id
    }

    /// Serves the due sessions until the lock is not free within `limit`. Returns whether all are
    /// served. A process with clients answers them before it takes the lock again.
    fn serve(&mut self, limit: Duration) -> bool {
        while !self.due.is_empty() {
            if self.serve_some(limit) == Access::Stuck {
                self.report_overdue();
                return false;
            }
            if self.store.serves {
                break;
            }
        }
        if self.due.is_empty() && self.store.lock_wait.descriptor().is_some() {
            // The sessions for which a thread waits are gone. When it has the lock, the lock must
            // be released.
            let _ = self.transact(Duration::ZERO, |_, _, _| Ok(()));
        }
        self.due.is_empty()
    }

    /// Serves the first due sessions in one transaction.
    fn serve_some(&mut self, limit: Duration) -> Access {
        let is_alone = self.alone > 0 || self.sessions.len() == 1;
        let count = if is_alone { 1 } else { self.due.len() };
        let is_due = |id: &SessionId| self.sessions.get_mut(id).is_some_and(|session| mem::take(&mut session.is_due));
        let due: Vec<_> = self.due.drain(..count).filter(is_due).collect();
        if due.is_empty() {
            return Access::Done;
        }
        let may_be_replaced = self.beacon.is_none() && self.store.table.is_some();
        let mut done = self.attempt(&due, is_alone, limit);
        if done.is_err() && may_be_replaced {
            // No session of this process was in the table since its last use.
            self.store.table = None;
            done = self.attempt(&due, is_alone, limit);
        }
        match done {
            Ok(Some(batch)) => {
                self.alone = self.alone.saturating_sub(1);
                self.put_back(&due[batch.served..]);
                self.conclude(batch);
            }
            Ok(None) => {
                self.put_back(&due);
                return Access::Stuck;
            }
            Err(_) if !is_alone => {
                self.alone = due.len();
                self.put_back(&due);
            }
            Err(error) => {
                self.alone = self.alone.saturating_sub(1);
                self.fail(due[0], error);
            }
        }
        Access::Done
    }

    /// Makes sessions due again, before all others.
    fn put_back(&mut self, due: &[SessionId]) {
        for id in due.iter().rev() {
            if let Some(session) = self.sessions.get_mut(id) {
                session.is_due = true;
                self.due.push_front(*id);
            }
        }
    }

    /// Serves these sessions in one transaction, and then those of this process that it concerns,
    /// unless the sessions are served alone.
    fn attempt(&mut self, due: &[SessionId], is_alone: bool, limit: Duration) -> Result<Option<Batch>, Error> {
        let is_first = self.beacon.is_none();
        let mut has_run = false;
        let done = self.transact(limit, |work, beacon, sessions| {
            // The transaction begins anew if the table had no room.
            if mem::replace(&mut has_run, true) {
                withdraw(work.directory(), due, sessions, beacon, is_first);
            }
            let batch = Batch::run(work, due, is_alone, beacon, sessions);
            // The sessions are not in the table, so their beacons must not count as those of users.
            if batch.is_err() {
                withdraw(work.directory(), due, sessions, beacon, is_first);
            }
            batch
        });
        // A transaction that found the table full is not repeated if others get the lock meanwhile.
        if done.is_err() || matches!(done, Ok(None)) && has_run {
            withdraw(&self.store.directory, due, &self.sessions, &mut self.beacon, is_first);
        }
        done
    }

    /// Runs a transaction if the lock is free within `limit`. The sessions of this process that it
    /// concerns become due.
    fn transact<T>(
        &mut self,
        limit: Duration,
        mut work: impl FnMut(
            &mut Work<'_>,
            &mut Option<Beacon>,
            &HashMap<SessionId, LocalSession>,
        ) -> Result<T, failure::Error>,
    ) -> Result<Option<T>, Error> {
        let Self { store, sessions, beacon, .. } = self;
        let sessions = &*sessions;
        let done = store.transact_within(Some(limit), sessions, |running| {
            let result = work(running, beacon, sessions)?;
            Ok((result, running.take_concerned()))
        })?;
        let Some((result, concerned)) = done else {
            self.stuck.note(&self.store.directory);
            return Ok(None);
        };
        self.stuck = Stuck::default();
        self.store.forgets = false;
        for (session, wake) in concerned {
            self.wake(session, wake);
        }
        Ok(Some(result))
    }

    fn wake(&mut self, id: SessionId, wake: Wake) {
        match wake {
            Wake::Now => self.call([id]),
            Wake::AtEndOfClaim => {
                if self.sessions.contains_key(&id) {
                    self.timers.set_by(id, Boottime::now() + CLAIM);
                }
            }
        }
    }

    /// Makes sessions due.
    fn call(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        for id in sessions {
            if let Some(session) = self.sessions.get_mut(&id).filter(|session| !session.is_due) {
                session.is_due = true;
                self.due.push_back(id);
            }
        }
    }

    /// Makes the sessions due that other processes have woken. If the ids cannot be relied on, any
    /// session may have been meant.
    fn hear(&mut self) {
        let Some(beacon) = &self.beacon else { return };
        let read = |message: &SessionId| {
            let later = beacon::complement(*message);
            let is_own = |id: &SessionId| self.sessions.contains_key(id);
            is_own(message).then_some((*message, Wake::Now)).or(is_own(&later).then_some((later, Wake::AtEndOfClaim)))
        };
        let messages = beacon.messages().ok().flatten();
        let woken: Option<Vec<_>> = messages.and_then(|messages| messages.iter().map(read).collect());
        let woken = woken.unwrap_or_else(|| {
            let asked = self.sessions.iter().filter(|(_, session)| !matches!(session.stage, Stage::Asking(_)));
            asked.map(|(id, _)| (*id, Wake::Now)).collect()
        });
        for (session, wake) in woken {
            self.wake(session, wake);
        }
    }
}

impl Sessions for EmbeddedSessions {
    fn acquire(&mut self, request: Request, AcquireOptions { from, returns, replicas }: AcquireOptions) {
        let id = self.add(request);
        if replicas != Replicas::default() {
            let words = Explained::new("the embedded store has no replicas", "leave out --replicas");
            return self.fail(id, Error::Refused(words));
        }
        if let (Some(Return { place: number, waited }), Some(session)) = (returns, self.sessions.get_mut(&id)) {
            session.place = Place { number, asked: StoreTime::of_machine() - waited };
        }
        if Boottime::now() < from {
            return self.timers.set(id, Some(from));
        }
        self.call([id]);
        if !self.store.serves {
            self.serve(Duration::ZERO);
        }
    }

    fn release(&mut self, id: SessionId, end: Option<End>, goes_on: bool) {
        self.events.retain(|(session, _)| *session != id);
        match self.sessions.get(&id).map(|session| &session.stage) {
            Some(Stage::Granted) => {
                let limit = if goes_on { AS_LONG_AS_IT_TAKES } else { RELEASE_LIMIT };
                return self.retire(id, Stage::Releasing { end, report_by: Some(Boottime::now() + limit) });
            }
            // A place in the queue disturbs nobody until it is released.
            Some(Stage::Waiting(_)) => {
                self.retire(id, Stage::LeavingQueue);
                if !self.store.serves {
                    self.serve(LEAVE_LIMIT);
                }
            }
            Some(Stage::Asking(_)) => drop(self.sessions.remove(&id)),
            Some(Stage::LeavingQueue | Stage::Releasing { .. }) | None => {}
        }
        self.events.push_back((id, Report::Released(Ok(Released::Done))));
    }

    fn give_up(&mut self, id: SessionId) {
        self.end_wait(id);
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        if let Some(descriptor) = self.store.lock_wait.descriptor() {
            // Other descriptors that are ready stay ready until the lock is free.
            return vec![(descriptor, PollFlags::IN)];
        }
        let own = self.kept().into_iter().chain(self.watches.descriptor());
        own.map(|descriptor| (descriptor, PollFlags::IN)).chain(self.shown.descriptors()).collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        let now = Boottime::now();
        let trouble = self.stuck.trouble_at().filter(|at| self.store.serves || now < *at);
        let limits = self.due.iter().filter_map(|id| match self.sessions.get(id)?.stage {
            Stage::Asking(_) => trouble,
            Stage::Releasing { report_by, .. } => report_by,
            Stage::Waiting(_) | Stage::Granted | Stage::LeavingQueue => None,
        });
        // A report may have used the lock for which a thread waited. While it waits, a look
        // would achieve nothing.
        let at_once = self.due.front().map(|_| now);
        let timers = at_once.into_iter().chain(self.timers.first());
        let timers = timers.filter(|_| self.store.lock_wait.descriptor().is_none());
        // A look may have served a session whose report was not handed out yet.
        let reports = self.events.front().map(|_| now);
        let waits = trouble.filter(|_| !self.store.serves);
        limits.chain(waits).chain(self.retry_at).chain(self.store.missed.again_at()).chain(timers).chain(reports).min()
    }

    fn is_noise(&self) -> bool {
        self.hears_noise()
    }

    fn advance(&mut self) {
        self.shown = Shown::default();
        self.store.missed.repeat(&self.store.directory, Boottime::now());
        if self.retry_at.take_if(|at| *at <= Boottime::now()).is_some() {
            let failed = mem::take(&mut self.failed);
            self.call(failed);
        }
        while let Some(id) = self.timers.take_due(Boottime::now()) {
            self.call([id]);
        }
        self.hear();
        let waiters = self.watches.take_bereft();
        self.call(waiters);
        self.serve(Duration::ZERO);
    }

    fn next_report(&mut self) -> Option<(SessionId, Report)> {
        self.events.pop_front()
    }

    /// Closes the beacon and ends the wait for the lock, too. The sessions that watch the beacon look
    /// for what blocks them now, and take a session that could not leave for dead. A lock that a
    /// thread got from now on would never be unlocked.
    fn close(&mut self) {
        self.sessions.clear();
        self.due.clear();
        self.timers = Timers::default();
        self.watches = Watches::default();
        self.beacon = None;
        self.shown = Shown::default();
        self.store.lock_wait = LockWait::default();
    }

    fn inspect(&mut self, resources: &[Resource]) -> Result<Vec<Obstruction>, Error> {
        self.look(resources)
    }

    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        self.store.read(resources)
    }

    fn history(&mut self, name: &Resource, entries: u32) -> Result<Vec<Remembered>, Error> {
        let found = self.transact(LEAVE_LIMIT, |work, _, _| work.table().past(work.time()?, name, entries))?;
        Ok(found.flatten().into_iter().collect())
    }

    fn place(&self, id: SessionId) -> Option<u64> {
        let session = self.sessions.get(&id).filter(|session| matches!(session.stage, Stage::Waiting(_)));
        session.map(|session| session.place.number)
    }

    fn trouble(&self, _: SessionId) -> Option<String> {
        self.stuck.is_trouble(Boottime::now()).then(|| Stuck::error(&self.store.directory).to_string())
    }

    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        self.beacon.iter().map(AsFd::as_fd).collect()
    }

    fn change_of_store(&self) -> Option<String> {
        let directory = &self.store.directory;
        let path = directory.path().display();
        directory.is_cut_off().then(|| format!("the files of '{path}' were removed, replaced or mounted over"))
    }
}
