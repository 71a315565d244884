//! The constants and tables that the model and the scripts of a server share.
//!
//! The build script includes this file and writes the values into the scripts, so it uses nothing
//! of the crate.

/// The format of the keys on a server.
pub const FORMAT: u32 = 4;

/// See [`RETENTION`](crate::past::RETENTION), in seconds.
pub const RETENTION: u64 = 7 * 24 * 60 * 60;
/// See [`RETENTION_OF_TOTALS`](crate::past::RETENTION_OF_TOTALS), in seconds.
pub const RETENTION_OF_TOTALS: u64 = 60 * 60;
/// Maximum number of entries of a ring that tell of waits, and the part of the ring that they may
/// take at most: one of so many entries.
pub const WAITS_MAX: usize = 8;
/// See [`WAITS_MAX`].
pub const WAITS_SHARE: usize = 4;
/// How soon after the last one a busy request without a wait makes no new entry, in seconds.
pub const WAITS_APART: u64 = 1;
/// See [`PERIOD_MAX`](crate::request::PERIOD_MAX), in seconds.
pub const PERIOD_MAX: u64 = 400 * 24 * 60 * 60;
/// See [`AHEAD_MAX`](crate::request::AHEAD_MAX), in seconds.
pub const AHEAD_MAX: u64 = 60;
/// See [`KEPT_MAX`](crate::kept::KEPT_MAX), in seconds.
pub const KEPT_MAX: u64 = 7 * 24 * 60 * 60;
/// See [`EVER`](crate::kept::EVER), in microseconds.
pub const EVER: u64 = 1 << 52;
/// See [`StoreTime::NEVER`](rlock_sys::clock::StoreTime::NEVER).
pub const NEVER: u64 = 1 << 53;

/// Maximum number of jobs that a resource remembers. A request for one run in a period of one more
/// job is refused if all of them have succeeded within their periods.
pub const JOBS_MAX: usize = 1000;

/// Maximum number of waiting claims among which a request looks for the waiters that it supersedes.
pub const SUPERSEDED_MAX: usize = 500;

/// Maximum number of claims of overtaken waiters with which a nested request compares the waiters
/// behind them. Beyond these, it heeds the waiters that wait for an overtaken waiter only.
pub const OVERTAKEN_MAX: usize = 64;
/// Maximum number of waiters at the head of a queue among which a nested request looks for one that
/// waits for its ancestor, and of waiters behind a request that returns to its place whose other
/// queues are tried.
pub const HEADS_AHEAD: usize = 64;
/// Maximum number of names for which a script asks because of the waiters of a queue, and of names
/// of waiters behind a request that returns to its place.
pub const HEAD_NAMES: usize = 50;
/// Maximum number of resources of a session for which each of its records on a server has all
/// names, so that one more call suffices to declare all. With more resources, only the record at
/// the first resource has all names, and the other records name the first resource. So the records
/// of a request take memory in proportion to its names.
pub const FEW: usize = 16;

/// Whether claims of two modes clash. The rows and columns are read, prewrite, write and slot.
pub const CLASHES: [[bool; 4]; 4] =
    [[false, false, true, false], [false, true, true, false], [true, true, true, true], [false, false, true, false]];

/// How a claim is treated below an ancestor's hold; see [`Mode::below`](crate::mode::Mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nesting {
    /// The ancestor's hold already includes the claim, so the claim is granted at once, past any
    /// queue.
    AtOnce,
    /// The claim may wait for holders of other sessions, but for no waiter. If it waited for a
    /// session that waits for the ancestor, it would wait for ever.
    Waits,
    /// The claim is never granted, because waiting for it could deadlock.
    Refused,
}

use Nesting::{AtOnce, Refused, Waits};

/// What becomes of a claim below an ancestor's hold. The rows are the modes of the hold, and the
/// columns those of the claim: read, prewrite, write and slot.
pub const BELOW: [[Nesting; 4]; 4] = [
    [AtOnce, Refused, Refused, Waits],
    [AtOnce, AtOnce, Waits, Waits],
    [AtOnce, AtOnce, AtOnce, AtOnce],
    [AtOnce, Refused, Refused, AtOnce],
];
