//! The nodes: each takes what has arrived in turn, and answers.

use std::collections::VecDeque;
use std::time::Duration;

use super::clocks::Clock;
use super::network::{ToClient, ToServer};
use super::server::Server;
use super::wire::{self, Call, Command, Operation};
use super::world::{Happening, World};
use crate::clock::StoreTime;
use crate::store::redis::failure::ErrorKind;

/// How long a node takes for a call.
const SERVICE: Duration = Duration::from_micros(8);

pub(super) struct Node {
    pub(super) server: Server,
    pub(super) clock: Clock,
    /// What has arrived and waits for its turn, each with its connection.
    arrivals: VecDeque<(usize, ToServer)>,
    has_turn: bool,
    pub(super) stalled_until: Duration,
    pub(super) down_until: Duration,
}

impl Node {
    pub(super) fn new(clock: Clock, is_replica: bool) -> Self {
        let server = Server::new(is_replica);
        let (stalled_until, down_until) = (Duration::ZERO, Duration::ZERO);
        Self { server, clock, arrivals: VecDeque::new(), has_turn: false, stalled_until, down_until }
    }
}

impl World {
    /// The node that has the data.
    pub(super) fn primary(&mut self) -> &mut Node {
        &mut self.nodes[self.primary]
    }

    /// The node that a fault strikes: the primary, or any node of a Cluster.
    pub(super) fn victim(&mut self) -> usize {
        if self.cluster.is_some() { self.random.below(self.nodes.len() as u64) as usize } else { self.primary }
    }

    pub(super) fn server_time(&self) -> StoreTime {
        self.nodes[self.primary].clock.store_time(self.now)
    }

    pub(super) fn at_node(&mut self, node: usize, connection: usize, frame: ToServer) {
        self.nodes[node].arrivals.push_back((connection, frame));
        self.schedule_turn(node, self.now);
    }

    fn schedule_turn(&mut self, node: usize, at: Duration) {
        let Node { has_turn, stalled_until, .. } = &mut self.nodes[node];
        if !std::mem::replace(has_turn, true) {
            let at = at.max(*stalled_until);
            self.at(at, Happening::Turn(node));
        }
    }

    pub(super) fn turn(&mut self, node: usize) {
        self.nodes[node].has_turn = false;
        if self.now < self.nodes[node].stalled_until {
            return self.schedule_turn(node, self.now);
        }
        let Some((id, frame)) = self.nodes[node].arrivals.pop_front() else { return };
        self.schedule_turn(node, self.now + SERVICE);
        let is_refused = self.is_down(node) || self.weather.refuses;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match (frame, &mut connection.held_back) {
            (ToServer::Connect, _) if is_refused => self.fail(id, ErrorKind::Refused),
            (ToServer::Connect, _) => connection.is_accepted = true,
            _ if !connection.is_accepted || connection.is_cut => {}
            (ToServer::Close, _) => self.forget(id),
            (frame, Some(held_back)) => held_back.push(frame),
            (ToServer::Subscribe(channel), _) => self.subscribe(node, id, channel),
            (ToServer::Unsubscribe(channel), _) => self.nodes[node].server.unsubscribe(id, &channel),
            (ToServer::Command(Command::Call(call)), _) => self.execute(node, id, &call),
            (ToServer::Command(Command::Wait { replicas, timeout }), _) => self.await_replicas(id, replicas, timeout),
        }
    }

    pub(super) fn is_down(&self, node: usize) -> bool {
        self.now < self.nodes[node].down_until
    }

    fn execute(&mut self, node: usize, id: usize, call: &Call) {
        self.calls += 1;
        if !self.begin_at_node(node, id, call) {
            return;
        }
        let Node { server, clock, .. } = &mut self.nodes[node];
        let answer = server.call(call, clock.store_time(self.now));
        self.note(|| format!("node {node}: connection {id} {:?}: {:?}", call.operation, answer.reply));
        self.end_at_node(node, call);
        self.replicate(node, Some(id));
        if self.is_stale(node) {
            self.mislead(&call.operation);
        }
        self.publish(answer.messages);
        if self.weather.strikes(self.weather.loses_replies, &mut self.random) {
            return self.cut(id);
        }
        let reply = answer.reply.as_ref().map(wire::value).map_err(|text| wire::error(text));
        self.send_to_client(id, ToClient::Reply(reply));
    }

    /// A primary that was replaced and does not know it has changed something for a session. Neither
    /// this node nor the new primary can tell the session of a loss.
    fn mislead(&mut self, operation: &Operation) {
        let session = match operation {
            Operation::Acquire { request, .. } => request.session,
            Operation::Renew { session, .. } | Operation::Release(session) | Operation::Downgrade { session, .. } => {
                *session
            }
            Operation::Inspect | Operation::RenewAlone { .. } => return,
        };
        self.checkers.mislead(session);
    }

    /// Serves what a connection had sent while it waited for the replicas.
    pub(super) fn let_go(&mut self, id: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some((node, held_back)) = connection.node.zip(connection.held_back.take()) else { return };
        let held_back = held_back.into_iter().map(|frame| (id, frame));
        let arrivals = &mut self.nodes[node].arrivals;
        *arrivals = held_back.chain(arrivals.drain(..)).collect();
        self.schedule_turn(node, self.now);
    }

    pub(super) fn publish(&mut self, messages: Vec<(usize, String)>) {
        messages.into_iter().for_each(|(id, channel)| self.send_to_client(id, ToClient::Message(channel)));
    }

    /// Stops a node until an instant. All its connections end, with what it has not read.
    pub(super) fn stop_node(&mut self, node: usize, until: Duration) {
        self.nodes[node].down_until = until;
        self.nodes[node].arrivals.clear();
        self.nodes[node].server.forget_scripts();
        self.cut_all(node);
    }

    pub(super) fn cut_all(&mut self, node: usize) {
        let own = self.connections.iter().filter(|(_, connection)| connection.node == Some(node));
        let ids: Vec<_> = own.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.cut(id));
    }

    /// When the lease of a run ends, if the primary knows it as a holder with these tokens.
    pub(super) fn lease_ends(&self, run: usize, tokens: &[u64]) -> Option<Duration> {
        let Node { server, clock, .. } = &self.nodes[self.primary];
        let session = server.session(self.checkers.runs[run].session)?;
        let is_same = session.is_holder() && session.tokens() == tokens;
        session.expiry.filter(|_| is_same).map(|expiry| clock.when_store_time(expiry))
    }
}
