//! The cost of an operation on the lock table with few and with many claims held. The bench prints
//! numbers and asserts nothing.
//!
//! Each line is one situation, and each column is a number of other claims on the same resource.
//! The cost of a single operation should hardly depend on that number.

use std::time::{Duration, Instant};

use rlock_model::mode::Mode;
use rlock_model::op::{Op, Reply};
use rlock_model::request::{Claim, Job, Process, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_model::table::LockTable;
use rlock_sys::clock::StoreTime;

/// The numbers of other claims.
const CROWDS: [u64; 3] = [10, 1_000, 100_000];
/// The number of operations that are timed together. The bench shows the median of `ROUNDS` such
/// times.
const TIMED: u64 = 1_000;
const ROUNDS: usize = 21;

/// A table and the number of the next session.
struct Crowd {
    table: LockTable,
    now: StoreTime,
}

impl Crowd {
    fn new() -> Self {
        Self { table: LockTable::default(), now: StoreTime::default() }
    }

    fn acquire(&mut self, number: u64, mode: Mode, span: Span) -> Reply {
        let claim = Claim { resource: Resource::new("bench").expect("the name is valid"), mode, span, slots: None };
        let process = Process {
            host: "host".into(),
            pid: 1,
            user: "user".into(),
            command: vec!["true".into()],
            ..Process::default()
        };
        let request = Request {
            session: id(number),
            ancestors: Vec::new(),
            claims: vec![claim],
            wait: true,
            terms: None,
            job: Job::default(),
            process,
        };
        self.apply(Op::Acquire { request, place: None }).0
    }

    fn release(&mut self, number: u64) -> Vec<SessionId> {
        self.apply(Op::Release { session: id(number), end: None }).1
    }

    fn apply(&mut self, op: Op) -> (Reply, Vec<SessionId>) {
        self.now += Duration::from_micros(1);
        let Ok(outcome) = self.table.apply(self.now, op);
        (outcome.reply, outcome.granted)
    }
}

/// The ids are scattered like random ids.
fn id(number: u64) -> SessionId {
    SessionId((u128::from(number) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes())
}

fn cell(number: u64) -> Span {
    Span::parse(&format!("[{number},{number}.5]")).expect("the interval is valid")
}

/// Others hold disjoint intervals. One more interval is acquired and released, each time at another
/// place.
fn disjoint(crowd: u64) -> Box<dyn FnMut(u64)> {
    let mut table = Crowd::new();
    for number in 0..crowd {
        assert!(matches!(table.acquire(number, Mode::Write, cell(number * 2)), Reply::Granted { .. }));
    }
    let spans: Vec<Span> = (0..TIMED).map(|at| cell(at * 7_919 % crowd * 2 + 1)).collect();
    Box::new(move |at| {
        let reply = table.acquire(crowd, Mode::Write, spans[(at % TIMED) as usize].clone());
        assert!(matches!(reply, Reply::Granted { .. }));
        table.release(crowd);
    })
}

/// One session holds the whole, and the others wait for it. The holder releases, which grants one
/// waiter, and a new session waits.
fn mutex(crowd: u64) -> Box<dyn FnMut(u64)> {
    let mut table = Crowd::new();
    (0..=crowd).for_each(|number| drop(table.acquire(number, Mode::Write, Span::Whole)));
    let mut first = 0;
    Box::new(move |_| {
        assert_eq!(table.release(first).len(), 1);
        first += 1;
        assert_eq!(table.acquire(first + crowd, Mode::Write, Span::Whole), Reply::Waiting);
    })
}

/// The others read. One more reader acquires and releases.
fn readers(crowd: u64) -> Box<dyn FnMut(u64)> {
    let mut table = Crowd::new();
    (0..crowd).for_each(|number| drop(table.acquire(number, Mode::Read, Span::Whole)));
    Box::new(move |at| {
        let number = crowd + at % TIMED;
        assert!(matches!(table.acquire(number, Mode::Read, Span::Whole), Reply::Granted { .. }));
        table.release(number);
    })
}

/// The others read, and a writer waits for them. A reader releases, which grants no request.
/// Another reader waits behind the writer and cancels.
fn readers_and_a_writer(crowd: u64) -> Box<dyn FnMut(u64)> {
    let mut table = Crowd::new();
    (0..crowd + TIMED * ROUNDS as u64 * 2).for_each(|number| drop(table.acquire(number, Mode::Read, Span::Whole)));
    assert_eq!(table.acquire(u64::MAX - 1, Mode::Write, Span::Whole), Reply::Waiting);
    Box::new(move |at| {
        assert!(table.release(crowd + at).is_empty());
        assert_eq!(table.acquire(u64::MAX - 2, Mode::Read, Span::Whole), Reply::Waiting);
        table.release(u64::MAX - 2);
    })
}

/// Others hold disjoint intervals, and one session waits for each interval. One holder releases,
/// its waiter is granted, and a new session waits.
fn one_queue_each(crowd: u64) -> Box<dyn FnMut(u64)> {
    let mut table = Crowd::new();
    let spans: Vec<Span> = (0..crowd).map(|at| cell(at * 2)).collect();
    for number in 0..crowd * 2 {
        table.acquire(number, Mode::Write, spans[(number % crowd) as usize].clone());
    }
    let mut first = 0;
    Box::new(move |_| {
        assert_eq!(table.release(first).len(), 1);
        let span = spans[(first % crowd) as usize].clone();
        assert_eq!(table.acquire(first + crowd * 2, Mode::Write, span), Reply::Waiting);
        first += 1;
    })
}

/// Returns the median time of one call, in nanoseconds.
fn time(mut operation: Box<dyn FnMut(u64)>) -> f64 {
    let mut at = 0;
    let mut round = || {
        let start = Instant::now();
        for _ in 0..TIMED {
            operation(at);
            at += 1;
        }
        start.elapsed().as_nanos() as f64 / TIMED as f64
    };
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() {
    type Situation = fn(u64) -> Box<dyn FnMut(u64)>;
    let situations: [(&str, Situation); 5] = [
        ("disjoint intervals held: acquire + release one more", disjoint),
        ("one waits per interval held: release + queue", one_queue_each),
        ("a queue for the whole: release + queue", mutex),
        ("readers of the whole: acquire + release one more", readers),
        ("readers, a writer waits: release, queue + cancel", readers_and_a_writer),
    ];
    println!("{:<54}{}", "ns (ratio to 10)", CROWDS.map(|crowd| format!("{crowd:>18}")).concat());
    for (name, situation) in situations {
        let times = CROWDS.map(|crowd| time(situation(crowd)));
        println!("{name:<54}{}", times.map(|ns| format!("{ns:>10.0} ({:>4.2}x)", ns / times[0])).concat());
    }
}
