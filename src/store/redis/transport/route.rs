//! The way to the server that has the resources: finds it, connects, follows where it says that
//! they are, and starts anew when the connection breaks.
//!
//! Nothing here blocks, and nothing is said twice of its own accord: what was said over a
//! connection that broke is lost, and whoever said it asks again.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ServerError, ServerErrorKind, Value};
use rustix::event::PollFlags;

use super::link::{Address, Incoming, Link, Push, REPLY_MAX};
use super::locate::{Located, Lookup, Seek, locate};
use super::now;
use crate::store::redis::failure::{ErrorKind, Failure, Stage};
use crate::store::redis::target::{Kind, Node, Target};

/// How often in a row it is believed that the resources are elsewhere: nodes that agree need one or
/// two.
const REDIRECTIONS: u32 = 8;

/// A way to one server.
pub(in crate::store::redis) struct Route {
    target: Arc<Target>,
    /// How long looking for the server may take.
    limit: Duration,
    /// How many bytes a reply may have, if more than usual.
    reply_max: usize,
    /// How often it was looked for in vain.
    turn: usize,
    node: Option<Node>,
    /// Where a node of a Cluster said that the resources are.
    redirect: Option<Redirect>,
    /// How often in a row it was said that they are elsewhere.
    redirections: u32,
    state: State,
    /// What was said while the server is still looked for.
    outbox: Vec<Cmd>,
    expected: VecDeque<Expected>,
}

/// What an answer that is to come is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// What was said.
    Answer,
    /// An addition of the way's own.
    PassedOver,
    /// A subscription: a push confirms it, and only its failure comes as an answer.
    Subscription,
}

/// Something that arrived.
pub(in crate::store::redis) enum Event {
    /// An answer, in the order of what was said.
    Answer(Result<Value, ServerError>),
    /// The subscription failed.
    SubscribeFailed(ServerError),
    /// A message on the channel.
    Message,
}

enum State {
    Closed,
    Lookup(Lookup),
    Open(Box<Link>),
}

/// Where else in a Cluster the resources are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Redirect {
    node: Node,
    /// The slot is on its way there, and the node answers for it only if it is asked to each time.
    asking: bool,
}

impl Redirect {
    /// To a node that has the slot.
    #[cfg(test)]
    pub(in crate::store::redis) fn to(node: Node) -> Self {
        Self { node, asking: false }
    }
}

/// What an answer means for the way.
pub(in crate::store::redis) enum Verdict {
    /// It is one, of whatever kind.
    Answer(Value),
    /// The server doesn't know the script yet.
    NoScript,
    /// The resources are elsewhere.
    Redirect(Redirect),
    /// Some of the keys are on their way to another node.
    TryAgain,
    /// The server can't do it.
    Failure(Failure),
}

impl Route {
    pub(in crate::store::redis) fn new(target: Arc<Target>, limit: Duration) -> Self {
        Self {
            target,
            limit,
            reply_max: REPLY_MAX,
            turn: 0,
            node: None,
            redirect: None,
            redirections: 0,
            state: State::Closed,
            outbox: Vec::new(),
            expected: VecDeque::new(),
        }
    }

    /// A way of its own to the same place.
    pub(in crate::store::redis) fn another(&self) -> Self {
        Self { turn: self.turn, redirect: self.redirect.clone(), ..Self::new(Arc::clone(&self.target), self.limit) }
    }

    /// The same way for replies of up to `reply_max` bytes.
    pub(in crate::store::redis) fn with_reply_max(self, reply_max: usize) -> Self {
        Self { reply_max, ..self }
    }

    pub(in crate::store::redis) fn target(&self) -> &Target {
        &self.target
    }

    pub(in crate::store::redis) fn is_cluster(&self) -> bool {
        self.target.kind == Kind::Cluster
    }

