//! Answers events from the grant to the exit: the command starts, runs, and ends or is ended.

use std::time::Duration;

use super::super::event::{Action, Cause, Consequence, Ended, Event, Group, Line, Sender, Signal, Stop};
use super::draining::{Draining, REPORT_AFTER, Told, ended_by};
use super::keeping::Keeping;
use super::{Next, Settings, State, cancel, exit_after, failed, is_over, not_started, terminate_at};
use rlock_sys::clock::Boottime;
use rlock_sys::exit;

/// How often rlock says which processes have not ended since SIGKILL.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// The request is granted, and the command is about to run.
#[derive(Debug)]
pub(super) struct Starting {
    pub(super) deadline: Option<Boottime>,
}

impl Starting {
    pub(super) fn on(&mut self, event: Event, now: Boottime, settings: &Settings) -> Next {
        match event {
            Event::Started => Next::Enter(State::Running(Running::new(self.deadline, now, settings)), vec![]),
            // The new owner of the grant releases it.
            Event::HandedOver => Next::finish([], Action::Exit(0)),
            Event::Kept { hears } => Next::Enter(State::Keeping(Keeping::new(self.deadline, hears)), vec![]),
            Event::StartFailed(code) => failed(code),
            Event::Granted { deadline } => {
                self.deadline = deadline;
                Next::nothing()
            }
            Event::Revoked { .. } => not_started(Cause::Revoked, exit::LOST),
            Event::Lost => not_started(Cause::Lost, exit::LOST),
            Event::Tick if is_over(terminate_at(self.deadline, settings), now) => {
                not_started(Cause::Overdue, exit::LOST)
            }
            Event::StoreFailed => Next::Stay(vec![Action::Say(Line::Warning)]),
            Event::Signal { signal: Signal::Tstp, .. } => Next::Stay(vec![Action::StopSelf(Stop::Tstp)]),
            Event::Signal { signal, sender } if signal.ends_by_default() => cancel(signal, sender),
            _ => Next::nothing(),
        }
    }
}

/// The command runs.
#[derive(Debug)]
pub(super) struct Running {
    deadline: Option<Boottime>,
    /// The command was ready and the lock was released, so there is no deadline any more.
    is_released: bool,
    /// When the maximum run time is over.
    over_at: Option<Boottime>,
    /// The signals that rlock got, each with its last arrival, in the order of these.
    told: Vec<Told>,
    /// The terminal sent SIGINT.
    is_interrupted: bool,
    /// The command was told to stop, and rlock is to stop after it.
    stops: bool,
    /// The whole process tree was stopped, not the command alone.
    is_frozen: bool,
}

impl Running {
    fn new(deadline: Option<Boottime>, now: Boottime, settings: &Settings) -> Self {
        let over_at = settings.max_runtime.map(|limit| now + limit);
        Self {
            deadline,
            is_released: false,
            over_at,
            told: Vec::new(),
            is_interrupted: false,
            stops: false,
            is_frozen: false,
        }
    }

    pub(super) fn next_timeout(&self, settings: &Settings) -> Option<Boottime> {
        terminate_at(self.deadline, settings).into_iter().chain(self.over_at).min()
    }

