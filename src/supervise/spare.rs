//! Runs work by /bin/sh beside the request: the spare work of `--meanwhile`.
//!
//! The spare work has a process group of its own, led by a guardian of its own, which kills the
//! work if rlock is killed. The group is also how rlock tells the work from the command's tree.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{
    Pid, PidfdFlags, Signal as Kernel, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid, waitpid,
};
use rustix::stdio::dup2_stdin;

use super::child::{ended, prepare, start_error};
use super::event::Ended;
use super::guardian::{self, Ward};
use super::signals::Signals;
use super::spawn::spawn;
use crate::failure::Failure;

/// The shell that runs the work.
pub(crate) const SHELL: &str = "/bin/sh";

/// Maximum time for the start of the shell. rlock stands still meanwhile.
const START_LIMIT: Duration = Duration::from_secs(2);

/// Stands in the orders of the guardian, which finds the work by its group.
const NO_SESSION: &str = "no-session";

/// The spare work while it runs.
#[derive(Debug)]
pub(crate) struct SpareWork {
    pid: Pid,
    /// The end of the work is read from this pidfd.
    end: OwnedFd,
    /// The guardian, which leads the group of the work.
    leader: Pid,
    guardian: OwnedFd,
}

/// What tells the processes of the spare work from the command's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpareIds {
    pub(crate) shell: Pid,
    pub(crate) group: i32,
}

impl SpareWork {
    /// Starts the work with the environment of rlock. Its standard input is /dev/null.
    ///
    /// # Errors
    /// The shell cannot be executed. Nothing is left running then.
    pub(crate) fn start(work: &OsStr, signals: &Signals) -> Result<Self, Failure> {
        let argv: [OsString; 3] = [SHELL.into(), "-c".into(), work.into()];
        let started = || -> io::Result<Self> {
            let nothing = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let _blocked = signals.hold_back()?;
            let ward = Ward { rlock: getpid(), session: NO_SESSION.to_owned(), group: None, is_first: true };
            let leader = guardian::start(&ward, &[])?;
            let prepare = prepare(signals, Some(leader));
            let started = pidfd_open(leader, PidfdFlags::empty()).map_err(io::Error::from).and_then(|guardian| {
                let in_child = || dup2_stdin(&nothing).map_err(io::Error::from).and_then(|()| prepare());
                let pid = spawn(&argv, &[], &in_child, START_LIMIT)?;
                Ok(Self { pid, end: pidfd_open(pid, PidfdFlags::empty())?, leader, guardian })
            });
            if started.is_err() {
                let _ = kill_process_group(leader, Kernel::KILL);
                waitpid(Some(leader), WaitOptions::empty())?;
            }
            started
        };
        started().map_err(|error| start_error(argv[0].as_os_str(), &error, START_LIMIT))
    }

    /// The shell and the process group of the work.
    pub(crate) fn ids(&self) -> SpareIds {
        SpareIds { shell: self.pid, group: self.leader.as_raw_nonzero().get() }
    }

    /// The descriptor that is ready when the work has ended.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Sends the signal to the whole group of the work. The guardian blocks the signal.
    pub(crate) fn pass(&self, signal: Kernel) {
        let _ = kill_process_group(self.leader, signal);
    }

    /// Reaps the work and its guardian if the work has ended.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn look(&self) -> io::Result<Option<Ended>> {
        let ended_only = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let Some(status) = waitid(WaitId::Pid(self.pid), ended_only)? else { return Ok(None) };
        // The guardian may have been killed and reaped already.
        let _ = pidfd_send_signal(&self.guardian, Kernel::KILL);
        let _ = waitid(WaitId::PidFd(self.guardian.as_fd()), WaitIdOptions::EXITED);
        Ok(Some(ended(&status)))
    }
}
