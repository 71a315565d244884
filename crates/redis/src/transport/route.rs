//! Carries out the actions of a conversation on one connection to a server, from finding its
//! address to its replies.
//!
//! Nothing here blocks, and nothing is sent twice. What was sent on a connection that broke is
//! lost, and the [`Conversation`] decides what to send again.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ServerError};
use rustix::event::PollFlags;

use super::link::{Address, Expected, Link, Way};
use super::locate::{Located, Lookup, check_master, locate};
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Conversation, Event, Seek, Transport};
use crate::target::{Kind, Target};
use rlock_store::network::{NetworkError, Stage};
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;

/// How long Sentinels that have not answered are left in peace. Each question holds back what is
/// sent meanwhile.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// A connection to one server, and perhaps an older one set aside.
pub(crate) struct Route {
    target: Arc<Target>,
    /// How long finding the server may take.
    limit: Duration,
    /// The largest reply in bytes.
    reply_max: usize,
    connection: Connection,
    aside: Connection,
    /// The error with which the server has refused RESP3. It refuses subscriptions then.
    refused_hello: Option<ServerError>,
}

/// A connection with what it still has to receive.
#[derive(Default)]
struct Connection {
    state: State,
    /// The node that is asked, or was asked last.
    node: Option<Node>,
    /// The epoch of the Sentinels' configuration that named it, or 0.
    epoch: u64,
    /// Until when the Sentinels are not asked, because none of them has answered.
    unchecked_until: Boottime,
    /// Whether each command needs ASKING before it.
    asking: bool,
    /// Whether HELLO 3 was sent.
    speaks_resp3: bool,
    /// The commands that wait for the address of the server, or for the answer that it is still the
    /// master.
    outbox: VecDeque<(Cmd, Expected)>,
}

#[derive(Default)]
enum State {
    #[default]
    Closed,
    Locating(Lookup),
    Open(Box<Link>),
    /// The Sentinels are asked whether the server is still the master.
    Checking(Lookup, Box<Link>),
}

impl Route {
    /// The node that is asked, or was asked last.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.connection.node.as_ref()
    }

    pub(crate) fn new(target: Arc<Target>, limit: Duration, reply_max: usize) -> Self {
        Self {
            target,
            limit,
            reply_max,
            connection: Connection::default(),
            aside: Connection::default(),
            refused_hello: None,
        }
    }

    /// A route to the same server that has no connection yet.
    pub(crate) fn another(&self, reply_max: usize) -> Self {
        Self::new(Arc::clone(&self.target), self.limit, reply_max)
    }

    /// Allows replies of up to `bytes`.
    pub(crate) fn raise_reply_max(&mut self, bytes: usize) {
        self.reply_max = self.reply_max.max(bytes);
        if let State::Open(link) | State::Checking(_, link) = &mut self.connection.state {
            link.raise_reply_max(bytes);
        }
    }

    /// The descriptor to poll, if there is one.
    pub(crate) fn descriptor(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.connection.state {
            State::Closed => None,
            State::Locating(lookup) | State::Checking(lookup, _) => Some(lookup.descriptor()),
            State::Open(link) => Some(link.descriptor()),
        }
    }

    /// The end of the validity of the server's certificate since 1970, if there is one.
    pub(crate) fn certificate_end(&self) -> Option<Duration> {
        let (State::Open(link) | State::Checking(_, link)) = &self.connection.state else { return None };
        link.certificate_end()
    }

    fn open(&mut self, seek: Seek) -> Result<Option<Event>, Failure> {
        self.connection.asking = matches!(&seek, Seek::Redirect(redirect) if redirect.asking);
        // The lookup gives up first, since it knows best why it fails.
        match locate(&self.target, seek, Boottime::now() + (self.limit / 10 * 9))? {
            Located::Ready(address) => self.connection.connect(&self.target, address, self.reply_max).map(Some),
            Located::Pending(lookup) => {
                self.connection.state = State::Locating(lookup);
                Ok(None)
            }
        }
    }

    fn check_master(&mut self, limit: Duration, now: Boottime) {
        let Connection { state: State::Open(_), node: Some(node), epoch, .. } = &self.connection else { return };
        if now < self.connection.unchecked_until {
            return;
        }
        // Without a thread to ask, the connection goes on as if no Sentinel had answered.
        let Ok(lookup) = check_master(&self.target, node, *epoch, now + limit) else { return };
        if let State::Open(link) = std::mem::take(&mut self.connection.state) {
            self.connection.state = State::Checking(lookup, link);
        }
    }

    fn subscribe(&mut self, channel: String) {
        if !std::mem::replace(&mut self.connection.speaks_resp3, true) {
            // RESP3 lets messages arrive between replies.
            let mut hello = redis::cmd("HELLO");
            hello.arg(3);
            self.connection.send(hello, Expected::Hello);
        }
        self.connection.announce();
        let mut subscribe = redis::cmd(if self.is_cluster() { "SSUBSCRIBE" } else { "SUBSCRIBE" });
        subscribe.arg(&channel);
        self.connection.send(subscribe, Expected::Subscription(channel));
        // A session that subscribes stays for a while, and may outlive the node of the URL.
        if self.is_cluster() && self.target.known.is_due(Boottime::now()) {
            self.connection.send(redis::cmd("CLUSTER").arg("SLOTS").clone(), Expected::Nodes);
        }
    }

    fn unsubscribe(&mut self, channel: &str) {
        let mut unsubscribe = redis::cmd(if self.is_cluster() { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" });
        unsubscribe.arg(channel);
        self.connection.send(unsubscribe, Expected::Unsubscription);
    }

    fn is_cluster(&self) -> bool {
        self.target.kind == Kind::Cluster
    }

    /// The failure when nothing arrived in time.
    fn timeout_failure(&self) -> Failure {
        match &self.connection.state {
            State::Open(link) | State::Checking(_, link) => link.timeout_failure(),
            State::Locating(lookup) => lookup.timeout_failure(),
            State::Closed => {
                let node = self.connection.node.as_ref().unwrap_or(&self.target.nodes[0]);
                ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting)).of(&self.target.shown_node(node))
            }
        }
    }
}

