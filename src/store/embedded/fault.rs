//! The last line of defence around LMDB: a table that changes under its map ends rlock with a line
//! and an exit code.
//!
//! [`super::verify`] reads a suspicious table before LMDB does. What is left is a file that is cut
//! short or written to in the middle of a transaction. LMDB then reads beyond the end of its map,
//! or follows what is no page, and the kernel sends a signal. Nothing can be given back at that
//! point. The kernel ends the hold with the process, and the command of a holder is killed as it is
//! when rlock is killed.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;

use crate::exit;

/// What LMDB may die of: a page beyond the end, a wild pointer, a failed assertion or a damaged
/// heap, a division by zero; and the timer that ends a loop.
const SIGNALS: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGSEGV, libc::SIGABRT, libc::SIGFPE, libc::SIGILL, libc::SIGVTALRM];

/// How many seconds of its own a transaction may compute; it takes microseconds.
const LOOP_AFTER: libc::time_t = 20;

const LINE: &[u8] =
    b"rlock: the table of the embedded store is damaged: end the rlock processes that use it, then the next one \
starts with a new table\n";

thread_local! {
    /// Whether this thread is in a transaction: a fault anywhere else is a defect of rlock, and
    /// stays one.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Faults of this thread are taken for damage of the table as long as this lives.
pub(super) struct Guard(());

impl Guard {
    /// Begins to guard. The handlers are put in place once; the command does not inherit handlers.
    pub(super) fn new() -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        GUARDED.set(true);
        let limit = libc::timeval { tv_sec: LOOP_AFTER, tv_usec: 0 };
        let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: limit };
        // SAFETY: the timer is whole. Nothing else uses this one, and the command does not inherit
        // it.
        unsafe { libc::setitimer(libc::ITIMER_VIRTUAL, &raw const timer, ptr::null_mut()) };
        Self(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        GUARDED.set(false);
    }
}

fn install() {
    // SAFETY: of all zeros it is an action without flags, mask or restorer.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in SIGNALS {
        // SAFETY: of all zeros it is an action, to be overwritten.
        let mut before: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the handler makes only calls that may be made in a handler.
        unsafe { libc::sigaction(signal, &raw const action, &raw mut before) };
        // The command is to inherit what rlock was started with, and no handler is inherited.
        if before.sa_sigaction == libc::SIG_IGN {
            // SAFETY: the action comes from the kernel.
            unsafe { libc::sigaction(signal, &raw const before, ptr::null_mut()) };
        }
    }
    // What the pages say may lead the model into a contradiction as well. A test wants to see its
    // own panic.
    #[cfg(not(test))]
    {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| if GUARDED.get() { give_up() } else { usual(panic) }));
    }
}

/// Says that the table is damaged and ends the process. It may be called in a handler.
pub(super) fn give_up() -> ! {
    // SAFETY: write and _exit may be called in a handler, and the line is as long as it says.
    unsafe {
        libc::write(libc::STDERR_FILENO, LINE.as_ptr().cast(), LINE.len());
        libc::_exit(libc::c_int::from(exit::UNAVAILABLE))
    }
}

extern "C" fn handle(signal: libc::c_int) {
    if GUARDED.get() {
        give_up();
    }
    if signal == libc::SIGVTALRM {
        return;
    }
    // SAFETY: both may be called in a handler. What faulted is repeated after this, without a
    // handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if signal == libc::SIGABRT {
            libc::raise(signal);
        }
    }
}
