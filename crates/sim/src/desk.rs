//! The clients of a simulated lock server: the real machine of each client, driven as in `server`
//! but without descriptors and threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rlock_model::deadlock::{self, Reading};
use rlock_model::lease::Lease;
use rlock_model::mode::Mode;
use rlock_model::request::{Claim, Job, Process, Request, SessionId};
use rlock_model::span::Span;
use rlock_redis::codec::{Call, ScriptReply};
use rlock_serve::client::Client;
use rlock_serve::event::{Action, Answer, Event, Question};
use rlock_serve::line::Line;
use rlock_serve::rules::Rules;
use rlock_store::sessions::Report;
use rlock_store::{Changed, Error, Standing};
use rlock_sys::clock::Boottime;

/// How many holders and waiters are listed for a client whose wait is over.
const LISTED: u32 = 256;

/// A client that asks, and the number of its question.
pub(crate) type Asker = (u64, u64);

/// The replies to the calls of a question.
pub(crate) type Replies = Result<Vec<ScriptReply>, Error>;

/// A line of a client.
#[derive(Debug)]
pub(crate) enum Ask {
    Lock { claims: Vec<Claim>, wait: Option<Duration> },
    Upgrade,
    Shrink(Span),
    Downgrade(Mode),
    Unlock,
}

/// How a client ends its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// It closes its end, and its lines before that count.
    Closed,
    /// The connection breaks.
    Reset,
}

/// What the lock server has to do.
#[derive(Debug)]
pub(crate) enum Deed {
    /// Send a line to a client.
    Say(u64, String),
    /// Make a request for a client.
    Acquire(u64, Box<Request>),
    Release(SessionId),
    /// Ask the store a question by these calls. [`Desk::answer`] follows.
    Ask(Asker, Vec<Call>),
    /// Close the connection of a client.
    Close(u64),
}

/// The instants at which some clients need attention.
#[derive(Default)]
pub(crate) struct Timers {
    of: BTreeMap<u64, Boottime>,
    queue: BTreeSet<(Boottime, u64)>,
}

impl Timers {
    /// Sets the instant of a client, or forgets the client.
    pub(crate) fn set(&mut self, id: u64, at: Option<Boottime>) {
        let old = match at {
            Some(at) => self.of.insert(id, at),
            None => self.of.remove(&id),
        };
        if old != at {
            old.map(|old| self.queue.remove(&(old, id)));
            self.queue.extend(at.map(|at| (at, id)));
        }
    }

    pub(crate) fn first(&self) -> Option<Boottime> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// The clients whose instants have come.
    pub(crate) fn due(&self, now: Boottime) -> Vec<u64> {
        self.queue.range(..=(now, u64::MAX)).map(|(_, id)| *id).collect()
    }
}

pub(crate) struct Desk {
    rules: Rules,
    ttl: Duration,
    /// How many requests may wait.
    waiting_max: usize,
    clients: BTreeMap<u64, Entry>,
    timers: Timers,
    /// The clients that are ready for a line, or for their end.
    ready: BTreeSet<u64>,
    /// The clients that wait for their locks.
    waiting: BTreeSet<u64>,
    /// The client of each session.
    owners: BTreeMap<SessionId, u64>,
    deeds: VecDeque<Deed>,
    new_id: Box<dyn FnMut() -> SessionId>,
}

/// A client with its lines that were not taken in yet.
struct Entry {
    client: Client,
    is_open: bool,
    lines: VecDeque<Line>,
    /// Whether the client has closed its end.
    has_ended: bool,
    /// The number of questions so far, and whether the last one is a reading.
    asked: (u64, bool),
}

impl Entry {
    /// Whether the client ends because it neither waits nor holds for one who has closed its end.
    fn must_end(&self) -> bool {
        self.has_ended && self.client.is_queued()
    }

    /// Whether there is something to take in.
    fn is_ready(&self) -> bool {
        let has_more = self.has_ended || !self.lines.is_empty();
        self.is_open && (self.must_end() || (self.client.takes_lines() && has_more))
    }
}

