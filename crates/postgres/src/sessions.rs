//! Drives the requests of many sessions in the poll loop of `rlock serve`, over one connection:
//! their transactions follow each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::exchange::{Exchange, Happened};
use super::failure::{ErrorKind, Failure};
use super::hold::LOOK_AFTER;
use super::requester::Requester;
use super::step::{Step, channel};
use super::target::Target;
use rlock_model::request::{Request, SessionId};
use rlock_store::handle::{Released, Standing};
use rlock_store::lease_client::{Command, LeaseReply, Retry, State, ToRelease, take_back};
use rlock_store::network::{NetworkError, Stage};
use rlock_store::sessions::{Report, Sessions};
use rlock_sys::clock::Boottime;

/// How long a connection without sessions is trusted. A firewall may forget it after longer
/// silence.
const TRUSTED: Duration = Duration::from_secs(60);

/// The sessions of a process.
pub(super) struct PostgresSessions {
    exchange: Exchange,
    members: BTreeMap<SessionId, Member>,
    /// The members that may have something to say, in order.
    turns: VecDeque<SessionId>,
    /// The member whose transaction is under way, what it says, and since when.
    speaks: Option<Speech>,
    step: Option<Step<LeaseReply>>,
    /// When waiters look whom no notice reaches, because a pooler is between.
    look_at: Option<Boottime>,
    /// When the server last answered.
    heard: Boottime,
    connect_timeout: Duration,
    reports: VecDeque<(SessionId, Report)>,
}

struct Speech {
    id: SessionId,
    /// `None` for a release.
    command: Option<Command>,
    sent: Boottime,
}

struct Member {
    session: Requester,
    /// What was reported last.
    reported: Standing,
    releasing: Option<Releasing>,
}

struct Releasing {
    to_release: ToRelease,
    /// When to give up.
    until: Boottime,
    /// Whether the server may have carried out a release unseen.
    in_doubt: bool,
    /// Whether the result is awaited.
    is_awaited: bool,
}

impl PostgresSessions {
    /// No sessions yet, and no connection.
    pub(super) fn new(target: Arc<Target>, namespace: Arc<str>, connect_timeout: Duration) -> Self {
        Self {
            exchange: Exchange::new(target, namespace, connect_timeout, Boottime::default()),
            members: BTreeMap::new(),
            turns: VecDeque::new(),
            speaks: None,
            step: None,
            look_at: None,
            heard: Boottime::default(),
            connect_timeout,
            reports: VecDeque::new(),
        }
    }

    /// Takes one event in. Tells whether there may be more to do.
    fn go_on(&mut self, now: Boottime) -> Result<bool, Failure> {
        if self.limit().is_some_and(|limit| limit <= now) {
            return Err(self.exchange.connection.timeout_failure());
        }
        if !self.members.is_empty() {
            self.exchange.open(now)?;
        }
        if self.exchange.is_ready() && self.step.is_none() {
            self.begin(now);
        }
        match self.exchange.advance(&mut self.step)? {
            None => return Ok(false),
            Some(Happened::Connected) => {
                self.members.values_mut().for_each(|member| member.session.on_connect());
                self.turns = self.members.keys().copied().collect();
            }
            Some(Happened::Notice(name)) => {
                let told = self.members.iter_mut().find(|(id, _)| channel(**id) == name);
                if let Some((id, member)) = told.filter(|(_, member)| member.releasing.is_none()) {
                    let commands = member.session.client.on_message();
                    member.session.say(commands);
                    self.turns.push_back(*id);
                }
            }
            Some(Happened::Done(reply, backend)) => {
                let Some(Speech { id, command, sent }) = self.speaks.take() else { return Ok(true) };
                self.heard = now;
                self.look_at = backend.is_none().then(|| self.look_at.unwrap_or(now + LOOK_AFTER));
                self.on_reply(id, command, reply, sent, now);
            }
        }
        Ok(true)
    }

