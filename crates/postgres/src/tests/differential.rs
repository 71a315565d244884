//! Random histories on a table in memory and on that of a real server, by the transactions that the
//! program sends: equal replies, and equal tables after each step. The test sets the server's
//! clock.
//!
//! The two share the code of the table, so this proves what lies between: rows that are fetched and
//! written, conversions, the time, and transactions whose answer is lost.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::exchange::{Exchange, Question};
use crate::step::{Channel, Task};
use crate::turns::Requester;
use crate::{Postgres, Target};
use rlock_model::index::Rank;
use rlock_model::mode::Mode::{self, Prewrite, Read, Slot, Write};
use rlock_model::op::{Op, Reply};
use rlock_model::past::HISTORY_MAX;
use rlock_model::records::{Records as _, Session};
use rlock_model::request::{self, Job, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::table::LockTable;
use rlock_store::engine::standing;
use rlock_store::handle::{Grant, Released, Replicas};
use rlock_store::lease::{Command, LeaseReply, Retry};
use rlock_store::operations::{Breaking, Changed, Store as _};
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_testkit::histories::{History, Profile, Stage};
use rlock_testkit::random::Random;
use rlock_testkit::servers::postgres::Postgres as Server;
use rlock_testkit::share::share;

/// How long one answer may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);
/// How much later a client asks again whose answer was lost.
const ASKS_AGAIN: Duration = Duration::from_micros(64);
/// Names of which one is the beginning of another, or that are special in SQL.
const NAMES: [&str; 7] = ["nightly", "night", "a 'b' \"c\"", "\\x00", "名前 é", "%_$1", "{}"];
const ENDS: [&str; 9] = ["-inf", "-22/7", "0", "1/3", "0.5", "1", "2", "1000000000000000000001", "inf"];
const MODES: [&[Mode]; 4] = [
    &[Read, Prewrite, Write, Write, Slot],
    &[Slot, Slot, Slot, Slot, Slot, Slot, Write],
    &[Read, Read, Prewrite, Prewrite, Write],
    &[Read, Write],
];

/// A function that is found before that of the server reads the clock from a file.
const CLOCK: &str = "create schema clock; create function clock.clock_timestamp() returns timestamptz language sql as \
    $$ select timestamptz 'epoch' + pg_read_file('clock')::float8 * interval '1 microsecond' $$; \
    alter role tester set search_path = clock, pg_catalog";

#[test]
fn table_on_a_server_answers_as_the_one_in_memory() {
    if !Server::is_present() {
        return;
    }
    let server = Server::start(&[]);
    server.ask(CLOCK);
    let count = share(3, 40);
    History::play_all("-p rlock-postgres --lib", 59_000, count, 90, |history| {
        let mut random = Random::seeded(history.seed);
        let profile = Profile {
            resources: NAMES[..1 + random.below(NAMES.len() as u64) as usize]
                .iter()
                .map(|name| Resource::new(name).unwrap())
                .collect(),
            ends: ENDS.map(str::to_owned).to_vec(),
            modes: MODES[random.below(MODES.len() as u64) as usize],
            claims: 4,
            acquire: 46,
            nested: if random.chance(25) { 86 } else { 35 },
            // Each session on a server has a lease.
            leases: 100,
            jobs: 100,
            live_max: 12,
            is_entangled: random.chance(50),
            is_free: false,
        };
        let resources = profile.resources.clone();
        history.play(profile, &mut Both::new(&server, resources))
    });
}

/// The two tables.
struct Both<'s> {
    server: &'s Server,
    table: LockTable,
    store: Postgres,
    /// Carries what sessions say.
    exchange: Exchange,
    resources: Vec<Resource>,
    requests: BTreeMap<SessionId, Request>,
    /// The first instant that is later than all that the server has told.
    earliest: StoreTime,
}

impl<'s> Both<'s> {
    /// Two empty tables.
    fn new(server: &'s Server, resources: Vec<Resource>) -> Self {
        static PLAYED: AtomicU64 = AtomicU64::new(0);
        let namespace = format!("history {}", PLAYED.fetch_add(1, Ordering::Relaxed));
        let target = || Target::parse(&server.url()).unwrap().unwrap();
        Self {
            server,
            table: LockTable::default(),
            store: Postgres::new(target(), &namespace, LIMIT),
            exchange: Exchange::new(Arc::new(target()), namespace.as_str().into(), LIMIT),
            resources,
            requests: BTreeMap::new(),
            earliest: StoreTime::default(),
        }
    }

    fn set_clock(&self, now: StoreTime) {
        fs::write(self.server.folder().join("data/clock"), now.as_micros().to_string()).unwrap();
    }