    pub(in crate::store::redis) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether the server is still looked for, so that nothing that was said has left.
    pub(in crate::store::redis) fn is_looking(&self) -> bool {
        matches!(self.state, State::Lookup(_))
    }

    /// Begins to look for the server or to connect, unless that was done.
    pub(in crate::store::redis) fn open(&mut self) -> Result<(), Failure> {
        if !self.is_closed() {
            return Ok(());
        }
        let seek = match &self.redirect {
            Some(redirect) => Seek::Node(redirect.node.clone()),
            None => Seek::Start(self.turn),
        };
        // A search that fails says more about why than whoever waits for it: it gets to say so
        // first.
        match locate(&self.target, seek, now().saturating_add(self.limit / 10 * 9))? {
            Located::Ready(address) => self.connect(address),
            Located::Pending(locating) => {
                self.state = State::Lookup(locating);
                Ok(())
            }
        }
    }

    fn connect(&mut self, address: Address) -> Result<(), Failure> {
        self.node = Some(address.node.clone());
        let mut link = Link::open(&self.target, address)?;
        link.raise_reply_max(self.reply_max);
        self.outbox.drain(..).for_each(|command| link.send(&command));
        self.state = State::Open(Box::new(link));
        Ok(())
    }

    /// The node that is asked, or was last.
    pub(in crate::store::redis) fn node(&self) -> &Node {
        self.node.as_ref().unwrap_or(&self.target.nodes[0])
    }

