//! Starts a program from the guardian, as a child of rlock.
//!
//! The new process borrows the guardian's memory until it executes the program, while the guardian
//! stands still: clone(2) with CLONE_VM and CLONE_VFORK, as posix_spawn(3) does it. CLONE_PARENT
//! makes it a child of rlock, which goes on meanwhile: a program on a file system that hangs costs
//! no lease.

use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use rustix::process::Pid;

/// The size of the new process's stack: enough for `prepare` and execvpe(3), except for the list of
/// arguments that execvpe may put there.
const STACK_BYTES: usize = 256 << 10;
/// The alignment of the stack.
const STACK_ALIGNMENT: usize = 16;

/// A program with its arguments and environment, in the form that the kernel takes. It is made before
/// the guardian is forked, since the guardian must not depend on locks of other threads.
pub(super) struct Program {
    argv: Vec<CString>,
    environment: Vec<CString>,
}

/// A program that could not be started.
pub(super) struct NotStarted {
    /// The process that failed, if there is one. It has ended and is not reaped.
    pub(super) pid: Option<Pid>,
    /// The kernel's reason.
    pub(super) errno: c_int,
}

/// What the new process reads and writes in the guardian's memory.
struct Plan<'a> {
    argv: *const *const c_char,
    environment: *const *const c_char,
    prepare: &'a dyn Fn() -> io::Result<()>,
    error: Option<c_int>,
}

impl Program {
    /// The program `argv`, whose first word is looked up in PATH unless it has a slash, with this
    /// process's environment and `variables` on top.
    ///
    /// # Errors
    /// There is no word at all, or a zero byte in one.
    pub(super) fn new(argv: &[OsString], variables: &[(OsString, OsString)]) -> io::Result<Self> {
        if argv.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let argv = argv.iter().map(|word| c_string(&[word.as_os_str()])).collect::<io::Result<_>>()?;
        Ok(Self { argv, environment: environment(variables)? })
    }

    /// Starts the program and returns once it is executed. The new process is a child of this
    /// process's parent.
    ///
    /// `prepare` runs in the new process just before. It may make system calls only, since the
    /// memory is this process's. All signals have to be blocked, since a handler would run there too.
    ///
    /// # Errors
    /// The kernel's, from here or from the new process; what `prepare` fails with.
    pub(super) fn start(&self, prepare: &dyn Fn() -> io::Result<()>) -> Result<Pid, NotStarted> {
        let (argv, environment) = (pointers(&self.argv), pointers(&self.environment));
        let mut plan = Plan { argv: argv.as_ptr(), environment: environment.as_ptr(), prepare, error: None };
        // Never freed: the guardian starts one program, and unmapping would only take time.
        let mut stack = ManuallyDrop::new(Vec::<u8>::with_capacity(STACK_BYTES + size_of_val(argv.as_slice())));
        let top = stack.as_mut_ptr().wrapping_add(stack.capacity());
        let top = top.wrapping_sub(top.addr() % STACK_ALIGNMENT);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT | libc::SIGCHLD;
        // SAFETY: `top` is the aligned end of a stack that nothing else uses. The stack, `plan` and
        // all that `plan` points to outlive the new process's use of this memory, for this thread
        // stands still until that process has executed the program or ended. The new process does
        // no more than `in_child` says.
        let pid = unsafe { libc::clone(in_child, top.cast(), flags, (&raw mut plan).cast()) };
        let Some(pid) = Pid::from_raw(pid.max(0)) else {
            return Err(NotStarted { pid: None, errno: last_errno() });
        };
        match plan.error {
            None => Ok(pid),
            Some(errno) => Err(NotStarted { pid: Some(pid), errno }),
        }
    }
}

/// What the new process does. It returns only if the program cannot be executed, and then ends.
extern "C" fn in_child(plan: *mut c_void) -> c_int {
    // SAFETY: it is the plan of `start`, which stands still and does not look at it.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    plan.error = match (plan.prepare)() {
        Ok(()) => {
            // SAFETY: both are lists of pointers to C strings that end with a null pointer, and the
            // first list has a word.
            unsafe { libc::execvpe(*plan.argv, plan.argv, plan.environment) };
            Some(last_errno())
        }
        Err(error) => Some(error.raw_os_error().unwrap_or(libc::EINVAL)),
    };
    // Not `return`, after which the C library would clean up what belongs to the guardian.
    signal_hook::low_level::exit(c_int::from(crate::exit::FAILURE))
}

fn last_errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
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
