//! Where the lock table lives: what a store does for the subcommands, and which store a URL means.
//!
//! A store is [`crate::lock::table::LockTable`] in a place that many processes reach. It adds what the model leaves out: who is alive,
//! waking those who wait, and the time.

use std::fmt;
use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;

use crate::lock::mode::Mode;
use crate::lock::op::{Refusal, ResourceListing};
use crate::lock::records::Session;
use crate::lock::request::{Request, SessionId};
use crate::lock::resource::Resource;
use crate::lock::span::Span;

pub mod embedded;
mod url;

pub use url::{DEFAULT_NAMESPACE, NAMESPACE_BYTES_MAX, open};

/// Why a store could not do what it was asked. The text is one line for the user.
#[derive(Debug)]
pub enum Error {
    /// The words that name the store make no sense.
    Usage(String),
    /// The store can't be reached or used.
    Unavailable(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text) | Self::Unavailable(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Error {}

/// How a request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In the queue.
    Waiting,
    /// Granted; the tokens, claim by claim.
    Granted(Vec<u64>),
    /// Neither in the queue nor held any more.
    Lost,
}

/// What became of a request that was made.
pub enum Acquired {
    /// It is granted or queued.
    Standing(Standing, Box<dyn Hold>),
    /// It would have had to wait. Who holds and who waits, resource by resource.
    Busy(Vec<ResourceListing>),
    /// It can never be granted.
    Refused(Refusal),
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

/// Where the lock table lives.
pub trait Store {
    /// The URL that leads another process to the same store, without a password.
    fn url(&self) -> String;

    /// The namespace of its resources.
    fn namespace(&self) -> &str;

    /// Makes a request.
    ///
    /// # Errors
    /// The store can't be used; nothing was granted or queued then. Likewise below.
    fn acquire(self: Box<Self>, request: Request) -> Result<Acquired, Error>;

    /// A session, if it holds or waits.
    fn session(&mut self, id: SessionId) -> Result<Option<Session>, Error>;

    /// Gives up the part of a held interval that lies outside `span`.
    fn shrink(&mut self, session: SessionId, resource: &Resource, span: Span) -> Result<Changed, Error>;

    /// Lowers the mode of what a session holds of a resource.
    fn downgrade(&mut self, session: SessionId, resource: &Resource, mode: Mode) -> Result<Changed, Error>;

    /// Who holds and who waits: for the resources named, or for all if none is. Changes nothing.
    fn inspect(&mut self, resources: &[Resource]) -> Result<Vec<ResourceListing>, Error>;

    /// Removes sessions that are expired or dead: those that hold or wait for the resources named, or all if none is.
    /// With `dry_run` it only tells which.
    fn cleanup(&mut self, resources: &[Resource], dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error>;

    /// Takes away what is held of a resource, and tells the holders. With `dry_run` it only tells whose grants these are.
    fn break_grants(&mut self, resource: &Resource, dry_run: bool) -> Result<Vec<(SessionId, Session)>, Error>;
}

/// A request at the store, from the moment that it is queued or granted.
pub trait Hold {
    /// Descriptors, each with the events that mean: call [`Hold::check`]. An error or a hang-up always does.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// How the request stands now.
    ///
    /// # Errors
    /// The store can't be used; likewise below.
    fn check(&mut self) -> Result<Standing, Error>;

    /// Gives back the grant or the place in the queue, whichever it is by now, and whether or not it was lost.
    fn release(&mut self) -> Result<(), Error>;

    /// Who holds and who waits for the resources of the request.
    fn inspect(&mut self) -> Result<Vec<ResourceListing>, Error>;
}
