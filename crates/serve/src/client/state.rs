//! The data of a client: what it holds, and what it waits for.

use std::time::Duration;

use super::super::event::Question;
use super::super::rules::Rules;
use super::look::Look;
use rlock_model::op::Change;
use rlock_model::request::{Claim, SessionId};
use rlock_sys::clock::Boottime;

/// How long a client may take until its first line is understood, and until its token is right.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// One client.
#[derive(Debug)]
pub struct Client {
    pub(super) state: State,
    /// The locks that the client holds: none, one, or a prewrite lock and its upgrade.
    pub(super) holds: Vec<Hold>,
    /// Whether a line of the client has been understood.
    pub(super) has_greeted: bool,
    /// Until when the client has to send a line that is understood, and the right token.
    pub(super) greeting_until: Option<Boottime>,
    /// Whether the token is right, or none is needed.
    pub(super) is_trusted: bool,
    pub(super) is_draining: bool,
    /// Whether the client lost a lock.
    pub(super) has_lost: bool,
    /// The sessions whose release was begun and is not reported to the client, with the claims of a
    /// hold.
    pub(super) releasing: Vec<(SessionId, Option<Vec<Claim>>)>,
}

/// What the client waits for.
#[derive(Debug)]
pub(super) enum State {
    Idle,
    /// The store has a request.
    Requesting(Box<Pending>),
    /// The request's wait is over, and it leaves the queue. The client is answered at `until` at
    /// the latest.
    Leaving {
        pending: Box<Pending>,
        until: Boottime,
    },
    /// The store is asked who was in the way of the request. The same limit holds.
    Explaining {
        pending: Box<Pending>,
        until: Boottime,
    },
    Unlocking,
    /// The store is asked a question.
    Asking {
        question: Question,
        until: Option<Boottime>,
    },
    /// The token was wrong.
    Refusing {
        until: Boottime,
    },
    /// The connection is closed because a lock is lost. The client stops its work until the rest is
    /// released at `until`.
    Lingering {
        until: Boottime,
    },
    /// The connection is closed.
    Closed,
}

/// A lock that the client holds.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) session: SessionId,
    pub(super) claims: Vec<Claim>,
    /// Until when the lease lasts, if there is one.
    pub(super) deadline: Option<Boottime>,
    /// Whether `LOCK KEY` made the hold, so that any foreign line ends it.
    pub(super) plain: bool,
}

/// A request that the store has not granted.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) session: SessionId,
    pub(super) claims: Vec<Claim>,
    pub(super) plain: bool,
    pub(super) wait: Option<Duration>,
    /// When the wait is over.
    pub(super) until: Option<Boottime>,
    /// Whether the store has queued the request.
    pub(super) is_queued: bool,
    /// Whether the request does not wait because too many others do.
    pub(super) is_limited: bool,
    /// The search for a deadlock, for a request below a hold.
    pub(super) look: Option<Look>,
}

impl Client {
    /// A client that connected at `now`. `has_time` is false for a client that must say something
    /// soon.
    pub fn new(rules: &Rules, now: Boottime, has_time: bool) -> Self {
        Self {
            state: State::Idle,
            holds: Vec::new(),
            has_greeted: false,
            greeting_until: (!has_time).then(|| now + GREETING_LIMIT),
            is_trusted: rules.token.is_none(),
            is_draining: false,
            has_lost: false,
            releasing: Vec::new(),
        }
    }

    /// Whether the client's next line can be taken in now.
    pub fn takes_lines(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Whether the client waits for the answer to a question.
    pub fn asks(&self) -> bool {
        match &self.state {
            State::Explaining { .. } | State::Asking { .. } => true,
            State::Requesting(pending) => pending.look.as_ref().is_some_and(Look::reads),
            _ => false,
        }
    }

    /// Whether the client holds a lock.
    pub(crate) fn holds(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Whether the store has queued the client's request.
    pub fn is_queued(&self) -> bool {
        matches!(&self.state, State::Requesting(pending) if pending.is_queued)
    }

    /// Whether the connection is closed and the store has no session of this client any more.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Closed) && self.releasing.is_empty()
    }

    /// Whether the client lost a lock.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost
    }
}

impl Hold {
    /// Notes a change, by which an upgrade knows what is held.
    pub(super) fn apply(&mut self, change: &Change) {
        for claim in &mut self.claims {
            match change {
                Change::Shrink { resource, span } if claim.resource == *resource && claim.shrinks_to(span) => {
                    claim.span = span.clone();
                }
                Change::Downgrade { resource, mode } if claim.resource == *resource && claim.mode.lowers_to(*mode) => {
                    claim.mode = *mode;
                }
                _ => {}
            }
        }
    }
}
