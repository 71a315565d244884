//! What a request asks of a store, how it stands, and the [`Handle`] of a process that makes only
//! one, such as `rlock exec`, over the [`Sessions`] of the store.
//!
//! Only the release before the exit, the end of the wait and the looks block, each with a limit.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::PollFlags;

use super::error::Error;
use super::network;
use super::sessions::{Report, Sessions};
use rlock_model::deadlock::Reading;
use rlock_model::op::{Refusal, ResourceListing};
use rlock_model::past::{End, Ending, Remembered, Streak};
use rlock_model::request::{self, Process, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_sys::clock::Boottime;

/// What a request asks of the store besides its claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    /// The copies of the grant that must exist before it counts.
    pub replicas: Replicas,
    /// The instant before which the store hears nothing of the request, so that many machines do
    /// not make theirs at once. The default is long past.
    pub from: Boottime,
    /// The place in the queue to which the request returns, if it has had one before.
    pub returns: Option<Return>,
}

/// A place in the queue that an earlier request has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// The number of the place.
    pub place: u64,
    /// How long ago the first request was made.
    pub waited: Duration,
}

/// The copies of a grant at a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    /// The number of replicas that have the grant.
    pub count: u32,
    /// Whether the grant is on the disks of the server and of these replicas.
    pub on_disk: bool,
}

/// The state of a request, as the store reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The store has not answered yet, or has nothing new to tell of a request in the queue.
    Asking,
    /// The request is in the queue.
    Waiting,
    /// The request is granted.
    Granted(Grant),
    /// The request conflicts and was made without a wait.
    Busy {
        /// The sessions that hold each resource and wait for it.
        obstructions: Vec<Obstruction>,
        /// The skips of the job in a row, if this request counts as a skip.
        streak: Option<Streak>,
    },
    /// A newer request of the job has superseded this one.
    Superseded {
        /// The process that made the newer request.
        by: Box<Process>,
        /// The skips of the job in a row, if this request counts as a skip.
        streak: Option<Streak>,
    },
    /// A run has succeeded so lately that the request was not granted.
    AlreadyDone,
    /// The store can never grant the request.
    Refused(Refusal),
    /// The session is neither a holder nor a waiter any more.
    Lost,
}

impl Standing {
    /// Whether the request is neither granted nor queued, and never will be.
    pub fn is_over(&self) -> bool {
        !matches!(self, Self::Asking | Self::Waiting | Self::Granted(_))
    }
}

/// What a holder has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The tokens, claim by claim.
    pub tokens: Vec<u64>,
    /// The numbers of the slots, in the order of the claims on slots.
    pub slots: Vec<u32>,
    /// How the last hold of the first resource had ended at the grant, if that is known.
    pub last: Option<Ending>,
    /// The instant by which the command must be gone unless the holder renews the lease. Each
    /// renewal moves the deadline. `None` in a store where a grant lives as long as its process.
    pub deadline: Option<Boottime>,
    /// Whether the grant is revoked: its command has to end, and then the holder gives it back.
    pub is_revoked: bool,
}

/// The holders and waiters of one resource of a request: all of them, or enough to explain why the
/// store cannot grant the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstruction {
    /// The holders and waiters.
    pub listing: ResourceListing,
    /// The number of sessions that wait for the resource, including those that `listing` omits.
    pub waiting: u64,
}

impl From<ResourceListing> for Obstruction {
    /// Lists all holders and waiters.
    fn from(listing: ResourceListing) -> Self {
        let waiters: BTreeSet<_> = listing.waiters.iter().map(|waiter| waiter.session).collect();
        Self { waiting: waiters.len() as u64, listing }
    }
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The store has removed the grant, or the session had none.
    Done,
    /// The command has ended, and its hold stays without a process.
    Kept,
    /// The session had a grant, and the store had revoked the grant early.
    Lost,
}

/// A request in a store, from the moment at which it is made.
///
/// If a handle is dropped without a release, the store notices the end of the process or of the
/// lease.
pub struct Handle {
    sessions: Box<dyn Sessions>,
    id: SessionId,
    resources: Vec<Resource>,
    standing: Result<Standing, Error>,
    /// Whether the release has begun.
    is_leaving: bool,
    released: Option<Result<Released, Error>>,
    /// The server that has queued the request, and the one that has granted it.
    queued_by: Option<String>,
    granted_by: Option<String>,
}

impl Handle {
    /// Begins to make a request; the first [`check`](Self::check) reports its state.
    ///
    /// # Errors
    /// The request cannot be made in this store, and it has granted and queued nothing.
    pub fn new(sessions: Box<dyn Sessions>, request: Request, options: AcquireOptions) -> Result<Self, Error> {
        let mut handle = Self {
            sessions,
            id: request.session,
            resources: request::resources(&request.claims).into_iter().cloned().collect(),
            standing: Ok(Standing::Asking),
            is_leaving: false,
            released: None,
            queued_by: None,
            granted_by: None,
        };
        handle.sessions.acquire(request, options);
        handle.take_reports();
        handle.standing.as_ref().map_err(Clone::clone)?;
        Ok(handle)
    }