    /// Begins the next transaction, if a member has something to say.
    fn begin(&mut self, now: Boottime) {
        let looks = self.look_at.is_some_and(|at| at <= now);
        if looks {
            self.look_at = Some(now + LOOK_AFTER);
        }
        for (id, member) in &mut self.members {
            if member.releasing.is_some() || member.session.has_more() {
                continue;
            }
            let is_waiting = matches!(member.session.client.state(), State::Waiting { .. });
            let commands = match looks && is_waiting {
                true => member.session.client.on_message(),
                false => member.session.client.tick(now),
            };
            if !commands.is_empty() {
                member.session.say(commands);
                self.turns.push_back(*id);
            }
        }
        while let Some(id) = self.turns.pop_front() {
            let Some(member) = self.members.get_mut(&id) else { continue };
            let (command, task) = match &member.releasing {
                Some(releasing) => (None, member.session.release(releasing.to_release.end())),
                None => match member.session.next() {
                    Some((command, task)) => (Some(command), task),
                    None => continue,
                },
            };
            self.step = Some(self.exchange.begin(task));
            self.speaks = Some(Speech { id, command, sent: now });
            return;
        }
    }

    fn on_reply(&mut self, id: SessionId, command: Option<Command>, reply: LeaseReply, sent: Boottime, now: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        match (command, &member.releasing) {
            (None, Some(Releasing { to_release, in_doubt, is_awaited, .. })) => {
                let released = to_release.result(Ok(reply), *in_doubt, now);
                if *is_awaited {
                    self.reports.push_back((id, Report::Released(released)));
                }
                self.members.remove(&id);
            }
            (Some(command), None) => match member.session.client.on_reply(command, reply, sent, now) {
                Some(commands) => {
                    member.session.say(commands);
                    self.turns.push_back(id);
                }
                None => {
                    let failure = self.exchange.failure(ErrorKind::UnexpectedReply);
                    member.session.client.on_failure(failure, true);
                }
            },
            // The release comes next.
            (_, Some(_)) => self.turns.push_back(id),
            (None, None) => {}
        }
    }

    /// The connection has failed, and each member decides whether it goes on over the next one.
    fn on_failure(&mut self, failure: Failure, now: Boottime) {
        let may_be_done = self.step.take().is_some_and(|step| step.may_be_committed());
        let spoke = self.speaks.take().filter(|_| may_be_done).map(|speech| speech.id);
        let (class, failures) = (self.exchange.class(&failure), self.exchange.failures().saturating_add(1));
        let earlier = self.exchange.outage().cloned();
        let mut pause = Duration::MAX;
        for (id, member) in &mut self.members {
            let is_sent = spoke == Some(*id);
            let (retry, until) = match &mut member.releasing {
                Some(releasing) => {
                    releasing.in_doubt |= is_sent;
                    (Retry::WhileDown, Some(releasing.until))
                }
                None => {
                    member.session.client.on_disconnect(is_sent);
                    member.session.client.persistence()
                }
            };
            pause = pause.min(member.session.retry_after(failures));
            if !retry.covers(class) || until.is_some_and(|until| until <= now) {
                let failure = failure.clone().prefer(earlier.clone());
                match &mut member.releasing {
                    None => member.session.client.on_failure(failure, is_sent),
                    Some(releasing) => releasing.give_up(*id, failure, now, &mut self.reports),
                }
            }
        }
        self.exchange.reconnect(failure, now, if self.members.is_empty() { Duration::ZERO } else { pause });
        self.end_overdue(now);
    }

