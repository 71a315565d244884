//! Decides what happens with the requests of one session or of many that share a connection to a
//! server with leases, from the moment they are made until their release.
//!
//! A [`Server`] says how a kind of server is asked. Its owner tells the driver what has arrived, by
//! the methods `on_…`. A failure that is about one command concerns its session only. A failed
//! connection concerns all sessions, and each goes on over the next one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use self::member::{Member, Trouble, Turn};
use self::releasing::Aside;
use super::client::{Command, LeaseClient, LeaseReply, State};
use super::line::Line;
use super::retry::FailureClass;
use crate::error::Error;
use crate::handle::{AcquireOptions, Replicas, Standing};
use crate::sessions::Report;
use rlock_model::kept::EVER;
use rlock_model::past::End;
use rlock_model::request::{Request, SessionId};
use rlock_sys::clock::Boottime;
use rlock_sys::timers::Timers;

mod member;
mod releasing;

/// How long a connection without sessions is trusted. A firewall may forget it after longer
/// silence.
const TRUSTED: Duration = Duration::from_secs(60);

/// How a kind of server is asked, over one connection at a time.
pub trait Server {
    /// Why the server can't be used.
    type Failure: Clone + Into<Error>;
    /// What the server has to know of a session to ask for it.
    type Session;

    /// How long a server that is there may be silent about a command.
    const SILENCE: Duration;

    /// Begins to know a session.
    ///
    /// # Errors
    /// The server can't serve the request.
    fn session(&self, request: Request, replicas: Replicas) -> Result<Self::Session, Error>;

    /// Sends a command of a session, or queues it; tells whether a reply follows. A reply takes
    /// `timeout` at most.
    fn say(
        &mut self,
        session: &mut Self::Session,
        client: &LeaseClient<Self::Failure>,
        command: Command,
        timeout: Duration,
        now: Boottime,
    ) -> bool;

    /// Asks for the copies of a grant, if its reply does not tell them.
    fn ask_for_copies(&mut self, session: &Self::Session, timeout: Duration, now: Boottime);

    /// Sends the release of a session. `end` tells how its command ended, if it ran.
    fn release(&mut self, session: &mut Self::Session, release: Release<'_, Self::Failure>, now: Boottime);

    /// Makes earlier commands of a session irrelevant, also those that have not left. If `is_sole`,
    /// no other session uses the connection, and the next one is opened without a pause.
    fn ignore(&mut self, session: &Self::Session, is_sole: bool);

    /// The command in flight of a session does not matter any more. Tells whether the server may
    /// carry it out nevertheless.
    fn abandon(&mut self, session: &Self::Session, is_sole: bool) -> bool;

    /// Forgets a session. `subscribed` tells whether it was subscribed to its channel.
    fn forget(&mut self, session: Self::Session, subscribed: bool, is_last: bool);

    /// Whether the server may have got the command of a session that was sent at `sent`, before
    /// this failure of the connection.
    fn may_have_got(&self, session: &Self::Session, sent: Boottime, failure: &Self::Failure) -> bool;

    /// The connections to the server.
    fn line(&self) -> &Line<Self::Failure>;

    /// The connections to the server.
    fn line_mut(&mut self) -> &mut Line<Self::Failure>;

    /// Opens a connection if there is none and it is time to; tells whether it did.
    fn open(&mut self, now: Boottime) -> bool;

    /// Closes the connection until it is needed again.
    fn rest(&mut self);

    /// Leaves a connection that failed, and opens another one at `at`. If `sets_aside`, what
    /// arrives on it is kept for [`read_aside`](Self::read_aside).
    fn reconnect(&mut self, failure: Self::Failure, at: Boottime, sets_aside: bool);

    /// Retries no more; the result is the failure to report. A connection that is open stays so
    /// for the releases.
    fn give_up(&mut self, failure: Self::Failure) -> Self::Failure;

    /// How many replies come before the last one that is awaited. `None` if the connection can't be
    /// set aside.
    fn replies_before_last(&self) -> Option<usize> {
        None
    }

    /// Asks for what has arrived on the connection set aside.
    fn read_aside(&mut self) {}

    /// Asks for the failure of a server that has been silent for too long, by
    /// [`Driver::on_failure`].
    fn report_silence(&mut self);

    /// What a failure says about the next attempt.
    fn class(&self, failure: &Self::Failure) -> FailureClass;

    /// Whether a failure means that the server, or its socket, has no room now for another client.
    fn is_crowded(&self, _failure: &Self::Failure) -> bool {
        false
    }

    /// The pause of a session before the next attempt, after so many failures, the last of which is
    /// this.
    fn pause(&self, client: &LeaseClient<Self::Failure>, id: SessionId, failures: u32, _: &Self::Failure) -> Duration {
        client.retry_after(failures, id)
    }

    /// The failure of a server that has sent what fits no command.
    fn unexpected(&self) -> Self::Failure;

    /// The failure of a server that has not answered in time, which prefers what an earlier failure
    /// says.
    fn silent(&self, earlier: Option<&Self::Failure>) -> Self::Failure;

    /// When there is something to do even if nothing arrives, if a session needs the server.
    fn timeout(&self) -> Option<Boottime>;
}

/// The release of a session.
pub struct Release<'r, F> {
    /// What the session had got.
    pub client: &'r mut LeaseClient<F>,
    /// How the command ended that ran under the grant.
    pub end: Option<End>,
    /// Whether there is a grant to give back.
    pub has_grant: bool,
    /// Whether no other session uses the connection.
    pub is_sole: bool,
    /// How long the reply may take.
    pub timeout: Duration,
}

