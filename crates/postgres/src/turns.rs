//! Whose transaction is next, and when a connection is opened: what the driver of the sessions asks
//! of PostgreSQL.
//!
//! This module is pure: it has no clock and no socket.

use std::collections::VecDeque;
use std::time::Duration;

use super::failure::{ErrorKind, Failure};
use super::step::{Channel, Copies, Run, Stands, Task};
use super::work::{Work, nodes_of_request, ranges};
use rlock_model::op::Op;
use rlock_model::past::End;
use rlock_model::request::{self, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_store::engine::Engine as _;
use rlock_store::error::Error;
use rlock_store::handle::Replicas;
use rlock_store::lease::{Command, FailureClass, LeaseClient, LeaseReply, Line, Release, Server};
use rlock_store::network::{NetworkError, Stage};
use rlock_sys::clock::Boottime;
use rlock_words::Explained;

/// How many failures a refusal counts as beside itself where a server has no room for a waiter, so
/// that the first pause is 1.5 s at least.
const NO_ROOM: u32 = 8;
/// The longest pause of a holder, since its lease ends.
const HOLDER_PAUSE: Duration = Duration::from_secs(1);

/// What is asked for a session.
pub(super) struct Requester {
    request: Request,
    /// The copies of the grant that must exist before it counts.
    replicas: Replicas,
    /// The resources of the request, each once.
    resources: Vec<Resource>,
    /// Whether the session listens to its channel, or is about to.
    pub(super) listens: bool,
    /// Whether it may: a waiter far behind keeps no connection.
    pub(super) may_listen: bool,
}

impl Requester {
    /// Nothing was asked yet.
    pub(super) fn new(request: Request, replicas: Replicas) -> Self {
        let resources = request::resources(&request.claims).into_iter().cloned().collect();
        Self { request, replicas, resources, listens: false, may_listen: true }
    }

    /// The error about the copies of a grant that are missing at `server`, if there are any.
    pub(super) fn lacking(&self, Copies { standbys, on_disk }: Copies, server: &str) -> Option<Error> {
        let (count, advice) = (self.replicas.count, "or lower --replicas");
        let words = if standbys < count {
            Explained::new(
                format!("{standbys} of {count} synchronous standbys have the lock, so it was given back"),
                format!("name so many in synchronous_standby_names, {advice}"),
            )
        } else if self.replicas.on_disk && !on_disk {
            Explained::new("the disk of the server need not have the lock, so it was given back", "set fsync to on")
        } else {
            return None;
        };
        Some(Error::Unavailable(words.behind(format_args!("'{server}': "))))
    }

    fn task(&self, frees: bool, run: Run<LeaseReply>) -> Task<LeaseReply> {
        let sessions = [self.request.session].into_iter().chain(self.request.ancestors.iter().copied());
        Task {
            caller: Some(self.request.session),
            own: Vec::new(),
            ranges: ranges(&self.resources, sessions),
            frees: if frees { self.resources.clone() } else { Vec::new() },
            claims: u32::try_from(self.request.claims.len()).unwrap_or(u32::MAX),
            tells: None,
            only_reads: false,
            wants_copies: false,
            wants_room: false,
            channel: if self.listens { Channel::Begins } else { Channel::Stays },
            run,
        }
    }

    /// The transaction that carries out a command. The copies of a grant that is not held yet are
    /// asked for.
    pub(super) fn says(&self, command: Command, is_held: bool) -> Task<LeaseReply> {
        let request = self.request.clone();
        let run = move |work: &mut Work| work.command(command, &request);
        let mut task = self.task(command == Command::GiveUp, Box::new(run));
        task.wants_copies = self.replicas != Replicas::default() && !is_held;
        task.wants_room = is_held;
        if command != Command::Renew {
            task.ranges.extend(nodes_of_request(&self.resources));
        }
        task
    }

    /// The transaction that releases what the server may keep.
    pub(super) fn releases(&self, end: Option<End>) -> Task<LeaseReply> {
        let request = self.request.clone();
        let run = move |work: &mut Work| {
            work.drop_due()?;
            let reply = work.apply(Op::Release { session: request.session, end })?;
            work.answer(reply, &request)
        };
        Task { channel: Channel::Ends, ..self.task(true, Box::new(run)) }
    }
}

/// What has to happen.
pub(super) enum Action {
    /// Open a connection, to the next server if `true`.
    Open(bool),
    /// Close the connection. Nothing more arrives on it.
    Close,
    /// Begin a transaction.
    Begin(Box<Task<LeaseReply>>),
    /// Tell why the server is silent.
    ReportSilence,
}

/// The transaction under way.
pub(super) struct Speech {
    /// The session that has asked.
    pub(super) id: SessionId,
    /// Whether the session awaits the reply.
    pub(super) is_awaited: bool,
    /// `None` for a release.
    pub(super) command: Option<Command>,
    pub(super) sent: Boottime,
    pub(super) stands: Stands,
}

/// The transactions of the sessions, one after another.
pub(super) struct Turns {
    line: Line<Failure>,
    /// The number of servers that the URL names.
    servers: usize,
    /// The server that is asked, or was asked last.
    pub(super) server: String,
    /// Whether the login is done.
    is_ready: bool,
    queue: VecDeque<(Speech, Task<LeaseReply>)>,
    pub(super) speaks: Option<Speech>,
    actions: VecDeque<Action>,
}

impl Turns {
    /// No connection yet to one of so many servers, of which `server` is the first.
    pub(super) fn new(servers: usize, server: String) -> Self {
        let (queue, actions) = (VecDeque::new(), VecDeque::new());
        Self { line: Line::default(), servers, server, is_ready: false, queue, speaks: None, actions }
    }

    /// The login is done.
    pub(super) fn on_ready(&mut self) {
        self.is_ready = true;
    }

    /// Whether there is a connection over which nothing is under way, and nothing waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.is_ready && self.speaks.is_none() && self.queue.is_empty()
    }

    /// Hands out the next action. A transaction begins once the one before has ended.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        let may_begin = self.is_ready && self.speaks.is_none();
        let (speech, task) = if may_begin { self.queue.pop_front() } else { None }?;
        self.speaks = Some(speech);
        Some(Action::Begin(Box::new(task)))
    }

    /// Closes the connection until an instant at which another one is opened.
    pub(super) fn rest_until(&mut self, until: Boottime) {
        self.close();
        self.line.close(until);
    }

    fn close(&mut self) {
        self.queue.clear();
        self.actions.clear();
        (self.is_ready, self.speaks) = (false, None);
        self.actions.push_back(Action::Close);
    }

    fn say(&mut self, id: SessionId, command: Option<Command>, task: Task<LeaseReply>, sent: Boottime) {
        self.queue.push_back((Speech { id, is_awaited: true, command, sent, stands: Stands::default() }, task));
    }

    /// Makes what a session has said irrelevant. Nothing more of it leaves.
    fn forget(&mut self, id: SessionId) {
        self.queue.retain(|(speech, _)| speech.id != id);
        self.speaks.iter_mut().filter(|speech| speech.id == id).for_each(|speech| speech.is_awaited = false);
    }

    fn failure(&self, kind: ErrorKind) -> Failure {
        kind.of(&self.server)
    }
}

