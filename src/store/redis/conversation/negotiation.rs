//! Decides which commands a session sends about its lock, when, and what the answers mean, from the
//! request to the end of the grant.
//!
//! Connections come and go, so every command may be sent twice. The server knows a request by its
//! session. An answer counts from the instant at which its command was sent.

use std::time::Duration;

use super::replication::Copies;
use super::retry::Retry;
use crate::lock::lease::Lease;
use crate::lock::request::Terms;
use crate::store::error::Error;
use crate::store::handle::{Grant, Replicas, Standing};
use crate::store::redis::codec::ScriptReply;
use crate::store::redis::failure::{ErrorKind, Failure};
use crate::store::redis::target::Target;
use crate::system::clock::Boottime;

/// How long a lock is held before its holder subscribes to its own channel. A revocation reaches a
/// subscriber at once and others at the next renewal; most commands have ended before either.
const SUBSCRIBE_AFTER: Duration = Duration::from_secs(1);

/// The pause between two waiters that look for an expired holder: the first in the queue finds it,
/// and the others find it done.
const STAGGER: Duration = Duration::from_millis(10);
/// The longest such delay, for the last of a long queue.
const STAGGER_MAX: Duration = Duration::from_secs(1);

/// A command for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Make the request, or ask how it stands.
    Acquire {
        /// The place that it had in the queue, 0 if none is known.
        place: u64,
        /// How long it has waited so far.
        waited: Duration,
        /// Whether this connection is subscribed to the session's channel.
        subscribed: bool,
    },
    /// Subscribe to the session's channel.
    Subscribe,
    /// Show that the session is alive, and claim a grant.
    Renew {
        /// Whether this connection is subscribed to the session's channel.
        subscribed: bool,
    },
    /// Wait until the grant has so many copies.
    Replicate(Replicas),
}

/// How far the request got.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// The server has not answered yet.
    Asking {
        /// When to give up.
        until: Boottime,
        /// Whether a connection failed over which the server may have got the request.
        in_doubt: bool,
    },
    /// In the queue.
    Waiting {
        place: u64,
        /// When the request was sent.
        asked: Boottime,
        due: Boottime,
    },
    /// Granted, but not yet known to have enough copies.
    Replicating { grant: Grant, due: Boottime },
    /// Granted.
    Held { grant: Grant, due: Boottime },
    /// Granted, but only so many replicas have it.
    TooFewCopies(Copies),
    /// Neither held nor in the queue, for the reason that the standing tells.
    Over(Standing),
    /// The server can't be used.
    Failed {
        failure: Failure,
        /// Whether the server may hold or queue the request nevertheless.
        may_be_kept: bool,
    },
}

#[cfg(test)]
impl State {
    /// The name of the state, for tests that count what they reach.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Asking { .. } => "asking",
            Self::Waiting { .. } => "waiting",
            Self::Replicating { .. } => "replicating",
            Self::Held { .. } => "held",
            Self::TooFewCopies(_) => "too few",
            Self::Over(Standing::Busy { .. }) => "busy",
            Self::Over(Standing::Superseded { .. }) => "superseded",
            Self::Over(Standing::AlreadyDone) => "already done",
            Self::Over(Standing::Refused(_)) => "refused",
            Self::Over(_) => "lost",
            Self::Failed { .. } => "failed",
        }
    }
}

/// The conversation of one session about its request.
#[derive(Debug)]
pub(super) struct Negotiation {
    /// The ttl of the request.
    ttl: Duration,
    /// The lease that the server stated last, or the requested one before it stated any.
    lease: Lease,
    /// The number of claims of the request. A grant has a token for each.
    claims: usize,
    heartbeat: Duration,
    replicas: Replicas,
    state: State,
    /// The grant that the server told and that the client has not claimed yet. The renewal that
    /// claims it need not repeat the slots and the end of the last hold.
    told: Option<Grant>,
    /// Whether this connection is subscribed to the session's channel.
    subscribed: bool,
}

