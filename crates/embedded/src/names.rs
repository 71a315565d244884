//! Watches the names of the beacons of holders that a line on the terminal names.
//!
//! A pipe does not show the end of a session whose process goes on, such as that of a client of
//! `rlock serve`. But that process then removes the session's name of the pipe, which changes the
//! pipe's number of names. All its sessions do that, so only a missing name counts.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, statat};

use super::beacon::Watched;
use super::directory::Directory;
use rlock_model::request::SessionId;

/// The watched names.
#[derive(Debug)]
pub(super) struct Names {
    changes: OwnedFd,
    sessions: Vec<SessionId>,
}

impl Names {
    /// Watches the names of these holders. `None` if nothing is to be watched, or if the user has
    /// too many watches: the line then names a holder that has released until something else
    /// changes.
    pub(super) fn watch(holders: &[Watched]) -> Option<Self> {
        if holders.is_empty() {
            return None;
        }
        let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        for (_, pipe) in holders {
            inotify::add_watch(&changes, format!("/proc/self/fd/{}", pipe.as_raw_fd()), WatchFlags::ATTRIB).ok()?;
        }
        Some(Self { changes, sessions: holders.iter().map(|(session, _)| *session).collect() })
    }

    /// Whether any of the holders has removed its name.
    pub(super) fn is_any_gone(&self, directory: &Directory) -> bool {
        let is_gone = |id: &SessionId| statat(directory, id.to_string(), AtFlags::SYMLINK_NOFOLLOW).is_err();
        self.sessions.iter().any(is_gone)
    }

    /// Takes the reports of changes. Returns whether there were any.
    pub(super) fn take_changes(&self) -> bool {
        let mut reports = [0; 4096];
        let mut found = false;
        while rustix::io::read(&self.changes, &mut reports).is_ok_and(|read| read > 0) {
            found = true;
        }
        found
    }
}

impl AsFd for Names {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}
