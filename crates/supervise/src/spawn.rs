//! Starts a program without copying this process first.
//!
//! A fork copies the page tables, and afterwards each page that either process touches faults once
//! more. So the child borrows this process's memory until the child executes the program, and this
//! process is suspended meanwhile. The call is clone(2) with CLONE_VM and CLONE_VFORK.
//! posix_spawn(3) works the same way but cannot run `prepare` in the child.
//!
//! While this process is suspended, it renews no lease and handles no signal. So the child limits
//! the time that the kernel may take to open the program. A timer kills the child; a successful
//! exec deletes the timer.
//!
//! qemu-user, which runs programs of other architectures, shares no memory between processes. There
//! the child has a copy, and answers through a pipe that a successful exec closes.

use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::mem::zeroed;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, getpid, waitid, waitpid};

/// The size of the child's stack: enough for `prepare` and execvpe(3). The list of arguments that
/// execvpe may put on the stack comes on top.
const STACK_BYTES: usize = 256 << 10;
const STACK_ALIGNMENT: usize = 16;

/// The input of the child, and the error with which the child answers.
struct Plan<'a> {
    argv: *const *const c_char,
    environment: *const *const c_char,
    /// The places for the child's process id, each with room for [`PID_ROOM`] bytes.
    pids: Vec<*mut u8>,
    prepare: &'a dyn Fn() -> io::Result<()>,
    limit: Duration,
    error: Option<c_int>,
    /// Where the child writes its error if it has a copy of the plan.
    answer: Option<OwnedFd>,
}

/// Whether this process can't share its memory with a child.
static COPIES: AtomicBool = AtomicBool::new(false);

/// The bytes of a process id as a text, with its NUL.
const PID_ROOM: usize = 12;

/// Variables by which a manager tells a process that descriptors or a watchdog are meant for it,
/// see sd_listen_fds(3), sd_watchdog_enabled(3) and systemd.exec(5).
pub(super) const NAMING_A_PROCESS: &[&str] = &["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];

/// The id of a process in another form. A child of rlock has another one.
const PIDFD_ID: &str = "LISTEN_PIDFDID";

/// Starts `argv` with this process's environment and `variables` on top. The first word of `argv`
/// is looked up in PATH unless it has a slash. The variables in `renamed` name the child if they
/// name this process.
///
/// `prepare` runs in the child just before the exec. It may make system calls only, because the
/// child shares this process's memory and its locks. The caller must block all signals meanwhile,
/// since a handler would run in the child too.
///
/// # Errors
/// An error of the kernel, in the child or in this process; an error of `prepare`;
/// [`TimedOut`](io::ErrorKind::TimedOut) if the program could not be opened within `limit`. No
/// child is left after an error.
pub(super) fn spawn(
    argv: &[OsString],
    variables: &[(OsString, OsString)],
    renamed: &[&str],
    prepare: &dyn Fn() -> io::Result<()>,
    limit: Duration,
) -> io::Result<Pid> {
    if argv.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let words = argv.iter().map(|word| c_string(&[word.as_os_str()])).collect::<io::Result<Vec<_>>>()?;
    let kept = environment(variables, renamed)?;
    let mut naming: Vec<Vec<u8>> =
        renamed.iter().filter(|name| names_this_process(name)).map(|name| room(name)).collect();
    let pids = naming.iter_mut().filter_map(|text| Some(text.last_chunk_mut::<PID_ROOM>()?.as_mut_ptr())).collect();
    let argv = pointers(&words);
    let mut environment: Vec<_> = naming.iter().map(|text| text.as_ptr().cast()).collect();
    environment.extend(pointers(&kept));
    let mut plan = Plan {
        argv: argv.as_ptr(),
        environment: environment.as_ptr(),
        pids,
        prepare,
        limit,
        error: None,
        answer: None,
    };
    // A guardian was started before, so it is known whether memory can be shared.
    let pipe = if COPIES.load(Ordering::Relaxed) { Some(pipe_with(PipeFlags::CLOEXEC)?) } else { None };
    let reader = pipe.map(|(reader, writer)| {
        plan.answer = Some(writer);
        reader
    });
    let top = stack(STACK_BYTES + size_of_val(argv.as_slice()));
    let begun = Instant::now();
    // SAFETY: `top` is the aligned end of a stack that nothing else uses. The stack, `plan` and all
    // that `plan` points to outlive the child's use of this memory: this thread is suspended until
    // the child has executed the program or ended. The child runs `in_child` only.
    let pid = unsafe { clone_sharing(in_child, top, libc::CLONE_VFORK, (&raw mut plan).cast()) }?;
    if let Some(reader) = reader {
        plan.answer = None;
        let mut number = [0; size_of::<c_int>()];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&reader, &mut number))?;
        plan.error = (read == number.len()).then(|| c_int::from_ne_bytes(number));
    }
    let error = match plan.error {
        Some(error) => io::Error::from_raw_os_error(error),
        None if begun.elapsed() >= limit && is_killed(pid)? => io::ErrorKind::TimedOut.into(),
        None => return Ok(pid),
    };
    waitpid(Some(pid), WaitOptions::empty())?;
    Err(error)
}

