//! Carries out the actions of a conversation on simulated connections.

use std::sync::Arc;
use std::time::Duration;

use super::coverage::Counted;
use super::network::{ToClient, ToServer};
use super::task::Site;
use super::wire;
use rlock_redis::codec::{Call, ScriptReply, Setting, Wake};
use rlock_redis::conversation::{Exchange, Question, Retry};
use rlock_redis::failure::{ErrorKind, Failure};
use rlock_redis::interface::{Action, Conversation, Event, Transport};
use rlock_redis::keys::Keyspace;
use rlock_redis::target::{Kind, Target};
use rlock_store::network::{NetworkError, Stage};
use rlock_sys::clock::Boottime;

/// The server as messages name it.
const SERVER: &str = "redis://h:1";
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the server a question over a connection of its own.
pub(super) async fn ask(site: &Site, call: Call, retry: Retry) -> Result<ScriptReply, Failure> {
    let mut exchange = exchange(&site.world().location.target);
    let mut question = Question::call(&mut exchange, call, retry, site.now() + CONNECT_TIMEOUT);
    let mut route = Route::new(site);
    route.run(&mut Counted(&mut question, site)).await;
    route.close();
    question.into_reply()
}

/// The commands of a process at the server.
pub(super) fn exchange(target: &Arc<Target>) -> Exchange {
    let wake = if target.kind == Kind::Cluster { Wake::ShardPublish } else { Wake::Publish };
    let setting = Setting { keyspace: Keyspace::new(wire::NAMESPACE), wake, now: None };
    Exchange::new(Arc::clone(target), setting)
}

/// A connection to a node of the simulated server, and perhaps an older one set aside.
pub(super) struct Route<'s> {
    site: &'s Site,
    pub(super) connection: Option<usize>,
    aside: Option<usize>,
    /// When the server last replied on the connection.
    heard: Option<Boottime>,
    /// How long the server may keep silent at least.
    patience: Duration,
}

impl<'s> Route<'s> {
    pub(super) fn new(site: &'s Site) -> Self {
        Self { site, connection: None, aside: None, heard: None, patience: Duration::ZERO }
    }

    /// A route over which a conversation gives up a connection only if the server has not replied
    /// for this long.
    pub(super) fn patient(site: &'s Site, patience: Duration) -> Self {
        Self { patience, ..Self::new(site) }
    }

    fn check_silence(&self, now: Boottime) {
        let task = self.site.task;
        if self.heard.is_some_and(|heard| now < heard + self.patience) {
            let violation = format!("task {task} takes a server that has just replied for silent");
            self.site.world().checkers.violations.push(violation);
        }
    }

    fn send(&self, frame: ToServer) {
        if let Some(id) = self.connection {
            self.site.world().send_to_server(id, frame);
        }
    }

    pub(super) fn close(&mut self) {
        if let Some(id) = self.connection.take() {
            self.site.world().close(id);
        }
    }

    pub(super) fn has_arrived(&self) -> bool {
        self.connection.is_some_and(|id| self.site.world().has_arrived(id))
    }

    /// Drives a conversation until it is over, while nothing else happens in this process.
    pub(super) async fn run(&mut self, conversation: &mut impl Conversation) {
        self.run_until(conversation, |conversation| conversation.is_over()).await;
    }

    /// Does the same until something is so.
    pub(super) async fn run_until<C: Conversation>(
        &mut self,
        conversation: &mut C,
        mut is_so: impl FnMut(&mut C) -> bool,
    ) {
        loop {
            self.drive(conversation, self.site.now());
            if is_so(conversation) {
                return;
            }
            if !self.has_arrived() {
                self.site.wait(conversation.timeout()).await;
            }
        }
    }
}

impl Transport for Route<'_> {
    fn perform(&mut self, action: Action, conversation: &mut impl Conversation, now: Boottime) {
        match action {
            Action::Open(seek) => {
                let (id, node) = self.site.world().connect(self.site.task, seek);
                (self.connection, self.heard) = (Some(id), None);
                if let Some(node) = node {
                    conversation.on(Event::Connecting(node), now);
                }
            }
            Action::Close => self.close(),
            Action::CheckMaster(limit) => {
                if let Some(id) = self.connection {
                    self.site.world().check_master(id, limit);
                }
            }
            // A simulated master knows of no replicas.
            Action::CheckReplicas => {}
            Action::Send(command) => self.send(ToServer::Command(wire::read(command))),
            Action::Subscribe(channel) => self.send(ToServer::Subscribe(channel)),
            Action::Unsubscribe(channel) => self.send(ToServer::Unsubscribe(channel)),
            Action::ReportTimeout => {
                self.check_silence(now);
                let failure = ErrorKind::Network(NetworkError::TimedOut(Stage::Used)).of(SERVER);
                conversation.on(Event::TimedOut(failure), now);
            }
            Action::SetAside => self.aside = self.connection.take(),
            Action::ReadAside => {
                while let Some(frame) = self.aside.and_then(|id| self.site.world().receive(id)) {
                    if let ToClient::Reply(reply) = frame {
                        conversation.on(Event::Aside(reply), now);
                    }
                }
            }
        }
    }

    fn next_event(&mut self, now: Boottime) -> Option<Event> {
        let frame = self.connection.and_then(|id| self.site.world().receive(id))?;
        if let ToClient::Reply(_) = frame {
            self.heard = Some(now);
        }
        Some(event(frame))
    }
}

fn event(frame: ToClient) -> Event {
    match frame {
        ToClient::Located(node) => Event::Connecting(node),
        ToClient::Reply(reply) => Event::Reply(reply),
        ToClient::SubscribeFailed(channel, error) => Event::SubscribeFailed(channel, error),
        ToClient::Message(channel) => Event::Message(channel),
        ToClient::Failed(kind) => Event::Failed(kind.of(SERVER)),
    }
}
