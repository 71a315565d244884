//! Defines the request of a session: its id, its claims, and a description of its process for
//! people.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::kept::EVER;
use super::mode::Mode;
use super::resource::Resource;
use super::span::Span;
use crate::tables;
use rlock_sys::clock::{StoreTime, micros};

/// Maximum number of different resources that a request may claim.
pub const NAMES_MAX: usize = 256;
/// Maximum number of claims of a request.
pub const CLAIMS_MAX: usize = 1000;
/// The longest period for which a success, or what is remembered of a resource, is kept: more than
/// a year.
pub const PERIOD_MAX: Duration = Duration::from_secs(tables::PERIOD_MAX);
/// The number of entries that a ring keeps unless the request asks for another number.
pub const HISTORY: u32 = 32;

/// How far the clock of a machine may be ahead of the store's, so that its calendar counts.
pub const AHEAD_MAX: Duration = Duration::from_secs(tables::AHEAD_MAX);

/// The random 128-bit id of an rlock process that makes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionId(pub [u8; 16]);

/// The order of the bytes. Two numbers are compared faster than two lists of bytes.
impl Ord for SessionId {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        u128::from_be_bytes(self.0).cmp(&u128::from_be_bytes(other.0))
    }
}

impl PartialOrd for SessionId {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for SessionId {
    /// 32 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The error for a text that is not a session id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a session id has 32 hexadecimal digits")]
pub struct SessionIdError;

impl FromStr for SessionId {
    type Err = SessionIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(SessionIdError);
        }
        u128::from_str_radix(text, 16).map(|id| Self(id.to_be_bytes())).map_err(|_| SessionIdError)
    }
}

/// A resource, a mode and a span.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The resource that is claimed.
    pub resource: Resource,
    /// The mode in which the resource is claimed.
    pub mode: Mode,
    /// The part that is claimed. In mode slot the span is always the whole.
    pub span: Span,
    /// The number of slots of the resource, for mode slot only.
    pub slots: Option<u32>,
}

impl Claim {
    /// Whether a shrink to `span` concerns a hold of the claim. A slot has no parts to give up.
    pub fn shrinks_to(&self, span: &Span) -> bool {
        self.mode != Mode::Slot && self.span.covers(span)
    }
}

/// The resources of some claims, each once, in the order of their first mention.
pub fn resources<'c>(claims: impl IntoIterator<Item = &'c Claim>) -> Vec<&'c Resource> {
    let mut seen = BTreeSet::new();
    claims.into_iter().map(|claim| &claim.resource).filter(|name| seen.insert(*name)).collect()
}

/// These claims, with one for all slots of a resource.
pub fn distinct(claims: &[Claim]) -> impl Iterator<Item = &Claim> {
    claims.chunk_by(|one, other| one == other).filter_map(<[_]>::first)
}

/// These claims with their numbers, where all slots of a resource are one claim. The number is 1 in
/// the other modes.
pub fn counted(claims: &[Claim]) -> impl Iterator<Item = (&Claim, usize)> {
    let same = claims.chunk_by(|one, other| one.mode == Mode::Slot && one == other);
    same.filter_map(|same| Some((same.first()?, same.len())))
}

/// How many of these claims are claims of a slot of a resource.
pub fn slots_of<'c>(claims: impl IntoIterator<Item = &'c Claim>, resource: &Resource) -> usize {
    claims.into_iter().filter(|claim| claim.mode == Mode::Slot && claim.resource == *resource).count()
}

/// A description of the rlock process for people. The table bases no decision on it. The JSON of
/// listings has these fields by these names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The host name of the machine.
    pub host: String,
    /// The process id of rlock in its own PID namespace.
    pub pid: u32,
    /// The name of the user, or the user id if the user has no name.
    pub user: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The person or the system that the request is made for, if the caller named one.
    pub owner: Option<String>,
    /// The reason for the request, if the caller gave one.
    pub reason: Option<String>,
    /// The process with which the hold ends, if `acquire --pid` made the request. Only
    /// the record of the session has it in every store.
    #[serde(skip)]
    pub lasts_for: Option<Owner>,
}

/// A process of the machine of a session, by its number and its start, which no other process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The number in the PID namespace of the session.
    pub pid: u32,
    /// The start, in ticks since the boot.
    pub started: u64,
}

/// The lengths of the leases of a session. A store needs leases if it can't see whether a process
/// is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// How long a grant lasts unless the session renews it.
    pub ttl: Duration,
    /// How long a grant from the queue lasts unless the session claims it by its first renewal.
    pub claim: Duration,
    /// How long a waiter keeps its place unless the session renews it.
    pub heartbeat: Duration,
}

/// A request that is granted only if no run has succeeded lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OncePer {
    /// How long a success counts after its run began, and for how long the store keeps it.
    pub period: Duration,
    /// Success counts in the same hour, day, week, month or year instead. Such a period is shorter
    /// than `period`.
    pub calendar: Option<Calendar>,
}

