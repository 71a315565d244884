//! The guardian: a child of rlock that ends the command's whole process tree when rlock is killed.
//!
//! ```text
//!   rlock ──fork──▶ guardian
//!     │                │
//!     │                └── end of the pipe: KILL, to the command and all that it started,
//!     │                                     until none is left
//!     └──clone──▶ command
//! ```
//!
//! rlock forks the guardian just before the command, and kills the guardian when the command has
//! ended. Where there is no terminal the guardian leads the command's process group, so that the
//! command leads none and setsid(1) does not fork. If both are killed, PR_SET_PDEATHSIG still ends
//! the command itself.
//!
//! The guardian has memory of its own, for the OOM killer ends all processes that share memory. It
//! blocks all signals, and it is not in rlock's process group, so that a SIGKILL to that group
//! misses it. It keeps the beacon of an embedded store open, so that the lock is not granted to
//! another request before the tree is gone.
//!
//! After rlock's end its orphans belong to another process. The guardian finds the tree by the
//! command's process group, by descent, and by the session id in the environment of processes. A
//! daemon cannot be told any more from a process whose parent was killed with rlock, so both are
//! ended.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal as Kernel, WaitOptions, getpid, getppid, kill_process, pidfd_open, setpgid, waitpid,
};

use super::processes::{self, Process, Stat, own_group};
use super::tree;

/// Descriptors below this number are closed one by one where the kernel lacks close_range(2), which
/// came with Linux 5.9.
const DESCRIPTORS: RawFd = 1024;

/// The guardian as rlock sees it.
#[derive(Debug)]
pub(super) struct Guardian {
    pid: Pid,
    /// The end of this pipe tells the guardian of rlock's end.
    _life: OwnedFd,
}

/// What a guardian watches.
#[derive(Clone, Debug)]
pub(super) struct Ward {
    /// The session id in the environment of the command.
    pub(super) session: String,
    /// The process group of the command, for a guardian that is to join that group.
    pub(super) group: Option<Pid>,
    /// Whether the command is not started yet.
    pub(super) is_first: bool,
}

impl Guardian {
    /// Forks a guardian, which keeps these descriptors open. All signals have to be blocked.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn start(ward: &Ward, kept: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let (end_of_life, life) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: the child has one thread, blocks all signals, and ends without a return. It
        // allocates, which the C library allows after a fork from a process with threads.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // At once, or the end of rlock would be that of the group that rlock is in.
                let _ = move_to_group(None, ward.group);
                guard(&end_of_life, ward, kept);
                signal_hook::low_level::exit(0)
            }
            pid => {
                let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
                let guardian = Self { pid, _life: life };
                // Here too, for the command is about to join the group.
                if let Err(error) = move_to_group(Some(pid), ward.group) {
                    guardian.dismiss();
                    waitpid(Some(pid), WaitOptions::empty())?;
                    return Err(error.into());
                }
                Ok(guardian)
            }
        }
    }

    /// The guardian's process id.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Ends the guardian, for there is nothing left to guard. It is to be reaped afterwards.
    pub(super) fn dismiss(&self) {
        let _ = kill_process(self.pid, Kernel::KILL);
    }

    /// Closes the pipe as the end of this process would.
    #[cfg(test)]
    pub(super) fn forget_life(&mut self) {
        self._life = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    }
}

/// Moves a guardian into a process group, or into one of its own if that group is gone. A guardian
/// in the command's group keeps the group's number from another use.
fn move_to_group(guardian: Option<Pid>, group: Option<Pid>) -> Result<(), Errno> {
    setpgid(guardian, group.or(guardian)).or_else(|_| setpgid(guardian, guardian))
}

/// Waits for the end of rlock, then ends the tree.
fn guard(end_of_life: &OwnedFd, ward: &Ward, kept: &[BorrowedFd<'_>]) {
    let mut open: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    open.push(end_of_life.as_raw_fd());
    close_all_but(open);
    let _ = rustix::thread::set_name(c"rlock-guardian");
    // A file system that rlock was started in must not be kept busy.
    let _ = rustix::process::chdir("/");
    // rlock never writes into the pipe, so only its end makes it ready.
    while !poll(&mut [PollFd::new(end_of_life, PollFlags::IN)], None).is_ok_and(|ready| ready > 0) {}
    end_tree(ward);
}

/// Closes all descriptors but these. rlock's peers would otherwise take rlock's end for a pause.
fn close_all_but(mut kept: Vec<RawFd>) {
    kept.sort_unstable();
    let mut next = 0;
    for descriptor in kept.into_iter().chain([RawFd::MAX]) {
        if next < descriptor {
            // SAFETY: nothing in this process uses a descriptor that is not kept.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, next, descriptor - 1, 0) };
            for old_kernel in (next..descriptor.min(DESCRIPTORS)).filter(|_| closed != 0) {
                // SAFETY: as above.
                unsafe { libc::close(old_kernel) };
            }
        }
        next = descriptor.saturating_add(1);
    }
}

/// Kills the tree, with what it starts meanwhile, and returns when none of it is left. A process
/// that may not be signalled is left alone.
fn end_tree(ward: &Ward) {
    let mut beyond: Vec<Process> = Vec::new();
    // No process of the tree is older than the first guardian; no other one knows how old they are.
    let own_start = || processes::stat(getpid()).map_or(0, |own| own.process.started);
    let since = if ward.is_first { own_start() } else { 0 };
    let number = |pid: Pid| pid.as_raw_nonzero().get();
    let has_group = own_group() == number(getpid()) || ward.group.map(number) == Some(own_group());
    loop {
        let all = processes::all();
        if all.is_empty() {
            // Without /proc there is the group, which includes this process.
            if has_group {
                let _ = rustix::process::kill_current_process_group(Kernel::KILL);
            }
            return;
        }
        // The orphans of rlock have the same new parent as this process, which is one of them.
        let reaper = getppid();
        let is_of_tree = |stat: &Stat| {
            has_group && stat.group == own_group()
                || stat.parent == reaper
                    && stat.process.started >= since
                    && processes::names_session(stat.process.pid, &ward.session)
        };
        let mut left = tree::seeded(&all, getpid(), is_of_tree);
        left.retain(|process| !beyond.contains(process));
        if left.is_empty() {
            return;
        }
        beyond.extend(kill(&left));
    }
}

/// Kills these and waits for their end; gives those that may not be signalled.
fn kill(processes: &[Process]) -> Vec<Process> {
    let mut beyond = Vec::new();
    let mut ending = Vec::new();
    for process in processes {
        let pidfd = pidfd_open(process.pid, PidfdFlags::empty());
        match kill_process(process.pid, Kernel::KILL) {
            Ok(()) => ending.extend(pidfd.ok()),
            Err(Errno::SRCH) => {}
            Err(_) => beyond.push(*process),
        }
    }
    for pidfd in ending {
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None);
    }
    beyond
}
