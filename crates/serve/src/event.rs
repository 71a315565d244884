//! Defines the vocabulary between the server and the machine of a client: events go in, actions
//! come out.
//!
//! This module is plain data. [`super::client`] decides which actions follow an event;
//! `server` carries the actions out.

use std::sync::Arc;

use super::line::Line;
use super::listing::Listing;
use rlock_model::deadlock::Reading;
use rlock_model::op::Change;
use rlock_model::request::{Claim, SessionId};
use rlock_model::resource::Resource;
use rlock_store::sessions::Report;
use rlock_store::{self as store, Changed, Obstruction};

/// What happens to a client.
#[derive(Debug)]
pub enum Event {
    /// The client has sent a line. Only a client that
    /// [`takes_lines`](super::client::Client::takes_lines) gets it.
    Line(Line),
    /// The client has sent a line that is too long.
    LineTooLong,
    /// The client has sent descriptors.
    Descriptors,
    /// The connection has ended.
    End,
    /// The store reports about a session of the client.
    Report(SessionId, Report),
    /// The answer to [`Action::Ask`].
    Answer(Answer),
    /// Time has passed.
    Tick,
    /// The server ends soon: only clients that hold a lock may go on.
    Drain,
    /// The server ends now.
    Stop,
}

/// What the server has to do.
#[derive(Debug)]
pub enum Action {
    /// Send a line.
    Say(String),
    /// Send a listing.
    Show(Arc<Listing>),
    /// Make a request.
    Acquire {
        /// The id of the new session.
        session: SessionId,
        /// The session below which this one is nested.
        parent: Option<SessionId>,
        /// The resources that this session holds.
        held_above: Vec<Resource>,
        /// The claims, all of which are granted at once.
        claims: Vec<Claim>,
        /// Whether the request queues if it is busy.
        wait: bool,
    },
    /// Give back what a session holds or waits for. A report follows.
    Release(SessionId),
    /// Ask the store a question. [`Event::Answer`] follows as long as the client
    /// [`asks`](super::client::Client::asks).
    Ask(Question),
    /// Write a line to the log.
    Log(String),
    /// Write a line even without a log.
    Warn(String),
    /// Close the connection.
    Close,
}

/// A question that may take long.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// The holders and waiters of one resource, or of all resources that the client may see.
    Inspect(Option<Resource>),
    /// The holders and waiters of these resources.
    Obstructions(Vec<Resource>),
    /// The live sessions that hold or wait for these resources, for the search for a deadlock.
    Read(Vec<Resource>),
    /// Changes what a session holds.
    Change(SessionId, Change),
}

/// The answer to a [`Question`].
#[derive(Clone, Debug)]
pub enum Answer {
    /// The holders and waiters of the resources asked for.
    Listing(Arc<Listing>),
    /// What blocks a request, resource by resource.
    Obstructions(Arc<[Obstruction]>),
    /// The sessions that may be in a deadlock.
    Reading(Arc<Reading>),
    /// Whether the change was made.
    Changed(Changed),
    /// The store gave no answer.
    Failed(store::Error),
}
