//! Processes that rlock has not started, and with whose end something ends: the request of `exec
//! --pid`, and the lock of `acquire --pid`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open, test_kill_process};

use rlock_model::request;
use rlock_show::failure::Failure;
use rlock_sys::{exit, processes};
use rlock_words::reason;

/// A process, by a pidfd, which never means another process. PR_SET_PDEATHSIG would come at the end
/// of the *thread* that has started rlock.
#[derive(Debug)]
pub struct Owner(OwnedFd);

impl Owner {
    /// Finds the process, or the parent of this process for `None`.
    ///
    /// # Errors
    /// There is no such process in this pid namespace, or the kernel gives no pidfd.
    pub fn open(pid: Option<Pid>) -> Result<Self, Failure> {
        let Some(pid) = pid.or_else(getppid) else {
            return Err(Failure::usage("--pid: the parent is in another pid namespace: name a process of this one"));
        };
        Self::find(pid).map_err(|error| match error {
            Errno::SRCH => none(pid),
            Errno::NOSYS => Failure::usage("--pid needs Linux 5.3 or newer: leave it out"),
            error => Failure::usage(format!("--pid: pidfd_open is refused here ({}): leave it out", reason(&error))),
        })
    }

    fn find(pid: Pid) -> Result<Self, Errno> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            // The kernel refuses the id of a thread as invalid.
            Err(Errno::INVAL) => Err(Errno::SRCH),
            found => found.map(Self),
        }
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}

/// A descriptor that is readable when the process has ended.
impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn none(pid: Pid) -> Failure {
    Failure::usage(format!("--pid: there is no process {pid}: name one that runs"))
}

/// The process that a lock is kept for.
#[derive(Debug)]
pub struct Watched {
    pid: Pid,
    pub(crate) life: Owner,
    /// The signal that tells it of a loss, if any.
    signal: Option<i32>,
}

impl Watched {
    /// Finds a live process that this process may signal.
    ///
    /// # Errors
    /// There is no such process, or the kernel is too old.
    pub fn open(pid: Pid, signal: Option<i32>) -> Result<Self, Failure> {
        let life = Owner::find(pid).map_err(|error| {
            let why = match error {
                Errno::SRCH => return none(pid),
                Errno::NOSYS => "needs Linux 5.3 or newer".to_owned(),
                error => format!("cannot watch the process, because pidfd_open is refused here ({})", reason(&error)),
            };
            Failure::new(exit::FAILURE, format!("--pid {why}: use --for, and 'rlock release'"))
        })?;
        let may_signal = test_kill_process(pid);
        // A process that has not ended by now is the one that was asked about.
        match may_signal {
            _ if life.has_ended() => Err(none(pid)),
            Err(Errno::PERM) => {
                let text = format!("--pid: process {pid} belongs to another user: name one that you may signal");
                Err(Failure::usage(text))
            }
            _ => Ok(Self { pid, life, signal }),
        }
    }

    /// The process for the record of a session, if /proc shows it.
    pub fn identity(&self) -> Option<request::Owner> {
        let started = processes::stat(self.pid).ok()?.process.started;
        let pid = u32::try_from(self.pid.as_raw_nonzero().get()).ok()?;
        Some(request::Owner { pid, started }).filter(|_| !self.life.has_ended())
    }

    /// Whether a signal tells the process of a loss.
    pub(crate) fn hears(&self) -> bool {
        self.signal.is_some()
    }

    /// Tells the process that the lock is lost.
    pub(crate) fn tell(&self) {
        if let Some(signal) = self.signal {
            // SAFETY: the call reads no memory. It fails if the process has ended, or has become
            // one that may not be signalled.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.life.0.as_raw_fd(), signal, 0, 0) };
        }
    }
}
