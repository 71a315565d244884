//! One of the sessions that share a connection: what is in flight for it, and when it needs
//! attention.

use super::super::piecemeal::Piecemeal;
use super::super::requester::Requester;
use crate::failure::{ErrorKind, Failure};
use crate::target::Kind;
use rlock_model::past::End;
use rlock_model::request::{Job, Request};
use rlock_store::lease_client::{Retry, State, ToRelease, old_limit};
use rlock_sys::clock::Boottime;

/// A session, and its turn on the connection.
pub(super) struct Member {
    pub(super) session: Requester,
    /// The request, as long as the session may have to make it again.
    pub(super) request: Option<Box<Request>>,
    /// What the release has to know of the job.
    pub(super) job: Box<Job>,
    pub(super) turn: Turn,
    pub(super) releasing: Option<Releasing>,
    /// The error replies in a row.
    pub(super) trouble: Option<Box<Trouble>>,
    /// The renewal under way while the slot of a held lock migrates.
    pub(super) piecemeal: Option<Box<Piecemeal>>,
}

/// What the session waits for. At most one of its commands is in flight whose reply matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing was sent on this connection.
    Unsent,
    /// A command is in flight.
    InFlight { sent: Boottime },
    /// The command is sent again in a while: some of its keys are on their way to another node.
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
pub(super) struct Trouble {
    pub(super) failures: u32,
    pub(super) failure: Failure,
}

impl Member {
    /// Nothing was sent for the session yet.
    pub(super) fn new(session: Requester, request: Request) -> Self {
        let job = Box::new(request.job.clone());
        let request = Some(Box::new(request));
        Self { session, request, job, turn: Turn::Unsent, releasing: None, trouble: None, piecemeal: None }
    }

    /// Whether the session has nothing left to say until it is released.
    pub(super) fn is_over(&self) -> bool {
        self.releasing.is_none() && self.session.client.is_over()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self.turn, Turn::InFlight { .. })
    }

    /// How persistently to retry after a failure, and until when.
    pub(super) fn persistence(&self) -> (Retry, Option<Boottime>) {
        match &self.releasing {
            Some(releasing) => (Retry::WhileDown, Some(releasing.until)),
            None => self.session.client.persistence(),
        }
    }

    /// Whether the session makes no further attempt after a failure at `now`.
    pub(super) fn gives_up(&self, failure: &ErrorKind, store: &Kind, now: Boottime) -> bool {
        let (retry, until) = self.persistence();
        !retry.covers(failure.class(store)) || until.is_some_and(|until| until <= now)
    }

    /// When to give up. A command in flight may wait behind those of many sessions, so the server
    /// has to be silent, too.
    pub(super) fn until(&self, heard: Option<Boottime>) -> Option<Boottime> {
        let until = self.persistence().1?;
        let silent_at = heard.and_then(|_| self.silent_at(heard));
        Some(silent_at.map_or(until, |at| until.max(at)))
    }

    /// When the server has been silent for too long about the command in flight. `heard` is the
    /// instant of its last reply on this connection. A server that answers other commands is busy
    /// and not silent.
    pub(super) fn silent_at(&self, heard: Option<Boottime>) -> Option<Boottime> {
        let Turn::InFlight { sent } = self.turn else { return None };
        let is_asking = matches!(self.session.client.state(), State::Asking { .. });
        let timeout = match heard {
            Some(_) if is_asking || self.releasing.is_some() => old_limit(self.session.connect_timeout),
            None if self.releasing.is_some() => self.session.connect_timeout,
            _ => self.session.client.reply_timeout(self.session.connect_timeout),
        };
        Some(heard.map_or(sent, |heard| sent.max(heard)) + timeout)
    }

    /// When the session needs attention even if nothing arrives.
    pub(super) fn next(&self, heard: Option<Boottime>) -> Option<Boottime> {
        if self.is_over() {
            return None;
        }
        let next = match self.turn {
            Turn::Quiet if self.releasing.is_none() => self.session.client.due(),
            Turn::Unsent | Turn::Delayed | Turn::Quiet => None,
            Turn::InFlight { .. } => self.silent_at(heard),
            Turn::Retry { at } => Some(at),
        };
        [next, self.until(heard)].into_iter().flatten().min()
    }

    /// The connection failed. `has_left` says whether a command of that instant may have left over
    /// it.
    pub(super) fn on_disconnect(&mut self, has_left: impl FnOnce(Boottime) -> bool) {
        let is_sent = if let Turn::InFlight { sent } = self.turn { has_left(sent) } else { false };
        self.session.client.on_disconnect(is_sent);
        if let Some(releasing) = &mut self.releasing {
            releasing.in_doubt |= is_sent;
        }
        self.turn = Turn::Unsent;
    }
}