/// Starts a child that shares the memory of this process, or has a copy where memory can't be
/// shared.
///
/// # Safety
/// `code` must be sound in a child that shares the memory, on a stack with this upper end that
/// nothing else uses, with these flags of clone(2) and this argument.
///
/// # Errors
/// The kernel's.
pub(super) unsafe fn clone_sharing(
    code: extern "C" fn(*mut c_void) -> c_int,
    top: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
) -> io::Result<Pid> {
    // SAFETY: the caller guarantees it.
    let start = |flags| unsafe { libc::clone(code, top, flags | libc::SIGCHLD, argument) };
    let mut pid = start(flags | libc::CLONE_VM);
    if pid == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        COPIES.store(true, Ordering::Relaxed);
        pid = start(flags);
    }
    Pid::from_raw(pid.max(0)).ok_or_else(io::Error::last_os_error)
}

/// Executes `argv` in place of this process, with the words and variables of [`spawn`]. It returns
/// only if that fails.
pub(super) fn execute(argv: &[OsString], variables: &[(OsString, OsString)]) -> io::Error {
    let texts = argv.iter().map(|word| c_string(&[word.as_os_str()])).collect::<io::Result<Vec<_>>>();
    let (words, environment) = match (texts, environment(variables, &[])) {
        (Ok(words), Ok(environment)) => (words, environment),
        (Err(error), _) | (_, Err(error)) => return error,
    };
    let (argv, environment) = (pointers(&words), pointers(&environment));
    // An exec keeps this timer, with which the embedded store ends a loop in a damaged table.
    // SAFETY: all zeros are a timer that is not set. Both lists have pointers to C strings and end
    // with a null pointer; without a word, the first pointer is null, which execvpe refuses.
    unsafe {
        libc::setitimer(libc::ITIMER_VIRTUAL, &zeroed(), ptr::null_mut());
        libc::execvpe(argv[0], argv.as_ptr(), environment.as_ptr());
    }
    io::Error::last_os_error()
}

/// Gives the upper end of a new stack of this size.
///
/// The stack is never freed. Unmapping memory that a process on another processor has used
/// interrupts that processor, and rlock starts only one command.
pub(super) fn stack(bytes: usize) -> *mut c_void {
    let mut stack = ManuallyDrop::new(Vec::<u8>::with_capacity(bytes));
    let top = stack.as_mut_ptr().wrapping_add(stack.capacity());
    top.wrapping_sub(top.addr() % STACK_ALIGNMENT).cast()
}

/// Whether a child was killed by SIGKILL and is not reaped.
fn is_killed(pid: Pid) -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let signal = waitid(WaitId::Pid(pid), options)?.and_then(|status| status.terminating_signal());
    Ok(signal == Some(libc::SIGKILL))
}

