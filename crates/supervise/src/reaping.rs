//! Asks the kernel which children of this process have stopped or ended, and reaps inherited ones.

use std::io;

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpid, waitid, waitpid};

use super::event::Ended;
use rlock_sys::exit;

/// The status of a child, if the child has made one of the changes in `what`.
pub(super) fn seen(pid: Pid, what: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
    Ok(waitid(WaitId::Pid(pid), what | WaitIdOptions::NOHANG)?)
}

/// A child that has ended and is not reaped. rustix does not report the child's id.
pub(super) fn next_ended() -> io::Result<Option<Pid>> {
    // The kernel hands orphans to the main thread, which this thread is. In the unit tests, other
    // threads have children of their own.
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD;
    // SAFETY: all zeros are a valid, empty siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` has room for the data that the kernel writes.
    if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(None) } else { Err(error) };
    }
    // SAFETY: waitid filled in the fields for a child, or left the zeros.
    Ok(Pid::from_raw(unsafe { info.si_pid() }))
}

/// As process 1, reaps the processes that rlock inherited while it has no command, but not this
/// shell of the spare work. In any other process the function does nothing.
pub(super) fn reap_inherited(spare: Option<Pid>) {
    while getpid().is_init()
        && let Ok(Some(ended)) = next_ended()
        && Some(ended) != spare
    {
        let _ = waitpid(Some(ended), WaitOptions::empty());
    }
}

/// How a child with this status has ended.
pub(super) fn ended(status: &WaitIdStatus) -> Ended {
    match status.terminating_signal() {
        Some(number) => Ended::Signal(number),
        // The kernel keeps eight bits of an exit code.
        None => {
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            Ended::Code(code.unwrap_or(exit::FAILURE))
        }
    }
}
