//! Notes what has become of the sessions, and reports it.

use std::mem;
use std::time::Duration;

use super::super::beacon;
use super::super::lock_wait::Stuck;
use super::super::transaction::View;
use super::EmbeddedSessions;
use super::batch::{Batch, Outcome};
use super::local_session::{LocalSession, Stage};
use rlock_model::op::Reply;
use rlock_model::past::End;
use rlock_model::request::SessionId;
use rlock_store::error::Error;
use rlock_store::handle::{Released, Standing};
use rlock_store::sessions::Report;
use rlock_sys::clock::Boottime;

/// The pause before a release that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl EmbeddedSessions {
    /// Notes and reports what a transaction did.
    pub(super) fn conclude(&mut self, Batch { outcomes, concerned, .. }: Batch) {
        for (id, outcome) in outcomes {
            match outcome {
                Outcome::Stands(view) => self.settle(id, view),
                Outcome::Left(reply) => {
                    let released = self.released(id, &reply);
                    if let Some(LocalSession { stage: Stage::Releasing { report_by: Some(_), .. }, .. }) =
                        self.sessions.remove(&id)
                    {
                        self.events.push_back((id, Report::Released(Ok(released))));
                    }
                }
            }
        }
        self.put_out();
        for (id, wake) in concerned {
            self.wake(id, wake);
        }
    }

    /// The result of a release, after which nobody looks for the beacon of the session.
    fn released(&self, id: SessionId, reply: &Reply) -> Released {
        beacon::remove(&self.store.directory, id);
        match reply {
            Reply::Unknown => Released::Lost,
            Reply::KeptUntil(_) => Released::Kept,
            _ => Released::Done,
        }
    }

    /// Reports a release that failed, and tries it again later: the process goes on, so nothing
    /// else would end the hold.
    fn retry(&mut self, id: SessionId, error: Error) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        // The disk may have no room for the history.
        if matches!(session.stage, Stage::Releasing { .. }) && !mem::replace(&mut self.store.forgets, true) {
            return self.put_back(&[id]);
        }
        if let Stage::Releasing { report_by: limit @ Some(_), .. } = &mut session.stage {
            *limit = None;
            self.events.push_back((id, Report::Released(Err(error))));
        }
        if matches!(session.stage, Stage::LeavingQueue) {
            // A waiter without a beacon counts as dead, and so loses its place.
            beacon::remove(&self.store.directory, id);
            self.sessions.remove(&id);
        } else {
            self.failed.push(id);
            self.retry_at.get_or_insert(Boottime::now() + RETRY_AFTER);
        }
        let is_over = |session: &LocalSession| {
            matches!(session.stage, Stage::Asking(_) | Stage::Releasing { report_by: None, .. })
        };
        if self.sessions.values().all(is_over) {
            // The end of the beacon ends these sessions, as the end of the process would.
            self.sessions.retain(|_, session| matches!(session.stage, Stage::Asking(_)));
            self.failed.clear();
            self.retry_at = None;
            self.put_out();
        }
    }

    /// Notes the state of a session, and reports it if it is new.
    pub(super) fn settle(&mut self, id: SessionId, View { standing, watched, look_at, place }: View) {
        self.timers.set(id, look_at);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (stage, is_news) = match (&standing, mem::replace(&mut session.stage, Stage::LeavingQueue)) {
            (Standing::Waiting, Stage::Asking(request)) => (Some(Stage::Waiting(request)), true),
            (Standing::Waiting, Stage::Waiting(request)) => (Some(Stage::Waiting(request)), false),
            (Standing::Granted(grant), Stage::Granted) => (Some(Stage::Granted), grant.is_revoked),
            (Standing::Granted(_), stage) => {
                if let Stage::Asking(request) | Stage::Waiting(request) = stage
                    && request.job.keep_for.is_some()
                {
                    // The kept hold lasts without this process.
                    beacon::remove(&self.store.directory, id);
                }
                (Some(Stage::Granted), true)
            }
            // The store returns the state of a request that it contains.
            (Standing::Asking | Standing::Waiting, stage) => {
                session.stage = stage;
                return;
            }
            // The request is over.
            _ => (None, true),
        };
        if standing == Standing::Waiting {
            session.place = place;
        }
        let is_over = stage.is_none();
        session.stage = stage.unwrap_or(Stage::LeavingQueue);
        if let Err(error) = self.watches.watch(id, watched) {
            let error = self.store.directory.unusable(&error);
            return self.fail(id, error);
        }
        if is_over {
            // No process looks for the beacon of a denied or lost request.
            beacon::remove(&self.store.directory, id);
            self.sessions.remove(&id);
        }
        if is_news {
            self.events.push_back((id, Report::Standing(Ok(standing))));
        }
    }

    /// Reports an error of a session, and releases what the session has.
    pub(super) fn fail(&mut self, id: SessionId, error: Error) {
        if self.is_cut_off() {
            return self.cut_off(&error);
        }
        match self.sessions.get(&id).map(|session| &session.stage) {
            Some(Stage::Asking(_)) => drop(self.sessions.remove(&id)),
            // The command may still run, so the hold lasts until its release.
            Some(Stage::Granted) if !self.store.serves => {}
            Some(Stage::Granted) => self.retire(id, Stage::Releasing { end: Some(End::KEPT), report_by: None }),
            Some(Stage::LeavingQueue | Stage::Releasing { .. }) => return self.retry(id, error),
            _ => self.retire(id, Stage::LeavingQueue),
        }
        self.events.push_back((id, Report::Standing(Err(error))));
    }

    /// Begins to release what a session has.
    pub(super) fn retire(&mut self, id: SessionId, stage: Stage) {
        self.watches.forget(id);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.stage = stage;
            self.call([id]);
        }
    }

    /// Drops the beacon when the table contains no session of this process any more.
    pub(super) fn put_out(&mut self) {
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
                Stage::Asking(_) | Stage::Waiting(_) => {
                    (id, Report::Standing(Err(Error::Unavailable(error.words().clone()))))
                }
                Stage::Granted => (id, Report::Standing(Ok(Standing::Lost))),
                Stage::Releasing { report_by: Some(_), .. } => (id, Report::Released(Ok(Released::Lost))),
                Stage::Releasing { report_by: None, .. } | Stage::LeavingQueue => continue,
            });
        }
        self.due.clear();
        self.failed.clear();
        self.retry_at = None;
        self.beacon = None;
        self.store.table = None;
    }

    /// Reports what has been due for too long while the lock is not free. The request of a client
    /// that is not made yet is over, and that of `rlock exec` waits. A release stays due.
    pub(super) fn report_overdue(&mut self) {
        let now = Boottime::now();
        let is_trouble = self.stuck.is_trouble(now);
        for id in &self.due {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            let event = match &mut session.stage {
                Stage::Asking(_) if is_trouble && !self.store.serves => Report::Standing(Ok(Standing::Waiting)),
                Stage::Asking(_) if is_trouble => {
                    self.sessions.remove(id);
                    Report::Standing(Err(Stuck::error(&self.store.directory)))
                }
                Stage::Releasing { report_by, .. } if report_by.is_some_and(|limit| limit <= now) => {
                    *report_by = None;
                    Report::Released(Err(Stuck::error(&self.store.directory)))
                }
                _ => continue,
            };
            self.events.push_back((*id, event));
        }
    }
}
