//! What can be asked of the table and what it answers.

use std::fmt;

use super::mode::Mode;
use super::request::{Micros, Process, Request, SessionId};
use super::resource::Resource;
use super::span::Span;

/// An operation on the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Asks for a request to be granted or queued. Asked again, it says how the request stands.
    Acquire(Request),
    /// Shows that a session is alive: a waiter keeps its place, a holder its grant, a new holder
    /// claims it.
    Renew(SessionId),
    /// Gives back a grant, or a place in the queue.
    Release(SessionId),
    /// Gives up waiting; a grant that came meanwhile is given back. Told apart from a release only
    /// by its name.
    Cancel(SessionId),
    /// Gives up the part of a held interval that lies outside `span`.
    Shrink {
        /// Who holds it.
        session: SessionId,
        /// What is held.
        resource: Resource,
        /// What is kept of it.
        span: Span,
    },
    /// Lowers the mode of what a session holds of a resource.
    Downgrade {
        /// Who holds it.
        session: SessionId,
        /// What is held.
        resource: Resource,
        /// The lower mode.
        mode: Mode,
    },
    /// Drops every session whose lease is over. Every other operation does this first.
    Expire,
    /// Drops a session whose process is known to be dead.
    Reap(SessionId),
    /// Takes away whatever is held of a resource, with all else that its holders hold.
    Break(Resource),
    /// Tells who holds and who waits: of the resources named, or of all.
    Inspect(Vec<Resource>),
}

/// What the table answers, and whom else it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer.
    pub reply: Reply,
    /// The waiters whose requests this operation granted, in that order.
    pub granted: Vec<SessionId>,
    /// The sessions whose leases were over.
    pub expired: Vec<SessionId>,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The session is a holder.
    Granted {
        /// How much is left of its lease, or none where it lives as long as its process.
        lease: Option<Micros>,
        /// Its tokens, claim by claim.
        tokens: Vec<u64>,
    },
    /// The session is a waiter.
    Waiting,
    /// It would have had to wait; these sessions were in its way, see
    /// [`super::table::LockTable::blockers`].
    Busy(Vec<SessionId>),
    /// It can never be granted.
    Refused(Refusal),
    /// It is done.
    Done,
    /// What the session held, or its place in the queue, is given back: the tokens, claim by claim,
    /// each 0 for one who waited.
    Released(Vec<u64>),
    /// The session neither holds nor waits, any more or ever.
    Unknown,
    /// The sessions whose grants were taken away.
    Broken(Vec<SessionId>),
    /// Who holds and who waits.
    Listing(Vec<ResourceListing>),
}

/// Why something can never be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// What an ancestor holds can't become what is asked.
    CannotGrow {
        /// Of which resource.
        resource: Resource,
        /// How the ancestor holds it.
        held: Mode,
        /// What was asked.
        asked: Mode,
    },
    /// The claim reaches past what an ancestor holds.
    ReachesPast {
        /// Of which resource.
        resource: Resource,
        /// What the ancestor holds.
        held: Span,
        /// What was asked.
        asked: Span,
    },
    /// The resource is shared in another number of slots.
    SlotsDiffer {
        /// Which resource.
        resource: Resource,
        /// The number in force.
        in_force: u32,
        /// The number asked.
        asked: u32,
    },
    /// Nothing is held that could be shrunk or downgraded.
    NotHeld {
        /// Of which resource.
        resource: Resource,
    },
    /// The new span is not inside one that is held.
    NotInside {
        /// Of which resource.
        resource: Resource,
        /// What was asked.
        asked: Span,
    },
    /// What is held is a slot.
    SlotIsWhole {
        /// Of which resource.
        resource: Resource,
    },
    /// The new mode is not below the one held.
    NotBelow {
        /// Of which resource.
        resource: Resource,
        /// The mode held.
        held: Mode,
        /// What was asked.
        asked: Mode,
    },
    /// A nested request waits for something that relies on what would be given up.
    NestedWaits {
        /// Of which resource.
        resource: Resource,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CannotGrow { resource, held, asked } => write!(
                f,
                "an enclosing rlock holds '{resource}' for {held}, which can't become {asked} without risk of deadlock: \
                 claim --{} there instead",
                if *asked == Mode::Write { "prewrite or --write" } else { asked.as_str() }
            ),
            Self::ReachesPast { resource, held, asked } => write!(
                f,
                "an enclosing rlock holds {held} of '{resource}', and {} reaches past that: claim all of it there, \
                 or no more than that here",
                if asked.is_whole() { "the whole of it".to_owned() } else { asked.to_string() }
            ),
            Self::SlotsDiffer { resource, in_force, asked } => write!(
                f,
                "'{resource}' is shared in {in_force} slots as long as anybody holds or waits for one, not in {asked}: \
                 ask for {resource}={in_force}"
            ),
            Self::NotHeld { resource } => {
                write!(f, "this session holds nothing of '{resource}': name what it holds with --resource")
            }
            Self::NotInside { resource, asked } => write!(
                f,
                "{asked} is not inside what this session holds of '{resource}': a hold can only shrink, \
                 'rlock inspect' shows it"
            ),
            Self::SlotIsWhole { resource } => {
                write!(f, "this session holds a slot of '{resource}', which has no parts to give up")
            }
            Self::NotBelow { resource, held, asked } => write!(
                f,
                "what this session holds of '{resource}' can't be lowered from {held} to {asked}: a hold is lowered from \
                 write to prewrite or read, or from prewrite to read"
            ),
            Self::NestedWaits { resource } => write!(
                f,
                "a nested rlock waits for '{resource}' on the strength of this hold: let it finish or end it first"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// Who holds a resource and who waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceListing {
    /// Its name.
    pub name: Resource,
    /// What is held, by token and session.
    pub holders: Vec<HolderListing>,
    /// What waits, in the order of the queue.
    pub waiters: Vec<WaiterListing>,
}

/// A held claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderListing {
    /// Who holds it.
    pub session: SessionId,
    /// How.
    pub mode: Mode,
    /// How much of it.
    pub span: Span,
    /// Of how many slots, in mode slot.
    pub slots: Option<u32>,
    /// The fencing token.
    pub token: u64,
    /// Since when.
    pub since: Micros,
    /// When the lease is over, where there is one.
    pub expiry: Option<Micros>,
    /// The process.
    pub process: Process,
}

/// A waiting claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterListing {
    /// Who waits.
    pub session: SessionId,
    /// How.
    pub mode: Mode,
    /// For how much of it.
    pub span: Span,
    /// Of how many slots, in mode slot.
    pub slots: Option<u32>,
    /// Since when.
    pub since: Micros,
    /// The place in the queue of this resource; the first is 1.
    pub position: u32,
    /// The process.
    pub process: Process,
}
