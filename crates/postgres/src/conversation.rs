//! Decides what is said to a server for the sessions of a process, over one connection: their
//! transactions follow each other.
//!
//! This module is pure: it has no clock and no socket. A process with one session closes the
//! connection where it can, so that a thousand long commands are no thousand backends.

use std::mem;
use std::time::Duration;

use super::failure::Failure;
use super::step::{Committed, Room, Stands, channel};
use super::turns::{Action, Speech, Turns};
use rlock_model::request::SessionId;
use rlock_store::lease::{Command, Driver, LeaseReply, Server as _, State};
use rlock_sys::clock::Boottime;

/// How often a waiter looks whom no notice reaches, because a pooler is between.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// How many of a queue keep their connections. The others look now and then, so that a long queue
/// leaves the server room for the release.
const KEPT_MAX: u32 = 20;
/// How many times as long as its look a waiter rests at least, so that a slow server is asked less.
const RESTS: u32 = 8;
/// Holders keep their connections while the sessions are fewer than this part of all.
const SHARE: u32 = 3;

/// The conversation about the sessions of a process.
pub(super) struct Conversation {
    pub(super) driver: Driver<Turns>,
    /// The number of the tables at the first transaction, and at the last.
    tables: Option<(i64, i64)>,
    /// The most connections that the server lets in, as the first answer on this connection told.
    limit: Option<u32>,
    /// Whether the sessions leave a holder no room to keep its connection, by the last answer.
    is_full: bool,
    /// The channels on which a notice has come while a transaction was under way. The server may
    /// have sent it before the reply, and the transaction need not have seen what it is about.
    notices: Vec<String>,
}

impl Conversation {
    /// No sessions yet. A request fails if the server does not answer within `connect_timeout`.
    pub(super) fn new(turns: Turns, connect_timeout: Duration) -> Self {
        Self {
            driver: Driver::new(turns, connect_timeout),
            tables: None,
            limit: None,
            is_full: false,
            notices: Vec::new(),
        }
    }

    /// Whether the server has other tables than at its first answer.
    pub(super) fn has_new_tables(&self) -> bool {
        self.tables.is_some_and(|(first, last)| first != last)
    }

    /// The login is done.
    pub(super) fn on_ready(&mut self, now: Boottime) {
        self.limit = None;
        self.driver.on_sign_of_life(false, now);
        self.driver.server_mut().on_ready();
    }

    /// A message has come that does not end the transaction under way, which stands so.
    pub(super) fn on_sign_of_life(&mut self, stands: Stands, now: Boottime) {
        self.driver.on_sign_of_life(stands.has_lock, now);
        let Some(speech) = &mut self.driver.server_mut().speaks else { return };
        let is_crowded = speech.stands.retries < stands.retries;
        speech.stands = stands;
        if is_crowded && speech.is_awaited {
            let id = speech.id;
            self.driver.keep_asking(id, now);
        }
    }

    /// Somebody has told a session to look.
    pub(super) fn on_notice(&mut self, name: String, now: Boottime) {
        self.driver.on_sign_of_life(false, now);
        self.notices.push(name);
        if self.driver.server().speaks.is_none() {
            self.take_notices(now);
        }
    }

    fn take_notices(&mut self, now: Boottime) {
        for name in mem::take(&mut self.notices) {
            let told = self.driver.ids().find(|id| channel(*id) == name);
            told.into_iter().for_each(|id| self.driver.on_message(id, now));
        }
    }

    /// The transaction under way is committed.
    pub(super) fn on_done(&mut self, reply: LeaseReply, committed: Committed, now: Boottime) {
        self.driver.on_sign_of_life(true, now);
        self.tables = committed.tables.map(|last| (self.tables.map_or(last, |(first, _)| first), last));
        match self.driver.server_mut().speaks.take() {
            Some(Speech { id, is_awaited: true, command: Some(command), sent, .. }) => {
                self.on_answer(id, command, reply, sent, committed, now);
            }
            Some(Speech { id, is_awaited: true, command: None, .. }) => self.driver.on_released(id, reply, now),
            _ => self.driver.server_mut().line_mut().served(),
        }
        self.take_notices(now);
    }

