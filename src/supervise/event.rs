//! The words between the loop and the machine: what can happen, and what can be done about it.
//!
//! Plain data. What an event leads to is [`super::machine`]'s business, how an action is done is
//! [`super::run`]'s.

use rustix::process::Signal as Kernel;

use crate::clock::Boottime;
use crate::exit;

/// A signal that rlock receives on behalf of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM
    Term,
    /// SIGINT
    Int,
    /// SIGHUP
    Hup,
    /// SIGQUIT
    Quit,
    /// SIGUSR1
    Usr1,
    /// SIGUSR2
    Usr2,
    /// SIGWINCH
    Winch,
    /// SIGCONT
    Cont,
    /// SIGTSTP
    Tstp,
}

impl Signal {
    /// Every signal that rlock receives, SIGCHLD apart, which is about the command and not for it.
    pub(crate) const ALL: [Self; 9] =
        [Self::Term, Self::Int, Self::Hup, Self::Quit, Self::Usr1, Self::Usr2, Self::Winch, Self::Cont, Self::Tstp];

    /// The kernel's own name for it.
    pub(crate) const fn kernel(self) -> Kernel {
        match self {
            Self::Term => Kernel::TERM,
            Self::Int => Kernel::INT,
            Self::Hup => Kernel::HUP,
            Self::Quit => Kernel::QUIT,
            Self::Usr1 => Kernel::USR1,
            Self::Usr2 => Kernel::USR2,
            Self::Winch => Kernel::WINCH,
            Self::Cont => Kernel::CONT,
            Self::Tstp => Kernel::TSTP,
        }
    }

    /// The signal with this number, if rlock receives it.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.kernel().as_raw() == number)
    }

    /// The exit code of a program that this signal ended: 128 + n.
    pub(crate) fn exit_code(self) -> u8 {
        Ended::Signal(self.kernel().as_raw()).exit_code()
    }

    /// Whether a program that does nothing about the signal is ended by it: while no command runs,
    /// these cancel the request.
    pub(crate) const fn ends_by_default(self) -> bool {
        !matches!(self, Self::Winch | Self::Cont | Self::Tstp)
    }
}

/// Who sent a signal, as far as it tells whether the command has received it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The terminal, which sends to the whole foreground group.
    Terminal,
    /// The command or rlock itself; what they send while they share a group is for the group.
    Command,
    /// Anybody else.
    Other,
}

/// A signal that stopped the command, and will stop rlock in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// SIGTSTP: Ctrl-Z, or a program that suspends itself
    Tstp,
    /// SIGSTOP, which no program can catch
    Unconditional,
    /// SIGTTIN: it read from the terminal out of the background
    Ttin,
    /// SIGTTOU: it wrote to or changed the terminal out of the background
    Ttou,
}

impl Stop {
    /// The kernel's own name for it.
    pub(crate) const fn kernel(self) -> Kernel {
        match self {
            Self::Tstp => Kernel::TSTP,
            Self::Unconditional => Kernel::STOP,
            Self::Ttin => Kernel::TTIN,
            Self::Ttou => Kernel::TTOU,
        }
    }

    /// The stop with this number; a number that stops nothing is taken for SIGSTOP.
    pub(crate) fn from_number(number: i32) -> Self {
        let known = [Self::Tstp, Self::Ttin, Self::Ttou];
        known.into_iter().find(|stop| stop.kernel().as_raw() == number).unwrap_or(Self::Unconditional)
    }
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It exited with this code.
    Code(u8),
    /// The signal of this number ended it.
    Signal(i32),
}

impl Ended {
    /// The exit code that says the same: the command's own, or 128 + n.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(number) => u8::try_from(number).map_or(u8::MAX, |n| exit::SIGNAL_BASE.saturating_add(n)),
        }
    }
}

