//! Drives the requests of a process in its poll loop, over one connection: their transactions
//! follow each other.
//!
//! A process with one session closes the connection where it can, so that a thousand long commands
//! are no thousand backends.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::os::fd::BorrowedFd;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::client::Client;
use super::exchange::{Exchange, Happened};
use super::failure::{ErrorKind, Failure};
use super::requester::Requester;
use super::step::{Committed, Step, Task, channel};
use super::target::Target;
use rlock_model::deadlock::Reading;
use rlock_model::kept::EVER;
use rlock_model::past::{End, Remembered};
use rlock_model::request::{Request, SessionId};
use rlock_model::resource::Resource;
use rlock_store::error::Error;
use rlock_store::handle::{AcquireOptions, Obstruction, Released, Standing};
use rlock_store::lease_client::{Command, LeaseReply, Retry, State, ToRelease, old_limit, take_back};
use rlock_store::network::NetworkError;
use rlock_store::sessions::{Report, Sessions};
use rlock_store::single::Alone;
use rlock_sys::clock::Boottime;

/// How long a connection without sessions is trusted. A firewall may forget it after longer
/// silence.
const TRUSTED: Duration = Duration::from_secs(60);

/// How often a waiter looks whom no notice reaches, because a pooler is between.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// How many of a queue keep their connections. The others look now and then, so that a long queue
/// leaves the server room for the release.
const KEPT_MAX: u32 = 20;
/// How many times as long as its look a waiter rests at least, so that a slow server is asked less.
const RESTS: u32 = 8;
/// How long a holder keeps its connection. It then opens one for each renewal.
const KEEPS_FOR: Duration = Duration::from_secs(5);
/// How many failures a refusal counts as beside itself where a server has no room for a waiter, so
/// that the first pause is 1.5 s at least.
const NO_ROOM: u32 = 8;
/// The longest pause of a holder then, since its lease ends.
const HOLDER_PAUSE: Duration = Duration::from_millis(200);
/// How long a transaction under way may take before this process does something else for a while.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);

/// The sessions of a process.
pub(super) struct PostgresSessions {
    exchange: Exchange,
    members: BTreeMap<SessionId, Member>,
    /// The members that may have something to say, in order.
    turns: VecDeque<SessionId>,
    /// The member whose transaction is under way, what it says, and since when.
    speaks: Option<Speech>,
    step: Option<Step<LeaseReply>>,
    /// The number of the tables at the first transaction, and at the last.
    tables: Option<(i64, i64)>,
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
    /// When the server answered last that a crowd waits for the lock, and how often it did.
    heard: Boottime,
    retries: u32,
}

struct Member {
    session: Requester,
    /// What was reported last.
    reported: Standing,
    /// Whether it was reported that the request is over.
    is_over: bool,
    /// Until when a holder keeps the connection if no other session uses it.
    keeps_until: Option<Boottime>,
    releasing: Option<Releasing>,
}

impl Member {
    /// Whether nothing is left to say before the release.
    fn is_done(&self) -> bool {
        self.is_over && self.releasing.is_none()
    }

    /// The server is there and has no time or room for this request now, so its wait decides when
    /// to give up.
    fn keep_asking(&mut self, id: SessionId, now: Boottime, reports: &mut VecDeque<(SessionId, Report)>) {
        let client = &mut self.session.client;
        if self.releasing.is_some() || !self.session.request.wait || !matches!(client.state(), State::Asking { .. }) {
            return;
        }
        client.keep_asking(now + EVER);
        if self.reported == Standing::Asking {
            self.reported = Standing::Waiting;
            reports.push_back((id, Report::Standing(Ok(Standing::Waiting))));
        }
    }

    fn is_waiting(&self) -> bool {
        self.releasing.is_none() && matches!(self.session.client.state(), State::Waiting { .. })
    }
}