impl Negotiation {
    /// Begins to ask for so many claims on these terms, and gives up at `until` if the server does
    /// not answer.
    pub(super) fn new(terms: Terms, claims: usize, replicas: Replicas, until: Boottime) -> Self {
        Self {
            ttl: terms.ttl,
            lease: Lease::new(terms.ttl),
            claims,
            heartbeat: terms.heartbeat,
            replicas,
            state: State::Asking { until, in_doubt: false },
            told: None,
            subscribed: false,
        }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// The ttl of the request.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long the server keeps the session without a sign of life.
    pub(super) fn kept_for(&self) -> Duration {
        self.ttl.max(self.heartbeat)
    }

    /// How the request stands.
    ///
    /// # Errors
    /// The server can't be used, or the grant has too few copies.
    pub(super) fn standing(&self, target: &Target) -> Result<Standing, Error> {
        Ok(match &self.state {
            State::Asking { .. } | State::Replicating { .. } => Standing::Asking,
            State::Waiting { .. } => Standing::Waiting,
            State::Held { grant, .. } => Standing::Granted(grant.clone()),
            State::Over(standing) => standing.clone(),
            State::TooFewCopies(copies) => {
                let words = copies.lacking(self.replicas).behind(format_args!("'{}': ", target.shown()));
                return Err(Error::Unavailable(words));
            }
            State::Failed { failure, .. } => return Err(failure.clone().into()),
        })
    }

    /// How persistently to retry after a failure, and until when.
    pub(super) fn persistence(&self) -> (Retry, Option<Boottime>) {
        match self.state {
            State::Asking { until, .. } => (Retry::UntilUp, Some(until)),
            State::Held { .. } => (Retry::Always, None),
            _ => (Retry::WhileDown, None),
        }
    }

    /// The grant, unless it is known to be lost.
    fn grant(&self) -> Option<&Grant> {
        match &self.state {
            State::Replicating { grant, .. } | State::Held { grant, .. } => Some(grant),
            _ => None,
        }
    }

    /// The grant, if it counts.
    pub(super) fn held(&self) -> Option<&Grant> {
        if let State::Held { grant, .. } = &self.state { Some(grant) } else { None }
    }

    /// Whether no command follows any more.
    pub(super) fn is_over(&self) -> bool {
        match self.state {
            State::Asking { .. } | State::Waiting { .. } | State::Replicating { .. } | State::Held { .. } => false,
            State::TooFewCopies(_) | State::Over(_) | State::Failed { .. } => true,
        }
    }

    /// Whether the server may hold or queue something for this session. `is_sent` says whether
    /// commands have left over the current connection.
    pub(super) fn may_be_kept(&self, is_sent: bool) -> bool {
        match &self.state {
            State::Asking { in_doubt, .. } => *in_doubt || is_sent,
            State::Waiting { .. } | State::Replicating { .. } | State::Held { .. } | State::TooFewCopies(_) => true,
            State::Over(standing) => *standing == Standing::Lost,
            State::Failed { may_be_kept, .. } => *may_be_kept,
        }
    }

    /// When the next command is due.
    pub(super) fn due(&self) -> Option<Boottime> {
        match self.state {
            State::Waiting { due, .. } | State::Held { due, .. } => Some(due),
            // The answer of the replicas comes first.
            _ => None,
        }
    }

    /// How long an answer may take before the connection is given up.
    pub(super) fn reply_timeout(&self, connect_timeout: Duration) -> Duration {
        match self.state {
            State::Held { .. } => self.lease.patience().min(connect_timeout),
            // The server answers after the replicas had their time, and its answer takes time too.
            State::Replicating { .. } => self.replica_timeout(connect_timeout).saturating_mul(2),
            _ => connect_timeout,
        }
    }

    /// How long the replicas may take, so that the lease can still be renewed afterwards.
    pub(super) fn replica_timeout(&self, connect_timeout: Duration) -> Duration {
        self.lease.patience().min(connect_timeout)
    }

    /// The backoff before the next connection, after so many consecutive failures.
    pub(super) fn retry_after(&self, failures: u32) -> Duration {
        self.lease.retry_after(failures)
    }

    /// There is a new connection.
    pub(super) fn on_connect(&mut self) -> Vec<Command> {
        self.subscribed = false;
        match self.state {
            State::Asking { .. } => vec![self.acquire(0, Duration::ZERO)],
            State::Waiting { .. } | State::Replicating { .. } | State::Held { .. } => self.subscribe_and_renew(),
            _ => vec![],
        }
    }

    /// A connection failed. `is_sent` says whether commands had left over it.
    pub(super) fn on_disconnect(&mut self, is_sent: bool) {
        self.subscribed = false;
        if let State::Asking { in_doubt, .. } = &mut self.state {
            *in_doubt |= is_sent;
        }
    }

    /// The server can't be used. `is_sent` says whether it may have got the request over the
    /// current connection.
    pub(super) fn on_failure(&mut self, failure: Failure, is_sent: bool) {
        let may_be_kept = self.may_be_kept(is_sent);
        self.state = State::Failed { failure, may_be_kept };
    }

    /// A message came on the session's channel: the request was granted, or its grant was revoked.
    pub(super) fn on_message(&mut self) -> Vec<Command> {
        match self.state {
            State::Waiting { .. } | State::Held { .. } => vec![self.renew()],
            // The grant may be revoked. The renewal follows the answer of the replicas.
            State::Replicating { ref mut due, .. } => {
                *due = Boottime::default();
                vec![]
            }
            _ => vec![],
        }
    }

    /// Claims a grant at once. The replies to earlier commands are not read any more, so a grant
    /// that waits for its replicas is renewed too. A WAIT alone would not do: the server counts
    /// only the writes of its own connection, and the current one may be new.
    pub(super) fn claim(&self) -> Vec<Command> {
        match self.state {
            State::Waiting { .. } | State::Replicating { .. } | State::Held { .. } => vec![self.renew()],
            _ => vec![],
        }
    }

    /// Ends the subscription; tells whether there was one.
    pub(super) fn unsubscribe(&mut self) -> bool {
        std::mem::take(&mut self.subscribed)
    }

    /// Loses a grant whose deadline passes before enough replicas have it. The reply timeout of a
    /// lease that is nearly over is too short for any reply, so nothing else would end the
    /// attempts.
    pub(super) fn expire(&mut self, now: Boottime) {
        if let State::Replicating { grant, .. } = &self.state
            && grant.deadline.is_some_and(|deadline| deadline <= now)
        {
            self.end(Standing::Lost);
        }
    }

    /// The commands that are due at `now`, if no answer is awaited.
    pub(super) fn tick(&mut self, now: Boottime) -> Vec<Command> {
        match self.state {
            State::Held { due, .. } if due <= now && !self.subscribed => self.subscribe_and_renew(),
            State::Waiting { due, .. } | State::Held { due, .. } if due <= now => vec![self.renew()],
            _ => vec![],
        }
    }

    /// The reply to a command that was sent at `sent` arrived at `now`.
    ///
    /// # Errors
    /// The reply does not fit the command, or the request.
    pub(super) fn on_reply(
        &mut self,
        command: Command,
        reply: ScriptReply,
        sent: Boottime,
        now: Boottime,
    ) -> Result<Vec<Command>, ErrorKind> {
        if self.is_over() {
            return Ok(vec![]);
        }
        Ok(match (command, reply) {
            (_, ScriptReply::Granted { tokens, .. }) if tokens.len() != self.claims => {
                return Err(ErrorKind::UnexpectedReply);
            }
            // A lease shorter than the requested one belongs to an older grant, or to one that has
            // to be claimed.
            (Command::Acquire { .. }, ScriptReply::Granted { lease: Some(lease), tokens, slots, last, is_revoked })
                if lease < self.ttl =>
            {
                self.told = Some(Grant { tokens, slots, last, deadline: None, is_revoked });
                vec![self.renew()]
            }
            (
                Command::Acquire { .. } | Command::Renew { .. },
                ScriptReply::Granted { lease: Some(lease), tokens, slots, last, is_revoked },
            ) => {
                let grant = Grant { tokens, slots, last, deadline: None, is_revoked };
                self.granted(Lease::new(lease), grant, sent, now)
            }
            (Command::Acquire { .. } | Command::Renew { .. }, ScriptReply::Waiting { seq, position, next }) => {
                self.queued(seq, position, next, sent, now)
            }
            (Command::Acquire { .. }, ScriptReply::Over(standing)) => self.end(standing),
            (Command::Acquire { .. }, ScriptReply::Refused(refusal)) => self.end(Standing::Refused(refusal)),
            (Command::Renew { .. }, ScriptReply::Unknown) => match self.state {
                // The server took the silent session for dead. The session returns to its place.
                State::Asking { .. } => vec![self.acquire(0, Duration::ZERO)],
                State::Waiting { place, asked, .. } => vec![self.acquire(place, now - asked)],
                _ => self.end(Standing::Lost),
            },
            _ => return Err(ErrorKind::UnexpectedReply),
        })
    }

    /// The grant has these copies.
    pub(super) fn on_replicated(&mut self, copies: Copies) {
        if let State::Replicating { grant, due } = &self.state {
            self.state = if copies.are_enough(self.replicas) {
                State::Held { grant: grant.clone(), due: *due }
            } else {
                State::TooFewCopies(copies)
            };
        }
    }

    fn acquire(&self, place: u64, waited: Duration) -> Command {
        Command::Acquire { place, waited, subscribed: self.subscribed }
    }

    fn renew(&self) -> Command {
        Command::Renew { subscribed: self.subscribed }
    }

    fn subscribe_and_renew(&mut self) -> Vec<Command> {
        self.subscribed = true;
        vec![Command::Subscribe, self.renew()]
    }

    fn granted(&mut self, lease: Lease, told: Grant, sent: Boottime, now: Boottime) -> Vec<Command> {
        if self.grant().is_some_and(|grant| grant.tokens != told.tokens) {
            // The server returned to an earlier state and granted anew. Another session may have
            // held the lock in between.
            return self.end(Standing::Lost);
        }
        self.lease = lease;
        // The slots and the end of the last hold stay as the first reply told them.
        let first = self.told.take().filter(|first| first.tokens == told.tokens);
        let is_revoked = told.is_revoked;
        let grant = self.grant().cloned().or(first).unwrap_or(told);
        let grant = Grant { deadline: Some(self.lease.deadline(sent)), is_revoked, ..grant };
        let renew_at = self.lease.renew_at(sent);
        let due = if self.subscribed { renew_at } else { renew_at.min(now + SUBSCRIBE_AFTER) };
        if self.replicas == Replicas::default() || self.held().is_some() {
            self.state = State::Held { grant, due };
            return vec![];
        }
        self.state = State::Replicating { grant, due };
        vec![Command::Replicate(self.replicas)]
    }

    fn queued(
        &mut self,
        place: u64,
        position: u32,
        next: Option<Duration>,
        sent: Boottime,
        now: Boottime,
    ) -> Vec<Command> {
        if self.grant().is_some() {
            // The server returned to an earlier state: it remembers the wait and not the grant.
            return self.end(Standing::Lost);
        }
        let stagger = STAGGER.saturating_mul(position.saturating_sub(1)).min(STAGGER_MAX);
        let beat = self.heartbeat / 3;
        let pause = next.map_or(beat, |next| beat.min(next.saturating_add(stagger)));
        let asked = if let State::Waiting { asked, .. } = self.state { asked } else { sent };
        self.state = State::Waiting { place, asked, due: now + pause };
        if self.subscribed { vec![] } else { self.subscribe_and_renew() }
    }

    fn end(&mut self, standing: Standing) -> Vec<Command> {
        self.state = State::Over(standing);
        vec![]
    }
}

#[cfg(test)]
mod tests;
