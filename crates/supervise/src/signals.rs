//! Receives the signals of a supervision, each with its sender, and undoes rlock's signal setup.
//!
//! [`super::machine`] decides what a signal leads to. The command starts with the dispositions and
//! the mask that rlock was started with, and rlock stops itself as if it had no handler.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, getpid, kill_process};
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::low_level::siginfo::Cause;

use super::event::{Group, Sender, Signal, Stop};
use rlock_sys::alarm::Alarm;
use rlock_sys::clock::Boottime;
use rlock_sys::processes;
use rlock_sys::signals::{Blocked, Pending, Receiver, Taken, block, block_all, set_mask};

/// The signals of a failed write: to a pipe without readers, and beyond the limit on file sizes.
const OF_WRITES: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];
/// The original dispositions of these signals, which the command gets back.
static BEFORE_WRITES: [OnceLock<libc::sigaction>; 2] = [OnceLock::new(), OnceLock::new()];

/// The signals besides those of [`Signal::ALL`] that rlock passes on: those of timers, supervisors
/// and debuggers, and the real-time signals.
///
/// They have no handler, because LMDB and the standard library end the process by SIGABRT: abort(3)
/// unblocks the signal first. Without a controlling terminal, no kernel sends SIGTTIN or SIGTTOU.
fn foreign(group: Group) -> impl Iterator<Item = libc::c_int> {
    let of_terminal = [libc::SIGTTIN, libc::SIGTTOU].into_iter().filter(move |_| group == Group::Own);
    [libc::SIGALRM, libc::SIGPWR, libc::SIGABRT]
        .into_iter()
        .chain(of_terminal)
        .chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// Ignores SIGPIPE and SIGXFSZ from here on, so that a failed write is an error and does not kill
/// rlock. The command gets the original dispositions.
pub fn ignore_failed_writes() {
    let ignored = action(libc::SIG_IGN);
    for (signal, before) in OF_WRITES.into_iter().zip(&BEFORE_WRITES) {
        if let Ok(found) = replace(signal, &ignored) {
            let _ = before.set(found);
        }
    }
}

/// Ignores all that [`Signals`] receives, for a process that nobody is to end by a signal.
pub(crate) fn ignore_all() -> io::Result<()> {
    let ignored = action(libc::SIG_IGN);
    Signal::ALL.into_iter().try_for_each(|signal| replace(signal.kernel().as_raw(), &ignored).map(drop))
}

/// Blocks all that [`Signals`] receives until the guard is dropped. [`Signals::install`] meanwhile
/// receives what has come since.
pub(crate) fn hold_back_all() -> io::Result<Blocked> {
    block(&Signal::ALL.map(|signal| signal.kernel().as_raw()))
}

/// The signal that rlock ignores while it waits for what a reaped command has left, so that other
/// processes see that in /proc. No process notices: the kernel ignores the signal by default, too.
const REAPED: libc::c_int = libc::SIGURG;

/// Shows to [`has_reaped`] whether this rlock has reaped its command and still holds the lock.
pub(crate) fn show_reaped(is_reaped: bool) {
    let _ = replace(REAPED, &action(if is_reaped { libc::SIG_IGN } else { libc::SIG_DFL }));
}

/// Whether an rlock has reaped its command, and waits for what the command has left.
pub(crate) fn has_reaped(rlock: Pid) -> bool {
    processes::ignores(rlock, REAPED).unwrap_or(false)
}

/// An event that the handlers recorded.
#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    /// A child has ended or stopped.
    Child,
    /// A signal for the command.
    Signal(Signal, Source),
}

/// The kernel's information about the sender of a signal.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    kernel: bool,
    process: Option<Pid>,
}

impl Source {
    /// A signal without a meaning for rlock comes from a process or from a timer of this process.
    fn of_foreign(taken: Taken) -> Self {
        Self { kernel: false, process: Pid::from_raw(taken.sender.cast_signed()) }
    }

    fn of(origin: &Origin) -> Self {
        // A sender in a pid namespace above ours has the pid 0 here.
        let process = origin.process.as_ref().and_then(|process| Pid::from_raw(process.pid));
        Self { kernel: origin.cause == Cause::Kernel, process }
    }

