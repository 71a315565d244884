//! The guardian: a child of rlock that starts the command, and ends the command's whole process tree
//! when rlock is killed.
//!
//! ```text
//!   rlock ──fork──▶ guardian ──clone(CLONE_PARENT)──▶ command
//!     │                 │                               ▲
//!     │◀── pid, errno ──┤                               │
//!     └── end of the stream: rlock was killed ──▶ KILL ─┘ and all that it started, until none is left
//! ```
//!
//! rlock kills the guardian when the command has ended.
//!
//! The guardian has memory of its own, for the OOM killer ends all processes that share memory. It
//! blocks all signals, and it has a process group of its own, so that a SIGKILL to rlock's group
//! misses it. Where there is no terminal the command runs in that group, and so leads none itself.
//! The guardian keeps the beacon of an embedded store open, so that the lock is not granted to
//! another request before the tree is gone.
//!
//! After rlock's end its orphans belong to another process. The guardian finds the tree by its own
//! process group, by descent, and by the session id in the environment of processes. A daemon cannot
//! be told any more from a process whose parent was killed with rlock, so both are ended.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal as Kernel, getpid, getppid, kill_process, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal, setpgid,
};

use super::event::Group;
use super::processes::{self, Process, Stat, own_group};
use super::signals::Signals;
use super::spawn::{NotStarted, Program};
use super::tree;
use crate::exit;

/// Descriptors below this number are closed one by one where the kernel lacks close_range(2), which
/// came with Linux 5.9.
const DESCRIPTORS: RawFd = 1024;

/// The guardian as rlock sees it.
#[derive(Debug)]
pub(super) struct Guardian {
    pid: Pid,
    stream: OwnedFd,
}

/// What the guardian tells about the start of the command.
pub(super) enum Report {
    /// The program is executed in this process.
    Started(Pid),
    /// The program is not executed; the process that failed to, if there is one, is to be reaped.
    Failed(Option<Pid>, io::Error),
    /// The guardian has ended without a report.
    Lost,
}

/// What the guardian has to know to recognise the tree.
#[derive(Clone, Debug)]
pub(super) struct Ward {
    /// The session id in the environment of the command.
    pub(super) session: String,
    /// The process group that the command runs in.
    pub(super) group: Group,
}

impl Guardian {
    /// Forks the guardian, which starts the program. All signals have to be blocked.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn start(
        program: &Program,
        ward: &Ward,
        signals: &Signals,
        kept: &[BorrowedFd<'_>],
    ) -> io::Result<Self> {
        let undo = signals.undo_in_child();
        let rlock = getpid();
        let prepare = || {
            set_parent_process_death_signal(Some(Kernel::KILL))?;
            // If rlock ended before the line above, nothing is sent any more.
            if getppid() != Some(rlock) {
                signal_hook::low_level::exit(c_int::from(exit::FAILURE));
            }
            undo()
        };
        Self::fork(|stream| {
            // The command inherits the group. A shared one is rlock's, which the guardian leaves
            // afterwards.
            if ward.group == Group::Own {
                let _ = setpgid(None, None);
            }
            let command = program.start(&prepare);
            let _ = setpgid(None, None);
            let pidfd = command.as_ref().ok().and_then(|pid| pidfd_open(*pid, PidfdFlags::empty()).ok());
            report(&stream, &command);
            guard(&stream, &Watch { command: command.ok(), pidfd, ward, since: None }, kept);
        })
    }

