//! Receives signals: each with its sender, through a descriptor that the loop polls.
//!
//! No thread: a handler notes the signal and makes the descriptor ready. What a signal leads to is
//! [`super::machine`]'s business. Here is also what has to be undone for others: the command starts
//! with the dispositions and the mask that rlock was started with, and rlock stops itself as if it
//! had no handler.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::OnceLock;

use rustix::process::{Pid, getpid, getsid, kill_process};
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::low_level::siginfo::Cause;

use super::event::{Sender, Signal, Stop};

/// The signals of a write that fails: to a pipe that nobody reads, and beyond the limit on the size
/// of files.
const OF_WRITES: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];
/// What rlock, and so its command, was to do on them.
static BEFORE_WRITES: [OnceLock<libc::sigaction>; 2] = [OnceLock::new(), OnceLock::new()];

/// Ignores SIGPIPE and SIGXFSZ from here on: a write that fails is an error, not a death. The
/// command is not concerned.
pub(crate) fn ignore_failed_writes() {
    let ignored = action(libc::SIG_IGN);
    for (signal, before) in OF_WRITES.into_iter().zip(&BEFORE_WRITES) {
        if let Ok(found) = replace(signal, &ignored) {
            let _ = before.set(found);
        }
    }
}

/// Something that the handlers noted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// A child has ended or stopped.
    Child,
    /// A signal for the command.
    Signal(Signal, Source),
}

/// What the kernel says about the sender of a signal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
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
    /// Whoever else is in a shared group may have sent to the group or to rlock alone, which nobody
    /// can tell; a signal too many is better than a `kill $!` in a script that nobody hears.
    pub(crate) fn sender(self, signal: Signal, command: Option<Pid>) -> Sender {
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
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, WithOrigin>,
    /// What was taken out of the handlers' notes but not yet asked for.
    kept: VecDeque<Origin>,
    /// Every signal whose disposition is another than the command's, with the one for the command.
    before: Vec<(libc::c_int, libc::sigaction)>,
    /// The mask that rlock was started with.
    inherited: libc::sigset_t,
}

impl Signals {
    /// Starts to receive [`Signal::ALL`] and SIGCHLD. To be called before the request is made, so
    /// that none is lost.
    ///
    /// HUP, INT and QUIT that rlock was started with ignored (nohup, background jobs of a script)
    /// stay ignored. What it was started with blocked is so for the command alone: who never hears
    /// that the command has ended would hold its lock for ever.
    ///
    /// # Errors
    /// The kernel's, when it has no descriptors left.
    pub(crate) fn install() -> io::Result<Self> {
        // One that comes in the middle would be noted by nobody, and end nobody.
        let inherited = set_mask(&full_set())?;
        let mut held_back = HeldBack { mask: inherited };
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
        for (number, _) in &before {
            // SAFETY: the mask is a whole set, which the kernel gave.
            unsafe { libc::sigdelset(&raw mut held_back.mask, *number) };
        }
        for (signal, noted) in OF_WRITES.into_iter().zip(&BEFORE_WRITES) {
            // Where nobody has noted it, Rust's runtime has ignored it.
            before.push((signal, *noted.get_or_init(|| action(libc::SIG_DFL))));
        }
        Ok(Self { delivery, kept: VecDeque::new(), before, inherited })
    }

    /// Whether [`next`](Self::next) has something of which [`descriptor`](Self::descriptor) tells
    /// no more.
    pub(crate) fn has_more(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Readable when something has come.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// The next of the signals that have come, without waiting. To be asked until there are none.
    ///
    /// Of several they come in the order of their numbers, as the kernel itself delivers pending
    /// ones.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
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
        if self.kept.is_empty() {
            self.gather();
        }
        self.kept.pop_front()
    }

    /// Takes out what the handlers have noted.
    ///
    /// Of a SIGTSTP and a SIGCONT that came together nobody can tell any more which came last, so
    /// the SIGTSTP is dropped: who was to stop can be told again, but who stops with a lock in hand
    /// may have nobody left to continue it.
    fn gather(&mut self) {
        self.kept.extend(self.delivery.pending());
        if self.is_continued() {
            self.kept.retain(|origin| origin.signal != Signal::Tstp.kernel().as_raw());
        }
    }

    fn is_continued(&self) -> bool {
        self.kept.iter().any(|origin| origin.signal == Signal::Cont.kernel().as_raw())
    }

    /// Stops this process as the signal would if there were no handler, and returns when it has
    /// been continued.
    ///
    /// The disposition that rlock was started with does it, not SIGSTOP: in a group that no shell
    /// watches over the kernel ignores SIGTSTP, and nobody would ever continue us. If a SIGCONT has
    /// come in the meantime it does not stop at all.
    ///
    /// # Errors
    /// The kernel's; none is expected.
    pub(crate) fn stop_self(&mut self, stop: Stop) -> io::Result<()> {
        self.gather();
        if self.is_continued() {
            return Ok(());
        }
        let number = stop.kernel().as_raw();
        let before = self.before.iter().find(|(handled, _)| *handled == number).map(|(_, action)| *action);
        let ours = before.map(|before| replace(number, &before)).transpose()?;
        let raised = self.raise_stop(stop);
        if let Some(ours) = ours {
            replace(number, &ours)?;
        }
        self.forget_stops();
        raised
    }

