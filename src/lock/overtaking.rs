//! The exception to the one rule: a nested request overtakes an earlier waiter that itself waits
//! for one of the request's ancestors. The waiter can't be granted before the ancestor ends, and
//! the ancestor waits for its descendant.
//!
//! A walk along a queue skips the waiters whose modes a waiter ahead has ruled out. So the table
//! notes the waiters that may overtake, and the walk tries these all the same. A waiter's claims
//! stay as they are, and the holds of its ancestors only become less. So the table decides
//! whether one waiter may overtake another when the second of the two joins the queue, behind the
//! other or ahead of it.

use std::ops::ControlFlow;

use super::conflict::blocked_by;
use super::index::{Query, Rank};
use super::mode::Modes;
use super::records::{ClaimRecord, Records, Session};
use super::request::{Claim, SessionId};
use super::resource::Resource;

/// Whether a waiting claim of this rank may overtake others. A nested claim heeds no waiter, so it
/// has none to overtake.
pub fn may_overtake(rank: Rank, ancestors: &[SessionId]) -> bool {
    rank >= Rank::FIRST_ORDINARY && !ancestors.is_empty()
}

/// Whether a request below these ancestors overtakes a waiter.
pub(super) fn overtakes<R: Records>(records: &R, ancestors: &[SessionId], waiter: SessionId) -> Result<bool, R::Error> {
    match records.session(waiter)? {
        Some(waiter) => awaits_any(records, &waiter, ancestors),
        None => Ok(false),
    }
}