/// What the server knows of a session, what the session had got, and the server.
pub type Parts<'d, S> = (&'d mut <S as Server>::Session, &'d LeaseClient<<S as Server>::Failure>, &'d mut S);

/// Drives the sessions of a process at a server.
pub struct Driver<S: Server> {
    server: S,
    connect_timeout: Duration,
    members: BTreeMap<SessionId, Member<S>>,
    /// The number of requests so far.
    made: u64,
    /// When which session needs attention.
    timers: Timers<SessionId>,
    /// When something last arrived on this connection.
    heard: Option<Boottime>,
    /// When the server last went on with a command on this connection.
    served: Option<Boottime>,
    /// The connection that was set aside, if a release left over it.
    aside: Option<Aside>,
    /// Whether a failure for good has left the connection to the releases. It may be that of a
    /// login.
    is_spent: bool,
    reports: VecDeque<(SessionId, Report)>,
}

impl<S: Server> Driver<S> {
    /// How many bytes a session takes, without what it refers to.
    pub const SESSION_SIZE: usize = size_of::<Member<S>>();

    /// No sessions yet. A request fails if the server does not answer within `connect_timeout`.
    pub fn new(server: S, connect_timeout: Duration) -> Self {
        Self {
            server,
            connect_timeout,
            members: BTreeMap::new(),
            made: 0,
            timers: Timers::default(),
            heard: None,
            served: None,
            aside: None,
            is_spent: false,
            reports: VecDeque::new(),
        }
    }

    /// How the server is asked.
    pub fn server(&self) -> &S {
        &self.server
    }

    /// How the server is asked.
    pub fn server_mut(&mut self) -> &mut S {
        &mut self.server
    }

    /// The sessions, in order.
    pub fn ids(&self) -> impl Iterator<Item = SessionId> {
        self.members.keys().copied()
    }

    /// Whether no session is left.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// What a session had got, unless it is being released.
    pub fn client(&self, id: SessionId) -> Option<&LeaseClient<S::Failure>> {
        self.members.get(&id).filter(|member| member.releasing.is_none()).map(|member| &member.client)
    }