/// The process group that the command runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Not that of rlock, for there is no terminal: the group of the guardian, which leads it.
    Own,
    /// That of rlock, so that the terminal's foreground, Ctrl-C, Ctrl-Z, `fg` and pipelines work
    /// untouched.
    Shared,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The store says: still in the queue.
    Queued,
    /// The store is out of reach, where the request is in the queue as far as anybody knows; it is
    /// tried again.
    OutOfReach,
    /// The store says: granted. Again with each renewal, which moves the deadline.
    Granted {
        /// When the command must be gone unless the lease is renewed; `None` where there is no
        /// lease.
        deadline: Option<Boottime>,
    },
    /// The store says: neither granted nor queued, now or ever; the exit code that says why.
    Denied(u8),
    /// The store says: the grant, or the place in the queue, is gone.
    Lost,
    /// The store could not say.
    StoreFailed,
    /// The store has said which sessions are in the way: the request must not wait, or its wait is
    /// over.
    Busy,
    /// A signal came.
    Signal {
        /// Which one.
        signal: Signal,
        /// Who sent it.
        sender: Sender,
    },
    /// The command runs.
    Started,
    /// The command could not be run; the exit code that says why.
    StartFailed(u8),
    /// The command was stopped, not ended.
    CommandStopped(Stop),
    /// The command has ended and is not yet reaped.
    Ended(Ended),
    /// Nothing is left of what the command has started.
    RestEnded,
    /// The grant or the place in the queue was given back. A release that finds the grant gone
    /// brings [`Event::Lost`] instead.
    Released,
    /// Time has passed, nothing else.
    Tick,
}

/// What becomes of the command when the grant is lost, or the place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// It was not started.
    NotStarted,
    /// It is stopped.
    Stopped,
    /// It ended by itself, and nobody can tell whether in time.
    EndedLate,
}

/// Something to do. A list of them is carried out in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start the command; answer with [`Event::Started`] or [`Event::StartFailed`].
    Start,
    /// Send the signal to the command's process alone, as if its sender had.
    Pass(Signal),
    /// Send the signal to what is left of the command's group: in a shared one, to what the command
    /// has started.
    PassGroup(Signal),
    /// Ask the command's whole process tree to end: SIGTERM.
    Terminate,
    /// End the command's whole process tree: SIGKILL, until nothing of it is left.
    Kill,
    /// Stop the command's whole process tree: SIGSTOP.
    Freeze,
    /// Continue the command's whole process tree: SIGCONT.
    Thaw,
    /// Stop rlock as this signal would have, and come back when it is continued.
    StopSelf(Stop),
    /// Collect the ended command; its process id is void from here on.
    Reap,
    /// Wait for the end of what the command has started; answer with [`Event::RestEnded`].
    AwaitRest,
    /// Give back the grant or the place in the queue, whichever there is by now; answer with
    /// [`Event::Released`] or [`Event::Lost`].
    Release,
    /// Show on the terminal who holds what the request waits for.
    ShowWaiting,
    /// Take that line away again.
    HideWaiting,
    /// Ask the store which sessions are in the way of the request; answer with [`Event::Busy`], or
    /// [`Event::StoreFailed`] if the store cannot tell.
    AskBlockers,
    /// Say which sessions are in the way.
    ReportBusy,
    /// Say what the store or the start of the command failed with, or why the request was denied.
    ReportFailure,
    /// Say the same as a warning: the command goes on.
    Warn,
    /// Say the same as a warning: the wait goes on.
    WarnWaiting,
    /// Say that the store took the grant away.
    ReportLost(Consequence),
    /// Say that the lease could not be renewed in time.
    ReportOverdue(Consequence),
    /// The end: leave with this exit code.
    Exit(u8),
    /// The end: leave as a program that this signal ends.
    ExitBy(Signal),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_there_and_back() {
        for signal in Signal::ALL {
            assert_eq!(Signal::from_number(signal.kernel().as_raw()), Some(signal));
        }
        assert_eq!(Signal::from_number(Kernel::CHILD.as_raw()), None);
        for stop in [Stop::Tstp, Stop::Unconditional, Stop::Ttin, Stop::Ttou] {
            assert_eq!(Stop::from_number(stop.kernel().as_raw()), stop);
        }
    }

    #[test]
    fn exit_codes_are_those_of_the_shells() {
        assert_eq!(Signal::Term.exit_code(), 143);
        assert_eq!(Ended::Signal(9).exit_code(), 137);
        assert_eq!(Ended::Code(255).exit_code(), 255);
        assert_eq!(Ended::Signal(64).exit_code(), 192);
    }
}
