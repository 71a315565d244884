//! Gets the reply to one command or script call, over as many connections as it takes.

use std::ops::DerefMut;
use std::time::Duration;

use redis::{Cmd, Value};

use super::exchange::{Asked, Exchange, Outcome};
use crate::codec::{Call, ScriptReply};
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Conversation, Event};
use rlock_store::lease_client::Retry;
use rlock_sys::clock::Boottime;

/// The pause before a server is asked again after a failure.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// A question, idempotent if it is a call. It borrows or owns its exchange.
pub struct Question<E> {
    exchange: E,
    text: Text,
    retry: Retry,
    /// When to give up.
    until: Boottime,
    old: OldConnection,
    /// The answer of the probe.
    probed: Option<Value>,
    result: Option<Result<QuestionReply, Failure>>,
    late: Option<ScriptReply>,
    in_doubt: bool,
}

/// What to send.
enum Text {
    Call(Box<Call>),
    Commands { probe: Option<Cmd>, command: Cmd },
}

/// The answer to a question.
#[derive(Debug, PartialEq)]
pub enum QuestionReply {
    /// The reply of a script.
    Reply(ScriptReply),
    /// The reply to a plain command.
    Value(Value),
}

/// A connection that was open before the question. A firewall may have forgotten it without telling
/// either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OldConnection {
    /// There is none, or it is trusted.
    None,
    /// The question goes out on it. A fresh connection replaces it at `until`. If the question
    /// gives a lock back, the server is first asked whether it may have lost it to another master.
    Open { until: Boottime, has_lock: bool },
    /// A fresh connection has replaced it. After so many replies it may still tell the answer.
    Aside { earlier: usize },
}

impl<E: DerefMut<Target = Exchange>> Question<E> {
    /// Calls a script.
    pub fn call(exchange: E, call: Call, retry: Retry, until: Boottime) -> Self {
        Self::new(exchange, Text::Call(Box::new(call)), retry, until)
    }

    /// Sends a command, and in the same write a probe before it, which the server may fail.
    pub(crate) fn command(exchange: E, probe: Option<Cmd>, command: Cmd, until: Boottime) -> Self {
        Self::new(exchange, Text::Commands { probe, command }, Retry::Never, until)
    }

    fn new(mut exchange: E, text: Text, retry: Retry, until: Boottime) -> Self {
        exchange.ignore_earlier();
        exchange.served();
        let (old, probed, result, late) = (OldConnection::None, None, None, None);
        Self { exchange, text, retry, until, old, probed, result, late, in_doubt: false }
    }

    /// Replaces a connection that is already open by a fresh one at `until`. `has_lock` tells
    /// whether the question gives a lock back.
    pub(super) fn distrust_old_connection(&mut self, until: Boottime, has_lock: bool) {
        if !self.exchange.is_closed() {
            self.old = OldConnection::Open { until, has_lock };
        }
    }

    /// The reply that came late on the old connection. A server that is only slow answers there
    /// first.
    pub(super) fn late_reply(&mut self) -> Option<ScriptReply> {
        self.late.take()
    }

