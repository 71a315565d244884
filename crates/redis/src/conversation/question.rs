//! Gets the reply to one command or script call, over as many connections as it takes.

use std::time::Duration;

use redis::{Cmd, Value};

use super::exchange::{Asked, Exchange, Outcome};
use crate::codec::{Call, ScriptReply};
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Conversation, Event};
use rlock_store::lease::{Retry, Server as _};
use rlock_sys::clock::Boottime;

/// The pause before a server is asked again after a failure.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// A question, idempotent if it is a call.
pub struct Question<'e> {
    exchange: &'e mut Exchange,
    text: Text,
    retry: Retry,
    /// When to give up.
    until: Boottime,
    /// The answer of the probe.
    probed: Option<Value>,
    result: Option<Result<QuestionReply, Failure>>,
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

impl<'e> Question<'e> {
    /// Calls a script.
    pub fn call(exchange: &'e mut Exchange, call: Call, retry: Retry, until: Boottime) -> Self {
        Self::new(exchange, Text::Call(Box::new(call)), retry, until)
    }

    /// Sends a command, and in the same write a probe before it, which the server may fail.
    pub(crate) fn command(exchange: &'e mut Exchange, probe: Option<Cmd>, command: Cmd, until: Boottime) -> Self {
        Self::new(exchange, Text::Commands { probe, command }, Retry::Never, until)
    }

    fn new(exchange: &'e mut Exchange, text: Text, retry: Retry, until: Boottime) -> Self {
        exchange.ignore_earlier();
        exchange.line_mut().served();
        Self { exchange, text, retry, until, probed: None, result: None }
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
        [if self.is_over() { "over" } else { "asking" }, self.exchange.state_name()]
    }

    fn ask(&mut self, now: Boottime) {
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
            (_, Outcome::Redirect(redirect)) => self.exchange.follow(redirect)?,
        }
        Ok(())
    }

    fn on_failure(&mut self, failure: Failure, now: Boottime) {
        if self.until <= now || !self.retry.covers(failure.kind().class(&self.exchange.target.kind)) {
            let failure = self.exchange.give_up(failure);
            self.end(Err(failure));
        } else {
            self.exchange.reconnect(failure, now + RETRY_AFTER);
        }
    }

    fn end(&mut self, result: Result<QuestionReply, Failure>) {
        self.result = Some(result);
    }
}

impl Conversation for Question<'_> {
    fn on(&mut self, event: Event, now: Boottime) {
        let done = match event {
            _ if self.is_over() => return,
            Event::Connecting(node) => return self.exchange.on_connecting(node),
            Event::Message(_) | Event::SubscribeFailed(..) | Event::Aside(_) => return,
            Event::Failed(failure) | Event::TimedOut(failure) => Err(failure),
            Event::Reply(reply) => self.exchange.on_reply(reply, now).and_then(|answered| match answered {
                Some((asked, outcome)) => self.on_outcome(asked, outcome, now),
                None => Ok(()),
            }),
        };
        if let Err(failure) = done {
            self.on_failure(failure, now);
        }
    }

    fn tick(&mut self, now: Boottime) {
        if self.is_over() {
            return;
        }
        if self.until <= now {
            return self.exchange.act(Action::ReportTimeout);
        }
        self.exchange.open(now);
        if self.exchange.resume(now).is_none() && self.exchange.is_quiet() {
            self.ask(now);
        }
    }

    fn next_action(&mut self) -> Option<Action> {
        self.exchange.next_action()
    }

    fn timeout(&self) -> Option<Boottime> {
        // Nothing is in flight only before the question is asked.
        let asks = self.exchange.is_quiet().then(Boottime::default);
        [self.exchange.timeout(), asks, Some(self.until)].into_iter().flatten().min()
    }

    fn is_over(&self) -> bool {
        self.result.is_some()
    }
}

#[cfg(test)]
mod tests;
