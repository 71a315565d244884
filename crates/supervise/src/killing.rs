//! Kills processes and waits for their ends.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal as Kernel, kill_process, pidfd_open};

use super::{guardian, tree};
use rlock_sys::processes::{self, Process, Stat};

/// The time between two looks at a process that the kernel gives no pidfd of.
const PAUSE: Duration = Duration::from_millis(1);

/// Kills processes of the tree, the innermost first, and waits for their ends, if there is a limit
/// not beyond it. `all` has these processes and their parents. A process that may not be signalled
/// is left alone.
pub(super) fn kill_in_order(all: &[Stat], chosen: &[Process], limit: Option<Instant>) {
    for part in tree::innermost_first(all, chosen, |process| guardian::is_guardian(process.pid)) {
        kill(&part, limit);
    }
}

/// Kills these processes at once, and waits for their ends as [`kill_in_order`] does.
pub(super) fn kill(processes: &[Process], limit: Option<Instant>) {
    let mut ending: Vec<(Process, Option<OwnedFd>)> = Vec::new();
    for process in processes {
        let pidfd = pidfd_open(process.pid, PidfdFlags::empty()).ok();
        if kill_process(process.pid, Kernel::KILL).is_ok() {
            ending.push((*process, pidfd));
        }
    }
    for (process, pidfd) in ending {
        match pidfd {
            Some(pidfd) => {
                let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
                let left = left.and_then(|left| Timespec::try_from(left).ok());
                let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], left.as_ref());
            }
            None => {
                let lives = || processes::stat(process.pid).is_ok_and(|stat| stat.process == process && !stat.ended);
                while lives() && limit.is_none_or(|limit| Instant::now() < limit) {
                    thread::sleep(PAUSE);
                }
            }
        }
    }
}
