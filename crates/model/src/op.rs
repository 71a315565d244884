//! Defines the operations that the lock table accepts, and their replies.

use std::time::Duration;

use thiserror::Error;

use super::mode::Mode;
use super::past::{End, Ending, JOBS_MAX, Streak};
use super::records::Revocation;
use super::request::{Place, Process, Request, SessionId};
use super::resource::Resource;
use super::span::Span;
use rlock_sys::clock::StoreTime;

/// An operation on the table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "an operation lives as long as one call")]
pub enum Op {
    /// Asks the table to grant or queue a request. For a known session, the reply tells whether its
    /// request is granted or waits.
    Acquire {
        /// The request.
        request: Request,
        /// The place in the queue of a request that was passed over and is made again. The request
        /// returns to it, unless another request has its number.
        place: Option<Place>,
    },
    /// Shows that a session is alive. A waiter keeps its place and a holder its grant. The first
    /// renewal of a grant from the queue claims the grant.
    Renew(SessionId),
    /// Gives back a grant or a place in the queue.
    Release {
        /// The session that holds or waits.
        session: SessionId,
        /// How the command ended that ran under the grant, or none if no command ran or its end is
        /// not known. The history then has no entry of the hold; only the totals count it.
        end: Option<End>,
    },
    /// Leaves the queue because the wait took too long, and counts the request as busy. If the
    /// request was granted in the meantime, the session keeps the grant.
    GiveUp(SessionId),
    /// Changes what a session holds.
    Change {
        /// The session.
        session: SessionId,
        /// What becomes of its hold.
        change: Change,
    },
    /// Removes every session whose lease has ended. Every other operation does this first.
    Expire,
    /// Removes a session whose process is known to be dead. A kept hold stays.
    Reap {
        /// The session.
        session: SessionId,
        /// The instant of the end of its process tree, if it is known.
        ended: Option<StoreTime>,
    },
    /// Revokes every grant on a resource, or only one. A session whose command may run gives its
    /// grant back itself, and holds all of its claims until then; any other session leaves at once.
    Break {
        /// The resource.
        resource: Resource,
        /// The one holder to break, if not all are meant.
        only: Option<SessionId>,
        /// The process that revokes the grants; `None` if all of these sessions leave at once,
        /// whether or not their commands run.
        by: Option<Process>,
    },
    /// Removes what an unused resource remembers. A resource that is held or waited for keeps all.
    Forget(Resource),
    /// Lists the holders and waiters of the named resources, or of all resources if none is named.
    Inspect(Vec<Resource>),
}

/// What becomes of a hold that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Gives up the parts outside `span` of the held intervals that contain it.
    Shrink {
        /// The resource of the held claim.
        resource: Resource,
        /// The span that the session keeps.
        span: Span,
    },
    /// Lowers the mode of the claims that the session holds on a resource.
    Downgrade {
        /// The resource of the held claim.
        resource: Resource,
        /// The lower mode.
        mode: Mode,
    },
    /// Lets a kept hold that `acquire` made last longer.
    Extend {
        /// How long the hold lasts from now, or none for as long as its request asked. The hold
        /// never ends sooner than before.
        by: Option<Duration>,
    },
}

impl Change {
    /// The resource of which the session gives up a part.
    pub fn frees(&self) -> Option<&Resource> {
        match self {
            Self::Shrink { resource, .. } | Self::Downgrade { resource, .. } => Some(resource),
            Self::Extend { .. } => None,
        }
    }
}

/// The reply of the table, and the other sessions that the operation affected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The reply to the session that sent the operation.
    pub reply: Reply,
    /// The waiters to wake: those that this operation granted, in the order of their grants, and
    /// those that left the queue because their jobs are done. The latter find out when they ask
    /// again.
    pub granted: Vec<SessionId>,
    /// The sessions that were removed because their leases had ended.
    pub expired: Vec<SessionId>,
}