    /// The process id of the sender; 0 for the kernel, and for a process in another pid namespace.
    pub(crate) fn number(self) -> u32 {
        self.process.map_or(0, |process| process.as_raw_nonzero().get().unsigned_abs())
    }

    /// Classifies the sender, which tells whether the command has received `signal` too.
    ///
    /// Other processes in a shared group may have sent the signal to the group or to rlock alone;
    /// rlock cannot tell. In doubt rlock passes the signal on: a duplicate signal is better than a
    /// `kill $!` in a script that is lost.
    pub fn sender(self, signal: Signal, command: Option<Pid>) -> Sender {
        if self.kernel {
            // When a terminal hangs up, the kernel signals only the leader of the session, not its
            // group.
            let to_leader = matches!(signal, Signal::Hup | Signal::Cont) && leads_session();
            return if to_leader { Sender::Other } else { Sender::Terminal };
        }
        let Some(pid) = self.process else { return Sender::Other };
        if Some(pid) == command || pid == getpid() { Sender::Command } else { Sender::Other }
    }
}

/// The signals of this process, from [`install`](Self::install) on.
#[derive(Debug)]
pub struct Signals {
    receiver: Receiver,
    /// The signals that mean nothing to rlock. They stay blocked. Without a descriptor for them
    /// they act on rlock as on any program.
    foreign: Option<Pending>,
    /// Each signal whose disposition differs from the command's, with the disposition for the
    /// command.
    before: Vec<(libc::c_int, libc::sigaction)>,
    /// The mask that rlock was started with.
    inherited: libc::sigset_t,
}

impl Signals {
    /// Starts to receive [`Signal::ALL`], SIGCHLD, and the signals that mean nothing to rlock. The
    /// caller must call it before it makes the request, so that no signal is lost.
    ///
    /// If rlock was started with HUP, INT or QUIT ignored (nohup, background jobs of a script),
    /// these signals stay ignored. Signals that were blocked at the start stay blocked for the
    /// command alone. If SIGCHLD stayed blocked in rlock, the lock would never be released.
    ///
    /// # Errors
    /// An error of the kernel, when it has no descriptors left.
    pub fn install(group: Group) -> io::Result<Self> {
        // A signal that arrived halfway through this function would be neither recorded nor fatal.
        let mut blocked = block_all()?;
        let inherited = blocked.before();
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
        let receiver = Receiver::new(before.iter().map(|(number, _)| *number))?;
        before.iter().for_each(|(number, _)| blocked.unblock_later(*number));
        let numbers: Vec<_> = foreign(group).collect();
        let foreign = Pending::of(&numbers).ok();
        numbers.iter().filter(|_| foreign.is_some()).for_each(|number| blocked.keep_blocked(*number));
        for (signal, noted) in OF_WRITES.into_iter().zip(&BEFORE_WRITES) {
            // If [`ignore_failed_writes`] did not run, Rust's runtime has ignored the signal.
            before.push((signal, *noted.get_or_init(|| action(libc::SIG_DFL))));
        }
        Ok(Self { receiver, foreign, before, inherited })
    }

