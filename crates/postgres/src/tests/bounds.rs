//! How long a transaction takes beside each list that users can make long, on a real server: none
//! may outlast the patience of the server. The lists have their full length with
//! RLOCK_TESTS_LENGTH=full in an optimised build. docs/capacity.md has figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::task;
use crate::exchange::{Exchange, Question};
use crate::rows::{Named, Range, Row, Rows, Stop};
use crate::step::Task;
use crate::turns::Requester;
use crate::work::{Work, ranges, ranges_of_past, widened};
use crate::{Postgres, Target};
use rlock_model::mode::Mode::{self, Read, Slot, Write};
use rlock_model::op::{Op, Reply};
use rlock_model::past::{End, Ending, HISTORY_MAX, JOBS_MAX};
use rlock_model::request::{CLAIMS_MAX, Claim, Job, NAMES_MAX, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::engine::Engine as _;
use rlock_store::handle::Replicas;
use rlock_store::lease::{Command, LeaseReply, Retry};
use rlock_store::operations::{Breaking, Store as _};
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_testkit::servers::postgres::Postgres as Server;

/// How long a step may take with a fiftieth of the lists in a build without optimisation,
/// or with the full lists in an optimised one, on a machine that also does other work.
const LIMIT: Duration = Duration::from_secs(20);
/// How many requests fill a list in one transaction, which may take as long as it wants.
const AT_ONCE: usize = 100;
const ENDLESS: u32 = 1 << 20;

const TERMS: Terms =
    Terms { ttl: Duration::from_secs(3_000), claim: Duration::from_secs(300), heartbeat: Duration::from_secs(1_500) };

/// The share of the lists that an ordinary run makes.
fn share(count: usize) -> u32 {
    let is_full = rlock_testkit::share::share(false, true) && !cfg!(debug_assertions);
    (if is_full { count } else { count / 50 }) as u32
}

fn id(number: u32) -> SessionId {
    SessionId((u128::from(number) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes())
}

/// A request for all of `k`.
fn whole(number: u32, mode: Mode) -> Request {
    let resource = Resource::new("k").unwrap();
    Request {
        session: id(number),
        ancestors: Vec::new(),
        claims: vec![Claim { resource, mode, span: Span::Whole, slots: (mode == Slot).then_some(100_000) }],
        wait: true,
        terms: Some(TERMS),
        job: Job { history: HISTORY_MAX, ..Job::default() },
        process: Process {
            host: "host".into(),
            user: "user".into(),
            command: vec!["work".into()],
            ..Process::default()
        },
    }
}

/// A request for so many intervals of `k`.
fn intervals(number: u32, mode: Mode, count: u32) -> Request {
    let asks = whole(number, mode);
    let span = |at| Span::parse(&format!("[{},{}]", 2 * at, 2 * at + 1)).unwrap();
    Request { claims: (0..count).map(|at| Claim { span: span(at), ..asks.claims[0].clone() }).collect(), ..asks }
}

/// A request for `k` and so many other names.
fn names(number: u32, count: u32) -> Request {
    let asks = whole(number, Write);
    let name = |at: u32| if at == 0 { "k".to_owned() } else { format!("name {at}") };
    let claim = |at| Claim { resource: Resource::new(&name(at)).unwrap(), ..asks.claims[0].clone() };
    Request { claims: (0..count).map(claim).collect(), ..asks }
}

/// A namespace with a long list.
struct Crowd {
    store: Postgres,
    exchange: Exchange,
    list: &'static str,
}

impl Crowd {
    fn new(server: &Server, list: &'static str) -> Self {
        let target = || Target::parse(&server.url()).unwrap().unwrap();
        let store = Postgres::new(target(), list, LIMIT);
        Self { store, exchange: Exchange::new(Arc::new(target()), list.into(), LIMIT), list }
    }

    fn ask<T>(&mut self, task: Task<T>) -> T {
        Question::new(task, Retry::WhileUp, Boottime::now() + LIMIT).run(&mut self.exchange).unwrap()
    }

    /// Applies operations, many in one transaction.
    fn fill(&mut self, ops: impl IntoIterator<Item = Op>) {
        let ops: Vec<_> = ops.into_iter().collect();
        for ops in ops.chunks(AT_ONCE) {
            let ops = ops.to_vec();
            let run = move |work: &mut Work| ops.iter().try_for_each(|op| work.apply(op.clone()).map(drop));
            self.ask(Task { claims: ENDLESS, ..task(ranges([], []), run) });
        }
    }

    fn fill_with(&mut self, requests: impl IntoIterator<Item = Request>) {
        self.fill(requests.into_iter().map(|request| Op::Acquire { request, place: None }));
    }

    /// Times a step, and checks the time.
    fn step<T>(&mut self, what: &str, step: impl FnOnce(&mut Self) -> T) -> T {
        let begun = Instant::now();
        let result = step(self);
        let took = begun.elapsed();
        println!("{}: {what} {:.1} ms", self.list, 1000.0 * took.as_secs_f64());
        assert!(took < LIMIT, "{}: {what} takes {took:?}", self.list);
        result
    }

    /// Times what a session says. A transaction that the server has ended is carried out again with
    /// more patience.
    fn say(&mut self, what: &str, request: &Request, command: Option<Command>) -> LeaseReply {
        let session = Requester::new(request.clone(), Replicas::default());
        let task = match command {
            Some(command) => session.says(command, false),
            None => session.releases(Some(End { ending: Ending::Exit(0), is_success: true })),
        };
        self.step(what, |crowd| crowd.ask(task))
    }

    fn request(&mut self, what: &str, request: &Request) -> LeaseReply {
        self.say(what, request, Some(Command::Acquire { place: 0, waited: Duration::ZERO }))
    }

    /// What looks at the namespace, and the end of the crowd.
    fn finish(mut self) {
        let name = Resource::new("k").unwrap();
        self.step("inspect", |crowd| crowd.store.inspect(&[]).unwrap());
        self.step("history", |crowd| crowd.store.history(&[], HISTORY_MAX).unwrap());
        let (busy, waits) = (Request { wait: false, ..whole(1_000_000, Write) }, whole(1_000_001, Write));
        self.request("request without a wait", &busy);
        self.request("request that waits", &waits);
        self.say("sign of life", &waits, Some(Command::Renew));
        self.say("give up", &waits, Some(Command::GiveUp));
        self.step("break", |crowd| crowd.store.break_grants(&name, None, Breaking::Now).unwrap());
    }
}

/// The rows of a range.
fn served(all: &BTreeMap<Vec<u8>, Vec<u8>>, range: &Range) -> Vec<Row> {
    let rows = all.range(range.low.clone()..range.high.clone()).take(range.count);
    rows.map(|(key, value)| Row { key: key.clone(), value: value.clone(), backend: Named::Nobody }).collect()
}

/// "Twice as many are read each time": the rows of 400 readers, and of their tree, in few steps.
#[test]
fn release_that_lets_a_crowd_in_takes_few_round_trips() {
    let now = StoreTime::from_micros(1 << 50);
    let everything = Range { low: Vec::new(), high: vec![u8::MAX], count: usize::MAX };
    let mut rows = Rows::default();
    rows.fetch(everything, Vec::new());
    let mut work = Work::new(rows, now, None).unwrap();
    let readers = (1..=400).map(|number| whole(number, Read));
    for request in [whole(0, Write)].into_iter().chain(readers) {
        work.apply(Op::Acquire { request, place: None }).unwrap();
    }
    let (rows, _) = work.into_parts();
    let put = rows.changes().into_iter();
    let all: BTreeMap<_, _> = put.map(|(key, value)| (key.to_vec(), value.unwrap().to_vec())).collect();

    let frees = [Resource::new("k").unwrap()];
    let (mut rows, mut missing, mut reads) = (Rows::default(), ranges(&frees, [id(0)]), 0);
    loop {
        for range in missing {
            let found = served(&all, &range);
            rows.fetch(range, found);
        }
        rows.reset();
        let ran = Work::new(rows.clone(), now, None).and_then(|mut work| {
            work.prepare(&frees)?;
            work.apply(Op::Release { session: id(0), end: None })
        });
        reads += 1;
        assert!(reads < 20, "the rows are read in more steps");
        match ran {
            Err(Stop::Missing(ranges)) => missing = widened(ranges, reads),
            reply => break assert!(matches!(reply, Ok(Reply::Released(_))), "{reply:?}"),
        }
    }
}

/// "A look that shows no entries of the history reads none": `rlock inspect`, checks and metrics.
#[test]
fn look_at_the_past_without_its_entries_reads_none_of_them() {
    let now = StoreTime::from_micros(1 << 50);
    let mut rows = Rows::default();
    rows.fetch(Range { low: Vec::new(), high: vec![u8::MAX], count: usize::MAX }, Vec::new());
    let mut work = Work::new(rows, now, None).unwrap();
    for number in 0..5 {
        work.apply(Op::Acquire { request: whole(number, Write), place: None }).unwrap();
        work.apply(Op::Release { session: id(number), end: Some(End::KEPT) }).unwrap();
    }
    let (rows, _) = work.into_parts();
    let put = rows.changes().into_iter();
    let all: BTreeMap<_, _> = put.filter_map(|(key, value)| Some((key.to_vec(), value?.to_vec()))).collect();
    let k = [Resource::new("k").unwrap()];
    for names in [&[], &k[..]] {
        for (entries, expected) in [(0, 0), (HISTORY_MAX, 5)] {
            let mut rows = Rows::default();
            let mut read = 0;
            for range in ranges_of_past(names, entries) {
                let found = served(&all, &range);
                read += found.iter().filter(|row| row.key[0] == b'h').count();
                rows.fetch(range, found);
            }
            rows.reset();
            let work = Work::new(rows, now, None).unwrap();
            let past = work.table().past(work.now, &k[0], entries).unwrap().expect("the resource has a past");
            assert_eq!((read, past.entries.len()), (expected, expected), "{names:?}");
        }
    }
}

#[test]
fn transaction_takes_less_than_its_limit_beside_each_list() {
    if !Server::is_present() {
        return;
    }
    let server = Server::start(&[]);

    let mut crowd = Crowd::new(&server, "readers");
    crowd.fill_with([whole(0, Write)].into_iter().chain((1..=share(3_000)).map(|number| whole(number, Read))));
    crowd.say("release that lets them in", &whole(0, Write), None);
    crowd.finish();

    let mut crowd = Crowd::new(&server, "waiters");
    crowd.fill_with((0..=share(3_000)).map(|number| whole(number, Write)));
    crowd.say("release", &whole(0, Write), None);
    crowd.finish();

    let mut crowd = Crowd::new(&server, "slots");
    crowd.fill_with((0..share(3_000)).map(|number| whole(number, Slot)));
    crowd.request("request for one more", &whole(900_000, Slot));
    crowd.say("release", &whole(0, Slot), None);
    crowd.finish();

    let most = share(CLAIMS_MAX);
    let mut crowd = Crowd::new(&server, "intervals of a request");
    crowd.request("request", &intervals(0, Write, most));
    crowd.request("request that waits", &intervals(1, Write, most));
    crowd.say("release that grants", &intervals(0, Write, most), None);
    crowd.finish();

    let most = share(10 * NAMES_MAX) / 10;
    let mut crowd = Crowd::new(&server, "names of a request");
    crowd.request("request", &names(0, most));
    crowd.request("request that waits", &names(1, most));
    crowd.say("release that grants", &names(0, most), None);
    crowd.finish();

    let mut crowd = Crowd::new(&server, "jobs");
    crowd.fill_with([whole(0, Write)]);
    crowd.fill_with((1..=share(JOBS_MAX)).map(|number| {
        let job = Job { name: format!("a job with a name {number}"), skips: true, ..Job::default() };
        Request { wait: false, job, ..whole(number, Write) }
    }));
    crowd.finish();

    let mut crowd = Crowd::new(&server, "entries of the history");
    crowd.fill((0..share(HISTORY_MAX as usize)).flat_map(|number| {
        let release = Op::Release { session: id(number), end: Some(End::KEPT) };
        [Op::Acquire { request: whole(number, Write), place: None }, release]
    }));
    crowd.finish();
}
