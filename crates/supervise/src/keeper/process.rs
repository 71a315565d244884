//! Starts the keeper's process, detaches it from its caller, and watches the process that it keeps
//! the lock for.

use std::fs;
use std::io::{self, Read, Write};
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal as Kernel, WaitOptions, getpid, getppid, kill_process, pidfd_open,
    set_parent_process_death_signal, test_kill_process, waitpid,
};

use crate::event::{Ended, Sender, Signal, Stop};
use crate::signals::{Arrival, Signals, hold_back_all};
use crate::terminal::group_for_command;
use rlock_model::request::Owner;
use rlock_show::failure::Failure;
use rlock_sys::alarm::Alarm;
use rlock_sys::exit;
use rlock_sys::processes;
use rlock_words::reason;

/// The keeper's name for ps(1), and its command line. It does not contain `rlock`, so that
/// `pkill rlock` ends no lock of a process that goes on.
pub(super) const NAME: &std::ffi::CStr = c"lock-keeper";

/// The process that a lock is kept for.
#[derive(Debug)]
pub struct Watched {
    pid: Pid,
    /// A pidfd, which never means another process.
    life: OwnedFd,
    /// The signal that tells it of a loss, if any.
    signal: Option<i32>,
}

impl Watched {
    /// Finds a live process that this process may signal.
    ///
    /// # Errors
    /// There is no such process, or the kernel is too old.
    pub fn open(pid: Pid, signal: Option<i32>) -> Result<Self, Failure> {
        let number = pid.as_raw_nonzero();
        let none = || Failure::usage(format!("--pid: there is no process {number}: name one that runs"));
        let life = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(life) => life,
            // The kernel refuses the id of a thread as invalid.
            Err(Errno::SRCH | Errno::INVAL) => return Err(none()),
            Err(error) => {
                let why = if error == Errno::NOSYS { "needs Linux 5.3 or newer".to_owned() } else { refused(error) };
                let text = format!("--pid {why}: use --for, and 'rlock release'");
                return Err(Failure::new(exit::FAILURE, text));
            }
        };
        let may_signal = test_kill_process(pid);
        let watched = Self { pid, life, signal };
        // A process that has not ended by now is the one that was asked about.
        match may_signal {
            _ if watched.has_ended() => Err(none()),
            Err(Errno::PERM) => {
                let text = format!("--pid: process {number} belongs to another user: name one that you may signal");
                Err(Failure::usage(text))
            }
            _ => Ok(watched),
        }
    }

    /// A descriptor that is readable when the process has ended.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.life
    }

    /// The process for the record of a session, if /proc shows it.
    pub fn identity(&self) -> Option<Owner> {
        let started = processes::stat(self.pid).ok()?.process.started;
        let pid = u32::try_from(self.pid.as_raw_nonzero().get()).ok()?;
        Some(Owner { pid, started }).filter(|_| !self.has_ended())
    }

    fn has_ended(&self) -> bool {
        let now = Timespec::try_from(Duration::ZERO).ok();
        poll(&mut [PollFd::new(&self.life, PollFlags::IN)], now.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Whether a signal tells the process of a loss.
    pub(super) fn hears(&self) -> bool {
        self.signal.is_some()
    }

    /// Tells the process that the lock is lost.
    pub(super) fn tell(&self) {
        if let Some(signal) = self.signal {
            // SAFETY: the call reads no memory. It fails if the process has ended, or has become
            // one that may not be signalled.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.life.as_raw_fd(), signal, 0, 0) };
        }
    }
}

/// Which of two processes this one is, after [`split`].
pub enum Side {
    /// The process that the user has started, which waits for the keeper's report.
    Caller(Box<Caller>),
    /// The new process, which outlives the caller.
    Keeper(Attached),
}

/// The process that the user has started.
pub struct Caller {
    keeper: Pid,
    report: PipeReader,
    signals: Signals,
}

/// The keeper before it detaches.
pub struct Attached {
    caller: Pid,
    /// The parent of the caller, which reads what the keeper prints.
    reader: Option<Pid>,
    report: PipeWriter,
    inherited: Vec<RawFd>,
}

/// Starts the keeper. This process must have no other thread, no store and no handler of a signal.
///
/// # Errors
/// The kernel's.
pub fn split(inherited: Vec<RawFd>) -> io::Result<Side> {
    let (read, write) = io::pipe()?;
    let (caller, reader) = (getpid(), getppid());
    // The keeper may print before this process installs its signals. A signal in between would end
    // this process as if nothing were printed.
    let held_back = hold_back_all()?;
    // SAFETY: this process has one thread, so the child may do what any process may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop((read, held_back));
            set_parent_process_death_signal(Some(Kernel::KILL))?;
            // Signals of the terminal reach the caller, which passes them on.
            rustix::process::setsid()?;
            rename();
            let attached = Attached { caller, reader, report: write, inherited };
            attached.check_caller()?;
            Ok(Side::Keeper(attached))
        }
        child => {
            let keeper = Pid::from_raw(child).ok_or(io::ErrorKind::InvalidData)?;
            let signals = Signals::install(group_for_command()).inspect_err(|_| end(keeper))?;
            // The installation has unblocked the signals.
            std::mem::forget(held_back);
            Ok(Side::Caller(Box::new(Caller { keeper, report: read, signals })))
        }
    }
}

