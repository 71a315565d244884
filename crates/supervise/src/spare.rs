//! Runs work by /bin/sh beside the request: the spare work of `--meanwhile`.
//!
//! The spare work has a process group of its own, led by a guardian of its own, which kills the
//! work if rlock is killed. The group is also how rlock tells the work from the command's tree.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal as Kernel, WaitIdOptions, kill_process_group};
use rustix::stdio::dup2_stdin;

use super::child::reap::{ended, seen};
use super::event::Ended;
use super::guardian::{self, Ward};
use super::signals::Signals;
use super::spawn::spawn;
use super::start_failure::start_failure;
use rlock_show::failure::Failure;
use rlock_sys::exit;
use rlock_words::reason;

/// The shell that runs the work.
pub(crate) const SHELL: &str = "/bin/sh";

/// Maximum time for the start of the shell. rlock stands still meanwhile.
const START_LIMIT: Duration = Duration::from_secs(2);

/// The variable that names the session whose spare work a process belongs to. The guardian finds by
/// it what has left the group. No rlock takes the session for one around itself.
const VARIABLE: &str = "RLOCK_SPARE";

/// The spare work while it runs.
#[derive(Debug)]
pub(crate) struct SpareWork {
    pid: Pid,
    /// The guardian, which leads the group of the work.
    leader: Pid,
}

/// What tells the processes of the spare work from the command's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpareIds {
    pub shell: Pid,
    pub group: i32,
}

impl SpareWork {
    /// Starts the work with the environment of rlock and the id of the session. Its standard input
    /// is /dev/null.
    ///
    /// # Errors
    /// The shell cannot be executed. Nothing is left running then.
    pub(crate) fn start(work: &OsStr, session: &str, signals: &Signals) -> Result<Self, Failure> {
        let argv: [OsString; 3] = [SHELL.into(), "-c".into(), work.into()];
        let nothing = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let nothing = nothing.map_err(|error| {
            let text = format!("cannot open /dev/null for the work of --meanwhile: {}", reason(&error));
            Failure::new(exit::FAILURE, text)
        })?;
        let ward = Ward { is_canary: false, ..Ward::first(session) };
        let started = || -> io::Result<Self> {
            let (leader, pid) = guardian::start_with(&ward, &[], signals, |leader| {
                let prepare = guardian::prepare(signals, Some(leader));
                let in_child = || dup2_stdin(&nothing).map_err(io::Error::from).and_then(|()| prepare());
                spawn(&argv, &[(VARIABLE.into(), session.into())], &[], &in_child, START_LIMIT)
            })?;
            Ok(Self { pid, leader: leader.pid })
        };
        started().map_err(|error| start_failure(argv[0].as_os_str(), &error, START_LIMIT))
    }

    /// The shell and the process group of the work.
    pub(crate) fn ids(&self) -> SpareIds {
        SpareIds { shell: self.pid, group: self.leader.as_raw_nonzero().get() }
    }

    /// Sends the signal to the whole group of the work. The guardian blocks the signal.
    pub(crate) fn pass(&self, signal: Kernel) {
        let _ = kill_process_group(self.leader, signal);
    }

    /// Reaps the work and its guardian if the work has ended. The caller must call it after each
    /// SIGCHLD.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn look(&self) -> io::Result<Option<Ended>> {
        let Some(status) = seen(self.pid, WaitIdOptions::EXITED)? else { return Ok(None) };
        // The guardian may have been killed and reaped already.
        if seen(self.leader, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_ok() {
            guardian::end(self.leader)?;
        }
        Ok(Some(ended(&status)))
    }
}
