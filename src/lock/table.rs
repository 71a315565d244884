//! The lock table: the model that every store implements.
//!
//! [`LockTable::apply`] takes an operation and the time. It returns the reply, the waiters that the
//! operation granted and the sessions that it found expired. The table has no clock, no I/O and no
//! randomness; its state lies in [`Records`]. The module `conflict` decides which sessions block a
//! claim, and `nesting` decides what an ancestor's hold permits. [`Rank`] orders the grants.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use super::behind;
use super::conflict::{self, Asker};
use super::index::{Entry, Query, Rank};
use super::listing;
use super::mode::{Mode, Modes, Nesting};
use super::nesting::{self, Standing};
use super::op::{Op, Outcome, Refusal, Reply};
use super::records::{ClaimRecord, Memory, Records, ResourceState, Session};
use super::request::{Claim, Request, SessionId};
use super::resource::Resource;
use super::span::Span;
use crate::clock::StoreTime;

/// The holders and waiters of all resources.
#[derive(Clone, Debug, Default)]
pub struct LockTable<R = Memory> {
    records: R,
    /// How long a grant from the queue lasts until its session claims it, if the session has no
    /// terms of its own.
    claim_lease: Option<Duration>,
}

impl<R: Records> LockTable<R> {
    /// A table that keeps its state in `records`.
    pub fn new(records: R) -> Self {
        Self { records, claim_lease: None }
    }

