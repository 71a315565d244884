//! Starts a program without copying this process first.
//!
//! A fork copies the page tables and makes every page that is touched afterwards, on either side, fault once more: a tenth of all that
//! `rlock exec` costs. So the child borrows this process's memory until it executes the program, while this process stands
//! still: clone(2) with CLONE_VM and CLONE_VFORK, as posix_spawn(3) does it, which itself can't do what has to be done in the child.

use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use rustix::process::{Pid, WaitOptions, waitpid};

/// The child's stack: what `prepare` and execvpe(3) take, but for the list of words that the latter may put there.
const STACK_BYTES: usize = 256 << 10;
/// How the stack has to be aligned.
const STACK_ALIGNMENT: usize = 16;

/// What the child is told, and the error that it answers with.
struct Plan<'a> {
    argv: *const *const c_char,
    environment: *const *const c_char,
    prepare: &'a dyn Fn() -> io::Result<()>,
    error: Option<c_int>,
}

/// Starts `argv`, whose first word is looked up in PATH unless it has a slash, with this process's environment and `variables` on top.
///
/// `prepare` runs in the child just before. It must make system calls only: the memory is this process's, and so are its locks. All
/// signals have to be held back meanwhile, since a handler would run in the child too.
///
/// # Errors
/// The kernel's, be it in the child or here; what `prepare` fails with. No child is left then.
pub(super) fn spawn(
    argv: &[OsString],
    variables: &[(OsString, OsString)],
    prepare: &dyn Fn() -> io::Result<()>,
) -> io::Result<Pid> {
    if argv.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let words = argv.iter().map(|word| c_string(&[word.as_os_str()])).collect::<io::Result<Vec<_>>>()?;
    let environment = environment(variables)?;
    let (argv, environment) = (pointers(&words), pointers(&environment));
    let mut plan = Plan { argv: argv.as_ptr(), environment: environment.as_ptr(), prepare, error: None };
    // Not given back: to unmap what a process on another processor has used interrupts that one, and rlock starts one command.
    let mut stack = ManuallyDrop::new(Vec::<u8>::with_capacity(STACK_BYTES + size_of_val(argv.as_slice())));
    let top = stack.as_mut_ptr().wrapping_add(stack.capacity());
    let top = top.wrapping_sub(top.addr() % STACK_ALIGNMENT);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: `top` is the aligned end of a stack that nobody else uses, and with `plan` and all that it points to it outlives the
    // child's use of this memory, for this thread stands still until the child has executed the program or ended. The child does
    // no more than `in_child` says.
    let pid = unsafe { libc::clone(in_child, top.cast(), flags, (&raw mut plan).cast()) };
    let Some(pid) = Pid::from_raw(pid.max(0)) else { return Err(io::Error::last_os_error()) };
    match plan.error {
        None => Ok(pid),
        Some(error) => {
            waitpid(Some(pid), WaitOptions::empty())?;
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// What the child does. It returns only if the program can't be executed, and ends with that.
extern "C" fn in_child(plan: *mut c_void) -> c_int {
    // SAFETY: it is the plan of `spawn`, which stands still and does not look at it.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    let error = match (plan.prepare)() {
        Ok(()) => {
            // SAFETY: both are lists of pointers to C strings that end with a null pointer, and the first has a word.
            unsafe { libc::execvpe(*plan.argv, plan.argv, plan.environment) };
            io::Error::last_os_error()
        }
        Err(error) => error,
    };
    plan.error = Some(error.raw_os_error().unwrap_or(libc::EINVAL));
    // Not 'return', after which the C library would clean up what is this process's.
    signal_hook::low_level::exit(c_int::from(crate::exit::FAILURE))
}

/// This process's environment, with `variables` in the place of those of the same name.
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