    /// Applies the operation to both.
    fn compare(&mut self, now: StoreTime, op: Op) -> Result<(), String> {
        self.set_clock(now);
        let broken = match &op {
            Op::Break { resource, only, .. } => self.holders(now, resource, *only),
            _ => Vec::new(),
        };
        let known = match &op {
            Op::Renew(id) | Op::GiveUp(id) | Op::Release { session: id, .. } => self.requests.get(id).cloned(),
            Op::Acquire { request, .. } => Some(request.clone()),
            _ => None,
        };
        let session = if let Op::Release { session, .. } = &op { record(&self.table, *session) } else { None };
        // A look ends no session that is due.
        let at = if matches!(op, Op::Inspect(_)) { StoreTime::default() } else { now };
        let Ok(outcome) = self.table.apply(at, op.clone());
        let reply = outcome.reply;
        let (expected, found) = match (&op, known) {
            // As `rlock release` does it.
            (Op::Release { end, .. }, _) if session.is_some() && now.as_micros().is_multiple_of(3) => {
                let (id, session) = session.expect("it is there");
                let expected = if reply == Reply::Unknown { Released::Lost } else { Released::Done };
                (format!("{expected:?}"), format!("{:?}", self.store.release(id, &session, *end).unwrap()))
            }
            (Op::Acquire { .. } | Op::Renew(_) | Op::GiveUp(_) | Op::Release { .. }, Some(request)) => (
                format!("{:?}", self.expected(now, &op, reply, &request)),
                format!("{:?}", self.says(now, &op, &request)),
            ),
            // The history names a session that has never asked.
            (Op::Renew(id) | Op::GiveUp(id) | Op::Release { session: id, .. }, None) => (
                format!("{reply:?}"),
                format!("{:?}", self.store.session(*id, &[]).unwrap().map_or(Reply::Unknown, |_| Reply::Done)),
            ),
            (Op::Change { session, change }, _) => {
                let expected = match reply {
                    Reply::Done | Reply::Granted { .. } => Changed::Done,
                    Reply::Refused(refusal) => Changed::Refused(refusal),
                    _ => Changed::Lost,
                };
                let named = self.requests.get(session).map(|request| request.claims.clone()).unwrap_or_default();
                let named: Vec<_> = named.into_iter().map(|claim| claim.resource).collect();
                (format!("{expected:?}"), format!("{:?}", self.store.change(*session, &named, change).unwrap()))
            }
            (Op::Break { resource, only, by }, _) => {
                let how = by.as_ref().map_or(Breaking::Now, Breaking::Revoke);
                (format!("{broken:?}"), format!("{:?}", self.store.break_grants(resource, *only, how).unwrap()))
            }
            (Op::Expire, _) => {
                let mut found: Vec<_> = self.store.cleanup(&[], false).unwrap().into_iter().map(|(id, _)| id).collect();
                let mut expected = outcome.expired;
                expected.sort_unstable();
                found.sort_unstable();
                (format!("{expected:?}"), format!("{found:?}"))
            }
            (Op::Forget(resource), _) => {
                self.store.forget(resource).unwrap();
                (format!("{:?}", Reply::Done), format!("{reply:?}"))
            }
            (Op::Inspect(names), _) => {
                let found = self.store.inspect(names).unwrap().resources;
                (format!("{reply:?}"), format!("{:?}", Reply::Listing(found)))
            }
            (Op::Reap { .. }, _) => return Err("a server sees no process die".to_owned()),
            (Op::Acquire { .. }, None) => unreachable!("a request is known"),
        };
        if expected == found {
            Ok(())
        } else {
            Err(format!("the model replies  {expected}\n  the server replies {found}"))
        }
    }

    fn holders(&self, now: StoreTime, resource: &Resource, only: Option<SessionId>) -> Vec<(SessionId, Session)> {
        let mut table = LockTable::new(self.table.records().clone());
        let Ok(_) = table.apply(now, Op::Expire);
        let Ok(ids) = table.sessions_of(resource, |rank| rank.is_held());
        let ids = ids.into_iter().filter(|id| only.is_none_or(|only| only == *id));
        ids.filter_map(|id| record(&table, id)).collect()
    }

    /// The task of what a session says.
    fn task(&self, now: StoreTime, op: &Op, request: &Request) -> Task<LeaseReply> {
        let session = Requester::new(request.clone(), Replicas::default());
        let command = match op {
            Op::Release { end, .. } => return session.releases(*end),
            Op::Renew(_) => Command::Renew,
            Op::GiveUp(_) => Command::GiveUp,
            Op::Acquire { place: Some(place), .. } => {
                Command::Acquire { place: place.number, waited: now - place.asked }
            }
            _ => Command::Acquire { place: 0, waited: Duration::ZERO },
        };
        Task { channel: Channel::Stays, ..session.says(command, false) }
    }

    fn says(&mut self, now: StoreTime, op: &Op, request: &Request) -> LeaseReply {
        let task = self.task(now, op, request);
        Question::new(task, Retry::WhileUp, Boottime::now() + LIMIT).run(&mut self.exchange).unwrap()
    }

