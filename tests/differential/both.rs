//! One operation on the model and on the server, and whether both say the same and look the same
//! then.

use std::time::Duration;

use rlock::clock::StoreTime;
use rlock::lock::op::{Op, Reply, ResourceListing};
use rlock::lock::records::{Records as _, Session};
use rlock::lock::request::SessionId;
use rlock::lock::resource::Resource;
use rlock::lock::table::LockTable;
use rlock::store::redis::codec::{Call, ScriptReply};

use crate::raw;
use crate::side::Side;

/// The two tables.
pub(crate) struct Both {
    pub(crate) table: LockTable,
    side: Side,
    resources: Vec<Resource>,
    /// Whether calls name all resources; else what is expired is dropped before, and a call names
    /// its own, until it needs more.
    all_named: bool,
}

impl Both {
    pub(crate) fn new(side: Side, resources: Vec<Resource>, all_named: bool) -> Self {
        Self { table: LockTable::default(), side, resources, all_named }
    }

    /// Carries out an operation on both. `own` are the resources that whoever asks has claims on.
    pub(crate) fn apply(&mut self, now: StoreTime, op: Op, own: &[Resource]) -> Result<(), String> {
        // To look changes nothing, so what has expired is dropped before.
        if !self.all_named || matches!(op, Op::Inspect(_)) {
            self.compare(now, Op::Expire, &self.resources.clone())?;
        }
        self.compare(now, op, own)?;
        self.compare_tables(now)
    }

    fn compare(&mut self, now: StoreTime, op: Op, own: &[Resource]) -> Result<(), String> {
        let with_others = |first: &Resource| [std::slice::from_ref(first), own].concat();
        let mut call = match &op {
            Op::Acquire(request) => Call::acquire(request, 0, false),
            Op::Renew(session) => Call::renew(*session, own.to_vec(), false),
            Op::Release(session) | Op::Cancel(session) | Op::Reap(session) => Call::release(*session, own.to_vec()),
            Op::Shrink { session, resource, span } => Call::shrink(*session, with_others(resource), span),
            Op::Downgrade { session, resource, mode } => Call::downgrade(*session, with_others(resource), *mode),
            Op::Expire => Call::expire(own.to_vec()),
            Op::Break(resource) => Call::break_grants(resource.clone()),
            Op::Inspect(resources) => Call::inspect(resources.clone(), 0),
        };
        if self.all_named && !matches!(op, Op::Inspect(_)) {
            call.extend(self.resources.iter().cloned());
        }
        let broken = match &op {
            Op::Break(resource) => self.sessions_holding(resource),
            _ => Vec::new(),
        };
        let Ok(outcome) = self.table.apply(now, op.clone());
        let answer = self.side.at(now, call);
        let same = match (&outcome.reply, &answer) {
            (Reply::Granted { lease, tokens }, ScriptReply::Granted { lease: left, tokens: theirs }) => {
                (lease, tokens) == (left, theirs)
            }
            (Reply::Released(tokens), ScriptReply::Released(theirs)) => tokens == theirs,
            (Reply::Waiting, ScriptReply::Waiting { position, next, .. }) => {
                self.check_waiting(&op, now, *position, *next)?;
                true
            }
            (Reply::Busy(_), ScriptReply::Busy(told)) => {
                let listings = self.listings(now);
                for told in told {
                    let ours = listings.iter().find(|listing| listing.name == told.listing.name);
                    is_part(&told.listing, ours.ok_or("a listing of no such resource")?)?;
                }
                told.iter().any(|told| !told.listing.holders.is_empty() || !told.listing.waiters.is_empty())
            }
            (Reply::Refused(refusal), ScriptReply::Refused(theirs)) => format!("{refusal:?}") == format!("{theirs:?}"),
            (Reply::Done, ScriptReply::Done) | (Reply::Unknown, ScriptReply::Unknown) => true,
            (Reply::Done, ScriptReply::Expired(dropped)) => ids(dropped) == outcome.expired,
            (Reply::Broken(held), ScriptReply::Broken(theirs)) => {
                // What it was at the instant of the break isn't known where the same call dropped
                // expired ones before.
                let told = broken.is_empty() || !outcome.expired.is_empty() || {
                    let plain: Vec<_> = theirs.iter().map(|(id, session)| (*id, plain(session))).collect();
                    plain == broken
                };
                *held == ids(theirs) && told
            }
            (Reply::Listing(ours), ScriptReply::Listing { resources, .. }) => {
                let theirs: Vec<_> = resources.iter().map(|told| told.listing.clone()).collect();
                same_listings(ours, &theirs)
            }
            _ => false,
        };
        if same {
            Ok(())
        } else {
            Err(format!("{op:?}\n  the model says  {:?}\n  the server says {answer:?}", outcome.reply))
        }
    }

