//! The network: connections between the clients and the server, which delay, lose and reorder.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use redis::{ServerError, Value};

use super::random::Random;
use super::wire::Command;
use super::world::{Happening, World};
use rlock_redis::failure::ErrorKind;
use rlock_redis::interface::Seek;
use rlock_store::network::{NetworkError, Stage};
use rlock_store::node::Node;

#[derive(Debug)]
pub(super) enum ToServer {
    Connect,
    Command(Command),
    Subscribe(String),
    Unsubscribe(String),
    Close,
    /// The server notices that the connection has failed.
    Reset,
}

#[derive(Debug)]
pub(super) enum ToClient {
    /// The lookup has found this node.
    Located(Node),
    Reply(Result<Value, ServerError>),
    Message(String),
    SubscribeFailed(String, ServerError),
    Failed(ErrorKind),
}

/// A connection of a task.
pub(super) struct Connection {
    task: usize,
    /// The node to which the connection leads, unless it is being looked up.
    pub(super) node: Option<usize>,
    /// What is sent once the node is known.
    outbox: Vec<ToServer>,
    /// What the server reads after a command that blocks the connection.
    pub(super) held_back: Option<Vec<ToServer>>,
    /// The number of changes of the primary up to the last one for this connection.
    pub(super) changes: usize,
    /// Whether each command has ASKING before it.
    pub(super) asks: bool,
    /// Whether the server has accepted the connection and not noticed its end.
    pub(super) is_accepted: bool,
    /// Whether it was cut, so that nothing more arrives but the failure.
    pub(super) is_cut: bool,
    /// Whether it swallows what the client sends, without a word.
    is_mute: bool,
    /// Whether it swallows what the server sends.
    is_deaf: bool,
    /// Whether the client hears of its failure next.
    is_broken: bool,
    /// When nothing arrives, in either direction. It arrives afterwards.
    clogged: Range<Duration>,
    last_at_server: Duration,
    last_at_client: Duration,
    /// What has arrived at the client.
    inbox: VecDeque<ToClient>,
}

impl Connection {
    /// Swallows everything from now on, in one direction or in both.
    pub(super) fn fall_silent(&mut self, random: &mut Random) {
        let direction = random.below(3);
        self.is_mute |= direction != 0;
        self.is_deaf |= direction != 1;
    }

    /// Holds back everything for some seconds, which begin within some seconds. Returns their end.
    pub(super) fn clog(&mut self, now: Duration, random: &mut Random) -> Duration {
        let [begin, length] = [4_000_000, 12_000_000].map(|limit| Duration::from_micros(random.below(limit)));
        self.clogged = now + begin..now + begin + length;
        self.clogged.end
    }

    /// When something arrives that would arrive at an instant if nothing held it back.
    fn unclogged(&self, at: Duration) -> Duration {
        if self.clogged.contains(&at) { self.clogged.end } else { at }
    }
}

impl World {
    /// Opens a connection. Returns the address of its node too if no lookup is needed.
    pub(super) fn connect(&mut self, task: usize, seek: Seek) -> (usize, Option<Node>) {
        self.opened += 1;
        let id = self.opened;
        let mut connection = Connection {
            task,
            node: None,
            outbox: Vec::new(),
            held_back: None,
            changes: 0,
            asks: matches!(&seek, Seek::Redirect(redirect) if redirect.asking),
            is_accepted: false,
            is_cut: false,
            is_mute: false,
            is_deaf: false,
            is_broken: false,
            clogged: self.now..self.now,
            last_at_server: self.now,
            last_at_client: self.now,
            inbox: VecDeque::new(),
        };
        if self.weather.strikes(self.weather.swallows, &mut self.random) {
            connection.fall_silent(&mut self.random);
        }
        self.connections.insert(id, connection);
        self.mailboxes[task].connections.push(id);
        let node = self.node_at_once(&seek);
        match node {
            Some(node) => self.lead(id, node),
            None => {
                let took = self.lookup_time();
                self.at(self.now + took, Happening::Lookup(id, seek));
            }
        }
        (id, node.map(|node| self.location.address(node)))
    }

    /// Reports to a client that its server is not the primary any more.
    pub(super) fn leave_unless_primary(&mut self, id: usize, primary: usize) {
        let node = self.connections.get(&id).and_then(|connection| connection.node);
        if node.is_some_and(|node| node != primary) {
            self.note(|| format!("network: the server of connection {id} is not the primary any more"));
            self.fail(id, ErrorKind::NotTheMaster);
        }
    }

    /// How long it takes to ask a Sentinel and then a node for its role.
    pub(super) fn lookup_time(&mut self) -> Duration {
        let delays = (0..6).map(|_| self.weather.delay(&mut self.random));
        delays.sum()
    }