/// Whether a waiter waits for what one of these sessions holds. A hold around the waiter itself
/// does not count.
fn awaits_any<R: Records>(records: &R, waiter: &Session, holders: &[SessionId]) -> Result<bool, R::Error> {
    for holder in holders.iter().filter(|holder| !waiter.ancestors.contains(holder)) {
        let Some(holder) = records.session(*holder)?.filter(Session::is_holder) else { continue };
        let waits_for = |held: &ClaimRecord| waiter.claims.iter().any(|its| excludes(&held.claim, &its.claim));
        if holder.claims.iter().any(waits_for) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether two sessions can't hold these claims at the same time, whatever the other sessions hold.
pub(super) fn excludes(one: &Claim, other: &Claim) -> bool {
    let is_only_slot = one.slots == Some(1) && other.slots == Some(1);
    one.resource == other.resource
        && (one.mode.clashes_with(other.mode) || is_only_slot)
        && one.span.overlaps(&other.span)
}

/// The waiters that may overtake another once a session has joined the queues: the session itself,
/// and those behind it. Each comes with the resource on which it may overtake.
pub(super) fn overtakers<R: Records>(
    records: &R,
    id: SessionId,
    session: &Session,
) -> Result<Vec<(Resource, SessionId)>, R::Error> {
    let mut found = Vec::new();
    let last = Rank::waiting(records.last_seq()?, false);
    let is_awaited = is_awaited(records, &session.ancestors)?;
    for ClaimRecord { claim, rank, .. } in &session.claims {
        let name = &claim.resource;
        let Some(state) = records.resource(name)?.filter(|state| state.waiting > 0) else { continue };
        let waiting = blocked_by(claim.mode);
        let query = Query { span: &claim.span, held: Modes::EMPTY, waiting, before: Rank::LAST };
        let mut failure = Ok(());
        if is_awaited && may_overtake(*rank, &session.ancestors) {
            state.tree.visit(records, name, Query { before: *rank, ..query }, |ahead| {
                match overtakes(records, &session.ancestors, ahead.session) {
                    Ok(false) => return ControlFlow::Continue(()),
                    Ok(true) => found.push((name.clone(), id)),
                    Err(error) => failure = Err(error),
                }
                ControlFlow::Break(())
            })?;
        }
        if state.waiting_below > 0 && *rank < last {
            state.tree.visit(records, name, query, |behind| {
                let overtaker = records.session(behind.session).and_then(|waiter| match waiter {
                    Some(waiter) if behind.rank > *rank && may_overtake(behind.rank, &waiter.ancestors) => {
                        awaits_any(records, session, &waiter.ancestors)
                    }
                    _ => Ok(false),
                });
                match overtaker {
                    Ok(overtakes) => found.extend(overtakes.then(|| (name.clone(), behind.session))),
                    Err(error) => failure = Err(error),
                }
                ControlFlow::Continue(())
            })?;
        }
        failure?;
    }
    Ok(found)
}

/// Whether any session waits for a resource that one of these sessions holds.
fn is_awaited<R: Records>(records: &R, holders: &[SessionId]) -> Result<bool, R::Error> {
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

#[cfg(test)]
mod tests {
    use super::super::mode::Mode;
    use super::super::op::Op;
    use super::super::request::Place;
    use super::super::samples::{claim, id, name, request};
    use super::super::table::LockTable;
    use super::*;
    use crate::clock::StoreTime;

    /// A table in which 1 holds `e`, 2 the prewrite of `r`, 3 and 4 its slots, and 11 waits for a
    /// slot below 1.
    fn table() -> LockTable {
        let mut table = LockTable::default();
        let e = Claim { resource: name("e"), ..claim(Mode::Write, "") };
        let slot = claim(Mode::Slot, "");
        ask(&mut table, 1, &[], &[e]);
        ask(&mut table, 2, &[], &[claim(Mode::Prewrite, "")]);
        ask(&mut table, 3, &[], std::slice::from_ref(&slot));
        ask(&mut table, 4, &[], std::slice::from_ref(&slot));
        ask(&mut table, 11, &[1], &[slot]);
        table
    }

    fn ask(table: &mut LockTable, session: u8, ancestors: &[u8], claims: &[Claim]) {
        let Ok(_) = table.apply(StoreTime::from_micros(1), Op::Acquire(request(session, ancestors, claims)));
    }

    /// What the queue of `r` says: the number of claims that may overtake, and the overtakers.
    fn noted(table: &LockTable) -> (u32, Vec<SessionId>) {
        let Ok(state) = table.records().resource(&name("r"));
        let state = state.unwrap();
        (state.waiting_below, state.overtakers.iter().copied().collect())
    }

    fn both() -> [Claim; 2] {
        [claim(Mode::Write, ""), Claim { resource: name("e"), ..claim(Mode::Write, "") }]
    }

    #[test]
    fn upgrade_that_joins_ahead_is_noted_as_overtaken() {
        let mut table = table();
        assert_eq!(noted(&table), (1, vec![]));
        ask(&mut table, 12, &[2], &both());
        assert_eq!(noted(&table), (1, vec![id(11)]));
        for session in [id(11), id(12)] {
            let Ok(_) = table.apply(StoreTime::from_micros(2), Op::Release { session, end: None });
        }
        let Ok(state) = table.records().resource(&name("r"));
        assert_eq!((state.unwrap().waiting_below, noted(&table).1), (0, vec![]));
    }

    #[test]
    fn upgrade_that_does_not_wait_for_the_ancestor_is_not_overtaken() {
        let mut table = table();
        ask(&mut table, 12, &[2], &both()[..1]);
        assert_eq!(noted(&table), (1, vec![]));
    }

    #[test]
    fn waiter_that_returns_ahead_is_noted_as_overtaken() {
        let mut table = table();
        let place = Place { number: 0, asked: StoreTime::from_micros(1) };
        let Ok(_) = table.apply(StoreTime::from_micros(2), Op::Return { request: request(12, &[], &both()), place });
        assert_eq!(noted(&table), (1, vec![id(11)]));
    }

    #[test]
    fn waiter_that_comes_later_is_behind_and_not_overtaken() {
        let mut table = table();
        ask(&mut table, 12, &[], &both());
        assert_eq!(noted(&table), (1, vec![]));
    }
}
