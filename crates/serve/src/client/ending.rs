//! Ends what a client has: its request, its holds and its connection.

use std::mem;
use std::time::Duration;

use super::super::event::Action;
use super::state::{Hold, Pending, State};
use super::turn::Turn;
use rlock_model::request::{Claim, SessionId};
use rlock_store::Obstruction;

/// How long a request whose wait is over waits for the store to leave the queue, and to learn who
/// was in the way.
const EXPLANATION_LIMIT: Duration = Duration::from_secs(1);

pub(super) const LATE: &str = "the store did not answer in time";

impl Turn<'_> {
    /// The wait of a request is over. If the request is not in the queue, the store is out of
    /// reach, and the answer does not wait for it.
    pub(super) fn end_wait(&mut self, pending: Box<Pending>) {
        if pending.is_queued {
            self.actions.push(Action::Release(pending.session));
            self.client.state = State::Leaving { pending, until: self.now + EXPLANATION_LIMIT };
        } else {
            self.release(pending.session, None);
            let messages = self.messages(&pending.claims, pending.session);
            self.say(format!("unavailable {}", messages.cannot_lock(&LATE)));
        }
    }

    /// The request is over because something was in its way, as far as that is known.
    pub(super) fn say_busy(&mut self, pending: &Pending, obstructions: &[Obstruction]) {
        let messages = self.messages(&pending.claims, pending.session);
        let waited = pending.wait.filter(|wait| !wait.is_zero() && !pending.is_limited);
        let limit = if pending.is_limited { "; no more requests may wait" } else { "" };
        self.say(format!("busy {}{limit}", messages.in_the_way(obstructions, waited)));
    }

    /// Closes the connection, and keeps what the client holds for a grace. A release now, or at a
    /// deadline that a renewal may still move, could let the next holder in before the client has
    /// stopped its work.
    pub(super) fn linger(&mut self) {
        self.release_request();
        self.client.state = State::Lingering { until: self.now + self.rules.grace };
        self.actions.push(Action::Close);
    }

    pub(super) fn report_lost(&mut self, text: &str) {
        self.client.has_lost = true;
        self.say(format!("lost {text}"));
    }

    /// Closes the connection if the server drains and the client holds nothing.
    pub(super) fn close_if_drained(&mut self) {
        if self.client.is_draining && self.client.holds.is_empty() {
            self.close();
        }
    }

    /// Closes the connection and releases all that the client holds or waits for, the innermost
    /// first.
    pub(super) fn close(&mut self) {
        if matches!(self.client.state, State::Closed) {
            return;
        }
        self.release_request();
        self.release_holds();
        self.actions.push(Action::Close);
    }

    /// Releases what the client waits for, and takes in nothing more.
    fn release_request(&mut self) {
        self.client.greeting_until = None;
        match mem::replace(&mut self.client.state, State::Closed) {
            State::Requesting(pending) => self.release(pending.session, None),
            State::Leaving { pending, .. } => self.client.releasing.push((pending.session, None)),
            State::Unlocking => {
                self.client.releasing.extend(self.client.holds.pop().map(|hold| (hold.session, Some(hold.claims))));
            }
            _ => {}
        }
    }

    pub(super) fn release_holds(&mut self) {
        while let Some(hold) = self.client.holds.pop() {
            self.release_hold(hold);
        }
    }

    pub(super) fn release_hold(&mut self, hold: Hold) {
        if self.client.has_lost {
            self.log(format!("lost {}", self.messages(&hold.claims, hold.session).names()));
        }
        self.release(hold.session, Some(hold.claims));
    }

    /// Releases a session without a report to the client. The log has the result if there are
    /// claims, which are those of a hold.
    pub(super) fn release(&mut self, session: SessionId, claims: Option<Vec<Claim>>) {
        self.client.releasing.push((session, claims));
        self.actions.push(Action::Release(session));
    }

    /// Ends a client whose connection is closed, if it holds nothing and so has no work to stop.
    pub(super) fn end_if_released(&mut self) {
        if self.client.holds.is_empty() {
            self.client.state = State::Closed;
        }
    }
}
