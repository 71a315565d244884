//! Waits for the lock on the state without blocking the poll loop, and notices that the lock is not
//! free for too long: the process that holds it may be stopped.
//!
//! flock(2) either fails at once or blocks, and no descriptor tells when a lock becomes free. A
//! process holds the lock for microseconds, so this process first tries the lock a few times. A
//! process that holds the lock longer is stopped or hangs. Then a thread blocks on the lock, and a
//! bell reports that the thread has it.

//!
//! The lock belongs to the open file, so the process and the thread have the lock together, and an
//! unlock by one of them unlocks the file for both. Hence two rules. First, while a thread waits,
//! the process does not try the lock itself: [`LockWait::get`] takes up the wait that has begun.
//! The process abandons the thread only if it needs the lock no more. Second, exactly one of the two
//! answers for a lock that the thread got. Each swaps its mark into the state once, and the old
//! mark decides:
//!
//! | swap by | new mark | old mark | unlock by |
//! | --- | --- | --- | --- |
//! | the thread, when flock(2) returns | `LOCKED` or `FAILED` | `WAITING` | the process, later |
//! | the thread, when flock(2) returns | `LOCKED` or `FAILED` | `ABANDONED` | the thread, at once |
//! | the process, to take the lock | `ABANDONED` | `LOCKED` | the process, after its transaction |
//! | the process, as it gives up | `ABANDONED` | `LOCKED` | the process, at once |
//! | the process, as it gives up | `ABANDONED` | `WAITING` | the thread, when it has the lock |

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::directory::Directory;
use rlock_store::error::Error;
use rlock_sys::background::{self, Bell};
use rlock_sys::clock::Boottime;
use rlock_words::Explained;

/// The number of attempts before a thread blocks. The attempts take as long as a few transactions
/// of other processes, and less time than a thread costs.
const TRIES: u32 = 16;
/// A small stack suffices for a thread that makes two system calls.
const STACK_BYTES: usize = 64 << 10;

/// The progress of this process on its way to the lock.
#[derive(Debug, Default)]
pub(super) struct LockWait(Option<Blocked>);

impl LockWait {
    /// Gets the lock, and returns whether it came within `limit`, if there is a limit. If not, the
    /// wait goes on in the background: see [`descriptor`](Self::descriptor).
    pub(super) fn get(&mut self, lock: BorrowedFd<'_>, limit: Option<Duration>) -> io::Result<bool> {
        if self.0.is_none() {
            for _ in 0..TRIES {
                match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
                    Err(Errno::WOULDBLOCK) => thread::yield_now(),
                    Err(Errno::INTR) => {}
                    locked => return Ok(locked.map(|()| true)?),
                }
            }
        }
        let Some(limit) = limit else { return block(lock).map(|()| true) };
        let blocked = match &mut self.0 {
            Some(blocked) => blocked,
            none => none.insert(Blocked::start(lock)?),
        };
        if !blocked.wait(limit)? {
            return Ok(false);
        }
        let outcome = blocked.take();
        self.0 = None;
        outcome.map(|()| true)
    }

    /// The descriptor that becomes readable when the background thread has the lock.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|blocked| blocked.bell.as_fd())
    }
}

/// Waits for the lock in this thread.
fn block(lock: impl AsFd) -> io::Result<()> {
    loop {
        match rustix::fs::flock(&lock, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            locked => return Ok(locked?),
        }
    }
}

/// A thread that waits for the lock.
#[derive(Debug)]
struct Blocked {
    bell: Arc<Bell>,
    shared: Arc<Shared>,
}

/// The state that both threads share. The lock belongs to the open file and thus to the process,
/// whichever thread gets it.
#[derive(Debug)]
struct Shared {
    lock: OwnedFd,
    state: AtomicU8,
}

const WAITING: u8 = 0;
const LOCKED: u8 = 1;
const FAILED: u8 = 2;
/// The process does not wait for the lock any more.
const ABANDONED: u8 = 3;

impl Blocked {
    fn start(lock: BorrowedFd<'_>) -> io::Result<Self> {
        let bell = Arc::new(Bell::new()?);
        let shared = Arc::new(Shared { lock: lock.try_clone_to_owned()?, state: AtomicU8::new(WAITING) });
        let (told, theirs) = (Arc::clone(&bell), Arc::clone(&shared));
        background::spawn(thread::Builder::new().stack_size(STACK_BYTES), move || theirs.get(&told))?;
        Ok(Self { bell, shared })
    }

    /// Waits at most `limit` for the thread. Returns whether the thread has finished.
    fn wait(&self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
            match poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], left.as_ref()) {
                Err(Errno::INTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }

    /// Takes over the lock from the thread.
    fn take(&self) -> io::Result<()> {
        match self.shared.state.swap(ABANDONED, Ordering::AcqRel) {
            LOCKED => Ok(()),
            _ => Err(io::Error::other("its lock can't be had")),
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if self.shared.state.swap(ABANDONED, Ordering::AcqRel) == LOCKED {
            self.shared.unlock();
        }
    }
}

impl Shared {
    fn get(&self, told: &Bell) {
        let state = if block(&self.lock).is_ok() { LOCKED } else { FAILED };
        if self.state.swap(state, Ordering::AcqRel) == ABANDONED {
            self.state.store(ABANDONED, Ordering::Release);
            self.unlock();
            return;
        }
        told.ring();
    }

    fn unlock(&self) {
        // The call fails only for a descriptor that is not open.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

/// The time without the lock and without a change by another process after which it counts as
/// trouble. A transaction takes microseconds. On a crowded machine, though, the process that holds
/// the lock may have to wait more than a second for a processor.
pub(super) const TROUBLE_AFTER: Duration = Duration::from_secs(5);

/// How long the lock has not been free. The default is a free lock.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    since: Option<Boottime>,
    /// The last change of the lock file when the lock was last found taken. A new change shows that
    /// other processes make progress.
    progress: Option<(i64, i64)>,
}

impl Stuck {
    /// Notes that the lock was not free. Progress of other processes is not trouble: a crowd is
    /// served one by one.
    pub(super) fn note(&mut self, directory: &Directory) {
        let progress = directory.last_change();
        if self.since.is_none() || self.progress != progress {
            *self = Self { since: Some(Boottime::now()), progress };
        }
    }

    /// The instant at which the wait counts as trouble, unless another process makes progress.
    pub(super) fn trouble_at(&self) -> Option<Boottime> {
        self.since.map(|since| since + TROUBLE_AFTER)
    }

    pub(super) fn is_trouble(&self, now: Boottime) -> bool {
        self.trouble_at().is_some_and(|at| at <= now)
    }

    pub(super) fn error(directory: &Directory) -> Error {
        directory.unusable(Explained::with_semicolon(
            "its lock was not free for 5 seconds: another rlock works on it for long, or is stopped",
            "try again, or look for a stopped rlock and continue or end it",
        ))
    }
}