/// When the next connection is opened after a failure: all servers are tried before there is a
/// pause until `at`.
pub(super) fn next_attempt(line: &Line<Failure>, servers: usize, at: Boottime) -> Boottime {
    if (line.failures() as usize).is_multiple_of(servers) { at } else { Boottime::default() }
}

impl Server for Turns {
    type Failure = Failure;
    type Session = Requester;

    /// Somebody else may have the lock of the namespace for two seconds.
    const SILENCE: Duration = Duration::from_secs(3);

    fn session(&self, request: Request, replicas: Replicas) -> Result<Requester, Error> {
        Ok(Requester::new(request, replicas))
    }

    fn say(
        &mut self,
        session: &mut Requester,
        client: &LeaseClient<Failure>,
        command: Command,
        _timeout: Duration,
        now: Boottime,
    ) -> bool {
        if command == Command::Subscribe {
            // It goes with the next transaction.
            session.listens = session.may_listen;
            return false;
        }
        session.listens &= client.is_subscribed();
        let task = session.says(command, client.held().is_some());
        self.say(session.request.session, Some(command), task, now);
        true
    }

    /// The reply to the request has told them.
    fn ask_for_copies(&mut self, _session: &Requester, _timeout: Duration, _now: Boottime) {}

    fn release(&mut self, session: &mut Requester, release: Release<'_, Failure>, now: Boottime) {
        let task = session.releases(release.end);
        self.say(session.request.session, None, task, now);
    }

