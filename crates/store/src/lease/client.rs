//! Decides which commands a session sends about its lock to a store with leases, when, and what the
//! replies mean, from the request to the end of the grant.
//!
//! This module is pure: it has no clock and no I/O. Each store translates its own replies and
//! failures. Connections come and go, so every command may be sent twice. The store knows a request
//! by its session. A reply counts from the instant at which its command was sent.

use std::mem;
use std::time::Duration;

use super::retry::Retry;
use crate::error::Error;
use crate::handle::{Grant, Return, Standing};
use rlock_model::kept::EVER;
use rlock_model::lease::Lease;
use rlock_model::request::{SessionId, Terms};
use rlock_sys::clock::Boottime;

/// How long a lock is held before its holder subscribes to its own channel. A revocation reaches a
/// subscriber at once and others at the next renewal; most commands have ended before either.
const SUBSCRIBE_AFTER: Duration = Duration::from_secs(1);

/// The pause between two waiters that look for an expired holder: the first in the queue finds it,
/// and the others find it done.
const STAGGER: Duration = Duration::from_millis(10);
/// The longest such delay, for the last of a long queue.
const STAGGER_MAX: Duration = Duration::from_secs(1);

/// A command for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make the request, or ask how it stands.
    Acquire {
        /// The place that it had in the queue, 0 if none is known.
        place: u64,
        /// How long it has waited so far.
        waited: Duration,
    },
    /// Subscribe to the session's channel.
    Subscribe,
    /// Show that the session is alive, and claim a grant.
    Renew,
    /// Leave the queue, and count the request as busy unless it is granted.
    GiveUp,
    /// Make the request again as one that does not wait, after it has left the queue.
    AskOnce,
}

/// The reply of the store to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseReply {
    /// The session holds the lock for the rest of this lease.
    Granted {
        /// How long the grant lasts, counted from the instant at which the command was sent.
        lease: Duration,
        /// The grant, with a token for each claim.
        grant: Grant,
    },
    /// The session waits.
    Waiting {
        /// The number by which the session finds its place again.
        place: u64,
        /// Its position in the queue; the first is 1.
        position: u32,
        /// How long until a lease in its way ends.
        next: Option<Duration>,
    },
    /// The request is over and stands so.
    Over(Standing),
    /// The grant or the place in the queue is released. These are the tokens, claim by claim, each
    /// 0 for a waiter.
    Released(Vec<u64>),
    /// The command has ended, and the hold stays.
    Kept,
    /// The session neither holds nor waits.
    Unknown,
    /// The store sent what answers none of these commands.
    Other,
}

/// How far the request got.
#[derive(Clone, Debug)]
pub enum State<F> {
    /// The store has not answered yet.
    Asking {
        /// When to give up.
        until: Boottime,
        /// Whether a connection failed over which the server may have got the request.
        in_doubt: bool,
    },
    /// In the queue.
    Waiting {
        /// The number by which the session finds its place again.
        place: u64,
        /// When the request was sent.
        asked: Boottime,
        /// When the session asks again, even if the store sends no message.
        due: Boottime,
    },
    /// Granted, but not yet known to have enough copies.
    Replicating {
        /// The grant, which counts once enough replicas have it.
        grant: Grant,
        /// When to renew the grant, once it counts.
        due: Boottime,
    },
    /// Granted.
    Held {
        /// The grant, with the end of its lease.
        grant: Grant,
        /// When the next renewal is due.
        due: Boottime,
    },
    /// Granted, but too few replicas have it.
    TooFewCopies(Error),
    /// Neither held nor in the queue, for the reason that the standing tells.
    Over(Standing),
    /// The store can't be used.
    Failed {
        /// The reason, in the words of the kind of store.
        failure: F,
        /// Whether the store may hold or queue the request nevertheless.
        may_be_kept: bool,
    },
}

