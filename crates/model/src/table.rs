//! The lock table: the model that every store implements.
//!
//! [`LockTable::apply`] takes an operation and the time. It returns the reply, the waiters that the
//! operation granted and the sessions that it found expired. The table has no clock, no I/O and no
//! randomness; its state lies in [`Records`]. The module `conflict` decides which sessions block a
//! claim, and `nesting` decides what an ancestor's hold permits. [`Rank`] orders the grants.
//!
//! After each operation these invariants hold. The code, the checkers and the tests cite their
//! numbers.
//!
//! 1. Exclusion: two held claims clash only if one session is above the other, and no more slots
//!    of a resource are held than each of their holders allows.
//! 2. Progress: some other session is in the way of every waiter, so nobody waits for nothing.
//! 3. Order: a request that waits in the queue is granted before every later one that clashes with
//!    it. Only a nested request overtakes, and only a waiter that itself waits for its ancestor.
//! 4. Tokens rise: each grant on a resource has a token above all earlier ones, except a nested
//!    claim that takes that of the hold around it.
//! 5. Whole requests: all claims of a session are held, or all wait.
//! 6. Time: no session is left whose expiry has passed, as far as an operation may end so many, and
//!    the instants of the operations never go back.
//! 7. One truth: the tree and the counters of a resource say of its claims what the sessions do.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::time::Duration;

use super::behind;
use super::conflict::{self, Asker, Needs};
use super::index::{Entry, Query, Rank};
use super::listing;
use super::mode::blocked_by;
use super::mode::{Mode, Modes, Nesting};
use super::nesting::{self, Relation};
use super::op::{Change, Op, Outcome, Refusal, Reply};
use super::overtaking;
use super::past::{Remembered, WaitEnd};
use super::records::{ClaimRecord, Memory, Phase, Records, ResourceState, Revocation, Session};
use super::remember::{self, Leaving, Ungranted};
use super::request::{self, Claim, Place, Process, Request, SessionId};
use super::resource::Resource;
use super::slots;
use super::span::Span;
use rlock_sys::clock::StoreTime;

mod changing;
mod leaving;
mod loading;
mod settling;
mod superseding;

/// The holders and waiters of all resources.
#[derive(Clone, Debug, Default)]
pub struct LockTable<R = Memory> {
    records: R,
    /// How long a grant from the queue lasts until its session claims it, if the session has no
    /// terms of its own.
    claim_lease: Option<Duration>,
    /// How many due sessions the operations may still end, if that is limited.
    portion: Option<usize>,
}

impl<R: Records> LockTable<R> {
    /// A table that keeps its state in `records`.
    pub fn new(records: R) -> Self {
        Self { records, claim_lease: None, portion: None }
    }

    /// A table in which a session without terms must claim a grant from the queue within
    /// `claim_lease`, by a renewal. The claimed grant then lasts as long as the process.
    pub fn with_claim_lease(records: R, claim_lease: Duration) -> Self {
        Self { records, claim_lease: Some(claim_lease), portion: None }
    }

    /// Lets the operations from now on end at most so many due sessions all together, and none
    /// after [`CLAIMS_MAX`](request::CLAIMS_MAX) claims. A session that is due counts until it is
    /// ended.
    pub fn expire_at_most(&mut self, sessions: usize) {
        self.portion = Some(sessions);
    }

    /// The records that hold the state of the table.
    pub fn records(&self) -> &R {
        &self.records
    }

    /// The records, for a caller that changes them directly.
    pub fn records_mut(&mut self) -> &mut R {
        &mut self.records
    }

    /// Consumes the table and returns its records.
    pub fn into_records(self) -> R {
        self.records
    }

    /// Executes an operation at the instant `now`.
    ///
    /// # Errors
    /// Returns an error of the records. The operation is then half done, and the caller must roll
    /// the records back.
    pub fn apply(&mut self, now: StoreTime, op: Op) -> Result<Outcome, R::Error> {
        let mut granted = Vec::new();
        let expired = self.expire(now, &mut granted)?;
        remember::prune(&mut self.records, now)?;
        let reply = match op {
            Op::Acquire { request, place } => self.acquire(now, request, place, &mut granted)?,
            Op::Renew(session) => self.renew(now, session)?,
            Op::Release { session, end } => self.release(now, session, end, &mut granted)?,
            Op::GiveUp(session) => self.give_up(now, session, &mut granted)?,
            Op::Reap { session, ended } => self.reap(now, session, ended, &mut granted)?,
            Op::Change { session, change } => self.change(now, session, change, &mut granted)?,
            Op::Expire => Reply::Done,
            Op::Break { resource, only, by } => self.take_away(now, &resource, only, by, &mut granted)?,
            Op::Forget(resource) => {
                remember::forget(&mut self.records, &resource)?;
                Reply::Done
            }
            Op::Inspect(resources) => Reply::Listing(listing::list(&self.records, &resources)?),
        };
        Ok(Outcome { reply, granted, expired })
    }