struct Releasing {
    to_release: ToRelease,
    /// How the command ended that ran under the grant.
    end: Option<End>,
    /// Whether the connection is a fresh one.
    is_fresh: bool,
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
            exchange: Exchange::new(target, namespace, connect_timeout),
            members: BTreeMap::new(),
            turns: VecDeque::new(),
            speaks: None,
            step: None,
            tables: None,
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
        if self.needs_server() {
            self.exchange.open(now)?;
        }
        if self.exchange.is_ready() && self.step.is_none() {
            self.begin(now);
        }
        let happened = self.exchange.advance(&mut self.step)?;
        if let (Some(step), Some(speech)) = (&self.step, &mut self.speaks)
            && step.retries() > speech.retries
        {
            (speech.heard, speech.retries) = (now, step.retries());
            if let Some(member) = self.members.get_mut(&speech.id) {
                member.keep_asking(speech.id, now, &mut self.reports);
            }
        }
        match happened {
            None => return Ok(false),
            Some(Happened::Connected) => {
                for member in self.members.values_mut() {
                    member.session.on_connect();
                    if let Some(releasing) = &mut member.releasing {
                        releasing.is_fresh = true;
                    }
                }
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
            Some(Happened::Done(reply, Committed { backend, tables, copies })) => {
                self.tables = tables.map(|last| (self.tables.map_or(last, |(first, _)| first), last));
                let Some(Speech { id, command, sent, .. }) = self.speaks.take() else { return Ok(true) };
                self.heard = now;
                self.look_at = backend.is_none().then(|| self.look_at.unwrap_or(now + LOOK_AFTER));
                let position = if let LeaseReply::Waiting { position, .. } = reply { position } else { 0 };
                self.on_reply(id, command, reply, sent, now);
                if let Some(member) = self.members.get_mut(&id).filter(|member| member.releasing.is_none()) {
                    member.session.on_committed(copies, &self.exchange.connection.shown());
                }
                if backend.is_some() {
                    self.rest_if_far(id, position, now, now - sent);
                }
            }
        }
        Ok(true)
    }

    /// Closes the connection for a while if its only session is a waiter far behind.
    fn rest_if_far(&mut self, id: SessionId, position: u32, now: Boottime, took: Duration) {
        let is_alone = self.members.len() == 1;
        let Some(Member { session, releasing: None, .. }) = self.members.get_mut(&id) else { return };
        if !session.keeps_connection(!is_alone || position <= KEPT_MAX) {
            self.exchange.rest_until(now + rest(position, session.client.ttl(), took));
        }
    }

    /// Whether a session has anything left to say.
    fn needs_server(&self) -> bool {
        self.members.values().any(|member| !member.is_done())
    }

    /// Begins the next transaction, if a member has something to say.
    fn begin(&mut self, now: Boottime) {
        let looks = self.look_at.is_some_and(|at| at <= now);
        if looks {
            self.look_at = Some(now + LOOK_AFTER);
        }
        for (id, member) in &mut self.members {
            if member.is_over || member.releasing.is_some() || member.session.has_more() {
                continue;
            }
            let commands = match looks && member.is_waiting() {
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
                Some(releasing) => (None, member.session.release(releasing.end)),
                None => match member.session.next() {
                    Some((command, task)) => (Some(command), task),
                    None => continue,
                },
            };
            let task = Task { own: self.members.keys().copied().collect(), ..task };
            self.step = Some(self.exchange.begin(task));
            self.speaks = Some(Speech { id, command, sent: now, heard: now, retries: 0 });
            return;
        }
        if let Some((rests_at, due)) = self.rests()
            && rests_at <= now
        {
            self.exchange.rest_until(due);
        }
    }

    /// When the connection of an only holder is closed, and when it is opened again.
    fn rests(&self) -> Option<(Boottime, Boottime)> {
        let (_, member) = self.members.first_key_value().filter(|_| self.members.len() == 1)?;
        let is_held = member.releasing.is_none() && member.session.client.held().is_some();
        Some((member.keeps_until.filter(|_| is_held)?, member.session.client.due()?))
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
                    if member.session.client.held().is_some() {
                        member.keeps_until.get_or_insert(now + KEEPS_FOR);
                    }
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
        let has_no_room = matches!(failure.kind(), ErrorKind::TooManyClients(_));
        // A crowd at the socket has to wait, too, but takes no time of the server.
        let is_crowded = has_no_room || *failure.kind() == ErrorKind::Network(NetworkError::QueueFull);
        for (id, member) in self.members.iter_mut().filter(|(_, member)| !member.is_done()) {
            let is_sent = spoke == Some(*id);
            let mut own_pause = member.session.retry_after(failures);
            if has_no_room {
                // Each login that is refused takes time of the server from those that it lets in.
                own_pause = match member.session.client.held() {
                    Some(_) => own_pause.min(HOLDER_PAUSE),
                    None => member.session.retry_after(failures.saturating_add(NO_ROOM)),
                };
            }
            if is_crowded {
                member.keep_asking(*id, now, &mut self.reports);
            }
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
            pause = pause.min(own_pause);
            if !retry.covers(class) || until.is_some_and(|until| until <= now) {
                let failure = failure.clone().prefer(earlier.clone());
                match &mut member.releasing {
                    None => member.session.client.on_failure(failure, is_sent),
                    Some(releasing) => releasing.give_up(*id, failure, now, &mut self.reports),
                }
            }
        }
        self.exchange.reconnect(failure, now, if pause == Duration::MAX { Duration::ZERO } else { pause });
        self.end_overdue(now);
    }

