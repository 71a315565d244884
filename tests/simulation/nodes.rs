//! The server: takes what has arrived in turn, and answers.

use std::time::Duration;

use super::network::{ToClient, ToServer};
use super::wire::{self, Call};
use super::world::{Happening, World};
use crate::clock::StoreTime;
use crate::store::redis::failure::{ErrorKind, Stage};

/// How long the server takes for a call.
const SERVICE: Duration = Duration::from_micros(8);

impl World {
    pub(super) fn server_time(&self) -> StoreTime {
        self.stepped(self.server_clock.store_time(self.now), self.clock_step)
    }

    /// The time on a clock that has stepped by so many microseconds.
    fn stepped(&self, time: StoreTime, step: i64) -> StoreTime {
        StoreTime::from_micros(time.as_micros().saturating_add_signed(step))
    }

    pub(super) fn schedule_turn(&mut self, at: Duration) {
        if !std::mem::replace(&mut self.has_turn, true) {
            self.at(at.max(self.stalled_until), Happening::ServerTurn);
        }
    }

    pub(super) fn server_turn(&mut self) {
        self.has_turn = false;
        if self.now < self.stalled_until {
            return self.schedule_turn(self.now);
        }
        let Some((id, frame)) = self.arrivals.pop_front() else { return };
        self.schedule_turn(self.now + SERVICE);
        let is_down = self.is_down;
        let is_refused = is_down || self.weather.refuses;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match frame {
            ToServer::Connect if is_refused => self.fail(id, ErrorKind::Refused),
            ToServer::Connect if self.weather.is_crowded => self.turn_away(id),
            ToServer::Connect => connection.is_accepted = true,
            ToServer::Reset => {
                connection.is_cut = true;
                self.server.disconnect(id);
            }
            ToServer::Close => self.forget(id),
            _ if !connection.is_accepted || connection.is_cut => {}
            ToServer::Subscribe(channel) => self.server.subscribe(id, channel),
            ToServer::Call(call) => self.execute(id, &call),
        }
    }

    /// Tells a client that the server takes no more clients.
    fn turn_away(&mut self, id: usize) {
        let error = wire::error("ERR max number of clients reached");
        self.send_to_client(id, ToClient::Reply(Err(error)));
        self.send_to_client(id, ToClient::Failed(ErrorKind::Closed(Stage::Used)));
    }

    fn execute(&mut self, id: usize, call: &Call) {
        self.calls += 1;
        let answer = self.server.call(call, self.server_time());
        self.note(|| format!("server: connection {id} {:?}: {:?}", call.operation, answer.reply));
        answer.session.into_iter().for_each(|session| self.checkers.count_call(session));
        answer.displaced.into_iter().for_each(|session| self.checkers.displace(session));
        for granted in answer.granted {
            self.checkers.check_order(granted, |other| self.server.waits(other));
        }
        let reply = answer.reply.as_ref().map(wire::value).ok_or_else(|| wire::error(answer.error));
        self.publish(answer.messages);
        if self.weather.strikes(self.weather.loses_replies, &mut self.random) {
            return self.cut(id);
        }
        self.send_to_client(id, ToClient::Reply(reply));
    }

    pub(super) fn publish(&mut self, messages: Vec<(usize, String)>) {
        messages.into_iter().for_each(|(id, channel)| self.send_to_client(id, ToClient::Message(channel)));
    }

    /// Ends all connections and what the server has not read: the server stops.
    pub(super) fn stop_server(&mut self) {
        self.is_down = true;
        self.arrivals.clear();
        let ids: Vec<_> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.cut(id));
        self.server.forget_scripts();
    }

    /// When the lease of a run ends, if the server knows it as a holder with these tokens.
    pub(super) fn lease_ends(&self, run: usize, tokens: &[u64]) -> Option<Duration> {
        let session = self.server.session(self.checkers.runs[run].session)?;
        let is_same = session.is_holder() && session.tokens() == tokens;
        let expiry = session.expiry.filter(|_| is_same)?;
        Some(self.server_clock.when_store_time(self.stepped(expiry, -self.clock_step)))
    }
}
