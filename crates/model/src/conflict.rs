//! The one rule: a request is granted when it conflicts with no holder and with no earlier waiter.
//!
//! The rule is PostgreSQL's wake rule (src/backend/storage/lmgr/README) with spans. Holders and
//! earlier waiters block a request alike. So no request overtakes a waiter that it conflicts with,
//! and a request without conflicts passes the queue.
//!
//! The module `overtaking` makes one exception for nested requests.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::index::{Entry, Query, Rank};
use super::mode::{Mode, Modes, blocked_by};
use super::nesting::{self, Pool};
use super::overtaking::{self, Overtaken};
use super::records::{ClaimRecord, Records, ResourceState, Session};
use super::request::{Claim, SessionId};
use super::span::Span;

/// The session whose claim is checked. Its own claims, those of its ancestors and those of the
/// waiters that it supersedes never block it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub(super) session: SessionId,
    pub(super) ancestors: &'a [SessionId],
    pub(super) superseded: &'a [SessionId],
}

impl<'a> Asker<'a> {
    /// A session that is in the table.
    pub(super) fn known(session: SessionId, ancestors: &'a [SessionId]) -> Self {
        Self { session, ancestors, superseded: &[] }
    }

    pub(super) fn passes(self, other: SessionId) -> bool {
        self.session == other || self.ancestors.contains(&other) || self.superseded.contains(&other)
    }
}

/// What a request needs of the slots of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// How many slots the request asks for.
    pub(super) slots: usize,
    /// Whether it takes them from those of an ancestor.
    pub(super) shares: bool,
}

impl Needs {
    /// How many slots the request takes of those that no ancestor holds.
    pub(super) fn unshared(self) -> usize {
        if self.shares { 0 } else { self.slots }
    }
}

/// Whether a claim of this mode over this span, held or ahead in the queue, may block a claim of
/// another session on the same resource. Two slots block each other when all are taken.
pub fn may_block(claim: &Claim, mode: Mode, span: &Span) -> bool {
    blocked_by(claim.mode).contains(mode) && claim.span.overlaps(span)
}

/// The sessions that block a claim. There are none if the claim can be granted.
#[derive(Debug, Default)]
pub(super) struct Blockers {
    /// Their claims clash with the claim, so all of them have to end.
    pub(super) clashing: Vec<SessionId>,
    /// Their claims take so many slots that the rest does not suffice.
    pub(super) takers: Vec<Taker>,
    /// How many slots the request needs, and of how many.
    pub(super) wanted: (usize, u32),
}

/// A claim that takes a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Taker {
    pub(super) session: SessionId,
    /// The number of slots that the resource has for the session.
    pub(super) slots: u32,
    /// Which of an ancestor's slots the claim holds. Claims that hold the same one take one slot.
    pub(super) number: Option<u32>,
}

/// Whether a request has to wait for some of the claims that take slots. It needs so many slots of
/// `slots`. The smallest number of slots counts that one of them has for the resource.
pub(super) fn are_full(takers: &[Taker], (needs, slots): (usize, u32)) -> bool {
    let slots = takers.iter().map(|taker| taker.slots).fold(slots, u32::min);
    let shared: BTreeSet<_> = takers.iter().filter_map(|taker| taker.number).collect();
    let alone = takers.iter().filter(|taker| taker.number.is_none()).count();
    are_too_many(alone + shared.len() + needs, slots)
}

/// Whether a resource does not have so many slots.
pub(super) fn are_too_many(taken: usize, slots: u32) -> bool {
    taken > slots as usize
}

/// How far a search for blockers goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// To the first session whose claim clashes, or until the slots are full. The request can't be
    /// granted while these claims remain.
    First,
    /// To the last one.
    All,
}

/// The sessions that block a claim, up to the first one that clashes: see [`search`].
pub(super) fn blockers<R: Records>(
    records: &R,
    claim: &Claim,
    needs: Needs,
    asker: Asker<'_>,
    before: Rank,
) -> Result<Vec<SessionId>, R::Error> {
    let found = search(records, claim, needs, asker, before, Extent::First)?;
    let takers = found.takers.iter().map(|taker| taker.session);
    Ok(if found.clashing.is_empty() { takers.collect() } else { found.clashing })
}

