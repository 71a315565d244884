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

use super::verdict::Verdict;
use crate::codec::{Call, NEEDED_MAX, ScriptReply, Setting};
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Redirect};
use crate::target::{Kind, Target};
use rlock_model::request::SessionId;
use rlock_store::lease::{Command, FailureClass, Line};
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;

/// Maximum number of consecutive redirects. Nodes that agree need one or two.
const REDIRECTS_MAX: u32 = 8;

/// The pause after TRYAGAIN.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// How long the Sentinels may take to say whether a server is still the master, and the least time
/// between two such questions.
const CHECK_LIMIT: Duration = Duration::from_millis(500);

/// One connection at a time, and what is in flight on it.
pub struct Exchange {
    pub(crate) target: Arc<Target>,
    pub(crate) setting: Setting,
    /// The number of failed connections, which chooses the node to begin with.
    attempt: usize,
    redirect: Option<Redirect>,
    /// The number of consecutive redirects.
    redirects: u32,
    /// The node that is asked, or was asked last.
    node: Option<Node>,
    /// When the next connection is opened, if there is none.
    line: Line<Failure>,
    /// Whether commands leave. Otherwise the server is still being looked for, or there is no
    /// connection.
    is_open: bool,
    in_flight: VecDeque<Sent>,
    /// The scripts whose source has left over this connection, and when it left last.
    sources: Vec<(&'static str, Boottime)>,
    /// A script call that is sent again at an instant, after TRYAGAIN.
    delayed: Option<(Boottime, Asked, Call)>,
    /// When the Sentinels were last asked whether the server is still the master.
    checked: Boottime,
    actions: VecDeque<Action>,
}

/// What a command in flight is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Something whose reply does not matter any more.
    Nothing,
    /// The renewal of a session's lease on one resource, by its index in the request.
    Part(SessionId, usize),
    /// The command or the script call of a question.
    Question,
    /// A command before that of the question. The server may fail it.
    Probe,
    /// A command of a session.
    Session(SessionId, Command),
    /// Which replicas have the grant of a session.
    Copies(SessionId),
    /// The release of a session.
    Release(SessionId),
}

impl Asked {
    /// The session that the command is about.
    pub(super) fn session(self) -> Option<SessionId> {
        match self {
            Self::Session(id, _) | Self::Part(id, _) | Self::Copies(id) | Self::Release(id) => Some(id),
            Self::Nothing | Self::Question | Self::Probe => None,
        }
    }
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

/// The result of a reply that the exchange does not deal with itself.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A script has answered a call that was sent at `sent`.
    Reply { reply: ScriptReply, sent: Boottime },
    /// A plain command has its reply.
    Value(Value),
    /// Another node has the resources.
    Redirect(Redirect),
    /// No node has all the keys at the moment.
    TryAgain(Call),
}

impl Exchange {
    /// An exchange with the server at `target`, without a connection yet. `setting` says how its
    /// calls are encoded.
    pub fn new(target: Arc<Target>, setting: Setting) -> Self {
        Self {
            target,
            setting,
            attempt: 0,
            redirect: None,
            redirects: 0,
            node: None,
            line: Line::default(),
            is_open: false,
            in_flight: VecDeque::new(),
            sources: Vec::new(),
            delayed: None,
            checked: Boottime::default(),
            actions: VecDeque::new(),
        }
    }

    /// An exchange with the same server over a connection of its own.
    pub fn another(&self) -> Self {
        let (target, setting) = (Arc::clone(&self.target), self.setting.clone());
        Self { attempt: self.attempt, redirect: self.redirect.clone(), ..Self::new(target, setting) }
    }

    /// The node that is asked, or was asked last.
    pub(crate) fn node(&self) -> &Node {
        self.node.as_ref().unwrap_or(&self.target.nodes[0])
    }

    /// A failure of the node that is asked.
    pub(crate) fn failure(&self, kind: ErrorKind) -> Failure {
        kind.in_database(self.target.db).of(&self.target.shown_node(self.node()))
    }

