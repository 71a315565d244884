//! Receives signals for a poll loop, and blocks signals where they would disturb.
//!
//! There is no thread: a handler of the crate signal-hook records the signal and makes a descriptor
//! readable. [`Receiver::wait`] loses no signal even if that fails, because the kernel lets the
//! handlers run in the same step in which it begins to wait.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use rustix::event::{PollFd, PollFlags};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;

use crate::alarm::Alarm;
use crate::clock::Boottime;

/// The signals of this process, from [`new`](Self::new) on.
#[derive(Debug)]
pub struct Receiver {
    delivery: SignalDelivery<OwnedFd, WithOrigin>,
    /// What was taken from the handlers' record, and not yet returned by
    /// [`next_signal`](Self::next_signal).
    kept: VecDeque<Origin>,
}

impl Receiver {
    /// Starts to receive these signals.
    ///
    /// # Errors
    /// An error of the kernel, when it has no descriptors left.
    pub fn new(numbers: impl IntoIterator<Item = c_int>) -> io::Result<Self> {
        let sockets = UnixStream::pair().map(|(read, write)| (read.into(), OwnedFd::from(write)));
        // Where a sandbox refuses socketpair(2), a pipe takes its place, into which the handlers
        // write nothing. A wait does not depend on the descriptor.
        let (read, write) = sockets.or_else(|_| io::pipe().map(|(read, write)| (read.into(), write.into())))?;
        let delivery = SignalDelivery::with_pipe(read, write, WithOrigin::default(), numbers)?;
        Ok(Self { delivery, kept: VecDeque::new() })
    }

    /// Waits like [`Alarm::wait`], and for a signal.
    ///
    /// The signals are blocked while the record is read, and the kernel unblocks them as it begins
    /// to wait. A signal in between interrupts the wait, so nothing depends on the descriptor. It
    /// is polled for signals that a handler records in another thread.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait<'a>(
        &'a mut self,
        alarm: &'a Alarm,
        polled: &mut Vec<PollFd<'a>>,
        until: Option<Boottime>,
    ) -> io::Result<()> {
        let blocked = block_all()?;
        self.gather();
        let until = if self.kept.is_empty() { until } else { Some(Boottime::default()) };
        let descriptors = polled.len();
        polled.push(PollFd::new(self.delivery.get_read(), PollFlags::IN));
        let outcome = alarm.wait_with(polled, until, Some(&blocked.before));
        polled.truncate(descriptors);
        Ok(outcome?)
    }

    /// Takes the signals that the handlers have recorded.
    ///
    /// The order of a SIGTSTP and a SIGCONT that came together is unknown, so the SIGTSTP is
    /// dropped. A user can repeat a lost stop. But if rlock stopped while it holds a lock, perhaps
    /// no process would continue it.
    pub fn gather(&mut self) {
        self.record();
        if self.has(libc::SIGCONT) {
            self.forget(libc::SIGTSTP);
        }
    }

    /// Takes the signals as they are.
    pub fn record(&mut self) {
        self.kept.extend(self.delivery.pending());
    }

    /// Whether this signal was taken and not yet returned.
    pub fn has(&self, number: c_int) -> bool {
        self.kept.iter().any(|origin| origin.signal == number)
    }

    /// Forgets this signal, if it was taken and not yet returned.
    pub fn forget(&mut self, number: c_int) {
        self.kept.retain(|origin| origin.signal != number);
    }

    /// The next signal that has come, without waiting. The caller must call it until it returns
    /// `None`.
    pub fn next_signal(&mut self) -> Option<Origin> {
        if self.kept.is_empty() {
            self.gather();
        }
        self.kept.pop_front()
    }
}