/// Searches for the sessions that block a claim. `needs` is what its request needs of the slots of
/// the resource.
///
/// The search covers the held claims and the waiting claims with a rank below `before`. A waiter
/// that the session overtakes does not count. Whom a nested claim overtakes depends on the waiters
/// ahead, so it looks at them from the first on. A session that waits already overtakes nobody
/// unless it is noted in the queue.
pub(super) fn search<R: Records>(
    records: &R,
    claim: &Claim,
    needs: Needs,
    asker: Asker<'_>,
    before: Rank,
    extent: Extent,
) -> Result<Blockers, R::Error> {
    let mut found = Blockers::default();
    let Some(state) = records.resource(&claim.resource)? else { return Ok(found) };
    // A claim without ancestors heeds every waiter ahead of it, so one search finds holders and
    // waiters.
    let is_noted = || state.overtakers.contains(&asker.session);
    let heeds_all = asker.ancestors.is_empty() || !is_noted() && records.session(asker.session)?.is_some();
    let heeded = |modes| if heeds_all { modes } else { Modes::EMPTY };
    let clashing = claim.mode.clashing();
    let query = Query { span: &claim.span, held: clashing, waiting: heeded(clashing), before };
    state.tree.visit(records, &claim.resource, query, |entry| {
        if asker.passes(entry.session) {
            return ControlFlow::Continue(());
        }
        found.clashing.push(entry.session);
        if extent == Extent::First { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if extent == Extent::First && !found.clashing.is_empty() {
        return Ok(found);
    }
    let pool = match needs.shares {
        true => nesting::pool(&nesting::above(records, asker.ancestors)?, &claim.resource).filter(Pool::is_divided),
        false => None,
    };
    let slots = pool.as_ref().map_or(claim.slots.unwrap_or(0), |pool| pool.numbers.len() as u32);
    let needs_slot = claim.mode == Mode::Slot && (pool.is_some() || !needs.shares);
    found.wanted = if needs_slot { (needs.slots.min(slots as usize), slots) } else { (0, 0) };
    let is_enough = |found: &Blockers| extent == Extent::First && needs_slot && are_full(&found.takers, found.wanted);
    let slot = Modes::of(&[Mode::Slot]);
    if needs_slot {
        // Which waiters take from the pool, only their sessions tell.
        let waiting = if pool.is_some() { Modes::EMPTY } else { heeded(slot) };
        let query = Query { held: slot, waiting, ..query };
        state.tree.visit(records, &claim.resource, query, |entry| {
            if !asker.passes(entry.session) {
                found.takers.extend(taker(entry, pool.as_ref()));
            }
            if is_enough(&found) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    if (!heeds_all || pool.is_some()) && !is_enough(&found) {
        let waiting = match (needs_slot, heeds_all) {
            (true, true) => slot,
            (true, false) => blocked_by(Mode::Slot),
            (false, _) => clashing,
        };
        let query = Query { held: Modes::EMPTY, waiting, ..query };
        let is_enough = |found: &Blockers| is_enough(found) || extent == Extent::First && !found.clashing.is_empty();
        let walk = Walk { claim, asker, heeds_all, pool: pool.as_ref(), query };
        walk.add_heeded_waiters(records, &state, &is_enough, &mut found)?;
    }
    if !are_full(&found.takers, found.wanted) {
        found.takers.clear();
    }
    Ok(found)
}

/// The claim of an entry as one that takes a slot: one of `pool`, or else one of the resource.
fn taker(entry: &Entry, pool: Option<&Pool>) -> Option<Taker> {
    let Some(pool) = pool else {
        let slots = entry.slots.filter(|_| !entry.shares)?;
        return Some(Taker { session: entry.session, slots, number: None });
    };
    // The caller knows that a waiting claim takes from the pool.
    let is_its = entry.shares && entry.slot.is_none_or(|number| pool.numbers.contains(&number));
    let slots = pool.numbers.len() as u32;
    is_its.then_some(Taker { session: entry.session, slots, number: entry.slot })
}

/// A walk along the waiters ahead of a nested claim.
struct Walk<'w> {
    claim: &'w Claim,
    asker: Asker<'w>,
    /// Whether the session overtakes nobody.
    heeds_all: bool,
    /// The ancestor's slots of which the claim takes.
    pool: Option<&'w Pool>,
    query: Query<'w>,
}

impl Walk<'_> {
    /// Adds the waiters that block the claim and that the session does not overtake. The walk ends
    /// when that is enough, or when everybody behind heeds overtaken waiters, unless some of them
    /// may overtake these.
    fn add_heeded_waiters<R: Records>(
        &self,
        records: &R,
        state: &ResourceState,
        is_enough: &dyn Fn(&Blockers) -> bool,
        found: &mut Blockers,
    ) -> Result<(), R::Error> {
        let Self { claim, asker, query, .. } = *self;
        let mut overtaken = Overtaken::default();
        let waits_here = |record: &&ClaimRecord| record.claim.resource == claim.resource && !record.rank.is_held();
        let own = records.session(asker.session)?;
        let own = own.map_or(0, |own| own.claims.iter().filter(waits_here).count());
        let others_nest = state.waiting_below as usize > own;
        let mut open = query.waiting;
        let mut after = Rank::HELD;
        let mut batch = 2;
        loop {
            let ahead = state.tree.waiting_after(records, &claim.resource, query, after, batch)?;
            if ahead.is_empty() {
                return Ok(());
            }
            for entry in ahead {
                after = entry.rank;
                let clashes = claim.mode.clashes_with(entry.mode);
                if asker.passes(entry.session) || !clashes && entry.shares != self.pool.is_some() {
                    continue;
                }
                let Some(waiter) = records.session(entry.session)? else { continue };
                if !clashes && !self.is_of_the_pool(records, &waiter)? {
                    continue;
                }
                let heeds_all = !state.overtakers.contains(&entry.session);
                let awaited = || overtaking::awaited(records, (entry.session, &waiter), asker.ancestors);
                if !self.heeds_all && overtaken.has(&claim.resource, &waiter, heeds_all, awaited)? {
                    if entry.lower <= *claim.span.lower() && *claim.span.upper() <= entry.upper {
                        open = open.intersection(entry.mode.clashing().complement());
                    }
                    continue;
                }
                if clashes {
                    found.clashing.push(entry.session);
                } else {
                    found.takers.extend(taker(&entry, self.pool));
                }
                if is_enough(found) {
                    return Ok(());
                }
            }
            let rest = Query { waiting: open, ..query };
            if !others_nest && state.tree.waiting_after(records, &claim.resource, rest, after, 1)?.is_empty() {
                return Ok(());
            }
            batch *= 2;
        }
    }

    /// Whether a waiter takes from the same ancestor's slots, if the claim does.
    fn is_of_the_pool<R: Records>(&self, records: &R, waiter: &Session) -> Result<bool, R::Error> {
        let Some(pool) = self.pool else { return Ok(true) };
        let Some(nearer) = waiter.ancestors.iter().position(|id| *id == pool.holder) else { return Ok(false) };
        let nearer = nesting::above(records, &waiter.ancestors[..nearer])?;
        Ok(nesting::pool(&nearer, &self.claim.resource).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::super::op::{Op, Reply};
    use super::super::samples::{claim, id, request};
    use super::super::table::LockTable;
    use super::*;
    use rlock_sys::clock::StoreTime;

    /// Makes a table in which the sessions 1, 2, … requested these claims one after another.
    fn table(claims: &[Claim]) -> LockTable {
        let mut table: LockTable = LockTable::default();
        for (number, claim) in (1..).zip(claims) {
            let request = request(number, &[], std::slice::from_ref(claim));
            let outcome =
                table.apply(StoreTime::from_micros(number.into()), Op::Acquire { request, place: None }).unwrap();
            assert!(matches!(outcome.reply, Reply::Granted { .. } | Reply::Waiting));
        }
        table
    }

    fn in_the_way(table: &LockTable, claim: &Claim, ancestors: &[u8], before: Rank) -> Vec<SessionId> {
        let ancestors: Vec<_> = ancestors.iter().map(|ancestor| id(*ancestor)).collect();
        let asker = Asker::known(id(100), &ancestors);
        let needs = Needs { slots: usize::from(claim.mode == Mode::Slot), shares: false };
        blockers(table.records(), claim, needs, asker, before).unwrap()
    }

    /// The table of docs/design.md#conflicts for spans that touch. Spans that do not touch never
    /// conflict.
    #[test]
    fn holder_blocks_overlapping_claims_that_clash() {
        use Mode::{Prewrite, Read, Write};
        for held in [Read, Prewrite, Write] {
            for asked in [Read, Prewrite, Write] {
                let table = table(&[claim(held, "[0,5]")]);
                let expected = if asked.clashes_with(held) { vec![id(1)] } else { vec![] };
                assert_eq!(in_the_way(&table, &claim(asked, "[5,6]"), &[], Rank::LAST), expected, "{asked} on {held}");
                assert_eq!(in_the_way(&table, &claim(asked, "(5,6]"), &[], Rank::LAST), []);
                assert_eq!(in_the_way(&table, &claim(asked, "[5,6]"), &[1], Rank::LAST), []);
            }
        }
    }

    #[test]
    fn waiter_blocks_only_claims_behind_it() {
        let table = table(&[claim(Mode::Read, ""), claim(Mode::Write, "[0,1]")]);
        let read = claim(Mode::Read, "[1,2]");
        assert_eq!(in_the_way(&table, &read, &[], Rank::LAST), [id(2)]);
        assert_eq!(in_the_way(&table, &read, &[], Rank::waiting(2)), [id(2)]);
        assert_eq!(in_the_way(&table, &read, &[], Rank::waiting(1)), []);
        assert_eq!(in_the_way(&table, &read, &[], Rank::waiting(1)), []);
    }

    #[test]
    fn all_sessions_with_a_slot_are_named_when_none_is_free() {
        let slot = claim(Mode::Slot, "");
        assert_eq!(in_the_way(&table(std::slice::from_ref(&slot)), &slot, &[], Rank::LAST), []);
        let full = table(&[slot.clone(), slot.clone(), slot.clone()]);
        let named = |before, ancestors: &[u8]| {
            let mut named = in_the_way(&full, &slot, ancestors, before);
            named.sort();
            named
        };
        assert_eq!(named(Rank::waiting(1), &[]), [id(1), id(2)]);
        assert_eq!(named(Rank::waiting(1), &[2]), []);
        assert_eq!(named(Rank::LAST, &[2]), [id(1), id(3)]);
        assert_eq!(named(Rank::LAST, &[]).len(), 2);
    }

    /// 1 has two of the slots. 2 takes one of these, and 3 and 4 share it. So 5 gets the other one,
    /// and the next has to wait until either 5 has ended, or all of 2, 3 and 4.
    #[test]
    fn sessions_that_share_a_slot_of_a_hold_take_one_of_its_slots() {
        let slot = Claim { slots: Some(4), ..claim(Mode::Slot, "") };
        let mut table: LockTable = LockTable::default();
        let mut ask = |session, ancestors: &[u8], slots| {
            let request = request(session, ancestors, &vec![slot.clone(); slots]);
            let Ok(outcome) = table.apply(StoreTime::from_micros(1), Op::Acquire { request, place: None });
            matches!(outcome.reply, Reply::Granted { .. })
        };
        assert!(ask(1, &[], 2) && ask(2, &[1], 1) && ask(3, &[2, 1], 1) && ask(4, &[2, 1], 1) && ask(5, &[1], 1));
        let above = [id(1)];
        let needs = Needs { slots: 1, shares: true };
        let asker = Asker::known(id(100), &above);
        let Ok(found) = search(table.records(), &slot, needs, asker, Rank::LAST, Extent::All);
        let without = |ended: &[u8]| {
            let is_left = |taker: &&Taker| !ended.iter().any(|session| id(*session) == taker.session);
            found.takers.iter().filter(is_left).copied().collect::<Vec<_>>()
        };
        assert_eq!(without(&[]).len(), 4);
        let ends = [(&[5][..], false), (&[2, 3], true), (&[2, 3, 4], false)];
        for (ended, is_full) in ends {
            assert_eq!(are_full(&without(ended), found.wanted), is_full, "after the end of {ended:?}");
        }
    }
}
