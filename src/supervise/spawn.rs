//! Starts a program while the caller goes on.
//!
//! A program on a file system that hangs must not keep rlock from renewing its lease, so a thread
//! starts it and waits for the kernel. A fork of rlock would do as well, but costs a tenth of what
//! `rlock exec` takes. The new process instead borrows this process's memory until it executes the
//! program, while the thread stands still: clone(2) with CLONE_VM and CLONE_VFORK, as
//! posix_spawn(3) does it.
//!
//! The command must not lead its process group, or setsid(1) would fork. Where the command does not
//! share rlock's group, another process of the same kind makes a group, starts the command in it by
//! CLONE_PARENT, and ends.

use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, WaitOptions, getpid, setpgid, waitpid};

use super::event::Group;

/// The size of the stack of a new process: enough for `prepare` and execvpe(3), except for the list
/// of arguments that execvpe may put there.
const STACK_BYTES: usize = 256 << 10;
/// The size of the stack of the process that makes a group.
const LEADER_STACK_BYTES: usize = 16 << 10;
/// The alignment of a stack.
const STACK_ALIGNMENT: usize = 16;
/// The size of the thread's stack. The thread does nothing but clone and wait.
const THREAD_STACK_BYTES: usize = 64 << 10;

/// A start that has begun.
#[derive(Debug)]
pub(super) struct Start {
    progress: Arc<Progress>,
    is_over: OwnedFd,
}

/// What has become of a start.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The program is executed, as a member of the given process group.
    Started {
        pid: Pid,
        /// `None` where it shares the group of this process.
        group: Option<Pid>,
    },
    /// The program cannot be executed. No process is left.
    Failed(io::Error),
}

/// What the thread and the new processes write into this process's memory.
#[derive(Debug, Default)]
struct Progress {
    /// The process of the command, as soon as there is one.
    pid: AtomicI32,
    /// The process that made the group of the command.
    group: AtomicI32,
    /// Why the program is not executed, or 0.
    errno: AtomicI32,
}

/// What the thread needs, in memory that stays where it is.
struct Program {
    /// What the pointers point to.
    _words: [Vec<CString>; 2],
    argv: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    group: Group,
    prepare: Box<Prepare>,
    /// The end of the stack for the command.
    stack: *mut c_void,
    /// The same for the process that makes the group.
    leader_stack: *mut c_void,
}

type Prepare = dyn Fn() -> io::Result<()> + Send;

// SAFETY: the pointers point to what the program owns, or to stacks that nothing else uses.
unsafe impl Send for Program {}

/// What the new processes are told.
struct Plan<'a> {
    program: &'a Program,
    progress: &'a Progress,
}

impl Start {
    /// Begins to start `argv`, whose first word is looked up in PATH unless it has a slash, with this
    /// process's environment and `variables` on top. `prepare` runs in the new process just before.
    /// It may make system calls only, since the memory is this process's.
    ///
    /// The thread that starts the program stays until the end of this process, since the kernel takes
    /// its end for that of the command's parent. All signals have to be blocked here, so that they
    /// are in the thread and in the new processes, too.
    ///
    /// # Errors
    /// The kernel's; a word is missing or has a zero byte in it.
    pub(super) fn begin(
        argv: &[OsString],
        variables: &[(OsString, OsString)],
        group: Group,
        prepare: impl Fn() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        if argv.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let argv = argv.iter().map(|word| c_string(&[word.as_os_str()])).collect::<io::Result<_>>()?;
        // The thread must not allocate: its first allocation would cost more than all else that it does.
        let mut program = Program::new(argv, environment(variables)?, group, Box::new(prepare));
        let start = Self {
            progress: Arc::new(Progress::default()),
            is_over: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        let (progress, is_over) = (Arc::clone(&start.progress), start.is_over.try_clone()?);
        let run = move || {
            if let Err(error) = program.start(&progress) {
                progress.errno.store(errno_of(&error), Ordering::Release);
            }
            // It fails only for a counter that is full.
            let _ = rustix::io::write(&is_over, &1u64.to_ne_bytes());
            loop {
                thread::park();
            }
        };
        thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(run)?;
        Ok(start)
    }

    /// Readable when the start is over.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.is_over.as_fd()
    }

    /// The process of the command, if there is one yet. The program may not be executed yet, and
    /// signals are kept for it.
    pub(super) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.progress.pid.load(Ordering::Acquire))
    }

    /// What has become of the start, once it is over.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        rustix::io::read(&self.is_over, &mut [0; 8]).ok()?;
        let errno = self.progress.errno.load(Ordering::Acquire);
        Some(match self.pid() {
            Some(pid) if errno == 0 => {
                Outcome::Started { pid, group: Pid::from_raw(self.progress.group.load(Ordering::Acquire)) }
            }
            _ => Outcome::Failed(io::Error::from_raw_os_error(errno)),
        })
    }
}