    fn on_answer(
        &mut self,
        id: SessionId,
        command: Command,
        reply: LeaseReply,
        sent: Boottime,
        Committed { backend, copies, room, .. }: Committed,
        now: Boottime,
    ) {
        let position = if let LeaseReply::Waiting { position, .. } = reply { position } else { 0 };
        let is_first = self.driver.ids().nth(1).is_some() || position <= KEPT_MAX;
        let (mut begins, mut rests) = (false, false);
        if let (Some(_), Some((session, ..))) = (backend, self.driver.session(id)) {
            // One that has begun to listen keeps its connection, because its record names the
            // backend.
            begins = is_first && !session.may_listen && !session.listens;
            rests = !is_first && !session.listens;
            session.may_listen = is_first;
        }
        if let Some(Room { limit, sessions }) = room {
            self.is_full = sessions.saturating_mul(SHARE) >= *self.limit.get_or_insert(limit);
        }
        self.driver.on_answer(id, command, reply, sent, now);
        let Some(client) = self.driver.client(id) else { return };
        let ttl = client.ttl();
        if matches!(client.state(), State::Replicating { .. }) {
            let lacking =
                self.driver.session(id).and_then(|(session, _, turns)| session.lacking(copies, &turns.server));
            self.driver.on_copies(id, lacking, now);
        }
        if backend.is_none() {
            self.driver.look_by(id, now + LOOK_AFTER);
        } else if begins {
            self.driver.send_if_quiet(id, vec![Command::Subscribe, Command::Renew], now);
        } else if rests {
            self.rest_until(now + rest(position, ttl, now - sent));
        }
    }

    /// The connection has failed, or the server was silent. `may_be_committed` tells whether it may
    /// have committed the transaction under way.
    pub(super) fn on_failure(&mut self, failure: Failure, may_be_committed: bool, is_silence: bool, now: Boottime) {
        self.notices.clear();
        if let Some(speech) = &mut self.driver.server_mut().speaks {
            speech.stands.may_be_committed = may_be_committed;
        }
        self.driver.on_failure(failure, is_silence, now);
    }

    /// Takes in that the time is `now` and that nothing more has arrived.
    pub(super) fn on_time(&mut self, now: Boottime) {
        self.driver.on_time(now);
        if let Some(until) = self.rests() {
            self.rest_until(until);
        }
    }

    /// Until when an only holder has no connection on a full server: until half of its lease, so
    /// that it may ask again for the other half.
    fn rests(&self) -> Option<Boottime> {
        let (id, _) = self.driver.sole().filter(|(_, is_quiet)| *is_quiet && self.driver.server().is_idle())?;
        let client = self.driver.client(id).filter(|_| self.is_full)?;
        Some(client.held()?.deadline? - client.ttl() / 2)
    }

    fn rest_until(&mut self, until: Boottime) {
        self.driver.server_mut().rest_until(until);
        self.driver.lose_connection();
    }

    /// Hands out the next action, which is carried out before the next event.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.driver.server_mut().next_action()
    }

    /// The instant at which [`on_time`](Self::on_time) is due even if nothing arrives.
    pub(super) fn due(&self) -> Option<Boottime> {
        self.driver.due()
    }
}

/// How long a waiter at this position has no connection: until it may be among the first, if those
/// are served as fast as the others look. `took` is the time of its last look, and grows with a
/// crowd.
fn rest(position: u32, ttl: Duration, took: Duration) -> Duration {
    let pause = LOOK_AFTER * position / KEPT_MAX;
    pause.max(took.saturating_mul(RESTS)).min(ttl / 4).max(LOOK_AFTER)
}

#[cfg(test)]
mod tests;
