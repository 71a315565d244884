//! Receives signals: each with its sender, through a descriptor that the loop polls.
//!
//! No thread: a handler notes the signal and makes the descriptor ready. What a signal leads to is [`super::machine`]'s business.
//! Here is also what has to be undone for others: the command starts with the dispositions and the mask that rlock was started
//! with, and rlock stops itself as if it had no handler.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use rustix::process::{Pid, getpid, getsid, kill_process};
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::backend::{Pending, SignalDelivery};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::low_level::siginfo::Cause;

use super::event::{Sender, Signal, Stop};

/// Something that the handlers noted.
#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    /// A child has ended or stopped.
    Child,
    /// A signal for the command.
    Signal(Signal, Source),
}

/// What the kernel says about the sender of a signal.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    kernel: bool,
    process: Option<Pid>,
}

impl Source {
    fn of(origin: &Origin) -> Self {
        // A sender in a pid namespace above ours has the pid 0 here.
        let process = origin.process.as_ref().and_then(|process| Pid::from_raw(process.pid));
        Self { kernel: origin.cause == Cause::Kernel, process }
    }

    /// Tells whether the command has had `signal` from its sender too.
    ///
    /// Whoever else is in a shared group may have sent to the group or to rlock alone, which nobody can tell; a signal too many
    /// is better than a `kill $!` in a script that nobody hears.
    pub fn sender(self, signal: Signal, command: Option<Pid>) -> Sender {
        if self.kernel {
            // When a line hangs up the kernel tells the leader of the session alone, not its group.
            let to_leader =
                matches!(signal, Signal::Hup | Signal::Cont) && getsid(None).is_ok_and(|sid| sid == getpid());
            return if to_leader { Sender::Other } else { Sender::Terminal };
        }
        let Some(pid) = self.process else { return Sender::Other };
        if Some(pid) == command || pid == getpid() { Sender::Command } else { Sender::Other }
    }
}

/// The signals of this process, from [`install`](Self::install) on.
#[derive(Debug)]
pub struct Signals {
    delivery: SignalDelivery<UnixStream, WithOrigin>,
    batch: Option<Pending<WithOrigin>>,
    /// What was taken out of the batch but not yet asked for.
    kept: Vec<Origin>,
    /// Every signal with a handler, and what stood in the handler's place.
    before: Vec<(libc::c_int, libc::sigaction)>,
}

impl Signals {
    /// Starts to receive [`Signal::ALL`] and SIGCHLD. To be called before the request is made, so that none is lost.
    ///
    /// HUP, INT and QUIT that rlock was started with ignored (nohup, background jobs of a script) stay ignored.
    ///
    /// # Errors
    /// The kernel's, when it has no descriptors left.
    pub fn install() -> io::Result<Self> {
        let mut before = Vec::with_capacity(Signal::ALL.len() + 1);
        for signal in Signal::ALL {
            let number = signal.kernel().as_raw();
            let old = disposition(number)?;
            let may_stay_ignored = matches!(signal, Signal::Hup | Signal::Int | Signal::Quit);
            if !(may_stay_ignored && old.sa_sigaction == libc::SIG_IGN) {
                before.push((number, old));
            }
        }
        before.push((SIGCHLD, disposition(SIGCHLD)?));
        let (read, write) = UnixStream::pair()?;
        let numbers = before.iter().map(|(number, _)| *number);
        let delivery = SignalDelivery::with_pipe(read, write, WithOrigin::default(), numbers)?;
        Ok(Self { delivery, batch: None, kept: Vec::new(), before })
    }

    /// Readable when [`next`](Self::next) has something.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// The next of the signals that have come, without waiting. To be asked until there are none.
    ///
    /// Of several they come in the order of their numbers, as the kernel itself delivers pending ones.
    #[expect(clippy::should_implement_trait, reason = "an end of this iteration is for now only")]
    pub fn next(&mut self) -> Option<Arrival> {
        loop {
            let origin = self.next_origin()?;
            if origin.signal == SIGCHLD {
                return Some(Arrival::Child);
            }
            if let Some(signal) = Signal::from_number(origin.signal) {
                return Some(Arrival::Signal(signal, Source::of(&origin)));
            }
        }
    }

    fn next_origin(&mut self) -> Option<Origin> {
        if let Some(origin) = self.kept.pop() {
            return Some(origin);
        }
        let next = self.batch.get_or_insert_with(|| self.delivery.pending()).next();
        if next.is_none() {
            self.batch = None;
        }
        next
    }

    /// Stops this process as the signal would if there were no handler, and returns when it has been continued.
    ///
    /// The disposition that rlock was started with does it, not SIGSTOP: in a group that no shell watches over the kernel
    /// ignores SIGTSTP, and nobody would ever continue us.
    pub fn stop_self(&mut self, stop: Stop) -> io::Result<()> {
        let number = stop.kernel().as_raw();
        let before = self.before.iter().find(|(handled, _)| *handled == number).map(|(_, action)| *action);
        let ours = before.map(|before| replace(number, &before)).transpose()?;
        let stopped = kill_process(getpid(), stop.kernel());
        if let Some(ours) = ours {
            replace(number, &ours)?;
        }
        self.forget_stops();
        Ok(stopped?)
    }

    /// Drops what would stop us again. The kernel drops pending stop signals on SIGCONT; those that wait here are no different.
    fn forget_stops(&mut self) {
        let mut kept: Vec<_> = std::iter::from_fn(|| self.next_origin()).collect();
        kept.retain(|origin| origin.signal != Signal::Tstp.kernel().as_raw());
        kept.reverse();
        self.kept = kept;
    }

