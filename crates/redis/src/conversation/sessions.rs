//! Decides what happens with the requests of one session or of many that share a connection to a
//! server, from the moment they are made until their release.
//!
//! One [`Exchange`] carries the commands of all. An error reply that is about one command concerns
//! its session only. A failed connection concerns all sessions, and each goes on over the next one.
//! In a Cluster, where the slots of two sessions may be on two nodes, each session has a
//! conversation of its own, and a redirect moves its connection to the other node.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use redis::{ServerError, Value};

use self::member::{Member, Trouble, Turn};
use self::releasing::Aside;
use super::exchange::{Asked, Exchange, Outcome};
use super::piecemeal::{Next, Piecemeal};
use super::replication::Copies;
use super::requester::Requester;
use crate::codec::{Call, Lease, ScriptReply};
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Conversation, Event, Redirect};
use crate::keys;
use rlock_model::request::{Request, SessionId};
use rlock_store::handle::AcquireOptions;
use rlock_store::lease_client::{Command, LeaseReply, State};
use rlock_store::network::{NetworkError, Stage};
use rlock_store::sessions;
use rlock_sys::clock::Boottime;
use rlock_sys::timers::Timers;

mod member;
mod releasing;

/// How long a connection without sessions is trusted. A firewall may forget it after longer
/// silence.
const TRUSTED: Duration = Duration::from_secs(60);

/// The conversation about the requests of sessions that share a connection.
pub struct SessionsConversation {
    exchange: Exchange,
    connect_timeout: Duration,
    sessions: BTreeMap<SessionId, Member>,
    /// When which session needs attention.
    timers: Timers<SessionId>,
    /// When the server last answered on this connection.
    heard: Option<Boottime>,
    /// The connection that was set aside, if a release left over it.
    aside: Option<Aside>,
    /// Whether a failure for good has left the connection to the releases. It may be that of a
    /// login.
    is_spent: bool,
    reports: VecDeque<(SessionId, sessions::Report)>,
}

impl SessionsConversation {
    /// No sessions yet. A request fails if the server does not answer within `connect_timeout`.
    pub fn new(exchange: Exchange, connect_timeout: Duration) -> Self {
        Self {
            exchange,
            connect_timeout,
            sessions: BTreeMap::new(),
            timers: Timers::default(),
            heard: None,
            aside: None,
            is_spent: false,
            reports: VecDeque::new(),
        }
    }