    /// Gives up what has had its time while there was no connection.
    fn end_overdue(&mut self, now: Boottime) {
        let failure = self.exchange.connection.timeout_failure().prefer(self.exchange.outage().cloned());
        let speaks = self.speaks.as_ref().map(|speech| speech.id);
        self.members.retain(|id, member| match &mut member.releasing {
            Some(releasing) if releasing.until <= now => {
                releasing.give_up(*id, failure.clone(), now, &mut self.reports);
                false
            }
            Some(_) => true,
            None if member.is_over => true,
            None => {
                member.session.client.expire(now);
                if member.session.client.persistence().1.is_some_and(|until| until <= now) {
                    member.session.client.on_failure(failure.clone(), speaks == Some(*id));
                }
                true
            }
        });
    }

    /// Reports what has changed.
    fn report(&mut self) {
        for (id, member) in &mut self.members {
            if member.releasing.is_some() || member.is_over {
                continue;
            }
            let standing = member.session.client.standing();
            member.is_over = member.session.client.is_over();
            match standing {
                Ok(standing) if standing == member.reported || standing == Standing::Asking => {}
                Ok(standing) => {
                    member.reported = standing.clone();
                    self.reports.push_back((*id, Report::Standing(Ok(standing))));
                }
                Err(error) => self.reports.push_back((*id, Report::Standing(Err(error)))),
            }
        }
    }

    /// Begins to release what the server may keep for a member.
    fn part(&mut self, id: SessionId, end: Option<End>, released: Released, now: Boottime) {
        let is_alone = self.members.len() == 1;
        let Some(member) = self.members.get_mut(&id) else { return };
        let is_speaking = self.speaks.as_ref().is_some_and(|speech| speech.id == id);
        // A transaction that only this session waits for is never committed without it.
        let is_sent = is_speaking && (!is_alone || self.step.as_ref().is_some_and(Step::may_be_committed));
        // A waiter that could not leave in time does not try again: its lease ends.
        let is_given_up = member.session.client.persistence().1.is_some_and(|until| until <= now);
        if is_given_up || !member.session.client.may_be_kept(is_sent) {
            if is_speaking {
                (self.step, self.speaks) = (None, None);
                self.exchange.close();
            }
            self.members.remove(&id);
            return self.reports.push_back((id, Report::Released(Ok(released))));
        }
        let to_release = ToRelease::new(member.session.client.held().cloned(), now);
        let until = to_release.until(self.exchange.is_closed(), self.connect_timeout);
        let is_awaited = released == Released::Done;
        member.releasing = Some(Releasing { to_release, end, is_fresh: false, until, in_doubt: false, is_awaited });
        if !is_awaited {
            self.reports.push_back((id, Report::Released(Ok(released))));
        }
        self.exchange.hurry();
        self.turns.push_back(id);
    }

    /// Finishes the transaction under way, for which others may be waiting, before this process
    /// does something else for a while.
    fn settle(&mut self) {
        let until = Boottime::now() + SETTLE_LIMIT;
        while self.step.is_some() && !self.is_locked_out() && Boottime::now() < until {
            self.exchange.connection.wait(Some(until));
            self.advance();
        }
    }

    /// Whether the transaction under way has waited for the lock of the namespace in vain. Nobody
    /// waits for it then, and the server has nothing of it.
    fn is_locked_out(&self) -> bool {
        self.step.as_ref().is_some_and(|step| step.retries() > 0 && !step.may_be_committed())
    }

    fn client(&mut self, limit: Duration) -> Client {
        self.settle();
        Client::over(self.exchange.another(), limit)
    }

    /// When the server has been silent for too long.
    fn limit(&self) -> Option<Boottime> {
        let timeout = |member: &Member| match &member.releasing {
            // A firewall may have forgotten the connection.
            Some(releasing) if !releasing.is_fresh => old_limit(self.connect_timeout),
            Some(_) => self.connect_timeout,
            None => member.session.client.reply_timeout(self.connect_timeout),
        };
        if let Some(speech) = &self.speaks {
            return Some(speech.heard + self.members.get(&speech.id).map_or(self.connect_timeout, timeout));
        }
        Some(self.exchange.opening_since()? + self.members.values().map(timeout).min()?)
    }
}

