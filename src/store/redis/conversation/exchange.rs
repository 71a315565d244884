//! Keeps one connection at a time to the server that has the resources, with what is in flight on
//! it.
//!
//! The exchange resends a script whose source the server lacks and extends a script call that needs
//! more resources. The exchange remembers failures and redirects. Its owner decides whether to
//! retry.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ServerError, Value};

use super::negotiation::Command;
use super::retry::Retry;
use super::verdict::Verdict;
use crate::clock::Boottime;
use crate::store::redis::codec::{Call, NEEDED_MAX, Reply, Setting};
use crate::store::redis::failure::{ErrorKind, Failure};
use crate::store::redis::interface::{Action, Redirect, Seek};
use crate::store::redis::target::{Node, Target};

/// Maximum number of consecutive redirects. Nodes that agree need one or two.
const REDIRECTS_MAX: u32 = 8;

/// The pause after TRYAGAIN.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// One connection at a time, and what is in flight on it.
pub(in crate::store::redis) struct Exchange {
    target: Arc<Target>,
    setting: Setting,
    /// The number of failed connections, which chooses the Sentinel or node to begin with.
    attempt: usize,
    redirect: Option<Redirect>,
    /// The number of consecutive redirects.
    redirects: u32,
    /// The node that is asked, or was asked last.
    node: Option<Node>,
    connection: Connection,
    in_flight: VecDeque<Sent>,
    delayed: Option<Delayed>,
    outage: Option<Outage>,
    actions: VecDeque<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    Closed {
        /// When to open the next one; `None` is at once.
        retry_at: Option<Boottime>,
    },
    /// Nothing has left yet.
    Locating,
    Open,
}

/// What a command in flight is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A command of the negotiation.
    Negotiation(Command),
    /// The renewal of one resource's lease, by its index in the request.
    Part(usize),
    /// The command or the script call of a question.
    Question,
    /// A command before that of the question. The server may fail it.
    Probe,
    /// Nothing that still matters.
    Ignored,
}

/// A command in flight.
struct Sent {
    asked: Asked,
    /// The script call, unless this is a plain command.
    call: Option<Call>,
    /// Whether the script was sent by its source, not by its name.
    is_source: bool,
    at: Boottime,
}

/// A script call that is sent again after TRYAGAIN.
struct Delayed {
    at: Boottime,
    asked: Asked,
    call: Call,
}

/// The failures since the server last answered.
struct Outage {
    failures: u32,
    /// The failure that says most.
    failure: Failure,
}

/// The result of a reply that the exchange does not deal with itself.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A script has answered a call that was sent at `sent`.
    Reply { asked: Asked, reply: Reply, sent: Boottime },
    /// A plain command has its reply.
    Value { asked: Asked, value: Value, sent: Boottime },
    /// Another node has the resources.
    Redirect { asked: Asked, redirect: Redirect },
    /// No node has all the keys at the moment.
    TryAgain { asked: Asked, call: Call },
}

impl Exchange {
    pub(in crate::store::redis) fn new(target: Arc<Target>, setting: Setting) -> Self {
        Self {
            target,
            setting,
            attempt: 0,
            redirect: None,
            redirects: 0,
            node: None,
            connection: Connection::Closed { retry_at: None },
            in_flight: VecDeque::new(),
            delayed: None,
            outage: None,
            actions: VecDeque::new(),
        }
    }

    /// An exchange with the same server over a connection of its own.
    pub(in crate::store::redis) fn another(&self) -> Self {
        let (target, setting) = (Arc::clone(&self.target), self.setting.clone());
        Self { attempt: self.attempt, redirect: self.redirect.clone(), ..Self::new(target, setting) }
    }

    pub(in crate::store::redis) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    pub(in crate::store::redis) fn setting(&self) -> &Setting {
        &self.setting
    }

    /// The node that is asked, or was asked last.
    pub(in crate::store::redis) fn node(&self) -> &Node {
        self.node.as_ref().unwrap_or(&self.target.nodes[0])
    }

    /// A failure of the node that is asked.
    pub(in crate::store::redis) fn failure(&self, kind: ErrorKind) -> Failure {
        kind.of(&self.target.shown_node(self.node()))
    }

