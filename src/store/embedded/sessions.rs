//! Many requests of one process in the embedded store: one open table, one beacon, and one
//! descriptor for each session of another process that blocks any of them.
//!
//! As in [`super::handle`], nothing waits for the lock on the state. A session for which there is
//! something to do is **due**. The due sessions are served in order, each in a transaction of its
//! own, so that an error concerns one session only. If the lock is not free, they stay due until
//! the gate has it.
//!
//! A session becomes due when it is new or released, when another process names it in the beacon,
//! when a session of another process that blocks it dies, and when a transaction of this process
//! grants it something or releases what may have blocked it. So an idle session costs nothing.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::PollFlags;

use self::watches::{Heard, Watches};
use super::beacon::{self, Beacon, Wake};
use super::handle::RELEASE_LIMIT;
use super::stuck::Stuck;
use super::transaction::{View, Work};
use super::{Embedded, Error, records};
use crate::clock::Boottime;
use crate::lock::index::Rank;
use crate::lock::lease::CLAIM;
use crate::lock::op::Reply;
use crate::lock::past::End;
use crate::lock::records::Records;
use crate::lock::request::{Place, Request, SessionId};
use crate::store::sessions::{Event, Sessions};
use crate::store::{Released, Standing};

mod watches;

#[cfg(test)]
mod tests;

/// The pause before a release that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The sessions of this process.
pub(super) struct EmbeddedSessions {
    store: Embedded,
    sessions: HashMap<SessionId, Session>,
    due: VecDeque<SessionId>,
    /// The beacon while the table contains any of the sessions. Without a session, nobody looks for
    /// the beacon, and it would have no name.
    beacon: Option<Beacon>,
    watches: Watches,
    /// The sessions that look again at an instant.
    timers: BTreeSet<(Boottime, SessionId)>,
    stuck: Stuck,
    /// The sessions whose release failed, and the instant of the next attempt.
    failed: Vec<SessionId>,
    retry_at: Option<Boottime>,
    events: VecDeque<(SessionId, Event)>,
}

struct Session {
    stage: Stage,
    is_due: bool,
    /// The rank at which the request waited, or [`Rank::HELD`] if it did not wait.
    queued: Rank,
    /// The instant at which the next session ends of itself, if this one waits.
    look_at: Option<Boottime>,
}

enum Stage {
    /// The table does not contain the request yet.
    Asking(Box<Request>),
    /// The request is queued at this place.
    Waiting { request: Box<Request>, place: Place },
    /// The request is granted.
    Granted,
    /// The place in the queue is to be given back. Nothing is left to report.
    LeavingQueue,
    /// The grant is to be given back. The result is reported at this instant at the latest; `None`
    /// if nothing is left to report.
    Releasing(Option<Boottime>),
}

/// Whether the lock was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Done,
    Stuck,
}

impl EmbeddedSessions {
    /// No sessions yet.
    pub(super) fn new(store: Embedded) -> Result<Self, Error> {
        let watches = Watches::new().map_err(|error| store.directory.unusable(&error))?;
        Ok(Self {
            store,
            sessions: HashMap::new(),
            due: VecDeque::new(),
            beacon: None,
            watches,
            timers: BTreeSet::new(),
            stuck: Stuck::default(),
            failed: Vec::new(),
            retry_at: None,
            events: VecDeque::new(),
        })
    }