/// How long a waiter at this position has no connection: until it may be among the first, if those
/// are served as fast as the others look. `took` is the time of its last look, and grows with a
/// crowd.
fn rest(position: u32, ttl: Duration, took: Duration) -> Duration {
    let pause = LOOK_AFTER * position / KEPT_MAX;
    pause.max(took.saturating_mul(RESTS)).min(ttl / 4).max(LOOK_AFTER)
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
        self.ask(request, AcquireOptions::default());
    }

    fn release(&mut self, session: SessionId) {
        self.release_after(session, Some(End::KEPT));
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.exchange.connection.descriptor().into_iter().collect()
    }

    fn timeout(&self) -> Option<Boottime> {
        if !self.reports.is_empty() {
            // A look at the holders has finished the transaction that granted something.
            return Some(Boottime::default());
        }
        if !self.needs_server() {
            return None;
        }
        let is_idle = self.exchange.is_ready() && self.step.is_none();
        let speaks = (is_idle && !self.turns.is_empty()).then(Boottime::default);
        let due = self.members.values().filter_map(|member| match &member.releasing {
            Some(releasing) => Some(releasing.until),
            None if member.is_over => None,
            None if is_idle => member.session.client.due(),
            None => member.session.client.persistence().1,
        });
        let looks = self.look_at.filter(|_| self.members.values().any(Member::is_waiting));
        let rests = self.rests().map(|(at, _)| at);
        let idle = [looks, rests].into_iter().flatten().filter(|_| is_idle);
        due.chain(speaks).chain(idle).chain(self.exchange.acts_at()).chain(self.limit()).min()
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
            self.report();
            if !more {
                return;
            }
        }
    }

    fn next_report(&mut self) -> Option<(SessionId, Report)> {
        self.reports.pop_front()
    }
}

impl Alone for PostgresSessions {
    fn ask(&mut self, request: Request, options: AcquireOptions) {
        let (id, now) = (request.session, Boottime::now());
        if self.members.is_empty() {
            if self.exchange.is_ready() && self.heard + TRUSTED < now {
                self.exchange.close();
            }
            self.exchange.open_from(options.from);
        } else if self.exchange.failures() == 0 {
            // The connection may rest.
            self.exchange.hurry();
        }
        // The rest is for taking the request back if the server does not answer.
        match Requester::new(request, options, options.from.max(now) + self.connect_timeout / 10 * 9) {
            Ok(mut session) => {
                if self.exchange.is_ready() {
                    session.on_connect();
                }
                let (reported, keeps_until) = (Standing::Asking, None);
                let member = Member { session, reported, is_over: false, keeps_until, releasing: None };
                self.members.insert(id, member);
                self.turns.push_back(id);
            }
            Err(error) => self.reports.push_back((id, Report::Standing(Err(error)))),
        }
    }

    fn release_after(&mut self, session: SessionId, end: Option<End>) {
        let released = take_back(&mut self.reports, session);
        match self.members.get(&session) {
            Some(member) if member.releasing.is_none() => self.part(session, end, released, Boottime::now()),
            _ => self.reports.push_back((session, Report::Released(Ok(released)))),
        }
    }

    fn place_of(&self, session: SessionId) -> Option<u64> {
        self.members.get(&session)?.session.client.place()
    }

    fn give_up(&mut self, session: SessionId) {
        self.settle();
        let until = Boottime::now() + self.connect_timeout;
        let is_locked_out = self.is_locked_out();
        if let Some(member) = self.members.get_mut(&session) {
            if is_locked_out && !member.session.client.may_be_kept(false) {
                // There is nothing to take back, for which the same lock would be needed.
                return member.session.client.on_failure(self.exchange.failure(ErrorKind::TooSlow), false);
            }
            member.session.give_up(until);
            self.exchange.hurry();
            self.turns.push_back(session);
        }
    }

    fn close(&mut self) {
        self.exchange.close();
        self.members.clear();
    }

    fn inspect(&mut self, resources: &[Resource], limit: Duration) -> Result<Vec<Obstruction>, Error> {
        Ok(self.client(limit).obstructions(resources)?)
    }

    fn read(&mut self, resources: &[Resource], limit: Duration) -> Result<Option<Reading>, Error> {
        Ok(Some(self.client(limit).read(resources)?))
    }

    fn history(&mut self, name: &Resource, entries: u32, limit: Duration) -> Result<Vec<Remembered>, Error> {
        Ok(self.client(limit).history(slice::from_ref(name), entries)?)
    }

    fn trouble(&self, _session: SessionId) -> Option<String> {
        self.exchange.outage().map(|failure| Error::from(failure.clone()).to_string())
    }

    fn server(&self) -> Option<String> {
        Some(self.exchange.connection.shown())
    }

    fn has_new_tables(&self) -> bool {
        self.tables.is_some_and(|(first, last)| first != last)
    }
}