/// Blocks signals in this thread until it is dropped.
pub struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    /// Leaves this signal unblocked when the others are as they were before.
    pub fn unblock_later(&mut self, number: c_int) {
        // SAFETY: the mask is a complete set, which the kernel returned.
        unsafe { libc::sigdelset(&raw mut self.before, number) };
    }

    /// Leaves this signal blocked when the others are as they were before.
    pub fn keep_blocked(&mut self, number: c_int) {
        // SAFETY: the mask is a complete set, which the kernel returned.
        unsafe { libc::sigaddset(&raw mut self.before, number) };
    }

    /// The mask from before.
    pub fn before(&self) -> libc::sigset_t {
        self.before
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // This cannot fail: the mask came from the kernel.
        let _ = set_mask(&self.before);
    }
}

/// A signal that [`Pending`] has taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// The number of the signal.
    pub number: c_int,
    /// The process that sent the signal; 0 for the kernel, and for a process that this process
    /// cannot see.
    pub sender: u32,
}

/// Takes blocked signals without a handler, by signalfd(2). A process takes its own signals only,
/// whichever process has made the descriptor.
#[derive(Debug)]
pub struct Pending(OwnedFd);

impl Pending {
    /// Takes these signals, which the caller blocks.
    ///
    /// # Errors
    /// The kernel's, when it has no descriptors left.
    pub fn of(numbers: &[c_int]) -> io::Result<Self> {
        let set = set_of(numbers);
        // SAFETY: the set is complete, and -1 asks for a new descriptor.
        let made = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made the descriptor, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(made) }))
    }

    /// The next signal that has come, without waiting.
    pub fn next(&self) -> Option<Taken> {
        take(self.as_fd())
    }
}

impl AsFd for Pending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Takes a signal from the descriptor of a [`Pending`]. It does not allocate, and does not set
/// `errno`.
pub fn take(descriptor: BorrowedFd<'_>) -> Option<Taken> {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    rustix::io::read(descriptor, &mut info).ok()?;
    // The number is the first field of signalfd_siginfo, and the sender the fourth.
    let field = |at: usize| info[4 * at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    Some(Taken { number: field(0).cast_signed(), sender: field(3) })
}

/// Blocks all signals in this thread, and in the threads that it starts meanwhile.
pub fn block_all() -> io::Result<Blocked> {
    Ok(Blocked { before: set_mask(&full_set())? })
}

/// Blocks these signals in this thread.
pub fn block(numbers: &[c_int]) -> io::Result<Blocked> {
    Ok(Blocked { before: change_mask(libc::SIG_BLOCK, &set_of(numbers))? })
}

fn full_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset writes a complete set to the pointer.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// The set of these signals and no others, for calls of the C library.
pub fn set_of(numbers: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset writes a complete set to the pointer, and sigaddset changes the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in numbers {
            libc::sigaddset(set.as_mut_ptr(), *number);
        }
        set.assume_init()
    }
}

/// Makes `mask` the mask of this thread and returns the previous mask.
pub fn set_mask(mask: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    change_mask(libc::SIG_SETMASK, mask)
}

/// The size of the kernel's set of signals.
const KERNEL_SET_BYTES: usize = 8;

/// Changes the mask of this thread as `how` says and returns the previous mask. The C library is
/// not asked, because it hides signals that it uses itself: with musl, a command would get
/// SIGRTMIN unblocked.
fn change_mask(how: c_int, mask: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut old = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `mask` is a complete set, and `old` has room for one. Both are longer than the
    // kernel's sets.
    let result = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, ptr::from_ref(mask), old.as_mut_ptr(), KERNEL_SET_BYTES)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeros are an empty set, and the kernel has written the old mask over them.
    Ok(unsafe { old.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn signal_whose_wake_up_is_lost_ends_the_wait() {
        let mut receiver = Receiver::new([libc::SIGWINCH]).unwrap();
        signal_hook::low_level::raise(libc::SIGWINCH).unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(receiver.delivery.get_read(), &mut byte), Ok(1));
        let begun = Boottime::now();
        receiver.wait(&Alarm::default(), &mut Vec::new(), Some(begun + 2 * LONG)).unwrap();
        assert!(Boottime::now() - begun < LONG);
        assert_eq!(receiver.next_signal().map(|origin| origin.signal), Some(libc::SIGWINCH));
    }
}