    /// Raises the stop signal and looks for a SIGCONT that comes just now: while it is pending a
    /// SIGCONT takes it back, and one that came before was noted. What remains is one in the very
    /// system call that raises it, and with SIGSTOP, which can't be held back, in the one after.
    fn raise_stop(&mut self, stop: Stop) -> io::Result<()> {
        let number = stop.kernel().as_raw();
        let _held_back = HeldBack { mask: change_mask(libc::SIG_BLOCK, &set_of(&[number]))? };
        kill_process(getpid(), stop.kernel())?;
        self.gather();
        if self.is_continued() && stop != Stop::Unconditional {
            // To ignore a pending signal discards it.
            let mut ignored = disposition(number)?;
            ignored.sa_sigaction = libc::SIG_IGN;
            let stopping = replace(number, &ignored)?;
            replace(number, &stopping)?;
        }
        Ok(())
    }

    /// Drops what would stop us again. The kernel drops pending stop signals on SIGCONT; those that
    /// wait here are no different.
    fn forget_stops(&mut self) {
        self.gather();
        self.kept.retain(|origin| origin.signal != Signal::Tstp.kernel().as_raw());
    }

    /// Ends this process as the signal would if there were no handler. It comes back if the signal
    /// ends nobody here, and where this process leads the session: no shell waits for it then, and
    /// whoever does is told by the exit code.
    pub(crate) fn end_self(&self, signal: Signal) {
        if getsid(None).is_ok_and(|leader| leader == getpid()) {
            return;
        }
        let number = signal.kernel().as_raw();
        if let Some((_, before)) = self.before.iter().find(|(handled, _)| *handled == number) {
            // Whatever fails here, there is still the exit code to leave with.
            let _ = replace(number, before).and_then(|_| Ok(kill_process(getpid(), signal.kernel())?));
        }
    }

    /// Holds all signals back from this thread until the guard goes: for the time of a fork, in
    /// which a handler that runs in the child would swallow what was meant for the command.
    pub(crate) fn hold_back(&self) -> io::Result<HeldBack> {
        Ok(HeldBack { mask: set_mask(&full_set())? })
    }

    /// For the child between fork and exec: gives it the dispositions and the mask that rlock was
    /// started with.
    ///
    /// What this returns makes system calls only, so it may run there.
    pub(crate) fn undo_in_child(&self) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
        let before = self.before.clone();
        let mask = self.inherited;
        move || {
            for (number, action) in &before {
                replace(*number, action)?;
            }
            set_mask(&mask).map(drop)
        }
    }
}

/// Signals are held back as long as this lives.
pub(crate) struct HeldBack {
    mask: libc::sigset_t,
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        // It can't fail: the mask came from the kernel.
        let _ = set_mask(&self.mask);
    }
}

/// A disposition without a handler: SIG_IGN or SIG_DFL.
fn action(disposition: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: of all zeros it is an action without flags, mask or restorer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = disposition;
    action
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
    // SAFETY: `new` is null or comes from a reference, and each action put in place was one before;
    // `old` has room for one.
    if unsafe { libc::sigaction(number, new, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded, so it has written the old action.
    Ok(unsafe { old.assume_init() })
}

/// The set of all signals.
fn full_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset writes a whole set to the pointer that it is given.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// The set of these signals.
pub(super) fn set_of(numbers: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset writes a whole set to the pointer that it is given, and sigaddset changes
    // it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in numbers {
            libc::sigaddset(set.as_mut_ptr(), *number);
        }
        set.assume_init()
    }
}

/// Makes `mask` the mask of this thread and returns the one before.
fn set_mask(mask: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    change_mask(libc::SIG_SETMASK, mask)
}

/// Changes the mask of this thread, as `how` says, and returns the one before.
fn change_mask(how: libc::c_int, mask: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut old = MaybeUninit::uninit();
    // SAFETY: `mask` is a whole set, `old` has room for one.
    let error = unsafe { libc::pthread_sigmask(how, mask, old.as_mut_ptr()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: pthread_sigmask succeeded, so it has written the old mask.
    Ok(unsafe { old.assume_init() })
}

/// Signals go to every test of this process at once, so those that send or receive any hold this
/// lock.
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

    /// Sends these to this process, each when the one before was noted: any thread of the test may
    /// take it.
    fn noted(sent: &[Signal]) -> Signals {
        let mut signals = Signals::install().unwrap();
        for signal in sent {
            kill_process(getpid(), signal.kernel()).unwrap();
            while !signals.kept.iter().any(|origin| origin.signal == signal.kernel().as_raw()) {
                let _ = poll(&mut [PollFd::from_borrowed_fd(signals.descriptor(), PollFlags::IN)], None);
                signals.kept.extend(signals.delivery.pending());
            }
        }
        signals
    }

    fn left(signals: &mut Signals) -> Vec<Signal> {
        let arrivals = std::iter::from_fn(|| signals.next());
        let signal = |arrival| if let Arrival::Signal(signal, _) = arrival { Some(signal) } else { None };
        arrivals.filter_map(signal).collect()
    }

    #[test]
    fn a_continued_process_forgets_the_stops_before() {
        let _one = one_test_at_a_time();
        let mut signals = noted(&[Signal::Usr1, Signal::Tstp, Signal::Usr2]);
        assert!(signals.has_more());
        signals.forget_stops();
        let mut left = left(&mut signals);
        left.sort_unstable_by_key(|signal| signal.kernel().as_raw());
        assert_eq!(left, [Signal::Usr1, Signal::Usr2]);
        assert!(!signals.has_more());
    }

    #[test]
    fn a_stop_is_off_when_a_continue_has_come() {
        let _one = one_test_at_a_time();
        let mut signals = noted(&[Signal::Tstp, Signal::Cont]);
        signals.stop_self(Stop::Tstp).unwrap();
        assert_eq!(left(&mut signals), [Signal::Cont]);
    }
}