    fn ignore(&mut self, session: &Requester, is_sole: bool) {
        self.forget(session.request.session);
        if is_sole {
            self.line.hurry();
        }
    }

    fn abandon(&mut self, session: &Requester, is_sole: bool) -> bool {
        // A transaction that only this session waits for is never committed without it.
        let id = session.request.session;
        self.speaks.as_ref().is_some_and(|speech| speech.id == id && (speech.stands.may_be_committed || !is_sole))
    }

    fn forget(&mut self, session: Requester, _subscribed: bool, is_last: bool) {
        self.forget(session.request.session);
        if is_last && self.speaks.as_ref().is_some_and(|speech| !speech.stands.may_be_committed) {
            self.rest();
        }
    }

    fn may_have_got(&self, session: &Requester, _sent: Boottime, _failure: &Failure) -> bool {
        let id = session.request.session;
        self.speaks.as_ref().is_some_and(|speech| speech.id == id && speech.stands.may_be_committed)
    }

    fn line(&self) -> &Line<Failure> {
        &self.line
    }

    fn line_mut(&mut self) -> &mut Line<Failure> {
        &mut self.line
    }

    fn open(&mut self, now: Boottime) -> bool {
        let opens = self.line.open(now);
        if opens {
            self.actions.push_back(Action::Open(self.line.failures() > 0));
        }
        opens
    }

    fn rest(&mut self) {
        self.rest_until(Boottime::default());
    }

    fn reconnect(&mut self, failure: Failure, at: Boottime, _sets_aside: bool) {
        self.close();
        self.line.fail(failure.prefer(self.line.outage().cloned()));
        self.line.close(next_attempt(&self.line, self.servers, at));
    }

    fn give_up(&mut self, failure: Failure) -> Failure {
        let failure = failure.prefer(self.line.outage().cloned());
        self.rest();
        self.line.served();
        failure
    }

    fn report_silence(&mut self) {
        self.actions.push_back(Action::ReportSilence);
    }

    fn class(&self, failure: &Failure) -> FailureClass {
        failure.kind().class_among(self.servers > 1)
    }

    fn is_crowded(&self, failure: &Failure) -> bool {
        // A crowd at the socket has to wait, too, but takes no time of the server.
        matches!(failure.kind(), ErrorKind::TooManyClients(_) | ErrorKind::Network(NetworkError::QueueFull))
    }

    fn pause(&self, client: &LeaseClient<Failure>, id: SessionId, failures: u32, failure: &Failure) -> Duration {
        // Each login that is refused takes time of the server from those that it lets in.
        let has_no_room = matches!(failure.kind(), ErrorKind::TooManyClients(_));
        let pause = client.retry_after(failures.saturating_add(if has_no_room { NO_ROOM } else { 0 }), id);
        if client.held().is_some() { pause.min(HOLDER_PAUSE) } else { pause }
    }

    fn unexpected(&self) -> Failure {
        self.failure(ErrorKind::UnexpectedReply)
    }

    fn silent(&self, earlier: Option<&Failure>) -> Failure {
        self.failure(ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting))).prefer(earlier.cloned())
    }

    fn timeout(&self) -> Option<Boottime> {
        self.line.opens_at()
    }
}
