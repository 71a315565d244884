//! Decides what happens with the requests of many sessions that share one connection to a server.
//!
//! One [`Exchange`] carries the commands of all. An error reply that is about one command concerns
//! its session only. A failed connection concerns all sessions, and each goes on over the next one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use redis::{ServerError, Value};

use self::member::{Member, Releasing, Trouble, Turn};
use super::exchange::{Asked, Exchange, Outcome};
use super::requester::Requester;
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Conversation, Event};
use crate::keys;
use rlock_model::request::{Job, Request, SessionId};
use rlock_store::handle::Released;
use rlock_store::lease_client::{Command, LeaseReply, State, ToRelease, old_limit, take_back};
use rlock_store::network::{NetworkError, Stage};
use rlock_store::sessions;
use rlock_sys::clock::Boottime;
use rlock_sys::timers::Timers;

mod member;

/// How long a connection without sessions is trusted. A firewall may forget it after longer
/// silence.
const TRUSTED: Duration = Duration::from_secs(60);

/// The conversation about the requests of many sessions.
pub struct SharedConversation {
    exchange: Exchange,
    connect_timeout: Duration,
    sessions: BTreeMap<SessionId, Member>,
    /// When which session needs attention.
    timers: Timers<SessionId>,
    /// When the server last answered on this connection.
    heard: Option<Boottime>,
    reports: VecDeque<(SessionId, sessions::Report)>,
}

impl SharedConversation {
    /// No sessions yet. A request fails if the server does not answer within `connect_timeout`.
    pub fn new(exchange: Exchange, connect_timeout: Duration) -> Self {
        Self {
            exchange,
            connect_timeout,
            sessions: BTreeMap::new(),
            timers: Timers::default(),
            heard: None,
            reports: VecDeque::new(),
        }
    }

