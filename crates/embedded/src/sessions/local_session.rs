//! A session of this process, as far as it has come.

use rlock_model::past::End;
use rlock_model::request::{Place, Request};
use rlock_sys::clock::Boottime;

/// A session.
pub(super) struct LocalSession {
    pub(super) stage: Stage,
    /// The number of its claims.
    pub(super) claims: usize,
    pub(super) is_due: bool,
    /// The last place in the queue; the number is 0 if the request never waited.
    pub(super) place: Place,
}

/// What a session has, or is about to do.
pub(super) enum Stage {
    /// The table does not contain the request yet.
    Asking(Box<Request>),
    /// The request is queued.
    Waiting(Box<Request>),
    /// The request is granted.
    Granted,
    /// The place in the queue is to be released. Nothing is left to report.
    LeavingQueue,
    /// The grant is to be released.
    Releasing {
        /// How the command ended.
        end: Option<End>,
        /// The result is reported at this instant at the latest; `None` if nothing is left to
        /// report.
        report_by: Option<Boottime>,
    },
}