    /// The descriptors to poll, each with the events that call for a [`check`](Self::check). An
    /// error or a hang-up always calls for a check.
    pub fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.sessions.descriptors()
    }

    /// The instant at which the store needs a [`check`](Self::check) even if no descriptor is
    /// ready. Each check may move this instant.
    pub fn timeout(&self) -> Option<Boottime> {
        self.sessions.timeout()
    }

    /// Returns the current state of the request. A check never waits, and it does the work that
    /// keeps the request alive.
    ///
    /// # Errors
    /// The store cannot be used, and a retry would not help; the handle makes no further attempt.
    /// As long as the grant has a deadline, a failure that may pass is reported as
    /// [trouble](Self::trouble) and not as an error.
    pub fn check(&mut self) -> Result<Standing, Error> {
        if self.sessions.is_noise() {
            return Ok(Standing::Asking);
        }
        self.advance();
        self.standing.clone()
    }

    /// Gives back the grant or leaves the queue, whichever applies. A release is allowed even if
    /// the grant was lost. `end` tells how the command ended that ran under the grant.
    ///
    /// # Errors
    /// The store cannot be used. An error of a look means the same.
    pub fn release(&mut self, end: Option<End>) -> Result<Released, Error> {
        self.leave(end, false);
        loop {
            if let Some(released) = self.take_released() {
                return released;
            }
            self.wait();
        }
    }

    /// Gives back the grant of a command that goes on, without waiting for the store. `None` as
    /// long as the store has not taken the release. Until then the caller calls again, in place of
    /// [`check`](Self::check), when a descriptor is ready or the timeout has come.
    ///
    /// # Errors
    /// Those of [`release`](Self::release).
    pub fn release_early(&mut self, end: Option<End>) -> Result<Option<Released>, Error> {
        self.leave(end, true);
        self.take_released().transpose()
    }

    /// Leaves the queue because the wait took too long, and counts the request as busy. Returns
    /// [`Standing::Busy`], or the grant if the request was granted in the meantime.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub fn give_up(&mut self) -> Result<Standing, Error> {
        self.sessions.give_up(self.id);
        loop {
            self.advance();
            match self.standing.clone()? {
                Standing::Asking | Standing::Waiting => self.wait(),
                standing => return Ok(standing),
            }
        }
    }

    /// Lists the holders and waiters of the request's resources.
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn inspect(&mut self) -> Result<Vec<Obstruction>, Error> {
        self.sessions.inspect(&self.resources)
    }

    /// Reads like [`Store::read`](super::Store::read).
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error> {
        self.sessions.read(resources)
    }

    /// Tells like [`Store::history`](super::Store::history) what a resource remembers.
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn history(&mut self, name: &Resource, entries: u32) -> Result<Vec<Remembered>, Error> {
        self.sessions.history(name, entries)
    }

    /// The descriptors that a guardian keeps open, see [`Sessions::kept`].
    pub fn kept(&self) -> Vec<BorrowedFd<'_>> {
        self.sessions.kept()
    }

    /// The number of the place in the queue, while the request waits.
    pub fn place(&self) -> Option<u64> {
        self.sessions.place(self.id)
    }

    /// What has become of a waiting request at another server, told once.
    pub fn news(&mut self) -> Option<String> {
        if !self.sessions.has_moved(self.id) {
            return None;
        }
        let answers = self.sessions.server()?;
        let queued = self.queued_by.replace(answers.clone()).filter(|queued| *queued != answers)?;
        Some(format!("'{answers}' answers now in place of '{queued}', and did not know the request"))
    }

    /// What explains a loss: another server answers than the one that has granted the request, the
    /// server has lost its tables, or other files are in the place of the store. `None` if nothing
    /// of the kind is seen.
    pub fn change_of_store(&self) -> Option<String> {
        self.sessions.change_of_store().or_else(|| {
            let (granted, answers) = (self.granted_by.as_ref()?, self.sessions.server()?);
            (*granted != answers).then(|| format!("'{granted}' has granted it, and '{answers}' answers now"))
        })
    }

    /// One line that says why the store has not answered for a while. `None` if the store answers.
    pub fn trouble(&self) -> Option<String> {
        self.sessions.trouble(self.id)
    }

    fn leave(&mut self, end: Option<End>, goes_on: bool) {
        if !self.is_leaving {
            self.is_leaving = true;
            self.sessions.release(self.id, end, goes_on);
        }
    }

    /// The result of the release, if the store has taken it.
    fn take_released(&mut self) -> Option<Result<Released, Error>> {
        self.advance();
        let released = self.released.take()?;
        // The command may go on.
        self.sessions.close();
        Some(released)
    }

    fn advance(&mut self) {
        self.sessions.advance();
        self.take_reports();
    }

    fn take_reports(&mut self) {
        while let Some((_, report)) = self.sessions.next_report() {
            match report {
                Report::Standing(Ok(standing)) => {
                    let known = match standing {
                        Standing::Waiting => Some(&mut self.queued_by),
                        Standing::Granted(_) => Some(&mut self.granted_by),
                        _ => None,
                    };
                    if let Some(known @ None) = known {
                        *known = self.sessions.server();
                    }
                    self.standing = Ok(standing);
                }
                Report::Standing(Err(error)) => self.standing = Err(self.sessions.explain(self.id, error)),
                Report::Released(released) => self.released = Some(released),
            }
        }
    }

    fn wait(&self) {
        network::wait(&self.sessions.descriptors(), self.sessions.timeout());
    }
}