    /// Forks a guardian in place of one that died, for a command that runs. All signals have to be
    /// blocked.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn replace(command: Pid, ward: &Ward, kept: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let pidfd = pidfd_open(command, PidfdFlags::empty()).ok();
        let since = processes::stat(getpid()).ok().map(|rlock| rlock.process.started);
        Self::fork(|stream| {
            let _ = setpgid(None, None);
            guard(&stream, &Watch { command: Some(command), pidfd, ward, since }, kept);
        })
    }

    fn fork(guardian: impl FnOnce(OwnedFd)) -> io::Result<Self> {
        let (ours, its) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        // SAFETY: the child has one thread, blocks all signals, and ends without a return. It
        // allocates, which the C library allows after a fork from a process with threads.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                guardian(its);
                signal_hook::low_level::exit(0)
            }
            pid => {
                let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
                Ok(Self { pid, stream: ours })
            }
        }
    }

    /// The guardian's process id.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Closes the stream as the end of this process would.
    #[cfg(test)]
    pub(super) fn forget_stream(&mut self) {
        self.stream = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    }

    /// Readable when there is a report.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The report, if it has come.
    pub(super) fn report(&self) -> Option<Report> {
        let mut bytes = [0; 8];
        match rustix::io::read(&self.stream, &mut bytes) {
            Ok(8) => {}
            Err(Errno::AGAIN | Errno::INTR) => return None,
            _ => return Some(Report::Lost),
        }
        let number = |half: &[u8]| half.try_into().map_or(0, i32::from_ne_bytes);
        let (pid, errno) = (Pid::from_raw(number(&bytes[..4])), number(&bytes[4..]));
        Some(match pid {
            Some(pid) if errno == 0 => Report::Started(pid),
            failed => Report::Failed(failed, io::Error::from_raw_os_error(errno)),
        })
    }

    /// Ends the guardian, for there is nothing left to guard. It is to be reaped afterwards.
    pub(super) fn dismiss(&self) {
        let _ = kill_process(self.pid, Kernel::KILL);
    }
}

fn report(stream: &OwnedFd, command: &Result<Pid, NotStarted>) {
    let (pid, errno) = match command {
        Ok(pid) => (Some(*pid), 0),
        Err(NotStarted { pid, errno }) => (*pid, *errno),
    };
    let pid = pid.map_or(0, |pid| pid.as_raw_nonzero().get());
    // Whoever is to read it may be gone, which shows below.
    let _ = send(stream, &[pid.to_ne_bytes(), errno.to_ne_bytes()].concat(), SendFlags::NOSIGNAL);
}

/// What a guardian watches.
struct Watch<'a> {
    command: Option<Pid>,
    /// The command's process and no later one of the same id.
    pidfd: Option<OwnedFd>,
    ward: &'a Ward,
    /// No process of the tree started earlier, in ticks since the start of the machine; `None` where
    /// the guardian itself did.
    since: Option<u64>,
}

/// Waits for the end of rlock, then ends the tree.
fn guard(stream: &OwnedFd, watch: &Watch<'_>, kept: &[BorrowedFd<'_>]) {
    let mut open: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    open.extend([Some(stream), watch.pidfd.as_ref()].into_iter().flatten().map(AsRawFd::as_raw_fd));
    close_all_but(open);
    let _ = rustix::thread::set_name(c"rlock-guardian");
    // A file system that rlock was started in must not be kept busy.
    let _ = rustix::process::chdir("/");
    // rlock never writes into the stream, so it becomes readable at its end only.
    while !poll(&mut [PollFd::new(stream, PollFlags::IN)], None).is_ok_and(|ready| ready > 0) {}
    end_tree(watch);
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
    let own_start = || processes::stat(getpid()).map_or(0, |own| own.process.started);
    let since = watch.since.unwrap_or_else(own_start);
    let mut beyond: Vec<Process> = Vec::new();
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
    /// Whether a process belongs to the tree whatever its parent is. `since` spares reading the
    /// environment of most processes.
    fn is_of_tree(&self, stat: &Stat, since: u64) -> bool {
        Some(stat.process.pid) == self.command && self.command_lives()
            || stat.group == own_group()
            || stat.process.started >= since && processes::names_session(stat.process.pid, &self.ward.session)
    }

    fn command_lives(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
        poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready == 0)
    }
}