    /// What the server knows of a session, with what the session had got.
    pub fn session(&mut self, id: SessionId) -> Option<Parts<'_, S>> {
        let member = self.members.get_mut(&id)?;
        Some((&mut member.session, &member.client, &mut self.server))
    }

    /// The only session, if it is not being released, and whether nothing of it is in flight.
    pub fn sole(&self) -> Option<(SessionId, bool)> {
        let (id, member) = self.members.first_key_value().filter(|_| self.members.len() == 1)?;
        member.releasing.is_none().then_some((*id, member.turn == Turn::Quiet))
    }

    /// The names of the state of a session whose connection no other uses, for tests that count
    /// what they reach.
    pub fn sole_state_name(&self) -> Option<&'static str> {
        let member = self.members.values().next().filter(|_| self.members.len() == 1)?;
        Some(if member.releasing.is_some() { "releasing" } else { member.client.state().name() })
    }

    /// Begins to make a request at `now`.
    pub fn acquire(&mut self, request: Request, options: AcquireOptions, now: Boottime) {
        let (id, waits) = (request.session, request.wait);
        let client = match self.new_client(&request, options, now) {
            Ok(client) => client,
            Err(error) => return self.reports.push_back((id, Report::Standing(Err(error)))),
        };
        let session = match self.server.session(request, options.replicas) {
            Ok(session) => session,
            Err(error) => return self.reports.push_back((id, Report::Standing(Err(error)))),
        };
        let is_old = self.members.is_empty() && self.heard.is_some_and(|heard| now - heard > TRUSTED);
        if is_old || self.is_spent {
            self.server.rest();
            self.lose_connection();
        }
        if self.members.is_empty() {
            self.server.line_mut().open_from(options.from);
        } else if self.server.line().failures() == 0 {
            // The connection may rest.
            self.server.line_mut().hurry();
        }
        self.made += 1;
        self.members.insert(id, Member::new(session, client, waits, self.made));
        if self.is_closed() {
            self.schedule(id);
        } else {
            self.begin(id, now);
        }
    }

    fn new_client(
        &self,
        request: &Request,
        AcquireOptions { replicas, from, returns }: AcquireOptions,
        now: Boottime,
    ) -> Result<LeaseClient<S::Failure>, Error> {
        let terms = request.terms.ok_or_else(|| Error::Usage("a request to this store needs a ttl".into()))?;
        // The rest is for taking the request back if the server does not answer.
        let until = from.max(now) + self.connect_timeout / 10 * 9;
        let needs_copies = replicas != Replicas::default();
        Ok(LeaseClient::new(terms, request.claims.len(), needs_copies, until).returning(returns))
    }

    /// The number of the place of a session in the queue, while it waits.
    pub fn place(&self, id: SessionId) -> Option<u64> {
        self.members.get(&id)?.client.place()
    }

    /// Begins to give up the place of a session in the queue, which counts the request as busy. The
    /// report tells whether it was granted in the meantime.
    pub fn give_up(&mut self, id: SessionId, now: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let commands = member.client.give_up(now + self.connect_timeout);
        if !commands.is_empty() {
            self.ignore_earlier(id);
            self.send_if_open(id, commands, now);
        }
    }

    /// Why the server can't be used, once that is known of a session.
    pub fn failure(&self, id: SessionId) -> Option<&S::Failure> {
        let member = self.members.get(&id)?;
        if let State::Failed { failure, .. } = member.client.state() { Some(failure) } else { None }
    }

    /// Why the server has not answered a session for a while.
    pub fn trouble(&self, id: SessionId) -> Option<&S::Failure> {
        let own = self.members.get(&id).and_then(|member| member.trouble.as_ref());
        own.map(|trouble| &trouble.failure).or(self.server.line().outage())
    }

    /// Whether the server did not know a waiting session since the last call, so that the session
    /// has made its request again.
    pub fn take_asked_again(&mut self, id: SessionId) -> bool {
        self.members.get_mut(&id).is_some_and(|member| member.client.take_asked_again())
    }

    /// Whether there is a report to hand out.
    pub fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Hands out the next report.
    pub fn next_report(&mut self) -> Option<(SessionId, Report)> {
        self.reports.pop_front()
    }

    /// Sends what a session has to say first on a connection, or again after an error reply.
    fn begin(&mut self, id: SessionId, now: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.releasing.is_some() {
            self.send_release(id, now);
        } else {
            let commands = member.client.on_connect();
            self.send(id, commands, now);
        }
    }

    /// Sends commands of a session, or leaves what it has to say to the next connection.
    fn send_if_open(&mut self, id: SessionId, commands: Vec<Command>, now: Boottime) {
        if self.is_closed() { self.schedule(id) } else { self.send(id, commands, now) }
    }

    /// Sends these commands of a session, unless the server has still to answer one.
    pub fn send_if_quiet(&mut self, id: SessionId, commands: Vec<Command>, now: Boottime) {
        if self.members.get(&id).is_some_and(|member| member.turn == Turn::Quiet) {
            self.send(id, commands, now);
        }
    }

    /// Sends commands of a session.
    fn send(&mut self, id: SessionId, commands: Vec<Command>, now: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        for command in commands {
            let timeout = member.client.reply_timeout(self.connect_timeout);
            if self.server.say(&mut member.session, &member.client, command, timeout, now) {
                member.turn = Turn::InFlight { sent: now };
            }
        }
        self.schedule(id);
    }

    /// Moves the timer of a session to the instant at which the session needs attention.
    fn schedule(&mut self, id: SessionId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        self.timers.set(id, member.next(self.heard, self.served, self.connect_timeout));
    }

    /// Something has arrived on the connection, whatever it is about. `is_progress` tells whether
    /// the server goes on with a command, and does not only let it wait.
    pub fn on_sign_of_life(&mut self, is_progress: bool, now: Boottime) {
        self.heard = Some(now);
        if is_progress {
            self.served = Some(now);
        }
    }

    /// The server has answered a command of a session that was sent at `sent`.
    pub fn on_answer(&mut self, id: SessionId, command: Command, reply: LeaseReply, sent: Boottime, now: Boottime) {
        // A replica that was the primary knows no session and refuses every request, and so does an
        // empty server without memory. If its answer ended the outage, the client would ask it
        // again and again without a pause.
        let is_trouble_over = reply != LeaseReply::Unknown;
        if is_trouble_over {
            self.server.line_mut().served();
        }
        let Some(member) = self.members.get_mut(&id) else { return };
        member.turn = Turn::Quiet;
        let was_waiting = matches!(member.client.state(), State::Waiting { .. });
        let Some(commands) = member.client.on_reply(command, reply, sent, now) else {
            return self.on_refused(id, self.server.unexpected(), now);
        };
        if is_trouble_over {
            member.trouble = None;
        }
        let is_changed = match member.client.state() {
            State::Asking { .. } => false,
            State::Waiting { .. } => !was_waiting,
            State::Replicating { .. } => {
                if commands.is_empty() {
                    self.server.ask_for_copies(
                        &member.session,
                        member.client.replica_timeout(self.connect_timeout),
                        now,
                    );
                    member.turn = Turn::InFlight { sent: now };
                }
                false
            }
            _ => true,
        };
        if is_changed {
            self.report(id);
        }
        self.send(id, commands, now);
    }

    /// The server has told the copies of a grant. `lacking` is the error about those that are
    /// missing.
    pub fn on_copies(&mut self, id: SessionId, lacking: Option<Error>, now: Boottime) {
        self.server.line_mut().served();
        let Some(member) = self.members.get_mut(&id) else { return };
        member.turn = Turn::Quiet;
        member.client.on_replicated(lacking);
        self.report(id);
        self.send(id, vec![], now);
    }

    /// A waiter that no message reaches asks again at `at` at the latest.
    pub fn look_by(&mut self, id: SessionId, at: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.client.look_by(at);
        self.schedule(id);
    }

    /// The server has answered that it has no time for the request now, so its wait decides when to
    /// give up.
    pub fn keep_asking(&mut self, id: SessionId, now: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.releasing.is_none() && member.waits && member.client.keep_asking(now + EVER) {
            self.reports.push_back((id, Report::Standing(Ok(Standing::Waiting))));
        }
        self.schedule(id);
    }

    /// The server sends the command of a session again in a while: it can't carry it out now.
    pub fn on_delay(&mut self, id: SessionId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.turn = Turn::Delayed;
        }
    }

    /// The command that was delayed has been sent.
    pub fn on_resumed(&mut self, id: SessionId, now: Boottime) {
        if let Some(member) = self.members.get_mut(&id) {
            member.turn = Turn::InFlight { sent: now };
        }
    }

    /// The command of a session in flight was not carried out, and the connection fails.
    pub fn on_nothing_done(&mut self, id: SessionId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.turn = Turn::Quiet;
        }
    }

    /// The connection is closed, without a failure. What was in flight is said over the next one.
    pub fn lose_connection(&mut self) {
        (self.heard, self.served, self.is_spent) = (None, None, false);
        self.members.values_mut().for_each(|member| member.on_disconnect(|_, _| false));
        self.schedule_all();
    }

    fn schedule_all(&mut self) {
        let ids: Vec<_> = self.ids().collect();
        ids.into_iter().for_each(|id| self.schedule(id));
    }

    /// A command of a session got an error reply that is about this command.
    pub fn on_refused(&mut self, id: SessionId, failure: S::Failure, now: Boottime) {
        self.server.line_mut().served();
        let Some(member) = self.members.get_mut(&id) else { return };
        member.turn = Turn::Quiet;
        if member.gives_up(self.server.class(&failure), now) {
            return self.fail(id, failure, now);
        }
        let failures = member.trouble.as_ref().map_or(1, |trouble| trouble.failures.saturating_add(1));
        member.turn = Turn::Retry { at: now + member.client.retry_after(failures, id) };
        member.trouble = Some(Box::new(Trouble { failures, failure }));
        self.schedule(id);
    }

    /// A message has come on the channel of a session.
    pub fn on_message(&mut self, id: SessionId, now: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.releasing.is_none() {
            let commands = member.client.on_message();
            // The command in flight reports whatever has happened by now.
            if !member.is_in_flight() {
                self.send(id, commands, now);
            }
        }
    }

    /// The connection failed, and each session decides whether it goes on over the next one. If
    /// `is_timeout`, the server was silent.
    pub fn on_failure(&mut self, failure: S::Failure, is_timeout: bool, now: Boottime) {
        let sets_aside = is_timeout && self.set_aside();
        let failures = self.server.line().failures().saturating_add(1);
        let class = self.server.class(&failure);
        let active: Vec<_> = self.members.iter().filter(|(_, member)| !member.is_over()).map(|(id, _)| *id).collect();
        let (mut pause, mut ended) = (None, Vec::new());
        for id in &active {
            if self.server.is_crowded(&failure) {
                self.keep_asking(*id, now);
            }
            let Some(member) = self.members.get_mut(id) else { continue };
            member.on_disconnect(|session, sent| self.server.may_have_got(session, sent, &failure));
            if member.gives_up(class, now) {
                ended.push(*id);
            }
            let own = self.server.pause(&member.client, *id, failures, &failure);
            pause = Some(pause.map_or(own, |pause: Duration| pause.min(own)));
        }
        (self.heard, self.served, self.is_spent) = (None, None, false);
        let is_releasing = self.members.values().any(|member| member.releasing.is_some());
        let failure = if !ended.is_empty() && ended.len() == active.len() && !is_releasing {
            // A server that refuses the login may still have carried out the requests behind it,
            // and carries out the releases as well.
            self.is_spent = true;
            self.server.give_up(failure)
        } else {
            self.server.reconnect(failure.clone(), now + pause.unwrap_or_default(), sets_aside);
            self.server.line().outage().cloned().unwrap_or(failure)
        };
        ended.into_iter().for_each(|id| self.fail(id, failure.clone(), now));
        active.into_iter().for_each(|id| self.schedule(id));
        if !self.is_spent && !self.needs_server() {
            self.server.rest();
        }
    }

    /// Whether there is no connection and none is being opened.
    fn is_closed(&self) -> bool {
        self.server.line().opens_at().is_some()
    }

    /// Whether a session has anything left to say.
    fn needs_server(&self) -> bool {
        self.members.values().any(|member| !member.is_over())
    }

    /// Deals with a session whose timer is over; tells whether the server may still answer.
    fn on_timer(&mut self, id: SessionId, now: Boottime) -> bool {
        let (heard, served, connect_timeout) = (self.heard, self.served, self.connect_timeout);
        let Some(member) = self.members.get_mut(&id) else { return true };
        member.client.expire(now);
        if member.is_over() {
            self.report(id);
            self.schedule(id);
            return true;
        }
        if member.silent_at(heard, connect_timeout).is_some_and(|at| at <= now) {
            self.server.report_silence();
            return false;
        }
        if member.until(served, connect_timeout).is_some_and(|until| until <= now) {
            if member.is_in_flight() && heard.is_none() {
                // Nothing has arrived on this connection, and the transport knows what is missing.
                self.server.report_silence();
                return false;
            }
            let own = member.trouble.as_ref().map(|trouble| trouble.failure.clone());
            let failure = self.server.silent(own.as_ref().or(self.server.line().outage()));
            self.fail(id, failure, now);
            return true;
        }
        match member.turn {
            Turn::Retry { at } if at <= now => self.begin(id, now),
            Turn::Quiet if member.releasing.is_none() => {
                let commands = member.client.tick(now);
                self.send(id, commands, now);
            }
            _ => self.schedule(id),
        }
        true
    }

    /// A session makes no further attempt at what it was doing.
    pub fn fail(&mut self, id: SessionId, failure: S::Failure, now: Boottime) {
        let Some(member) = self.members.get_mut(&id) else { return };
        match &mut member.releasing {
            None => {
                member.client.on_failure(failure, member.is_in_flight());
                self.server.ignore(&member.session, false);
                self.report(id);
                self.schedule(id);
            }
            Some(_) => self.look_aside(id, Err(failure.into()), now),
        }
    }

    fn report(&mut self, id: SessionId) {
        let Some(member) = self.members.get(&id) else { return };
        let standing = member.client.standing();
        self.reports.push_back((id, Report::Standing(standing)));
    }

    /// Makes earlier commands of a session irrelevant.
    fn ignore_earlier(&mut self, id: SessionId) {
        let is_sole = self.members.len() == 1;
        if let Some(member) = self.members.get(&id) {
            self.server.ignore(&member.session, is_sole);
        }
    }

    /// Forgets a session.
    fn remove(&mut self, id: SessionId) {
        let Some(Member { session, mut client, .. }) = self.members.remove(&id) else { return };
        self.timers.set(id, None);
        self.server.forget(session, client.unsubscribe(), self.members.is_empty());
        if self.members.is_empty() && std::mem::take(&mut self.is_spent) {
            // Nothing is read on it, so whatever comes would call for attention for ever.
            self.server.rest();
        }
    }

    /// Forgets the sessions and closes the connection.
    pub fn close(&mut self) {
        self.server.rest();
        self.members.clear();
        (self.timers, self.aside) = (Timers::default(), None);
        (self.heard, self.served) = (None, None);
    }

    /// Takes in that the time is `now` and that nothing more has arrived.
    pub fn on_time(&mut self, now: Boottime) {
        self.end_aside(now);
        while let Some(id) = self.timers.take_due(now) {
            if !self.on_timer(id, now) {
                return;
            }
        }
        if self.is_closed() && self.needs_server() && self.server.open(now) {
            (self.heard, self.served) = (None, None);
            // Requests that were never answered come last, in the order in which they were made.
            let order = |(id, member): (&SessionId, &Member<S>)| (member.persistence().1.is_some(), member.number, *id);
            let mut ids: Vec<_> = self.members.iter().map(order).collect();
            ids.sort_unstable();
            ids.into_iter().for_each(|(.., id)| self.begin(id, now));
        }
    }

    /// The instant at which [`on_time`](Self::on_time) is due even if nothing arrives.
    pub fn due(&self) -> Option<Boottime> {
        let opens = self.server.timeout().filter(|_| self.needs_server());
        [opens, self.timers.first()].into_iter().flatten().min()
    }

    /// Whether what comes on the connection may never end, since a failure for good has left it to
    /// the releases, and there are none.
    pub fn is_drained(&self) -> bool {
        self.is_spent && !self.needs_server()
    }
}