    /// The place in the first queue, and when to look again.
    fn check_waiting(&self, op: &Op, now: StoreTime, position: u32, next: Option<Duration>) -> Result<(), String> {
        let (Op::Acquire(rlock::lock::request::Request { session, .. }) | Op::Renew(session)) = op else {
            return Ok(());
        };
        let Ok(Some(record)) = self.table.records().session(*session) else {
            return Err(format!("{op:?}\n  it waits and is unknown"));
        };
        let first = &record.claims[0].claim;
        let listings = self.listings(now);
        let listing = listings.iter().find(|listing| listing.name == first.resource).ok_or("it waits nowhere")?;
        let places: Vec<_> = listing.waiters.iter().filter(|waiter| waiter.session == *session).collect();
        // A session that waits with nested and with ordinary claims has two places, and is counted
        // twice.
        if !places.iter().any(|waiter| waiter.position == position)
            && listing.waiters.iter().all(|waiter| !self.waits_twice(waiter.session, &first.resource))
        {
            return Err(format!("{op:?}\n  the server says it is in place {position}, not one of {places:?}"));
        }
        if next.is_some_and(|next| next.is_zero() || next > Duration::from_secs(10)) {
            return Err(format!("{op:?}\n  the server says to look again in {next:?}"));
        }
        let soonest = listings
            .iter()
            .flat_map(|listing| {
                let holders = listing.holders.iter().map(|holder| holder.session);
                holders.chain(listing.waiters.iter().map(|waiter| waiter.session))
            })
            .filter_map(|id| self.table.records().session(id).ok().flatten().and_then(|session| session.expiry))
            .min();
        if self.all_named && soonest.map(|expiry| expiry - now) != next {
            return Err(format!("{op:?}\n  the next lease ends in {soonest:?} − {now:?}, the server says in {next:?}"));
        }
        Ok(())
    }

    /// The last token that each resource has given out, as the server remembers it.
    pub(crate) fn last_tokens(&mut self) -> Vec<(Resource, u64)> {
        let mut pipeline = redis::pipe();
        for resource in &self.resources {
            pipeline.cmd("HGET").arg(&self.side.keys(resource)[0]).arg("#token");
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
        // On a copy: what is due is dropped by the operation, not by looking.
        let mut table = LockTable::new(self.table.records().clone());
        let Ok(outcome) = table.apply(now, Op::Inspect(self.resources.clone()));
        match outcome.reply {
            Reply::Listing(listings) => listings,
            other => panic!("inspect answered {other:?}"),
        }
    }

    fn sessions_holding(&self, resource: &Resource) -> Vec<(SessionId, String)> {
        let Ok(Some(state)) = self.table.records().resource(resource) else { return Vec::new() };
        let Ok(entries) = state.tree.entries(self.table.records(), resource);
        let mut ids: Vec<_> = entries.iter().filter(|entry| entry.rank.is_held()).map(|entry| entry.session).collect();
        ids.sort_unstable();
        ids.dedup();
        let sessions = ids.into_iter().map(|id| match self.table.records().session(id) {
            Ok(Some(session)) => (id, plain(&session)),
            other => panic!("{id} holds something and is {other:?}"),
        });
        sessions.collect()
    }

    fn compare_tables(&mut self, now: StoreTime) -> Result<(), String> {
        let ours = self.listings(now);
        let answer = self.side.at(now, Call::inspect(self.resources.clone(), 0));
        let ScriptReply::Listing { now: theirs, resources, sessions } = answer else {
            return Err(format!("inspect answers {answer:?}"));
        };
        if theirs != now {
            return Err(format!("the server's clock is {theirs:?}, not {now:?}"));
        }
        for (ours, theirs) in ours.iter().zip(&resources) {
            if !same_listings(std::slice::from_ref(ours), std::slice::from_ref(&theirs.listing)) {
                return Err(format!("the model lists  {ours:?}\n  the server lists {:?}", theirs.listing));
            }
            let mut waiting: Vec<_> = ours.waiters.iter().map(|waiter| waiter.session).collect();
            waiting.sort_unstable();
            waiting.dedup();
            if waiting.len() as u64 != theirs.waiting {
                return Err(format!("{} wait for {}, the server counts {}", waiting.len(), ours.name, theirs.waiting));
            }
        }
        for (id, session) in &sessions {
            let Ok(ours) = self.table.records().session(*id);
            let ours = ours.as_ref().map(plain);
            if ours != Some(plain(session)) {
                return Err(format!("{id} is {ours:?} in the model\n  and {:?} on the server", plain(session)));
            }
        }
        raw::check(&mut self.side, &ours)
    }
}

fn ids(sessions: &[(SessionId, Session)]) -> Vec<SessionId> {
    sessions.iter().map(|(id, _)| *id).collect()
}

/// All that is known of a session but the numbers of the queue, of which the model has one count
/// and the server one for each resource.
fn plain(session: &Session) -> String {
    let Session { ancestors, claims, since, expiry, terms, process } = session;
    let claims: Vec<_> = claims.iter().map(|it| (&it.claim, it.rank.is_held(), it.token, it.shares)).collect();
    format!("{ancestors:?} {claims:?} {since:?} {expiry:?} {terms:?} {process:?}")
}

/// Equal also in how the ends of spans are written, which the equality of spans leaves out.
fn same_listings(ours: &[ResourceListing], theirs: &[ResourceListing]) -> bool {
    format!("{ours:?}") == format!("{theirs:?}")
}

/// Whether all that is told is so, with the right places.
fn is_part(told: &ResourceListing, all: &ResourceListing) -> Result<(), String> {
    let holds = told.holders.iter().all(|holder| all.holders.contains(holder));
    let waits = told.waiters.iter().all(|waiter| all.waiters.contains(waiter));
    if holds && waits { Ok(()) } else { Err(format!("busy tells {told:?}\n  of {all:?}")) }
}