    /// A table in which a session without terms must claim a grant from the queue within
    /// `claim_lease`, by a renewal. The claimed grant then lasts as long as the process.
    pub fn with_claim_lease(records: R, claim_lease: Duration) -> Self {
        Self { records, claim_lease: Some(claim_lease) }
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
        let reply = match op {
            Op::Acquire(request) => self.acquire(now, request, None)?,
            Op::Return { request, place } => self.acquire(now, request, Some(place))?,
            Op::Renew(session) => self.renew(now, session)?,
            Op::Release(session) | Op::Cancel(session) | Op::Reap(session) => {
                self.release(now, session, &mut granted)?
            }
            Op::Shrink { session, resource, span } => self.shrink(now, session, &resource, span, &mut granted)?,
            Op::Downgrade { session, resource, mode } => self.downgrade(now, session, &resource, mode, &mut granted)?,
            Op::Expire => Reply::Done,
            Op::Break(resource) => self.take_away(now, &resource, &mut granted)?,
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

    fn blockers_of(&self, id: SessionId, session: &Session) -> Result<Vec<SessionId>, R::Error> {
        let asker = Asker { session: id, ancestors: &session.ancestors };
        for record in session.claims.iter().filter(|record| !record.rank.is_held()) {
            let before = record.rank.waits_behind();
            let found = conflict::blockers(&self.records, &record.claim, record.shares, asker, before)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    fn acquire(&mut self, now: StoreTime, request: Request, place: Option<u64>) -> Result<Reply, R::Error> {
        if let Some(session) = self.records.session(request.session)? {
            return Ok(standing(now, &session));
        }
        let mut standings = Vec::with_capacity(request.claims.len());
        for claim in &request.claims {
            if let Some(refusal) = self.slots_differ(claim)? {
                return Ok(Reply::Refused(refusal));
            }
            match nesting::standing(&self.records, claim, &request.ancestors)? {
                Ok(standing) => standings.push(standing),
                Err(refusal) => return Ok(Reply::Refused(refusal)),
            }
        }
        let place = match place {
            Some(place) if !self.is_taken(place, &request)? => Some(place),
            _ => None,
        };
        let asker = Asker { session: request.session, ancestors: &request.ancestors };
        let mut blockers = Vec::new();
        for (claim, standing) in request.claims.iter().zip(&standings) {
            let ordinary = place.map_or(Rank::LAST, |seq| Rank::waiting(seq, false));
            let before = if standing.is_nested() { Rank::FIRST_WAITING } else { ordinary };
            blockers = conflict::blockers(&self.records, claim, standing.shares(), asker, before)?;
            if !blockers.is_empty() {
                break;
            }
        }
        let id = request.session;
        if blockers.is_empty() {
            let expiry = request.terms.map(|terms| now + terms.ttl);
            let session = session_of(request, &standings, |_| Rank::LAST, now, expiry);
            let lease = session.terms.map(|terms| terms.ttl);
            return self.grant(now, id, session, expiry).map(|tokens| Reply::Granted { lease, tokens });
        }
        if !request.wait {
            return Ok(Reply::Busy(blockers));
        }
        let last = self.records.last_seq()?;
        let seq = place.unwrap_or(last + 1);
        if seq > last {
            self.records.put_last_seq(seq)?;
        }
        let expiry = request.terms.map(|terms| now + terms.heartbeat);
        let session = session_of(request, &standings, |standing| Rank::waiting(seq, standing.is_nested()), now, expiry);
        self.queue(id, session)?;
        Ok(Reply::Waiting)
    }

    /// Whether another request has this number in a queue of the request. The numbers begin anew
    /// when a store has lost its data.
    fn is_taken(&self, place: u64, request: &Request) -> Result<bool, R::Error> {
        for claim in &request.claims {
            let Some(state) = self.records.resource(&claim.resource)? else { continue };
            for nested in [false, true] {
                if state.tree.has_waiter(&self.records, &claim.resource, Rank::waiting(place, nested))? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns a refusal if the claim's number of slots differs from the number in force.
    fn slots_differ(&self, claim: &Claim) -> Result<Option<Refusal>, R::Error> {
        let Some(asked) = claim.slots else { return Ok(None) };
        let in_force = match self.records.resource(&claim.resource)? {
            Some(state) if state.slot_claims > 0 => state.slots,
            _ => asked,
        };
        let differs = || Refusal::SlotsDiffer { resource: claim.resource.clone(), in_force, asked };
        Ok((in_force != asked).then(differs))
    }

    fn queue(&mut self, id: SessionId, session: Session) -> Result<(), R::Error> {
        for (index, record) in session.claims.iter().enumerate() {
            let name = &record.claim.resource;
            let mut state = self.records.take_resource(name)?.unwrap_or_default();
            state.waiting += 1;
            state.count_slots(record);
            state.tree.insert(&mut self.records, name, entry(id, index, record))?;
            self.records.put_resource(name, state)?;
        }
        self.records.put_session(id, session)
    }

    /// Grants the request of a session and returns its tokens. The claims of a waiter are in the
    /// trees already. A new session's claims have the rank [`Rank::LAST`] and are in no tree yet.
    fn grant(
        &mut self,
        now: StoreTime,
        id: SessionId,
        mut session: Session,
        expiry: Option<StoreTime>,
    ) -> Result<Vec<u64>, R::Error> {
        let mut fresh: HashMap<Resource, u64> = HashMap::new();
        for index in 0..session.claims.len() {
            // An ancestor's hold may have ended while this request waited, so the standing is found
            // again.
            let claim = &session.claims[index].claim;
            let standing = nesting::standing(&self.records, claim, &session.ancestors)?;
            let name = claim.resource.clone();
            let mut state = self.records.take_resource(&name)?.unwrap_or_default();
            if session.claims[index].rank == Rank::LAST {
                state.count_slots(&session.claims[index]);
            } else {
                state.waiting -= 1;
                let waiting = entry(id, index, &session.claims[index]);
                state.tree.remove(&mut self.records, &name, &waiting)?;
            }
            let record = &mut session.claims[index];
            record.rank = Rank::HELD;
            record.token = if let Ok(Standing::Included { token, .. }) = standing {
                token
            } else if let Some(token) = fresh.get(&name) {
                *token
            } else {
                state.last_token = now.as_micros().max(state.last_token + 1);
                fresh.insert(name.clone(), state.last_token);
                state.last_token
            };
            state.held += 1;
            state.tree.insert(&mut self.records, &name, entry(id, index, record))?;
            self.records.put_resource(&name, state)?;
        }
        session.since = now;
        session.expiry = expiry;
        let tokens = session.tokens();
        self.records.put_session(id, session)?;
        Ok(tokens)
    }

    fn renew(&mut self, now: StoreTime, id: SessionId) -> Result<Reply, R::Error> {
        let Some(mut session) = self.records.session(id)? else { return Ok(Reply::Unknown) };
        let holds = session.is_holder();
        let expiry = session.terms.map(|terms| now + if holds { terms.ttl } else { terms.heartbeat });
        let is_changed = session.expiry != expiry;
        session.expiry = expiry;
        let reply = standing(now, &session);
        if is_changed {
            self.records.put_session(id, session)?;
        }
        Ok(reply)
    }

    fn expire(&mut self, now: StoreTime, granted: &mut Vec<SessionId>) -> Result<Vec<SessionId>, R::Error> {
        let mut expired = Vec::new();
        let mut freed = Vec::new();
        // All expired sessions are removed before any waiter is granted. Otherwise a waiter could
        // get a grant at the instant at which its own lease ends.
        while let Some(id) = self.records.due(now)? {
            freed.extend(self.remove(id)?);
            expired.push(id);
        }
        self.settle_all(now, &freed, granted)?;
        Ok(expired)
    }

    fn take_away(
        &mut self,
        now: StoreTime,
        resource: &Resource,
        granted: &mut Vec<SessionId>,
    ) -> Result<Reply, R::Error> {
        let holders = self.sessions_of(resource, Rank::is_held)?;
        self.leave(now, &holders, granted)?;
        Ok(Reply::Broken(holders))
    }

    fn release(&mut self, now: StoreTime, id: SessionId, granted: &mut Vec<SessionId>) -> Result<Reply, R::Error> {
        let Some(session) = self.records.session(id)? else { return Ok(Reply::Unknown) };
        self.leave(now, &[id], granted)?;
        Ok(Reply::Released(session.tokens()))
    }

    /// Removes sessions, then grants the waiters that they blocked.
    fn leave(&mut self, now: StoreTime, sessions: &[SessionId], granted: &mut Vec<SessionId>) -> Result<(), R::Error> {
        let mut freed = Vec::new();
        for session in sessions {
            freed.extend(self.remove(*session)?);
        }
        self.settle_all(now, &freed, granted)
    }

    /// Removes a session and returns the claims that it held or waited for. The list is empty for
    /// an unknown session.
    fn remove(&mut self, id: SessionId) -> Result<Vec<Freed>, R::Error> {
        let Some(session) = self.records.session(id)? else { return Ok(Vec::new()) };
        self.records.remove_session(id)?;
        let mut freed = Vec::with_capacity(session.claims.len());
        for (index, record) in session.claims.into_iter().enumerate() {
            let name = record.claim.resource.clone();
            let mut state = self.records.take_resource(&name)?.unwrap_or_default();
            state.tree.remove(&mut self.records, &name, &entry(id, index, &record))?;
            if record.rank.is_held() {
                state.held -= 1;
            } else {
                state.waiting -= 1;
            }
            if record.claim.mode == Mode::Slot {
                state.slot_claims -= 1;
                state.shared_slots -= u32::from(record.shares);
                self.unshare(&name, &mut state)?;
            }
            if state.held == 0 && state.waiting == 0 {
                self.records.remove_resource(&name)?;
            } else {
                self.records.put_resource(&name, state)?;
            }
            freed.push(Freed { resource: name, span: record.claim.span, modes: blocked_by(record.claim.mode) });
        }
        Ok(freed)
    }

    /// Counts the shares whose ancestors have released their slot. Such a share outlives that slot
    /// and now takes a slot of its own.
    fn unshare(&mut self, name: &Resource, state: &mut ResourceState) -> Result<(), R::Error> {
        if state.shared_slots == 0 {
            return Ok(());
        }
        let mut slots = state.tree.entries(&self.records, name)?;
        slots.retain(|entry| entry.mode == Mode::Slot);
        for sharing in slots.iter().filter(|entry| entry.shares) {
            let Some(mut session) = self.records.session(sharing.session)? else { continue };
            if slots.iter().any(|slot| slot.rank.is_held() && session.ancestors.contains(&slot.session)) {
                continue;
            }
            state.tree.remove(&mut self.records, name, sharing)?;
            state.tree.insert(&mut self.records, name, Entry { shares: false, ..sharing.clone() })?;
            state.shared_slots -= 1;
            session.claims[sharing.claim as usize].shares = false;
            self.records.put_session(sharing.session, session)?;
        }
        Ok(())
    }

    fn shrink(
        &mut self,
        now: StoreTime,
        id: SessionId,
        resource: &Resource,
        span: Span,
        granted: &mut Vec<SessionId>,
    ) -> Result<Reply, R::Error> {
        let Some(mut session) = self.records.session(id)? else { return Ok(Reply::Unknown) };
        let held = |record: &&ClaimRecord| record.rank.is_held() && record.claim.resource == *resource;
        if !session.claims.iter().any(|record| held(&record)) {
            return Ok(Reply::Refused(Refusal::NotHeld { resource: resource.clone() }));
        }
        let holds_it = |record: &ClaimRecord| held(&record) && record.claim.span.covers(&span);
        let Some(index) = session.claims.iter().position(holds_it) else {
            return Ok(Reply::Refused(Refusal::NotInside { resource: resource.clone(), asked: span }));
        };
        if session.claims[index].claim.mode == Mode::Slot {
            return Ok(Reply::Refused(Refusal::SlotIsWhole { resource: resource.clone() }));
        }
        let old = session.claims[index].claim.span.clone();
        let keeps = |entry: &Entry| *span.lower() <= entry.lower && entry.upper <= *span.upper();
        if self.nested_waits(id, resource, &old, keeps)? {
            return Ok(Reply::Refused(Refusal::NestedWaits { resource: resource.clone() }));
        }
        self.change(id, &mut session, index, |claim| claim.span = span)?;
        let modes = blocked_by(session.claims[index].claim.mode);
        self.records.put_session(id, session)?;
        self.settle(now, &Freed { resource: resource.clone(), span: old, modes }, granted)?;
        Ok(Reply::Done)
    }

    fn downgrade(
        &mut self,
        now: StoreTime,
        id: SessionId,
        resource: &Resource,
        mode: Mode,
        granted: &mut Vec<SessionId>,
    ) -> Result<Reply, R::Error> {
        let Some(mut session) = self.records.session(id)? else { return Ok(Reply::Unknown) };
        let mut lowered = Vec::new();
        let mut refusal = Refusal::NotHeld { resource: resource.clone() };
        for (index, record) in session.claims.iter().enumerate() {
            if record.claim.resource != *resource || !record.rank.is_held() {
                continue;
            }
            let held = record.claim.mode;
            if held.lowers_to(mode) {
                lowered.push(index);
            } else {
                refusal = Refusal::NotBelow { resource: resource.clone(), held, asked: mode };
            }
        }
        if lowered.is_empty() {
            return Ok(Reply::Refused(refusal));
        }
        for index in &lowered {
            let span = &session.claims[*index].claim.span;
            if self.nested_waits(id, resource, span, |entry| entry.mode.below(mode) != Nesting::Refused)? {
                return Ok(Reply::Refused(Refusal::NestedWaits { resource: resource.clone() }));
            }
        }
        let mut freed = Vec::with_capacity(lowered.len());
        for index in lowered {
            let Claim { mode: old, span, .. } = session.claims[index].claim.clone();
            self.change(id, &mut session, index, |claim| claim.mode = mode)?;
            let modes = old.clashing().intersection(mode.clashing().complement());
            freed.push(Freed { resource: resource.clone(), span, modes });
        }
        self.records.put_session(id, session)?;
        self.settle_all(now, &freed, granted)?;
        Ok(Reply::Done)
    }

    /// Whether a descendant of `id` waits in `span` with a claim for which `keeps` is false. Such a
    /// waiter relies on the hold above it. If the holder gave that hold up, two such waiters could
    /// wait for each other for ever.
    fn nested_waits(
        &self,
        id: SessionId,
        resource: &Resource,
        span: &Span,
        keeps: impl Fn(&Entry) -> bool,
    ) -> Result<bool, R::Error> {
        let Some(state) = self.records.resource(resource)? else { return Ok(false) };
        let query = Query { span, held: Modes::EMPTY, waiting: Modes::ALL, before: Rank::FIRST_ORDINARY };
        for entry in state.tree.waiting_after(&self.records, resource, query, Rank::HELD, usize::MAX)? {
            let session = self.records.session(entry.session)?;
            if session.is_some_and(|session| session.ancestors.contains(&id)) && !keeps(&entry) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Changes a held claim and updates its entry in the tree.
    fn change(
        &mut self,
        id: SessionId,
        session: &mut Session,
        index: usize,
        change: impl FnOnce(&mut Claim),
    ) -> Result<(), R::Error> {
        let name = session.claims[index].claim.resource.clone();
        let Some(mut state) = self.records.take_resource(&name)? else { return Ok(()) };
        state.tree.remove(&mut self.records, &name, &entry(id, index, &session.claims[index]))?;
        change(&mut session.claims[index].claim);
        state.tree.insert(&mut self.records, &name, entry(id, index, &session.claims[index]))?;
        self.records.put_resource(&name, state)
    }

    fn settle_all(&mut self, now: StoreTime, freed: &[Freed], granted: &mut Vec<SessionId>) -> Result<(), R::Error> {
        freed.iter().try_for_each(|freed| self.settle(now, freed, granted))
    }

    /// Grants the waiters that the freed claim blocked, first come, first served.
    ///
    /// Only waiters that overlap the freed span in one of the freed modes can have become
    /// grantable, because nothing else has changed. If several claims are freed together, each
    /// claim has its own walk. A claim that covers the span, granted or still waiting, closes all
    /// modes that clash with its own for later waiters. The walk ends when all modes are closed.
    fn settle(&mut self, now: StoreTime, freed: &Freed, granted: &mut Vec<SessionId>) -> Result<(), R::Error> {
        let Freed { resource, span, modes } = freed;
        // Modes in which no later ordinary waiter can be granted here. A nested waiter waits for no
        // other waiter, so the walk tries every nested waiter.
        let mut closed = Modes::EMPTY;
        let mut after = Rank::HELD;
        let mut batch = 2;
        loop {
            let Some(state) = self.records.resource(resource)?.filter(|state| state.waiting > 0) else { return Ok(()) };
            let open = if after < Rank::FIRST_ORDINARY { Modes::ALL } else { closed.complement() };
            let query = Query { span, held: Modes::EMPTY, waiting: open.intersection(*modes), before: Rank::LAST };
            let candidates = state.tree.waiting_after(&self.records, resource, query, after, batch)?;
            if candidates.is_empty() {
                return Ok(());
            }
            for candidate in candidates {
                after = candidate.rank;
                if after >= Rank::FIRST_ORDINARY && closed.contains(candidate.mode) {
                    continue;
                }
                let outcome = self.try_grant(now, candidate.session, granted)?;
                if candidate.lower <= *span.lower() && *span.upper() <= candidate.upper {
                    closed = closed.union(candidate.mode.clashing());
                    if outcome == Tried::OutOfSlots {
                        closed.insert(Mode::Slot);
                    }
                }
            }
            // Each batch searches from the root again. The batches double, so together they cost no
            // more than a few walks.
            batch *= 2;
        }
    }

    /// Grants a waiter's request if no session blocks it.
    fn try_grant(&mut self, now: StoreTime, id: SessionId, granted: &mut Vec<SessionId>) -> Result<Tried, R::Error> {
        // The session is already a holder if the walk reached another of its claims first.
        let Some(session) = self.records.session(id)?.filter(|session| !session.is_holder()) else {
            return Ok(Tried::Granted);
        };
        if !self.blockers_of(id, &session)?.is_empty() {
            let only_slots = matches!(session.claims.as_slice(), [only] if only.claim.mode == Mode::Slot);
            return Ok(if only_slots { Tried::OutOfSlots } else { Tried::Waits });
        }
        let lease = session.terms.map(|terms| terms.claim).or(self.claim_lease);
        let expiry = lease.map(|lease| now + lease);
        self.grant(now, id, session, expiry)?;
        granted.push(id);
        Ok(Tried::Granted)
    }
}

/// A claim, or a part of one, that no longer blocks waiters.
#[derive(Clone, Debug)]
struct Freed {
    resource: Resource,
    span: Span,
    /// The modes of the waiters that the freed claim blocked.
    modes: Modes,
}

/// The modes of the waiters that a claim of this mode may block.
fn blocked_by(mode: Mode) -> Modes {
    let mut modes = mode.clashing();
    if mode == Mode::Slot {
        modes.insert(Mode::Slot);
    }
    modes
}

/// The result of an attempt to grant a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Granted,
    Waits,
    /// The session still waits, and a slot is all that it asked for. Every later waiter for a slot
    /// therefore waits as well.
    OutOfSlots,
}

impl ResourceState {
    /// Counts a claim in mode slot when it is added to this resource.
    fn count_slots(&mut self, record: &ClaimRecord) {
        if let Some(slots) = record.claim.slots {
            self.slots = slots;
            self.slot_claims += 1;
            self.shared_slots += u32::from(record.shares);
        }
    }
}

/// The reply that tells a session its state. A granted reply states what is left of the lease, and
/// never more.
fn standing(now: StoreTime, session: &Session) -> Reply {
    if session.is_holder() {
        let lease = session.expiry.map(|expiry| expiry - now);
        Reply::Granted { lease, tokens: session.tokens() }
    } else {
        Reply::Waiting
    }
}

fn session_of(
    request: Request,
    standings: &[Standing],
    rank: impl Fn(Standing) -> Rank,
    since: StoreTime,
    expiry: Option<StoreTime>,
) -> Session {
    let records = request.claims.into_iter().zip(standings);
    let claims = records.map(|(claim, standing)| ClaimRecord {
        claim,
        rank: rank(*standing),
        token: 0,
        shares: standing.shares(),
    });
    Session {
        ancestors: request.ancestors,
        claims: claims.collect(),
        since,
        expiry,
        terms: request.terms,
        process: request.process,
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
    }
}

#[cfg(test)]
mod tests;