/// The hour, day, week, month or year of a request, by the clock and in the zone of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calendar {
    /// The start of the one in which the request was made.
    pub start: StoreTime,
    /// The start of the next one.
    pub next: StoreTime,
}

impl OncePer {
    /// The instant that counts for a run that begins at this instant of the store.
    pub fn counted(&self, at: StoreTime) -> StoreTime {
        self.calendar.map_or(at, |calendar| calendar.counted(at))
    }

    /// Whether a success counts for a request at `now`.
    pub fn is_done(&self, began: StoreTime, now: StoreTime) -> bool {
        match self.calendar {
            Some(calendar) => began >= calendar.start_at(calendar.counted(now)),
            None => now < began + self.kept(),
        }
    }

    /// How long the store keeps a success. One that counts for ever is kept as long as a hold for
    /// ever.
    pub fn kept(&self) -> Duration {
        if self.period < EVER { self.period.min(PERIOD_MAX) } else { EVER }
    }
}

impl Calendar {
    /// A clock that is a little ahead of the store's calls cron a little early. Then the new period
    /// has begun for the store, too.
    fn counted(self, at: StoreTime) -> StoreTime {
        if self.start - at <= AHEAD_MAX { at.max(self.start) } else { at }
    }

    /// The start of the period that contains an instant. A request may wait, and clocks may differ,
    /// for longer than a period. Those that follow or precede the two known ones count as
    /// long as the first.
    fn start_at(self, at: StoreTime) -> StoreTime {
        let length = micros(self.next - self.start).max(1);
        // One of the two is 0.
        let (after, before) = (micros(at - self.start) % length, micros(self.start - at) % length);
        at - Duration::from_micros((length + after - before) % length)
    }
}

/// The command of a request as the store sees it: the name by which the store counts its skips and
/// successes, and what the store does about its holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The name.
    pub name: String,
    /// Whether the caller gave the name. Then its successes are remembered, and only they count for
    /// `once_per`.
    pub is_named: bool,
    /// Nothing is granted if a run has succeeded lately. Such a request has one claim: a write on a
    /// whole resource.
    pub once_per: Option<OncePer>,
    /// Whether a busy request counts as a skip of the job.
    pub skips: bool,
    /// The request is busy rather than queued if so many sessions wait for one of its resources. It
    /// means nothing once the request has a place in the queue, so no store keeps it.
    #[serde(skip)]
    pub max_waiting: Option<u32>,
    /// Whether the request supersedes the waiters of the same job. It means nothing once the
    /// request is granted or has a place in the queue, so no store keeps it.
    #[serde(skip)]
    pub supersedes: bool,
    /// How long the hold lasts from its grant even if the command ends sooner.
    pub hold_at_least: Option<Duration>,
    /// The grant is a kept hold that lasts so long, or for [`EVER`].
    pub keep_for: Option<Duration>,
    /// How long the resources remember what they know after the end of the hold, if that is longer
    /// than usual: at most [`PERIOD_MAX`].
    #[serde(skip)]
    pub remember: Option<Duration>,
    /// Whether `acquire` makes the request.
    pub is_acquire: bool,
    /// The number of entries that the history of each resource keeps.
    pub history: u32,
    /// The resources that the ancestors hold, as far as the caller knows. The search for a deadlock
    /// reads these resources to find the requests that wait for the ancestors. No decision of the
    /// table depends on them.
    pub held_above: Vec<Resource>,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            name: String::new(),
            is_named: false,
            once_per: None,
            skips: false,
            max_waiting: None,
            supersedes: false,
            hold_at_least: None,
            keep_for: None,
            remember: None,
            is_acquire: false,
            history: HISTORY,
            held_above: Vec::new(),
        }
    }
}

/// One or more claims, granted all together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The session that asks. A session makes one request only.
    pub session: SessionId,
    /// The sessions whose commands this session runs below, innermost first.
    pub ancestors: Vec<SessionId>,
    /// The claims of the request, at least one. The claims of one request never conflict with each
    /// other.
    pub claims: Vec<Claim>,
    /// Whether to queue the request if it can't be granted at once.
    pub wait: bool,
    /// The lengths of the leases, or none in a store where a session lives as long as its process.
    pub terms: Option<Terms>,
    /// The command of the request.
    pub job: Job,
    /// The rlock process of the session.
    pub process: Process,
}

impl Request {
    /// The sessions that a process below this request runs below, innermost first.
    pub fn chain(&self) -> Vec<SessionId> {
        std::iter::once(self.session).chain(self.ancestors.iter().copied()).collect()
    }
}

/// The place of a waiter in the queue, to which a request that was passed over returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The number of the request in the queue.
    pub number: u64,
    /// The instant of the request.
    pub asked: StoreTime,
}
