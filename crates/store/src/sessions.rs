//! Defines the interface of a store to a poll loop that makes many requests for one process, such
//! as that of `rlock serve`.
//!
//! [`Handle`](super::Handle) is the interface to a loop with one request, and
//! [`Single`](super::single::Single) makes the one of the other.

use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;

use super::error::Error;
use super::handle::{Released, Standing};
use rlock_model::request::{Request, SessionId};
use rlock_sys::clock::Boottime;

/// The requests of one process in a store. Nothing here waits.
pub trait Sessions {
    /// Begins to make a request. [`Report::Standing`] reports its state, and every change of it.
    fn acquire(&mut self, request: Request);

    /// Begins to release a grant, whose hold had no command, or a place in the queue.
    /// [`Report::Released`] reports the result, and nothing else is reported about the session from
    /// now on. A session that is not known, for example because it was reported as lost, counts as
    /// released.
    fn release(&mut self, session: SessionId);

    /// The descriptors to poll, each with the events that call for [`advance`](Self::advance). An
    /// error or a hang-up always calls for it.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// The instant at which [`advance`](Self::advance) is due even if no descriptor is ready.
    fn timeout(&self) -> Option<Boottime>;

    /// Does what can be done without waiting, and what keeps the sessions alive.
    fn advance(&mut self);

    /// Hands out the next report.
    fn next_report(&mut self) -> Option<(SessionId, Report)>;
}

/// What the store reports about a session.
#[derive(Debug)]
pub enum Report {
    /// The state of the request has changed, or the deadline of its grant. A request that is busy,
    /// refused, lost or failed is over: nothing is held, and the caller begins the release, since
    /// the store may keep something of it. [`Standing::Asking`] is not reported.
    Standing(Result<Standing, Error>),
    /// The release that was begun is over. After an error, the store holds the grant until its
    /// lease ends or this process ends.
    Released(Result<Released, Error>),
}