impl Program {
    fn new(argv: Vec<CString>, environment: Vec<CString>, group: Group, prepare: Box<Prepare>) -> Self {
        Self {
            stack: new_stack(STACK_BYTES + argv.len() * size_of::<*const c_char>()),
            leader_stack: new_stack(LEADER_STACK_BYTES),
            argv: pointers(&argv),
            environment: pointers(&environment),
            _words: [argv, environment],
            group,
            prepare,
        }
    }

    /// Starts the command and returns once the program is executed. If it is not, the process is
    /// reaped.
    fn start(&mut self, progress: &Progress) -> io::Result<()> {
        let (first, stack): (extern "C" fn(*mut c_void) -> c_int, _) = match self.group {
            Group::Own => (lead, self.leader_stack),
            Group::Shared => (execute, self.stack),
        };
        let mut plan = Plan { program: self, progress };
        // SAFETY: `first` does system calls and atomic stores only, and ends without a return. Its
        // stack, `plan` and all that `plan` points to outlive its use of this memory, for this thread
        // stands still until the process has executed a program or ended.
        let pid = unsafe { clone(first, stack, 0, &raw mut plan) }?;
        if self.group == Group::Own {
            waitpid(Some(pid), WaitOptions::empty())?;
        }
        if progress.errno.load(Ordering::Acquire) != 0
            && let Some(failed) = Pid::from_raw(progress.pid.load(Ordering::Acquire))
        {
            waitpid(Some(failed), WaitOptions::empty())?;
        }
        Ok(())
    }
}

/// Makes a process group and starts the command in it.
extern "C" fn lead(plan: *mut c_void) -> c_int {
    // SAFETY: it is the plan of `Program::start`, whose thread stands still.
    let shared = unsafe { &*plan.cast::<Plan<'_>>() };
    shared.progress.group.store(getpid().as_raw_nonzero().get(), Ordering::Release);
    let started = setpgid(None, None).map_err(io::Error::from).and_then(|()| {
        // SAFETY: as in `Program::start`; here it is this process that stands still.
        unsafe { clone(execute, shared.program.stack, libc::CLONE_PARENT, plan.cast()) }
    });
    if let Err(error) = started {
        shared.progress.errno.store(errno_of(&error), Ordering::Release);
    }
    signal_hook::low_level::exit(0)
}

/// Executes the program. It comes back only if that fails, and then ends the process.
extern "C" fn execute(plan: *mut c_void) -> c_int {
    // SAFETY: it is the plan of `Program::start`, whose thread stands still.
    let plan = unsafe { &*plan.cast::<Plan<'_>>() };
    plan.progress.pid.store(getpid().as_raw_nonzero().get(), Ordering::Release);
    let Program { argv, environment, prepare, .. } = plan.program;
    let error = match prepare() {
        Ok(()) => {
            // SAFETY: both are lists of pointers to C strings that end with a null pointer, and the
            // first list has a word.
            unsafe { libc::execvpe(argv[0], argv.as_ptr(), environment.as_ptr()) };
            io::Error::last_os_error()
        }
        Err(error) => error,
    };
    plan.progress.errno.store(errno_of(&error), Ordering::Release);
    // Not `return`, after which the C library would clean up what belongs to this process's parent.
    signal_hook::low_level::exit(c_int::from(crate::exit::FAILURE))
}

/// Runs `first` in a new process that borrows this process's memory, and stands still meanwhile.
///
/// # Safety
/// `first` must not return, and must leave the memory as this process expects it. `stack` is the
/// aligned end of a stack that nothing else uses.
unsafe fn clone(
    first: extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    flags: c_int,
    plan: *mut Plan<'_>,
) -> io::Result<Pid> {
    let flags = flags | libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the caller sees to it.
    let pid = unsafe { libc::clone(first, stack, flags, plan.cast()) };
    Pid::from_raw(pid.max(0)).ok_or_else(io::Error::last_os_error)
}

/// The aligned end of a new stack. It is never freed: that would only take time, and rlock starts one
/// command.
fn new_stack(bytes: usize) -> *mut c_void {
    let mut stack = ManuallyDrop::new(Vec::<u8>::with_capacity(bytes));
    let end = stack.as_mut_ptr().wrapping_add(stack.capacity());
    end.wrapping_sub(end.addr() % STACK_ALIGNMENT).cast()
}

fn errno_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

/// This process's environment, with `variables` in place of those of the same name.
fn environment(variables: &[(OsString, OsString)]) -> io::Result<Vec<CString>> {
    let kept = std::env::vars_os().filter(|(name, _)| variables.iter().all(|(new, _)| new != name));
    let all = kept.map(|(name, value)| c_string(&[&name, OsStr::new("="), &value]));
    all.chain(variables.iter().map(|(name, value)| c_string(&[name.as_os_str(), OsStr::new("="), value.as_os_str()])))
        .collect()
}

fn c_string(parts: &[&OsStr]) -> io::Result<CString> {
    let bytes: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    CString::new(bytes.concat()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}
