//! Decides everything about one client: what each of its lines, each report of the store and each
//! instant means for its locks.
//!
//! A client has no clock, no socket and no randomness. The client takes in each [`Event`] with the
//! instant at which the event happened, and returns the [`Action`]s that follow.
//!
//! - `state`: the data of a client; `look`: the search of its request for a deadlock.
//! - `turn`: one event with the actions that it causes.
//! - `ending`: ends a request, holds and the connection; `timeouts`: what the time ends.
//! - `lines`: what the client sends; `reports`: what the store reports about its sessions;
//!   `answers`: what the store answers to its questions.

pub use self::state::Client;
use self::state::State;
use self::turn::Turn;
use super::event::{Action, Event};
use super::rules::Rules;
use rlock_model::request::SessionId;
use rlock_sys::clock::Boottime;

mod answers;
mod ending;
mod lines;
mod look;
mod reports;
mod state;
mod timeouts;
mod turn;

#[cfg(test)]
mod tests;

impl Client {
    /// Takes in an event that happened at `now`. `new_id` makes the id of a new session, and
    /// `may_wait` says whether one more request may wait.
    pub fn on(
        &mut self,
        event: Event,
        now: Boottime,
        rules: &Rules,
        may_wait: bool,
        new_id: impl FnOnce() -> SessionId,
    ) -> Vec<Action> {
        let mut turn = Turn { client: self, rules, now, may_wait, actions: Vec::new() };
        turn.on(event, new_id);
        turn.actions
    }
}

impl Turn<'_> {
    fn on(&mut self, event: Event, new_id: impl FnOnce() -> SessionId) {
        match event {
            Event::Report(session, report) => self.on_report(session, report),
            Event::Tick => self.on_tick(),
            _ if matches!(self.client.state, State::Closed | State::Lingering { .. }) => {}
            Event::Line(line) => self.on_line(line, new_id),
            Event::LineTooLong => {
                self.say("error the line is too long: send at most 4096 bytes");
                self.close();
            }
            Event::Descriptors => {
                self.say("error this server takes no descriptors: send lines alone");
                self.close();
            }
            Event::End => self.close(),
            Event::Answer(answer) => self.on_answer(answer),
            Event::Drain => {
                self.client.is_draining = true;
                self.close_if_drained();
            }
            Event::Stop if self.client.holds.is_empty() => self.close(),
            Event::Stop => {
                self.report_lost("the server ends and gives the lock back");
                self.close();
            }
        }
    }
}
