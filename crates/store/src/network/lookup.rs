//! Runs in a thread what may block, and closes a pipe when it ends, so that a poll loop can wait
//! for it.

use std::io::{self, PipeReader, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use rustix::event::PollFlags;

use super::pool::Pool;

/// The threads of all lookups. Nothing ends a thread that is blocked in the resolver, so their
/// number has a limit.
static THREADS: Pool = Pool::new(16);

/// A lookup in a thread.
pub struct Lookup<T> {
    /// Ends with the lookup.
    end: PipeReader,
    /// Lives as long as somebody waits for the result.
    _waits: Arc<()>,
    found: Receiver<T>,
}

impl<T: Send + 'static> Lookup<T> {
    /// Begins to look.
    ///
    /// # Errors
    /// The kernel has no thread or no pipe to spare.
    pub fn begin(find: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, found) = channel();
        let waits = Arc::new(());
        let (end, running) = pipe()?;
        let run = move || {
            // Nobody may wait for the result any more.
            let _ = sender.send(find());
            drop(running);
        };
        THREADS.run(&waits, run)?;
        Ok(Self { end, _waits: waits, found })
    }

    /// The descriptor to poll.
    pub fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.end.as_fd(), PollFlags::IN)
    }

    /// The result, once there is one. It is given once.
    ///
    /// # Errors
    /// The lookup ended without a result.
    pub fn result(&self) -> Result<Option<T>, NoResult> {
        match self.found.try_recv() {
            Ok(result) => Ok(Some(result)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(NoResult),
        }
    }
}

/// A lookup has ended without a result.
pub struct NoResult;
