//! Defines the vocabulary between the loop and the machine: events go in, actions come out.
//!
//! This module is plain data. [`super::machine`] decides which actions follow an event;
//! [`super::run`] carries the actions out.

use std::time::Duration;

use rustix::process::Signal as Kernel;

use rlock_sys::clock::Boottime;
use rlock_sys::exit;

/// A signal that rlock receives on behalf of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
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
    /// A signal of this number that means nothing to rlock.
    Foreign(i32),
}

impl Signal {
    /// Every signal that rlock handles, except SIGCHLD: SIGCHLD is about the command, not for the
    /// command.
    pub const ALL: [Self; 9] =
        [Self::Term, Self::Int, Self::Hup, Self::Quit, Self::Usr1, Self::Usr2, Self::Winch, Self::Cont, Self::Tstp];

    /// The signals that people and programs send to every process of a tree.
    pub(crate) const TO_EVERYONE: [Self; 7] =
        [Self::Term, Self::Int, Self::Hup, Self::Quit, Self::Usr1, Self::Usr2, Self::Cont];

    /// The kernel's signal of this name, to be sent.
    pub const fn kernel(self) -> Kernel {
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
            // SAFETY: the kernel has delivered a signal of this number, and the C library uses none
            // of the numbers that rlock receives so.
            Self::Foreign(number) => unsafe { Kernel::from_raw_unchecked(number) },
        }
    }

    /// The signal with this number, if rlock handles it.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.kernel().as_raw() == number)
    }

    /// The exit code of a program that this signal ended: 128 + n.
    pub fn exit_code(self) -> u8 {
        Ended::Signal(self.kernel().as_raw()).exit_code()
    }

    /// Whether people and programs send the signal to end a process.
    pub(crate) const fn asks_to_end(self) -> bool {
        matches!(self, Self::Term | Self::Int | Self::Hup | Self::Quit)
    }

    /// Whether the signal's default action ends a process, or the signal means nothing to rlock.
    /// While no command runs, these signals cancel the request.
    pub(crate) const fn ends_by_default(self) -> bool {
        !matches!(self, Self::Winch | Self::Cont | Self::Tstp)
    }
}

/// The sender of a signal, as far as the sender tells whether the command has received the signal
/// too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The terminal, which sends to the whole foreground group.
    Terminal,
    /// The command or rlock itself. While the command and rlock share a group, their signals are
    /// meant for the whole group.
    Command,
    /// A process that has sent the signal to every process: the guardian has received it, too.
    Everyone,
    /// Any other process.
    Other,
}

/// A signal that stopped the command, and that will stop rlock in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGTSTP: Ctrl-Z, or a program that suspends itself
    Tstp,
    /// SIGSTOP, which no program can catch
    Unconditional,
    /// SIGTTIN: the command read from the terminal while it was in the background
    Ttin,
    /// SIGTTOU: the command wrote to or changed the terminal while it was in the background
    Ttou,
}

impl Stop {
    /// The signal that stops a process in the same way.
    pub const fn kernel(self) -> Kernel {
        match self {
            Self::Tstp => Kernel::TSTP,
            Self::Unconditional => Kernel::STOP,
            Self::Ttin => Kernel::TTIN,
            Self::Ttou => Kernel::TTOU,
        }
    }

    /// The stop signal with this number. A number that is no stop signal counts as SIGSTOP.
    pub(crate) fn from_number(number: i32) -> Self {
        let known = [Self::Tstp, Self::Ttin, Self::Ttou];
        known.into_iter().find(|stop| stop.kernel().as_raw() == number).unwrap_or(Self::Unconditional)
    }
}

/// How a command or a spare work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The command exited with this code.
    Code(u8),
    /// The signal of this number ended the command.
    Signal(i32),
}

impl Ended {
    /// The exit code that a shell would report: the command's own, or 128 + n.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(number) => u8::try_from(number).map_or(u8::MAX, |n| exit::SIGNAL_BASE.saturating_add(n)),
        }
    }
}

/// The process group that the command runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The guardian's group, which the guardian leads. It is used when rlock has no terminal.
    Own,
    /// rlock's group, so that the terminal's foreground, Ctrl-C, Ctrl-Z, `fg` and pipelines keep
    /// working.
    Shared,
}