/// The reply to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The session is a holder.
    Granted {
        /// The remaining length of the lease, or none if the grant lasts as long as the process.
        lease: Option<Duration>,
        /// The token of each claim, in the order of the claims.
        tokens: Vec<u64>,
        /// The number of each held slot, in the order of the claims.
        slots: Vec<u32>,
        /// How the last hold of the first resource had ended at the grant, if that is known.
        last: Option<Ending>,
        /// Whether the grant is revoked, so that the session has to give it back.
        is_revoked: bool,
    },
    /// The session is a waiter.
    Waiting,
    /// The request would have to wait, or has waited for too long.
    Busy {
        /// The sessions that block a request without a wait, as
        /// [`super::table::LockTable::blockers`] names them.
        blockers: Vec<SessionId>,
        /// The skips of the job in a row, if this request counts as a skip.
        streak: Option<Streak>,
    },
    /// A newer request of the job has superseded this one, which has returned to its place.
    Superseded {
        /// The process that made the newer request.
        by: Process,
        /// The skips of the job in a row, if this request counts as a skip.
        streak: Option<Streak>,
    },
    /// A run has succeeded so lately that this request is not granted.
    AlreadyDone,
    /// The request or the change can never be granted.
    Refused(Refusal),
    /// The operation succeeded.
    Done,
    /// The session released its grant or its place in the queue. The reply has a token for each
    /// claim; the tokens of a waiter are 0.
    Released(Vec<u64>),
    /// The command has ended, and the grant is now a kept hold that ends at this instant.
    KeptUntil(StoreTime),
    /// The session is unknown: it never held or waited, or it no longer does.
    Unknown,
    /// The holders whose grants are revoked or were taken away.
    Broken(Vec<SessionId>),
    /// The holders and waiters of each listed resource.
    Listing(Vec<ResourceListing>),
}

/// The reason why a request or a change can never be granted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// An ancestor's hold can't grow into the requested mode.
    #[error(
        "an enclosing rlock holds '{resource}' for {held}, which can't become {asked} without risk of deadlock: \
         claim --{} there instead",
        match asked {
            Mode::Write if resource.as_str() == Resource::PATHS => "path",
            Mode::Write => "prewrite or --write",
            _ => asked.as_str(),
        }
    )]
    CannotGrow {
        /// The resource that the request or the change names.
        resource: Resource,
        /// The mode of the ancestor's hold.
        held: Mode,
        /// The requested mode.
        asked: Mode,
    },
    /// The claim reaches past the span of an ancestor's hold.
    #[error(
        "an enclosing rlock holds {held} of '{resource}', and {} reaches past that: claim all of it there, \
         or no more than that here",
        if asked.is_whole() { "the whole of it".to_owned() } else { asked.to_string() }
    )]
    ReachesPast {
        /// The resource that the request or the change names.
        resource: Resource,
        /// The span of the ancestor's hold.
        held: Span,
        /// The requested span.
        asked: Span,
    },
    /// The claims share the slots of an ancestor, which has fewer.
    #[error(
        "an enclosing rlock holds {held} of the slots of '{resource}', and this asks for more: claim as many there, \
         or no more than that here"
    )]
    TooFewSlots {
        /// The resource that the request names.
        resource: Resource,
        /// The number of slots that the ancestor holds.
        held: u32,
    },
    /// The session holds no claim that it could shrink or downgrade.
    #[error("this session holds nothing of '{resource}': name what it holds with --resource")]
    NotHeld {
        /// The resource that the request or the change names.
        resource: Resource,
    },
    /// The new span is not inside a held span.
    #[error(
        "{asked} is not inside what this session holds of '{resource}': a hold can only shrink, \
         'rlock inspect' shows it"
    )]
    NotInside {
        /// The resource that the request or the change names.
        resource: Resource,
        /// The requested span.
        asked: Span,
    },
    /// The held claim is a slot, which can't shrink.
    #[error("this session holds a slot of '{resource}', which has no parts to give up")]
    SlotIsWhole {
        /// The resource that the request or the change names.
        resource: Resource,
    },
    /// The new mode is not below the held mode.
    #[error(
        "what this session holds of '{resource}' can't be lowered from {held} to {asked}: a hold is lowered from \
         write to prewrite or read, or from prewrite to read"
    )]
    NotBelow {
        /// The resource that the request or the change names.
        resource: Resource,
        /// The mode of the held claim.
        held: Mode,
        /// The requested mode.
        asked: Mode,
    },
    /// The session has no kept hold that `acquire` made, so nothing extends it.
    #[error("only what 'rlock acquire --for' has locked can be extended: a lock with a process lasts as long as it")]
    NotKept,
    /// The store keeps no more successes of jobs of the resource.
    #[error(
        "{JOBS_MAX} jobs of '{resource}' have succeeded within their periods, and no more can be kept: use another KEY for \
         this job, or wait until a period is over"
    )]
    TooManyJobs {
        /// The resource that the request names.
        resource: Resource,
    },
    /// A nested request waits and relies on the part that would be given up.
    #[error("a nested rlock waits for '{resource}' on the strength of this hold: let it finish or end it first")]
    NestedWaits {
        /// The resource that the request or the change names.
        resource: Resource,
    },
}

