//! How long a transaction takes beside each list that users can make long. The lists have their
//! full length with RLOCK_TESTS_LENGTH=full in an optimised build. docs/capacity.md has figures.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::*;
use rlock_model::mode::Mode::{self, Prewrite, Read, Slot, Write};
use rlock_model::past::{End, Ending, HISTORY_MAX, JOBS_MAX};
use rlock_model::request::{CLAIMS_MAX, NAMES_MAX};

/// How long a transaction may take with a twentieth of the lists in a build without optimisation,
/// or with the full lists in an optimised one, on a machine that also does other work.
const LIMIT: Duration = Duration::from_secs(5);

/// The share of the lists that an ordinary run makes.
fn share(count: usize) -> usize {
    let is_full = std::env::var_os("RLOCK_TESTS_LENGTH").is_some_and(|length| length == "full");
    if is_full && !cfg!(debug_assertions) { count } else { count / 20 }
}

/// A store whose sessions have one beacon, as those of `rlock serve` have.
struct Crowd {
    site: Site,
    beacon: Option<Beacon>,
    list: &'static str,
    /// The files of the store, which go last.
    _lab: Lab,
}

fn number(session: u32) -> SessionId {
    SessionId((u128::from(session) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes())
}

/// A request for all of `k`.
fn whole(session: u32, mode: Mode) -> Request {
    let slots = (mode == Slot).then_some(100_000);
    Request { session: number(session), ..request(0, mode, slots) }
}

/// A request for these intervals of `k`.
fn intervals(session: u32, mode: Mode, parts: impl IntoIterator<Item = usize>) -> Request {
    let asks = whole(session, mode);
    let span = |at| Span::parse(&format!("[{},{}]", 2 * at, 2 * at + 1)).unwrap();
    Request { claims: parts.into_iter().map(|at| Claim { span: span(at), ..asks.claims[0].clone() }).collect(), ..asks }
}

/// A request for this many names.
fn names(session: u32, count: usize) -> Request {
    let asks = whole(session, Write);
    let name = |at| Resource::new(&format!("name {at}")).unwrap();
    Request { claims: (0..count).map(|at| Claim { resource: name(at), ..asks.claims[0].clone() }).collect(), ..asks }
}

impl Crowd {
    fn new(list: &'static str) -> Self {
        let lab = Lab::new();
        Self { site: lab.open(), beacon: None, list, _lab: lab }
    }

    fn ask(&mut self, request: Request) {
        let Self { site, beacon, .. } = self;
        site.transact(|work| work.enter(request.clone(), None, beacon)).unwrap();
    }

    /// Times a step by the processor's clock of this thread, and checks the time.
    fn step<T>(&mut self, what: &str, step: impl FnOnce(&mut Self) -> T) -> T {
        let clock = || {
            let now = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
        };
        let begun = clock();
        let result = step(self);
        let took = clock() - begun;
        println!("{}: {what} {:.1} ms", self.list, 1000.0 * took.as_secs_f64());
        assert!(took < LIMIT, "{}: {what} takes {took:?}", self.list);
        result
    }

    fn time_request(&mut self, what: &str, request: &Request) {
        self.step(what, |crowd| crowd.ask(request.clone()));
    }

    fn time_release(&mut self, what: &str, session: u32) {
        let end = Some(End { ending: Ending::Exit(0), is_success: true });
        self.step(what, |crowd| {
            crowd.site.transact(|work| work.leave(number(session), Rank::HELD, end)).unwrap();
        });
    }

    /// What looks at the store, and the end of the crowd.
    fn finish(mut self) {
        let name = Resource::new("k").unwrap();
        self.step("inspect", |crowd| crowd.site.0.inspect(&[]).unwrap());
        self.step("history", |crowd| crowd.site.0.history(&[], HISTORY_MAX).unwrap());
        let busy = Request { wait: false, ..whole(1_000_000, Write) };
        self.time_request("request without a wait", &busy);
        self.time_request("request that waits", &whole(1_000_001, Write));
        self.step("give up", |crowd| crowd.site.transact(|work| work.apply(Op::GiveUp(number(1_000_001)))).unwrap());
        self.step("break", |crowd| crowd.site.0.break_grants(&name, None, rlock_store::Breaking::Now).unwrap());
    }
}

#[test]
fn transaction_takes_less_than_its_limit_beside_each_list() {
    let mut crowd = Crowd::new("readers");
    crowd.ask(whole(0, Write));
    (1..=share(10_000) as u32).for_each(|session| crowd.ask(whole(session, Read)));
    crowd.time_release("release that lets them in", 0);
    crowd.finish();

    let mut crowd = Crowd::new("waiters");
    (0..=share(10_000) as u32).for_each(|session| crowd.ask(whole(session, Write)));
    crowd.time_release("release", 0);
    crowd.finish();

    let mut crowd = Crowd::new("slots");
    (0..share(10_000) as u32).for_each(|session| crowd.ask(whole(session, Slot)));
    crowd.time_request("request for one more", &whole(900_000, Slot));
    crowd.time_release("release", 0);
    crowd.finish();

    let mut crowd = Crowd::new("shares of a slot");
    crowd.ask(whole(0, Slot));
    for session in 1..=share(1_000) as u32 {
        crowd.ask(Request { ancestors: vec![number(0)], ..whole(session, Slot) });
    }
    crowd.time_release("release", 0);
    crowd.finish();

    let most = share(CLAIMS_MAX);
    let mut crowd = Crowd::new("intervals of a request");
    crowd.time_request("request", &intervals(0, Prewrite, 0..most));
    crowd.time_request("nested request", &Request { ancestors: vec![number(0)], ..intervals(1, Prewrite, 0..most) });
    crowd.time_release("nested release", 1);
    crowd.time_request("request that waits", &intervals(2, Write, 0..most));
    crowd.time_release("release that grants", 0);
    crowd.time_request("another that waits", &intervals(3, Write, 0..most));
    crowd.time_release("cancel", 3);
    crowd.finish();

    let mut crowd = Crowd::new("holders with 1000 intervals");
    for session in 0..share(100) {
        crowd.ask(intervals(session as u32, Write, (0..most).map(|at| at * 100 + session)));
    }
    crowd.time_release("release", 0);
    crowd.finish();

    let most = share(10 * NAMES_MAX) / 10;
    let mut crowd = Crowd::new("names of a request");
    crowd.time_request("request", &names(0, most));
    crowd.time_request("request that waits", &names(1, most));
    crowd.time_release("release that grants", 0);
    crowd.finish();

    let mut crowd = Crowd::new("jobs");
    crowd.ask(whole(0, Write));
    for at in 0..share(JOBS_MAX) as u32 {
        let job = Job { name: format!("a job with a name {at}"), skips: true, ..Job::default() };
        crowd.ask(Request { wait: false, job, ..whole(1 + at, Write) });
    }
    crowd.finish();

    let mut crowd = Crowd::new("history of 1000 intervals");
    for session in 0..share(100) as u32 {
        let job = Job { history: HISTORY_MAX, ..Job::default() };
        crowd.ask(Request { job, ..intervals(session, Write, 0..share(CLAIMS_MAX)) });
        crowd.site.transact(|work| work.leave(number(session), Rank::HELD, Some(End::KEPT)).map(drop)).unwrap();
    }
    crowd.finish();
}
