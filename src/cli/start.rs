//! Does the part of the Rust runtime's work before `main` that rlock needs, because rlock runs
//! without that runtime.

use std::os::fd::{BorrowedFd, IntoRawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::stdio;

use crate::environment::say;
use rlock_supervise::signals;
use rlock_sys::exit;

/// To be called first of all.
pub(crate) fn prepare() {
    signals::ignore_failed_writes();
    [stdio::stdin(), stdio::stdout(), stdio::stderr()].into_iter().for_each(fill);
}

/// The least limit of the stack, in KiB. Below it the kernel would end rlock by SIGSEGV.
const STACK_KIB: u64 = 96;

/// Refuses to go on, and returns the exit code, where the stack is too small for rlock.
pub(crate) fn refuse_small_stack() -> Option<u8> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current? >> 10;
    (limit < STACK_KIB).then(|| {
        say(&format!("its stack may have {limit} KiB, and rlock needs {STACK_KIB}: raise the limit: ulimit -s 8192"));
        exit::FAILURE
    })
}

/// Opens /dev/null in the place of a standard descriptor that is closed. Otherwise the next file
/// would get its number, and messages would be written into that file. Without /dev/null, the root
/// directory is opened in a way that allows neither reading nor writing. The command gets the
/// descriptor closed, as it was.
fn fill(standard: BorrowedFd<'_>) {
    if rustix::io::fcntl_getfd(standard) != Err(Errno::BADF) {
        return;
    }
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    if let Ok(opened) = null.or_else(|_| rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())) {
        // The kernel gives the lowest free number, which is the one that was closed. It stays open
        // to the end.
        let _ = opened.into_raw_fd();
    }
}
