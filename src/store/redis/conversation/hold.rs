//! Decides what happens with a request at a server, from the moment it is made until its release.
//!
//! The request combines the [`Negotiation`] about the lock with the [`Exchange`] that carries it.
//! This module decides what each reply and each failure means for both.

use std::time::Duration;

use redis::{ServerError, Value};

use super::exchange::{Asked, Exchange, Outcome};
use super::negotiation::{Command, Negotiation, State};
use super::piecemeal::{Next, Piecemeal};
use super::release::Release;
use super::replication::Copies;
use super::retry::{spread, suggests_wrong_server};
use super::verdict::Verdict;
use crate::lock::past::End;
use crate::lock::request::{self, Request, Terms};
use crate::lock::resource::Resource;
use crate::store::error::Error;
use crate::store::handle::{Grant, Replicas, Standing};
use crate::store::redis::codec::{Call, Lease, ScriptReply};
use crate::store::redis::failure::{ErrorKind, Failure, Stage};
use crate::store::redis::interface::{Action, Conversation, Event};
use crate::store::redis::keys;
use crate::store::redis::target::Kind;
use crate::system::clock::Boottime;
use crate::words::Explained;

/// How long a look at the holders may take, if the ttl is long enough.
const INSPECT_LIMIT: Duration = Duration::from_secs(1);

/// The conversation about one request.
pub(crate) struct HoldConversation {
    pub(crate) exchange: Exchange,
    negotiation: Negotiation,
    request: Request,
    terms: Terms,
    /// The resources of the request, each once.
    pub(crate) resources: Vec<Resource>,
    connect_timeout: Duration,
    /// The renewal under way while the slot of a held lock migrates.
    piecemeal: Option<Piecemeal>,
}

impl HoldConversation {
    /// Begins to make a request at `now`.
    ///
    /// # Errors
    /// The request has no terms, and a lease needs them, or its resources have several slots of a
    /// Cluster.
    pub(crate) fn new(
        exchange: Exchange,
        request: Request,
        replicas: Replicas,
        connect_timeout: Duration,
        now: Boottime,
    ) -> Result<Self, Error> {
        let Some(terms) = request.terms else {
            return Err(Error::Usage("a request to this store needs a ttl".into()));
        };
        let resources: Vec<_> = request::resources(&request.claims).into_iter().cloned().collect();
        if exchange.target.kind == Kind::Cluster {
            check_slots(&resources)?;
        }
        // The rest is for taking the request back if the server does not answer.
        let until = now + connect_timeout / 10 * 9;
        let negotiation = Negotiation::new(terms, request.claims.len(), replicas, until);
        Ok(Self { exchange, negotiation, resources, request, terms, connect_timeout, piecemeal: None })
    }

    /// How long a look at the holders may take. Nothing else happens meanwhile, so a grant that
    /// comes in this time is claimed only afterwards.
    pub(crate) fn inspect_limit(&self) -> Duration {
        INSPECT_LIMIT.min(self.terms.ttl / 4)
    }

    /// Why the server can't be used, once that is known.
    pub(in crate::store::redis) fn failure(&self) -> Option<&Failure> {
        if let State::Failed { failure, .. } = self.negotiation.state() { Some(failure) } else { None }
    }

    /// How the request stands.
    ///
    /// # Errors
    /// The server can't be used, or the grant has too few copies.
    pub(crate) fn standing(&self) -> Result<Standing, Error> {
        self.negotiation.standing(&self.exchange.target)
    }

    /// Begins to release whatever the server may keep for this request; nothing is left to do
    /// where it can't keep anything. `end` tells how the command ended, if it ran.
    pub(crate) fn release(&mut self, end: Option<End>, now: Boottime) -> Option<Release<&mut Exchange>> {
        let (call, held) = self.releasing(end)?;
        // A server that has not answered the request in time gets what is left of the time.
        let is_failed = matches!(self.negotiation.state(), State::Failed { .. });
        let limit = if is_failed { self.connect_timeout / 20 } else { self.connect_timeout };
        Some(Release::new(&mut self.exchange, call, held, limit, now))
    }

    /// Does the same for a hold without a command, and takes the connection with it.
    pub(super) fn into_release(self, now: Boottime) -> Option<Release<Box<Exchange>>> {
        let (call, held) = self.releasing(self.negotiation.held().map(|_| End::KEPT))?;
        Some(Release::new(Box::new(self.exchange), call, held, self.connect_timeout, now))
    }

    /// Begins to give up the place in the queue, which counts the request as busy.
    pub(crate) fn give_up(&mut self, now: Boottime) -> Release<&mut Exchange> {
        self.part_by(Call::give_up(self.request.session, self.resources.clone()), now)
    }

    /// Begins to make the request again without a wait, after it has left the queue.
    pub(crate) fn ask_once_more(&mut self, now: Boottime) -> Release<&mut Exchange> {
        self.part_by(Call::acquire(&Request { wait: false, ..self.request.clone() }, 0, false), now)
    }