impl Transport for Route {
    fn perform(&mut self, action: Action, conversation: &mut impl Conversation, now: Boottime) {
        match action {
            Action::Open(seek) => match self.open(seek) {
                Ok(Some(event)) => conversation.on(event, now),
                Ok(None) => {}
                Err(failure) => conversation.on(Event::Failed(failure), now),
            },
            Action::Close => self.connection.close(),
            Action::CheckMaster(limit) => self.check_master(limit, now),
            Action::CheckReplicas => self.connection.send(redis::cmd("ROLE"), Expected::Role),
            Action::Send(command) => {
                self.connection.announce();
                self.connection.send(command, Expected::Command);
            }
            Action::Subscribe(channel) => match self.refused_hello.clone() {
                Some(error) => conversation.on(Event::SubscribeFailed(channel, error), now),
                None => self.subscribe(channel),
            },
            Action::Unsubscribe(channel) => self.unsubscribe(&channel),
            Action::ReportTimeout => conversation.on(Event::TimedOut(self.timeout_failure()), now),
            Action::SetAside => {
                self.aside = std::mem::take(&mut self.connection);
                // What has not left yet leaves over another connection, perhaps to another master.
                self.aside.outbox.clear();
            }
            Action::ReadAside => {
                // A link reads once between two `None`s, so the second round finds what is left.
                for _ in 0..2 {
                    while let Ok(Some(event)) = self.aside.advance(&self.target, self.reply_max) {
                        if let Event::Reply(reply) = event {
                            conversation.on(Event::Aside(reply), now);
                        }
                    }
                }
            }
        }
    }

    fn next_event(&mut self, _now: Boottime) -> Option<Event> {
        self.connection.advance(&self.target, self.reply_max).unwrap_or_else(|failure| {
            if let State::Open(link) = &self.connection.state
                && let Some(error) = link.refused_hello()
            {
                self.refused_hello = Some(error.clone());
            }
            Some(Event::Failed(failure))
        })
    }
}

impl Connection {
    fn connect(&mut self, target: &Target, address: Address, reply_max: usize) -> Result<Event, Failure> {
        let node = address.node.clone();
        (self.node, self.epoch) = (Some(node.clone()), address.epoch);
        let mut link = Link::open(target, address)?;
        link.raise_reply_max(reply_max);
        self.flush(&mut link);
        self.state = State::Open(Box::new(link));
        Ok(Event::Connecting(node))
    }

    fn close(&mut self) {
        self.state = State::Closed;
        self.speaks_resp3 = false;
        self.outbox.clear();
    }

    fn announce(&mut self) {
        if self.asking {
            self.send(redis::cmd("ASKING"), Expected::Added);
        }
    }

    fn send(&mut self, command: Cmd, expected: Expected) {
        match &mut self.state {
            State::Open(link) if !link.awaits_role() => link.send(&command, expected),
            _ => self.outbox.push_back((command, expected)),
        }
    }

    /// Sends what has waited, up to a question whose answer the rest has to wait for.
    fn flush(&mut self, link: &mut Link) {
        while !link.awaits_role()
            && let Some((command, expected)) = self.outbox.pop_front()
        {
            link.send(&command, expected);
        }
    }

    /// Does what is possible without waiting, and gives the next thing that arrived.
    fn advance(&mut self, target: &Target, reply_max: usize) -> Result<Option<Event>, Failure> {
        match &mut self.state {
            State::Closed => Ok(None),
            State::Open(link) if self.outbox.is_empty() => link.advance(),
            State::Open(_) => self.go_on(),
            State::Locating(lookup) => match lookup.result() {
                None => Ok(None),
                Some(address) => self.connect(target, address?, reply_max).map(Some),
            },
            State::Checking(lookup, _) => match lookup.result() {
                None => Ok(None),
                Some(checked) => {
                    if let Way::Unknown = checked?.way {
                        self.unchecked_until = Boottime::now() + SILENT_FOR;
                    }
                    self.go_on()
                }
            },
        }
    }

    /// Sends what has waited for the Sentinels, or for the master's answer.
    fn go_on(&mut self) -> Result<Option<Event>, Failure> {
        let (State::Checking(_, mut link) | State::Open(mut link)) = std::mem::take(&mut self.state) else {
            return Ok(None);
        };
        self.flush(&mut link);
        let event = link.advance();
        if event.is_ok() {
            self.flush(&mut link);
        }
        self.state = State::Open(link);
        event
    }
}

#[cfg(test)]
mod tests;
