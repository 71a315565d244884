//! Which waiters behind a pooler count as dead: no backend stands for them, so their looks do.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::rows::{Named, Range, Row, Rows, Stop};
use crate::work::Work;
use rlock_model::mode::Mode;
use rlock_model::op::{Op, Reply};
use rlock_model::request::{Claim, Job, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::engine::Engine as _;
use rlock_store::lease::{Command, LeaseReply};
use rlock_sys::clock::StoreTime;

const TERMS: Terms =
    Terms { ttl: Duration::from_secs(30), claim: Duration::from_secs(3), heartbeat: Duration::from_secs(15) };

fn request(number: u8) -> Request {
    let claim = Claim { resource: Resource::new("k").unwrap(), mode: Mode::Write, span: Span::Whole, slots: None };
    Request {
        session: SessionId([number; 16]),
        ancestors: Vec::new(),
        claims: vec![claim],
        wait: true,
        terms: Some(TERMS),
        job: Job::default(),
        process: Process::default(),
    }
}

/// The rows of a namespace whose clients are all behind a pooler.
#[derive(Default)]
struct Namespace(BTreeMap<Vec<u8>, Vec<u8>>);

impl Namespace {
    fn change<T>(&mut self, ms: u64, run: impl Fn(&mut Work) -> Result<T, Stop>) -> T {
        let row =
            |(key, value): (&Vec<u8>, &Vec<u8>)| Row { key: key.clone(), value: value.clone(), backend: Named::Nobody };
        let mut rows = Rows::default();
        let everything = Range { low: Vec::new(), high: vec![u8::MAX; 2], count: usize::MAX };
        rows.fetch(everything, self.0.iter().map(row).collect());
        rows.reset();
        let mut work = Work::new(rows, StoreTime::from_micros((1 << 50) + ms * 1_000), None).unwrap();
        work.is_pooled = true;
        let result = run(&mut work).unwrap();
        for (key, value) in work.into_parts().0.changes() {
            match value {
                Some(value) => drop(self.0.insert(key.to_vec(), value.to_vec())),
                None => drop(self.0.remove(key)),
            }
        }
        result
    }

    fn say(&mut self, ms: u64, number: u8, command: Command) -> LeaseReply {
        self.change(ms, |work| {
            work.own = vec![SessionId([number; 16])];
            work.command(command, &request(number))
        })
    }

    fn ask(&mut self, ms: u64, number: u8, place: u64) -> LeaseReply {
        self.say(ms, number, Command::Acquire { place, waited: Duration::ZERO })
    }

    fn release(&mut self, ms: u64, number: u8) -> Reply {
        self.change(ms, |work| {
            work.drop_due()?;
            work.apply(Op::Release { session: SessionId([number; 16]), end: None })
        })
    }
}

fn place(reply: &LeaseReply) -> u64 {
    let LeaseReply::Waiting { place, .. } = reply else { panic!("{reply:?}") };
    *place
}

/// "All that were killed in a row are passed over together": 1 holds, 2 to 6 say nothing more, and
/// 7 looks each second and a half, as over a link of 20 KB/s. 2 comes back before 8.
#[test]
fn waiters_behind_a_pooler_without_looks_are_passed_over_together() {
    let mut namespace = Namespace::default();
    assert!(matches!(namespace.ask(0, 1, 0), LeaseReply::Granted { .. }));
    let places: Vec<_> = (2..=6).map(|number| place(&namespace.ask(1, number, 0))).collect();
    let waits = place(&namespace.ask(1_000, 7, 0));
    for at in [2_500, 4_000] {
        assert_eq!(place(&namespace.say(at, 7, Command::Renew)), waits);
    }
    assert!(matches!(namespace.release(5_900, 1), Reply::Released(_)));
    assert!(matches!(namespace.say(6_000, 7, Command::Renew), LeaseReply::Granted { .. }));

    assert_eq!(namespace.say(6_000, 2, Command::Renew), LeaseReply::Unknown);
    place(&namespace.ask(6_050, 8, 0));
    assert_eq!(place(&namespace.ask(6_100, 2, places[0])), places[0]);
    assert!(matches!(namespace.release(6_200, 7), Reply::Released(_)));
    assert!(matches!(namespace.say(6_300, 2, Command::Renew), LeaseReply::Granted { .. }));
    assert!(matches!(namespace.say(6_300, 8, Command::Renew), LeaseReply::Waiting { .. }));
}

/// "At most five seconds": the first of those that have just been killed costs its claim, and the
/// others nothing.
#[test]
fn waiters_behind_a_pooler_that_have_just_been_killed_cost_one_claim() {
    let mut namespace = Namespace::default();
    namespace.ask(0, 1, 0);
    for number in 2..=50 {
        place(&namespace.ask(1, number, 0));
    }
    place(&namespace.ask(2, 60, 0));
    namespace.release(100, 1);
    let granted = (1..)
        .map(|look| 100 + look * 1_000)
        .find(|at| matches!(namespace.say(*at, 60, Command::Renew), LeaseReply::Granted { .. }));
    assert!(granted.is_some_and(|at| at <= 5_100), "{granted:?}");
}