    /// Serves the due sessions until the lock is not free.
    fn serve(&mut self) {
        while let Some(id) = self.due.pop_front() {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            session.is_due = false;
            if self.attempt(id) == Tried::Stuck {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.is_due = true;
                    self.due.push_front(id);
                }
                return self.give_up();
            }
        }
        if self.store.gate.descriptor().is_some() {
            // The sessions for which the gate waits are gone. When it has the lock, the lock must
            // be given back.
            let _ = self.transact(|_| Ok(()));
        }
    }

    fn attempt(&mut self, id: SessionId) -> Tried {
        let Some(session) = self.sessions.get(&id) else { return Tried::Done };
        match &session.stage {
            Stage::Asking(request) => {
                let request = Request::clone(request);
                self.ask(request)
            }
            Stage::Waiting { .. } | Stage::Granted => self.check(id),
            Stage::LeavingQueue | Stage::Releasing(_) => self.leave(id),
        }
    }

    fn ask(&mut self, request: Request) -> Tried {
        let id = request.session;
        let mut result = self.enter(&request);
        if result.is_err() && self.beacon.is_none() && self.store.table.take().is_some() {
            // Without a session in it, the table may have been replaced since its last use.
            result = self.enter(&request);
        }
        match result {
            Ok(None) => return Tried::Stuck,
            Ok(Some((view, queued))) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.queued = queued;
                }
                self.settle(id, view);
            }
            Err(error) => self.fail(id, error),
        }
        Tried::Done
    }

    fn enter(&mut self, request: &Request) -> Result<Option<(View, Rank)>, Error> {
        let id = request.session;
        let mut beacon = self.beacon.take();
        let is_first = beacon.is_none();
        let epoll = self.watches.epoll();
        let entered = self.transact(|work| {
            let view = work.enter(request.clone(), &mut beacon)?;
            if let Some(beacon) = beacon.as_ref().filter(|_| is_first) {
                epoll.listen(beacon)?;
            }
            let claims = work.records().session(id)?.map(|session| session.claims).unwrap_or_default();
            Ok((view, claims.iter().map(|record| record.rank).max().unwrap_or(Rank::HELD)))
        });
        if entered.is_err() {
            beacon::remove(&self.store.directory, id);
            beacon = beacon.filter(|_| !is_first);
        }
        self.beacon = beacon;
        entered
    }

    fn check(&mut self, id: SessionId) -> Tried {
        let waits = match (self.sessions.get(&id).map(|session| &session.stage), self.beacon.take()) {
            (Some(Stage::Waiting { request, place }), Some(beacon)) => Ok((request.clone(), *place, beacon)),
            (_, beacon) => Err(beacon),
        };
        let view = match waits {
            Ok((request, place, mut beacon)) => {
                let view = self.transact(|work| work.stand_or_return(&request, place, &mut beacon, false));
                self.beacon = Some(beacon);
                view
            }
            Err(beacon) => {
                self.beacon = beacon;
                self.transact(|work| work.stand(id))
            }
        };
        match view {
            Ok(None) => return Tried::Stuck,
            Ok(Some(view)) => self.settle(id, view),
            Err(error) => self.fail(id, error),
        }
        Tried::Done
    }

    fn leave(&mut self, id: SessionId) -> Tried {
        let Some(session) = self.sessions.get(&id) else { return Tried::Done };
        let (queued, end) = (session.queued, matches!(session.stage, Stage::Releasing(_)).then_some(End::KEPT));
        let left = self.transact(|work| work.leave(id, queued, end));
        let released = match left {
            Ok(None) => return Tried::Stuck,
            Ok(Some(Reply::Unknown)) => Ok(Released::Lost),
            Ok(Some(_)) => Ok(Released::Done),
            Err(error) if self.is_cut_off() => {
                self.cut_off(&error);
                return Tried::Done;
            }
            Err(error) => {
                self.retry(id, error);
                return Tried::Done;
            }
        };
        let Some(session) = self.sessions.remove(&id) else { return Tried::Done };
        beacon::remove(&self.store.directory, id);
        if let Stage::Releasing(Some(_)) = session.stage {
            self.events.push_back((id, Event::Released(released)));
        }
        self.put_out();
        Tried::Done
    }

    /// Reports a release that failed, and tries it again later: the process goes on, so nothing
    /// else would end the hold.
    fn retry(&mut self, id: SessionId, error: Error) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Stage::Releasing(limit @ Some(_)) = &mut session.stage {
            *limit = None;
            self.events.push_back((id, Event::Released(Err(error))));
        }
        if matches!(session.stage, Stage::LeavingQueue) {
            // A waiter without a beacon counts as dead, and so loses its place.
            beacon::remove(&self.store.directory, id);
            self.sessions.remove(&id);
        } else {
            self.failed.push(id);
            self.retry_at.get_or_insert(Boottime::now() + RETRY_AFTER);
        }
        let is_over = |session: &Session| matches!(session.stage, Stage::Asking(_) | Stage::Releasing(None));
        if self.sessions.values().all(is_over) {
            // The end of the beacon ends these sessions, as the end of the process would.
            self.sessions.retain(|_, session| matches!(session.stage, Stage::Asking(_)));
            self.failed.clear();
            self.retry_at = None;
            self.put_out();
        }
    }

    /// Runs a transaction if the lock is free at once. The sessions of this process that it
    /// concerns become due.
    fn transact<T>(
        &mut self,
        mut work: impl FnMut(&mut Work<'_>) -> Result<T, records::Error>,
    ) -> Result<Option<T>, Error> {
        let done = self.store.transact_within(Some(Duration::ZERO), &self.sessions, |running| {
            let result = work(running)?;
            Ok((result, running.take_concerned()))
        })?;
        let Some((result, concerned)) = done else {
            self.stuck.note(&self.store.directory);
            return Ok(None);
        };
        self.stuck = Stuck::default();
        for (session, wake) in concerned {
            self.wake(session, wake);
        }
        Ok(Some(result))
    }

    fn wake(&mut self, id: SessionId, wake: Wake) {
        match wake {
            Wake::Now => self.call([id]),
            Wake::AtEndOfClaim => {
                let end = Boottime::now() + CLAIM;
                let look_at = self.sessions.get(&id).map(|session| session.look_at.map_or(end, |at| at.min(end)));
                self.set_timer(id, look_at);
            }
        }
    }

    /// Sets the instant at which a session looks again.
    fn set_timer(&mut self, id: SessionId, look_at: Option<Boottime>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let earlier = std::mem::replace(&mut session.look_at, look_at);
        earlier.map(|at| self.timers.remove(&(at, id)));
        self.timers.extend(look_at.map(|at| (at, id)));
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

    /// Notes the state of a session, and reports it if it is new.
    fn settle(&mut self, id: SessionId, View { standing, watched, look_at, place }: View) {
        self.set_timer(id, look_at);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let stage = match (&standing, &session.stage) {
            (Standing::Waiting, Stage::Asking(request) | Stage::Waiting { request, .. }) => {
                Some(Stage::Waiting { request: request.clone(), place })
            }
            (Standing::Granted(_), _) => Some(Stage::Granted),
            // The store returns the state of a request that it contains.
            (Standing::Asking | Standing::Waiting, _) => return,
            (Standing::Busy { .. } | Standing::AlreadyDone | Standing::Refused(_) | Standing::Lost, _) => None,
        };
        if let Err(error) = self.watches.watch(id, watched) {
            session.stage = stage.unwrap_or(Stage::LeavingQueue);
            let error = self.store.directory.unusable(&error);
            return self.fail(id, error);
        }
        match stage {
            Some(stage) => {
                let is_news = std::mem::discriminant(&stage) != std::mem::discriminant(&session.stage);
                session.stage = stage;
                if !is_news {
                    return;
                }
            }
            None => {
                // No process looks for the beacon of a denied or lost request.
                beacon::remove(&self.store.directory, id);
                self.sessions.remove(&id);
                self.put_out();
            }
        }
        self.events.push_back((id, Event::Standing(Ok(standing))));
    }

    /// Reports an error of a session, and gives back what the session has.
    fn fail(&mut self, id: SessionId, error: Error) {
        if self.is_cut_off() {
            return self.cut_off(&error);
        }
        match self.sessions.get(&id).map(|session| &session.stage) {
            Some(Stage::Asking(_)) => drop(self.sessions.remove(&id)),
            Some(Stage::Granted) => self.retire(id, Stage::Releasing(None)),
            _ => self.retire(id, Stage::LeavingQueue),
        }
        self.events.push_back((id, Event::Standing(Err(error))));
    }

    /// Begins to give back what a session has.
    fn retire(&mut self, id: SessionId, stage: Stage) {
        self.watches.forget(id);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.stage = stage;
            self.call([id]);
        }
    }

    /// Drops the beacon when the table contains no session of this process any more.
    fn put_out(&mut self) {
        if self.sessions.values().all(|session| matches!(session.stage, Stage::Asking(_))) {
            self.beacon = None;
        }
    }

    /// Whether somebody has replaced the files that this process uses. Then other processes may
    /// hold the same resources through the new files.
    fn is_cut_off(&self) -> bool {
        self.store.directory.is_cut_off()
    }

    /// Ends all sessions after the files were replaced. The next request opens the new files.
    fn cut_off(&mut self, error: &Error) {
        for (id, session) in self.sessions.drain() {
            self.watches.forget(id);
            self.events.push_back(match session.stage {
                Stage::Asking(_) | Stage::Waiting { .. } => {
                    (id, Event::Standing(Err(Error::Unavailable(error.to_string()))))
                }
                Stage::Granted => (id, Event::Standing(Ok(Standing::Lost))),
                Stage::Releasing(Some(_)) => (id, Event::Released(Ok(Released::Lost))),
                Stage::Releasing(None) | Stage::LeavingQueue => continue,
            });
        }
        self.due.clear();
        self.failed.clear();
        self.retry_at = None;
        self.beacon = None;
        self.store.table = None;
    }

    /// Reports what has been due for too long while the lock is not free. A request that is not
    /// made yet is over. A release stays due.
    fn give_up(&mut self) {
        let now = Boottime::now();
        let is_trouble = self.stuck.is_trouble(now);
        for id in &self.due {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            let event = match &mut session.stage {
                Stage::Asking(_) if is_trouble => {
                    self.sessions.remove(id);
                    Event::Standing(Err(Stuck::error(&self.store.directory)))
                }
                Stage::Releasing(limit) if limit.is_some_and(|limit| limit <= now) => {
                    *limit = None;
                    Event::Released(Err(Stuck::error(&self.store.directory)))
                }
                _ => continue,
            };
            self.events.push_back((*id, event));
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
    fn acquire(&mut self, request: Request) {
        let id = request.session;
        let session =
            Session { stage: Stage::Asking(Box::new(request)), is_due: false, queued: Rank::HELD, look_at: None };
        self.sessions.insert(id, session);
        self.call([id]);
        self.serve();
    }

    fn release(&mut self, id: SessionId) {
        self.events.retain(|(session, _)| *session != id);
        match self.sessions.get(&id).map(|session| &session.stage) {
            Some(Stage::Granted) => {
                self.retire(id, Stage::Releasing(Some(Boottime::now() + RELEASE_LIMIT)));
                return self.serve();
            }
            // A place in the queue disturbs nobody until it is given back.
            Some(Stage::Waiting { .. }) => {
                self.retire(id, Stage::LeavingQueue);
                self.serve();
            }
            Some(Stage::Asking(_)) => drop(self.sessions.remove(&id)),
            Some(Stage::LeavingQueue | Stage::Releasing(_)) | None => {}
        }
        self.events.push_back((id, Event::Released(Ok(Released::Done))));
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let gate = self.store.gate.descriptor();
        std::iter::once(self.watches.descriptor()).chain(gate).map(|fd| (fd, PollFlags::IN)).collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        let trouble = self.stuck.trouble_at();
        let limits = self.due.iter().filter_map(|id| match self.sessions.get(id)?.stage {
            Stage::Asking(_) => trouble,
            Stage::Releasing(limit) => limit,
            Stage::Waiting { .. } | Stage::Granted | Stage::LeavingQueue => None,
        });
        // While the gate waits for the lock, a look would achieve nothing.
        let timers = self.timers.first().map(|(at, _)| *at).filter(|_| self.store.gate.descriptor().is_none());
        limits.chain(self.retry_at).chain(self.store.missed.again_at()).chain(timers).min()
    }

    fn advance(&mut self) {
        self.store.missed.repeat(&self.store.directory, Boottime::now());
        if self.retry_at.take_if(|at| *at <= Boottime::now()).is_some() {
            let failed = std::mem::take(&mut self.failed);
            self.call(failed);
        }
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= Boottime::now()) {
            self.timers.remove(&(at, id));
            self.set_timer(id, None);
            self.call([id]);
        }
        let Heard { beacon, waiters } = self.watches.hear();
        if beacon {
            self.hear();
        }
        self.call(waiters);
        self.serve();
    }

    fn next_event(&mut self) -> Option<(SessionId, Event)> {
        self.events.pop_front()
    }
}
