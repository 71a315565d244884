//! The process with which a request of `exec --pid` ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use rlock_show::failure::Failure;
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
        pidfd_open(pid, PidfdFlags::empty()).map(Self).map_err(|error| {
            Failure::usage(match error {
                // The kernel refuses the id of a thread as invalid.
                Errno::SRCH | Errno::INVAL => format!("--pid: there is no process {pid}: name one that runs"),
                Errno::NOSYS => "--pid needs Linux 5.3 or newer: leave it out".to_owned(),
                error => format!("--pid: pidfd_open is refused here ({}): leave it out", reason(&error)),
            })
        })
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
