//! The guardian: a child of rlock that ends the command's whole process tree when rlock is killed.
//!
//! ```text
//!   rlock ──thread, clone──▶ command
//!     │                         ▲
//!     ├──fork──▶ guardian       │
//!     └── end of the pipe: ──▶ KILL, to the command and all that it started, until none is left
//! ```
//!
//! rlock forks the guardian as soon as the command runs, and kills the guardian when the command has
//! ended. Before that and if both are killed, PR_SET_PDEATHSIG ends the command itself.
//!
//! The guardian has memory of its own, for the OOM killer ends all processes that share memory. It
//! blocks all signals, and it is not in rlock's process group, so that a SIGKILL to that group misses
//! it. It keeps the beacon of an embedded store open, so that the lock is not granted to another
//! request before the tree is gone.
//!
//! After rlock's end its orphans belong to another process. The guardian finds the tree by the
//! command's process group, by descent, and by the session id in the environment of processes. A
//! daemon cannot be told any more from a process whose parent was killed with rlock, so both are
//! ended.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, fchmod, fstat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal as Kernel, getpid, kill_process, pidfd_open, pidfd_send_signal, setpgid,
};

use super::processes::{self, Process, Stat, own_group};
use super::tree;

/// How many ticks a command may be older than its first guardian. It is a second on most machines.
const TICKS_BEFORE: u64 = 100;
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
    /// The command, which is not reaped yet.
    pub(super) command: Pid,
    /// The process group that the command was started in; `None` where that is rlock's.
    pub(super) group: Option<Pid>,
    /// The session id in the environment of the command.
    pub(super) session: String,
    /// Whether it is the command's first guardian.
    pub(super) is_first: bool,
}

impl Guardian {
    /// Forks a guardian, which keeps these descriptors open. All signals have to be blocked.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn start(ward: &Ward, kept: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let (end_of_life, life) = pipe_with(PipeFlags::CLOEXEC)?;
        let pidfd = pidfd_open(ward.command, PidfdFlags::empty()).ok();
        // SAFETY: the child has one thread, blocks all signals, and ends without a return. It
        // allocates, which the C library allows after a fork from a process with threads.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // In the command's group the guardian keeps the group's number from another use.
                let _ = setpgid(None, ward.group).or_else(|_| setpgid(None, None));
                guard(&end_of_life, &Watch { ward, pidfd }, kept);
                signal_hook::low_level::exit(0)
            }
            pid => Ok(Self { pid: Pid::from_raw(pid).ok_or(Errno::SRCH)?, _life: life }),
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

struct Watch<'a> {
    ward: &'a Ward,
    /// The command's process and no later one of the same id.
    pidfd: Option<OwnedFd>,
}

/// Waits for the end of rlock, then ends the tree.
fn guard(end_of_life: &OwnedFd, watch: &Watch<'_>, kept: &[BorrowedFd<'_>]) {
    let mut open: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    open.extend([Some(end_of_life), watch.pidfd.as_ref()].into_iter().flatten().map(AsRawFd::as_raw_fd));
    close_all_but(open);
    let _ = rustix::thread::set_name(c"rlock-guardian");
    // A file system that rlock was started in must not be kept busy.
    let _ = rustix::process::chdir("/");
    // rlock never writes into the pipe, so only its end makes it ready.
    while !poll(&mut [PollFd::new(end_of_life, PollFlags::IN)], None).is_ok_and(|ready| ready > 0) {}
    kept.iter().for_each(|descriptor| mark_as_ending(descriptor));
    end_tree(watch);
}

/// Sets the sticky bit of a file, which means nothing else for files that are kept open here.
fn mark_as_ending(kept: &BorrowedFd<'_>) {
    // A file that cannot be marked is still kept open.
    if let Ok(stat) = fstat(kept) {
        let _ = fchmod(kept, Mode::from_raw_mode(stat.st_mode) | Mode::SVTX);
    }
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

/// Kills the tree, with what it starts meanwhile, and returns when none of it is left. A process that
/// may not be signalled is left alone.
fn end_tree(watch: &Watch<'_>) {
    let mut beyond: Vec<Process> = Vec::new();
    // The command was started an instant before its first guardian, but nobody knows how long before
    // another one.
    let own_start = || processes::stat(getpid()).map_or(0, |own| own.process.started);
    let since = if watch.ward.is_first { own_start().saturating_sub(TICKS_BEFORE) } else { 0 };
    loop {
        let all = processes::all();
        if all.is_empty() {
            // Without /proc there are the command and the group, which includes this process.
            let _ = watch.pidfd.as_ref().map(|command| pidfd_send_signal(command, Kernel::KILL));
            let _ = rustix::process::kill_current_process_group(Kernel::KILL);
            return;
        }
        let mut left = tree::seeded(&all, getpid(), |stat| watch.is_of_tree(stat, since));
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

impl Watch<'_> {
    /// Whether a process belongs to the tree whatever its parent is. None of the tree started before
    /// `since`.
    fn is_of_tree(&self, stat: &Stat, since: u64) -> bool {
        let Ward { command, session, .. } = self.ward;
        stat.process.pid == *command && self.command_lives()
            || stat.group == own_group()
            // Asked last, since reading the environment of all processes would take long.
            || stat.process.started >= since && processes::names_session(stat.process.pid, session)
    }

    fn command_lives(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
        poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready == 0)
    }
}
