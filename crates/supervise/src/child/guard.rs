//! Keeps a guardian beside the command until no process needs one any more.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{WaitOptions, waitpid};

use super::super::guardian;
use super::super::signals::{Signals, show_reaped};
use super::Child;

impl Child {
    /// Starts another guardian in place of one that has died and was reaped, unless the tree has
    /// ended or too many have died.
    pub(super) fn replace_guardian(&mut self, signals: &Signals) -> io::Result<()> {
        (self.family.guardian, self.notes) = (None, None);
        if self.guardians_left > 0 && (self.pid().is_some() || self.awaits_rest) {
            self.guardians_left -= 1;
            let _blocked = signals.hold_back()?;
            // If the system has no memory or processes left, the command goes on unguarded, as it
            // does after too many guardians have died.
            let _ = self.start_guardian();
        }
        Ok(())
    }

    /// Starts another guardian in place of one that has ended.
    fn start_guardian(&mut self) -> io::Result<()> {
        let kept: Vec<_> = self.kept.iter().map(AsFd::as_fd).collect();
        (self.family.guardian, self.notes) = (None, None);
        let started = guardian::start(&self.ward, &kept)?;
        (self.family.guardian, self.notes) = (Some(started.pid), started.notes);
        Ok(())
    }

    /// Replaces the guardian by one that keeps no descriptor: the lock is about to be released,
    /// and the command goes on. Returns why there is none, if the system has no memory or processes
    /// left. The former one ends first, so that the other can have its place.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn guard_without_lock(&mut self, signals: &Signals) -> io::Result<Option<io::Error>> {
        let _blocked = signals.hold_back()?;
        self.kept.clear();
        self.family.guardian.take().map_or(Ok(()), guardian::end)?;
        Ok(self.start_guardian().err())
    }

    /// Tells the guardian to end, because no process needs a guardian any more. No other guardian
    /// follows, so the descriptors for it are closed. Otherwise the release would not show: rlock
    /// may have spare work left.
    pub(crate) fn dismiss_guardian(&mut self) {
        if self.awaits_rest {
            show_reaped(false);
        }
        self.guardians_left = 0;
        self.kept.clear();
        self.notes = None;
        self.family.guardian = self.family.guardian.filter(|guardian| guardian::dismiss(*guardian));
    }

    /// Waits for the end of the dismissed guardian. If process 1 reaps nothing, as in many
    /// containers, the guardian would stay a zombie for ever.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn reap_guardian(&mut self) -> io::Result<()> {
        if let Some(pid) = self.family.guardian.take() {
            waitpid(Some(pid), WaitOptions::empty())?;
        }
        Ok(())
    }
}