    /// Whether commands have left, or leave as soon as the server takes them.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the server may have got what was sent at `sent` before this failure. What waits for
    /// the Sentinels has not left, nor what waits for the answer about the replicas.
    pub(super) fn may_have_sent_at(&self, sent: Boottime, failure: &ErrorKind) -> bool {
        let is_passed = match failure {
            ErrorKind::NotTheMaster => sent < self.checked,
            ErrorKind::LostReplica => false,
            _ => true,
        };
        let is_there = !matches!(failure.class(&self.target.kind), FailureClass::Absent | FailureClass::WrongServer);
        self.is_open() && is_there && is_passed
    }

    /// What the commands in flight are about, the oldest first.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = Asked> {
        self.in_flight.iter().map(|sent| sent.asked)
    }

    /// The name of the state, for tests that count what they reach.
    pub fn state_name(&self) -> &'static str {
        match self.in_flight.front() {
            _ if self.line.opens_at().is_some() => "closed",
            _ if !self.is_open => "locating",
            _ if self.delayed.is_some() => "delayed",
            None => "quiet",
            Some(Sent { asked: Asked::Nothing, .. }) => "ignoring",
            Some(_) => "in flight",
        }
    }

    /// Whether nothing that matters is in flight or delayed on a connection.
    pub(super) fn is_quiet(&self) -> bool {
        self.line.opens_at().is_none()
            && self.in_flight().all(|asked| asked == Asked::Nothing)
            && self.delayed.is_none()
    }

    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether there are actions to carry out.
    pub(super) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn on_connecting(&mut self, node: Node) {
        self.node = Some(node);
        self.is_open = true;
    }

    /// Asks the Sentinels, if there are any, whether the server is still the master: after a
    /// planned failover, the old one serves its clients for some seconds. The caller waits for
    /// a reply for `patience` at most, so the Sentinels have a part of this time.
    pub(super) fn check_master(&mut self, patience: Duration, now: Boottime) {
        let is_due = self.checked + CHECK_LIMIT <= now;
        if is_due && self.is_open() && matches!(self.target.kind, Kind::Sentinel { .. }) {
            self.checked = now;
            self.act(Action::CheckMaster(CHECK_LIMIT.min(patience / 2)));
        }
    }

    /// Looks for the sign of a failover of which the Sentinels have not heard. The old master would
    /// take a release, and the lock would stay held at the new one.
    pub(super) fn check_replicas(&mut self) {
        if self.is_open() && matches!(self.target.kind, Kind::Sentinel { .. }) {
            self.act(Action::CheckReplicas);
        }
    }

    /// Calls a script. The reply supersedes the reply to a delayed call, so the exchange drops the
    /// delayed call.
    pub(super) fn call(&mut self, asked: Asked, call: Call, now: Boottime) {
        self.delayed = None;
        self.send_call(asked, call, false, now);
    }

    fn send_call(&mut self, asked: Asked, call: Call, is_source: bool, now: Boottime) {
        let command = if is_source { call.eval(&self.setting) } else { call.evalsha(&self.setting) };
        if is_source {
            self.sources.retain(|(script, _)| *script != call.sha1());
            self.sources.push((call.sha1(), now));
        }
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
    ) -> Result<Option<(Asked, Outcome)>, Failure> {
        let Some(Sent { asked, call, is_source, at: sent }) = self.in_flight.pop_front() else {
            return Err(self.failure(ErrorKind::NotRedis));
        };
        if asked == Asked::Nothing {
            return Ok(None);
        }
        if reply.is_ok() {
            self.redirects = 0;
        }
        let outcome = match (reply, call) {
            (Err(_), None) if asked == Asked::Probe => Outcome::Value(Value::Nil),
            (Err(error), call) => match (self.judge(&error), call) {
                (Verdict::NoScript, Some(call)) if !is_source => {
                    // Many calls may be in flight. Once the source has followed them, the server
                    // knows the script.
                    let is_on_its_way = self.sources.iter().any(|(script, at)| *script == call.sha1() && sent < *at);
                    self.send_call(asked, call, !is_on_its_way, now);
                    return Ok(None);
                }
                (Verdict::Redirect(redirect), Some(_)) => Outcome::Redirect(redirect),
                (Verdict::TryAgain, Some(call)) => Outcome::TryAgain(call),
                (Verdict::Failure(kind), _) => return Err(self.failure(kind)),
                _ => return Err(self.failure(ErrorKind::UnexpectedReply)),
            },
            (Ok(value), None) => Outcome::Value(value),
            (Ok(value), Some(mut call)) => match ScriptReply::read(&value) {
                Some(ScriptReply::Need(names)) => {
                    call.declare(names);
                    if call.resources().len() > NEEDED_MAX {
                        return Err(self.failure(ErrorKind::UnexpectedReply));
                    }
                    self.call(asked, call, now);
                    return Ok(None);
                }
                Some(reply) => Outcome::Reply { reply, sent },
                None => return Err(self.failure(ErrorKind::UnexpectedReply)),
            },
        };
        Ok(Some((asked, outcome)))
    }

    pub(super) fn judge(&self, error: &ServerError) -> Verdict {
        Verdict::of(error, &self.target, self.node())
    }

    /// Remembers why there is no answer yet, in case that none comes in time.
    pub(super) fn note(&mut self, kind: ErrorKind) {
        self.line.note(self.failure(kind));
    }

    /// Sends a script call again in a while: some of its keys are on their way to another node.
    pub(super) fn delay(&mut self, asked: Asked, call: Call, now: Boottime) {
        self.delayed = Some((now + TRY_AGAIN_AFTER, asked, call));
    }

    /// Sends what was delayed, if it is time to; tells what it is about.
    pub(super) fn resume(&mut self, now: Boottime) -> Option<Asked> {
        let (_, asked, call) = self.delayed.take_if(|(at, ..)| *at <= now)?;
        self.call(asked, call, now);
        Some(asked)
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
        self.close();
        Ok(())
    }

    /// Closes a connection that failed, and opens another one at `retry_at`.
    pub(super) fn reconnect(&mut self, failure: Failure, retry_at: Boottime) {
        self.reconnect_after(Action::Close, failure, retry_at);
    }

    /// Leaves a connection that failed, by `Close` or `SetAside`, and opens another one at
    /// `retry_at`.
    pub(super) fn reconnect_after(&mut self, leave: Action, failure: Failure, retry_at: Boottime) {
        self.line.fail(self.worst(failure));
        self.attempt = self.attempt.wrapping_add(1);
        self.redirect = None;
        self.redirects = 0;
        self.leave(leave, retry_at);
    }

    fn worst(&self, failure: Failure) -> Failure {
        failure.prefer(self.line.outage().cloned())
    }

    fn close(&mut self) {
        self.leave(Action::Close, Boottime::default());
    }

    fn leave(&mut self, action: Action, retry_at: Boottime) {
        self.line.close(retry_at);
        self.is_open = false;
        self.in_flight.clear();
        self.sources.clear();
        self.delayed = None;
        self.actions.clear();
        self.act(action);
    }

    /// Makes what is in flight or delayed irrelevant, so that the next question is asked at once.
    pub(super) fn ignore_earlier(&mut self) {
        self.ignore_where(|_| true);
        self.line.hurry();
    }

    /// Makes what is in flight or delayed for a session irrelevant.
    pub(super) fn ignore_session(&mut self, id: SessionId) {
        self.ignore_where(|asked| asked.session() == Some(id));
    }

    fn ignore_where(&mut self, is_it: impl Fn(Asked) -> bool) {
        self.in_flight.iter_mut().filter(|sent| is_it(sent.asked)).for_each(|sent| sent.asked = Asked::Nothing);
        self.delayed.take_if(|(_, asked, _)| is_it(*asked));
    }
}

mod server;
#[cfg(test)]
mod tests;
