//! Answers events after the end of a command that was ended: the lock stays held until the
//! processes that the command has left are gone.
//!
//! A command that ends by itself frees the lock at once. A command that was ended may have left
//! work that knows nothing of the end, or that still cleans up. rlock kills none of it.

use std::time::Duration;

use super::super::event::{Action, Cause, Consequence, Ended, Event, Line, Sender, Signal, Stop};
use super::running::LastTime;
use super::{Next, Settings, State, is_over, terminate_at};
use rlock_sys::clock::Boottime;

/// How long after a SIGHUP, a SIGQUIT or a SIGINT of the terminal an end counts as its effect. Some
/// programs reload, write a dump or ask for the next line instead.
const EFFECT_LIMIT: Duration = Duration::from_secs(10);

/// How long rlock waits for the rest before it says so.
pub(super) const REPORT_AFTER: Duration = Duration::from_secs(1);

/// A signal that rlock got while the command ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) signal: Signal,
    reach: Reach,
    at: Boottime,
}

/// Which processes of the tree have received a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The command, to which rlock passed the signal.
    Command,
    /// The process group that rlock and the command share.
    Group,
    Everyone,
}

impl Told {
    pub(super) fn new(signal: Signal, sender: Sender, is_passed: bool, at: Boottime) -> Self {
        let reach = match (is_passed, sender) {
            (true, _) => Reach::Command,
            (false, Sender::Everyone) => Reach::Everyone,
            (false, _) => Reach::Group,
        };
        Self { signal, reach, at }
    }

    /// Whether rlock passed the signal to the command.
    pub(super) fn is_passed(self) -> bool {
        self.reach == Reach::Command
    }

    /// Tells the rest of the tree of the signal, unless the rest has received it.
    pub(super) fn tell_rest(self) -> Option<Action> {
        let spares_group = self.reach == Reach::Group;
        (self.reach != Reach::Everyone).then_some(Action::TellRest { signal: self.signal, spares_group })
    }

    /// Whether the signal has ended a command that ended so at `now`.
    fn has_ended(self, ended: Ended, now: Boottime) -> bool {
        let is_death = ended == Ended::Signal(self.signal.kernel().as_raw());
        is_death
            || match (self.signal, self.reach) {
                (Signal::Term, _) | (Signal::Int, Reach::Command | Reach::Everyone) => true,
                (Signal::Int | Signal::Hup | Signal::Quit, _) => now - self.at <= EFFECT_LIMIT,
                _ => false,
            }
    }
}

/// The number of the signal that has ended a command which ended so at `now`, and the signal of
/// `told` that has done so, if rlock got it. `told` are the signals that rlock got, the last one
/// last. Returns `None` for a command that has ended by itself.
///
/// The command was ended if it died of a signal, or if rlock got a signal that asks for the end.
pub(super) fn ended_by(ended: Ended, told: &[Told], now: Boottime) -> Option<(i32, Option<Told>)> {
    let last = told.iter().rev().find(|told| told.has_ended(ended, now)).copied();
    let by = match ended {
        Ended::Signal(number) => number,
        Ended::Code(_) => last?.signal.kernel().as_raw(),
    };
    Some((by, last))
}

/// The command was ended, and its tree is not known to be gone.
#[derive(Debug)]
pub(super) struct Draining {
    /// The exit when the tree is gone.
    exit: Action,
    deadline: Option<Boottime>,
    /// When the maximum run time is over.
    over_at: Option<Boottime>,
    /// When the user is to learn of the rest, until that has happened.
    report_at: Option<Boottime>,
    /// The number of the signal that ended the command.
    by: i32,
    /// Whether the rest has received SIGTERM.
    had_term: bool,
}

impl Draining {
    /// The state after a command that has ended as [`ended_by`] says. `exit` follows when the tree
    /// is gone. The maximum run time is over at `over_at`.
    pub(super) fn new(
        exit: Action,
        (by, told): (i32, Option<Told>),
        now: Boottime,
        deadline: Option<Boottime>,
        over_at: Option<Boottime>,
    ) -> Self {
        let had_term = told.is_some_and(|told| told.signal == Signal::Term);
        Self { exit, deadline, over_at, report_at: Some(now + REPORT_AFTER), by, had_term }
    }

    pub(super) fn next_timeout(&self, settings: &Settings) -> Option<Boottime> {
        terminate_at(self.deadline, settings).into_iter().chain(self.over_at).chain(self.report_at).min()
    }

    pub(super) fn on(&mut self, event: Event, now: Boottime, settings: &Settings) -> Next {
        match event {
            Event::Granted { deadline } => {
                self.deadline = deadline;
                Next::nothing()
            }
            Event::Revoked { deadline } => {
                self.deadline = deadline;
                self.end(Cause::Revoked, now, settings)
            }
            Event::Lost => self.end(Cause::Lost, now, settings),
            Event::StoreFailed => Next::Stay(vec![Action::Say(Line::Warning)]),
            Event::RestEnded => Next::Enter(State::Leaving(self.exit), vec![Action::Release]),
            Event::Signal { .. } | Event::Tick if is_over(terminate_at(self.deadline, settings), now) => {
                self.end(Cause::Overdue, now, settings)
            }
            Event::Signal { .. } | Event::Tick if is_over(self.over_at, now) => self.end(Cause::Timeout, now, settings),
            Event::Tick if is_over(self.report_at, now) => {
                self.report_at = None;
                Next::Stay(vec![Action::Say(Line::Rest { by: self.by, had_term: self.had_term })])
            }
            Event::Signal { signal, sender } => Next::Stay(self.signal(signal, sender)),
            _ => Next::nothing(),
        }
    }

    /// What a further signal leads to.
    fn signal(&mut self, signal: Signal, sender: Sender) -> Vec<Action> {
        let tell = |signal, spares_group| vec![Action::TellRest { signal, spares_group }];
        self.had_term |= matches!(signal, Signal::Term | Signal::Int | Signal::Quit);
        match signal {
            Signal::Tstp => vec![Action::Freeze, Action::StopSelf(Stop::Tstp)],
            Signal::Cont => vec![Action::Thaw],
            _ if sender == Sender::Everyone => vec![],
            // Shells let background jobs ignore SIGINT and SIGQUIT.
            Signal::Term | Signal::Int | Signal::Quit => tell(Signal::Term, false),
            Signal::Hup => tell(Signal::Hup, sender == Sender::Terminal),
            // The signal was meant for the command.
            Signal::Usr1 | Signal::Usr2 | Signal::Winch | Signal::Foreign(_) => vec![],
        }
    }

    /// Ends the rest, as gently as the time allows.
    fn end(&self, cause: Cause, now: Boottime, settings: &Settings) -> Next {
        let report = Action::Say(Line::Ends(cause, Consequence::Stopped));
        let last_time = LastTime { cause, grace_over: now + settings.grace, deadline: self.deadline };
        if is_over(self.deadline, now) {
            return last_time.kill_rest(now).after(Some(report));
        }
        Next::Enter(State::Clearing(last_time), vec![report, Action::Terminate])
    }
}