/// The code of the child. It returns only if the program cannot be executed, and then ends the
/// child.
extern "C" fn in_child(plan: *mut c_void) -> c_int {
    // SAFETY: `plan` is the plan of `spawn`, which is suspended and does not access it.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    set_limit(plan.limit);
    plan.pids.iter().for_each(|place| write_pid(*place));
    let error = match (plan.prepare)() {
        Ok(()) => {
            // SAFETY: both are lists of pointers to C strings that end with a null pointer, and the
            // first list is not empty.
            unsafe { libc::execvpe(*plan.argv, plan.argv, plan.environment) };
            io::Error::last_os_error()
        }
        Err(error) => error,
    };
    let number = error.raw_os_error().unwrap_or(libc::EINVAL);
    plan.error = Some(number);
    if let Some(answer) = &plan.answer {
        let _ = rustix::io::write(answer, &number.to_ne_bytes());
    }
    // Not `return`: the C library would then clean up state that belongs to the parent process.
    signal_hook::low_level::exit(c_int::from(rlock_sys::exit::FAILURE))
}

/// Makes the kernel kill this process after `limit`. If this process executes a program earlier,
/// the exec deletes the timer (timer_create(2)).
fn set_limit(limit: Duration) {
    // SAFETY: all zeros are a valid sigevent without a value.
    let mut event: libc::sigevent = unsafe { zeroed() };
    event.sigev_notify = libc::SIGEV_SIGNAL;
    event.sigev_signo = libc::SIGKILL;
    let interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::c_long::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos().cast_signed()),
    };
    let time = libc::itimerspec { it_interval: interval, it_value: value };
    let mut timer: c_int = 0;
    // SAFETY: the kernel reads `event` and `time` and writes `timer`. The wrappers of the C library
    // are avoided because they may allocate memory.
    unsafe {
        if libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &raw const event, &raw mut timer) == 0 {
            libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const time, ptr::null::<libc::itimerspec>());
        }
    }
}

/// Writes the id of this process, which is not 0, to a place with room for [`PID_ROOM`] bytes.
fn write_pid(place: *mut u8) {
    let mut digits = [0; PID_ROOM];
    let (mut number, mut first) = (getpid().as_raw_nonzero().get(), PID_ROOM - 1);
    while number > 0 {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    let text = &digits[first..];
    // SAFETY: the place is that of `room` in the parent, which is suspended. The text ends with a
    // NUL and is no longer than the array.
    unsafe { ptr::copy_nonoverlapping(text.as_ptr(), place, text.len()) };
}

/// Whether the variable has the id of this process.
fn names_this_process(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == getpid().as_raw_nonzero().to_string())
}

/// The variable without its value, and room for the id of a process.
fn room(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"=", &[0; PID_ROOM]].concat()
}

/// This process's environment, in which `variables` replace those of the same name, without the
/// variables in `renamed` that name this process.
fn environment(variables: &[(OsString, OsString)], renamed: &[&str]) -> io::Result<Vec<CString>> {
    let is_replaced = |name: &OsString| variables.iter().any(|(new, _)| new == name);
    let is_renamed = |name: &str| renamed.contains(&name) && names_this_process(name);
    let is_dropped = |name: &str| is_renamed(name) || name == PIDFD_ID && renamed.iter().any(|name| is_renamed(name));
    let kept = std::env::vars_os().filter(|(name, _)| !is_replaced(name) && !name.to_str().is_some_and(is_dropped));
    let all = kept.map(|(name, value)| c_string(&[&name, OsStr::new("="), &value]));
    all.chain(variables.iter().map(|(name, value)| c_string(&[name.as_os_str(), OsStr::new("="), value.as_os_str()])))
        .collect()
}

fn c_string(parts: &[&OsStr]) -> io::Result<CString> {
    let bytes: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    CString::new(bytes.concat()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// A list in the form that the C library takes: pointers to the texts, then a null pointer.
pub(super) fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}
