//! Takes in the answers to the questions that a client has asked the store.

use std::mem;

use super::super::event::{Action, Answer, Question};
use super::state::{Pending, State};
use super::turn::Turn;
use rlock_show::messages;
use rlock_store::Changed;

impl Turn<'_> {
    pub(super) fn on_answer(&mut self, answer: Answer) {
        match (mem::replace(&mut self.client.state, State::Idle), answer) {
            (State::Requesting(mut pending), answer) => {
                let reading = if let Answer::Reading(reading) = &answer { Some(&**reading) } else { None };
                let found = pending.look.as_mut().and_then(|look| look.on_reading(reading, self.now));
                match reading.zip(found) {
                    Some((reading, deadlock)) => self.end_deadlock(&pending, &messages::cycle(reading, &deadlock)),
                    None => self.client.state = State::Requesting(pending),
                }
            }
            (State::Explaining { pending, .. }, Answer::Obstructions(found)) => self.say_busy(&pending, &found),
            (State::Explaining { pending, .. }, _) => self.say_busy(&pending, &[]),
            (State::Asking { .. }, Answer::Listing(listing)) => self.actions.push(Action::Show(listing)),
            (State::Asking { question: Question::Change(_, change), .. }, Answer::Changed(Changed::Done)) => {
                if let Some(hold) = self.client.holds.last_mut() {
                    hold.apply(&change);
                }
                self.say("ok");
            }
            (State::Asking { .. }, Answer::Changed(Changed::Refused(refusal))) => {
                self.say(format!("refused {refusal}"));
            }
            (State::Asking { .. }, Answer::Changed(Changed::Lost)) => {
                self.say("refused this connection holds nothing any more");
            }
            (State::Asking { .. }, Answer::Failed(error)) => self.say_failure(error),
            (state, _) => self.client.state = state,
        }
    }

    /// Leaves the queue, because the request waits for itself.
    fn end_deadlock(&mut self, pending: &Pending, cycle: &str) {
        self.release(pending.session, None);
        self.say(format!("refused {cycle}: send UNLOCK, then ask for all in one LOCK"));
    }
}