    /// The connection of the sessions, whose actions the owner carries out.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Whether no session is left.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The names of the state of a session whose connection no other uses, for tests that count
    /// what they reach.
    pub fn sole_state_name(&self) -> Option<&'static str> {
        let member = self.sessions.values().next().filter(|_| self.sessions.len() == 1)?;
        Some(if member.releasing.is_some() { "releasing" } else { member.session.client.state().name() })
    }

    /// Begins to make a request at `now`.
    pub fn acquire(&mut self, request: Request, options: AcquireOptions, now: Boottime) {
        let id = request.session;
        let from = options.from.max(now);
        // The rest is for taking the request back if the server does not answer.
        let until = from + self.connect_timeout / 10 * 9;
        let session = match Requester::new(&request, options, &self.exchange, self.connect_timeout, until) {
            Ok(session) => session,
            Err(error) => return self.reports.push_back((id, sessions::Report::Standing(Err(error)))),
        };
        let is_old = self.sessions.is_empty() && self.heard.is_some_and(|heard| now - heard > TRUSTED);
        if is_old || self.is_spent {
            self.exchange.rest();
            self.lose_connection(|_| true);
        }
        if self.sessions.is_empty() {
            self.exchange.open_from(options.from);
        }
        self.sessions.insert(id, Member::new(session, request));
        if self.exchange.is_closed() {
            self.schedule(id);
        } else {
            self.begin(id, now);
        }
    }

    /// The number of the place of a session in the queue, while it waits.
    pub fn place(&self, id: SessionId) -> Option<u64> {
        self.sessions.get(&id)?.session.client.place()
    }

    /// Begins to give up the place of a session in the queue, which counts the request as busy. The
    /// report tells whether it was granted in the meantime.
    pub fn give_up(&mut self, id: SessionId, now: Boottime) {
        let Some(member) = self.sessions.get_mut(&id) else { return };
        let commands = member.session.client.give_up(now + self.connect_timeout);
        if !commands.is_empty() {
            self.ignore_earlier(id);
            self.send_if_open(id, commands, now);
        }
    }

    /// Why the server can't be used, once that is known of a session.
    pub fn failure(&self, id: SessionId) -> Option<&Failure> {
        let member = self.sessions.get(&id)?;
        if let State::Failed { failure, .. } = member.session.client.state() { Some(failure) } else { None }
    }

    /// Why the server has not answered a session for a while.
    pub fn trouble(&self, id: SessionId) -> Option<&Failure> {
        let own = self.sessions.get(&id).and_then(|member| member.trouble.as_ref());
        own.map(|trouble| &trouble.failure).or(self.exchange.outage())
    }

    /// Whether the server did not know a waiting session since the last call, so that the session
    /// has made its request again.
    pub fn take_asked_again(&mut self, id: SessionId) -> bool {
        self.sessions.get_mut(&id).is_some_and(|member| member.session.client.take_asked_again())
    }

    /// Whether there is a report to hand out.
    pub fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Hands out the next report.
    pub fn next_report(&mut self) -> Option<(SessionId, sessions::Report)> {
        self.reports.pop_front()
    }

    /// Sends what a session has to say first on a connection, or again after an error reply.
    fn begin(&mut self, id: SessionId, now: Boottime) {
        let Some(member) = self.sessions.get_mut(&id) else { return };
        if member.releasing.is_some() {
            self.send_release(id, now);
        } else {
            let commands = member.session.client.on_connect();
            self.send(id, commands, now);
        }
    }

    /// Sends commands of a session, or leaves what it has to say to the next connection.
    fn send_if_open(&mut self, id: SessionId, commands: Vec<Command>, now: Boottime) {
        if self.exchange.is_closed() { self.schedule(id) } else { self.send(id, commands, now) }
    }

    fn send(&mut self, id: SessionId, commands: Vec<Command>, now: Boottime) {
        let Some(member) = self.sessions.get_mut(&id) else { return };
        for command in commands {
            let request = member.request.as_deref();
            if member.session.send(command, request, &mut self.exchange, now) {
                member.turn = Turn::InFlight { sent: now };
            }
        }
        self.schedule(id);
    }

    /// Moves the timer of a session to the instant at which the session needs attention.
    fn schedule(&mut self, id: SessionId) {
        let Some(member) = self.sessions.get_mut(&id) else { return };
        self.timers.set(id, member.next(self.heard));
    }

    fn on_reply(&mut self, reply: Result<Value, ServerError>, now: Boottime) -> Result<(), Failure> {
        self.heard = Some(now);
        let asked = self.exchange.in_flight().next();
        match (asked, self.exchange.on_reply(reply, now)) {
            (_, Ok(None)) => {}
            (Some(Asked::Part(id, resource)), Ok(Some((_, outcome)))) => {
                return self.on_part(id, resource, outcome, now);
            }
            (_, Ok(Some((_, Outcome::Redirect(redirect))))) => return self.follow(redirect),
            (Some(Asked::Session(id, command)), Ok(Some((_, Outcome::Reply { reply, sent })))) => {
                self.on_answer(id, command, reply.into(), sent, now);
            }
            (Some(Asked::Release(id)), Ok(Some((_, Outcome::Reply { reply, .. })))) => {
                self.on_released(id, reply.into(), now);
            }
            (Some(Asked::Copies(id)), Ok(Some((_, Outcome::Value(value))))) => self.on_copies(id, &value, now)?,
            (Some(asked), Ok(Some((_, Outcome::TryAgain(call))))) => self.on_try_again(asked, call, now),
            (Some(asked), Err(failure)) if failure.kind().concerns_one_command() => {
                self.on_refused(asked, failure, now);
            }
            (asked, Err(failure)) => {
                if let Some(member) = asked.and_then(|asked| self.sessions.get_mut(&asked.session()?)) {
                    // The server has carried nothing out.
                    member.turn = Turn::Quiet;
                }
                return Err(failure);
            }
            (_, Ok(Some(_))) => return Err(self.exchange.failure(ErrorKind::UnexpectedReply)),
        }
        Ok(())
    }

    fn on_answer(&mut self, id: SessionId, command: Command, reply: LeaseReply, sent: Boottime, now: Boottime) {
        let is_trouble_over = self.exchange.answered(&reply);
        let Some(member) = self.sessions.get_mut(&id) else { return };
        member.turn = Turn::Quiet;
        member.piecemeal = None;
        let was_waiting = matches!(member.session.client.state(), State::Waiting { .. });
        let Some(commands) = member.session.client.on_reply(command, reply, sent, now) else {
            return self.on_refused(
                Asked::Session(id, command),
                self.exchange.failure(ErrorKind::UnexpectedReply),
                now,
            );
        };
        if is_trouble_over {
            member.trouble = None;
        }
        let is_changed = match member.session.client.state() {
            State::Asking { .. } => false,
            State::Waiting { .. } => !was_waiting,
            State::Replicating { .. } => {
                if commands.is_empty() {
                    let timeout = member.session.client.replica_timeout(self.connect_timeout);
                    let command = Copies::command(member.session.replicas, timeout);
                    self.exchange.command(Asked::Copies(id), command, now);
                    member.turn = Turn::InFlight { sent: now };
                }
                false
            }
            _ => true,
        };
        if member.session.client.held().is_some() {
            member.request = None;
        }
        if is_changed {
            self.report(id);
        }
        self.send(id, commands, now);
    }

    /// The replicas have answered.
    fn on_copies(&mut self, id: SessionId, reply: &Value, now: Boottime) -> Result<(), Failure> {
        let copies = Copies::of(reply).ok_or_else(|| self.exchange.failure(ErrorKind::UnexpectedReply))?;
        self.exchange.served();
        let Some(member) = self.sessions.get_mut(&id) else { return Ok(()) };
        member.turn = Turn::Quiet;
        let lacking = copies.lacking(member.session.replicas, &self.exchange.target.shown());
        member.session.client.on_replicated(lacking);
        self.report(id);
        self.send(id, vec![], now);
        Ok(())
    }

    /// No node has all the keys of a call at the moment.
    fn on_try_again(&mut self, asked: Asked, call: Call, now: Boottime) {
        let member = asked.session().and_then(|id| self.sessions.get(&id));
        let Some(client) = member.map(|member| &member.session.client) else { return };
        match asked {
            Asked::Session(id, Command::Renew) if client.held().is_some() => return self.renew_piecemeal(id, now),
            // A waiter has its place all the same.
            Asked::Session(..) if !matches!(client.state(), State::Asking { .. }) => {}
            _ => self.exchange.note(ErrorKind::Migrating),
        }
        self.exchange.delay(asked, call, now);
        if let Some(member) = asked.session().and_then(|id| self.sessions.get_mut(&id)) {
            member.turn = Turn::Delayed;
        }
    }

    /// Renews the resources one by one: until all keys are on one node, no script gets them
    /// together.
    fn renew_piecemeal(&mut self, id: SessionId, now: Boottime) {
        let Some(Member { session, piecemeal, .. }) = self.sessions.get_mut(&id) else { return };
        let piecemeal = piecemeal.get_or_insert_with(|| Box::new(Piecemeal::new(session.resources.len(), now)));
        for resource in piecemeal.left() {
            for lease in Lease::ALL {
                let name = session.resources[resource].clone();
                let call = Call::renew_alone(id, name, session.client.ttl(), lease);
                self.exchange.call(Asked::Part(id, resource), call, now);
            }
        }
    }

    /// A node has replied about a key that it may or may not have.
    fn on_part(&mut self, id: SessionId, resource: usize, outcome: Outcome, now: Boottime) -> Result<(), Failure> {
        let Some(Member { session, piecemeal: Some(piecemeal), .. }) = self.sessions.get_mut(&id) else {
            return Ok(());
        };
        match outcome {
            Outcome::Reply { reply: ScriptReply::Renewed(lease), .. } => piecemeal.renewed(resource, lease),
            Outcome::Redirect(redirect) => piecemeal.moved(redirect),
            Outcome::Reply { reply: ScriptReply::Unknown, .. } | Outcome::TryAgain(_) => {}
            _ => return Err(self.exchange.failure(ErrorKind::UnexpectedReply)),
        }
        if self.exchange.in_flight().any(|asked| matches!(asked, Asked::Part(..))) {
            return Ok(());
        }
        match (piecemeal.next(), session.client.held()) {
            (Next::Renewed { since, lease }, Some(grant)) => {
                let granted = LeaseReply::Granted { lease, grant: grant.clone() };
                self.on_answer(id, Command::Renew, granted, since, now);
                Ok(())
            }
            (Next::Redirect(redirect), _) => self.follow(redirect),
            _ => Err(self.exchange.failure(ErrorKind::Migrating)),
        }
    }

    /// Goes to the node that has the resources. What was in flight is said there.
    fn follow(&mut self, redirect: Redirect) -> Result<(), Failure> {
        self.exchange.follow(redirect)?;
        self.lose_connection(|_| false);
        Ok(())
    }

    /// Takes in that there is no connection. `has_left` says whether a command of an instant may
    /// have left over the last one.
    fn lose_connection(&mut self, has_left: impl Fn(Boottime) -> bool) {
        (self.heard, self.is_spent) = (None, false);
        self.sessions.values_mut().for_each(|member| member.on_disconnect(&has_left));
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        ids.into_iter().for_each(|id| self.schedule(id));
    }

    /// A command of a session got an error reply that is about this command.
    fn on_refused(&mut self, asked: Asked, failure: Failure, now: Boottime) {
        self.exchange.served();
        let Some(id) = asked.session() else { return };
        let Some(member) = self.sessions.get_mut(&id) else { return };
        member.turn = Turn::Quiet;
        let failure = member.session.named(failure, &self.exchange);
        if member.gives_up(failure.kind(), &self.exchange.target.kind, now) {
            return self.fail(id, failure, now);
        }
        let failures = member.trouble.as_ref().map_or(1, |trouble| trouble.failures.saturating_add(1));
        member.turn = Turn::Retry { at: now + member.session.client.retry_after(failures, id) };
        member.trouble = Some(Box::new(Trouble { failures, failure }));
        self.schedule(id);
    }

    fn on_message(&mut self, channel: &str, now: Boottime) {
        let Some(id) = keys::session(channel) else { return };
        let Some(member) = self.sessions.get_mut(&id) else { return };
        if member.releasing.is_none() {
            let commands = member.session.client.on_message();
            // The command in flight reports whatever has happened by now.
            if !member.is_in_flight() {
                self.send(id, commands, now);
            }
        }
    }

    fn on_subscribe_failed(&mut self, channel: &str, error: &ServerError, now: Boottime) -> Result<(), Failure> {
        let Some(id) = keys::session(channel) else { return Ok(()) };
        let Some(member) = self.sessions.get(&id) else { return Ok(()) };
        match member.session.on_subscribe_failed(error, &self.exchange) {
            Ok(None) => Ok(()),
            Ok(Some(redirect)) => self.follow(redirect),
            Err(failure) if failure.kind().concerns_one_command() => {
                if member.releasing.is_none() {
                    self.fail(id, failure, now);
                }
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// The connection failed, and each session decides whether it goes on over the next one.
    fn on_failure(&mut self, failure: Failure, is_timeout: bool, now: Boottime) {
        let leave = if is_timeout { self.set_aside() } else { Action::Close };
        let failures = self.exchange.failures().saturating_add(1);
        let active: Vec<_> = self.sessions.iter().filter(|(_, member)| !member.is_over()).map(|(id, _)| *id).collect();
        let (mut pause, mut ended) = (None, Vec::new());
        for id in &active {
            let Some(member) = self.sessions.get_mut(id) else { continue };
            member.on_disconnect(|sent| self.exchange.may_have_sent_at(sent, failure.kind()));
            if member.gives_up(failure.kind(), &self.exchange.target.kind, now) {
                ended.push(*id);
            }
            let own = member.session.client.retry_after(failures, *id);
            pause = Some(pause.map_or(own, |pause: Duration| pause.min(own)));
        }
        (self.heard, self.is_spent) = (None, false);
        let is_releasing = self.sessions.values().any(|member| member.releasing.is_some());
        let failure = if !ended.is_empty() && ended.len() == active.len() && !is_releasing {
            // A server that refuses the login may still have carried out the requests behind it,
            // and carries out the releases as well.
            self.is_spent = true;
            self.exchange.give_up(failure)
        } else {
            self.exchange.reconnect_after(leave, failure.clone(), now + pause.unwrap_or_default());
            self.exchange.outage().cloned().unwrap_or(failure)
        };
        ended.into_iter().for_each(|id| self.fail(id, failure.clone(), now));
        active.into_iter().for_each(|id| self.schedule(id));
        if !self.is_spent && !self.needs_server() {
            self.exchange.rest();
        }
    }

    /// Whether a session has anything left to say.
    fn needs_server(&self) -> bool {
        self.sessions.values().any(|member| !member.is_over())
    }

    /// Deals with a session whose timer is over; tells whether the server may still answer.
    fn on_timer(&mut self, id: SessionId, now: Boottime) -> bool {
        let Some(member) = self.sessions.get_mut(&id) else { return true };
        member.session.client.expire(now);
        if member.is_over() {
            self.report(id);
            self.schedule(id);
            return true;
        }
        if member.silent_at(self.heard).is_some_and(|at| at <= now) {
            self.exchange.act(Action::ReportTimeout);
            return false;
        }
        if member.until(self.heard).is_some_and(|until| until <= now) {
            if member.is_in_flight() && self.heard.is_none() {
                // Nothing has arrived on this connection, and the transport knows what is missing.
                self.exchange.act(Action::ReportTimeout);
                return false;
            }
            let earlier = member.trouble.as_ref().map(|trouble| &trouble.failure).or(self.exchange.outage());
            let failure = self
                .exchange
                .failure(ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting)))
                .prefer(earlier.cloned());
            self.fail(id, failure, now);
            return true;
        }
        match member.turn {
            Turn::Retry { at } if at <= now => self.begin(id, now),
            Turn::Quiet if member.releasing.is_none() => {
                let commands = member.session.client.tick(now);
                self.send(id, commands, now);
            }
            _ => self.schedule(id),
        }
        true
    }

    /// A session makes no further attempt at what it was doing.
    fn fail(&mut self, id: SessionId, failure: Failure, now: Boottime) {
        let Some(member) = self.sessions.get_mut(&id) else { return };
        match &mut member.releasing {
            None => {
                member.session.client.on_failure(failure, member.is_in_flight());
                self.exchange.ignore_session(id);
                self.report(id);
                self.schedule(id);
            }
            Some(_) => self.look_aside(id, Err(failure.into()), now),
        }
    }

    fn report(&mut self, id: SessionId) {
        let Some(member) = self.sessions.get(&id) else { return };
        let standing = member.session.client.standing();
        self.reports.push_back((id, sessions::Report::Standing(standing)));
    }

    /// Makes earlier commands of a session irrelevant. If no other session uses the connection, the
    /// next one is opened without a pause.
    fn ignore_earlier(&mut self, id: SessionId) {
        if self.sessions.len() == 1 { self.exchange.ignore_earlier() } else { self.exchange.ignore_session(id) }
    }

    /// Forgets a session.
    fn remove(&mut self, id: SessionId) {
        let Some(mut member) = self.sessions.remove(&id) else { return };
        self.timers.set(id, None);
        member.session.unsubscribe(&mut self.exchange);
        if self.sessions.is_empty() && std::mem::take(&mut self.is_spent) {
            // Nothing is read on it, so whatever comes would call for attention for ever.
            self.exchange.rest();
        }
    }
}

