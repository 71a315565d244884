//! One of the sessions that share a connection: what is in flight for it, and when it needs
//! attention.

use std::time::Duration;

use super::super::client::{LeaseClient, State};
use super::super::release::{ToRelease, old_limit};
use super::super::retry::{FailureClass, Retry};
use super::Server;
use rlock_model::past::End;
use rlock_sys::clock::Boottime;

/// A session, and its turn on the connection.
pub(super) struct Member<S: Server> {
    pub(super) session: S::Session,
    pub(super) client: LeaseClient<S::Failure>,
    /// Whether the request waits where it conflicts.
    pub(super) waits: bool,
    /// Requests with lower numbers were made before.
    pub(super) number: u64,
    pub(super) turn: Turn,
    pub(super) releasing: Option<Releasing>,
    /// The error replies in a row.
    pub(super) trouble: Option<Box<Trouble<S::Failure>>>,
}

/// What the session waits for. At most one of its commands is in flight whose reply matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing was sent on this connection.
    Unsent,
    /// A command is in flight.
    InFlight { sent: Boottime },
    /// The server sends the command again in a while.
    Delayed,
    /// The last command was answered.
    Quiet,
    /// The last command failed, and the next one follows at an instant.
    Retry { at: Boottime },
}

/// The end of a session: nothing follows but the release.
pub(super) struct Releasing {
    pub(super) to_release: ToRelease,
    /// How the command ended that ran under the grant.
    pub(super) end: Option<End>,
    /// When to give up.
    pub(super) until: Boottime,
    /// Whether the server may have carried out a release unseen.
    pub(super) in_doubt: bool,
    /// Whether the result is awaited.
    pub(super) is_awaited: bool,
}

/// The error replies in a row to the commands of a session.
pub(super) struct Trouble<F> {
    pub(super) failures: u32,
    pub(super) failure: F,
}

impl<S: Server> Member<S> {
    /// Nothing was sent for the session yet.
    pub(super) fn new(session: S::Session, client: LeaseClient<S::Failure>, waits: bool, number: u64) -> Self {
        Self { session, client, waits, number, turn: Turn::Unsent, releasing: None, trouble: None }
    }

    /// Whether the session has nothing left to say until it is released.
    pub(super) fn is_over(&self) -> bool {
        self.releasing.is_none() && self.client.is_over()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self.turn, Turn::InFlight { .. })
    }

    /// How persistently to retry after a failure, and until when.
    pub(super) fn persistence(&self) -> (Retry, Option<Boottime>) {
        match &self.releasing {
            Some(releasing) => (Retry::WhileDown, Some(releasing.until)),
            None => self.client.persistence(),
        }
    }

    /// Whether the session makes no further attempt after a failure at `now`.
    pub(super) fn gives_up(&self, failure: FailureClass, now: Boottime) -> bool {
        let (retry, until) = self.persistence();
        !retry.covers(failure) || until.is_some_and(|until| until <= now)
    }

    /// When to give up. A command in flight may wait behind those of many sessions, so the server
    /// has to do nothing, too. `served` is the instant at which it last went on with a command.
    pub(super) fn until(&self, served: Option<Boottime>, connect_timeout: Duration) -> Option<Boottime> {
        let until = self.persistence().1?;
        let silent_at = served.and_then(|_| self.silent_at(served, connect_timeout));
        Some(silent_at.map_or(until, |at| until.max(at)))
    }

    /// When the server has been silent for too long about the command in flight. `heard` is the
    /// instant at which something last arrived on this connection. A server that answers other
    /// commands is busy and not silent.
    pub(super) fn silent_at(&self, heard: Option<Boottime>, connect_timeout: Duration) -> Option<Boottime> {
        let Turn::InFlight { sent } = self.turn else { return None };
        let is_asking = matches!(self.client.state(), State::Asking { .. });
        let timeout = match heard {
            Some(_) if is_asking || self.releasing.is_some() => old_limit(S::SILENCE, connect_timeout),
            None if self.releasing.is_some() => connect_timeout,
            _ => self.client.reply_timeout(connect_timeout),
        };
        Some(heard.map_or(sent, |heard| sent.max(heard)) + timeout)
    }

    /// When the session needs attention even if nothing arrives.
    pub(super) fn next(
        &self,
        heard: Option<Boottime>,
        served: Option<Boottime>,
        connect_timeout: Duration,
    ) -> Option<Boottime> {
        if self.is_over() {
            return None;
        }
        let next = match self.turn {
            Turn::Quiet if self.releasing.is_none() => self.client.due(),
            Turn::Unsent | Turn::Delayed | Turn::Quiet => None,
            Turn::InFlight { .. } => self.silent_at(heard, connect_timeout),
            Turn::Retry { at } => Some(at),
        };
        [next, self.until(served, connect_timeout)].into_iter().flatten().min()
    }

    /// There is no connection any more. `has_left` says whether a command of that instant may have
    /// left over it.
    pub(super) fn on_disconnect(&mut self, has_left: impl FnOnce(&S::Session, Boottime) -> bool) {
        let is_sent = if let Turn::InFlight { sent } = self.turn { has_left(&self.session, sent) } else { false };
        self.client.on_disconnect(is_sent);
        if let Some(releasing) = &mut self.releasing {
            releasing.in_doubt |= is_sent;
        }
        self.turn = Turn::Unsent;
    }
}
