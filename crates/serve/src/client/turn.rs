//! One event at a client with the actions that it causes, and the texts of messages and the log.

use super::super::event::Action;
use super::super::rules::Rules;
use super::state::Client;
use rlock_model::request::{Claim, Process, SessionId};
use rlock_show::messages::Messages;
use rlock_store as store;
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_words as words;

/// One event with what it causes.
pub(super) struct Turn<'a> {
    pub(super) client: &'a mut Client,
    pub(super) rules: &'a Rules,
    pub(super) now: Boottime,
    pub(super) may_wait: bool,
    pub(super) actions: Vec<Action>,
}

impl Turn<'_> {
    /// The texts about a hold or a request of the client.
    pub(super) fn messages(&self, claims: &[Claim], session: SessionId) -> Messages {
        let above = self.client.holds.iter().map(|hold| hold.session).filter(|above| *above != session);
        let related = above.chain([session]).collect();
        let Rules { has_leases, is_stopped, .. } = *self.rules;
        Messages {
            claims: claims.to_vec(),
            related,
            has_leases,
            is_stopped,
            is_above: |_, _| false,
            owner_above: |_| None,
            is_beside: |_| false,
            runs: None,
            own: Process::default(),
            agent: None,
            run: None,
            now: StoreTime::default,
        }
    }

    pub(super) fn say_failure(&mut self, error: store::Error) {
        let kind = match &error {
            store::Error::Usage(_) => "error",
            store::Error::Refused(_) => "refused",
            store::Error::Unavailable(_) => "unavailable",
        };
        self.say(format!("{kind} {error}"));
    }

    pub(super) fn say(&mut self, text: impl Into<String>) {
        self.actions.push(Action::Say(words::one_line(&text.into())));
    }

    pub(super) fn log(&mut self, text: String) {
        self.actions.push(Action::Log(text));
    }
}
