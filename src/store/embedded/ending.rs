//! Waits until the command of a killed holder has ended.
//!
//! The guardian of a killed holder kills the command's process tree and keeps the beacon open until
//! the tree is gone. If the guardian is killed too, or has not started yet, PR_SET_PDEATHSIG kills
//! the command itself a few instants later.
//!
//! When a process dies, the kernel closes its files, and thus its beacon, shortly before it sends
//! the signal of PR_SET_PDEATHSIG. In do_exit (kernel/exit.c), exit_files and exit_task_work come
//! before exit_notify, which sends that signal. On a busy machine, other processes may run in
//! between. So a process that reaps a holder waits until the holder has ended. Otherwise the next
//! command could start beside a command that is about to be killed.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::processes;

/// Maximum wait for the end of a process. A process may hang in its end, on a dead disk for
/// example.
const LONGEST: Duration = Duration::from_secs(1);
/// Maximum wait for a guardian, which needs some milliseconds. After this time, a process of the
/// tree hangs in the kernel or the machine is busy, and the holder counts as alive. Other processes
/// wait for the lock of the store meanwhile.
const TREE_LIMIT: Duration = Duration::from_millis(100);

/// Whether the process is missing from this pid namespace or is only a zombie.
pub(super) fn is_gone(number: u32) -> bool {
    let Some(pid) = i32::try_from(number).ok().and_then(Pid::from_raw) else { return false };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
        }
        Err(error) => error == Errno::SRCH,
    }
}

/// Waits until the guardian of a killed holder has ended the command's process tree. Returns
/// whether it has. `beacon` is the writing end of the pipe that the guardian keeps open until then.
pub(super) fn wait_for_tree(beacon: &OwnedFd) -> bool {
    let timeout = Timespec::try_from(TREE_LIMIT).ok();
    poll(&mut [PollFd::new(beacon, PollFlags::empty())], timeout.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Waits until a process has ended, if its end has begun. A number from another pid namespace may
/// match an unrelated process here; the wait then lasts at most until that process ends.
pub(super) fn wait_until_over(number: u32) {
    let Some(pid) = i32::try_from(number).ok().and_then(Pid::from_raw) else { return };
    // The pidfd is opened before the check, so that the checked process and the awaited process are
    // the same.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if processes::stat(pid).is_ok_and(|stat| stat.ending && !stat.ended) {
        let timeout = Timespec::try_from(LONGEST).ok();
        // Any result of poll ends the wait.
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio, id};

    use super::*;

    #[test]
    fn live_ended_and_unknown_processes_are_not_waited_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.kill().unwrap();
        let mut ended = [PollFd::new(child.stdout.as_ref().unwrap(), PollFlags::IN)];
        poll(&mut ended, None).unwrap();
        // The kernel closes the pipe while the process ends, as it closes a beacon. The test waits
        // until the process has ended.
        wait_until_over(child.id());
        assert!(processes::stat(Pid::from_child(&child)).unwrap().ended);
        for pid in [0, u32::MAX, id(), child.id()] {
            wait_until_over(pid);
        }
        child.wait().unwrap();
    }
}
