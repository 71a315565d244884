//! Starts the keeper's process, and detaches it from its caller.

use std::fs;
use std::io::{self, Read, Write};
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Pid, Signal as Kernel, WaitOptions, getpid, getppid, kill_process, set_parent_process_death_signal, waitpid,
};

use crate::event::{Ended, Sender, Signal, Stop};
use crate::signals::{Arrival, Signals, hold_back_all, ignore_all};
use crate::terminal::group_for_command;
use rlock_sys::alarm::Alarm;
use rlock_sys::exit;
use rlock_sys::processes;

/// The keeper's name for ps(1), and its command line. It does not contain `rlock`, so that
/// `pkill rlock` ends no lock of a process that goes on.
pub(super) const NAME: &std::ffi::CStr = c"lock-keeper";

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
        ignore_all()?;
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
