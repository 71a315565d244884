//! The instants at which something of a client is due, and what follows then.

use std::mem;

use super::super::event::{Action, Question};
use super::super::rules::Rules;
use super::look::Look;
use super::state::{Client, Hold, State};
use super::turn::Turn;
use rlock_sys::clock::Boottime;

impl Client {
    /// The instant at which [`Event::Tick`](crate::event::Event::Tick) is due.
    pub fn timeout(&self, rules: &Rules) -> Option<Boottime> {
        let of_state = match &self.state {
            State::Closed => return None,
            State::Requesting(pending) => {
                pending.until.into_iter().chain(pending.look.as_ref().and_then(Look::at)).min()
            }
            State::Asking { until, .. } => *until,
            State::Leaving { until, .. } | State::Explaining { until, .. } | State::Refusing { until } => Some(*until),
            State::Lingering { until } => return Some(*until),
            _ => None,
        };
        let of_holds = self.needed().iter().filter_map(|hold| rules.overdue_at(hold.deadline));
        of_holds.chain(of_state).chain(self.greeting_until).min()
    }

    /// The holds that the work of the client needs. The work below a hold that the client releases
    /// is over.
    fn needed(&self) -> &[Hold] {
        match (&self.state, self.holds.as_slice()) {
            (State::Unlocking, [rest @ .., _]) => rest,
            (_, holds) => holds,
        }
    }
}

impl Turn<'_> {
    pub(super) fn on_tick(&mut self) {
        match self.client.state {
            State::Closed => return,
            State::Lingering { until } => {
                if until <= self.now {
                    self.release_holds();
                    self.end_if_released();
                }
                return;
            }
            _ => {}
        }
        self.end_if_overdue();
        if self.client.greeting_until.is_some_and(|until| until <= self.now) {
            return self.close();
        }
        match mem::replace(&mut self.client.state, State::Idle) {
            State::Requesting(pending) if pending.until.is_some_and(|until| until <= self.now) => {
                self.end_wait(pending);
            }
            State::Requesting(mut pending) => {
                let names = pending.look.as_mut().and_then(|look| look.read(self.now));
                self.actions.extend(names.map(|names| Action::Ask(Question::Read(names))));
                self.client.state = State::Requesting(pending);
            }
            State::Leaving { pending, until } if until <= self.now => {
                // The release also ends a grant that crosses it.
                self.client.releasing.push((pending.session, None));
                self.say_busy(&pending, &[]);
            }
            State::Explaining { pending, until } if until <= self.now => self.say_busy(&pending, &[]),
            State::Asking { until: Some(until), .. } if until <= self.now => {
                self.say("unavailable the store did not answer in time: try again");
            }
            State::Refusing { until } if until <= self.now => {
                self.log("sent a wrong token".to_owned());
                self.say("error the token is wrong");
                self.close();
            }
            state => self.client.state = state,
        }
    }

    /// Whether a hold with this deadline counts as lost.
    pub(super) fn is_overdue(&self, deadline: Option<Boottime>) -> bool {
        self.rules.overdue_at(deadline).is_some_and(|at| at <= self.now)
    }

    pub(super) fn end_if_overdue(&mut self) {
        let mut needed = self.client.needed().iter();
        if let Some(hold) = needed.find(|hold| self.is_overdue(hold.deadline)) {
            let text = self.messages(&hold.claims, hold.session).not_renewed(None);
            self.report_lost(&text);
            self.linger();
        }
    }
}