    pub(super) fn on(&mut self, event: Event, now: Boottime, settings: &Settings) -> Next {
        match event {
            Event::Granted { .. } | Event::Revoked { .. } | Event::Lost | Event::Ready if self.is_released => {
                Next::nothing()
            }
            Event::Granted { deadline } => {
                self.deadline = deadline;
                Next::nothing()
            }
            Event::Revoked { deadline } => {
                self.deadline = deadline;
                self.end(Cause::Revoked, now, settings)
            }
            // The release of a command that is ready finds out, too, that the grant was lost.
            Event::Lost => self.end(Cause::Lost, now, settings),
            // A store that does not answer has not revoked the grant.
            Event::StoreFailed => Next::Stay(vec![Action::Say(Line::Warning)]),
            Event::Ended(_) if is_over(self.deadline, now) => {
                let report = Action::Say(Line::Ends(Cause::Overdue, Consequence::EndedLate));
                Next::finish([report, Action::Kill, Action::Reap, Action::Release], Action::Exit(exit::LOST))
            }
            Event::Ended(ended) if self.is_released => {
                let actions = self.passed_to_rest(ended).into_iter().chain([Action::Reap, Action::Dismiss]);
                Next::finish(actions, self.exit_as(ended))
            }
            Event::Ended(ended) => {
                let exit = self.exit_as(ended);
                match ended_by(ended, &self.told, now) {
                    None => Next::Enter(State::Leaving(exit), vec![Action::Reap, Action::Release]),
                    Some(ended_by @ (_, told)) => {
                        let draining = Draining::new(exit, ended_by, now, self.deadline, self.over_at);
                        let tell = told.and_then(Told::tell_rest);
                        let actions = [Action::Reap].into_iter().chain(tell).chain([Action::AwaitRest]);
                        Next::Enter(State::Draining(draining), actions.collect())
                    }
                }
            }
            // The time goes first: an overdue command is not continued, and rlock does not stop
            // before it has ended the command.
            Event::Signal { .. } | Event::CommandStopped(_) | Event::Ready | Event::Tick
                if is_over(terminate_at(self.deadline, settings), now) =>
            {
                self.end(Cause::Overdue, now, settings).and_pass()
            }
            // A SIGCONT may find a command that has ended in time while rlock was stopped.
            Event::Signal { signal, .. } if signal != Signal::Cont && is_over(self.over_at, now) => {
                self.time_out(now, settings)
            }
            Event::CommandStopped(_) | Event::Tick if is_over(self.over_at, now) => self.time_out(now, settings),
            Event::Ready => {
                // Nothing renews a lease that is being released, and its end is no loss.
                self.deadline = None;
                Next::Stay(vec![Action::ReleaseEarly])
            }
            Event::Released => {
                self.is_released = true;
                Next::nothing()
            }
            Event::Signal { signal, sender } => Next::Stay(self.signal(signal, sender, now, settings.group)),
            // With a terminal a shell waits for rlock, so rlock has to stop for the shell to get
            // the terminal back.
            Event::CommandStopped(stop) if settings.group == Group::Shared => Next::Stay(vec![Action::StopSelf(stop)]),
            Event::CommandStopped(_) if std::mem::take(&mut self.stops) => {
                self.is_frozen = true;
                Next::Stay(vec![Action::Freeze, Action::StopSelf(Stop::Tstp)])
            }
            _ => Next::nothing(),
        }
    }

    /// Ends a command whose maximum run time is over.
    fn time_out(&self, now: Boottime, settings: &Settings) -> Next {
        let cause = if self.is_released { Cause::TimeoutReleased } else { Cause::Timeout };
        self.end(cause, now, settings).and_pass()
    }

    /// Ends the command, as gently as the time allows.
    fn end(&self, cause: Cause, now: Boottime, settings: &Settings) -> Next {
        let report = Action::Say(Line::Ends(cause, Consequence::Stopped));
        let last_time = LastTime { cause, grace_over: now + settings.grace, deadline: self.deadline };
        if is_over(self.deadline, now) {
            return last_time.kill(now).after(Some(report));
        }
        Next::Enter(State::Stopping(last_time), vec![report, Action::Terminate])
    }

    fn signal(&mut self, signal: Signal, sender: Sender, now: Boottime, group: Group) -> Vec<Action> {
        self.is_interrupted |= signal == Signal::Int && sender == Sender::Terminal;
        let thaws = signal == Signal::Cont && std::mem::take(&mut self.is_frozen);
        let pass = if thaws { Some(Action::Thaw) } else { pass(signal, sender, group) };
        self.told.retain(|told| told.signal != signal);
        let is_passed = pass.is_some_and(|pass| !matches!(pass, Action::PassUncaught(_)));
        self.told.push(Told::new(signal, sender, is_passed, now));
        let survey = (signal.ends_by_default() && !self.is_released).then_some(Action::Survey);
        // In a shared group rlock stops when the command has, not before: a shell that took the
        // terminal back earlier would stop an editor while it restores the screen.
        let stops = signal == Signal::Tstp && group == Group::Own;
        let is_leased = self.deadline.is_some();
        self.stops = signal != Signal::Cont && (self.stops || stops && is_leased);
        let stop_now = (stops && !is_leased).then_some(Action::StopSelf(Stop::Tstp));
        survey.into_iter().chain(pass).chain(stop_now).collect()
    }

