//! The clients of a server, with their connections, their sessions and their timers.
//!
//! - `entry`: a client with its connection; `listeners`: the listening sockets and their pauses.
//! - `log`: lines on standard error.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;

use self::entry::Entry;
use self::listeners::Listeners;
use self::log::say;
use super::client::Client;
use super::connection::{Connection, Received};
use super::event::{Action, Event};
use super::line::Line;
use super::listen::Listener;
use super::peer;
use super::rules::Rules;
use super::worker::Worker;
use rlock_arguments::lines::LineParser;
use rlock_model::past::End;
use rlock_model::request::{Job, Process, Request, SessionId, Terms};
use rlock_store::sessions::{Report, Sessions};
use rlock_store::{AcquireOptions, identity};
use rlock_sys::clock::Boottime;
use rlock_sys::rights::Closer;
use rlock_sys::timers::Timers;

mod entry;
mod listeners;
mod log;

/// How many lines of one client are taken in before it is the turn of the others.
const LINES_PER_TURN: usize = 64;
/// How many connections are accepted before it is the turn of the clients.
const ACCEPTED_PER_TURN: usize = 64;
/// How many ready connections are taken from the kernel at once.
const EVENTS_PER_TURN: usize = 256;

/// The limits of a server, which refuse and never evict. A client counts until the store has given
/// back what it held, so that clients who come and go cannot pile up work at a store that hangs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections: usize,
    pub(super) waiting: usize,
}

/// A server with its clients.
pub(super) struct Server {
    rules: Arc<Rules>,
    limits: Limits,
    /// The lengths of the leases, in a store that has leases.
    terms: Option<Terms>,
    /// How many entries the history of each resource keeps.
    history: u32,
    verbose: bool,
    pub(super) sessions: Box<dyn Sessions>,
    worker: Worker,
    /// The descriptors of the connections and listeners.
    epoll: OwnedFd,
    listeners: Listeners,
    parser: LineParser,
    clients: HashMap<u64, Entry>,
    /// The client of each session.
    owners: HashMap<SessionId, u64>,
    timers: Timers<u64>,
    /// The clients that may have lines which no descriptor announces.
    backlog: BTreeSet<u64>,
    /// The clients whose descriptors may be registered for other events than matter now. Most
    /// clients wait for an answer and have it before the loop sleeps, so nothing changes for them.
    changed: BTreeSet<u64>,
    waiting: usize,
    next_id: u64,
    /// Closes what may have descriptors of clients left.
    closer: Closer,
    /// Whether a client lost a lock.
    pub(super) has_lost: bool,
}

impl Server {
    /// A server without clients.
    pub(super) fn new(
        rules: Arc<Rules>,
        limits: Limits,
        (terms, history): (Option<Terms>, u32),
        verbose: bool,
        sessions: Box<dyn Sessions>,
        worker: Worker,
    ) -> io::Result<Self> {
        Ok(Self {
            rules,
            limits,
            terms,
            history,
            verbose,
            sessions,
            worker,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listeners: Listeners::default(),
            parser: LineParser::default(),
            clients: HashMap::new(),
            owners: HashMap::new(),
            timers: Timers::default(),
            backlog: BTreeSet::new(),
            changed: BTreeSet::new(),
            waiting: 0,
            next_id: 0,
            closer: Closer::default(),
            has_lost: false,
        })
    }

    /// Accepts clients of a listener from now on.
    pub(super) fn listen(&mut self, listener: Listener) -> io::Result<()> {
        let id = self.new_id();
        self.log(&format!("listening on {}", listener.address));
        self.listeners.add(&self.epoll, id, listener)
    }

    /// Serves the client on standard input and output.
    pub(super) fn serve_stdio(&mut self) -> io::Result<()> {
        let (name, process) = peer::of_stdio();
        self.add_client(Connection::of_stdio()?, name, process, true);
        Ok(())
    }

    /// Whether there is no client and nothing to release.
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The instant at which [`tick`](Self::tick) is due.
    pub(super) fn timeout(&self) -> Option<Boottime> {
        if !self.backlog.is_empty() {
            return Some(Boottime::default());
        }
        self.timers.first().into_iter().chain(self.listeners.timeout()).min()
    }

