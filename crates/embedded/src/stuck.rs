//! Notices that the lock on the state is not free for too long: the process that holds it may be
//! stopped.

use std::time::Duration;

use super::directory::Directory;
use rlock_store::error::Error;
use rlock_sys::clock::Boottime;
use rlock_words::Explained;

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