impl<F> State<F> {
    /// The name of the state, for tests that count what they reach.
    pub fn name(&self) -> &'static str {
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

/// The client of one request at a store with leases. A failure of this store is an `F`.
#[derive(Debug)]
pub struct LeaseClient<F> {
    /// The ttl of the request.
    ttl: Duration,
    /// The lease that the store stated last, or the requested one before it stated any.
    lease: Lease,
    /// The number of claims of the request. A grant has a token for each.
    claims: usize,
    heartbeat: Duration,
    /// Whether a grant counts only once enough replicas have it.
    needs_copies: bool,
    state: State<F>,
    /// The place to which the request returns; 0 if there is none.
    returns: Return,
    /// The grant that the store told and that the client has not claimed yet. The renewal that
    /// claims it need not repeat the slots and the end of the last hold.
    told: Option<Grant>,
    /// Whether this connection is subscribed to the session's channel.
    subscribed: bool,
    /// Whether the store did not know the waiting request, so that the client has made it again.
    asked_again: bool,
    /// Until when the client tries to leave the queue, if it has begun to.
    leaves_until: Option<Boottime>,
}

impl<F: Clone + Into<Error>> LeaseClient<F> {
    /// Begins to ask for so many claims on these terms, and gives up at `until` if the store does
    /// not answer.
    pub fn new(terms: Terms, claims: usize, needs_copies: bool, until: Boottime) -> Self {
        Self {
            ttl: terms.ttl,
            lease: Lease::new(terms.ttl),
            claims,
            heartbeat: terms.heartbeat,
            needs_copies,
            state: State::Asking { until, in_doubt: false },
            returns: Return { place: 0, waited: Duration::ZERO },
            told: None,
            subscribed: false,
            asked_again: false,
            leaves_until: None,
        }
    }

    /// Lets the request return to a place that it has had before.
    #[must_use]
    pub fn returning(self, place: Option<Return>) -> Self {
        Self { returns: place.unwrap_or(self.returns), ..self }
    }

    /// The number of the place in the queue, while the request waits.
    pub fn place(&self) -> Option<u64> {
        if let State::Waiting { place, .. } = self.state { Some(place) } else { None }
    }

    /// Makes the request.
    fn first(&self) -> Command {
        Command::Acquire { place: self.returns.place, waited: self.returns.waited }
    }

    /// How far the request got, after the last reply or failure.
    pub fn state(&self) -> &State<F> {
        &self.state
    }

    /// Whether this connection is subscribed to the session's channel.
    pub fn is_subscribed(&self) -> bool {
        self.subscribed
    }

    /// Whether the client has made a waiting request again since the last call, because the store
    /// did not know it.
    pub fn take_asked_again(&mut self) -> bool {
        mem::take(&mut self.asked_again)
    }

    /// The ttl of the request.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long the store keeps the session without a sign of life.
    pub fn kept_for(&self) -> Duration {
        self.ttl.max(self.heartbeat)
    }

    /// How the request stands.
    ///
    /// # Errors
    /// The store can't be used, or the grant has too few copies.
    pub fn standing(&self) -> Result<Standing, Error> {
        Ok(match &self.state {
            State::Asking { .. } | State::Replicating { .. } => Standing::Asking,
            State::Waiting { .. } => Standing::Waiting,
            State::Held { grant, .. } => Standing::Granted(grant.clone()),
            State::Over(standing) => standing.clone(),
            State::TooFewCopies(error) => return Err(error.clone()),
            State::Failed { failure, .. } => return Err(failure.clone().into()),
        })
    }