    /// The sessions that block a waiter. The waiter can't be granted until at least one of them
    /// changes its claims. The list is empty for a holder and for an unknown session.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn blockers(&self, id: SessionId) -> Result<Vec<SessionId>, R::Error> {
        match self.records.session(id)? {
            Some(session) => self.blockers_of(id, &session),
            None => Ok(Vec::new()),
        }
    }

    /// The waiters for which [`blockers`](Self::blockers) may have named a session with this claim.
    /// The session is gone. `queued` is the rank at which it waited, or [`Rank::HELD`] if it did
    /// not wait. The list may contain other waiters, and a waiter more than once.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn waiters_behind(&self, claim: &Claim, queued: Rank) -> Result<Vec<SessionId>, R::Error> {
        behind::waiters(&self.records, claim, queued)
    }

    /// The sessions with a claim on a resource, in the order of their ids. `wanted` chooses the
    /// claims by their ranks.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn sessions_of(&self, resource: &Resource, wanted: impl Fn(Rank) -> bool) -> Result<Vec<SessionId>, R::Error> {
        let Some(state) = self.records.resource(resource)? else { return Ok(Vec::new()) };
        let mut sessions = Vec::new();
        state.tree.visit(&self.records, resource, Query::ALL, |entry| {
            sessions.extend(wanted(entry.rank).then_some(entry.session));
            ControlFlow::Continue(())
        })?;
        sessions.sort_unstable();
        sessions.dedup();
        Ok(sessions.into_iter().collect())
    }

    /// The sessions that hold a part of a resource, at most so many.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn first_holders(&self, resource: &Resource, limit: usize) -> Result<Vec<SessionId>, R::Error> {
        let Some(state) = self.records.resource(resource)? else { return Ok(Vec::new()) };
        let mut holders = Vec::new();
        let query = Query { waiting: Modes::EMPTY, ..Query::ALL };
        state.tree.visit(&self.records, resource, query, |entry| {
            if !holders.contains(&entry.session) {
                holders.push(entry.session);
            }
            if holders.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(holders)
    }

    /// The first waiters of a resource, at most so many, in the order of the queue.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn first_waiters(&self, resource: &Resource, limit: usize) -> Result<Vec<SessionId>, R::Error> {
        let Some(state) = self.records.resource(resource)?.filter(|state| state.waiting > 0) else {
            return Ok(Vec::new());
        };
        let query = Query { span: &Span::Whole, held: Modes::EMPTY, waiting: Modes::ALL, before: Rank::LAST };
        let entries = state.tree.waiting_after(&self.records, resource, query, Rank::HELD, limit)?;
        let mut waiters: Vec<_> = entries.iter().map(|entry| entry.session).collect();
        waiters.dedup();
        Ok(waiters)
    }

    /// The sessions that block a new request, as [`Reply::Busy`] names them. The list is empty if
    /// the request would be granted or refused.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn blockers_of_request(&self, request: &Request) -> Result<Vec<SessionId>, R::Error> {
        match self.relations(request)? {
            Ok(relations) => self.in_the_way(request, &relations, None, &self.superseded(request)?),
            Err(_) => Ok(Vec::new()),
        }
    }

    /// What a resource remembers, with at most so many of its last entries, or `None` if it has no
    /// past.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn past(&self, now: StoreTime, name: &Resource, entries: u32) -> Result<Option<Remembered>, R::Error> {
        let Some(past) = remember::past(&self.records, now, name)? else { return Ok(None) };
        let first = past.ring.start.max(past.ring.end.saturating_sub(entries.into()));
        let mut found = Vec::new();
        for number in first..past.ring.end {
            found.extend(self.records.entry(name, number)?);
        }
        Ok(Some(Remembered { name: name.clone(), past, entries: found }))
    }

    fn blockers_of(&self, id: SessionId, session: &Session) -> Result<Vec<SessionId>, R::Error> {
        let asker = Asker::known(id, &session.ancestors);
        for record in session.distinct_claims().filter(|record| !record.rank.is_held()) {
            let found =
                conflict::blockers(&self.records, &record.claim, session.slots_needed(record), asker, record.rank)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    fn acquire(
        &mut self,
        now: StoreTime,
        request: Request,
        returns: Option<Place>,
        granted: &mut Vec<SessionId>,
    ) -> Result<Reply, R::Error> {
        if let Some(session) = self.records.session(request.session)? {
            return Ok(standing(now, &session));
        }
        let relations = match self.relations(&request)? {
            Ok(relations) => relations,
            Err(refusal) => return Ok(Reply::Refused(refusal)),
        };
        if let [claim, ..] = request.claims.as_slice()
            && remember::is_done(&mut self.records, now, &claim.resource, &request.job)?
        {
            remember::is_spared(&mut self.records, now, &claim.resource, &request)?;
            return Ok(Reply::AlreadyDone);
        }
        if let [claim, ..] = request.claims.as_slice()
            && remember::is_full(&self.records, now, &claim.resource, &request.job)?
        {
            return Ok(Reply::Refused(Refusal::TooManyJobs { resource: claim.resource.clone() }));
        }
        if let Some(place) = returns
            && let Some(superseded) = self.superseding(now, &request, place)?
        {
            let ended = Ungranted::of(&request, place.asked);
            let streak = remember::is_busy(&mut self.records, now, &ended, WaitEnd::Superseded)?;
            return Ok(Reply::Superseded { by: superseded.by, streak });
        }
        let place = match returns {
            Some(place) if !self.is_taken(place.number, &request)? => Some(place.number),
            _ => None,
        };
        let asked = returns.map_or(now, |place| place.asked);
        let superseded = if returns.is_none() { self.superseded(&request)? } else { Vec::new() };
        let may_wait = request.wait && (returns.is_some() || !self.is_crowded(&request, &superseded)?);
        let mut freed = Vec::new();
        if may_wait {
            freed = self.supersede(now, &superseded, granted)?;
        }
        let blockers = self.in_the_way(&request, &relations, place, &superseded)?;
        if !blockers.is_empty() && !may_wait {
            let ended = Ungranted::of(&request, asked);
            let streak = remember::is_busy(&mut self.records, now, &ended, WaitEnd::Busy)?;
            return Ok(Reply::Busy { blockers, streak });
        }
        if !may_wait {
            freed = self.supersede(now, &superseded, granted)?;
        }
        if request.job.supersedes && returns.is_none() {
            remember::supersedes(&mut self.records, now, &request, !superseded.is_empty())?;
        }
        let id = request.session;
        if blockers.is_empty() {
            let mut session = session_of(request, &relations, Rank::LAST, asked, now);
            session.begin(now);
            let session = self.grant(now, id, session)?;
            self.settle_all(now, freed, granted)?;
            return Ok(standing(now, &session));
        }
        let last = self.records.last_seq()?;
        let seq = place.unwrap_or(last + 1);
        if seq > last {
            self.records.put_last_seq(seq)?;
        }
        let mut session = session_of(request, &relations, Rank::waiting(seq), asked, now);
        session.renew(now);
        let overtaken = self.queue(now, id, session)?;
        // A waiter that overtakes others may also overtake one that has returned to its place, and
        // the waiters that wait for that one now.
        let whole = |resource| Freed { resource, span: Span::Whole, modes: Modes::ALL };
        freed.extend(overtaken.into_iter().map(whole));
        self.settle_all(now, freed, granted)?;
        Ok(self.records.session(id)?.map_or(Reply::Unknown, |session| standing(now, &session)))
    }

    /// The standing of each claim of a new request, or the reason why the request can never be
    /// granted.
    fn relations(&self, request: &Request) -> Result<Result<Vec<Relation>, Refusal>, R::Error> {
        let mut relations = Vec::with_capacity(request.claims.len());
        let above = nesting::above(&self.records, &request.ancestors)?;
        for claim in &request.claims {
            match nesting::relation(&above, claim, request::slots_of(&request.claims, &claim.resource)) {
                Ok(relation) => relations.push(relation),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        Ok(Ok(relations))
    }

    /// The sessions that block a new request, without the waiters that it supersedes. `place` is
    /// the number in the queue to which the request returns.
    fn in_the_way(
        &self,
        request: &Request,
        relations: &[Relation],
        place: Option<u64>,
        superseded: &[SessionId],
    ) -> Result<Vec<SessionId>, R::Error> {
        let asker = Asker { session: request.session, ancestors: &request.ancestors, superseded };
        let before = place.map_or(Rank::LAST, Rank::waiting);
        let mut claims: Vec<_> = request.claims.iter().zip(relations).collect();
        claims.dedup_by_key(|(claim, _)| *claim);
        for (claim, relation) in claims {
            let slots = request::slots_of(&request.claims, &claim.resource);
            let needs = Needs { slots, shares: relation.shares() };
            let found = conflict::blockers(&self.records, claim, needs, asker, before)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// Whether another request has this number in a queue of the request. The numbers begin anew
    /// when a store has lost its data.
    fn is_taken(&self, place: u64, request: &Request) -> Result<bool, R::Error> {
        for claim in &request.claims {
            let Some(state) = self.records.resource(&claim.resource)? else { continue };
            if state.tree.has_waiter(&self.records, &claim.resource, Rank::waiting(place))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether so many sessions, without those that leave, wait for one of the resources that the
    /// request must not wait too.
    fn is_crowded(&self, request: &Request, leaving: &[SessionId]) -> Result<bool, R::Error> {
        let Some(max) = request.job.max_waiting else { return Ok(false) };
        for name in request::resources(&request.claims) {
            let mut waiters = self.sessions_of(name, |rank| !rank.is_held())?;
            waiters.retain(|waiter| !leaving.contains(waiter));
            if waiters.len() >= max as usize {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Puts a session into the queues. Returns the resources on which a waiter may now overtake
    /// others.
    fn queue(&mut self, now: StoreTime, id: SessionId, session: Session) -> Result<Vec<Resource>, R::Error> {
        for record in &session.claims {
            remember::current(&mut self.records, now, &record.claim.resource)?;
        }
        self.enter(id, session.clone(), u32::MAX)?;
        if session.place() == self.records.last_seq()? {
            return Ok(Vec::new());
        }
        overtaking::touched(&self.records, id, &session)
    }

    /// Adds a session and its claims, and on each resource no more than so many claims. Notes who
    /// may overtake another from now on.
    fn enter(&mut self, id: SessionId, session: Session, claims_max: u32) -> Result<(), R::Error> {
        let overtakers = overtaking::overtakers(&self.records, id, &session)?;
        for (index, record) in session.claims.iter().enumerate() {
            let name = &record.claim.resource;
            let mut state = self.records.take_resource(name)?.unwrap_or_default();
            if state.held + state.waiting < claims_max {
                state.count(record, &session.ancestors);
                state.tree.insert(&mut self.records, name, entry(id, index, record))?;
            }
            self.records.put_resource(name, state)?;
        }
        self.records.put_session(id, session)?;
        for (name, overtaker) in &overtakers {
            let mut state = self.records.take_resource(name)?.unwrap_or_default();
            state.overtakers.insert(*overtaker);
            self.records.put_resource(name, state)?;
        }
        Ok(())
    }

    /// Grants the request of a session, whose phase has begun already. The claims of a waiter are
    /// in the trees already. A new session's claims have the rank [`Rank::LAST`] and are in no tree
    /// yet.
    fn grant(&mut self, now: StoreTime, id: SessionId, mut session: Session) -> Result<Session, R::Error> {
        session.last = remember::is_granted(&mut self.records, now, &session)?;
        let mut fresh: HashMap<Resource, u64> = HashMap::new();
        let mut shared: HashMap<Resource, BTreeSet<u32>> = HashMap::new();
        let above = nesting::above(&self.records, &session.ancestors)?;
        for index in 0..session.claims.len() {
            // An ancestor's hold may have ended while this request waited, so the standing is found
            // again.
            let claim = &session.claims[index].claim;
            let claims = session.claims.iter().map(|record| &record.claim);
            let relation = nesting::relation(&above, claim, request::slots_of(claims, &claim.resource));
            let name = claim.resource.clone();
            let mut state = self.records.take_resource(&name)?.unwrap_or_default();
            if session.claims[index].rank == Rank::LAST {
                state.count_slots(&session.claims[index]);
            } else {
                state.count_leaving(id, &session.ancestors);
                let waiting = entry(id, index, &session.claims[index]);
                state.tree.remove(&mut self.records, &name, &waiting)?;
            }
            let record = &mut session.claims[index];
            record.rank = Rank::HELD;
            if record.shares
                && !shared.contains_key(&name)
                && let Some(pool) = nesting::pool(&above, &name)
            {
                let asker = Asker::known(id, &session.ancestors);
                shared.insert(name.clone(), slots::free_of(&self.records, &name, &state, pool, asker)?);
            }
            if record.claim.mode == Mode::Slot {
                record.slot = match shared.get_mut(&name).and_then(BTreeSet::pop_first) {
                    Some(number) => Some(number),
                    None => Some(slots::free(&self.records, &name, &state)?),
                };
            }
            record.token = if let Ok(Relation::Included { token, .. }) = relation {
                token
            } else if let Some(token) = fresh.get(&name) {
                *token
            } else {
                // Invariant 4, also where the clock stands still.
                state.last_token = now.as_micros().max(state.last_token + 1);
                fresh.insert(name.clone(), state.last_token);
                state.last_token
            };
            state.held += 1;
            state.tree.insert(&mut self.records, &name, entry(id, index, record))?;
            self.records.put_resource(&name, state)?;
        }
        self.records.put_session(id, session.clone())?;
        Ok(session)
    }

    fn renew(&mut self, now: StoreTime, id: SessionId) -> Result<Reply, R::Error> {
        let Some(mut session) = self.records.session(id)? else { return Ok(Reply::Unknown) };
        let (phase, expiry) = (session.phase, session.expiry);
        session.renew(now);
        let is_changed = (phase, expiry) != (session.phase, session.expiry);
        let mut reply = standing(now, &session);
        // A lease that lasts longer, because no renewal lowers its expiry, is told as it was asked
        // for.
        if let (Phase::Held, Some(terms), Reply::Granted { lease: Some(lease), .. }) =
            (session.phase, session.terms, &mut reply)
        {
            *lease = terms.ttl.min(*lease);
        }
        if is_changed {
            self.records.put_session(id, session)?;
        }
        Ok(reply)
    }
}

/// A claim, or a part of one, that no longer blocks waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Freed {
    resource: Resource,
    span: Span,
    /// The modes of the waiters that the freed claim blocked.
    modes: Modes,
}

impl ResourceState {
    /// Counts a claim in mode slot when it is added to this resource.
    fn count_slots(&mut self, record: &ClaimRecord) {
        self.slot_claims += u32::from(record.claim.mode == Mode::Slot);
        self.shared_slots += u32::from(record.shares);
    }

    /// Counts a claim of a session when it is added to this resource.
    fn count(&mut self, record: &ClaimRecord, ancestors: &[SessionId]) {
        if record.rank.is_held() {
            self.held += 1;
        } else {
            self.waiting += 1;
            self.waiting_below += u32::from(!ancestors.is_empty());
        }
        self.count_slots(record);
    }

    /// Counts a waiting claim of a session when it leaves the queue of this resource.
    fn count_leaving(&mut self, id: SessionId, ancestors: &[SessionId]) {
        self.waiting -= 1;
        self.waiting_below -= u32::from(!ancestors.is_empty());
        self.overtakers.remove(&id);
    }
}

/// The reply that tells a session its state. A granted reply states what is left of the lease, and
/// never more.
/// How a session of the table stands: granted or waiting.
pub fn standing(now: StoreTime, session: &Session) -> Reply {
    if session.is_holder() {
        let lease = session.expiry.map(|expiry| expiry - now);
        let (tokens, slots, is_revoked) = (session.tokens(), session.slots(), session.revoked.is_some());
        Reply::Granted { lease, tokens, slots, last: session.last, is_revoked }
    } else {
        Reply::Waiting
    }
}

fn session_of(request: Request, relations: &[Relation], rank: Rank, asked: StoreTime, since: StoreTime) -> Session {
    let records = request.claims.into_iter().zip(relations);
    let claims =
        records.map(|(claim, relation)| ClaimRecord { claim, rank, token: 0, shares: relation.shares(), slot: None });
    Session {
        ancestors: request.ancestors,
        claims: claims.collect(),
        phase: Phase::Waiting,
        asked,
        since,
        expiry: None,
        terms: request.terms,
        job: request.job,
        last: None,
        process: request.process,
        revoked: None,
        later: Vec::new(),
    }
}

fn entry(session: SessionId, index: usize, record: &ClaimRecord) -> Entry {
    Entry {
        lower: record.claim.span.lower().clone(),
        upper: record.claim.span.upper().clone(),
        mode: record.claim.mode,
        rank: record.rank,
        session,
        claim: u32::try_from(index).expect("a request has fewer than 2^32 claims"),
        shares: record.shares,
        slot: record.slot,
        slots: record.claim.slots,
    }
}

#[cfg(test)]
mod tests;
