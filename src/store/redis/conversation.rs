//! What a session and its server say to each other, from the request to the end of the grant: what
//! to say, when, and what the answers mean.
//!
//! Pure: no socket, no clock. [`super::hold`] carries it over connections that come and go, which
//! is why everything said here may be said twice: a request is known by its session, and an answer
//! counts from the instant at which its question was sent.

use std::time::Duration;

use crate::lock::lease::Lease;
use crate::lock::op::Refusal;
use crate::lock::request::Terms;
use crate::store::{Grant, Obstruction, Standing};

/// How long something is held before its holder subscribes to its own channel. A break reaches a
/// subscriber at once, anybody else at the next renewal; and most commands have ended before
/// either.
const LISTEN_AFTER: Duration = Duration::from_secs(1);

/// Between two waiters who look for an expired holder, so that the first in the queue finds it and
/// the others find it done.
const STAGGER: Duration = Duration::from_millis(10);
/// How late the last of a long queue looks.
const STAGGER_MAX: Duration = Duration::from_secs(1);

/// Something to say to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// Make the request, or ask how it stands.
    Acquire {
        /// The place that it had in the queue, 0 if none is known.
        place: u64,
        /// Whether this connection is subscribed to the session's channel.
        listening: bool,
    },
    /// Subscribe to the session's channel.
    Listen,
    /// Show that the session is alive, and claim a grant.
    Renew {
        /// As for an acquire.
        listening: bool,
    },
    /// Wait until so many replicas have what was said before.
    Replicate(u32),
}

/// What the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The session holds.
    Granted {
        /// How long the server lets it hold from the instant at which it was asked.
        lease: Duration,
        /// Its tokens, claim by claim.
        tokens: Vec<u64>,
    },
    /// The session waits.
    Waiting {
        /// Its number in the queue, by which it finds its place again.
        place: u64,
        /// How many of its requests' first resource wait up to it, itself included.
        position: u32,
        /// How long until a lease that may be in its way is over unless it is renewed.
        next: Option<Duration>,
    },
    /// It would have had to wait.
    Busy(Vec<Obstruction>),
    /// It can never be granted.
    Refused(Refusal),
    /// The session neither holds nor waits.
    Unknown,
    /// So many replicas have it.
    Replicated(u32),
}

/// An answer that no server of this version gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unexpected;

/// How far the request got.
#[derive(Clone, Debug)]
enum State {
    /// Nothing is known of it yet.
    Asking,
    Waiting,
    /// Granted, but not yet known to enough replicas.
    Replicating(Grant),
    Held(Grant),
    /// Not enough replicas answered: how many did.
    TooFew(u32),
    Busy(Vec<Obstruction>),
    Refused(Refusal),
    Lost,
}

/// One session's part of the conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    /// The ttl that was asked for.
    ttl: Duration,
    /// The lease that the server gave last, or the one that was asked for before it gave any.
    lease: Lease,
    /// How many claims the request has, each of which a grant has a token for.
    claims: usize,
    heartbeat: Duration,
    replicas: u32,
    state: State,
    place: u64,
    /// Whether the server may have heard of the request.
    heard: bool,
    /// Whether the connection is subscribed.
    listening: bool,
    due: Option<Duration>,
}

impl Conversation {
    /// The conversation about a request of so many claims on these terms, before anything was said.
    pub(super) fn new(terms: Terms, claims: usize, replicas: u32) -> Self {
        let ttl = Duration::from_micros(terms.ttl);
        Self {
            ttl,
            lease: Lease::new(ttl),
            claims,
            heartbeat: Duration::from_micros(terms.heartbeat),
            replicas,
            state: State::Asking,
            place: 0,
            heard: false,
            listening: false,
            due: None,
        }
    }

    /// How the request stands, as far as it is known.
    pub(super) fn standing(&self) -> Standing {
        match &self.state {
            State::Asking | State::Replicating(_) | State::TooFew(_) => Standing::Asking,
            State::Waiting => Standing::Waiting,
            State::Held(grant) => Standing::Granted(grant.clone()),
            State::Busy(listings) => Standing::Busy(listings.clone()),
            State::Refused(refusal) => Standing::Refused(refusal.clone()),
            State::Lost => Standing::Lost,
        }
    }

    /// What was granted, and not lost as far as is known.
    fn grant(&self) -> Option<&Grant> {
        if let State::Replicating(grant) | State::Held(grant) = &self.state { Some(grant) } else { None }
    }

    /// How many replicas answered, if they were too few.
    pub(super) fn too_few_replicas(&self) -> Option<u32> {
        if let State::TooFew(answered) = self.state { Some(answered) } else { None }
    }

