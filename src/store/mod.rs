//! Where the lock table lives: what a store does for the subcommands, and which store a URL means.
//!
//! A store is [`crate::lock::table::LockTable`] in a place that many processes reach. It adds what
//! the model leaves out: who is alive, waking those who wait, and the time.

use rustix::event::PollFlags;
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::BorrowedFd;

use crate::clock::Boottime;
use crate::lock::mode::Mode;
use crate::lock::op::{Refusal, ResourceListing};
use crate::lock::records::Session;
use crate::lock::request::{Micros, Request, SessionId};
use crate::lock::resource::Resource;
use crate::lock::span::Span;

pub mod embedded;
mod percent;
pub mod redis;
mod url;

pub use redis::Secrets;
pub use url::{DEFAULT_NAMESPACE, NAMESPACE_BYTES_MAX, has_password, open};

/// Why a store could not do what it was asked. The text is one line for the user.
#[derive(Debug)]
pub enum Error {
    /// The words that name the store make no sense.
    Usage(String),
    /// The store will never do this, and waiting would not help.
    Refused(String),
    /// The store can't be reached or used.
    Unavailable(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text) | Self::Refused(text) | Self::Unavailable(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Error {}

/// What a request asks of the store beside its claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    /// How many replicas must know of the grant before it counts.
    pub replicas: u32,
}

/// How a request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The store has not answered yet.
    Asking,
    /// In the queue.
    Waiting,
    /// Granted.
    Granted(Grant),
    /// It would have had to wait and was not to. Who holds and who waits, resource by resource.
    Busy(Vec<Obstruction>),
    /// It can never be granted.
    Refused(Refusal),
    /// Neither in the queue nor held any more.
    Lost,
}

/// What a holder has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The tokens, claim by claim.
    pub tokens: Vec<u64>,
    /// The instant by which the command must be gone unless the lease is renewed; each renewal
    /// moves it. `None` where a hold lives as long as its process.
    pub deadline: Option<Boottime>,
}

/// Who holds and who waits for a resource of a request: all of them, or as many as tell why it
/// can't be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstruction {
    /// They.
    pub listing: ResourceListing,
    /// How many sessions wait for it, also those that are not listed.
    pub waiting: u64,
}

impl From<ResourceListing> for Obstruction {
    /// All who hold or wait.
    fn from(listing: ResourceListing) -> Self {
        let waiters: BTreeSet<_> = listing.waiters.iter().map(|waiter| waiter.session).collect();
        Self { waiting: waiters.len() as u64, listing }
    }
}

/// Who holds and who waits at some instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// That instant on the store's clock, by which all others in here are to be judged.
    pub now: Micros,
    /// Resource by resource.
    pub resources: Vec<ResourceListing>,
}

/// What became of a change to a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is done.
    Done,
    /// It can't be.
    Refused(Refusal),
    /// The session holds nothing any more.
    Lost,
}

/// What a release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It is given back, or there was nothing to give back.
    Done,
    /// There was a grant, and the store had taken it away before its time.
    Lost,
}

/// Where the lock table lives.
pub trait Store {
    /// The URL that leads another process to the same store, without a password.
    fn url(&self) -> String;

    /// The namespace of its resources.
    fn namespace(&self) -> &str;

    /// Whether a grant is a lease, so that a request needs terms. Elsewhere a hold lives as long as
    /// its process.
    fn leases(&self) -> bool;

    /// Makes a request, or begins to: the first [`Handle::check`] says how it stands.
    ///
    /// # Errors
    /// The store can't be used; nothing was granted or queued then. Likewise below.
    fn acquire(self: Box<Self>, request: Request, options: AcquireOptions) -> Result<Box<dyn Handle>, Error>;

    /// A session, if it holds or waits. `resources` are where it may, for a store that finds
    /// sessions by their resources only.
    fn session(&mut self, id: SessionId, resources: &[Resource]) -> Result<Option<Session>, Error>;

    /// Gives up the part of a held interval that lies outside `span`.
    fn shrink(&mut self, session: SessionId, resource: &Resource, span: Span) -> Result<Changed, Error>;

    /// Lowers the mode of what a session holds of a resource.
    fn downgrade(&mut self, session: SessionId, resource: &Resource, mode: Mode) -> Result<Changed, Error>;

    /// Who holds and who waits: for the resources named, or for all if none is. Changes nothing.
    fn inspect(&mut self, resources: &[Resource]) -> Result<Inspection, Error>;

    /// Removes sessions that are expired or dead: those that hold or wait for the resources named,
    /// or all if none is. With `dry_run` it only tells which.
    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error>;

    /// Takes away what is held of a resource, and tells the holders. With `dry_run` it only tells
    /// whose grants these are.
    fn break_grants(&mut self, resource: &Resource, dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error>;

    /// A line for each resource that the calls before could not look at or change because its state
    /// is none of rlock's. They went on with the other resources.
    fn take_unusable(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// A request at the store, from the moment that it was made.
///
/// One that is dropped without a release is left to the store, which notices the end of the process
/// or of the lease.
pub trait Handle {
    /// Descriptors, each with the events that mean: call [`Handle::check`]. An error or a hang-up
    /// always does.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// The instant at which [`Handle::check`] is wanted even if no descriptor is ready. Each check
    /// moves it on.
    fn timeout(&self) -> Option<Boottime>;

    /// How the request stands now. It never waits, and does on the way what keeps the request
    /// alive.
    ///
    /// # Errors
    /// The store can't be used, and trying again won't help; it is not asked again then. What may
    /// pass is no error but [trouble](Handle::trouble), as long as the grant has a deadline.
    fn check(&mut self) -> Result<Standing, Error>;

    /// Gives back the grant or the place in the queue, whichever it is by now, and whether or not
    /// it was lost.
    ///
    /// # Errors
    /// The store can't be used; likewise below.
    fn release(&mut self) -> Result<Released, Error>;

    /// Who holds and who waits for the resources of the request.
    fn inspect(&mut self) -> Result<Vec<Obstruction>, Error>;

    /// Descriptors that tell other processes that this one lives, where the store goes by that. A
    /// guardian keeps them open until the command's process tree is gone, even if rlock is killed.
    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// One line: why the store has not answered for a while. `None` if it answers.
    fn trouble(&self) -> Option<String>;
}
