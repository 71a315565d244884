//! Applies each operation to the model and to the server, and compares the replies and the tables.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use rlock_model::op::{Op, Reply, ResourceListing};
use rlock_model::past::{HISTORY_MAX, JobPast, Past, Remembered, Spared, Streak, Superseded};
use rlock_model::records::{Phase, Records as _, Session};
use rlock_model::request::{Job, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::table::LockTable;
use rlock_redis::codec::{Call, ScriptReply};
use rlock_redis::findings::{Findings, remembered};
use rlock_store::Standing;
use rlock_sys::clock::StoreTime;

use crate::raw;
use crate::side::Side;

/// The two tables.
pub(crate) struct Both {
    pub(crate) table: LockTable,
    side: Side,
    resources: Vec<Resource>,
    /// Whether each call names all resources. If not, a separate call drops expired sessions first,
    /// and each call names only its own resources, until the server asks for more.
    all_named: bool,
    /// The number that the server gave each request in the queue. The model has numbers of its own.
    numbers: BTreeMap<SessionId, u64>,
    /// The jobs of all requests so far.
    jobs: BTreeMap<SessionId, Job>,
    /// The instant of the last operation.
    last: StoreTime,
    /// The sessions that the model has dropped at this instant because their leases had ended.
    expired: Vec<SessionId>,
}

impl Both {
    pub(crate) fn new(side: Side, resources: Vec<Resource>, all_named: bool) -> Self {
        Self {
            table: LockTable::default(),
            side,
            resources,
            all_named,
            numbers: BTreeMap::new(),
            jobs: BTreeMap::new(),
            last: StoreTime::from_micros(0),
            expired: Vec::new(),
        }
    }

    /// Applies an operation to both tables. `own` are the resources that the session claims.
    pub(crate) fn apply(&mut self, now: StoreTime, op: Op, own: &[Resource]) -> Result<(), String> {
        // Scripts that do little at a time put off some of their work. The next operation at the
        // same instant finishes it, or an expiry before the clock goes on.
        let puts_off = self.side.variant.is_bounded && self.all_named;
        if puts_off && self.last < now {
            self.finish_at(self.last)?;
        }
        if self.last < now {
            self.expired.clear();
        }
        self.last = now;
        // Inspect does not drop expired sessions, so a separate call drops them first.
        if !self.all_named || matches!(op, Op::Inspect(_)) {
            self.compare(now, Op::Expire, &self.resources.clone())?;
        }
        self.compare(now, op, own)?;
        if puts_off { Ok(()) } else { self.finish_at(now) }
    }

    fn finish_at(&mut self, now: StoreTime) -> Result<(), String> {
        if self.side.variant.is_bounded && now > StoreTime::from_micros(0) {
            self.compare(now, Op::Expire, &self.resources.clone())?;
        }
        self.compare_tables(now)
    }

    fn compare(&mut self, now: StoreTime, op: Op, own: &[Resource]) -> Result<(), String> {
        if let Op::Acquire { request, .. } = &op {
            self.jobs.insert(request.session, request.job.clone());
        }
        let mut call = match &op {
            Op::Acquire { request, place: None } => Call::acquire(request, 0, false),
            Op::Acquire { request, place: Some(place) } => {
                let number = self.numbers.get(&request.session).copied().unwrap_or(0);
                Call::acquire_after(now - place.asked, request, number, false)
            }
            Op::Renew(session) => Call::renew(*session, own.to_vec(), false),
            Op::Release { session, end } => {
                let job = self.jobs.get(session).cloned().unwrap_or_default();
                Call::release_after(*session, own.to_vec(), *end, &job)
            }
            Op::Reap { .. } => return Err("a server sees no process die".to_owned()),
            Op::GiveUp(session) => Call::give_up(*session, own.to_vec()),
            Op::Change { session, change } => Call::change(*session, own, change),
            Op::Expire => Call::expire(own.to_vec()),
            Op::Break { resource, only, by } => Call::break_grants(resource.clone(), *only, Vec::new(), by.as_ref()),
            Op::Forget(resource) => Call::forget(resource.clone()),
            Op::Inspect(resources) => Call::inspect(resources.clone(), 0),
        };
        if self.all_named && !matches!(op, Op::Inspect(_)) {
            call.extend(self.resources.iter().cloned());
        }
        let broken = match &op {
            Op::Break { resource, only, .. } => {
                let mut holders = self.sessions_holding(resource);
                holders.retain(|(id, ..)| only.is_none_or(|only| only == *id));
                holders
            }
            _ => Vec::new(),
        };
        let Ok(outcome) = self.table.apply(now, op.clone());
        self.expired.extend(&outcome.expired);
        let answer = match op {
            Op::Expire => ScriptReply::Expired(self.side.catch_up(now, call.resources())),
            _ => self.side.at(now, call),
        };
        let same = match (&outcome.reply, &answer) {
            (
                Reply::Granted { lease, tokens, slots, last, is_revoked },
                ScriptReply::Granted { lease: left, tokens: actual, slots: numbers, last: ending, is_revoked: told },
            ) => {
                // A renewal of a sole holder leaves out what the holder knows.
                let is_known = matches!(op, Op::Renew(_)) && numbers.is_empty() && ending.is_none();
                (lease, tokens, is_revoked) == (left, actual, told) && (is_known || (slots, last) == (numbers, ending))
            }
            (Reply::Released(tokens), ScriptReply::Released(actual)) => tokens == actual,
            (Reply::Waiting, ScriptReply::Waiting { seq, position, next }) => {
                if let Op::Acquire { request, .. } = &op {
                    self.numbers.insert(request.session, *seq);
                }
                self.check_waiting(&op, now, *position, *next)?;
                true
            }
            (
                Reply::Busy { streak, .. },
                ScriptReply::Over(Standing::Busy { obstructions: listed, streak: actual }),
            ) => {
                let listings = self.listings(now);
                for listed in listed {
                    let expected = listings.iter().find(|listing| listing.name == listed.listing.name);
                    check_listed(&listed.listing, expected.ok_or("the server lists an unknown resource")?)?;
                }
                let is_explained = listed
                    .iter()
                    .any(|listed| !listed.listing.holders.is_empty() || !listed.listing.waiters.is_empty());
                let streak = streak.as_ref().map(plain_streak);
                (is_explained || matches!(op, Op::GiveUp(_))) && streak == actual.as_ref().map(plain_streak)
            }
            (Reply::Superseded { by, streak }, ScriptReply::Over(Standing::Superseded { by: actual, streak: its })) => {
                *by == **actual && streak.as_ref().map(plain_streak) == its.as_ref().map(plain_streak)
            }
            (Reply::AlreadyDone, ScriptReply::Over(Standing::AlreadyDone)) => true,
            (Reply::KeptUntil(until), ScriptReply::KeptUntil(actual)) => until == actual,
            (Reply::Refused(refusal), ScriptReply::Refused(actual)) => format!("{refusal:?}") == format!("{actual:?}"),
            (Reply::Done, ScriptReply::Done) | (Reply::Unknown, ScriptReply::Unknown) => true,
            (Reply::Done, ScriptReply::Expired(dropped)) => {
                // The renewal of a holder may have put off a drop until now.
                let dropped = ids(dropped);
                outcome.expired.iter().all(|id| dropped.contains(id))
                    && dropped.iter().all(|id| self.expired.contains(id))
            }
            (Reply::Broken(held), ScriptReply::Broken { next, sessions: actual }) => {
                // If the same call dropped expired sessions first, the holders at the instant of
                // the break are unknown.
                let records_match = broken.is_empty() || !outcome.expired.is_empty() || {
                    let plain = actual.iter().map(|(id, session)| (*id, session.phase, plain(session)));
                    plain.collect::<Vec<_>>() == broken
                };
                next.is_empty() && *held == ids(actual) && records_match
            }
            (Reply::Listing(expected), ScriptReply::Listing { resources, .. }) => {
                let actual: Vec<_> = resources.iter().map(|listed| listed.listing.clone()).collect();
                same_listings(expected, &actual)
            }
            _ => false,
        };
        if same {
            Ok(())
        } else {
            Err(format!("{op:?}\n  the model replies  {:?}\n  the server replies {answer:?}", outcome.reply))
        }
    }

    /// Checks the position in the first queue, and the time of the next check.
    fn check_waiting(&self, op: &Op, now: StoreTime, position: u32, next: Option<Duration>) -> Result<(), String> {
        let (Op::Acquire { request: Request { session, .. }, .. } | Op::Renew(session)) = op else {
            return Ok(());
        };
        let Ok(Some(record)) = self.table.records().session(*session) else {
            return Err(format!("{op:?}\n  the model does not know the waiting session"));
        };
        let first = &record.claims[0].claim;
        let listings = self.listings(now);
        let listing =
            listings.iter().find(|listing| listing.name == first.resource).ok_or("the session waits in no queue")?;
        let positions: Vec<_> = listing.waiters.iter().filter(|waiter| waiter.session == *session).collect();
        // A session that waits with nested and with ordinary claims has two positions, and is
        // counted twice.
        // A script that does little at a time has not yet granted what superseded waiters blocked.
        let puts_off = self.side.variant.is_bounded && record.job.supersedes;
        if !puts_off
            && !positions.iter().any(|waiter| waiter.position == position)
            && listing.waiters.iter().all(|waiter| !self.waits_twice(waiter.session, &first.resource))
        {
            return Err(format!("{op:?}\n  the server states position {position}, not one of {positions:?}"));
        }
        if next.is_some_and(|next| next.is_zero() || next > Duration::from_secs(10)) {
            return Err(format!("{op:?}\n  the server states {next:?} until the next check"));
        }
        let soonest = listings
            .iter()
            .flat_map(|listing| {
                let holders = listing.holders.iter().map(|holder| holder.session);
                holders.chain(listing.waiters.iter().map(|waiter| waiter.session))
            })
            .filter_map(|id| self.table.records().session(id).ok().flatten().and_then(|session| session.expiry))
            .min()
            .filter(|expiry| *expiry < StoreTime::NEVER);
        if self.all_named && soonest.map(|expiry| expiry - now) != next {
            return Err(format!("{op:?}\n  the next lease ends in {soonest:?} − {now:?}, the server states {next:?}"));
        }
        Ok(())
    }

    /// The last token of each resource, as the server remembers it.
    pub(crate) fn last_tokens(&mut self) -> Vec<(Resource, u64)> {
        let mut pipeline = redis::pipe();
        let token = "local raw = redis.call('GET', KEYS[1]) if not raw then return end \
                     local kind = string.sub(raw, 4, 4) \
                     return ({ struct.unpack('>ddd', raw, 5) })[kind == '1' and 3 or 2]";
        for resource in &self.resources {
            pipeline.cmd("EVAL").arg(token).arg(1).arg(&self.side.keys(resource)[0]);
        }
        let tokens: Vec<Option<u64>> =
            pipeline.query(&mut self.side.connection).unwrap_or_else(|error| panic!("{error}"));
        self.resources.iter().cloned().zip(tokens.into_iter().map(|token| token.unwrap_or(0))).collect()
    }

    fn waits_twice(&self, id: SessionId, resource: &Resource) -> bool {
        let Ok(Some(session)) = self.table.records().session(id) else { return false };
        let mut ranks: Vec<_> =
            session.claims.iter().filter(|claim| claim.claim.resource == *resource).map(|claim| claim.rank).collect();
        ranks.dedup();
        ranks.len() > 1
    }

    fn listings(&self, now: StoreTime) -> Vec<ResourceListing> {
        // A copy, because `apply` drops expired sessions.
        let mut table = LockTable::new(self.table.records().clone());
        let Ok(outcome) = table.apply(now, Op::Inspect(self.resources.clone()));
        match outcome.reply {
            Reply::Listing(listings) => listings,
            other => panic!("inspect replied {other:?}"),
        }
    }

    fn sessions_holding(&self, resource: &Resource) -> Vec<(SessionId, Phase, String)> {
        let Ok(Some(state)) = self.table.records().resource(resource) else { return Vec::new() };
        let Ok(entries) = state.tree.entries(self.table.records(), resource);
        let mut ids: Vec<_> = entries.iter().filter(|entry| entry.rank.is_held()).map(|entry| entry.session).collect();
        ids.sort_unstable();
        ids.dedup();
        let sessions = ids.into_iter().map(|id| match self.table.records().session(id) {
            Ok(Some(session)) => (id, session.phase, plain(&session)),
            other => panic!("holder {id} has the record {other:?}"),
        });
        sessions.collect()
    }

    fn compare_tables(&mut self, now: StoreTime) -> Result<(), String> {
        let expected = self.listings(now);
        let answer = self.side.at(now, Call::inspect(self.resources.clone(), 0));
        let ScriptReply::Listing { now: actual, resources, sessions, .. } = answer else {
            return Err(format!("inspect replies {answer:?}"));
        };
        if actual != now {
            return Err(format!("the server's clock is {actual:?}, not {now:?}"));
        }
        for (expected, actual) in expected.iter().zip(&resources) {
            if !same_listings(std::slice::from_ref(expected), std::slice::from_ref(&actual.listing)) {
                return Err(format!("the model lists  {expected:?}\n  the server lists {:?}", actual.listing));
            }
            let mut waiting: Vec<_> = expected.waiters.iter().map(|waiter| waiter.session).collect();
            waiting.sort_unstable();
            waiting.dedup();
            if waiting.len() as u64 != actual.waiting {
                return Err(format!(
                    "{} sessions wait for {}, the server counts {}",
                    waiting.len(),
                    expected.name,
                    actual.waiting
                ));
            }
        }
        for (id, session) in &sessions {
            let Ok(expected) = self.table.records().session(*id);
            let expected = expected.as_ref().map(plain);
            if expected != Some(plain(session)) {
                return Err(format!("{id} is {expected:?} in the model\n  and {:?} on the server", plain(session)));
            }
        }
        self.compare_parts(now, &expected)?;
        self.compare_pasts(now)?;
        raw::check(&mut self.side, &expected)
    }

    /// Compares a listing that was put together from small parts.
    fn compare_parts(&mut self, now: StoreTime, expected: &[ResourceListing]) -> Result<(), String> {
        let mut findings = Findings::default();
        let (names, most) = (self.resources.clone(), 1 + (now.as_micros() % 3) as u32);
        let Ok(makes_sense) = findings.list(&names, most, |call| Ok::<_, Infallible>(self.side.at(now, call)));
        let actual = findings.resources();
        if !makes_sense || !same_listings(expected, &actual) {
            return Err(format!("the model lists {expected:?}\n  the server lists {actual:?} in parts of {most}"));
        }
        Ok(())
    }

    fn compare_pasts(&mut self, now: StoreTime) -> Result<(), String> {
        let (names, most) = (self.resources.clone(), 1 + (now.as_micros() % 4) as u32);
        let Ok(listed) = remembered(&names, HISTORY_MAX, most, |call| Ok::<_, Infallible>(self.side.at(now, call)));
        let actual = listed.ok_or("history replies in parts that do not fit")?;
        let mut actual: BTreeMap<_, _> = actual.into_iter().map(|past| (past.name.clone(), past)).collect();
        for name in &self.resources {
            let Ok(expected) = self.table.past(now, name, HISTORY_MAX);
            let (expected, actual) = (expected.as_ref().map(plain_past), actual.remove(name));
            let actual = actual.as_ref().map(plain_past);
            let nothing = || plain_past(&Remembered { name: name.clone(), past: Past::default(), entries: Vec::new() });
            let (expected, actual) = (expected.unwrap_or_else(nothing), actual.unwrap_or_else(nothing));
            if expected != actual {
                return Err(format!("the model remembers  {expected}\n  the server remembers {actual}"));
            }
        }
        Ok(())
    }
}

fn ids(sessions: &[(SessionId, Session)]) -> Vec<SessionId> {
    sessions.iter().map(|(id, _)| *id).collect()
}

/// The record of a session without its ranks. The model counts ranks over all resources, the server
/// for each resource.
fn plain(session: &Session) -> String {
    let Session { ancestors, claims, phase: _, asked, since, expiry, terms, job, last, process, revoked, later: _ } =
        session;
    let claims: Vec<_> = claims.iter().map(|it| (&it.claim, it.rank.is_held(), it.token, it.shares, it.slot)).collect();
    let is_kept = session.is_kept();
    // No reply tells how long a run is to be remembered.
    let job = Job { max_waiting: None, supersedes: false, remember: None, ..job.clone() };
    format!(
        "{ancestors:?} {claims:?} {is_kept} {asked:?} {since:?} {expiry:?} {terms:?} {job:?} {last:?} {process:?} \
         {revoked:?}"
    )
}

/// The skips of a job without the number of their entry, which only the model has.
fn plain_streak(streak: &Streak) -> Streak {
    Streak { entry: None, ..streak.clone() }
}

/// What is remembered of a job without the numbers of its entries, and without the number in the
/// queue, which the server counts for each resource.
fn plain_job(job: &JobPast) -> JobPast {
    JobPast {
        spared: job.spared.map(|spared| Spared { entry: None, ..spared }),
        streak: job.streak.as_ref().map(plain_streak),
        superseded: job.superseded.clone().map(|superseded| Superseded { before: 0, ..superseded }),
        ..job.clone()
    }
}

/// What a resource remembers, without the numbers of the entries and the instants at which it is
/// forgotten.
fn plain_past(remembered: &Remembered) -> String {
    let Remembered { name, past, entries } = remembered;
    let Past { last, last_success, jobs, totals, bound, .. } = past;
    // The model keeps a job without anything to remember until it drops old jobs.
    let is_empty = |job: &JobPast| *job == JobPast { period: job.period, ..JobPast::default() };
    let jobs = jobs.iter().filter(|(_, job)| !is_empty(job));
    let jobs: Vec<_> = jobs.map(|(name, job)| (name, plain_job(job))).collect();
    let entries: String = entries.iter().map(|entry| format!("\n    {entry:?}")).collect();
    format!("{name} {last:?} {last_success:?} {jobs:?} {totals:?} {bound:?}{entries}")
}

/// Compares listings including the text of the ends of spans, which the equality of spans ignores.
fn same_listings(expected: &[ResourceListing], actual: &[ResourceListing]) -> bool {
    format!("{expected:?}") == format!("{actual:?}")
}

/// Checks that a listing in a busy reply contains only existing holders and waiters.
fn check_listed(listed: &ResourceListing, all: &ResourceListing) -> Result<(), String> {
    let holds = listed.holders.iter().all(|holder| all.holders.contains(holder));
    let waits = listed.waiters.iter().all(|waiter| all.waiters.contains(waiter));
    if holds && waits { Ok(()) } else { Err(format!("busy lists {listed:?}\n  of {all:?}")) }
}