    /// Whether nothing is known of the request yet.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.state, State::Asking)
    }

    /// Whether nothing more is to be said.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::TooFew(_) | State::Busy(_) | State::Refused(_) | State::Lost)
    }

    /// Whether the server may keep something for this session.
    pub(super) fn may_be_kept(&self) -> bool {
        match self.state {
            State::Asking => self.heard,
            State::Waiting | State::Replicating(_) | State::Held(_) | State::TooFew(_) | State::Lost => true,
            State::Busy(_) | State::Refused(_) => false,
        }
    }

    /// When there is something to say even if nothing happens.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// How long an answer may take before the connection is given up.
    pub(super) fn patience(&self, connect_timeout: Duration) -> Duration {
        match self.state {
            State::Held(_) => self.lease.patience().min(connect_timeout),
            // The server answers when the replicas have, or had the time for it, and has to be
            // heard itself.
            State::Replicating(_) => self.replicas_patience(connect_timeout).saturating_mul(2),
            _ => connect_timeout,
        }
    }

    /// How long the replicas may take, with enough of the lease left to renew it after that.
    pub(super) fn replicas_patience(&self, connect_timeout: Duration) -> Duration {
        self.lease.patience().min(connect_timeout)
    }

    /// How long to wait before the server is tried again, after so many failures in a row.
    pub(super) fn retry_after(&self, failures: u32) -> Duration {
        self.lease.retry_after(failures)
    }

    /// There is a connection on which nothing was said yet.
    pub(super) fn connected(&mut self) -> Vec<Say> {
        self.listening = false;
        match self.state {
            State::Asking => vec![self.acquire()],
            State::Waiting | State::Replicating(_) | State::Held(_) => self.listen_and_renew(),
            State::TooFew(_) | State::Busy(_) | State::Refused(_) | State::Lost => vec![],
        }
    }

    /// A message came on the session's channel: it was granted, or its grant was broken.
    pub(super) fn woken(&mut self) -> Vec<Say> {
        match self.state {
            State::Waiting | State::Held(_) => vec![self.renew()],
            _ => vec![],
        }
    }

    /// Says what is due at `now`.
    pub(super) fn tick(&mut self, now: Duration) -> Vec<Say> {
        if self.due.take_if(|due| *due <= now).is_none() {
            return vec![];
        }
        match self.state {
            State::Held(_) if !self.listening => self.listen_and_renew(),
            State::Waiting | State::Held(_) => vec![self.renew()],
            _ => vec![],
        }
    }

    /// The answer to something that was sent at `sent` arrived at `now`.
    ///
    /// # Errors
    /// The answer does not fit what was said, or the request.
    pub(super) fn answered(
        &mut self,
        say: Say,
        answer: Answer,
        sent: Duration,
        now: Duration,
    ) -> Result<Vec<Say>, Unexpected> {
        if self.is_over() {
            return Ok(vec![]);
        }
        Ok(match (say, answer) {
            (_, Answer::Granted { tokens, .. }) if tokens.len() != self.claims => return Err(Unexpected),
            // A shorter lease than the one asked for is that of an older grant, or of one that
            // waits to be claimed.
            (Say::Acquire { .. }, Answer::Granted { lease, .. }) if lease < self.ttl => vec![self.renew()],
            (Say::Acquire { .. } | Say::Renew { .. }, Answer::Granted { lease, tokens }) => {
                self.granted(Lease::new(lease), tokens, sent, now)
            }
            (Say::Acquire { .. } | Say::Renew { .. }, Answer::Waiting { place, position, next }) => {
                self.queued(place, position, next, now)
            }
            (Say::Acquire { .. }, Answer::Busy(listings)) => self.end(State::Busy(listings)),
            (Say::Acquire { .. }, Answer::Refused(refusal)) => self.end(State::Refused(refusal)),
            (Say::Renew { .. }, Answer::Unknown) => match self.state {
                // It was silent for too long, or taken for dead: it comes back to its place.
                State::Asking | State::Waiting => vec![self.acquire()],
                State::Replicating(_) | State::Held(_) => self.end(State::Lost),
                _ => vec![],
            },
            (Say::Replicate(wanted), Answer::Replicated(answered)) => match &self.state {
                State::Replicating(grant) if answered >= wanted => {
                    self.state = State::Held(grant.clone());
                    vec![]
                }
                State::Replicating(_) => self.end(State::TooFew(answered)),
                _ => vec![],
            },
            _ => return Err(Unexpected),
        })
    }

    fn acquire(&mut self) -> Say {
        self.heard = true;
        Say::Acquire { place: self.place, listening: self.listening }
    }

    fn renew(&self) -> Say {
        Say::Renew { listening: self.listening }
    }

    fn listen_and_renew(&mut self) -> Vec<Say> {
        self.listening = true;
        vec![Say::Listen, self.renew()]
    }

    fn granted(&mut self, lease: Lease, tokens: Vec<u64>, sent: Duration, now: Duration) -> Vec<Say> {
        if self.grant().is_some_and(|grant| grant.tokens != tokens) {
            // The server went back to an earlier state and granted what waited there anew: somebody
            // may have held it in between.
            return self.end(State::Lost);
        }
        self.lease = lease;
        let grant = Grant { tokens, deadline: Some(self.lease.deadline(sent)) };
        let listen_at = (!self.listening).then(|| now.saturating_add(LISTEN_AFTER));
        self.due = Some(listen_at.map_or(self.lease.renew_at(sent), |at| at.min(self.lease.renew_at(sent))));
        if self.replicas == 0 || matches!(self.state, State::Held(_)) {
            self.state = State::Held(grant);
            return vec![];
        }
        self.state = State::Replicating(grant);
        vec![Say::Replicate(self.replicas)]
    }

    fn queued(&mut self, place: u64, position: u32, next: Option<Duration>, now: Duration) -> Vec<Say> {
        if self.grant().is_some() {
            // The server has forgotten the grant and remembers the wait: it went back to an earlier
            // state.
            return self.end(State::Lost);
        }
        self.state = State::Waiting;
        self.place = place;
        let stagger = STAGGER.saturating_mul(position.saturating_sub(1)).min(STAGGER_MAX);
        let beat = self.heartbeat / 3;
        self.due = Some(now.saturating_add(next.map_or(beat, |next| beat.min(next.saturating_add(stagger)))));
        if self.listening { vec![] } else { self.listen_and_renew() }
    }

    fn end(&mut self, state: State) -> Vec<Say> {
        self.state = state;
        self.due = None;
        vec![]
    }
}

#[cfg(test)]
mod tests;
