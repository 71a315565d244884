//! Plays the requests of many processes against a server in memory, event by event and by a seed:
//! the real conversations, the real operations on real rows, simulated connections and time.
//!
//! Connections are refused, fall silent, and break before or after a commit; a pooler may be
//! between; processes die. Whatever happens, no two processes hold the lock at an instant, each
//! request that lives is granted, and in the end nobody holds or waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::conversation::Conversation;
use crate::failure::ErrorKind;
use crate::rows::{Named, Range, Row, Rows};
use crate::step::{Backend, Channel, Committed, Copies, Room, Stands, Task, channel};
use crate::turns::{Action, Turns};
use crate::work::{Work, session_key};
use rlock_model::mode::Mode;
use rlock_model::past::End;
use rlock_model::request::{Claim, Job, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::engine::Engine as _;
use rlock_store::handle::{AcquireOptions, Released, Standing};
use rlock_store::lease::LeaseReply;
use rlock_store::network::{NetworkError, Stage};
use rlock_store::sessions::Report;
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_testkit::random::Random;
use rlock_testkit::share::share;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TERMS: Terms =
    Terms { ttl: Duration::from_secs(10), claim: Duration::from_secs(3), heartbeat: Duration::from_secs(9) };
const SERVER: &str = "postgres://h/d";
/// How long there are faults.
const FAULTY: u64 = 60_000;
/// Until when all is over: each process waits for those before, and for the leases of the dead.
const LIMIT: u64 = 400_000;

const fn ms(at: u64) -> Duration {
    Duration::from_millis(at)
}

/// What happens at an instant.
enum Happening {
    /// The connection of a process is there, or has failed.
    Opened(usize, u64, Option<ErrorKind>),
    /// A transaction arrives at the server, which carries it out unless the connection has broken.
    Arrives(usize, u64, Box<Task<LeaseReply>>),
    /// The reply arrives.
    Replied(usize, u64, LeaseReply, Committed),
    /// A notice arrives.
    Notice(usize, u64, SessionId),
    /// A connection breaks.
    Breaks(usize, u64),
    /// A process releases what it holds, or dies.
    Ends(usize),
    Dies(usize),
    /// A process makes its request.
    Asks(usize),
}

/// A process with one request.
struct Client {
    conversation: Conversation,
    id: SessionId,
    /// The number of its connection, if it has one, and whether that says nothing more.
    connection: Option<u64>,
    is_silent: bool,
    /// Until when its network is cut.
    cut_until: u64,
    /// Until when it holds the lock, as far as it knows.
    deadline: Option<Boottime>,
    is_over: bool,
}

struct World {
    random: Random,
    now: u64,
    happenings: BTreeMap<(u64, u64), Happening>,
    sequence: u64,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The connection that the row of a session names.
    backends: BTreeMap<Vec<u8>, u64>,
    open: BTreeSet<u64>,
    listens: BTreeMap<SessionId, u64>,
    clients: Vec<Client>,
    is_pooled: bool,
    grants: usize,
    faults: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let (count, is_pooled) = (2 + random.below(6), random.below(4) == 0);
        let client = |number: u64| {
            let conversation = Conversation::new(Turns::new(1, SERVER.to_owned()), CONNECT_TIMEOUT);
            let id = SessionId([number as u8 + 1; 16]);
            Client {
                conversation,
                id,
                connection: None,
                is_silent: false,
                cut_until: 0,
                deadline: None,
                is_over: false,
            }
        };
        let clients = (0..count).map(client).collect();
        let mut world = Self {
            random,
            now: 1_000,
            happenings: BTreeMap::new(),
            sequence: 0,
            rows: BTreeMap::new(),
            backends: BTreeMap::new(),
            open: BTreeSet::new(),
            listens: BTreeMap::new(),
            clients,
            is_pooled,
            grants: 0,
            faults: 0,
        };
        for client in 0..count as usize {
            let after = world.random.below(20_000);
            world.happen(after, Happening::Asks(client));
        }
        world
    }

    fn boottime(&self) -> Boottime {
        Boottime::since_boot(ms(self.now))
    }

    fn happen(&mut self, after: u64, what: Happening) {
        self.sequence += 1;
        self.happenings.insert((self.now + after, self.sequence), what);
    }

    /// Whether a fault happens that has this share, of 1,000.
    fn fails(&mut self, share: u64) -> bool {
        let fails = self.now < FAULTY && self.random.below(1_000) < share;
        self.faults += usize::from(fails);
        fails
    }

    fn latency(&mut self) -> u64 {
        let is_slow = self.now < FAULTY && self.random.below(10) == 0;
        1 + self.random.below(if is_slow { 900 } else { 10 })
    }

    fn play(&mut self) {
        while self.clients.iter().any(|client| !client.is_over) {
            let due = |client: &Client| client.conversation.due().filter(|_| !client.is_over);
            let turn = (0..self.clients.len()).filter_map(|at| Some((due(&self.clients[at])?, at))).min();
            let next = self.happenings.first_key_value().map(|((at, _), _)| *at);
            match (turn, next) {
                (Some((at, client)), next) if next.is_none_or(|next| at < Boottime::since_boot(ms(next))) => {
                    self.now = self.now.max((at - Boottime::default()).as_micros().div_ceil(1000) as u64);
                    self.drive(client);
                }
                (_, Some(_)) => {
                    let ((at, _), what) = self.happenings.pop_first().unwrap();
                    self.now = self.now.max(at);
                    self.take(what);
                }
                (_, None) => panic!("a process waits for nothing"),
            }
            assert!(self.now < LIMIT, "a request never ends");
        }
        self.check_rest();
    }

    fn take(&mut self, what: Happening) {
        let now = self.boottime();
        match what {
            Happening::Asks(client) => {
                let id = self.clients[client].id;
                self.clients[client].conversation.driver.acquire(request(id), AcquireOptions::default(), now);
                self.drive(client);
            }
            Happening::Opened(client, number, failure) => {
                if self.hears(client, number) {
                    match failure {
                        Some(kind) => self.fail(client, kind),
                        None => self.clients[client].conversation.on_ready(now),
                    }
                    self.drive(client);
                }
            }
            Happening::Arrives(client, number, task) => self.carry_out(client, number, *task),
            Happening::Replied(client, number, reply, committed) => {
                if self.hears(client, number) {
                    self.clients[client].conversation.on_done(reply, committed, now);
                    self.drive(client);
                }
            }
            Happening::Notice(client, number, id) => {
                if self.hears(client, number) {
                    self.clients[client].conversation.on_notice(channel(id), now);
                    self.drive(client);
                }
            }
            Happening::Breaks(client, number) => {
                self.open.remove(&number);
                if self.hears(client, number) {
                    self.fail(client, ErrorKind::Network(NetworkError::Closed(Stage::Used)));
                    self.drive(client);
                }
            }
            Happening::Ends(client) => {
                if !self.clients[client].is_over && self.clients[client].deadline.take().is_some() {
                    let id = self.clients[client].id;
                    self.clients[client].conversation.driver.release(id, Some(End::KEPT), now);
                    self.drive(client);
                }
            }
            Happening::Dies(client) => {
                self.clients[client].is_over = true;
                let connection = self.clients[client].connection.take();
                // The server hears of it, unless the machine has died.
                if self.random.below(2) == 0 {
                    connection.map(|number| self.open.remove(&number));
                }
            }
        }
    }

    /// Whether what arrives on this connection reaches the process.
    fn hears(&self, client: usize, number: u64) -> bool {
        let Client { connection, is_silent, is_over, .. } = &self.clients[client];
        *connection == Some(number) && !is_silent && !is_over
    }

    fn fail(&mut self, client: usize, kind: ErrorKind) {
        let now = self.boottime();
        let may_be_committed = self.clients[client]
            .conversation
            .driver
            .server()
            .speaks
            .as_ref()
            .is_some_and(|speech| speech.stands.may_be_committed);
        self.clients[client].conversation.on_failure(kind.of(SERVER), may_be_committed, false, now);
    }

    /// Carries out what a conversation decides, and what follows from its reports.
    fn drive(&mut self, client: usize) {
        let now = self.boottime();
        self.clients[client].conversation.on_time(now);
        while let Some(action) = self.clients[client].conversation.next_action() {
            match action {
                Action::Open(_) => self.connect(client),
                Action::Close => self.disconnect(client),
                Action::Begin(task) => {
                    let number = self.clients[client].connection.expect("a transaction begins over a connection");
                    // The server may commit it from now on, as far as the process knows.
                    let stands = Stands { may_be_committed: true, has_lock: true, retries: 0 };
                    self.clients[client].conversation.on_sign_of_life(stands, now);
                    if self.fails(20) {
                        self.clients[client].is_silent = true;
                        self.clients[client].cut_until = self.now + self.random.below(25_000);
                    }
                    let after = self.latency();
                    self.happen(after, Happening::Arrives(client, number, task));
                    if self.fails(30) {
                        let after = self.random.below(20);
                        self.happen(after, Happening::Breaks(client, number));
                    }
                }
                Action::ReportSilence => {
                    let failure = ErrorKind::Network(NetworkError::TimedOut(Stage::Used)).of(SERVER);
                    self.clients[client].conversation.on_failure(failure, true, true, now);
                }
            }
            self.clients[client].conversation.on_time(now);
        }
        self.take_reports(client);
    }

    fn connect(&mut self, client: usize) {
        self.sequence += 1;
        let number = self.sequence;
        (self.clients[client].connection, self.clients[client].is_silent) =
            (Some(number), self.fails(30) || self.now < self.clients[client].cut_until);
        let failure = match self.random.below(3) {
            0 if self.fails(200) => Some(ErrorKind::TooManyClients("sorry".to_owned())),
            1 if self.fails(200) => Some(ErrorKind::Network(NetworkError::Refused)),
            _ => None,
        };
        if failure.is_none() {
            self.open.insert(number);
        }
        let after = self.latency();
        self.happen(after, Happening::Opened(client, number, failure));
    }

    fn disconnect(&mut self, client: usize) {
        if let Some(number) = self.clients[client].connection.take() {
            // The server hears of it, unless the network is cut.
            if !self.clients[client].is_silent {
                self.open.remove(&number);
            }
        }
    }

    fn carry_out(&mut self, client: usize, number: u64, mut task: Task<LeaseReply>) {
        let is_lost = self.clients[client].is_silent && self.random.below(2) == 0;
        if !self.open.contains(&number) || self.clients[client].is_over || is_lost {
            return;
        }
        task.own = vec![self.clients[client].id];
        let everything = Range { low: Vec::new(), high: vec![u8::MAX; 2], count: usize::MAX };
        let backend = |key: &Vec<u8>| match self.backends.get(key) {
            Some(backend) if self.open.contains(backend) => Named::Alive,
            Some(_) => Named::Gone,
            None => Named::Nobody,
        };
        let row =
            |(key, value): (&Vec<u8>, &Vec<u8>)| Row { key: key.clone(), value: value.clone(), backend: backend(key) };
        let mut rows = Rows::default();
        rows.fetch(everything, self.rows.iter().map(row).collect());
        rows.reset();
        let clock = StoreTime::from_micros((1 << 50) + self.now * 1_000);
        let mut work = Work::new(rows, clock, task.caller).unwrap();
        (work.is_pooled, work.own) = (self.is_pooled, task.own.clone());
        work.prepare(&task.frees).unwrap();
        let reply = (task.run)(&mut work).unwrap();
        let (rows, woken) = work.into_parts();
        for (key, value) in rows.changes() {
            match value {
                Some(value) => drop(self.rows.insert(key.to_vec(), value.to_vec())),
                None => {
                    self.rows.remove(key);
                    self.backends.remove(key);
                }
            }
        }
        let caller = task.caller.expect("a session asks").to_owned();
        if !self.is_pooled {
            match task.channel {
                Channel::Begins => {
                    self.listens.insert(caller, number);
                    if self.rows.contains_key(&session_key(caller)) {
                        self.backends.insert(session_key(caller), number);
                    }
                }
                Channel::Ends => drop(self.listens.remove(&caller)),
                Channel::Stays => {}
            }
        }
        for id in woken {
            let told = self.listens.get(&id).copied().filter(|number| self.open.contains(number));
            let told = told.zip(self.clients.iter().position(|client| client.id == id));
            if let Some((number, client)) = told {
                let after = self.latency();
                self.happen(after, Happening::Notice(client, number, id));
            }
        }
        let backend = (!self.is_pooled).then_some(Backend { pid: number as i32, started: 0 });
        // A full server, now and then.
        let limit = self.random.below(6) as u32;
        let room = task.wants_room.then_some(Room { limit, sessions: 1 });
        let committed = Committed { backend, tables: Some(1), copies: Copies::default(), room };
        let after = self.latency();
        self.happen(after, Happening::Replied(client, number, reply, committed));
    }

    fn take_reports(&mut self, client: usize) {
        let now = self.boottime();
        while let Some((_, report)) = self.clients[client].conversation.driver.next_report() {
            match report {
                Report::Standing(Ok(Standing::Granted(grant))) => self.granted(client, grant.deadline),
                Report::Standing(Ok(Standing::Waiting)) => {}
                Report::Standing(other) => {
                    assert!(self.faults > 0, "{other:?}, although nothing has failed");
                    self.clients[client].deadline = None;
                    let id = self.clients[client].id;
                    self.clients[client].conversation.driver.release(id, Some(End::KEPT), now);
                    self.drive(client);
                }
                Report::Released(released) => {
                    assert!(self.faults > 0 || matches!(released, Ok(Released::Done | Released::Kept)), "{released:?}");
                    self.clients[client].is_over = true;
                    self.disconnect(client);
                }
            }
        }
    }

    fn granted(&mut self, client: usize, deadline: Option<Boottime>) {
        let now = self.boottime();
        let is_new = self.clients[client].deadline.is_none();
        self.clients[client].deadline = deadline.filter(|deadline| now < *deadline);
        if is_new && self.clients[client].deadline.is_some() {
            self.grants += 1;
            let holds = |other: &Client| !other.is_over && other.deadline.is_some_and(|deadline| now < deadline);
            let holders = self.clients.iter().filter(|other| holds(other)).count();
            assert_eq!(holders, 1, "two processes hold the lock at {}", self.now);
            let after = self.random.below(25_000);
            let ends = if self.fails(100) { Happening::Dies(client) } else { Happening::Ends(client) };
            self.happen(after, ends);
        }
    }

    /// In the end nobody holds or waits, once the leases of the dead have ended.
    fn check_rest(&mut self) {
        let everything = Range { low: Vec::new(), high: vec![u8::MAX; 2], count: usize::MAX };
        let row =
            |(key, value): (&Vec<u8>, &Vec<u8>)| Row { key: key.clone(), value: value.clone(), backend: Named::Nobody };
        let mut rows = Rows::default();
        rows.fetch(everything, self.rows.iter().map(row).collect());
        rows.reset();
        let end = StoreTime::from_micros((1 << 50) + (self.now + 20_000) * 1_000);
        let mut work = Work::new(rows, end, None).unwrap();
        while work.records().sessions().unwrap().iter().any(|(_, session)| session.expiry.is_some_and(|at| at <= end)) {
            work.drop_due().unwrap();
        }
        let left = work.records().sessions().unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn request(session: SessionId) -> Request {
    let claim = Claim { resource: Resource::new("k").unwrap(), mode: Mode::Write, span: Span::Whole, slots: None };
    Request {
        session,
        ancestors: Vec::new(),
        claims: vec![claim],
        wait: true,
        terms: Some(TERMS),
        job: Job::default(),
        process: Process::default(),
    }
}

#[test]
fn requests_exclude_each_other_and_end_whatever_fails() {
    let (mut grants, mut faults) = (0, 0);
    let first = Random::given();
    for seed in first.map_or(0..share(100, 1_000), |seed| seed..seed + 1) {
        let mut world = World::new(seed);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.play()));
        assert!(played.is_ok(), "RLOCK_SEED={seed}");
        (grants, faults) = (grants + world.grants, faults + world.faults);
    }
    assert!(first.is_some() || grants > 200 && faults > 200, "{grants} grants, {faults} faults");
}
