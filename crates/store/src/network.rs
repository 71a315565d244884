//! Moves bytes between this process and servers, and never blocks a poll loop. This module knows
//! neither a protocol nor a store.
//!
//! - `stream`: a socket with or without TLS (`tls`).
//! - `resolve`: resolves names, and connects to one of several addresses.
//! - `lookup`: does in a thread what may block.
//! - `error`: why a server cannot be reached. `wait` is for calls that block.

mod error;
pub mod lookup;
pub mod resolve;
pub mod stream;
pub mod tls;

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use error::Spelling;
pub use error::{NetworkError, Stage};
use rlock_sys::clock::Boottime;

/// Waits until a descriptor is ready, or until an instant, where no poll loop runs. The wait may end
/// early: by a signal, or by an error, which the next use of the descriptor shows.
pub fn wait(descriptors: &[(BorrowedFd<'_>, PollFlags)], until: Option<Boottime>) {
    let polled = descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags));
    // A time that the kernel can't express is longer than anybody waits.
    let timeout = until.and_then(|until| Timespec::try_from(until - Boottime::now()).ok());
    let _ = poll(&mut polled.collect::<Vec<_>>(), timeout.as_ref());
}