/// What has happened, in the order in which the loop noticed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The store reports that the request is still queued.
    Queued,
    /// The store is out of reach while the request is queued, as far as rlock knows. The handle
    /// retries.
    OutOfReach,
    /// The store reports a grant. The event is repeated with each renewal, which moves the
    /// deadline.
    Granted {
        /// When the command must be gone unless the lease is renewed; `None` if the grant has no
        /// lease.
        deadline: Option<Boottime>,
    },
    /// The store reports that the grant is revoked, with each renewal: it is held until it is
    /// released.
    Revoked {
        /// The same as for [`Event::Granted`].
        deadline: Option<Boottime>,
    },
    /// The store reports that the request is neither granted nor queued, and never will be. The
    /// exit code says why.
    Denied(u8),
    /// The request waits for itself, and is the one to end.
    Deadlock,
    /// No rlock runs its command around this process, so the request never waits for itself.
    NotNested,
    /// The store reports that the grant or the place in the queue is gone.
    Lost,
    /// The store gave no answer.
    StoreFailed,
    /// The store has named the sessions that are in the way: the request must not wait, or its wait
    /// is over. The store keeps nothing of the request.
    Busy {
        /// How long the job has been skipped in a row, if the store counts this request as a skip.
        skipped_for: Option<Duration>,
    },
    /// The store reports that a run has succeeded lately, so the command need not run.
    AlreadyDone,
    /// rlock has received a signal that it passes on, or that ends a wait.
    Signal {
        /// The signal that was received.
        signal: Signal,
        /// Its sender.
        sender: Sender,
    },
    /// The request is at the gate, and its machine has no room for the command yet.
    NoRoom,
    /// The request is at the gate, its machine has room for the command, and its paths lead where
    /// they led when it was made.
    Room,
    /// The request is at the gate, and its paths lead elsewhere since it was made.
    Moved,
    /// The command runs.
    Started,
    /// The grant was handed over, and outlives this process.
    HandedOver,
    /// The grant was handed over to a process. This rlock keeps it until that process ends.
    Kept {
        /// Whether a signal tells the process of a loss.
        hears: bool,
    },
    /// The command could not be run. The exit code says why.
    StartFailed(u8),
    /// The command, or a process below it, says that it is ready.
    Ready,
    /// The command was stopped; it has not ended.
    CommandStopped(Stop),
    /// The command has ended and is not yet reaped.
    Ended(Ended),
    /// Nothing is left that needs the grant: no process that the command has started, or not the
    /// process that the grant is kept for.
    RestEnded,
    /// The spare work has ended.
    SpareEnded(Ended),
    /// The spare work could not be started.
    SpareFailed,
    /// The grant or the place in the queue was released, by this rlock or by another process. A
    /// release that finds the grant gone reports [`Event::Lost`] instead.
    Released,
    /// Time has passed and nothing else has happened.
    Tick,
}

/// Why rlock ends a command, or does not start it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The store has taken the grant or the place in the queue away.
    Lost,
    /// The lease could not be renewed in time, so the grant counts as lost.
    Overdue,
    /// The grant is revoked. It is still held.
    Revoked,
    /// The maximum run time is over. The grant is still held.
    Timeout,
    /// The maximum run time is over. The grant was released when the command was ready.
    TimeoutReleased,
}

impl Cause {
    /// Whether the grant is not held any more.
    pub(crate) const fn is_loss(self) -> bool {
        matches!(self, Self::Lost | Self::Overdue)
    }
}

/// What happens to the command for a [`Cause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// The command was not started.
    NotStarted,
    /// rlock stops the command.
    Stopped,
    /// The command ended by itself, perhaps too late.
    EndedLate,
}

/// What a line tells the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// What the request waits for.
    Waiting,
    /// The same, if the first in the way is another one than in the last of these lines.
    Change,
    /// Which sessions are in the way of a busy request.
    Busy,
    /// Why a busy request ends in silence otherwise.
    Skip,
    /// A run has succeeded lately.
    Done,
    /// Why the store or a start failed, why the request was denied, or which requests wait for each
    /// other.
    Failure,
    /// The failure as a warning: the command goes on.
    Warning,
    /// The failure as a warning: the wait goes on.
    WaitGoesOn,
    /// Why the command is ended or not started, and what happens to it.
    Ends(Cause, Consequence),
    /// Which processes an ended command has left. They hold the lock until they end.
    Rest {
        /// The number of the signal that has ended the command.
        by: i32,
        /// Whether the processes have received SIGTERM.
        had_term: bool,
    },
    /// Which processes have not ended since SIGKILL.
    Unkilled {
        /// Whether the processes hold the lock until they end.
        holds: bool,
    },
    /// How the spare work ended.
    Spare(Ended),
}

