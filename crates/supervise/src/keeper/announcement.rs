//! Tells a keeper that its grant is about to be released, so that it takes the end of the grant for
//! no loss.
//!
//! No store tells how a grant has ended for as long as a keeper may be late. So `rlock release`
//! queues a signal with the session as its value before it releases. The keeper blocks the signal,
//! and looks for it when the grant is gone: by then it is there.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{FromRawFd, OwnedFd};
use std::{io, ptr};

use rustix::process::Pid;

use super::process::NAME;
use rlock_model::request::{Process, SessionId};
use rlock_sys::processes;
use rlock_sys::signals::block;

/// A real-time signal, whose number does not depend on the C library.
const SIGNAL: c_int = 50;

/// Blocks the signal in this process, which becomes a keeper.
///
/// # Errors
/// The kernel's.
pub fn expect() -> io::Result<()> {
    std::mem::forget(block(&[SIGNAL])?);
    Ok(())
}

/// A descriptor that is readable when an announcement has come.
///
/// # Errors
/// The kernel's.
pub(super) fn descriptor() -> io::Result<OwnedFd> {
    // SAFETY: the calls write to this variable, which lives longer than the calls, and a
    // descriptor that signalfd returns belongs to nobody else.
    unsafe {
        let mut awaited: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut awaited);
        libc::sigaddset(&raw mut awaited, SIGNAL);
        match libc::signalfd(-1, &raw const awaited, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// Whether the release of this session was announced, and not taken back.
pub fn is_there(session: SessionId) -> bool {
    let mut is_there = false;
    while let Some(value) = next() {
        is_there = value == value_of(session, true) || is_there && value != value_of(session, false);
    }
    is_there
}

/// Announces the release of a session to its keeper, if that is a process of this machine that
/// may be signalled. With `is_due` false, takes the announcement back.
pub fn send(session: SessionId, process: &Process, is_due: bool) {
    let is_here = rustix::system::uname().nodename().to_string_lossy() == process.host;
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw).filter(|_| is_here) else { return };
    if processes::names(pid).0 == NAME.to_bytes() {
        let value = libc::sigval { sival_ptr: ptr::without_provenance_mut::<c_void>(value_of(session, is_due)) };
        // SAFETY: the call reads no memory. It fails if the process is gone or another user's.
        unsafe { libc::sigqueue(pid.as_raw_nonzero().get(), SIGNAL, value) };
    }
}

/// The value that announces the release of a session, or takes that back.
fn value_of(SessionId(bytes): SessionId, is_due: bool) -> usize {
    let part = usize::from_ne_bytes(*bytes.first_chunk().expect("an id is longer than a word"));
    if is_due { part } else { !part }
}

/// The value of the next signal that has come.
fn next() -> Option<usize> {
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: the calls write to these variables, which live longer than the calls. The kernel has
    // filled `info` if it returns the signal, which always has a value.
    unsafe {
        let mut awaited: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut awaited);
        libc::sigaddset(&raw mut awaited, SIGNAL);
        let at_once: libc::timespec = zeroed();
        let came = libc::sigtimedwait(&raw const awaited, info.as_mut_ptr(), &raw const at_once) == SIGNAL;
        came.then(|| info.assume_init().si_value().sival_ptr.addr())
    }
}