    /// What the server has to reply where the model replies this.
    fn expected(&self, now: StoreTime, op: &Op, reply: Reply, request: &Request) -> LeaseReply {
        match reply {
            Reply::Granted { lease: Some(lease), tokens, slots, last, is_revoked } => {
                LeaseReply::Granted { lease, grant: Grant { tokens, slots, last, deadline: None, is_revoked } }
            }
            Reply::Waiting => {
                let Ok(session) = self.table.records().session(request.session);
                let session = session.expect("a waiter has a record");
                let (first, mut in_the_way) = (&session.claims[0], Vec::new());
                let Ok(ahead) =
                    self.table.sessions_of(&first.claim.resource, |rank| !rank.is_held() && rank < first.rank);
                for name in session.resources() {
                    let Ok(waiters) = self.table.sessions_of(name, |rank| !rank.is_held());
                    let Ok(holders) = self.table.sessions_of(name, |rank| rank.is_held());
                    let first = waiters.iter().copied().min_by_key(|id| self.rank(*id, name));
                    in_the_way.extend(holders.into_iter().chain(first));
                }
                let expiry = |id: &SessionId| self.table.records().get(*id).and_then(|session| session.expiry);
                LeaseReply::Waiting {
                    place: session.place(),
                    position: u32::try_from(ahead.len()).unwrap() + 1,
                    next: in_the_way.iter().filter_map(expiry).min().map(|next| next - now),
                }
            }
            Reply::Released(tokens) => LeaseReply::Released(tokens),
            Reply::KeptUntil(_) => LeaseReply::Kept,
            Reply::Unknown => LeaseReply::Unknown,
            reply => {
                let mut table = LockTable::new(self.table.records().clone());
                let names = request::resources(&request.claims).into_iter().cloned().collect();
                let Ok(listed) = table.apply(now, Op::Inspect(names));
                // A session that gives up asks for them by itself.
                let obstructions = match listed.reply {
                    Reply::Listing(listings) if !matches!(op, Op::GiveUp(_)) => {
                        listings.into_iter().map(Into::into).collect()
                    }
                    _ => Vec::new(),
                };
                standing(reply, obstructions).map_or(LeaseReply::Other, LeaseReply::Over)
            }
        }
    }

    fn rank(&self, id: SessionId, name: &Resource) -> Option<Rank> {
        let session = self.table.records().get(id)?;
        session.claims.iter().filter(|record| record.claim.resource == *name).map(|record| record.rank).min()
    }

    /// Compares all that can be read.
    fn compare_tables(&mut self) -> Result<(), String> {
        let found = self.store.inspect(&[]).unwrap();
        self.earliest = found.now;
        let Ok(listed) = LockTable::new(self.table.records().clone())
            .apply(StoreTime::default(), Op::Inspect(self.resources.clone()));
        let Reply::Listing(mut expected) = listed.reply else { return Err("the model lists nothing".to_owned()) };
        expected.retain(|listing| !listing.holders.is_empty() || !listing.waiters.is_empty());
        let mut listed = found.resources;
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        same("lists", &expected, &listed)?;
        let ids = self.requests.keys().copied();
        let sessions: BTreeMap<_, _> = ids.filter_map(|id| record(&self.table, id)).collect();
        same("knows", &sessions, &found.sessions)?;
        let past = |name: &Resource| {
            let Ok(past) = self.table.past(found.now, name, HISTORY_MAX);
            past
        };
        let mut names = self.resources.clone();
        names.sort();
        let expected: Vec<_> = names.iter().filter_map(past).collect();
        same("remembers", &expected, &self.store.history(&[], HISTORY_MAX).unwrap())
    }
}

/// The record of a session as a server keeps it.
fn record(table: &LockTable, id: SessionId) -> Option<(SessionId, Session)> {
    let session = table.records().get(id)?.clone();
    // These count only when the request comes.
    let job = Job { max_waiting: None, supersedes: false, ..session.job };
    Some((id, Session { job, ..session }))
}

fn same<T: Debug>(what: &str, expected: &T, found: &T) -> Result<(), String> {
    let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
    if expected == found { Ok(()) } else { Err(format!("the model {what}  {expected}\n  the server {what} {found}")) }
}

impl Stage for Both<'_> {
    fn table(&self) -> &LockTable {
        &self.table
    }

    fn apply(&mut self, mut now: StoreTime, mut op: Op, _claimed: &[Resource]) -> Result<(), String> {
        if let Op::Acquire { request, .. } = &mut op {
            // Only the record of the session has it.
            request.process.lasts_for = None;
            self.requests.insert(request.session, request.clone());
        }
        if let Op::Renew(id)
        | Op::GiveUp(id)
        | Op::Release { session: id, .. }
        | Op::Acquire { request: Request { session: id, .. }, .. } = &op
            && let Some(request) = self.requests.get(id).cloned()
            && now.as_micros().is_multiple_of(10)
        {
            self.set_clock(now);
            self.says(now, &op, &request);
            self.exchange.close();
            let Ok(_) = self.table.apply(now, op.clone());
            now += ASKS_AGAIN;
        }
        self.compare(now, op)?;
        self.compare_tables()
    }

    /// An instant of the server comes after its last token.
    fn earliest(&mut self, now: StoreTime) -> StoreTime {
        now.max(self.earliest)
    }
}