/// One step for the loop. The loop carries out a list of actions in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the command, or hand the grant over. The loop answers with [`Event::Started`],
    /// [`Event::HandedOver`], [`Event::Kept`] or [`Event::StartFailed`].
    Start,
    /// Look whether the machine has room for the command, and go on looking; then resolve the paths
    /// of the request again. The loop answers with [`Event::Room`], with [`Event::NoRoom`] again
    /// and again, with [`Event::Moved`], or with [`Event::StartFailed`].
    EnterGate,
    /// Give the wait for room up. The loop answers with [`Event::Busy`].
    LeaveGate,
    /// Leave the gate, give the grant back, and ask for what the paths of the request lead to now.
    /// The loop answers as to a new request.
    AskAnew,
    /// Send the signal to the command's process alone, as its sender would have.
    Pass(Signal),
    /// Send the signal to the command's process if the command does not catch it. A command that
    /// has received the signal as well does not notice a second one then.
    PassUncaught(Signal),
    /// Send the signal to the rest of the command's group. In a shared group, only processes that
    /// the command has started receive it.
    PassGroup(Signal),
    /// Look at the command's process tree, so that its processes count as the command's when their
    /// parents have ended.
    Survey,
    /// Send the signal once to the topmost processes that the ended command has left, and to the
    /// processes that these leave in turn.
    TellRest {
        /// The signal to send.
        signal: Signal,
        /// Whether the processes in rlock's own group have received the signal.
        spares_group: bool,
    },
    /// Tell the process that the grant is kept for that the grant is lost.
    TellLoss,
    /// Send SIGTERM to the command's whole process tree, and continue what is stopped.
    Terminate,
    /// Send SIGKILL to the command's whole process tree, until none of its processes is left.
    Kill,
    /// Send SIGSTOP to the command's whole process tree.
    Freeze,
    /// Send SIGCONT to the command's whole process tree.
    Thaw,
    /// Stop rlock as this signal would have, and return when rlock is continued.
    StopSelf(Stop),
    /// Reap the ended command. Its process id is invalid from here on.
    Reap,
    /// Wait until the processes that the command has started have ended. The loop answers with
    /// [`Event::RestEnded`].
    AwaitRest,
    /// Release the grant or the place in the queue, whichever the session has by now. The loop
    /// answers with [`Event::Released`] or [`Event::Lost`].
    Release,
    /// Release the grant while the command goes on. The loop answers with [`Event::Released`] or
    /// [`Event::Lost`].
    ReleaseEarly,
    /// Tell the guardian to end, because the command has ended and the grant was released before.
    Dismiss,
    /// Show on the terminal the holders that the request waits for.
    ShowWaiting,
    /// Erase the line that [`Action::ShowWaiting`] has written.
    HideWaiting,
    /// Print a line.
    Say(Line),
    /// Look whether the request waits for itself. The loop answers with [`Event::Deadlock`] if it
    /// does, and if it is the one to end, and with [`Event::NotNested`] if it never will.
    Look,
    /// Leave the queue because the wait is over, and ask the store which sessions are in the way.
    /// The loop answers with [`Event::Busy`], with [`Event::Granted`] if the request was granted in
    /// the meantime, or with what else became of the request.
    GiveUp,
    /// Start the spare work. The loop answers with [`Event::SpareEnded`] when the work has ended,
    /// or with [`Event::SpareFailed`].
    StartSpare,
    /// Send the signal to the spare work.
    PassSpare(Signal),
    /// Send SIGKILL to the spare work.
    KillSpare,
    /// Execute the work of `--else` in place of rlock. No action follows.
    RunElse,
    /// Exit with this code. No action follows.
    Exit(u8),
    /// End rlock by this signal. No action follows.
    ExitBy(Signal),
}

impl Action {
    /// Whether rlock ends with this action.
    pub(crate) fn is_exit(&self) -> bool {
        matches!(self, Self::RunElse | Self::Exit(_) | Self::ExitBy(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_numbers_round_trip() {
        for signal in Signal::ALL {
            assert_eq!(Signal::from_number(signal.kernel().as_raw()), Some(signal));
        }
        assert_eq!(Signal::from_number(Kernel::CHILD.as_raw()), None);
        for stop in [Stop::Tstp, Stop::Unconditional, Stop::Ttin, Stop::Ttou] {
            assert_eq!(Stop::from_number(stop.kernel().as_raw()), stop);
        }
    }

    #[test]
    fn exit_codes_match_those_of_shells() {
        assert_eq!(Signal::Term.exit_code(), 143);
        assert_eq!(Ended::Signal(9).exit_code(), 137);
        assert_eq!(Ended::Code(255).exit_code(), 255);
        assert_eq!(Ended::Signal(64).exit_code(), 192);
    }
}