impl Conversation for SessionsConversation {
    fn on(&mut self, event: Event, now: Boottime) {
        let result = match event {
            Event::Connecting(node) => {
                self.exchange.on_connecting(node);
                Ok(())
            }
            Event::Message(channel) => {
                self.on_message(&channel, now);
                Ok(())
            }
            Event::Reply(reply) => self.on_reply(reply, now),
            Event::SubscribeFailed(channel, error) => self.on_subscribe_failed(&channel, &error, now),
            Event::TimedOut(failure) => return self.on_failure(failure, true, now),
            Event::Failed(failure) => Err(failure),
            Event::Aside(reply) => {
                self.on_aside(reply);
                Ok(())
            }
        };
        if let Err(failure) = result {
            self.on_failure(failure, false, now);
        }
    }

    fn tick(&mut self, now: Boottime) {
        self.end_aside(now);
        while let Some(id) = self.timers.take_due(now) {
            if !self.on_timer(id, now) {
                return;
            }
        }
        if let Some(member) = self.exchange.resume(now).and_then(|asked| self.sessions.get_mut(&asked.session()?)) {
            member.turn = Turn::InFlight { sent: now };
        }
        if self.exchange.is_closed() && self.needs_server() && self.exchange.open(now) {
            self.heard = None;
            // Requests that were never answered come last, in the order in which they were made.
            let order = |(id, member): (&SessionId, &Member)| (member.persistence().1, *id);
            let mut ids: Vec<_> = self.sessions.iter().map(order).collect();
            ids.sort_unstable();
            ids.into_iter().for_each(|(_, id)| self.begin(id, now));
        }
    }

    fn next_action(&mut self) -> Option<Action> {
        self.exchange.next_action()
    }

    fn timeout(&self) -> Option<Boottime> {
        if self.exchange.has_actions() {
            return Some(Boottime::default());
        }
        let opens = self.exchange.timeout().filter(|_| self.needs_server());
        [opens, self.timers.first()].into_iter().flatten().min()
    }

    /// What comes on a spent connection may never end.
    fn is_over(&self) -> bool {
        self.is_spent && !self.needs_server()
    }
}

#[cfg(test)]
mod sole_tests;
#[cfg(test)]
mod tests;
