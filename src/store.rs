//! Defines the operations that a store offers to the subcommands, and chooses a store by its URL.
//!
//! A store keeps a [`crate::lock::table::LockTable`] in a place that many processes reach. The
//! store adds what the model leaves out: it finds dead sessions, wakes waiters and tells the time.

use rustix::event::PollFlags;
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::lock::deadlock::Reading;
use crate::lock::mode::Mode;
use crate::lock::op::{Refusal, ResourceListing};
use crate::lock::past::{End, Ended, Ending, Remembered, Streak};
use crate::lock::records::Session;
use crate::lock::request::{Process, Request, SessionId};
use crate::lock::resource::Resource;
use crate::lock::span::Span;
use crate::system::clock::Boottime;
use crate::system::clock::StoreTime;
use crate::words::Explained;
use sessions::Sessions;

pub mod embedded;
pub mod facts;
pub(crate) mod identity;
pub(crate) mod percent;
pub mod redis;
pub mod sessions;
mod url;

pub use redis::Secrets;
pub use url::{DEFAULT_NAMESPACE, NAMESPACE_BYTES_MAX, are_same_servers, has_password, open};

/// Why a store could not do what the caller asked.
#[derive(Clone, Debug)]
pub enum Error {
    /// The URL, the namespace or a password makes no sense.
    Usage(Explained),
    /// The store refuses the operation for good, so waiting would not help.
    Refused(Explained),
    /// The store cannot be reached or used.
    Unavailable(Explained),
}

impl Error {
    /// The words about it.
    pub(crate) fn words(&self) -> &Explained {
        let (Self::Usage(words) | Self::Refused(words) | Self::Unavailable(words)) = self;
        words
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words().fmt(f)
    }
}

impl std::error::Error for Error {}

/// What a request asks of the store besides its claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    /// The copies of the grant that must exist before it counts.
    pub replicas: Replicas,
    /// The instant before which the store hears nothing of the request, so that many machines do
    /// not make theirs at once. The default is long past.
    pub from: Boottime,
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

/// What a store had to skip.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unusable {
    /// The resource whose state rlock did not write; none if it is not known which are missing.
    pub resource: Option<Resource>,
    /// What is wrong.
    pub words: Explained,
}

/// The places of other stores on this machine, as text for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// Somebody holds or waits there.
    pub used: Vec<String>,
    /// This user may not see whether anybody does.
    pub unreadable: Vec<String>,
}

/// The holders and waiters at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The instant of the inspection on the store's clock. All other instants in here are on that
    /// clock.
    pub now: StoreTime,
    /// The holders and waiters of each resource.
    pub resources: Vec<ResourceListing>,
    /// Their sessions, with their claims on these resources at least.
    pub sessions: Reading,
}

/// What becomes ready when a listing may have changed since its inspection.
#[derive(Debug)]
pub struct Notices {
    /// The descriptors to poll for reading. An error or a hang-up tells of a change as well.
    pub descriptors: Vec<OwnedFd>,
    /// Whether the descriptors tell of every change but the end of a kept hold. If not, somebody
    /// has to ask again now and then.
    pub are_complete: bool,
}

/// The result of a shrink or a downgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The store has made the change.
    Done,
    /// The store cannot make the change.
    Refused(Refusal),
    /// The session holds nothing any more.
    Lost,
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

/// A place that keeps the lock table.
pub trait Store {
    /// The URL that leads another process to the same store, without a password.
    fn url(&self) -> String;

    /// The namespace of the store's resources.
    fn namespace(&self) -> &str;

    /// Whether a grant is a lease, so that a request needs terms. In a store without leases, a
    /// grant lives as long as its process.
    fn leases(&self) -> bool;

    /// Makes a request, or begins to make it. The first [`Handle::check`] reports its state.
    ///
    /// # Errors
    /// The store cannot be used, and it has granted and queued nothing. The errors of the methods
    /// below mean the same.
    fn acquire(self: Box<Self>, request: Request, options: AcquireOptions) -> Result<Box<dyn Handle>, Error>;

    /// Prepares the store for many requests of this process.
    ///
    /// # Errors
    /// The store cannot be used.
    fn sessions(self: Box<Self>) -> Result<Box<dyn Sessions>, Error>;

    /// Returns a session if it is a holder or a waiter. `resources` names the resources on which
    /// the session may have claims, for a store that finds sessions only by their resources.
    fn session(&mut self, id: SessionId, resources: &[Resource]) -> Result<Option<Session>, Error>;

