//! Defines the interface of a store to a poll loop with one request, such as that of `rlock exec`.
//!
//! [`Sessions`](super::sessions::Sessions) is the interface to a loop with many requests.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::PollFlags;

use super::error::Error;
use rlock_model::deadlock::Reading;
use rlock_model::op::{Refusal, ResourceListing};
use rlock_model::past::{End, Ending, Remembered, Streak};
use rlock_model::request::Process;
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
pub trait Handle {
    /// The descriptors to poll, each with the events that call for a [`Handle::check`]. An error or
    /// a hang-up always calls for a check.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// The instant at which the store needs a [`Handle::check`] even if no descriptor is ready.
    /// Each check may move this instant.
    fn timeout(&self) -> Option<Boottime>;

    /// Returns the current state of the request. A check never waits, and it does the work that
    /// keeps the request alive.
    ///
    /// # Errors
    /// The store cannot be used, and a retry would not help; the handle makes no further attempt.
    /// As long as the grant has a deadline, a failure that may pass is reported as
    /// [trouble](Handle::trouble) and not as an error.
    fn check(&mut self) -> Result<Standing, Error>;

    /// Gives back the grant or leaves the queue, whichever applies. A release is allowed even if
    /// the grant was lost. `end` tells how the command ended that ran under the grant.
    ///
    /// # Errors
    /// The store cannot be used. An error of `inspect` means the same.
    fn release(&mut self, end: Option<End>) -> Result<Released, Error>;

    /// Gives back the grant of a command that goes on, without waiting for the store. `None` as
    /// long as the store has not taken the release. Until then the caller calls again, in place of
    /// [`check`](Self::check), when a descriptor is ready or the timeout has come.
    ///
    /// # Errors
    /// Those of [`release`](Self::release).
    fn release_early(&mut self, end: Option<End>) -> Result<Option<Released>, Error>;

    /// Leaves the queue because the wait took too long, and counts the request as busy. Returns
    /// [`Standing::Busy`], or the grant if the request was granted in the meantime.
    fn give_up(&mut self) -> Result<Standing, Error>;

    /// Lists the holders and waiters of the request's resources.
    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error>;

    /// Reads like [`Store::read`](super::Store::read).
    ///
    /// # Errors
    /// The store cannot be used.
    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error>;

    /// Tells like [`Store::history`](super::Store::history) what a resource remembers.
    ///
    /// # Errors
    /// The store cannot be used.
    fn history(&mut self, _name: &Resource, _entries: u32) -> Result<Vec<Remembered>, Error> {
        Ok(Vec::new())
    }

    /// The descriptors that show other processes that this process lives, in a store that uses such
    /// descriptors. A guardian keeps them open until the command's process tree is gone, even if
    /// rlock is killed.
    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// The number of the place in the queue, while the request waits.
    fn place(&self) -> Option<u64> {
        None
    }

    /// What has become of a waiting request at another server, told once.
    fn news(&mut self) -> Option<String> {
        None
    }

    /// What explains a loss: another server answers than the one that has granted the request, the
    /// server has lost its tables, or other files are in the place of the store. `None` if nothing
    /// of the kind is seen.
    fn change_of_store(&self) -> Option<String> {
        None
    }

    /// One line that says why the store has not answered for a while. `None` if the store answers.
    fn trouble(&self) -> Option<String>;
}