    /// Holds all signals back from this thread until the guard goes: for the time of a fork, in which a handler that runs in the
    /// child would swallow what was meant for the command.
    pub fn hold_back(&self) -> io::Result<HeldBack> {
        let mut all = MaybeUninit::uninit();
        // SAFETY: sigfillset writes a whole set to the pointer that it is given.
        let all = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            all.assume_init()
        };
        Ok(HeldBack { mask: set_mask(&all)? })
    }

    /// For the child between fork and exec: gives it the dispositions and the mask that rlock was started with.
    ///
    /// What this returns makes system calls only, so it may run there.
    pub fn undo_in_child(&self, held_back: &HeldBack) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
        let before = self.before.clone();
        let mask = held_back.mask;
        move || {
            for (number, action) in &before {
                replace(*number, action)?;
            }
            set_mask(&mask).map(drop)
        }
    }
}

/// Signals are held back as long as this lives.
pub struct HeldBack {
    mask: libc::sigset_t,
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        // It can't fail: the mask came from the kernel.
        let _ = set_mask(&self.mask);
    }
}

fn disposition(number: libc::c_int) -> io::Result<libc::sigaction> {
    sigaction(number, ptr::null())
}

/// Puts `action` in place and returns what stood there.
fn replace(number: libc::c_int, action: &libc::sigaction) -> io::Result<libc::sigaction> {
    sigaction(number, action)
}

fn sigaction(number: libc::c_int, new: *const libc::sigaction) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::uninit();
    // SAFETY: `new` is null or comes from a reference, and each action put in place was one before; `old` has room for one.
    if unsafe { libc::sigaction(number, new, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded, so it has written the old action.
    Ok(unsafe { old.assume_init() })
}

/// Makes `mask` the mask of this thread and returns the one before.
fn set_mask(mask: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut old = MaybeUninit::uninit();
    // SAFETY: `mask` is a whole set, `old` has room for one.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, old.as_mut_ptr()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: pthread_sigmask succeeded, so it has written the old mask.
    Ok(unsafe { old.assume_init() })
}

/// Signals go to every test of this process at once, so those that send or receive any hold this lock.
#[cfg(test)]
pub(crate) fn one_test_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Waits for the next arrival of that signal; children of other tests may end meanwhile.
    fn wait_for(signals: &mut Signals, wanted: Signal) -> Source {
        loop {
            while let Some(arrival) = signals.next() {
                if let Arrival::Signal(signal, source) = arrival {
                    assert_eq!(signal, wanted);
                    return source;
                }
            }
            let _ = poll(&mut [PollFd::from_borrowed_fd(signals.descriptor(), PollFlags::IN)], None);
        }
    }

    #[test]
    fn a_signal_makes_the_descriptor_ready_and_tells_its_sender() {
        let _one = one_test_at_a_time();
        let mut signals = Signals::install().unwrap();
        for signal in Signal::ALL {
            kill_process(getpid(), signal.kernel()).unwrap();
            let source = wait_for(&mut signals, signal);
            assert_eq!(source.process, Some(getpid()), "{signal:?}");
            assert_eq!(source.sender(signal, None), Sender::Command);
        }
    }

    #[test]
    fn each_sending_arrives() {
        let _one = one_test_at_a_time();
        let mut signals = Signals::install().unwrap();
        for _ in 0..3 {
            kill_process(getpid(), Signal::Usr1.kernel()).unwrap();
            wait_for(&mut signals, Signal::Usr1);
        }
    }

    #[test]
    fn senders_are_told_apart() {
        let kernel = Source { kernel: true, process: None };
        let from = |pid| Source { kernel: false, process: Pid::from_raw(pid) };
        let command = Pid::from_raw(i32::MAX);
        assert_eq!(kernel.sender(Signal::Int, command), Sender::Terminal);
        assert_eq!(from(i32::MAX).sender(Signal::Term, command), Sender::Command);
        assert_eq!(from(i32::MAX - 1).sender(Signal::Term, command), Sender::Other, "no such process");
        assert_eq!(from(0).sender(Signal::Term, command), Sender::Other, "outside of our pid namespace");
        let mut sibling = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(sibling.id()).unwrap();
        assert_eq!(from(pid).sender(Signal::Term, command), Sender::Other, "of the same group, but not the command");
        sibling.kill().unwrap();
        sibling.wait().unwrap();
    }

    #[test]
    fn a_continued_process_forgets_the_stops_before() {
        let _one = one_test_at_a_time();
        let mut signals = Signals::install().unwrap();
        for signal in [Signal::Usr1, Signal::Tstp, Signal::Usr2] {
            kill_process(getpid(), signal.kernel()).unwrap();
        }
        // Any thread of the test may take them, so wait until this one's descriptor says that all three are noted.
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let _ = poll(&mut [PollFd::from_borrowed_fd(signals.descriptor(), PollFlags::IN)], None);
            seen.extend(std::iter::from_fn(|| signals.next_origin()).filter(|origin| origin.signal != SIGCHLD));
        }
        signals.kept = seen;
        signals.forget_stops();
        let mut left: Vec<_> = std::iter::from_fn(|| signals.kept.pop()).map(|origin| origin.signal).collect();
        left.sort_unstable();
        assert_eq!(left, [Signal::Usr1.kernel().as_raw(), Signal::Usr2.kernel().as_raw()]);
    }
}
