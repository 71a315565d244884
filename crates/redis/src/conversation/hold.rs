//! Decides what happens with a request at a server, from the moment it is made until its release.
//!
//! The request combines a [`Requester`] with an [`Exchange`] that carries the commands of no other.
//! This module decides what each reply and each failure means for both.

use std::time::Duration;

use redis::{ServerError, Value};

use super::exchange::{Asked, Exchange, Outcome};
use super::piecemeal::{Next, Piecemeal};
use super::release::Release;
use super::replication::Copies;
use super::requester::Requester;
use crate::codec::{Call, Lease, ScriptReply};
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Conversation, Event};
use rlock_model::past::End;
use rlock_model::request::Request;
use rlock_model::resource::Resource;
use rlock_store::error::Error;
use rlock_store::handle::{Grant, Replicas, Standing};
use rlock_store::lease_client::{Command, LeaseReply, State};
use rlock_sys::clock::Boottime;

/// How long a look at the holders may take, if the ttl is long enough.
const INSPECT_LIMIT: Duration = Duration::from_secs(1);

/// The conversation about one request.
pub struct HoldConversation {
    /// The connection of this request, whose actions the owner carries out.
    pub exchange: Exchange,
    session: Requester,
    request: Request,
    /// The copies of the grant that must exist before it counts.
    replicas: Replicas,
    /// The renewal under way while the slot of a held lock migrates.
    piecemeal: Option<Piecemeal>,
}

impl HoldConversation {
    /// Begins to make a request at `now`.
    ///
    /// # Errors
    /// The request cannot be made in this store.
    pub fn new(
        exchange: Exchange,
        request: Request,
        replicas: Replicas,
        connect_timeout: Duration,
        now: Boottime,
    ) -> Result<Self, Error> {
        // The rest is for taking the request back if the server does not answer.
        let until = now + connect_timeout / 10 * 9;
        let session = Requester::new(&request, replicas != Replicas::default(), &exchange, connect_timeout, until)?;
        Ok(Self { exchange, session, request, replicas, piecemeal: None })
    }

    /// The resources of the request, each once.
    pub fn resources(&self) -> &[Resource] {
        &self.session.resources
    }

    /// How long a look at the holders may take. Nothing else happens meanwhile, so a grant that
    /// comes in this time is claimed only afterwards.
    pub fn inspect_limit(&self) -> Duration {
        INSPECT_LIMIT.min(self.session.client.ttl() / 4)
    }

