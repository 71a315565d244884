//! Ends rlock with a message and an exit code if the table changes under LMDB's map: the last line
//! of defence around LMDB.
//!
//! [`super::verify`] reads a suspicious table before LMDB does. But a file may still be cut short
//! or overwritten in the middle of a transaction. LMDB then reads beyond the end of its map, or
//! follows bytes that are not a page, and the kernel sends a signal. No grant can be released at
//! that point. The kernel releases the grant with the end of the process. The command of a holder
//! is killed as it is when rlock is killed.
//!
//! | job | by |
//! | --- | --- |
//! | tell a fault of LMDB from a defect of rlock | [`Guard`] marks the thread that reads the table |
//! | end a loop in damaged pages | [`Guard::new`]: a timer of CPU time sends SIGVTALRM |
//! | receive the signals of a fault | `install`, `handle`; those that were ignored stay ignored |
//! | receive a panic of the model about damaged records | `install` sets a hook |
//! | end the process | [`give_up`], `end`: break the seal, so the table is checked, and print |

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::Once;

use super::directory::Directory;
use super::lock_file;
use rlock_sys::exit;

/// The signals of a failure in LMDB: a page beyond the end of the file, a wild pointer, a failed
/// assertion, a damaged heap, or a division by zero. The signal of the timer that ends a loop is
/// among them.
const SIGNALS: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGSEGV, libc::SIGABRT, libc::SIGFPE, libc::SIGILL, libc::SIGVTALRM];

/// Maximum CPU time of a transaction in seconds. A transaction normally takes microseconds.
const LOOP_AFTER: i32 = 20;

const LINE: &[u8] =
    b"rlock: the table of the embedded store is damaged: end the rlock processes that use it, then the next one \
starts with a new table\n";

const SLOW_LINE: &[u8] =
    b"rlock: a change of the embedded store's table did not end within 20 s of work, and was given up: \
the next rlock checks the table\n";

thread_local! {
    /// The lock file of the table that this thread reads, or `None`. A fault of a thread that reads
    /// no table is a defect of rlock, and is reported as one.
    static GUARDED: Cell<Option<RawFd>> = const { Cell::new(None) };
}

/// While a guard lives, a fault of this thread counts as damage of the table.
pub(super) struct Guard<'d>(PhantomData<&'d Directory>);

impl<'d> Guard<'d> {
    /// Begins to guard. The handlers are installed once; the command does not inherit them.
    pub(super) fn new(directory: &'d Directory) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let limit = libc::timeval { tv_sec: LOOP_AFTER.into(), tv_usec: 0 };
        let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: limit };
        // The timer of an earlier transaction is replaced before it can end this one.
        // SAFETY: the timer is initialised. Nothing else uses this timer, and the command does not
        // inherit it.
        unsafe { libc::setitimer(libc::ITIMER_VIRTUAL, &raw const timer, ptr::null_mut()) };
        GUARDED.set(Some(directory.lock_file().as_raw_fd()));
        Self(PhantomData)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        GUARDED.set(None);
    }
}

fn install() {
    // SAFETY: all zeros are a valid action without flags, mask or restorer.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in SIGNALS {
        // SAFETY: all zeros are a valid action, which sigaction overwrites.
        let mut before: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the handler makes only async-signal-safe calls.
        unsafe { libc::sigaction(signal, &raw const action, &raw mut before) };
        // The command must inherit the actions that rlock was started with. An exec resets a
        // handler to the default action, but passes on an ignored signal.
        if before.sa_sigaction == libc::SIG_IGN {
            // SAFETY: the action comes from the kernel.
            unsafe { libc::sigaction(signal, &raw const before, ptr::null_mut()) };
        }
    }
    // Damaged pages may also lead the model into a contradiction and thus a panic. A test must see
    // its own panic.
    #[cfg(not(test))]
    {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| if GUARDED.get().is_some() { give_up() } else { usual(panic) }));
    }
}

/// Prints that the table is damaged and ends the process. Signal handlers may call this function.
pub(super) fn give_up() -> ! {
    end(LINE)
}

/// Prints a line and ends the process. The next transaction reads the whole table first.
fn end(line: &[u8]) -> ! {
    if let Some(lock) = GUARDED.get() {
        // SAFETY: the guard borrows the directory, which keeps its lock file open.
        let _ = lock_file::break_seal(unsafe { BorrowedFd::borrow_raw(lock) });
    }
    // SAFETY: write and _exit are async-signal-safe, and the line is as long as stated.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        libc::_exit(libc::c_int::from(exit::UNAVAILABLE))
    }
}

extern "C" fn handle(signal: libc::c_int) {
    if GUARDED.get().is_some() {
        // A loop may come from damaged pages, or a change may be larger than any should be.
        if signal == libc::SIGVTALRM { end(SLOW_LINE) } else { give_up() }
    }
    if signal == libc::SIGVTALRM {
        return;
    }
    // SAFETY: both calls are async-signal-safe. After the return, the faulting instruction runs
    // again, without a handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if signal == libc::SIGABRT {
            libc::raise(signal);
        }
    }
}
