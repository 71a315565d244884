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
//!
//! The end of a pid namespace kills the holder, its guardian and the tree in any order, and their
//! ends can't be seen from another one. There the process that reaps the holder waits a fixed time,
//! unless the guardian has noted the end of the tree.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use rlock_sys::clock::Boottime;
use rlock_sys::processes;

/// Maximum wait of a transaction for the end of other processes, all together. A process may hang
/// in its end, on a dead disk or in a frozen container for example. A tree then counts as alive,
/// and a process without a tree as dead.
const LONGEST: Duration = Duration::from_millis(500);

/// Wait for processes whose ends can't be seen. A process that the kernel kills ends in some
/// milliseconds, even on a busy machine.
const UNSEEN: Duration = Duration::from_millis(200);

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

/// What tells when a process has ended whose end has begun; `None` for every other process. A
/// number from another pid namespace may match an unrelated process here.
pub(super) fn end_of(number: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw)?;
    // The pidfd is opened before the check, so that the checked process and the awaited process are
    // the same.
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    processes::stat(pid).is_ok_and(|stat| stat.ending && !stat.ended).then_some(process)
}

/// How long a process may still wait for the end of others, without the lock on the state.
#[derive(Debug, Default)]
pub(super) struct Patience {
    until: Option<Boottime>,
}

impl Patience {
    pub(super) fn is_left(&self) -> bool {
        self.until.is_none_or(|until| Boottime::now() < until)
    }

    /// Waits until all of these have ended, as far as there is time left. Each is a process, or the
    /// writing end of a beacon, which the guardian keeps open until the process tree has ended.
    /// An empty list stands for processes whose ends can't be seen.
    pub(super) fn wait(&mut self, ends: &[OwnedFd]) {
        if ends.is_empty() {
            thread::sleep(UNSEEN);
            self.until = Some(Boottime::now());
            return;
        }
        let until = *self.until.get_or_insert_with(|| Boottime::now() + LONGEST);
        for end in ends {
            let left = Timespec::try_from(until - Boottime::now()).ok();
            // A beacon's writing end is always ready for a write, and a process for nothing but its
            // end. Any result of poll ends the wait.
            let _ = poll(&mut [PollFd::new(end, PollFlags::IN)], left.as_ref());
        }
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
        // The kernel closes the pipe while the process ends, as it closes a beacon.
        Patience::default().wait(&end_of(child.id()).into_iter().collect::<Vec<_>>());
        assert!(processes::stat(Pid::from_child(&child)).unwrap().ended);
        for pid in [0, u32::MAX, id(), child.id()] {
            assert!(end_of(pid).is_none(), "{pid} is not about to end");
        }
        child.wait().unwrap();
    }

    #[test]
    fn patience_is_for_all_waits_together() {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let mut patience = Patience::default();
        assert!(patience.is_left());
        patience.wait(&[writer.try_clone().unwrap(), writer]);
        assert!(!patience.is_left());
    }
}