/// Ends a keeper whose caller fails, before the keeper reports that the caller has ended.
fn end(keeper: Pid) {
    let _ = kill_process(keeper, Kernel::KILL);
}

/// Why the kernel, or a filter of system calls, gives no handle of a process.
fn refused(error: Errno) -> String {
    format!("cannot watch the process, because pidfd_open is refused here ({})", reason(&error))
}

/// Replaces this process's name, and the command line that others see.
fn rename() {
    let _ = rustix::thread::set_name(NAME);
    if let Some(line) = processes::own_command_line() {
        let mut name = NAME.to_bytes().iter().copied();
        // SAFETY: the kernel put the words of the command line there, in writable memory. `main`
        // has copied them, and nothing reads them afterwards.
        line.for_each(|address| unsafe {
            ptr::with_exposed_provenance_mut::<u8>(address).write(name.next().unwrap_or(0))
        });
    }
}

/// The descriptors that this process was started with, apart from the standard ones.
pub fn inherited() -> Vec<RawFd> {
    let named = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let open: Vec<RawFd> = match fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.filter_map(named).collect(),
        Err(_) => (0..1024).collect(),
    };
    // The descriptor that read the folder is closed again.
    // SAFETY: the descriptor is only asked for its flags.
    let is_open = |fd: &RawFd| rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*fd) }).is_ok();
    open.into_iter().filter(|fd| *fd > 2).filter(is_open).collect()
}

impl Attached {
    /// Lets the keeper live on when the caller ends.
    ///
    /// # Errors
    /// The caller has been killed, or the process that has started it has ended: nobody would know
    /// of the lock.
    pub fn outlive_caller(&self) -> io::Result<()> {
        set_parent_process_death_signal(None)?;
        self.check_caller()?;
        match processes::stat(self.caller) {
            Ok(caller) if caller.parent != self.reader => {
                Err(io::Error::other("the process that started 'rlock acquire' has ended"))
            }
            _ => Ok(()),
        }
    }

    fn check_caller(&self) -> io::Result<()> {
        if getppid() == Some(self.caller) { Ok(()) } else { Err(io::Error::other("'rlock acquire' was killed")) }
    }

    /// Gives up the standard streams, the inherited descriptors and the working directory, ignores
    /// signals, and lets the caller end.
    ///
    /// # Errors
    /// The kernel's, or the caller has been killed.
    pub fn detach(mut self) -> io::Result<()> {
        // What can fail comes first, while standard error still takes a message.
        rustix::process::chdir("/")?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        for descriptor in &self.inherited {
            // SAFETY: this process was started with the descriptor, and nothing in it uses it.
            unsafe { libc::close(*descriptor) };
        }
        self.report.write_all(b"1")
    }
}

impl Caller {
    /// Waits until the keeper has detached or ended, and returns the exit code. Signals that come
    /// meanwhile are the keeper's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(mut self) -> anyhow::Result<u8> {
        let (signals, alarm) = (&mut self.signals, Alarm::default());
        let mut is_interrupted = false;
        loop {
            let mut polled = vec![PollFd::new(&self.report, PollFlags::IN)];
            if let Err(error) = signals.wait(&alarm, &mut polled, None) {
                end(self.keeper);
                return Err(error).context("cannot wait for the keeper");
            }
            let is_reported = !polled[0].revents().is_empty();
            while let Some(arrival) = signals.next_arrival() {
                let Arrival::Signal(signal, source) = arrival else { continue };
                if signal == Signal::Tstp {
                    signals.stop_self(Stop::Tstp).context("cannot stop")?;
                    continue;
                }
                is_interrupted |= signal == Signal::Int && source.sender(signal, None) == Sender::Terminal;
                // The keeper is reaped below only, so the number is its own.
                let _ = kill_process(self.keeper, signal.kernel());
            }
            if is_reported {
                break;
            }
        }
        // A read that is interrupted says nothing, and the wait for a detached keeper would not
        // end.
        match self.report.read_exact(&mut [0]) {
            Ok(()) => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => {
                end(self.keeper);
                return Err(error).context("cannot hear from the keeper, so the lock is released again");
            }
        }
        let Some((_, status)) =
            waitpid(Some(self.keeper), WaitOptions::empty()).context("cannot see the keeper's end")?
        else {
            return Ok(exit::FAILURE);
        };
        let ended = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Ended::Code(u8::try_from(code).unwrap_or(exit::FAILURE)),
            (None, signal) => Ended::Signal(signal.unwrap_or(Kernel::KILL.as_raw())),
        };
        let code = ended.exit_code();
        if is_interrupted && code == Signal::Int.exit_code() {
            signals.end_self(Signal::Int);
        }
        Ok(code)
    }
}
