//! Defines the interface between the two parts of this store: a [`Conversation`] decides, the
//! transport acts.
//!
//! A conversation has no clock and no socket. It takes in each [`Event`] with the instant at which
//! the event arrived, and hands out an [`Action`] for everything that has to happen.

use std::time::Duration;

use redis::{Cmd, ServerError, Value};

use super::failure::Failure;
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;

/// Decides what happens on a connection.
pub trait Conversation {
    /// Takes in an event that arrived at `now`.
    fn on(&mut self, event: Event, now: Boottime);

    /// Takes in that the time is `now` and that no event is left.
    fn tick(&mut self, now: Boottime);

    /// Hands out the next action, which the transport carries out before the next event.
    fn next_action(&mut self) -> Option<Action>;

    /// The instant at which [`tick`](Self::tick) is due even if no event arrives.
    fn timeout(&self) -> Option<Boottime>;

    /// Whether the result is known, so that no further event matters.
    fn is_over(&self) -> bool;
}

/// Acts for a conversation, on a connection to a server or on a simulated one.
pub trait Transport {
    /// Carries out an action, and reports what comes of it at once.
    fn perform(&mut self, action: Action, conversation: &mut impl Conversation, now: Boottime);

    /// Gives the next event that has arrived, without waiting.
    fn next_event(&mut self, now: Boottime) -> Option<Event>;

    /// Carries out what the conversation decides, and reports what arrives, until that would block
    /// or the conversation is over.
    fn drive(&mut self, conversation: &mut impl Conversation, now: Boottime) {
        loop {
            while let Some(action) = conversation.next_action() {
                self.perform(action, conversation, now);
            }
            if conversation.is_over() {
                return;
            }
            match self.next_event(now) {
                Some(event) => conversation.on(event, now),
                None => {
                    conversation.tick(now);
                    match conversation.next_action() {
                        Some(action) => self.perform(action, conversation, now),
                        None => return,
                    }
                }
            }
        }
    }
}

/// What the transport has to do.
pub enum Action {
    /// Find a server and connect to it. [`Event::Connecting`] or [`Event::Failed`] follows.
    Open(Seek),
    /// Close the connection; nothing more arrives on it.
    Close,
    /// Ask the Sentinels for at most so long whether the server is still the master, before
    /// anything else is sent. [`Event::Failed`] follows if it is not, and nothing if it is or if no
    /// Sentinel answers.
    CheckMaster(Duration),
    /// Ask the master, before anything else is sent, whether it has lost a replica since the
    /// connection was opened: the replica may be the next master, of which the Sentinels have not
    /// heard. [`Event::Failed`] follows if it has, and nothing if it has not or does not tell.
    CheckReplicas,
    /// Send a command. Its reply arrives in the order of the commands.
    Send(Cmd),
    /// Subscribe to a channel. Only a failure is reported.
    Subscribe(String),
    /// End the subscription to a channel. Nothing is reported.
    Unsubscribe(String),
    /// Report with [`Event::TimedOut`] what the connection was waiting for.
    ReportTimeout,
    /// Close the connection to new commands and keep it for [`ReadAside`](Self::ReadAside).
    SetAside,
    /// Report as [`Event::Aside`] each reply that has arrived on the connection set aside.
    ReadAside,
}

/// What the transport reports.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// The address of the server is known, and commands leave for this node from now on.
    Connecting(Node),
    /// The reply to the oldest command without one.
    Reply(Result<Value, ServerError>),
    /// The same on the connection set aside.
    Aside(Result<Value, ServerError>),
    /// Somebody published in this channel.
    Message(String),
    /// The server refused the subscription to this channel.
    SubscribeFailed(String, ServerError),
    /// The connection failed.
    Failed(Failure),
    /// The answer to [`Action::ReportTimeout`].
    TimedOut(Failure),
}

/// Which server to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The server of the URL, or any node of the Cluster. Each attempt begins with another node, so
    /// that a useless one is left behind.
    Start(usize),
    /// The master that the Sentinels name, once it is another than this one or they have had the
    /// time to hear of another.
    After(Node),
    /// The node that a redirect names.
    Redirect(Redirect),
}

/// Where in a Cluster the resources are, as MOVED and ASK tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The node.
    pub node: Node,
    /// Whether the slot still migrates, so that each command needs ASKING before it.
    pub asking: bool,
}
