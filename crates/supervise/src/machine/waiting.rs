//! Answers events of a wait: the request is made, queued or given up, or it is granted and passes
//! the gate before its start.

use std::time::Duration;

use super::super::event::{Action, Cause, Event, Line, Signal, Stop};
use super::{
    LOOK_EVERY, NOTICE_AFTER, Next, Notice, Settings, Skip, Starting, State, TROUBLE_AFTER, cancel, failed, is_over,
    not_started, terminate_at,
};
use rlock_sys::clock::Boottime;
use rlock_sys::exit;

pub(super) fn requesting(event: Event, now: Boottime, settings: &Settings) -> Next {
    match event {
        Event::Queued | Event::OutOfReach => Next::Pass(State::Waiting(Wait::new(now, settings)), vec![]),
        _ => before_grant(event, settings),
    }
}

/// What follows from an event before the grant, whether the request is queued or not.
fn before_grant(event: Event, settings: &Settings) -> Next {
    match event {
        Event::Granted { deadline } => Next::Enter(State::Starting(Starting { deadline }), vec![Action::Start]),
        Event::Revoked { .. } => not_started(Cause::Revoked, exit::LOST),
        // The store keeps nothing of this request, so there is nothing to release.
        Event::Busy { skipped_for } => busy(skipped_for, settings),
        Event::AlreadyDone => Next::finish(settings.verbose.then_some(Action::Say(Line::Done)), Action::Exit(0)),
        Event::Denied(code) => Next::finish([Action::Say(Line::Failure)], Action::Exit(code)),
        Event::Lost => not_started(Cause::Lost, exit::UNAVAILABLE),
        Event::StoreFailed => failed(exit::UNAVAILABLE),
        Event::Deadlock => failed(exit::REFUSED),
        Event::Signal { signal: Signal::Winch | Signal::Cont, .. } => Next::nothing(),
        Event::Signal { signal: Signal::Tstp, .. } => Next::Stay(vec![Action::StopSelf(Stop::Tstp)]),
        Event::Signal { signal, sender } => cancel(signal, sender),
        _ => Next::nothing(),
    }
}

/// The end of a busy request. A skip is silent unless rlock is verbose, but not for ever. The work
/// of `--else` gets the busy line instead of the user.
pub(super) fn busy(skipped_for: Option<Duration>, settings: &Settings) -> Next {
    let is_skipped = match settings.skip {
        Skip::Always => true,
        // A store that cannot count the skips must not silence them for ever.
        Skip::For(limit) => skipped_for.is_some_and(|time| time < limit),
        Skip::Never => false,
    };
    if is_skipped {
        return Next::finish(settings.verbose.then_some(Action::Say(Line::Skip)), Action::Exit(0));
    }
    match settings.has_else {
        true => Next::finish([], Action::RunElse),
        false => Next::finish([Action::Say(Line::Busy)], Action::Exit(settings.conflict_exit_code)),
    }
}

/// A request in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// When the wait is over.
    over_at: Option<Boottime>,
    shown: Shown,
    reach: Reach,
    /// When the next look for a deadlock is due.
    look_at: Option<Boottime>,
}

/// What the user has seen of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Nothing, for good.
    Never,
    /// Nothing before this instant. From then on a line on the terminal.
    LineFrom(Boottime),
    /// The line on the terminal.
    Line,
    /// Nothing before this instant. From then on lines in a log.
    LogFrom(Boottime),
    /// A line in the log. The next one is due at this instant.
    LogAgain(Boottime),
}

/// Whether the store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Answers,
    /// Nobody knows whether the request is still queued. A warning is due at this instant.
    Lost {
        warn_at: Boottime,
    },
    LostWithWarning,
}

impl Wait {
    pub(super) fn new(now: Boottime, settings: &Settings) -> Self {
        Self {
            over_at: settings.wait.map(|wait| now + wait),
            shown: match settings.notice {
                Notice::Never => Shown::Never,
                Notice::Line => Shown::LineFrom(now + NOTICE_AFTER),
                Notice::Log | Notice::Progress => Shown::LogFrom(now + NOTICE_AFTER),
            },
            reach: Reach::Answers,
            look_at: settings.deadlock_timeout.map(|timeout| now + timeout),
        }
    }

    /// A wait that ends now, without a line about it.
    pub(super) fn until(now: Boottime) -> Self {
        Self { over_at: Some(now), shown: Shown::Never, reach: Reach::Answers, look_at: None }
    }

    /// The rest of the wait behind a grant, which no deadlock can keep. The line on the terminal
    /// was hidden at the grant.
    fn at_gate(&self, now: Boottime) -> Self {
        let shown = if self.shown == Shown::Line { Shown::LineFrom(now) } else { self.shown };
        Self { shown, reach: Reach::Answers, look_at: None, ..*self }
    }

    /// The rest of the wait behind a grant that was given back.
    fn resumed(&self, now: Boottime, settings: &Settings) -> Self {
        Self { look_at: settings.deadlock_timeout.map(|timeout| now + timeout), ..self.at_gate(now) }
    }

    pub(super) fn is_on_terminal(&self) -> bool {
        self.shown == Shown::Line
    }