    /// Gives up what has had its time while there was no connection.
    fn end_overdue(&mut self, now: Boottime) {
        let timed_out = self.exchange.failure(ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting)));
        let failure = timed_out.prefer(self.exchange.outage().cloned());
        let speaks = self.speaks.as_ref().map(|speech| speech.id);
        self.members.retain(|id, member| match &mut member.releasing {
            Some(releasing) if releasing.until <= now => {
                releasing.give_up(*id, failure.clone(), now, &mut self.reports);
                false
            }
            Some(_) => true,
            None => {
                member.session.client.expire(now);
                if member.session.client.persistence().1.is_some_and(|until| until <= now) {
                    member.session.client.on_failure(failure.clone(), speaks == Some(*id));
                }
                true
            }
        });
    }

    /// Reports what has changed, and begins to release what is over.
    fn report(&mut self, now: Boottime) {
        let mut over = BTreeSet::new();
        for (id, member) in self.members.iter_mut().filter(|(_, member)| member.releasing.is_none()) {
            match member.session.client.standing() {
                Ok(standing) if standing == member.reported || standing == Standing::Asking => {}
                Ok(standing) => {
                    member.reported = standing.clone();
                    self.reports.push_back((*id, Report::Standing(Ok(standing))));
                }
                Err(error) => self.reports.push_back((*id, Report::Standing(Err(error)))),
            }
            if member.session.client.is_over() {
                over.insert(*id);
            }
        }
        over.into_iter().for_each(|id| self.part(id, false, now));
    }

    /// Begins to release what the server may keep for a member.
    fn part(&mut self, id: SessionId, is_awaited: bool, now: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let is_sent = self.speaks.as_ref().is_some_and(|speech| speech.id == id);
        if !member.session.client.may_be_kept(is_sent) {
            self.members.remove(&id);
            if is_awaited {
                self.reports.push_back((id, Report::Released(Ok(Released::Done))));
            }
            return;
        }
        let to_release = ToRelease::new(member.session.client.held().cloned(), now);
        let until = to_release.until(self.exchange.is_closed(), self.connect_timeout);
        member.releasing = Some(Releasing { to_release, until, in_doubt: false, is_awaited });
        self.exchange.hurry();
        self.turns.push_back(id);
    }

    /// When the server has been silent for too long.
    fn limit(&self) -> Option<Boottime> {
        let spoken = self.speaks.as_ref().map(|speech| {
            let member = self.members.get(&speech.id);
            let timeout = |member: &Member| member.session.client.reply_timeout(self.connect_timeout);
            speech.sent + member.map_or(self.connect_timeout, timeout)
        });
        spoken.or_else(|| Some(self.exchange.opening_since()? + self.connect_timeout))
    }
}

impl Releasing {
    /// Reports that the release has failed, if that is awaited.
    fn give_up(&mut self, id: SessionId, failure: Failure, now: Boottime, reports: &mut VecDeque<(SessionId, Report)>) {
        if mem::take(&mut self.is_awaited) {
            let released = self.to_release.result(Err(failure.into()), self.in_doubt, now);
            reports.push_back((id, Report::Released(released)));
        }
        self.until = now;
    }
}

impl Sessions for PostgresSessions {
    fn acquire(&mut self, request: Request) {
        let id = request.session;
        if self.members.is_empty() && self.exchange.is_ready() && self.heard + TRUSTED < Boottime::now() {
            self.exchange.close();
        }
        match Requester::new(request, Boottime::now() + self.connect_timeout) {
            Ok(mut session) => {
                if self.exchange.is_ready() {
                    session.on_connect();
                }
                self.members.insert(id, Member { session, reported: Standing::Asking, releasing: None });
                self.turns.push_back(id);
            }
            Err(error) => self.reports.push_back((id, Report::Standing(Err(error)))),
        }
    }

    fn release(&mut self, session: SessionId) {
        let released = take_back(&mut self.reports, session);
        match self.members.get(&session) {
            Some(member) if member.releasing.is_none() => self.part(session, true, Boottime::now()),
            _ => self.reports.push_back((session, Report::Released(Ok(released)))),
        }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.exchange.connection.descriptor().into_iter().collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        if self.members.is_empty() {
            return None;
        }
        let is_idle = self.exchange.is_ready() && self.step.is_none();
        let speaks = (is_idle && !self.turns.is_empty()).then(Boottime::default);
        let due = self.members.values().filter_map(|member| match &member.releasing {
            Some(releasing) => Some(releasing.until),
            None if is_idle => member.session.client.due(),
            None => member.session.client.persistence().1,
        });
        let looks = self.look_at.filter(|_| is_idle);
        due.chain(speaks).chain(looks).chain(self.exchange.opens_at()).chain(self.limit()).min()
    }

    fn advance(&mut self) {
        let now = Boottime::now();
        loop {
            self.end_overdue(now);
            let more = match self.go_on(now) {
                Ok(more) => more,
                Err(failure) => {
                    self.on_failure(failure, now);
                    true
                }
            };
            self.report(now);
            if !more {
                return;
            }
        }
    }

    fn next_report(&mut self) -> Option<(SessionId, Report)> {
        self.reports.pop_front()
    }
}
