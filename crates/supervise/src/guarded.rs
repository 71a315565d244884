//! Starts a program below a guardian, so that its processes die when rlock does.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::process::{Pid, Signal as Kernel, getpid, getppid, set_parent_process_death_signal, setpgid};

use super::guardian::{self, Guardian, Ward};
use super::signals::Signals;
use rlock_sys::exit;

/// Starts a guardian, which keeps these descriptors open, and then a program: `start` gets the
/// guardian and starts the program. Returns the guardian and the program.
///
/// # Errors
/// An error of the kernel or of `start`. Nothing is left running then.
pub(super) fn start(
    ward: &Ward,
    kept: &[BorrowedFd<'_>],
    signals: &Signals,
    start: impl FnOnce(Pid) -> io::Result<Pid>,
) -> io::Result<(Guardian, Pid)> {
    let _blocked = signals.hold_back()?;
    let guardian = guardian::start(ward, kept)?;
    match start(guardian.pid) {
        Ok(program) => Ok((guardian, program)),
        Err(error) => {
            guardian::end(guardian.pid)?;
            Err(error)
        }
    }
}

/// Prepares the program between clone and exec. The program dies with rlock, joins the group of
/// `leader`, if any, and gets back the signal state that rlock was started with.
pub(super) fn prepare(signals: &Signals, leader: Option<Pid>) -> impl Fn() -> io::Result<()> {
    let undo = signals.undo_in_child();
    let rlock = getpid();
    move || {
        if leader.is_some() {
            setpgid(None, leader)?;
        }
        set_parent_process_death_signal(Some(Kernel::KILL))?;
        // If rlock ended before the line above, the kernel sends no signal any more.
        if getppid() != Some(rlock) {
            signal_hook::low_level::exit(i32::from(exit::FAILURE));
        }
        undo()
    }
}