    /// The signal that ended the command, for the other processes of its group. In `sh -c 'a; b'` a
    /// passed signal reaches the shell only.
    fn passed_to_rest(&self, ended: Ended) -> Option<Action> {
        let Ended::Signal(number) = ended else { return None };
        let signal = Signal::from_number(number)?;
        self.told.iter().any(|told| told.signal == signal && told.is_passed()).then_some(Action::PassGroup(signal))
    }

    fn exit_as(&self, ended: Ended) -> Action {
        match ended {
            Ended::Signal(number) if number == Signal::Int.kernel().as_raw() => {
                exit_after(Signal::Int, self.is_interrupted)
            }
            _ => Action::Exit(ended.exit_code()),
        }
    }
}

/// How long a stopped command and its process tree may still run.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastTime {
    pub(super) cause: Cause,
    /// When the grace is over.
    pub(super) grace_over: Boottime,
    pub(super) deadline: Option<Boottime>,
}

impl LastTime {
    /// The end of the grace, but never after the deadline.
    pub(super) fn kill_at(self) -> Boottime {
        self.deadline.map_or(self.grace_over, |deadline| deadline.min(self.grace_over))
    }
}

impl LastTime {
    /// The command was sent SIGTERM.
    pub(super) fn stopping_on(&mut self, event: Event, now: Boottime, settings: &Settings) -> Next {
        let report = self.take_in(event, now, settings);
        let next = match event {
            Event::Signal { .. } | Event::Tick if self.kill_at() <= now => self.kill(now),
            // Only rlock kills the command when its time is over, so rlock must not stop now.
            Event::Signal { signal: Signal::Tstp, .. } => Next::nothing(),
            Event::Signal { signal, sender } => Next::Stay(pass(signal, sender, settings.group).into_iter().collect()),
            Event::Ended(_) => Next::Enter(State::Clearing(*self), vec![Action::Reap, Action::AwaitRest]),
            _ => Next::nothing(),
        };
        next.after(report)
    }

    /// The processes that the stopped command started have the rest of its time. Signals are not
    /// passed any more.
    pub(super) fn clearing_on(&mut self, event: Event, now: Boottime, settings: &Settings) -> Next {
        let report = self.take_in(event, now, settings);
        let next = match event {
            Event::RestEnded => gone(self.cause, vec![]),
            Event::Signal { .. } | Event::Tick if self.kill_at() <= now => self.kill_rest(now),
            _ => Next::nothing(),
        };
        next.after(report)
    }

    /// Kills the command and its tree.
    fn kill(self, now: Boottime) -> Next {
        let killed = Killed { last_time: self, has_command: true, report_at: now + REPORT_AFTER };
        Next::Enter(State::Killed(killed), vec![Action::Kill])
    }

    /// Kills the tree of a command that was reaped.
    pub(super) fn kill_rest(self, now: Boottime) -> Next {
        if self.cause.is_loss() {
            return gone(self.cause, vec![Action::Kill]);
        }
        let killed = Killed { last_time: self, has_command: false, report_at: now + REPORT_AFTER };
        Next::Enter(State::Killed(killed), vec![Action::Kill, Action::AwaitRest])
    }

    /// Takes in what concerns the grant, which stays lost, since the command was told to end. But
    /// the command gets its whole grace if the old deadline cut it short. Returns the report about
    /// a loss while the command is ended for another reason.
    fn take_in(&mut self, event: Event, now: Boottime, settings: &Settings) -> Option<Action> {
        let is_overdue = is_over(terminate_at(self.deadline, settings), now);
        self.cause = match event {
            Event::Granted { deadline } | Event::Revoked { deadline } => {
                self.deadline = deadline;
                return None;
            }
            _ if !matches!(self.cause, Cause::Revoked | Cause::Timeout) => return None,
            Event::Lost => Cause::Lost,
            Event::Signal { .. } | Event::Tick if is_overdue => Cause::Overdue,
            _ => return None,
        };
        Some(Action::Say(Line::Ends(self.cause, Consequence::Stopped)))
    }
}

