//! The requests of a process at a store with leases. All of this is pure: it has no clock and no
//! I/O.
//!
//! - `client`: what one session says about its lock, and what the replies mean.
//! - `driver`: whose turn it is on the connection of many sessions, and what a server means for
//!   each that is silent or fails. `member`: one of them. `releasing`: the end of one.
//! - `line`: when the next connection may be opened, and what has failed.
//! - `release`: how long a release waits, and what it comes to. `retry`: which failures are worth
//!   another attempt.

mod client;
mod driver;
mod line;
mod release;
mod retry;

pub use client::{Command, LeaseClient, LeaseReply, State};
pub use driver::{Driver, Parts, Release, Server};
pub use line::Line;
pub use release::old_limit;
pub use retry::{FailureClass, Retry};