    /// Whether the server may have carried out the question unseen, before the one that it
    /// answered.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt || matches!(self.old, OldConnection::Aside { .. })
    }

    /// The answer of the probe and that of the question. A failure names the keys of the call that
    /// it may be about.
    pub fn into_result(self) -> Result<(Option<Value>, QuestionReply), Failure> {
        let Self { exchange, text, probed, result, .. } = self;
        match (result, text) {
            (Some(Ok(answer)), _) => Ok((probed, answer)),
            (Some(Err(failure)), Text::Call(call)) => {
                Err(failure.with_keys(|| exchange.setting.keyspace.shown(call.resources())))
            }
            (Some(Err(failure)), Text::Commands { .. }) => Err(failure),
            (None, _) => Err(exchange.failure(ErrorKind::UnexpectedReply)),
        }
    }

    /// The reply of the script, or the failure as [`into_result`](Self::into_result) gives it.
    pub fn into_reply(self) -> Result<ScriptReply, Failure> {
        let unexpected = self.exchange.failure(ErrorKind::UnexpectedReply);
        if let QuestionReply::Reply(reply) = self.into_result()?.1 { Ok(reply) } else { Err(unexpected) }
    }

    /// The names of the states of the question and its exchange, for tests that count what they
    /// reach.
    pub fn state_names(&self) -> [&'static str; 2] {
        let own = match self.old {
            _ if self.is_over() => "over",
            OldConnection::None => "asking",
            OldConnection::Open { .. } => "old open",
            OldConnection::Aside { .. } => "aside",
        };
        [own, self.exchange.state_name()]
    }

    /// When the current connection is given up.
    fn deadline(&self) -> Boottime {
        if let OldConnection::Open { until, .. } = self.old { until.min(self.until) } else { self.until }
    }

    fn ask(&mut self, now: Boottime) {
        if let OldConnection::Open { until, has_lock } = self.old {
            self.exchange.check_master(until - now, now);
            if has_lock {
                self.exchange.check_replicas();
            }
        }
        match &self.text {
            Text::Call(call) => self.exchange.call(Asked::Question, Call::clone(call), now),
            Text::Commands { probe, command } => {
                if let Some(probe) = probe {
                    self.exchange.command(Asked::Probe, probe.clone(), now);
                }
                self.exchange.command(Asked::Question, command.clone(), now);
            }
        }
    }

    fn on_outcome(&mut self, asked: Asked, outcome: Outcome, now: Boottime) -> Result<(), Failure> {
        match (asked, outcome) {
            (_, Outcome::Reply { reply, .. }) => self.end(Ok(QuestionReply::Reply(reply))),
            (Asked::Probe, Outcome::Value(value)) => self.probed = Some(value),
            (_, Outcome::Value(value)) => self.end(Ok(QuestionReply::Value(value))),
            (asked, Outcome::TryAgain(call)) => {
                self.exchange.note(ErrorKind::Migrating);
                self.exchange.delay(asked, call, now);
            }
            (_, Outcome::Redirect(redirect)) => {
                self.old = OldConnection::None;
                self.exchange.follow(redirect)?;
            }
        }
        Ok(())
    }

    fn on_failure(&mut self, failure: Failure, is_timeout: bool, now: Boottime) {
        let leave = match self.old {
            OldConnection::Open { .. } if is_timeout => {
                self.old = OldConnection::Aside { earlier: self.exchange.ignored };
                Action::SetAside
            }
            _ => {
                // What waited for the answer of the Sentinels, or of the master, has not left.
                let is_held_back = matches!(failure.kind(), ErrorKind::NotTheMaster | ErrorKind::LostReplica);
                let has_left = self.exchange.is_open() && !is_held_back;
                self.in_doubt |= has_left && self.exchange.in_flight().next().is_some();
                if let OldConnection::Open { .. } = self.old {
                    self.old = OldConnection::None;
                }
                Action::Close
            }
        };
        if self.until <= now || !self.retry.covers(failure.kind().class(&self.exchange.target.kind)) {
            let failure = self.exchange.give_up(failure);
            self.end(Err(failure));
        } else {
            self.exchange.reconnect(failure, now + RETRY_AFTER, leave);
        }
    }

    fn end(&mut self, result: Result<QuestionReply, Failure>) {
        self.result = Some(result);
        if let OldConnection::Aside { .. } = self.old {
            self.exchange.act(Action::ReadAside);
        }
    }
}

impl<E: DerefMut<Target = Exchange>> Conversation for Question<E> {
    fn on(&mut self, event: Event, now: Boottime) {
        match (event, self.old) {
            (Event::Aside(reply), OldConnection::Aside { earlier: 0 }) => {
                // The script changed nothing if it failed.
                self.late = reply.ok().and_then(|value| ScriptReply::read(&value));
                self.old = OldConnection::None;
            }
            (Event::Aside(_), OldConnection::Aside { earlier }) => {
                self.old = OldConnection::Aside { earlier: earlier - 1 };
            }
            _ if self.is_over() => {}
            (Event::Connecting(node), _) => self.exchange.on_connecting(node),
            (Event::Reply(reply), _) => {
                let done = self.exchange.on_reply(reply, now).and_then(|answered| match answered {
                    Some((asked, outcome)) => self.on_outcome(asked, outcome, now),
                    None => Ok(()),
                });
                if let Err(failure) = done {
                    self.on_failure(failure, false, now);
                }
            }
            (Event::Failed(failure), _) => self.on_failure(failure, false, now),
            (Event::TimedOut(failure), _) => self.on_failure(failure, true, now),
            (Event::Message(_) | Event::SubscribeFailed(..) | Event::Aside(_), _) => {}
        }
    }

    fn tick(&mut self, now: Boottime) {
        if self.is_over() {
            return;
        }
        if self.deadline() <= now {
            return self.exchange.act(Action::ReportTimeout);
        }
        self.exchange.open(now);
        if !self.exchange.resume(now) && self.exchange.is_quiet() {
            self.ask(now);
        }
    }

    fn next_action(&mut self) -> Option<Action> {
        self.exchange.next_action()
    }

    fn timeout(&self) -> Option<Boottime> {
        // Nothing is in flight only before the question is asked.
        let asks = self.exchange.is_quiet().then(Boottime::default);
        [self.exchange.timeout(), asks, Some(self.deadline())].into_iter().flatten().min()
    }

    fn is_over(&self) -> bool {
        self.result.is_some()
    }
}

#[cfg(test)]
mod tests;