    /// The descriptors to poll besides those of the store.
    pub(super) fn descriptors(&self) -> [(BorrowedFd<'_>, PollFlags); 2] {
        [(self.epoll.as_fd(), PollFlags::IN), (self.worker.as_fd(), PollFlags::IN)]
    }

    /// Accepts no more clients, and ends those that hold nothing.
    pub(super) fn drain(&mut self) {
        self.listeners.close(&self.epoll, &mut self.closer);
        self.each_client(|| Event::Drain);
    }

    /// Ends all clients.
    pub(super) fn stop(&mut self) {
        self.each_client(|| Event::Stop);
    }

    fn each_client(&mut self, event: impl Fn() -> Event) {
        let ids: Vec<_> = self.clients.keys().copied().collect();
        ids.into_iter().for_each(|id| self.feed(id, event()));
    }

    /// Takes in what the clients have sent.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&at_once)) {
            Err(Errno::INTR) => return Ok(()),
            result => result?,
        };
        for event in events {
            let (id, flags) = (event.data.u64(), event.flags);
            if self.listeners.contains(id) {
                self.accept(id);
                continue;
            }
            let Some(entry) = self.clients.get_mut(&id) else { continue };
            let Some(connection) = &mut entry.connection else { continue };
            if flags.contains(EventFlags::OUT) {
                connection.send();
            }
            if flags.contains(EventFlags::ERR) {
                self.feed(id, Event::End);
                continue;
            }
            entry.has_ended |= flags.intersects(EventFlags::RDHUP | EventFlags::HUP);
            self.pump(id);
        }
        Ok(())
    }

    fn accept(&mut self, listener: u64) {
        for _ in 0..ACCEPTED_PER_TURN {
            let Ok(accepted) = self.listeners.accept(&self.epoll, listener) else { return };
            let Some((socket, address)) = accepted else { continue };
            let (name, process) = peer::of_socket(&socket, address, self.next_id);
            let mut connection = Connection::of_socket(socket);
            if self.clients.len() + self.closer.open() >= self.limits.connections {
                connection.say("error full");
                self.close(connection);
                self.log(&format!("{name}: refused, there are {} clients", self.clients.len()));
                continue;
            }
            self.add_client(connection, name, process, false);
        }
    }

    fn add_client(&mut self, connection: Connection, name: String, process: Process, has_time: bool) {
        let id = self.new_id();
        self.log(&format!("{name}: accepted"));
        let client = Client::new(&self.rules, Boottime::now(), has_time);
        self.clients.insert(id, Entry::new(client, connection, name, process));
        self.refresh(id);
    }

    /// Takes in the lines of a client, as far as it is ready for them.
    fn pump(&mut self, id: u64) {
        for _ in 0..LINES_PER_TURN {
            let Some(entry) = self.clients.get_mut(&id) else { return };
            if entry.must_end() {
                return self.feed(id, Event::End);
            }
            let takes_lines = entry.takes_lines();
            let Some(connection) = &mut entry.connection else { return };
            if !takes_lines {
                return self.refresh(id);
            }
            let event = match connection.next_line() {
                Some(Ok(line)) => Event::Line(Line::parse(&line, &mut self.parser)),
                Some(Err(_)) => Event::LineTooLong,
                None => match connection.receive() {
                    Received::Bytes => continue,
                    Received::Nothing => return self.refresh(id),
                    Received::Descriptors => Event::Descriptors,
                    Received::End => Event::End,
                },
            };
            self.feed(id, event);
        }
        self.backlog.insert(id);
        self.refresh(id);
    }

    /// Gives an event to a client, and does what follows.
    fn feed(&mut self, id: u64, event: Event) {
        let Some(entry) = self.clients.get_mut(&id) else { return };
        let may_wait = self.waiting < self.limits.waiting;
        let actions = entry.client.on(event, Boottime::now(), &self.rules, may_wait, new_id);
        for action in actions {
            self.perform(id, action);
        }
        self.refresh(id);
    }

    fn perform(&mut self, id: u64, action: Action) {
        let Some(entry) = self.clients.get_mut(&id) else { return };
        match action {
            Action::Say(line) => {
                if let Some(connection) = &mut entry.connection {
                    connection.say(&line);
                }
            }
            Action::Show(listing) => {
                if let Some(connection) = &mut entry.connection {
                    connection.show(listing);
                }
            }
            Action::Acquire { session, parent, held_above, claims, wait } => {
                self.owners.insert(session, id);
                let (ancestors, process) = (parent.into_iter().collect(), entry.process.clone());
                let job = Job { history: self.history, held_above, ..Job::default() };
                let request = Request { session, ancestors, claims, wait, terms: self.terms, job, process };
                self.sessions.acquire(request, AcquireOptions::default());
            }
            Action::Release(session) => {
                self.owners.insert(session, id);
                self.sessions.release(session, Some(End::KEPT), false);
            }
            Action::Ask(question) => self.worker.ask(id, question),
            Action::Log(text) if self.verbose => say(&format!("{}: {text}", entry.name)),
            Action::Log(_) => {}
            Action::Warn(text) => say(&format!("warning: {}: {text}", entry.name)),
            Action::Close => {
                if let Some(connection) = entry.connection.take() {
                    if self.verbose {
                        say(&format!("{}: closed", entry.name));
                    }
                    self.close(connection);
                }
            }
        }
    }

    /// Closes a connection. The kernel forgets its descriptor, which stays registered until then.
    fn close(&mut self, connection: Connection) {
        if let Some(socket) = connection.close() {
            // The thread may take long, and the loop would spin.
            let _ = epoll::delete(&self.epoll, &socket);
            self.closer.close(socket);
        }
    }

    /// Takes in what the store and the worker report, until nothing is left.
    pub(super) fn settle(&mut self) {
        loop {
            self.sessions.advance();
            let mut is_settled = !self.take_reports();
            while let Some((id, answer)) = self.worker.next_answer() {
                is_settled = false;
                self.feed(id, Event::Answer(answer));
            }
            if is_settled {
                return;
            }
        }
    }

    /// Takes in what the store reports. Returns whether there was anything.
    fn take_reports(&mut self) -> bool {
        let mut is_any = false;
        while let Some((session, report)) = self.sessions.next_report() {
            is_any = true;
            let is_over = match &report {
                Report::Standing(Ok(standing)) => standing.is_over(),
                Report::Standing(Err(_)) | Report::Released(_) => true,
            };
            if is_over && matches!(report, Report::Standing(_)) {
                // The client has nothing left, and the store may.
                self.sessions.release(session, Some(End::KEPT), false);
            }
            let owner = if is_over { self.owners.remove(&session) } else { self.owners.get(&session).copied() };
            if let Some(id) = owner {
                self.feed(id, Event::Report(session, report));
            }
        }
        is_any
    }

    /// Takes in the lines that no descriptor announces, and that time has passed.
    pub(super) fn tick(&mut self) -> io::Result<()> {
        for id in std::mem::take(&mut self.backlog) {
            self.pump(id);
        }
        let now = Boottime::now();
        while let Some(id) = self.timers.take_due(now) {
            let Some(entry) = self.clients.get_mut(&id) else { continue };
            let is_deaf = entry.taken_until.is_some_and(|until| until <= now);
            self.feed(id, if is_deaf { Event::End } else { Event::Tick });
        }
        self.listeners.resume(&self.epoll, now)
    }

    /// Registers the descriptors of clients for the events that matter now, before the loop sleeps.
    pub(super) fn register(&mut self) {
        for id in std::mem::take(&mut self.changed) {
            let Some(entry) = self.clients.get_mut(&id) else { continue };
            entry.register(&self.epoll, id);
            if entry.is_ready() {
                self.backlog.insert(id);
            }
        }
    }

    /// Brings the timer and the counters of a client up to date.
    fn refresh(&mut self, id: u64) {
        let Some(entry) = self.clients.get_mut(&id) else { return };
        if !entry.client.asks() {
            self.worker.forget(id);
        }
        let limit = entry.connection.as_ref().and_then(Connection::output_limit);
        entry.taken_until = limit.map(|limit| entry.taken_until.unwrap_or_else(|| Boottime::now() + limit));
        self.timers.set(id, entry.client.timeout(&self.rules).into_iter().chain(entry.taken_until).min());
        let waits = entry.client.is_queued();
        if waits != entry.waits {
            entry.waits = waits;
            self.waiting = if waits { self.waiting + 1 } else { self.waiting - 1 };
        }
        self.has_lost |= entry.client.has_lost();
        self.changed.insert(id);
        if entry.is_ready() {
            self.backlog.insert(id);
        } else if entry.connection.is_none() && entry.client.is_over() {
            self.clients.remove(&id);
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn log(&self, text: &str) {
        if self.verbose {
            say(text);
        }
    }
}

fn new_id() -> SessionId {
    // Two sessions with one id would be one session, so the server cannot go on without.
    identity::new_session().expect("the kernel has random numbers from its start")
}