    /// Why the server can't be used, once that is known.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        if let State::Failed { failure, .. } = self.session.client.state() { Some(failure) } else { None }
    }

    /// How the request stands.
    ///
    /// # Errors
    /// The server can't be used, or the grant has too few copies.
    pub fn standing(&self) -> Result<Standing, Error> {
        self.session.client.standing()
    }

    /// Begins to release whatever the server may keep for this request; nothing is left to do
    /// where it can't keep anything. `end` tells how the command ended, if it ran.
    pub fn release(&mut self, end: Option<End>, now: Boottime) -> Option<Release<&mut Exchange>> {
        let (call, held) = self.releasing(end)?;
        // A server that has not answered the request in time gets what is left of the time.
        let is_failed = matches!(self.session.client.state(), State::Failed { .. });
        let limit = if is_failed { self.session.connect_timeout / 20 } else { self.session.connect_timeout };
        Some(Release::new(&mut self.exchange, call, held, limit, now))
    }

    /// Does the same beside the loop, and takes the connection with it. Nothing is to be asked of
    /// this conversation any more.
    pub fn release_early(&mut self, end: Option<End>, now: Boottime) -> Option<Release<Box<Exchange>>> {
        let (call, held) = self.releasing(end)?;
        let other = self.exchange.another();
        let exchange = Box::new(std::mem::replace(&mut self.exchange, other));
        Some(Release::new(exchange, call, held, self.session.connect_timeout, now))
    }

    /// Does the same for a hold without a command, and takes the connection with it.
    pub(super) fn into_release(self, now: Boottime) -> Option<Release<Box<Exchange>>> {
        let (call, held) = self.releasing(self.session.client.held().map(|_| End::KEPT))?;
        Some(Release::new(Box::new(self.exchange), call, held, self.session.connect_timeout, now))
    }

    /// Begins to give up the place in the queue, which counts the request as busy.
    pub fn give_up(&mut self, now: Boottime) -> Release<&mut Exchange> {
        self.part_by(Call::give_up(self.session.id, self.session.resources.clone()), now)
    }

    /// Begins to make the request again without a wait, after it has left the queue.
    pub fn ask_once_more(&mut self, now: Boottime) -> Release<&mut Exchange> {
        self.part_by(Call::acquire(&Request { wait: false, ..self.request.clone() }, 0, false), now)
    }

    /// Begins to claim a grant at once. The conversation is over when its standing is known, or at
    /// the limit of a connection.
    pub fn claim(&mut self, now: Boottime) -> Claiming<'_> {
        let commands = self.session.client.claim();
        self.send(commands, now);
        Claiming { until: now + self.session.connect_timeout, now, hold: self }
    }

    fn part_by(&mut self, call: Call, now: Boottime) -> Release<&mut Exchange> {
        Release::new(&mut self.exchange, call, None, self.session.connect_timeout, now)
    }

    /// The call that releases what the server may keep, and the grant among it.
    fn releasing(&self, end: Option<End>) -> Option<(Call, Option<Grant>)> {
        let may_be_kept = self.session.client.may_be_kept(self.exchange.is_open());
        let held = || self.session.client.held().cloned();
        may_be_kept.then(|| (self.session.release(end, &self.request.job), held()))
    }

    /// Whether the lease client has made a waiting request again since the last call.
    pub(crate) fn take_asked_again(&mut self) -> bool {
        self.session.client.take_asked_again()
    }

    /// The name of the client's state, for tests that count what they reach.
    pub fn state_name(&self) -> &'static str {
        self.session.client.state().name()
    }

    fn send(&mut self, commands: Vec<Command>, now: Boottime) {
        let is_renewal = |asked| matches!(asked, Asked::Session(_, Command::Renew));
        for command in commands {
            // The renewal in flight reports whatever has happened by now.
            if command != Command::Renew || !self.exchange.in_flight().any(is_renewal) {
                self.session.send(command, Some(&self.request), &mut self.exchange, now);
            }
        }
    }

    fn on_reply(&mut self, reply: Result<Value, ServerError>, now: Boottime) -> Result<(), Failure> {
        let Some((asked, outcome)) = self.exchange.on_reply(reply, now)? else { return Ok(()) };
        match (asked, outcome) {
            (Asked::Part(resource), outcome) => return self.on_part(resource, outcome, now),
            (_, Outcome::Redirect(redirect)) => return self.exchange.follow(redirect),
            (Asked::Session(_, command), Outcome::Reply { reply, sent }) => {
                return self.on_answer(command, reply.into(), sent, now);
            }
            (Asked::Copies, Outcome::Value(value)) => {
                let copies = Copies::of(&value).ok_or_else(|| self.exchange.failure(ErrorKind::UnexpectedReply))?;
                self.exchange.served();
                self.session.client.on_replicated(copies.lacking(self.replicas, &self.exchange.target.shown()));
            }
            (Asked::Session(_, Command::Renew), Outcome::TryAgain(_)) if self.session.client.held().is_some() => {
                self.renew_piecemeal(now);
            }
            (asked, Outcome::TryAgain(call)) => {
                // A waiter has its place all the same.
                if let State::Asking { .. } = self.session.client.state() {
                    self.exchange.note(ErrorKind::Migrating);
                }
                self.exchange.delay(asked, call, now);
            }
            _ => return Err(self.exchange.failure(ErrorKind::UnexpectedReply)),
        }
        Ok(())
    }

    fn on_answer(&mut self, command: Command, reply: LeaseReply, sent: Boottime, now: Boottime) -> Result<(), Failure> {
        self.exchange.answered(&reply);
        self.piecemeal = None;
        let commands = self.session.client.on_reply(command, reply, sent, now);
        let commands = commands.ok_or_else(|| self.exchange.failure(ErrorKind::UnexpectedReply))?;
        self.send(commands, now);
        if let State::Replicating { .. } = self.session.client.state() {
            let timeout = self.session.client.replica_timeout(self.session.connect_timeout);
            self.exchange.command(Asked::Copies, Copies::command(self.replicas, timeout), now);
        }
        Ok(())
    }

    /// Renews the resources one by one: until all keys are on one node, no script gets them
    /// together.
    fn renew_piecemeal(&mut self, now: Boottime) {
        let piecemeal = self.piecemeal.get_or_insert_with(|| Piecemeal::new(self.session.resources.len(), now));
        for resource in piecemeal.left() {
            for lease in Lease::ALL {
                let name = self.session.resources[resource].clone();
                let call = Call::renew_alone(self.session.id, name, self.session.client.ttl(), lease);
                self.exchange.call(Asked::Part(resource), call, now);
            }
        }
    }

    /// A node has replied about a key that it may or may not have.
    fn on_part(&mut self, resource: usize, outcome: Outcome, now: Boottime) -> Result<(), Failure> {
        let Some(piecemeal) = &mut self.piecemeal else { return Ok(()) };
        match outcome {
            Outcome::Reply { reply: ScriptReply::Renewed(lease), .. } => piecemeal.renewed(resource, lease),
            Outcome::Redirect(redirect) => piecemeal.moved(redirect),
            Outcome::Reply { reply: ScriptReply::Unknown, .. } | Outcome::TryAgain(_) => {}
            _ => return Err(self.exchange.failure(ErrorKind::UnexpectedReply)),
        }
        if self.exchange.in_flight().any(|asked| matches!(asked, Asked::Part(_))) {
            return Ok(());
        }
        match (piecemeal.next(), self.session.client.held()) {
            (Next::Renewed { since, lease }, Some(grant)) => {
                let granted = LeaseReply::Granted { lease, grant: grant.clone() };
                self.on_answer(Command::Renew, granted, since, now)
            }
            (Next::Redirect(redirect), _) => self.exchange.follow(redirect),
            _ => Err(self.exchange.failure(ErrorKind::Migrating)),
        }
    }

    fn on_failure(&mut self, failure: Failure, now: Boottime) {
        let failure = self.session.named(failure, &self.exchange);
        let (retry, until) = self.session.client.persistence();
        let is_sent = self.exchange.may_have_sent(failure.kind());
        let is_final = !retry.covers(failure.kind().class(&self.exchange.target.kind));
        if !is_final && until.is_none_or(|until| now < until) {
            let failures = self.exchange.failures().saturating_add(1);
            let pause = self.session.client.retry_after(failures, self.session.id);
            self.session.client.on_disconnect(is_sent);
            self.exchange.reconnect(failure, now + pause, Action::Close);
            return;
        }
        // A server that refuses the login may still have carried out the request behind it.
        let is_answered = self.exchange.in_flight().next().is_none();
        let failure = self.exchange.give_up(failure);
        self.session.client.on_failure(failure, is_sent && !(is_final && is_answered));
    }

    /// When the server has been silent for too long.
    fn limit(&self) -> Option<Boottime> {
        if let State::Asking { until, .. } = self.session.client.state() {
            return Some(*until);
        }
        self.exchange.oldest_sent().map(|sent| sent + self.session.client.reply_timeout(self.session.connect_timeout))
    }
}