    /// Begins to claim a grant at once. The conversation is over when its standing is known, or at
    /// the limit of a connection.
    pub(crate) fn claim(&mut self, now: Boottime) -> Claiming<'_> {
        let commands = self.negotiation.claim();
        self.send_all(commands, now);
        Claiming { until: now + self.connect_timeout, now, hold: self }
    }

    fn part_by(&mut self, call: Call, now: Boottime) -> Release<&mut Exchange> {
        Release::new(&mut self.exchange, call, None, self.connect_timeout, now)
    }

    /// The call that releases what the server may keep, and the grant among it.
    fn releasing(&self, end: Option<End>) -> Option<(Call, Option<Grant>)> {
        let Request { session, job, .. } = &self.request;
        let may_be_kept = self.negotiation.may_be_kept(self.exchange.is_open());
        let call = || Call::release_after(*session, self.resources.clone(), end, job);
        may_be_kept.then(|| (call(), self.negotiation.held().cloned()))
    }

    /// The name of the negotiation's state, for tests that count what they reach.
    #[cfg(test)]
    pub(crate) fn state_name(&self) -> &'static str {
        self.negotiation.state().name()
    }

    fn send_all(&mut self, commands: Vec<Command>, now: Boottime) {
        commands.into_iter().for_each(|command| self.send(command, now));
    }

    fn send(&mut self, command: Command, now: Boottime) {
        let session = self.request.session;
        let asked = Asked::Negotiation(command);
        let is_renewal = |asked| matches!(asked, Asked::Negotiation(Command::Renew { .. }));
        match command {
            Command::Subscribe => {
                let channel = self.exchange.setting.keyspace.channel(&self.resources[0], session);
                self.exchange.act(Action::Subscribe(channel));
            }
            // The renewal in flight reports whatever has happened by now.
            Command::Renew { .. } if self.exchange.in_flight().any(is_renewal) => {}
            Command::Renew { subscribed } => {
                self.exchange.check_master(self.negotiation.reply_timeout(self.connect_timeout), now);
                self.exchange.call(asked, Call::renew(session, self.resources.clone(), subscribed), now);
            }
            Command::Acquire { place, waited, subscribed } => {
                self.exchange.call(asked, Call::acquire_after(waited, &self.request, place, subscribed), now);
            }
            Command::Replicate(replicas) => {
                let timeout = self.negotiation.replica_timeout(self.connect_timeout);
                self.exchange.command(asked, Copies::command(replicas, timeout), now);
            }
        }
    }

    fn on_reply(&mut self, reply: Result<Value, ServerError>, now: Boottime) -> Result<(), Failure> {
        let Some((asked, outcome)) = self.exchange.on_reply(reply, now)? else { return Ok(()) };
        match (asked, outcome) {
            (Asked::Part(resource), outcome) => return self.on_part(resource, outcome, now),
            (_, Outcome::Redirect(redirect)) => return self.exchange.follow(redirect),
            (Asked::Negotiation(command), Outcome::Reply { reply, sent }) => {
                return self.on_answer(command, reply, sent, now);
            }
            (Asked::Negotiation(Command::Replicate(_)), Outcome::Value(value)) => {
                let copies = Copies::of(&value).ok_or_else(|| self.exchange.failure(ErrorKind::UnexpectedReply))?;
                self.exchange.served();
                self.negotiation.on_replicated(copies);
            }
            (Asked::Negotiation(Command::Renew { .. }), Outcome::TryAgain(_)) if self.negotiation.held().is_some() => {
                self.renew_piecemeal(now);
            }
            (asked, Outcome::TryAgain(call)) => self.exchange.delay(asked, call, now),
            _ => return Err(self.exchange.failure(ErrorKind::UnexpectedReply)),
        }
        Ok(())
    }

    fn on_answer(
        &mut self,
        command: Command,
        reply: ScriptReply,
        sent: Boottime,
        now: Boottime,
    ) -> Result<(), Failure> {
        // A replica that was the primary knows no session and refuses every request. If its answer
        // ended the outage, the client would ask it again and again without a pause.
        if reply != ScriptReply::Unknown {
            self.exchange.served();
        }
        self.piecemeal = None;
        let commands = self.negotiation.on_reply(command, reply, sent, now);
        let commands = commands.map_err(|kind| self.exchange.failure(kind))?;
        self.send_all(commands, now);
        Ok(())
    }

    /// Renews the resources one by one: until all keys are on one node, no script gets them
    /// together.
    fn renew_piecemeal(&mut self, now: Boottime) {
        let piecemeal = self.piecemeal.get_or_insert_with(|| Piecemeal::new(self.resources.len(), now));
        for resource in piecemeal.left() {
            for lease in Lease::ALL {
                let name = self.resources[resource].clone();
                let call = Call::renew_alone(self.request.session, name, self.terms.ttl, lease);
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
        match (piecemeal.next(), self.negotiation.held()) {
            (Next::Renewed { since, lease }, Some(grant)) => {
                let Grant { tokens, slots, last, .. } = grant.clone();
                let granted = ScriptReply::Granted { lease: Some(lease), tokens, slots, last };
                self.on_answer(Command::Renew { subscribed: false }, granted, since, now)
            }
            (Next::Redirect(redirect), _) => self.exchange.follow(redirect),
            _ => Err(self.exchange.failure(ErrorKind::Migrating)),
        }
    }

    fn on_subscribe_failed(&mut self, error: &ServerError) -> Result<(), Failure> {
        // A holder does without: the next renewal tells of a break.
        if self.negotiation.held().is_some() {
            return Ok(());
        }
        match self.exchange.judge(error) {
            Verdict::Failure(kind) => Err(self.exchange.failure(kind)),
            Verdict::Redirect(redirect) => self.exchange.follow(redirect),
            Verdict::NoScript | Verdict::TryAgain => Err(self.exchange.failure(ErrorKind::Closed(Stage::Used))),
        }
    }

    fn on_failure(&mut self, failure: Failure, now: Boottime) {
        let failure = failure.with_keys(|| self.exchange.setting.keyspace.shown(&self.resources));
        let (retry, until) = self.negotiation.persistence();
        let is_sent = self.exchange.is_open();
        let is_final = !retry.covers(failure.kind(), &self.exchange.target.kind);
        if !is_final && until.is_none_or(|until| now < until) {
            let failures = self.exchange.failures().saturating_add(1);
            let pause = spread(self.negotiation.retry_after(failures), self.request.session, failures);
            self.negotiation.on_disconnect(is_sent);
            self.exchange.reconnect(failure, now + pause, Action::Close);
            return;
        }
        // A server that refuses the login may still have carried out the request behind it.
        let is_answered = self.exchange.in_flight().next().is_none()
            || suggests_wrong_server(failure.kind(), &self.exchange.target.kind);
        let failure = self.exchange.give_up(failure);
        self.negotiation.on_failure(failure, is_sent && !(is_final && is_answered));
    }

    /// When the server has been silent for too long.
    fn limit(&self) -> Option<Boottime> {
        if let State::Asking { until, .. } = self.negotiation.state() {
            return Some(*until);
        }
        let timeout = self.negotiation.reply_timeout(self.connect_timeout);
        self.exchange.oldest_sent().map(|sent| sent + timeout)
    }
}

/// The conversation until it is known whether a grant is claimed.
pub(crate) struct Claiming<'h> {
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
                let commands = self.negotiation.on_message();
                self.send_all(commands, now);
                Ok(())
            }
            Event::Reply(reply) => self.on_reply(reply, now),
            Event::SubscribeFailed(_, error) => self.on_subscribe_failed(&error),
            Event::Failed(failure) | Event::TimedOut(failure) => Err(failure),
            Event::Aside(_) => Ok(()),
        };
        if let Err(failure) = result {
            self.on_failure(failure, now);
        }
    }

    fn tick(&mut self, now: Boottime) {
        self.negotiation.expire(now);
        if self.is_over() {
            return;
        }
        if self.limit().is_some_and(|limit| limit <= now) {
            return self.exchange.act(Action::ReportTimeout);
        }
        let commands = if self.exchange.open(now) {
            self.negotiation.on_connect()
        } else if !self.exchange.resume(now) && self.exchange.is_quiet() {
            self.negotiation.tick(now)
        } else {
            return;
        };
        self.send_all(commands, now);
    }

    fn next_action(&mut self) -> Option<Action> {
        self.exchange.next_action()
    }

    fn timeout(&self) -> Option<Boottime> {
        if self.is_over() {
            return None;
        }
        let due = if self.exchange.is_quiet() { self.negotiation.due() } else { None };
        [self.exchange.timeout(), due, self.limit()].into_iter().flatten().min()
    }

    fn is_over(&self) -> bool {
        self.negotiation.is_over()
    }
}

/// Checks that all resources have the same slot: a Cluster runs a script only on the keys of one
/// slot.
fn check_slots(resources: &[Resource]) -> Result<(), Error> {
    let [first, others @ ..] = resources else { return Ok(()) };
    match others.iter().find(|name| keys::slot(name) != keys::slot(first)) {
        None => Ok(()),
        Some(other) => {
            // If one name has a tag, the other can take it, and users of the first name keep it.
            let advice = match (keys::own_tag(first.as_str()), keys::own_tag(other.as_str())) {
                (Some(tag), _) => format!("as in '{first}' and '{{{tag}}}{other}'"),
                (None, Some(tag)) => format!("as in '{{{tag}}}{first}' and '{other}'"),
                (None, None) => format!("as in '{{tag}}{first}' and '{{tag}}{other}'"),
            };
            let what =
                format!("'{first}' and '{other}' are in different slots of the cluster, so they can't be had together");
            Err(Error::Refused(Explained::new(what, format!("give both names the same {{tag}}, {advice}"))))
        }
    }
}

#[cfg(test)]
mod tests;