/// The tree was sent SIGKILL, which its processes may survive for as long as the kernel is busy
/// with them. A grant that is not lost is held until they have ended.
#[derive(Debug)]
pub(super) struct Killed {
    last_time: LastTime,
    /// Whether the command is not reaped.
    has_command: bool,
    /// When the user is to learn of the processes that have not ended.
    report_at: Boottime,
}

impl Killed {
    pub(super) fn next_timeout(&self, settings: &Settings) -> Boottime {
        let LastTime { cause, deadline, .. } = self.last_time;
        let overdue_at = terminate_at(deadline, settings).filter(|_| !cause.is_loss());
        overdue_at.map_or(self.report_at, |at| at.min(self.report_at))
    }

    pub(super) fn on(&mut self, event: Event, now: Boottime, settings: &Settings) -> Next {
        let report = self.last_time.take_in(event, now, settings);
        let cause = self.last_time.cause;
        let next = match event {
            // Kills once more, because the processes that the command left behind would go on.
            Event::Ended(_) if cause.is_loss() => gone(cause, vec![Action::Kill, Action::Reap]),
            Event::Ended(_) => {
                self.has_command = false;
                Next::Stay(vec![Action::Kill, Action::Reap, Action::AwaitRest])
            }
            Event::RestEnded if !self.has_command => gone(cause, vec![]),
            _ if cause.is_loss() && !self.has_command => gone(cause, vec![]),
            Event::Tick if self.report_at <= now => {
                self.report_at = now + REPORT_EVERY;
                let holds = !cause.is_loss() && cause != Cause::TimeoutReleased;
                Next::Stay(vec![Action::Say(Line::Unkilled { holds })])
            }
            _ => Next::nothing(),
        };
        next.after(report)
    }
}

/// The tree of a stopped command is gone, or was killed under a lost grant. For a lost grant, the
/// release frees what else the store keeps. Otherwise the release, if it is still due, tells
/// whether the grant was held to the end.
fn gone(cause: Cause, mut actions: Vec<Action>) -> Next {
    actions.push(if cause == Cause::TimeoutReleased { Action::Dismiss } else { Action::Release });
    match cause {
        Cause::Lost | Cause::Overdue => Next::finish(actions, Action::Exit(exit::LOST)),
        Cause::Revoked => Next::Enter(State::Leaving(Action::Exit(exit::LOST)), actions),
        Cause::Timeout => Next::Enter(State::Leaving(Action::Exit(exit::TIMEOUT)), actions),
        Cause::TimeoutReleased => Next::finish(actions, Action::Exit(exit::TIMEOUT)),
    }
}

pub(super) fn leaving(event: Event, exit: Action) -> Next {
    match event {
        Event::Released => Next::finish([], exit),
        // The grant was revoked while the command ran, or just after its end. As with a
        // deadline, nobody can tell.
        Event::Lost => {
            let report = Action::Say(Line::Ends(Cause::Lost, Consequence::EndedLate));
            Next::finish([report], Action::Exit(exit::LOST))
        }
        _ => Next::nothing(),
    }
}

/// Passes a signal on unless its sender has sent it to the command too.
fn pass(signal: Signal, sender: Sender, group: Group) -> Option<Action> {
    match sender {
        // A sender that chooses processes by rlock's program or command line signals rlock and the
        // guardian, and not the command.
        Sender::Everyone => Some(Action::PassUncaught(signal)),
        // A second SIGCONT does no harm. A missing one leaves the command stopped, since rlock may
        // have been continued alone.
        Sender::Terminal | Sender::Command if group == Group::Shared && signal != Signal::Cont => None,
        _ => Some(Action::Pass(signal)),
    }
}