impl Desk {
    pub(crate) fn new(
        ttl: Duration,
        grace: Duration,
        waiting_max: usize,
        new_id: impl FnMut() -> SessionId + 'static,
    ) -> Self {
        Self {
            rules: Rules { token: None, only: Vec::new(), has_leases: true, grace, is_stopped: |_| false },
            ttl,
            waiting_max,
            clients: BTreeMap::new(),
            timers: Timers::default(),
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            owners: BTreeMap::new(),
            deeds: VecDeque::new(),
            new_id: Box::new(new_id),
        }
    }

    pub(crate) fn accept(&mut self, id: u64, now: Boottime) {
        let client = Client::new(&self.rules, now, false);
        let entry = Entry { client, is_open: true, lines: VecDeque::new(), has_ended: false, asked: (0, false) };
        self.clients.insert(id, entry);
        self.file(id);
    }

    /// A line of a client has arrived.
    pub(crate) fn receive(&mut self, id: u64, ask: Ask, now: Boottime) {
        let Some(entry) = self.clients.get_mut(&id) else { return };
        entry.lines.push_back(match ask {
            Ask::Lock { claims, wait } => Line::Lock { claims, wait, plain: false },
            Ask::Upgrade => Line::Upgrade(None),
            Ask::Shrink(span) => Line::Shrink(span, None),
            Ask::Downgrade(mode) => Line::Downgrade(mode, None),
            Ask::Unlock => Line::Unlock,
        });
        self.pump(id, now);
    }

    /// The connection of a client has ended.
    pub(crate) fn end(&mut self, id: u64, end: End, now: Boottime) {
        let Some(entry) = self.clients.get_mut(&id) else { return };
        match end {
            End::Closed => {
                entry.has_ended = true;
                self.pump(id, now);
            }
            End::Reset => self.feed(id, Event::End, now),
        }
    }

    pub(crate) fn report(&mut self, session: SessionId, report: Report, now: Boottime) {
        if let Report::Standing(standing) = &report
            && standing.as_ref().map_or(true, Standing::is_over)
        {
            self.deeds.push_back(Deed::Release(session));
        }
        let is_over = match &report {
            Report::Standing(Ok(Standing::Asking | Standing::Waiting | Standing::Granted(_))) => false,
            Report::Standing(_) | Report::Released(_) => true,
        };
        let owner = if is_over { self.owners.remove(&session) } else { self.owners.get(&session).copied() };
        if let Some(id) = owner {
            self.feed(id, Event::Report(session, report), now);
        }
    }

    /// `replies` are those to the calls of a question. An answer that the client does not wait for
    /// any more is dropped.
    pub(crate) fn answer(&mut self, (id, number): Asker, replies: Replies, now: Boottime) {
        let Some(entry) = self.clients.get(&id).filter(|entry| entry.client.asks()) else { return };
        let (last, is_reading) = entry.asked;
        if number != last {
            return;
        }
        let answer = match replies {
            Ok(replies) if is_reading => Answer::Reading(Arc::new(reading(replies))),
            Ok(mut replies) => one_answer(replies.remove(0)),
            Err(error) => Answer::Failed(error),
        };
        self.feed(id, Event::Answer(answer), now);
    }

    /// Takes in the lines for which the clients are ready by now, and that time has passed.
    pub(crate) fn tick(&mut self, now: Boottime) {
        let ready: Vec<_> = self.ready.iter().copied().collect();
        ready.into_iter().for_each(|id| self.pump(id, now));
        self.timers.due(now).into_iter().for_each(|id| self.feed(id, Event::Tick, now));
    }

    /// Ends the clients that hold nothing.
    pub(crate) fn drain(&mut self, now: Boottime) {
        self.each_client(|| Event::Drain, now);
    }

    /// Ends all clients.
    pub(crate) fn stop(&mut self, now: Boottime) {
        self.each_client(|| Event::Stop, now);
    }

    fn each_client(&mut self, event: impl Fn() -> Event, now: Boottime) {
        let ids: Vec<_> = self.clients.keys().copied().collect();
        ids.into_iter().for_each(|id| self.feed(id, event(), now));
    }

    pub(crate) fn next_deed(&mut self) -> Option<Deed> {
        self.deeds.pop_front()
    }

