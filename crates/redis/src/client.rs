//! Asks a server a question and blocks until the answer arrives.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::codec::{Call, LISTING_MAX, ScriptReply, Setting};
use super::conversation::{Exchange, Question, QuestionReply, Retry};
use super::failure::{ErrorKind, Failure};
use super::target::{Kind, Target};
use super::transport::blocking;
use super::transport::route::Route;
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;

/// Asks one question at a time, over a connection that stays open between them.
pub(super) struct Client {
    exchange: Exchange,
    route: Route,
    /// How long one answer may take.
    limit: Duration,
    retry: Retry,
}

impl Client {
    /// A client that takes listings of any number of sessions.
    pub(super) fn new(target: Arc<Target>, setting: Setting, limit: Duration) -> Self {
        let route = Route::new(Arc::clone(&target), limit, LISTING_MAX);
        Self::over(Exchange::new(target, setting), route, limit)
    }

    /// A client over a connection to be made.
    pub(super) fn over(exchange: Exchange, route: Route, limit: Duration) -> Self {
        Self { exchange, route, limit, retry: Retry::WhileUp }
    }

    /// A client of the same server with a connection of its own.
    pub(super) fn another(&self) -> Self {
        Self::over(self.exchange.another(), self.route.another(LISTING_MAX), self.limit)
    }

    /// A client that begins with this node of the Cluster and knows no other.
    pub(super) fn at(&self, node: Node) -> Self {
        let mut target = Target::clone(&self.exchange.target);
        (target.nodes, target.known) = (vec![node], Arc::default());
        Self::new(Arc::new(target), self.setting().clone(), self.limit)
    }

    /// Waits for a server that is down, as the holder of a lock does.
    pub(super) fn retry_while_down(self) -> Self {
        Self { retry: Retry::WhileDown, ..self }
    }

    /// The node that was asked last.
    pub(super) fn node(&self) -> &Node {
        self.exchange.node()
    }

    /// The end of the validity of the server's certificate since 1970, while there is a connection.
    pub(super) fn certificate_end(&self) -> Option<Duration> {
        self.route.certificate_end()
    }

    /// Whether each resource may be on another node.
    pub(super) fn is_cluster(&self) -> bool {
        self.exchange.target.kind == Kind::Cluster
    }

    /// Whether the URL names a single server.
    pub(super) fn is_single(&self) -> bool {
        self.exchange.target.kind == Kind::Single
    }

    /// How calls are made.
    pub(super) fn setting(&self) -> &Setting {
        &self.exchange.setting
    }

    /// A failure of the server that was asked last.
    pub(super) fn failure(&self, kind: ErrorKind) -> Failure {
        self.exchange.failure(kind)
    }

    /// Calls a script, with all the resources that it turns out to touch.
    pub(super) fn call(&mut self, call: Call) -> Result<ScriptReply, Failure> {
        let until = Boottime::now() + self.limit;
        let mut question = Question::call(&mut self.exchange, call, self.retry, until);
        blocking::run(&mut self.route, &mut question);
        question.into_reply().map_err(|failure| self.with_right(failure))
    }

    /// Sends a command and gives its reply.
    pub(super) fn command(&mut self, command: Cmd) -> Result<Value, Failure> {
        self.command_after(None, command).map(|(_, value)| value)
    }

    /// Sends a command, before it a probe that the server may fail, and gives both replies.
    pub(super) fn command_after(
        &mut self,
        probe: Option<Cmd>,
        command: Cmd,
    ) -> Result<(Option<Value>, Value), Failure> {
        let until = Boottime::now() + self.limit;
        let mut question = Question::command(&mut self.exchange, probe, command, until);
        blocking::run(&mut self.route, &mut question);
        match question.into_result()? {
            (probed, QuestionReply::Value(value)) => Ok((probed, value)),
            (_, QuestionReply::Reply(_)) => Err(self.exchange.failure(ErrorKind::UnexpectedReply)),
        }
    }
}