/// The conversation until it is known whether a grant is claimed.
pub struct Claiming<'h> {
    hold: &'h mut HoldConversation,
    until: Boottime,
    now: Boottime,
}

impl Conversation for Claiming<'_> {
    fn on(&mut self, event: Event, now: Boottime) {
        self.hold.on(event, now);
    }

    fn tick(&mut self, now: Boottime) {
        self.now = now;
        self.hold.tick(now);
    }

    fn next_action(&mut self) -> Option<Action> {
        self.hold.next_action()
    }

    fn timeout(&self) -> Option<Boottime> {
        self.hold.timeout().into_iter().chain([self.until]).min()
    }

    fn is_over(&self) -> bool {
        let is_open = matches!(self.hold.standing(), Ok(Standing::Asking | Standing::Waiting));
        !is_open || self.until <= self.now
    }
}

impl Conversation for HoldConversation {
    fn on(&mut self, event: Event, now: Boottime) {
        let result = match event {
            Event::Connecting(node) => {
                self.exchange.on_connecting(node);
                Ok(())
            }
            Event::Message(_) => {
                let commands = self.session.client.on_message();
                self.send(commands, now);
                Ok(())
            }
            Event::Reply(reply) => self.on_reply(reply, now),
            Event::SubscribeFailed(_, error) => self.session.on_subscribe_failed(&error, &mut self.exchange),
            Event::Failed(failure) | Event::TimedOut(failure) => Err(failure),
            Event::Aside(_) => Ok(()),
        };
        if let Err(failure) = result {
            self.on_failure(failure, now);
        }
    }

    fn tick(&mut self, now: Boottime) {
        self.session.client.expire(now);
        if self.is_over() {
            return;
        }
        if self.limit().is_some_and(|limit| limit <= now) {
            return self.exchange.act(Action::ReportTimeout);
        }
        let commands = if self.exchange.open(now) {
            self.session.client.on_connect()
        } else if !self.exchange.resume(now) && self.exchange.is_quiet() {
            self.session.client.tick(now)
        } else {
            return;
        };
        self.send(commands, now);
    }

    fn next_action(&mut self) -> Option<Action> {
        self.exchange.next_action()
    }

    fn timeout(&self) -> Option<Boottime> {
        if self.is_over() {
            return None;
        }
        let due = if self.exchange.is_quiet() { self.session.client.due() } else { None };
        [self.exchange.timeout(), due, self.limit()].into_iter().flatten().min()
    }

    fn is_over(&self) -> bool {
        self.session.client.is_over()
    }
}

#[cfg(test)]
mod tests;