    /// The failure that says most, while the server does not answer.
    pub(super) fn outage(&self) -> Option<&Failure> {
        self.outage.as_ref().map(|outage| &outage.failure)
    }

    /// The number of consecutive failures.
    pub(super) fn failures(&self) -> u32 {
        self.outage.as_ref().map_or(0, |outage| outage.failures)
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.connection, Connection::Closed { .. })
    }

    /// Whether commands have left, or leave as soon as the server takes them.
    pub(super) fn is_open(&self) -> bool {
        self.connection == Connection::Open
    }

    /// What the commands in flight are about, the oldest first.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = Asked> {
        self.in_flight.iter().map(|sent| sent.asked)
    }

    /// When the oldest command in flight was sent.
    pub(super) fn oldest_sent(&self) -> Option<Boottime> {
        self.in_flight.front().map(|sent| sent.at)
    }

    /// Whether nothing is in flight or delayed on a connection.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_closed() && self.in_flight.is_empty() && self.delayed.is_none()
    }

    pub(super) fn is_delayed(&self) -> bool {
        self.delayed.is_some()
    }

    /// When there is something to do even if nothing arrives.
    pub(super) fn timeout(&self) -> Option<Boottime> {
        let open = match self.connection {
            Connection::Closed { retry_at } => Some(retry_at.unwrap_or_default()),
            Connection::Locating | Connection::Open => None,
        };
        self.delayed.as_ref().map(|delayed| delayed.at).into_iter().chain(open).min()
    }

    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Opens a connection if there is none and it is time to; tells whether it did.
    pub(super) fn open(&mut self, now: Boottime) -> bool {
        let is_due = match self.connection {
            Connection::Closed { retry_at } => retry_at.is_none_or(|at| at <= now),
            Connection::Locating | Connection::Open => false,
        };
        if is_due {
            self.connection = Connection::Locating;
            let seek = self.redirect.clone().map_or(Seek::Start(self.attempt), Seek::Redirect);
            self.act(Action::Open(seek));
        }
        is_due
    }

    pub(super) fn on_connecting(&mut self, node: Node) {
        self.node = Some(node);
        self.connection = Connection::Open;
    }

    /// Calls a script.
    pub(super) fn call(&mut self, asked: Asked, call: Call, now: Boottime) {
        self.send_call(asked, call, false, now);
    }

    fn send_call(&mut self, asked: Asked, call: Call, is_source: bool, now: Boottime) {
        let command = if is_source { call.eval(&self.setting) } else { call.evalsha(&self.setting) };
        self.act(Action::Send(command));
        self.in_flight.push_back(Sent { asked, call: Some(call), is_source, at: now });
    }

    /// Sends a plain command.
    pub(super) fn command(&mut self, asked: Asked, command: Cmd, now: Boottime) {
        self.act(Action::Send(command));
        self.in_flight.push_back(Sent { asked, call: None, is_source: false, at: now });
    }

    /// Takes in the reply to the oldest command in flight.
    ///
    /// # Errors
    /// The reply is a failure of the server, or fits no command.
    pub(super) fn on_reply(
        &mut self,
        reply: Result<Value, ServerError>,
        now: Boottime,
    ) -> Result<Option<Outcome>, Failure> {
        let Some(Sent { asked, call, is_source, at: sent }) = self.in_flight.pop_front() else {
            return Err(self.failure(ErrorKind::NotRedis));
        };
        let (value, call) = match (reply, call) {
            _ if asked == Asked::Ignored => return Ok(None),
            (Err(_), None) if asked == Asked::Probe => (Value::Nil, None),
            (Ok(value), call) => (value, call),
            (Err(error), call) => return self.on_error(asked, call, is_source, &error, now),
        };
        self.redirects = 0;
        let Some(mut call) = call else { return Ok(Some(Outcome::Value { asked, value, sent })) };
        match Reply::read(value) {
            Ok(Reply::Need(names)) => {
                call.extend(names);
                if call.resources().len() > NEEDED_MAX {
                    return Err(self.failure(ErrorKind::UnexpectedReply));
                }
                self.call(asked, call, now);
                Ok(None)
            }
            Ok(reply) => Ok(Some(Outcome::Reply { asked, reply, sent })),
            Err(_) => Err(self.failure(ErrorKind::UnexpectedReply)),
        }
    }

    fn on_error(
        &mut self,
        asked: Asked,
        call: Option<Call>,
        is_source: bool,
        error: &ServerError,
        now: Boottime,
    ) -> Result<Option<Outcome>, Failure> {
        match (self.judge(error), call) {
            (Verdict::NoScript, Some(call)) if !is_source => {
                self.send_call(asked, call, true, now);
                Ok(None)
            }
            (Verdict::Redirect(redirect), Some(_)) => Ok(Some(Outcome::Redirect { asked, redirect })),
            (Verdict::TryAgain, Some(call)) => Ok(Some(Outcome::TryAgain { asked, call })),
            (Verdict::Failure(kind), _) => Err(self.failure(kind)),
            _ => Err(self.failure(ErrorKind::UnexpectedReply)),
        }
    }

    pub(super) fn judge(&self, error: &ServerError) -> Verdict {
        Verdict::of(error, &self.target, self.node())
    }

    /// Remembers why there is no answer yet, in case that none comes in time.
    pub(super) fn note(&mut self, kind: ErrorKind) {
        self.outage = Some(Outage { failures: self.failures(), failure: self.failure(kind) });
    }

    /// The server has answered: the outage is over.
    pub(super) fn served(&mut self) {
        self.outage = None;
    }

    /// Sends a script call again in a while: some of its keys are on their way to another node.
    pub(super) fn delay(&mut self, asked: Asked, call: Call, now: Boottime) {
        self.delayed = Some(Delayed { at: now + TRY_AGAIN_AFTER, asked, call });
    }

    /// Sends what was delayed, if it is time to; tells whether it did.
    pub(super) fn resume(&mut self, now: Boottime) -> bool {
        let Some(Delayed { asked, call, .. }) = self.delayed.take_if(|delayed| delayed.at <= now) else {
            return false;
        };
        self.call(asked, call, now);
        true
    }

    /// Goes to the node that has the resources. Its owner sends again what was in flight.
    ///
    /// # Errors
    /// The nodes redirect to each other without end.
    pub(super) fn follow(&mut self, redirect: Redirect) -> Result<(), Failure> {
        self.redirects += 1;
        if self.redirects > REDIRECTS_MAX {
            return Err(self.failure(ErrorKind::ClusterDown));
        }
        self.redirect = Some(redirect);
        self.leave(None, Action::Close);
        Ok(())
    }

    /// Whether a retry of this persistence covers the failure.
    pub(super) fn retries(&self, retry: Retry, failure: &Failure) -> bool {
        retry.covers(failure.kind(), &self.target.kind)
    }

    /// Leaves a connection that failed, by `Close` or `SetAside`, and opens another one at
    /// `retry_at`.
    pub(super) fn reconnect(&mut self, failure: Failure, retry_at: Boottime, leave: Action) {
        let failures = self.failures().saturating_add(1);
        self.outage = Some(Outage { failures, failure: self.worst(failure) });
        self.attempt = self.attempt.wrapping_add(1);
        self.redirect = None;
        self.redirects = 0;
        self.leave(Some(retry_at), leave);
    }

    /// Retries no more; the result is the failure to report. A connection that is open stays so for
    /// the release.
    pub(super) fn give_up(&mut self, failure: Failure) -> Failure {
        if self.is_open() {
            self.actions.clear();
        } else {
            self.leave(None, Action::Close);
        }
        let failure = self.worst(failure);
        self.outage = None;
        failure
    }

    fn worst(&self, failure: Failure) -> Failure {
        failure.prefer(self.outage().cloned())
    }

    fn leave(&mut self, retry_at: Option<Boottime>, action: Action) {
        self.connection = Connection::Closed { retry_at };
        self.in_flight.clear();
        self.delayed = None;
        self.actions.clear();
        self.act(action);
    }

    /// Makes what is in flight or delayed irrelevant.
    pub(super) fn ignore_earlier(&mut self) {
        self.in_flight.iter_mut().for_each(|sent| sent.asked = Asked::Ignored);
        self.delayed = None;
        if let Connection::Closed { retry_at } = &mut self.connection {
            *retry_at = None;
        }
    }
}

#[cfg(test)]
mod tests;
