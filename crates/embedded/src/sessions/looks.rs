//! The looks of a process with one request, such as `rlock exec`, at the sessions in its way, and
//! the end of its wait. Both wait for the lock on the state, with a limit.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::beacon::{Names, Watched};
use super::super::directory::Directory;
use super::super::lock_wait::Stuck;
use super::super::snapshot::{Interest, Seen};
use super::super::transaction::View;
use super::EmbeddedSessions;
use super::local_session::{LocalSession, Stage};
use rlock_model::op::{Op, Reply};
use rlock_model::request::{Request, SessionId};
use rlock_model::resource::Resource;
use rlock_store::engine::Engine;
use rlock_store::error::Error;
use rlock_store::handle::{Obstruction, Standing};
use rlock_store::sessions::{Report, Sessions};
use rlock_sys::clock::Boottime;

/// Maximum wait for the lock to count a request as busy, and for a report on the sessions that
/// block it. It ends before the trouble begins, so that there is time to tell of the trouble.
const REPORT_LIMIT: Duration = Duration::from_secs(3);

/// The holders that a line on the terminal may name. The line must follow their changes even if
/// other sessions block the request.
#[derive(Default)]
pub(super) struct Shown {
    holders: Vec<Watched>,
    /// The names of the beacons of these holders.
    names: Option<Names>,
}

impl Shown {
    fn new(holders: Vec<Watched>) -> Self {
        Self { names: Names::watch(&holders), holders }
    }

    /// What tells of the end of a shown holder, and of a change of its name.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let holders = self.holders.iter().map(|(_, pipe)| (pipe.as_fd(), PollFlags::empty()));
        holders.chain(self.names.iter().map(|names| (names.as_fd(), PollFlags::IN)))
    }

    /// Whether a shown holder has been released.
    fn is_any_gone(&self, directory: &Directory) -> bool {
        self.names.as_ref().is_some_and(|names| names.is_any_gone(directory))
    }
}

impl EmbeddedSessions {
    /// Whether nothing has happened but changes of other sessions of the processes of the shown
    /// holders.
    pub(super) fn hears_noise(&self) -> bool {
        let Some(names) = &self.shown.names else { return false };
        let has_changed = !self.events.is_empty() || !names.take_changes();
        if has_changed || self.shown.is_any_gone(&self.store.directory) {
            return false;
        }
        let descriptors = self.descriptors();
        let polled = descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags));
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_quiet = poll(&mut polled.collect::<Vec<_>>(), Some(&at_once)).is_ok_and(|ready| ready == 0);
        is_quiet && self.timeout().is_none_or(|at| Boottime::now() < at)
    }

    /// Lists the holders and waiters of these resources, and shows the holders to a request that
    /// waits for them.
    pub(super) fn look(&mut self, resources: &[Resource]) -> Result<Vec<Obstruction>, Error> {
        // A thread waits for the lock on behalf of the due sessions, which go before a report.
        if !self.serve(REPORT_LIMIT) {
            return Err(Stuck::error(&self.store.directory));
        }
        let mut seen = self.listings(resources)?;
        if !seen.dead.is_empty() {
            // The next holder may not have noticed the death yet, and nothing wakes this process
            // when it does.
            let dead = mem::take(&mut seen.dead);
            self.transact(REPORT_LIMIT, |work, _, _| work.remove_gone(&dead))?;
            seen = self.listings(resources)?;
        }
        let waits =
            |(id, session): (&SessionId, &LocalSession)| matches!(session.stage, Stage::Waiting(_)).then_some(*id);
        self.shown = Shown::default();
        if let Some(waiter) = self.sessions.iter().find_map(waits) {
            self.shown = Shown::new(seen.watched);
            // A holder may have released between the listing and the watch.
            if self.shown.is_any_gone(&self.store.directory) {
                self.call([waiter]);
            }
        }
        Ok(seen.listings.into_iter().map(Obstruction::from).collect())
    }

    fn listings(&mut self, resources: &[Resource]) -> Result<Seen, Error> {
        self.store.listings(Some(REPORT_LIMIT), resources, Interest::Holders)?.ok_or_else(|| {
            self.stuck.note(&self.store.directory);
            Stuck::error(&self.store.directory)
        })
    }

    /// Leaves the queue because the wait took too long, and counts the request as busy. The count
    /// decides on exit codes, so it is worth as long a wait for the lock as the report after it.
    pub(super) fn end_wait(&mut self, id: SessionId) {
        match self.sessions.get_mut(&id).map(|session| &mut session.stage) {
            Some(Stage::Waiting(_)) => {
                if let Err(error) = self.give_up_place(id) {
                    return self.events.push_back((id, Report::Standing(Err(error))));
                }
            }
            Some(Stage::Asking(request)) => {
                request.wait = false;
                self.serve(REPORT_LIMIT);
            }
            _ => {}
        }
        let session = self.sessions.get(&id);
        if session.is_some_and(|session| matches!(session.stage, Stage::Asking(_) | Stage::Waiting(_))) {
            self.close();
            let busy = Standing::Busy { obstructions: Vec::new(), streak: None };
            self.events.push_back((id, Report::Standing(Ok(busy))));
        }
    }

    fn give_up_place(&mut self, id: SessionId) -> Result<(), Error> {
        let view = self.transact(REPORT_LIMIT, |work, beacon, sessions| {
            let (Some(LocalSession { stage: Stage::Waiting(request), place, .. }), Some(beacon)) =
                (sessions.get(&id), beacon)
            else {
                return work.stand(id);
            };
            match work.apply(Op::GiveUp(id))? {
                Reply::Busy { streak, .. } => Ok(View::settled(Standing::Busy { obstructions: Vec::new(), streak })),
                // A waiter whose job is done has left the queue already, and asks again to hear so.
                _ => {
                    let again = Request { wait: false, ..Request::clone(request) };
                    work.stand_or_return(&again, *place, beacon, sessions.len() == 1)
                }
            }
        })?;
        view.into_iter().for_each(|view| self.settle(id, view));
        self.put_out();
        Ok(())
    }
}