    /// Takes note to which node a connection leads, and sends what has waited for that.
    pub(super) fn lead(&mut self, id: usize, node: usize) {
        // The handshake takes one way more than the first command.
        let delay = self.weather.delay(&mut self.random);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.node = Some(node);
        connection.last_at_server = self.now + delay;
        let outbox = std::mem::take(&mut connection.outbox);
        self.send_to_server(id, ToServer::Connect);
        outbox.into_iter().for_each(|frame| self.send_to_server(id, frame));
    }

    pub(super) fn send_to_server(&mut self, id: usize, frame: ToServer) {
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.is_mute) else { return };
        let Some(node) = connection.node else { return connection.outbox.push(frame) };
        let delay = self.weather.delay(&mut self.random);
        let is_cut = self.weather.strikes(self.weather.cuts, &mut self.random);
        let at = connection.unclogged(connection.last_at_server.max(self.now + delay));
        connection.last_at_server = at;
        self.at(at, Happening::AtNode(node, id, frame));
        if is_cut && self.random.once_in(2) {
            self.cut(id);
        } else if is_cut {
            self.break_off(id);
        }
    }

    pub(super) fn send_to_client(&mut self, id: usize, frame: ToClient) {
        let delay = self.weather.delay(&mut self.random);
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.is_deaf) else { return };
        let at = connection.unclogged(connection.last_at_client.max(self.now + delay));
        connection.last_at_client = at;
        self.at(at, Happening::AtClient(id, frame));
    }

    pub(super) fn at_client(&mut self, id: usize, frame: ToClient) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let is_failure = matches!(frame, ToClient::Failed(_));
        if !is_failure && (connection.is_deaf || connection.is_cut || connection.is_broken) {
            return;
        }
        connection.inbox.push_back(frame);
        let task = connection.task;
        self.wake(task, self.now);
    }

    /// Cuts a connection. What is on the way is lost.
    pub(super) fn cut(&mut self, id: usize) {
        self.note(|| format!("network: connection {id} is cut"));
        self.fail(id, ErrorKind::Network(NetworkError::Closed(Stage::Used)));
    }

    /// Breaks a connection for what is sent from now on. The server still carries out what is on
    /// the way to it, and its replies are lost.
    fn break_off(&mut self, id: usize) {
        self.note(|| format!("network: connection {id} breaks off"));
        let delay = self.weather.delay(&mut self.random);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(node) = connection.node else { return };
        (connection.is_mute, connection.is_broken) = (true, true);
        let [at_server, at_client] =
            [connection.last_at_server, connection.last_at_client].map(|at| at.max(self.now + delay));
        self.at(at_server, Happening::AtNode(node, id, ToServer::Reset));
        self.at(
            at_client,
            Happening::AtClient(id, ToClient::Failed(ErrorKind::Network(NetworkError::Closed(Stage::Used)))),
        );
    }

    pub(super) fn fail(&mut self, id: usize, kind: ErrorKind) {
        self.disconnect(id);
        self.send_to_client(id, ToClient::Failed(kind));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_cut = true;
        }
    }

    /// The server notices the end of a connection.
    pub(super) fn disconnect(&mut self, id: usize) {
        self.forget_wait(id);
        if let Some(node) = self.connections.get(&id).and_then(|connection| connection.node) {
            self.nodes[node].server.disconnect(id);
        }
    }

    pub(super) fn forget(&mut self, id: usize) {
        self.disconnect(id);
        self.connections.remove(&id);
    }

    /// The client closes a connection. A connection that swallows everything looks open to the
    /// server for ever.
    pub(super) fn close(&mut self, id: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.inbox.clear();
        self.mailboxes[connection.task].connections.retain(|own| *own != id);
        if connection.is_cut || connection.node.is_none() {
            self.forget(id);
        } else {
            self.send_to_server(id, ToServer::Close);
        }
    }

    /// Whether the client has closed its end of a connection.
    pub(super) fn is_given_up(&self, id: usize) -> bool {
        let task = self.connections.get(&id).map(|connection| connection.task);
        task.is_none_or(|task| !self.mailboxes[task].connections.contains(&id))
    }

    /// Closes all connections of a task, as the kernel does when a process ends.
    pub(super) fn close_all(&mut self, task: usize) {
        let own = std::mem::take(&mut self.mailboxes[task].connections);
        own.into_iter().for_each(|id| self.close(id));
    }

    /// Takes the next thing that has arrived at a client.
    pub(super) fn receive(&mut self, id: usize) -> Option<ToClient> {
        self.connections.get_mut(&id)?.inbox.pop_front()
    }

    pub(super) fn has_arrived(&self, id: usize) -> bool {
        self.connections.get(&id).is_some_and(|connection| !connection.inbox.is_empty())
    }
}
