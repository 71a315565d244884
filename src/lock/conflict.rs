//! The one rule: a request is granted when it conflicts with no holder and with no earlier waiter.
//!
//! The rule is PostgreSQL's wake rule (src/backend/storage/lmgr/README) with spans. Holders and
//! earlier waiters block a request alike. So no request overtakes a waiter that it conflicts with,
//! and a request without conflicts passes the queue.
//!
//! One exception: a nested request overtakes a waiter that itself waits for one of the request's
//! ancestors. The waiter can't be granted before the ancestor ends, and the ancestor waits for its
//! descendant.

use std::ops::ControlFlow;

use super::index::{Entry, Query, Rank};
use super::mode::{Mode, Modes};
use super::records::{ClaimRecord, Records, Session};
use super::request::{Claim, SessionId};

/// The session whose claim is checked. Its own claims and those of its ancestors never block it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub(super) session: SessionId,
    pub(super) ancestors: &'a [SessionId],
    /// Whether the session is not in the table yet.
    pub(super) is_new: bool,
}

impl Asker<'_> {
    fn is_related_to(self, other: SessionId) -> bool {
        self.session == other || self.ancestors.contains(&other)
    }

    /// Whether a waiter waits for an ancestor of this session, so that it can't be granted before
    /// the ancestor ends.
    fn is_awaited_above<R: Records>(self, records: &R, waiter: SessionId) -> Result<bool, R::Error> {
        let Some(waiter) = records.session(waiter)?.filter(|waiter| !waiter.is_holder()) else { return Ok(false) };
        for ancestor in self.ancestors.iter().filter(|ancestor| !waiter.ancestors.contains(ancestor)) {
            let Some(above) = records.session(*ancestor)?.filter(Session::is_holder) else { continue };
            let waits_for = |held: &ClaimRecord| waiter.claims.iter().any(|its| excludes(&held.claim, &its.claim));
            if above.claims.iter().any(waits_for) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether two sessions can't hold these claims at the same time, whatever the other sessions hold.
pub(super) fn excludes(one: &Claim, other: &Claim) -> bool {
    let is_only_slot = one.slots == Some(1) && other.slots == Some(1);
    one.resource == other.resource
        && (one.mode.clashes_with(other.mode) || is_only_slot)
        && one.span.overlaps(&other.span)
}

/// Whether a claim that is about to wait conflicts with an earlier waiter that the session may
/// overtake.
///
/// The table asks once, because the answer changes only if a waiter returns to an earlier place.
/// The holds of the ancestors only become less, and a waiter's claims stay the same.
pub(super) fn may_overtake<R: Records>(
    records: &R,
    claim: &Claim,
    asker: Asker<'_>,
    before: Rank,
) -> Result<bool, R::Error> {
    if !is_waited_for(records, asker.ancestors)? {
        return Ok(false);
    }
    let Some(state) = records.resource(&claim.resource)? else { return Ok(false) };
    let mut waiting = claim.mode.clashing();
    if claim.mode == Mode::Slot {
        waiting.insert(Mode::Slot);
    }
    let query = Query { span: &claim.span, held: Modes::EMPTY, waiting, before };
    let mut found = Ok(false);
    state.tree.visit(records, &claim.resource, query, |entry| {
        found = asker.is_awaited_above(records, entry.session);
        if matches!(found, Ok(false)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    found
}

/// Whether a session waits for a resource that one of these sessions holds.
fn is_waited_for<R: Records>(records: &R, holders: &[SessionId]) -> Result<bool, R::Error> {
    for holder in holders {
        let Some(holder) = records.session(*holder)?.filter(Session::is_holder) else { continue };
        for record in &holder.claims {
            if records.resource(&record.claim.resource)?.is_some_and(|state| state.waiting > 0) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The sessions that block a claim, or none if the claim can be granted. A claim with `shares` uses
/// an ancestor's slot and needs no free slot.
///
/// The search covers the held claims and the waiting claims with a rank below `before`. The search
/// stops at the first conflicting claim and names its session, because the request can't be granted
/// while that claim remains. If all slots are taken, the list names the sessions that take them,
/// because any of them could free a slot. A waiter that the session may overtake does not count.
pub(super) fn blockers<R: Records>(
    records: &R,
    claim: &Claim,
    shares: bool,
    asker: Asker<'_>,
    before: Rank,
) -> Result<Vec<SessionId>, R::Error> {
    let Some(state) = records.resource(&claim.resource)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let overtakes = !asker.ancestors.is_empty() && (asker.is_new || state.overtakers.contains(&asker.session));
    let mut failure = Ok(());
    let mut is_in_the_way = |entry: &Entry| {
        if asker.is_related_to(entry.session) {
            return false;
        }
        let passes = overtakes && !entry.rank.is_held();
        let passes = passes.then(|| asker.is_awaited_above(records, entry.session)).transpose();
        !matches!(passes.map_err(|error| failure = Err(error)), Ok(Some(true)))
    };
    let clashing = claim.mode.clashing();
    let query = Query { span: &claim.span, held: clashing, waiting: clashing, before };
    state.tree.visit(records, &claim.resource, query, |entry| {
        if !is_in_the_way(entry) {
            return ControlFlow::Continue(());
        }
        found.push(entry.session);
        ControlFlow::Break(())
    })?;
    let slots = claim.slots.unwrap_or(0) as usize;
    if !found.is_empty() || claim.mode != Mode::Slot || shares {
        return failure.map(|()| found);
    }
    let slot = Modes::of(&[Mode::Slot]);
    let query = Query { span: &claim.span, held: slot, waiting: slot, before };
    state.tree.visit(records, &claim.resource, query, |entry| {
        if !entry.shares && is_in_the_way(entry) {
            found.push(entry.session);
        }
        if found.len() < slots { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if found.len() < slots {
        found.clear();
    }
    failure.map(|()| found)
}

#[cfg(test)]
mod tests {
    use super::super::op::{Op, Reply};
    use super::super::samples::{claim, id, request};
    use super::super::table::LockTable;
    use super::*;
    use crate::clock::StoreTime;

    /// Makes a table in which the sessions 1, 2, … requested these claims one after another.
    fn table(claims: &[Claim]) -> LockTable {
        let mut table: LockTable = LockTable::default();
        for (number, claim) in (1..).zip(claims) {
            let request = request(number, &[], std::slice::from_ref(claim));
            let outcome = table.apply(StoreTime::from_micros(number.into()), Op::Acquire(request)).unwrap();
            assert!(matches!(outcome.reply, Reply::Granted { .. } | Reply::Waiting));
        }
        table
    }

    fn in_the_way(table: &LockTable, claim: &Claim, ancestors: &[u8], before: Rank) -> Vec<SessionId> {
        let ancestors: Vec<_> = ancestors.iter().map(|ancestor| id(*ancestor)).collect();
        let asker = Asker { session: id(100), ancestors: &ancestors, is_new: true };
        blockers(table.records(), claim, false, asker, before).unwrap()
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
        assert_eq!(in_the_way(&table, &read, &[], Rank::waiting(2, false)), [id(2)]);
        assert_eq!(in_the_way(&table, &read, &[], Rank::waiting(1, false)), []);
        assert_eq!(in_the_way(&table, &read, &[], Rank::FIRST_WAITING), []);
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
        assert_eq!(named(Rank::FIRST_WAITING, &[]), [id(1), id(2)]);
        assert_eq!(named(Rank::FIRST_WAITING, &[2]), []);
        assert_eq!(named(Rank::LAST, &[2]), [id(1), id(3)]);
        assert_eq!(named(Rank::LAST, &[]).len(), 2);
    }
}