    /// Gives up the part of a held interval that lies outside `span`.
    fn shrink(&mut self, session: SessionId, resource: &Resource, span: Span) -> Result<Changed, Error>;

    /// Lowers the mode in which a session holds a resource.
    fn downgrade(&mut self, session: SessionId, resource: &Resource, mode: Mode) -> Result<Changed, Error>;

    /// Lists the holders and waiters of the named resources, or of all resources if none is named.
    /// Changes nothing.
    fn inspect(&mut self, resources: &[Resource]) -> Result<Inspection, Error>;

    /// Reads the live sessions that hold or wait for these resources, for the search for a
    /// deadlock. Of a long queue, the reading may contain only the beginning. `None` if the store
    /// can't tell at once.
    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error>;

    /// Like [`inspect`](Self::inspect), with what tells of the next change if the store can tell.
    fn inspect_and_watch(&mut self, resources: &[Resource]) -> Result<(Inspection, Option<Notices>), Error> {
        Ok((self.inspect(resources)?, None))
    }

    /// Removes expired and dead sessions that hold or wait for the named resources, or for any
    /// resource if none is named. With `dry_run`, the store only reports these sessions.
    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error>;

    /// Takes away all grants on a resource, or only that of one session, and tells the holders.
    /// With `dry_run`, the store only reports the holders.
    fn break_grants(
        &mut self,
        resource: &Resource,
        only: Option<SessionId>,
        dry_run: bool,
    ) -> Result<Vec<(SessionId, Session)>, Error>;

    /// Lets a kept hold that `acquire` made last for `by` from now, or for as long as its request
    /// asked. The hold never ends sooner. `resources` are all resources of the session.
    fn extend(&mut self, id: SessionId, resources: &[Resource], by: Option<Duration>) -> Result<Changed, Error>;

    /// Ends the grant of a session of another process, such as a kept hold.
    fn release(&mut self, id: SessionId, session: &Session, end: Option<End>) -> Result<Released, Error>;

    /// Returns what the named resources remember of ended sessions, or all resources if none is
    /// named, with at most so many of the last entries of each. Changes nothing.
    fn history(&mut self, resources: &[Resource], entries: u32) -> Result<Vec<Remembered>, Error>;

    /// What the resources of a listing remember, without their entries.
    ///
    /// # Errors
    /// The store cannot be used.
    fn pasts(&mut self, inspection: &Inspection) -> Result<Vec<Remembered>, Error> {
        let names: Vec<_> = inspection.resources.iter().map(|listing| listing.name.clone()).collect();
        // No names would mean all resources.
        if names.is_empty() { Ok(Vec::new()) } else { self.history(&names, 0) }
    }

    /// Returns the holders of the named resources, or of all resources if none is named, that have
    /// ended without a release and are still in the table, because nobody has used their resources
    /// since. Their ends are not in the history yet. Changes nothing.
    fn unrecorded(&mut self, resources: &[Resource]) -> Result<Vec<(Session, Ended)>, Error>;

    /// Removes what a resource remembers, unless a session uses the resource.
    fn forget(&mut self, resource: &Resource) -> Result<(), Error>;

    /// Gathers the facts about the store's place, for `rlock doctor`.
    fn examine(&mut self) -> Result<facts::Facts, Error>;

    /// The places of other stores on this machine, such as those of other users.
    fn elsewhere(&self) -> Elsewhere {
        Elsewhere::default()
    }

    /// Returns what the calls before this one could not read or change. They went on with the rest.
    fn take_unusable(&mut self) -> Vec<Unusable> {
        Vec::new()
    }
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

    /// Leaves the queue because the wait took too long, and counts the request as busy. Returns
    /// [`Standing::Busy`], or the grant if the request was granted in the meantime.
    fn give_up(&mut self) -> Result<Standing, Error>;

    /// Lists the holders and waiters of the request's resources.
    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error>;

    /// Reads like [`Store::read`].
    ///
    /// # Errors
    /// The store cannot be used.
    fn read(&mut self, resources: &[Resource]) -> Result<Option<Reading>, Error>;

    /// The descriptors that show other processes that this process lives, in a store that uses such
    /// descriptors. A guardian keeps them open until the command's process tree is gone, even if
    /// rlock is killed.
    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// One line that says why the store has not answered for a while. `None` if the store answers.
    fn trouble(&self) -> Option<String>;
}
