//! The nodes: each takes what has arrived in turn, and answers.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::clocks::Clock;
use super::network::{ToClient, ToServer};
use super::server::Server;
use super::wire::{self, Call, Command};
use super::world::{Happening, World};
use rlock_model::records::Session;
use rlock_redis::failure::ErrorKind;
use rlock_store::network::{NetworkError, Stage};
use rlock_sys::clock::StoreTime;

/// How long a node takes for a call.
const SERVICE: Duration = Duration::from_micros(8);

pub(super) struct Node {
    pub(super) server: Server,
    clock: Clock,
    /// How far the clock has stepped, in microseconds.
    pub(super) step: i64,
    /// What has arrived and waits for its turn, each with its connection.
    arrivals: VecDeque<(usize, ToServer)>,
    has_turn: bool,
    /// When the node has finished what it has begun.
    busy_until: Duration,
    pub(super) stalled_until: Duration,
    pub(super) down_until: Duration,
}

impl Node {
    pub(super) fn new(clock: Clock, is_replica: bool) -> Self {
        let server = Server::new(is_replica);
        let [busy_until, stalled_until, down_until] = [Duration::ZERO; 3];
        let (step, arrivals, has_turn) = (0, VecDeque::new(), false);
        Self { server, clock, step, arrivals, has_turn, busy_until, stalled_until, down_until }
    }

    pub(super) fn store_time(&self, at: Duration) -> StoreTime {
        stepped(self.clock.store_time(at), self.step)
    }

    /// How far the clock of the resources of a session, which never goes back, is ahead of the
    /// node's.
    pub(super) fn ahead(&self, session: &Session, now: Duration) -> Duration {
        self.server.data.clock(session.resources()) - self.store_time(now)
    }

    pub(super) fn when_store_time(&self, at: StoreTime) -> Duration {
        self.clock.when_store_time(stepped(at, -self.step))
    }
}

/// The time on a clock that has stepped by so many microseconds.
fn stepped(time: StoreTime, step: i64) -> StoreTime {
    StoreTime::from_micros(time.as_micros().saturating_add_signed(step))
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
        self.nodes[self.primary].store_time(self.now)
    }

    /// Lets the clock of the primary step by so many microseconds. All nodes of a Cluster have one
    /// clock.
    pub(super) fn step_clock(&mut self, by: i64) {
        let (primary, is_cluster) = (self.primary, self.cluster.is_some());
        let nodes = self.nodes.iter_mut().enumerate().filter(|(node, _)| is_cluster || *node == primary);
        nodes.for_each(|(_, node)| node.step += by);
    }

    pub(super) fn at_node(&mut self, node: usize, connection: usize, frame: ToServer) {
        self.nodes[node].arrivals.push_back((connection, frame));
        self.schedule_turn(node);
    }

    /// Lets a node take the next thing that has arrived: now, or as soon as the node can.
    fn schedule_turn(&mut self, node: usize) {
        let Node { arrivals, has_turn, busy_until, stalled_until, .. } = &mut self.nodes[node];
        let at = (*busy_until).max(*stalled_until);
        if *has_turn || arrivals.is_empty() {
            return;
        }
        if at <= self.now {
            self.take_turn(node);
        } else {
            *has_turn = true;
            self.at(at, Happening::Turn(node));
        }
    }

    pub(super) fn turn(&mut self, node: usize) {
        self.nodes[node].has_turn = false;
        self.schedule_turn(node);
    }

    fn take_turn(&mut self, node: usize) {
        let Some((id, frame)) = self.nodes[node].arrivals.pop_front() else { return };
        self.nodes[node].busy_until = self.now + SERVICE;
        self.serve(node, id, frame);
        self.schedule_turn(node);
    }

    fn serve(&mut self, node: usize, id: usize, frame: ToServer) {
        let is_refused = self.is_down(node) || self.weather.refuses;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match (frame, &mut connection.held_back) {
            (ToServer::Connect, _) if is_refused => self.fail(id, ErrorKind::Network(NetworkError::Refused)),
            (ToServer::Connect, _) if self.weather.is_crowded => self.turn_away(id),
            (ToServer::Connect, _) => connection.is_accepted = true,
            (ToServer::Reset, _) => {
                connection.is_cut = true;
                self.disconnect(id);
            }
            (ToServer::Close, _) => self.forget(id),
            _ if !connection.is_accepted || connection.is_cut => {}
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

    /// Tells a client that the server takes no more clients.
    fn turn_away(&mut self, id: usize) {
        let error = wire::error("ERR max number of clients reached");
        self.send_to_client(id, ToClient::Reply(Err(error)));
        self.send_to_client(id, ToClient::Failed(ErrorKind::Network(NetworkError::Closed(Stage::Used))));
    }

    fn execute(&mut self, node: usize, id: usize, call: &Call) {
        self.calls += 1;
        if !self.begin_at_node(node, id, call) {
            return;
        }
        let now = self.nodes[node].store_time(self.now);
        let (value, reply, also) = self.nodes[node].server.call(call, now);
        self.note(|| format!("node {node}: connection {id} {:?}: {reply:?}", call.operation));
        self.end_at_node(node, call);
        self.replicate(node, Some(id));
        self.check_call(id, call, &reply);
        if self.is_stale(node) {
            let concerned = call.operation.session().into_iter().chain(also.broken).chain(also.revoked);
            concerned.for_each(|session| self.checkers.mislead(session));
        } else {
            self.check(&also);
            self.check_result(call, &reply, &also);
            if also.joined.is_some() && self.is_given_up(id) {
                also.session.into_iter().for_each(|session| self.checkers.rejoin(session, self.now));
            }
        }
        self.publish(also.messages);
        if self.weather.strikes(self.weather.loses_replies, &mut self.random) {
            return self.cut(id);
        }
        self.send_to_client(id, ToClient::Reply(value));
    }

    /// Serves what a connection had sent while it waited for the replicas.
    pub(super) fn let_go(&mut self, id: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some((node, held_back)) = connection.node.zip(connection.held_back.take()) else { return };
        let held_back = held_back.into_iter().map(|frame| (id, frame));
        let arrivals = &mut self.nodes[node].arrivals;
        *arrivals = held_back.chain(arrivals.drain(..)).collect();
        self.schedule_turn(node);
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

    /// The live runs that a node knows as holders.
    pub(super) fn holders(&self, node: usize) -> BTreeSet<usize> {
        let server = &self.nodes[node].server;
        let holds = |run: &usize| server.session(self.checkers.runs[*run].session).is_some_and(Session::is_holder);
        self.checkers.live().into_iter().filter(holds).collect()
    }

    /// When the lease of a run ends, if the primary knows it as a holder with these tokens.
    pub(super) fn lease_ends(&self, run: usize, tokens: &[u64]) -> Option<Duration> {
        let node = &self.nodes[self.primary];
        let session = node.server.session(self.checkers.runs[run].session)?;
        let is_same = session.is_holder() && session.tokens() == tokens;
        let expiry = session.expiry.filter(|_| is_same)?;
        Some(node.when_store_time(expiry))
    }
}