    /// What to wait for, if there is anything.
    pub(in crate::store::redis) fn descriptor(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Closed => None,
            State::Lookup(locating) => Some(locating.descriptor()),
            State::Open(link) => Some(link.descriptor()),
        }
    }

    /// Says something; it leaves with the next [`advance`](Self::advance) that can write.
    pub(in crate::store::redis) fn send(&mut self, command: Cmd) {
        self.announce();
        self.push(command, Expected::Answer);
    }

    /// Says before a command that a node of the Cluster has sent it here, if that has to be said.
    fn announce(&mut self) {
        if self.redirect.as_ref().is_some_and(|redirect| redirect.asking) {
            self.push(redis::cmd("ASKING"), Expected::PassedOver);
        }
    }

    /// Subscribes to a channel of the session that the resources belong to.
    pub(in crate::store::redis) fn subscribe(&mut self, channel: &str) {
        // The protocol in which messages may come between answers.
        let mut hello = redis::cmd("HELLO");
        hello.arg(3);
        self.push(hello, Expected::PassedOver);
        self.announce();
        let mut subscribe = redis::cmd(if self.is_cluster() { "SSUBSCRIBE" } else { "SUBSCRIBE" });
        subscribe.arg(channel);
        self.push(subscribe, Expected::Subscription);
    }

    fn push(&mut self, command: Cmd, expected: Expected) {
        self.expected.push_back(expected);
        match &mut self.state {
            State::Open(link) => link.send(&command),
            State::Closed | State::Lookup(_) => self.outbox.push(command),
        }
    }

    /// Does all that can be done without waiting, and gives the next thing that arrived.
    pub(in crate::store::redis) fn advance(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            let incoming = match &mut self.state {
                State::Closed => return Ok(None),
                State::Lookup(locating) => match locating.result() {
                    None => return Ok(None),
                    Some(address) => {
                        let address = address?;
                        self.connect(address)?;
                        continue;
                    }
                },
                State::Open(link) => match link.advance()? {
                    None => return Ok(None),
                    Some(incoming) => incoming,
                },
            };
            match incoming {
                Incoming::Push(Push::Message { .. }) => return Ok(Some(Event::Message)),
                Incoming::Push(Push::Subscribed { .. }) => {
                    self.expected.pop_front();
                }
                // The slot has moved on, and with it whoever publishes.
                Incoming::Push(Push::Unsubscribed { .. }) => return Err(self.failure(ErrorKind::Closed(Stage::Used))),
                Incoming::Reply(reply) => match (self.expected.pop_front(), reply) {
                    (Some(Expected::Subscription), Err(error)) => return Ok(Some(Event::SubscribeFailed(error))),
                    (Some(Expected::PassedOver), Err(error)) => return Err(self.failure(ErrorKind::from_reply(&error))),
                    (Some(Expected::PassedOver | Expected::Subscription), Ok(_)) => {}
                    (_, reply) => return Ok(Some(Event::Answer(reply))),
                },
            }
        }
    }

    /// What went wrong with the server, in words that name it.
    pub(in crate::store::redis) fn failure(&self, kind: ErrorKind) -> Failure {
        match &self.state {
            State::Open(link) => kind.of(link.server()),
            State::Closed | State::Lookup(_) => kind.of(&self.target.shown_node(self.node())),
        }
    }

    /// Whether the trouble says that this is not the server that is meant, as far as a first look
    /// tells. Where there are several, another one may be.
    pub(in crate::store::redis) fn is_wrong_server(&self, failure: &Failure) -> bool {
        let is_place = matches!(
            failure.kind(),
            ErrorKind::Refused
                | ErrorKind::NoSocket
                | ErrorKind::Unresolved(_)
                | ErrorKind::Unreachable(_)
                | ErrorKind::ReadOnly
                | ErrorKind::OutOfMemory
        );
        is_place && self.target.kind == Kind::Single
    }

    /// What to say when nothing came in time.
    pub(in crate::store::redis) fn timeout_failure(&self) -> Failure {
        match &self.state {
            State::Open(link) => link.timeout_failure(),
            State::Lookup(locating) => locating.timeout_failure(),
            State::Closed => self.failure(ErrorKind::TimedOut(Stage::Connecting)),
        }
    }

    /// Gives up the connection. What was said is lost; the next one goes to another node where
    /// there are several.
    pub(in crate::store::redis) fn close(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.redirect = None;
        self.redirections = 0;
        self.hang_up();
    }

    /// Leaves the connection as it is, with the answers that are to come on it, to the way that
    /// this gives. Here it is closed.
    pub(in crate::store::redis) fn split_off(&mut self) -> Self {
        let mut old = self.another();
        old.state = std::mem::replace(&mut self.state, State::Closed);
        old.expected = std::mem::take(&mut self.expected);
        old
    }

    /// Goes where the resources are.
    ///
    /// # Errors
    /// The nodes only send each other's askers round.
    pub(in crate::store::redis) fn follow(&mut self, redirect: Redirect) -> Result<(), Failure> {
        self.redirections += 1;
        if self.redirections > REDIRECTIONS {
            return Err(self.failure(ErrorKind::ClusterDown));
        }
        self.redirect = Some(redirect);
        self.hang_up();
        Ok(())
    }

    fn hang_up(&mut self) {
        self.state = State::Closed;
        self.outbox.clear();
        self.expected.clear();
    }

    /// What an answer means.
    pub(in crate::store::redis) fn judge(&mut self, reply: Result<Value, ServerError>) -> Verdict {
        let error = match reply {
            Ok(value) => {
                self.redirections = 0;
                return Verdict::Answer(value);
            }
            Err(error) => error,
        };
        let in_cluster = self.is_cluster();
        match error.kind() {
            Some(ServerErrorKind::NoScript) => Verdict::NoScript,
            Some(ServerErrorKind::TryAgain) if in_cluster => Verdict::TryAgain,
            Some(kind @ (ServerErrorKind::Moved | ServerErrorKind::Ask)) if in_cluster => {
                let node = error.details().and_then(|details| self.node().redirected(details));
                match node {
                    Some(node) => Verdict::Redirect(Redirect { node, asking: kind == ServerErrorKind::Ask }),
                    None => Verdict::Failure(self.failure(ErrorKind::from_reply(&error))),
                }
            }
            _ => Verdict::Failure(self.failure(ErrorKind::from_reply(&error))),
        }
    }
}
