//! Decides when the spare work runs: beside the wait if there is one, otherwise after the release,
//! exactly once. rlock ends when the spare work has ended.

use super::super::event::{Action, Event, Line};
use super::{Settings, State, exit_after, is_over};
use rlock_sys::clock::Boottime;

/// The spare work of a request.
#[derive(Debug)]
pub(super) enum Spare {
    /// The work has not started. The exit starts the work, unless the request failed.
    Pending,
    /// The work runs. After a signal it is killed at this instant.
    Running { kill_at: Option<Boottime> },
    /// There is no such work, or it is over.
    Over,
}

impl Spare {
    pub(super) fn new(settings: &Settings) -> Self {
        if settings.has_spare { Self::Pending } else { Self::Over }
    }

    /// When a signalled work is killed.
    pub(super) fn kill_at(&self) -> Option<Boottime> {
        if let Self::Running { kill_at } = self { *kill_at } else { None }
    }

    /// Takes in an event before the state of the request does.
    pub(super) fn before(&mut self, event: Event, state: &State, now: Boottime, settings: &Settings) -> Vec<Action> {
        let is_asked = matches!(state, State::Requesting | State::Waiting(_) | State::GivingUp);
        match (&mut *self, event) {
            // The store has queued the request, so there is time for the work.
            (Self::Pending, Event::Queued) if is_asked => {
                *self = Self::Running { kill_at: None };
                vec![Action::StartSpare]
            }
            (Self::Pending, Event::Denied(_) | Event::Deadlock | Event::StoreFailed | Event::Lost) if is_asked => {
                *self = Self::Over;
                vec![]
            }
            // The wait is over, and the store was out of reach from the start.
            (Self::Pending, Event::Tick) if matches!(state, State::Waiting(wait) if wait.is_over(now)) => {
                *self = Self::Over;
                vec![]
            }
            (Self::Pending, Event::Signal { signal, .. }) if signal.asks_to_end() => {
                *self = Self::Over;
                vec![]
            }
            (Self::Running { kill_at }, Event::Signal { signal, .. }) if signal.asks_to_end() => {
                kill_at.get_or_insert(now + settings.grace);
                vec![Action::PassSpare(signal)]
            }
            (Self::Running { kill_at }, Event::Tick) if is_over(*kill_at, now) => {
                *kill_at = None;
                vec![Action::KillSpare]
            }
            (Self::Running { .. }, Event::SpareEnded(ended)) => {
                *self = Self::Over;
                if ended.exit_code() == 0 { vec![] } else { vec![Action::Say(Line::Spare(ended))] }
            }
            (Self::Running { .. }, Event::SpareFailed) => {
                *self = Self::Over;
                vec![Action::Say(Line::Failure)]
            }
            _ => vec![],
        }
    }

    /// Takes in the exit that the state of the request wants. Returns whether it has to wait for
    /// the work, and the action that starts work which is still pending.
    pub(super) fn delays(&mut self) -> (bool, Option<Action>) {
        match self {
            Self::Over => (false, None),
            Self::Running { .. } => (true, None),
            Self::Pending => {
                *self = Self::Running { kill_at: None };
                (true, Some(Action::StartSpare))
            }
        }
    }
}

/// The exit that waits for the spare work. A signal takes the place of the work that `--else` asks
/// for.
pub(super) fn delayed(exit: Action, event: Event) -> Action {
    match (exit, event) {
        (Action::RunElse, Event::Signal { signal, .. }) if signal.asks_to_end() => exit_after(signal, false),
        _ => exit,
    }
}