    /// The state of the exchange in a word, for tables of tests.
    pub fn exchange_state_name(&self) -> &'static str {
        self.exchange.state_name()
    }

    /// Begins to make a request at `now`.
    pub fn acquire(&mut self, request: Request, now: Boottime) {
        let id = request.session;
        let until = now + self.connect_timeout;
        let session = match Requester::new(&request, false, &self.exchange, self.connect_timeout, until) {
            Ok(session) => session,
            Err(error) => return self.reports.push_back((id, sessions::Report::Standing(Err(error)))),
        };
        if self.sessions.is_empty() && self.heard.is_some_and(|heard| now - heard > TRUSTED) {
            self.exchange.rest();
        }
        self.sessions.insert(id, Member::new(session, request));
        if self.exchange.is_closed() {
            self.schedule(id);
        } else {
            self.begin(id, now);
        }
    }

    /// Begins to release whatever the server may keep for a session.
    pub fn release(&mut self, id: SessionId, now: Boottime) {
        let mut released = take_back(&mut self.reports, id);
        if let Some(member) = self.sessions.get(&id).filter(|member| member.releasing.is_none()) {
            // A command that waits for the address of the server leaves, too.
            if member.session.client.may_be_kept(member.is_in_flight()) {
                return self.part(id, true, now);
            }
            self.remove(id);
            released = Released::Done;
        }
        self.reports.push_back((id, sessions::Report::Released(Ok(released))));
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

    fn send_release(&mut self, id: SessionId, now: Boottime) {
        let Some(member) = self.sessions.get_mut(&id) else { return };
        member.session.unsubscribe(&mut self.exchange);
        let end = member.releasing.as_ref().and_then(|releasing| releasing.to_release.end());
        let job = Job { history: member.history, ..Job::default() };
        self.exchange.check_master(old_limit(self.connect_timeout), now);
        self.exchange.call(Asked::Release(id), member.session.release(end, &job), now);
        member.turn = Turn::InFlight { sent: now };
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
            (Some(Asked::Session(id, command)), Ok(Some((_, Outcome::Reply { reply, sent })))) => {
                self.on_answer(id, command, reply.into(), sent, now);
            }
            (Some(Asked::Release(id)), Ok(Some((_, Outcome::Reply { reply, .. })))) => {
                self.on_released(id, reply.into(), now);
            }
            (Some(asked), Err(failure)) if failure.kind().concerns_one_command() => {
                self.on_refused(asked, failure, now);
            }
            (_, Err(failure)) => return Err(failure),
            (_, Ok(Some(_))) => return Err(self.exchange.failure(ErrorKind::UnexpectedReply)),
        }
        Ok(())
    }

    fn on_answer(&mut self, id: SessionId, command: Command, reply: LeaseReply, sent: Boottime, now: Boottime) {
        let is_trouble_over = self.exchange.answered(&reply);
        let Some(member) = self.sessions.get_mut(&id) else { return };
        member.turn = Turn::Quiet;
        if member.releasing.is_some() {
            return self.send_release(id, now);
        }
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
            _ => true,
        };
        if member.session.client.held().is_some() {
            member.request = None;
        }
        if is_changed {
            self.report(id);
        }
        self.send(id, commands, now);
        self.end_if_over(id, now);
    }

    fn on_released(&mut self, id: SessionId, reply: LeaseReply, now: Boottime) {
        self.exchange.served();
        let Some(Releasing { to_release, in_doubt, is_awaited: true, .. }) = self.remove(id) else { return };
        let released = to_release.result(Ok(reply), in_doubt, now);
        self.reports.push_back((id, sessions::Report::Released(released)));
    }

    /// A command of a session got an error reply that is about this command.
    fn on_refused(&mut self, asked: Asked, failure: Failure, now: Boottime) {
        self.exchange.served();
        let (Asked::Session(id, _) | Asked::Release(id)) = asked else { return };
        let Some(member) = self.sessions.get_mut(&id) else { return };
        member.turn = Turn::Quiet;
        if member.releasing.is_some() && asked != Asked::Release(id) {
            return self.send_release(id, now);
        }
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
        // The command in flight reports whatever has happened by now.
        if member.releasing.is_none() && !member.is_in_flight() {
            let commands = member.session.client.on_message();
            self.send(id, commands, now);
        }
    }

    fn on_subscribe_failed(&mut self, channel: &str, error: &ServerError, now: Boottime) -> Result<(), Failure> {
        let Some(id) = keys::session(channel) else { return Ok(()) };
        let Some(member) = self.sessions.get(&id) else { return Ok(()) };
        match member.session.on_subscribe_failed(error, &mut self.exchange) {
            Err(failure) if failure.kind().concerns_one_command() => {
                if member.releasing.is_none() {
                    self.fail(id, failure, now);
                }
                Ok(())
            }
            result => result,
        }
    }

    /// The connection failed, and each session decides whether it goes on over the next one.
    fn on_failure(&mut self, failure: Failure, now: Boottime) {
        let kind = &self.exchange.target.kind;
        let failures = self.exchange.failures().saturating_add(1);
        let mut pause = None;
        let mut ended = Vec::new();
        for (id, member) in &mut self.sessions {
            member.on_disconnect(|sent| self.exchange.may_have_sent_at(sent, failure.kind()));
            if member.gives_up(failure.kind(), kind, now) {
                ended.push(*id);
            }
            let own = member.session.client.retry_after(failures, *id);
            pause = Some(pause.map_or(own, |pause: Duration| pause.min(own)));
        }
        self.heard = None;
        self.exchange.reconnect(failure, now + pause.unwrap_or_default(), Action::Close);
        if let Some(failure) = self.exchange.outage().cloned() {
            ended.into_iter().for_each(|id| self.fail(id, failure.clone(), now));
        }
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        ids.into_iter().for_each(|id| self.schedule(id));
        if self.sessions.is_empty() {
            self.exchange.rest();
        }
    }

    /// Deals with a session whose timer is over; tells whether the server may still answer.
    fn on_timer(&mut self, id: SessionId, now: Boottime) -> bool {
        let Some(member) = self.sessions.get_mut(&id) else { return true };
        if member.silent_at(self.heard).is_some_and(|at| at <= now) {
            self.exchange.act(Action::ReportTimeout);
            return false;
        }
        if member.until(self.heard).is_some_and(|until| until <= now) {
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
                self.report(id);
                self.end_if_over(id, now);
            }
            Some(releasing) if releasing.is_awaited => {
                let released = releasing.to_release.result(Err(failure.into()), releasing.in_doubt, now);
                self.reports.push_back((id, sessions::Report::Released(released)));
                // The server may come back before the lease ends.
                releasing.is_awaited = false;
                releasing.until = now + member.session.client.kept_for();
                self.schedule(id);
            }
            Some(_) => drop(self.remove(id)),
        }
    }

    fn report(&mut self, id: SessionId) {
        let Some(member) = self.sessions.get(&id) else { return };
        let standing = member.session.client.standing();
        self.reports.push_back((id, sessions::Report::Standing(standing)));
    }

    /// Gives back what the server may keep for a session whose result is known.
    fn end_if_over(&mut self, id: SessionId, now: Boottime) {
        let Some(member) = self.sessions.get(&id).filter(|member| member.session.client.is_over()) else { return };
        if member.session.client.may_be_kept(false) {
            self.part(id, false, now);
        } else {
            self.remove(id);
        }
    }

    /// Begins a release. Nobody waits for the result unless it `is_awaited`, and then the release
    /// is tried for as long as the server keeps the session.
    fn part(&mut self, id: SessionId, is_awaited: bool, now: Boottime) {
        let Some(member) = self.sessions.get_mut(&id) else { return };
        let is_closed = self.exchange.is_closed();
        let to_release = ToRelease::new(member.session.client.held().cloned(), now);
        let until = if is_awaited {
            to_release.until(is_closed, self.connect_timeout)
        } else {
            now + member.session.client.kept_for()
        };
        member.releasing = Some(Releasing { to_release, until, in_doubt: false, is_awaited });
        member.request = None;
        if is_closed || member.is_in_flight() {
            self.schedule(id);
        } else {
            self.send_release(id, now);
        }
    }

    /// Forgets a session.
    fn remove(&mut self, id: SessionId) -> Option<Releasing> {
        let mut member = self.sessions.remove(&id)?;
        self.timers.set(id, None);
        member.session.unsubscribe(&mut self.exchange);
        member.releasing
    }
}

impl Conversation for SharedConversation {
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
            Event::Failed(failure) | Event::TimedOut(failure) => Err(failure),
            Event::Aside(_) => Ok(()),
        };
        if let Err(failure) = result {
            self.on_failure(failure, now);
        }
    }

    fn tick(&mut self, now: Boottime) {
        while let Some(id) = self.timers.take_due(now) {
            if !self.on_timer(id, now) {
                return;
            }
        }
        if !self.sessions.is_empty() && self.exchange.open(now) {
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
        let opens = self.exchange.timeout().filter(|_| !self.sessions.is_empty());
        [opens, self.timers.first()].into_iter().flatten().min()
    }

    fn is_over(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