    pub(super) fn next_timeout(&self) -> Option<Boottime> {
        let show_at = match self.shown {
            Shown::LineFrom(at) | Shown::LogFrom(at) | Shown::LogAgain(at) => Some(at),
            Shown::Never | Shown::Line => None,
        };
        let warn_at = if let Reach::Lost { warn_at } = self.reach { Some(warn_at) } else { None };
        self.over_at.into_iter().chain(show_at).chain(warn_at).chain(self.look_at).min()
    }

    pub(super) fn is_over(&self, now: Boottime) -> bool {
        is_over(self.over_at, now)
    }

    pub(super) fn on(&mut self, event: Event, now: Boottime, settings: &Settings) -> Next {
        let is_shown = self.shown == Shown::Line;
        let show = || is_shown.then_some(Action::ShowWaiting).into_iter().collect();
        let next = match event {
            Event::Queued => {
                self.reach = Reach::Answers;
                let is_reported = matches!(self.shown, Shown::LogAgain(_));
                return Next::Stay(if is_reported { vec![Action::Say(Line::Change)] } else { show() });
            }
            Event::OutOfReach => {
                if self.reach == Reach::Answers {
                    self.reach = Reach::Lost { warn_at: now + TROUBLE_AFTER };
                }
                Next::nothing()
            }
            Event::NotNested => {
                self.look_at = None;
                return Next::nothing();
            }
            Event::Signal { signal: Signal::Cont, .. } => return Next::Stay(show()),
            Event::Tick if self.is_over(now) => match self.reach {
                Reach::Answers => Next::Enter(State::GivingUp, vec![Action::GiveUp]),
                Reach::Lost { .. } | Reach::LostWithWarning => failed(exit::UNAVAILABLE),
            },
            Event::Tick => return Next::Stay(self.tick(now, settings)),
            // SIGTSTP hides the line because the shell writes its prompt; SIGCONT shows it again.
            _ => before_grant(event, settings),
        };
        if is_shown { next.hiding_line() } else { next }
    }

    /// What is due before the wait is over.
    pub(super) fn tick(&mut self, now: Boottime, settings: &Settings) -> Vec<Action> {
        if is_over(self.look_at, now) {
            self.look_at = Some(now + LOOK_EVERY);
            return if self.reach == Reach::Answers { vec![Action::Look] } else { vec![] };
        }
        match (self.reach, self.shown) {
            (Reach::Lost { warn_at }, shown) if warn_at <= now => {
                self.reach = Reach::LostWithWarning;
                let warn = Action::Say(Line::WaitGoesOn);
                match shown {
                    Shown::Line => vec![Action::HideWaiting, warn, Action::ShowWaiting],
                    _ => vec![warn],
                }
            }
            (_, Shown::LineFrom(at)) if at <= now => {
                self.shown = Shown::Line;
                vec![Action::ShowWaiting]
            }
            (_, Shown::LogFrom(at) | Shown::LogAgain(at)) if at <= now => {
                self.shown = Shown::LogAgain(now + settings.notice.period());
                vec![Action::Say(Line::Waiting)]
            }
            _ => vec![],
        }
    }
}

/// The wait is over, and the request leaves the queue. If it is granted at this very moment, its
/// command runs.
pub(super) fn giving_up(event: Event, settings: &Settings) -> Next {
    match event {
        Event::Busy { .. } | Event::AlreadyDone | Event::Granted { .. } => before_grant(event, settings),
        Event::Revoked { .. } | Event::Denied(_) | Event::Lost | Event::StoreFailed => before_grant(event, settings),
        _ => Next::nothing(),
    }
}

/// A request that is granted, and waits for room on its machine, or has its paths resolved again.
/// The grant is held as in [`Starting`], and the wait goes on as before the grant.
#[derive(Debug)]
pub(super) struct AtGate {
    starting: Starting,
    /// The rest of the wait.
    wait: Wait,
}

impl AtGate {
    pub(super) fn new(starting: Starting, wait: Wait, now: Boottime) -> Self {
        Self { starting, wait: wait.at_gate(now) }
    }

    pub(super) fn next_timeout(&self, settings: &Settings) -> Option<Boottime> {
        let terminate_at = terminate_at(self.starting.deadline, settings);
        self.wait.next_timeout().into_iter().chain(terminate_at).min()
    }

    pub(super) fn on(&mut self, event: Event, now: Boottime, settings: &Settings) -> Next {
        let is_shown = self.wait.is_on_terminal();
        let show = || is_shown.then_some(Action::ShowWaiting).into_iter().collect();
        let next = match event {
            Event::NoRoom | Event::Signal { signal: Signal::Cont, .. } => return Next::Stay(show()),
            Event::Room => {
                let deadline = self.starting.deadline;
                Next::Enter(State::Starting(Starting { deadline }), vec![Action::Start])
            }
            Event::Moved => {
                let wait = self.wait.resumed(now, settings);
                Next::Enter(State::Waiting(wait), vec![Action::AskAnew])
            }
            Event::Busy { skipped_for } => busy(skipped_for, settings).after(Some(Action::Release)),
            // A lease that was not renewed goes first.
            Event::Tick if is_over(terminate_at(self.starting.deadline, settings), now) => {
                self.starting.on(event, now, settings)
            }
            Event::Tick if self.wait.is_over(now) => Next::Stay(vec![Action::LeaveGate]),
            Event::Tick => return Next::Stay(self.wait.tick(now, settings)),
            _ => self.starting.on(event, now, settings),
        };
        if is_shown { next.hiding_line() } else { next }
    }
}