/// The holders and waiters of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceListing {
    /// The name of the resource.
    pub name: Resource,
    /// The held claims, ordered by token and session. The slots of a session are one claim.
    pub holders: Vec<HolderListing>,
    /// The waiting claims, in the order of the queue. The slots of a session are one claim.
    pub waiters: Vec<WaiterListing>,
}

/// A held claim, or all slots of the resource that the session holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderListing {
    /// The session that holds the claim.
    pub session: SessionId,
    /// The mode of the claim.
    pub mode: Mode,
    /// The span of the claim.
    pub span: Span,
    /// The number of slots of the resource, for mode slot only.
    pub slots: Option<u32>,
    /// How many slots the session holds; 1 in the other modes.
    pub count: usize,
    /// The numbers of these slots; none in the other modes.
    pub numbers: Vec<u32>,
    /// The fencing token.
    pub token: u64,
    /// The instant at which the session became a holder.
    pub since: StoreTime,
    /// The instant at which the lease or the kept hold ends, if it has an end.
    pub expiry: Option<StoreTime>,
    /// Whether the claim is held without a process, until the expiry.
    pub kept: bool,
    /// The revocation of the grant, if there is one.
    pub revoked: Option<Revocation>,
    /// The sessions whose commands this session runs below, innermost first.
    pub ancestors: Vec<SessionId>,
    /// The rlock process of the session.
    pub process: Process,
    /// What the command needs before it starts, if the session waits for room on this machine. No
    /// store knows that.
    pub gate: Option<String>,
}

impl HolderListing {
    /// Whether the lease or the kept hold is over. A server lists it until somebody uses its
    /// resource, but it blocks no request.
    pub fn is_over(&self, now: StoreTime) -> bool {
        self.expiry.is_some_and(|expiry| expiry <= now)
    }
}

/// A waiting claim, or all slots of the resource that the session waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterListing {
    /// The session that waits.
    pub session: SessionId,
    /// The mode of the claim.
    pub mode: Mode,
    /// The span of the claim.
    pub span: Span,
    /// The number of slots of the resource, for mode slot only.
    pub slots: Option<u32>,
    /// How many slots the session waits for; 1 in the other modes.
    pub count: usize,
    /// The instant of the request, also if the session was passed over and has returned.
    pub since: StoreTime,
    /// The place of the request in the queue of this resource; the first place is 1.
    pub position: u32,
    /// The sessions whose commands this session runs below, innermost first.
    pub ancestors: Vec<SessionId>,
    /// The rlock process of the session.
    pub process: Process,
}
