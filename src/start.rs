//! What Rust's runtime does before `main`, as far as rlock needs it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::supervise::signals;

/// To be called first of all.
pub(crate) fn prepare() {
    signals::ignore_failed_writes();
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()].into_iter().for_each(fill);
}

/// Opens /dev/null in the place of a standard descriptor that is closed. Else the next file that is
/// opened would have its number, and be written to by whoever prints.
fn fill(standard: BorrowedFd<'_>) {
    if rustix::io::fcntl_getfd(standard) == Err(Errno::BADF)
        && let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())
    {
        // The lowest number that is free is the one that was closed; it is to stay open to the end.
        let _ = null.into_raw_fd();
    }
}
