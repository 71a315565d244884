//! Threads for the few calls that have no non-blocking form, and the descriptor by which a thread
//! reports to a poll loop.
//!
//! Signals belong to the thread that runs the poll loop, so all others block them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

use crate::signals::block_all;

/// Starts a thread that no signal reaches.
///
/// # Errors
/// The kernel has no thread to spare.
pub fn spawn<T: Send + 'static>(
    thread: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let _blocked = block_all()?;
    thread.spawn(run)
}

/// A descriptor that is ready from a [`ring`](Self::ring) in any thread to the next
/// [`silence`](Self::silence).
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// The kernel has no descriptor to spare.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor ready. Any thread may ring.
    pub fn ring(&self) {
        // A write of one to an eventfd that is read now and then cannot fail.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.0, &1_u64.to_ne_bytes()));
    }

    /// Makes the descriptor not ready. Returns how often the bell has rung since the last call.
    pub fn silence(&self) -> u64 {
        let mut count = [0; 8];
        // A read that is interrupted leaves the count, which would count as the second one.
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut count));
        read.map_or(0, |_| u64::from_ne_bytes(count))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
