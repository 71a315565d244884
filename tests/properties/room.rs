//! Random runs of jobs in a table whose past may hardly grow.

use std::collections::BTreeMap;
use std::time::Duration;

use rlock_model::mode::Mode;
use rlock_model::op::{Op, Reply};
use rlock_model::past::{End, Ending};
use rlock_model::records::{Memory, Records};
use rlock_model::request::{Claim, Job, OncePer, Process, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_model::table::LockTable;
use rlock_sys::clock::StoreTime;

use rlock_testkit::random::Random;

/// How many pasts and entries the table may have.
const ROOM: usize = 5;
const STEPS: u128 = 400;

/// When the last success of a job began, and for how long it must be kept.
type Successes = BTreeMap<(usize, String), (StoreTime, Duration)>;

fn request(step: u128, name: &Resource, job: Job) -> Request {
    let claim = Claim { resource: name.clone(), mode: Mode::Write, span: Span::Whole, slots: None };
    let (session, process) = (SessionId(step.to_be_bytes()), Process::default());
    Request { session, ancestors: vec![], claims: vec![claim], wait: false, terms: None, job, process }
}

fn play(random: &mut Random) {
    let names: Vec<_> = (0..8).map(|number| Resource::new(&format!("r{number}")).unwrap()).collect();
    let mut table = LockTable::new(Memory::with_room(ROOM));
    let (mut now, mut known) = (StoreTime::default(), Successes::new());
    for step in 1..=STEPS {
        now += Duration::from_micros(1 + random.below(60));
        let at = random.below(names.len() as u64) as usize;
        let once_per =
            random.chance(60).then(|| OncePer { period: Duration::from_micros(1 + random.below(500)), calendar: None });
        let name = (*random.pick(&["a", "b", "c"])).to_owned();
        let job = Job { name, is_named: random.chance(50), once_per, history: 3, ..Job::default() };
        let remembers = |(place, by): &(usize, String), began| {
            let Ok(past) = table.records().past(&names[*place]);
            past.is_some_and(|past| past.jobs.get(by).is_some_and(|job| job.success == Some(began)))
        };
        // The table may have forgotten a success that is not bound.
        known.retain(|key, (began, kept)| now < *began + *kept || remembers(key, *began));
        let own =
            |(place, by): &(usize, String)| *place == at && once_per.is_some() && (!job.is_named || *by == job.name);
        let period = once_per.map_or(Duration::ZERO, |once| once.period);
        let last = known.iter().filter(|(key, _)| own(key)).max_by_key(|(key, (began, _))| (*began, (*key).clone()));
        let last = last.map(|(key, success)| (key.clone(), *success));
        let is_done = last.as_ref().is_some_and(|(_, (began, _))| now < *began + period);
        let must_know = last.as_ref().is_some_and(|(_, (began, kept))| now < *began + *kept);
        let Ok(outcome) =
            table.apply(now, Op::Acquire { request: request(step, &names[at], job.clone()), place: None });
        match outcome.reply {
            Reply::AlreadyDone => {
                assert!(is_done, "nothing has succeeded within {period:?}");
                let (key, (began, kept)) = last.unwrap();
                known.insert(key, (began, kept.max(period)));
            }
            Reply::Granted { .. } => {
                assert!(!is_done || !must_know, "the table forgot {last:?} at {now:?}, and {period:?} was asked");
                now += Duration::from_micros(random.below(20));
                let since = table.records().get(SessionId(step.to_be_bytes())).unwrap().since;
                let is_success = random.chance(70);
                let end = End { ending: Ending::Exit(u8::from(!is_success)), is_success };
                let Ok(_) = table.apply(now, Op::Release { session: SessionId(step.to_be_bytes()), end: Some(end) });
                if is_success && once_per.is_some() {
                    known.insert((at, job.name), (since, period));
                }
            }
            other => panic!("a free resource answers {other:?}"),
        }
        // A resource with a success that is bound keeps its past, and no other one.
        let is_bound = |at: &usize| known.iter().any(|((place, _), (began, kept))| place == at && now < *began + *kept);
        let bound = (0..names.len()).filter(is_bound).count();
        assert!(table.records().remembered() <= ROOM.max(bound) + 3, "it remembers too much");
    }
}

#[test]
fn successes_outlast_everything_else_where_there_is_no_room() {
    for _ in 0..crate::histories() {
        let seed = Random::seed();
        println!("seed {seed}");
        play(&mut Random::seeded(seed));
    }
}
