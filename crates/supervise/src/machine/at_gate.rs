//! Answers events between the grant and the start of a command that needs room on its machine. The
//! grant is held as in [`Starting`], and the wait goes on as before the grant.

use super::super::event::{Action, Event, Signal};
use super::waiting::{Wait, busy};
use super::{Next, Settings, Starting, State, is_over, terminate_at};
use rlock_sys::clock::Boottime;

/// A request that is granted, and waits for room.
#[derive(Debug)]
pub(super) struct AtGate {
    pub(super) starting: Starting,
    /// The rest of the wait.
    pub(super) wait: Wait,
}

impl AtGate {
    pub(super) fn next_timeout(&self, settings: &Settings) -> Option<Boottime> {
        self.wait.next_timeout().into_iter().chain(terminate_at(self.starting.deadline, settings)).min()
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