    /// See [`Receiver::wait`].
    pub fn wait<'a>(
        &'a mut self,
        alarm: &'a Alarm,
        polled: &mut Vec<PollFd<'a>>,
        until: Option<Boottime>,
    ) -> io::Result<()> {
        let descriptors = polled.len();
        polled.extend(self.foreign.iter().map(|foreign| PollFd::new(foreign, PollFlags::IN)));
        let outcome = self.receiver.wait(alarm, polled, until);
        polled.truncate(descriptors);
        outcome
    }

    /// The next signal that has come, without waiting. The caller must call it until it returns
    /// `None`.
    ///
    /// Several signals come in the order of their numbers, as the kernel delivers pending signals.
    pub fn next_arrival(&mut self) -> Option<Arrival> {
        loop {
            let Some(origin) = self.receiver.next_signal() else {
                let foreign = |taken: Taken| Arrival::Signal(Signal::Foreign(taken.number), Source::of_foreign(taken));
                return self.foreign.as_ref()?.next().map(foreign);
            };
            if origin.signal == SIGCHLD {
                return Some(Arrival::Child);
            }
            if let Some(signal) = Signal::from_number(origin.signal) {
                return Some(Arrival::Signal(signal, Source::of(&origin)));
            }
        }
    }

    /// Takes the signals no more that mean nothing to rlock. They stay blocked.
    pub(crate) fn leave_foreign(&mut self) {
        self.foreign = None;
    }

    /// Stops this process as the signal would if there were no handler, and returns when this
    /// process has been continued.
    ///
    /// The process stops by its original disposition for the signal, not by SIGSTOP. In an orphaned
    /// process group the kernel ignores SIGTSTP, and after a SIGSTOP no shell would ever continue
    /// rlock. If a SIGCONT has come meanwhile, rlock does not stop at all.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn stop_self(&mut self, stop: Stop) -> io::Result<()> {
        self.receiver.gather();
        if self.receiver.has(libc::SIGCONT) {
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

    /// Raises the stop signal and checks for a SIGCONT that comes at the same time. While the stop
    /// signal is pending, a SIGCONT discards it; an earlier SIGCONT was recorded. Two gaps remain:
    /// a SIGCONT during the system call that raises the signal, and, with SIGSTOP, which cannot be
    /// blocked, during the next call.
    fn raise_stop(&mut self, stop: Stop) -> io::Result<()> {
        let number = stop.kernel().as_raw();
        let _blocked = block(&[number])?;
        kill_process(getpid(), stop.kernel())?;
        self.receiver.gather();
        if self.receiver.has(libc::SIGCONT) && stop != Stop::Unconditional {
            // Ignoring a pending signal discards it.
            let mut ignored = disposition(number)?;
            ignored.sa_sigaction = libc::SIG_IGN;
            let stopping = replace(number, &ignored)?;
            replace(number, &stopping)?;
        }
        Ok(())
    }

    /// Drops recorded signals that would stop rlock again. On SIGCONT the kernel drops pending stop
    /// signals, and recorded ones must not differ.
    fn forget_stops(&mut self) {
        self.receiver.gather();
        self.receiver.forget(libc::SIGTSTP);
    }

    /// Ends this process as the signal would if there were no handler. The function returns if the
    /// signal does not end this process. It also returns if this process leads the session: no
    /// shell waits for rlock then, and the exit code tells any other parent.
    pub(crate) fn end_self(&self, signal: Signal) {
        if leads_session() {
            return;
        }
        let number = signal.kernel().as_raw();
        if let Some((_, before)) = self.before.iter().find(|(handled, _)| *handled == number) {
            // If this fails, rlock still leaves with the exit code.
            let _ = replace(number, before).and_then(|_| Ok(kill_process(getpid(), signal.kernel())?));
        }
    }

    /// Blocks all signals in this thread until the guard is dropped. A handler that runs in the
    /// child during a fork would swallow a signal that was meant for the command.
    pub(crate) fn hold_back(&self) -> io::Result<Blocked> {
        block_all()
    }

    /// For the child between fork and exec: restores the dispositions and the mask that rlock was
    /// started with.
    ///
    /// The returned closure makes system calls only, so it may run in the child.
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

/// Whether this process leads its session. rustix cannot ask: a session that comes from outside the
/// pid namespace has the number 0.
fn leads_session() -> bool {
    processes::own_session() == getpid().as_raw_nonzero().get()
}

/// A disposition without a handler: SIG_IGN or SIG_DFL.
fn action(disposition: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: all zeros are a valid action without flags, mask or restorer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = disposition;
    action
}

fn disposition(number: libc::c_int) -> io::Result<libc::sigaction> {
    sigaction(number, ptr::null())
}

/// Installs `action` and returns the previous action.
fn replace(number: libc::c_int, action: &libc::sigaction) -> io::Result<libc::sigaction> {
    sigaction(number, action)
}

fn sigaction(number: libc::c_int, new: *const libc::sigaction) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::uninit();
    // SAFETY: `new` is null or comes from a reference, and each installed action is a valid action;
    // `old` has room for one.
    if unsafe { libc::sigaction(number, new, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded, so it has written the old action.
    Ok(unsafe { old.assume_init() })
}

/// Tests that send or receive signals hold this lock, because a signal goes to every test of this
/// process at once.
#[cfg(test)]
pub(crate) fn one_test_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for the next arrival of `wanted`. Children of other tests may end in the meantime.
    fn wait_for(signals: &mut Signals, wanted: Signal) -> Source {
        loop {
            while let Some(arrival) = signals.next_arrival() {
                if let Arrival::Signal(signal, source) = arrival {
                    assert_eq!(signal, wanted);
                    return source;
                }
            }
            signals.wait(&Alarm::default(), &mut Vec::new(), None).unwrap();
        }
    }

    #[test]
    fn signal_ends_the_wait_and_has_its_sender() {
        let _one = one_test_at_a_time();
        let mut signals = Signals::install(Group::Own).unwrap();
        for signal in Signal::ALL {
            kill_process(getpid(), signal.kernel()).unwrap();
            let source = wait_for(&mut signals, signal);
            assert_eq!(source.process, Some(getpid()), "{signal:?}");
            assert_eq!(source.sender(signal, None), Sender::Command);
        }
    }

    #[test]
    fn signal_sent_again_arrives_again() {
        let _one = one_test_at_a_time();
        let mut signals = Signals::install(Group::Own).unwrap();
        for _ in 0..3 {
            kill_process(getpid(), Signal::Usr1.kernel()).unwrap();
            wait_for(&mut signals, Signal::Usr1);
        }
    }

    #[test]
    fn sender_is_terminal_command_or_other() {
        let kernel = Source { kernel: true, process: None };
        let from = |pid| Source { kernel: false, process: Pid::from_raw(pid) };
        let command = Pid::from_raw(i32::MAX);
        assert_eq!(kernel.sender(Signal::Int, command), Sender::Terminal);
        assert_eq!(from(i32::MAX).sender(Signal::Term, command), Sender::Command);
        assert_eq!(from(i32::MAX - 1).sender(Signal::Term, command), Sender::Other, "no such process");
        assert_eq!(from(0).sender(Signal::Term, command), Sender::Other, "outside of this pid namespace");
        let mut sibling = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(sibling.id()).unwrap();
        assert_eq!(from(pid).sender(Signal::Term, command), Sender::Other, "of the same group, but not the command");
        sibling.kill().unwrap();
        sibling.wait().unwrap();
    }

    /// Sends the signals to this process, each after the previous one was recorded. Any thread of
    /// the test program may receive a signal.
    fn noted(sent: &[Signal]) -> Signals {
        let mut signals = Signals::install(Group::Own).unwrap();
        for signal in sent {
            kill_process(getpid(), signal.kernel()).unwrap();
            while !signals.receiver.has(signal.kernel().as_raw()) {
                std::thread::yield_now();
                signals.receiver.record();
            }
        }
        signals
    }

    fn left(signals: &mut Signals) -> Vec<Signal> {
        let arrivals = std::iter::from_fn(|| signals.next_arrival());
        let signal = |arrival| if let Arrival::Signal(signal, _) = arrival { Some(signal) } else { None };
        arrivals.filter_map(signal).collect()
    }

    #[test]
    fn continue_drops_the_stops_before_it() {
        let _one = one_test_at_a_time();
        let mut signals = noted(&[Signal::Usr1, Signal::Tstp, Signal::Usr2]);
        signals.forget_stops();
        let mut left = left(&mut signals);
        left.sort_unstable_by_key(|signal| signal.kernel().as_raw());
        assert_eq!(left, [Signal::Usr1, Signal::Usr2]);
    }

    #[test]
    fn stop_is_cancelled_by_a_continue() {
        let _one = one_test_at_a_time();
        let mut signals = noted(&[Signal::Tstp, Signal::Cont]);
        signals.stop_self(Stop::Tstp).unwrap();
        assert_eq!(left(&mut signals), [Signal::Cont]);
    }
}