    /// The instant at which [`tick`](Self::tick) is due.
    pub(crate) fn timeout(&self) -> Option<Boottime> {
        if self.ready.is_empty() { self.timers.first() } else { Some(Boottime::default()) }
    }

    /// Whether there is no client and nothing to release.
    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Takes in the lines of a client, as far as it is ready for them.
    fn pump(&mut self, id: u64, now: Boottime) {
        while let Some(entry) = self.clients.get_mut(&id).filter(|entry| entry.is_ready()) {
            let line = if entry.must_end() { None } else { entry.lines.pop_front() };
            self.feed(id, line.map_or(Event::End, Event::Line), now);
        }
    }

    fn feed(&mut self, id: u64, event: Event, now: Boottime) {
        let may_wait = self.waiting.len() < self.waiting_max;
        let Some(entry) = self.clients.get_mut(&id) else { return };
        let actions = entry.client.on(event, now, &self.rules, may_wait, &mut self.new_id);
        for action in actions {
            self.perform(id, action);
        }
        if self.clients.get(&id).is_some_and(|entry| !entry.is_open && entry.client.is_over()) {
            self.clients.remove(&id);
        }
        self.file(id);
    }

    /// Takes note of what a client waits for.
    fn file(&mut self, id: u64) {
        let entry = self.clients.get(&id);
        self.timers.set(id, entry.and_then(|entry| entry.client.timeout(&self.rules)));
        let has = |set: &mut BTreeSet<u64>, is_in: bool| if is_in { set.insert(id) } else { set.remove(&id) };
        has(&mut self.ready, entry.is_some_and(Entry::is_ready));
        has(&mut self.waiting, entry.is_some_and(|entry| entry.client.is_queued()));
    }

    fn perform(&mut self, id: u64, action: Action) {
        let deed = match action {
            Action::Say(line) => Deed::Say(id, line),
            // No client of the simulation asks for a listing.
            Action::Show(_) => return,
            Action::Acquire { session, parent, held_above, claims, wait } => {
                self.owners.insert(session, id);
                let terms = Some(Lease::new(self.ttl).terms());
                let (ancestors, process) = (parent.into_iter().collect(), Process::default());
                let job = Job { held_above, ..Job::default() };
                let request = Request { session, ancestors, claims, wait, terms, job, process };
                Deed::Acquire(id, Box::new(request))
            }
            Action::Release(session) => {
                self.owners.insert(session, id);
                Deed::Release(session)
            }
            Action::Ask(question) => {
                let entry = self.clients.get_mut(&id).expect("a client that acts is known");
                entry.asked = (entry.asked.0 + 1, matches!(question, Question::Read(_)));
                Deed::Ask((id, entry.asked.0), calls(question))
            }
            Action::Close => {
                self.clients.get_mut(&id).expect("a client that acts is known").is_open = false;
                Deed::Close(id)
            }
            Action::Log(_) | Action::Warn(_) => return,
        };
        self.deeds.push_back(deed);
    }
}

fn calls(question: Question) -> Vec<Call> {
    vec![match question {
        // A script gets the keys of one slot.
        Question::Read(names) => {
            return names.into_iter().map(|name| Call::inspect_live(vec![name], 0, Vec::new())).collect();
        }
        Question::Inspect(resource) => Call::inspect(resource.into_iter().collect(), LISTED),
        Question::Obstructions(resources) => Call::inspect(resources, LISTED),
        Question::Change(session, change) => Call::change(session, &[], &change),
    }]
}

fn one_answer(reply: ScriptReply) -> Answer {
    match reply {
        ScriptReply::Listing { resources, .. } => Answer::Obstructions(resources.into()),
        ScriptReply::Done => Answer::Changed(Changed::Done),
        ScriptReply::Refused(refusal) => Answer::Changed(Changed::Refused(refusal)),
        _ => Answer::Changed(Changed::Lost),
    }
}

fn reading(replies: Vec<ScriptReply>) -> Reading {
    let mut reading = Reading::new();
    for reply in replies {
        if let ScriptReply::Listing { sessions, .. } = reply {
            deadlock::merge(&mut reading, sessions.into_iter().collect());
        }
    }
    reading
}