    /// How persistently to retry after a failure, and until when.
    pub fn persistence(&self) -> (Retry, Option<Boottime>) {
        match self.state {
            State::Held { .. } => (Retry::Always, None),
            _ if self.leaves_until.is_some() => (Retry::WhileDown, self.leaves_until),
            State::Asking { until, .. } => (Retry::UntilUp, Some(until)),
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
    pub fn held(&self) -> Option<&Grant> {
        if let State::Held { grant, .. } = &self.state { Some(grant) } else { None }
    }

    /// Whether no command follows any more.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::TooFewCopies(_) | State::Over(_) | State::Failed { .. })
    }

    /// Whether the store may hold or queue something for this session. `is_sent` says whether
    /// commands have left over the current connection.
    pub fn may_be_kept(&self, is_sent: bool) -> bool {
        match &self.state {
            State::Asking { in_doubt, .. } => *in_doubt || is_sent,
            State::Waiting { .. } | State::Replicating { .. } | State::Held { .. } | State::TooFewCopies(_) => true,
            State::Over(standing) => *standing == Standing::Lost,
            State::Failed { may_be_kept, .. } => *may_be_kept,
        }
    }

    /// When the next command is due.
    pub fn due(&self) -> Option<Boottime> {
        match self.state {
            State::Waiting { due, .. } | State::Held { due, .. } => Some(due),
            // The answer of the replicas comes first.
            _ => None,
        }
    }

    /// How long an answer may take before the connection is given up.
    pub fn reply_timeout(&self, connect_timeout: Duration) -> Duration {
        match self.state {
            State::Held { .. } => self.lease.patience().min(connect_timeout),
            // The store answers after the replicas had their time, and its answer takes time too.
            State::Replicating { .. } => self.replica_timeout(connect_timeout).saturating_mul(2),
            _ => connect_timeout,
        }
    }

    /// How long the replicas may take, so that the lease can still be renewed afterwards.
    pub fn replica_timeout(&self, connect_timeout: Duration) -> Duration {
        self.lease.patience().min(connect_timeout)
    }

    /// The backoff before the next attempt, after so many consecutive failures: between half and
    /// all of a pause, so that not all sessions ask a store at once that comes back.
    pub fn retry_after(&self, failures: u32, session: SessionId) -> Duration {
        let pause = self.lease.retry_after(failures);
        let byte = session.0[failures as usize % session.0.len()];
        pause / 2 + pause / 2 * u32::from(byte) / u32::from(u8::MAX)
    }

    /// There is a new connection.
    pub fn on_connect(&mut self) -> Vec<Command> {
        self.subscribed = false;
        match self.state {
            State::Asking { .. } | State::Waiting { .. } if self.leaves_until.is_some() => vec![Command::GiveUp],
            State::Asking { .. } => vec![self.first()],
            State::Waiting { .. } | State::Replicating { .. } | State::Held { .. } => self.subscribe_and_renew(),
            _ => vec![],
        }
    }

    /// A connection failed. `is_sent` says whether commands had left over it.
    pub fn on_disconnect(&mut self, is_sent: bool) {
        self.subscribed = false;
        if let State::Asking { in_doubt, .. } = &mut self.state {
            *in_doubt |= is_sent;
        }
    }

    /// The store has no room or no time for the request now, so it is made until a later instant.
    /// Tells whether that is new.
    pub fn keep_asking(&mut self, later: Boottime) -> bool {
        let State::Asking { until, .. } = &mut self.state else { return false };
        mem::replace(until, later) < later - EVER / 2
    }

    /// No message reaches a waiter, so it asks at `at` at the latest.
    pub fn look_by(&mut self, at: Boottime) {
        if let State::Waiting { due, .. } = &mut self.state {
            *due = at.min(*due);
        }
    }

    /// The store can't be used. `is_sent` says whether it may have got the request over the current
    /// connection.
    pub fn on_failure(&mut self, failure: F, is_sent: bool) {
        let may_be_kept = self.may_be_kept(is_sent);
        self.state = State::Failed { failure, may_be_kept };
    }

    /// A message came on the session's channel: the request was granted, or its grant was revoked.
    pub fn on_message(&mut self) -> Vec<Command> {
        match self.state {
            State::Waiting { .. } | State::Held { .. } => vec![Command::Renew],
            // The grant may be revoked. The renewal follows the answer of the replicas.
            State::Replicating { ref mut due, .. } => {
                *due = Boottime::default();
                vec![]
            }
            _ => vec![],
        }
    }

    /// Begins to leave the queue, and makes no further attempt at `until`. The replies to earlier
    /// commands are not read any more, so a grant that waits for its replicas is claimed anew. To
    /// ask for the copies alone would not do: a store may count only the writes of a connection,
    /// and the current one may be new.
    pub fn give_up(&mut self, until: Boottime) -> Vec<Command> {
        if self.is_over() || self.held().is_some() {
            return vec![];
        }
        self.leaves_until = Some(until);
        vec![Command::GiveUp]
    }

    /// Ends the subscription; tells whether there was one.
    pub fn unsubscribe(&mut self) -> bool {
        mem::take(&mut self.subscribed)
    }

    /// Loses a grant whose deadline passes before enough replicas have it. The reply timeout of a
    /// lease that is nearly over is too short for any reply, so nothing else would end the
    /// attempts.
    pub fn expire(&mut self, now: Boottime) {
        if let State::Replicating { grant, .. } = &self.state
            && grant.deadline.is_some_and(|deadline| deadline <= now)
        {
            self.end(Standing::Lost);
        }
    }

    /// The commands that are due at `now`, if no answer is awaited.
    pub fn tick(&mut self, now: Boottime) -> Vec<Command> {
        match self.state {
            State::Held { due, .. } if due <= now && !self.subscribed => self.subscribe_and_renew(),
            State::Waiting { due, .. } | State::Held { due, .. } if due <= now => vec![Command::Renew],
            _ => vec![],
        }
    }

    /// The reply to a command that was sent at `sent` arrived at `now`. Returns the commands that
    /// follow; `None` if the reply does not fit the command, or the request.
    pub fn on_reply(
        &mut self,
        command: Command,
        reply: LeaseReply,
        sent: Boottime,
        now: Boottime,
    ) -> Option<Vec<Command>> {
        if self.is_over() {
            return Some(vec![]);
        }
        Some(match (command, reply) {
            (Command::Subscribe, _) => return None,
            (Command::GiveUp, LeaseReply::Over(standing)) => self.end(standing),
            // A waiter whose job is done has left the queue already.
            (Command::GiveUp, LeaseReply::Unknown) => vec![Command::AskOnce],
            // The request was granted in the meantime.
            (Command::GiveUp, _) => vec![Command::Renew],
            (_, LeaseReply::Granted { grant, .. }) if grant.tokens.len() != self.claims => return None,
            // A lease shorter than the requested one belongs to an older grant, or to one that has
            // to be claimed.
            (Command::Acquire { .. } | Command::AskOnce, LeaseReply::Granted { lease, grant }) if lease < self.ttl => {
                self.told = Some(grant);
                vec![Command::Renew]
            }
            (_, LeaseReply::Granted { lease, grant }) => self.granted(Lease::new(lease), grant, sent, now),
            (_, LeaseReply::Waiting { place, position, next }) => self.queued(place, position, next, sent, now),
            (Command::Acquire { .. } | Command::AskOnce, LeaseReply::Over(standing)) => self.end(standing),
            (Command::Renew, LeaseReply::Unknown) => match self.state {
                // The store took the silent session for dead. The session returns to its place.
                State::Asking { .. } | State::Waiting { .. } if self.leaves_until.is_some() => vec![Command::GiveUp],
                State::Asking { .. } => vec![self.first()],
                State::Waiting { place, asked, .. } => {
                    self.asked_again = true;
                    vec![Command::Acquire { place, waited: now - asked }]
                }
                _ => self.end(Standing::Lost),
            },
            _ => return None,
        })
    }

    /// The replicas have answered. `lacking` is the error about copies that are missing.
    pub fn on_replicated(&mut self, lacking: Option<Error>) {
        if let State::Replicating { grant, due } = &self.state {
            self.state = match lacking {
                None => State::Held { grant: grant.clone(), due: *due },
                Some(error) => State::TooFewCopies(error),
            };
        }
    }

    fn subscribe_and_renew(&mut self) -> Vec<Command> {
        self.subscribed = true;
        vec![Command::Subscribe, Command::Renew]
    }

    fn granted(&mut self, lease: Lease, told: Grant, sent: Boottime, now: Boottime) -> Vec<Command> {
        if self.grant().is_some_and(|grant| grant.tokens != told.tokens) {
            // The store returned to an earlier state and granted anew. Another session may have
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
        self.state = if self.needs_copies && self.held().is_none() {
            State::Replicating { grant, due }
        } else {
            State::Held { grant, due }
        };
        vec![]
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
            // The store returned to an earlier state: it remembers the wait and not the grant.
            return self.end(Standing::Lost);
        }
        let stagger = STAGGER.saturating_mul(position.saturating_sub(1)).min(STAGGER_MAX);
        let beat = self.heartbeat / 3;
        let pause = next.map_or(beat, |next| beat.min(next.saturating_add(stagger)));
        let asked = if let State::Waiting { asked, .. } = self.state { asked } else { sent - self.returns.waited };
        self.state = State::Waiting { place, asked, due: now + pause };
        match self.leaves_until {
            Some(_) => vec![Command::GiveUp],
            None if self.subscribed => vec![],
            None => self.subscribe_and_renew(),
        }
    }

    fn end(&mut self, standing: Standing) -> Vec<Command> {
        self.state = State::Over(standing);
        vec![]
    }
}

#[cfg(test)]
mod tests;
