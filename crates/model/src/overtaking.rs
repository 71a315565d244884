//! The exception to the one rule: a nested request overtakes an earlier waiter that itself waits
//! for one of the request's ancestors. The waiter can't be granted before the ancestor ends, and
//! the ancestor waits for its descendant, or its owner does if it is a kept hold. Neither can a
//! waiter be granted that heeds such a waiter ahead of it, in this queue or in that of a resource
//! that the ancestor holds. So the request overtakes it, too, unless the ancestor is around it.
//!
//! A walk along a queue skips the waiters whose modes a waiter ahead has ruled out. So the table
//! notes the waiters that may overtake, and the walk tries these all the same. The others overtake
//! nobody. A waiter's claims stay as they are, and the holds of its ancestors only become less. So
//! the table decides whether one waiter may overtake another when the second of the two joins the
//! queue, behind the other or ahead of it. A third waiter that returns ahead of both, and that the
//! first of them heeds from then on, notes nobody anew: to find them costs the product of the
//! lengths of two queues. A waiter that is noted there already is tried.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::conflict::are_too_many;
use super::index::{Query, Rank};
use super::mode::Modes;
use super::mode::blocked_by;
use super::records::{ClaimRecord, Records, ResourceState, Session};
use super::request::{Claim, SessionId};
use super::resource::Resource;
use crate::tables::{FEW, HEAD_NAMES, HEADS_AHEAD, OVERTAKEN_MAX};

/// The claims of the waiters of one queue that a nested request overtakes, as a walk from the first
/// waiter on finds them. Each claim comes with an ancestor of the request that has to end before.
#[derive(Debug, Default)]
pub(super) struct Overtaken(Vec<(Part, SessionId)>);

/// A claim of a session, with the number of slots that the session takes of the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    claim: Claim,
    slots: usize,
}

/// What a session has of a resource, or waits for.
fn parts(session: &Session, resource: &Resource) -> Vec<Part> {
    let here = session.distinct_claims().filter(|record| record.claim.resource == *resource);
    here.map(|record| Part { claim: record.claim.clone(), slots: session.slots_needed(record).unshared() }).collect()
}

impl Overtaken {
    /// Whether the request overtakes the next waiter of the queue. `heeds_all` tells that the
    /// waiter overtakes nobody in this queue, and `awaited` which ancestor of the request the
    /// waiter waits for.
    pub(super) fn has<E>(
        &mut self,
        resource: &Resource,
        waiter: &Session,
        heeds_all: bool,
        awaited: impl FnOnce() -> Result<Option<SessionId>, E>,
    ) -> Result<bool, E> {
        let here = parts(waiter, resource);
        let is_awaited = |(its, ancestor): &&(Part, SessionId)| {
            !waiter.ancestors.contains(ancestor) && here.iter().any(|part| excludes(its, part))
        };
        let ahead = self.0.iter().find(|its| heeds_all && is_awaited(its)).map(|(_, ancestor)| *ancestor);
        let ancestor = match ahead {
            None => awaited()?,
            ahead => ahead,
        };
        let Some(ancestor) = ancestor else { return Ok(false) };
        for part in here {
            let its = (part, ancestor);
            if self.0.len() < OVERTAKEN_MAX && !self.0.contains(&its) {
                self.0.push(its);
            }
        }
        Ok(true)
    }
}

/// The first [`HEADS_AHEAD`] waiters of a resource ahead of one; none if that waiter may overtake
/// them.
fn heeded<R: Records>(
    records: &R,
    name: &Resource,
    (id, waiter): (SessionId, &Session),
) -> Result<Vec<Session>, R::Error> {
    let state = records.resource(name)?.filter(|state| !state.overtakers.contains(&id));
    let Some(state) = state else { return Ok(Vec::new()) };
    heads(records, name, &state, Rank::HELD, Rank::waiting(waiter.place()), HEADS_AHEAD)
}

/// The first waiters of a resource between two ranks, at most so many.
fn heads<R: Records>(
    records: &R,
    name: &Resource,
    state: &ResourceState,
    mut after: Rank,
    before: Rank,
    limit: usize,
) -> Result<Vec<Session>, R::Error> {
    let query = Query { held: Modes::EMPTY, before, ..Query::ALL };
    let mut found: Vec<SessionId> = Vec::new();
    while found.len() < limit {
        let entries = state.tree.waiting_after(records, name, query, after, limit)?;
        let Some(last) = entries.last() else { break };
        after = last.rank;
        found.extend(entries.iter().map(|entry| entry.session));
        found.dedup();
    }
    found.truncate(limit);
    found.into_iter().filter_map(|id| records.session(id).transpose()).collect()
}

/// The resources on which a waiter may overtake others once `session` has returned to its place:
/// its own, and those of the waiters behind it, which may wait for it now. Only resources on which
/// a waiter is noted can be among them. The function looks at the first [`HEADS_AHEAD`] waiters
/// behind, of which those count that have at most [`FEW`] names, and all together [`HEAD_NAMES`].
pub(super) fn touched<R: Records>(records: &R, id: SessionId, session: &Session) -> Result<Vec<Resource>, R::Error> {
    let own: Vec<_> = session.resources().into_iter().cloned().collect();
    let mut others = BTreeSet::new();
    let (mut looks, mut room) = (HEADS_AHEAD, HEAD_NAMES);
    for name in &own {
        let Some(state) = records.resource(name)? else { continue };
        let behind = heads(records, name, &state, Rank::waiting(session.place()), Rank::LAST, looks)?;
        looks -= behind.len();
        for waiter in behind {
            let names = waiter.resources();
            if (2..=FEW.min(room)).contains(&names.len()) {
                room -= names.len();
                others.extend(names.into_iter().filter(|name| !own.contains(name)).cloned());
            }
        }
        if looks == 0 {
            break;
        }
    }
    let mut touched = Vec::new();
    for name in own.into_iter().chain(others) {
        let state = records.resource(&name)?;
        if state.is_some_and(|state| state.overtakers.iter().any(|overtaker| *overtaker != id)) {
            touched.push(name);
        }
    }
    Ok(touched)
}

/// The first of these sessions that holds what a waiter waits for, or what a waiter waits for that
/// this one heeds in the queue of the same resource. A hold around a waiter itself does not count.
pub(super) fn awaited<R: Records>(
    records: &R,
    (id, waiter): (SessionId, &Session),
    holders: &[SessionId],
) -> Result<Option<SessionId>, R::Error> {
    for above in holders.iter().filter(|holder| !waiter.ancestors.contains(holder)) {
        let Some(holder) = records.session(*above)?.filter(Session::is_holder) else { continue };
        let is_held = |name: &&Resource| holder.claims.iter().any(|held| held.claim.resource == **name);
        let names: Vec<_> = waiter.resources().into_iter().filter(is_held).collect();
        let is_excluded = |name: &&Resource| {
            let (held, asked) = (parts(&holder, name), parts(waiter, name));
            held.iter().any(|held| asked.iter().any(|asked| excludes(held, asked)))
        };
        if names.iter().any(is_excluded) {
            return Ok(Some(*above));
        }
        for name in names {
            let heeded = heeded(records, name, (id, waiter))?;
            let mut strange = heeded.iter().filter(|ahead| !ahead.ancestors.contains(above));
            if strange.any(|ahead| stands_between(name, &holder, ahead, waiter)) {
                return Ok(Some(*above));
            }
        }
    }
    Ok(None)
}

/// Whether a waiter waits for a holder of a resource, and another waiter for that waiter.
fn stands_between(name: &Resource, holder: &Session, ahead: &Session, waiter: &Session) -> bool {
    let (held, asked) = (parts(holder, name), parts(waiter, name));
    let is_between =
        |its: &Part| held.iter().any(|held| excludes(held, its)) && asked.iter().any(|part| excludes(its, part));
    parts(ahead, name).iter().any(is_between)
}

/// Whether two sessions can't hold these parts of a resource at the same time, whatever the other
/// sessions hold.
fn excludes(one: &Part, other: &Part) -> bool {
    let are_slots = one.slots > 0 && other.slots > 0;
    let of = one.claim.slots.zip(other.claim.slots).filter(|_| are_slots).map(|(one, other)| one.min(other));
    let is_full = of.is_some_and(|of| are_too_many(one.slots + other.slots, of));
    (is_full || one.claim.mode.clashes_with(other.claim.mode)) && one.claim.span.overlaps(&other.claim.span)
}

/// The waiters that may overtake another once a session has joined the queues: the session itself,
/// and those behind it. Each comes with the resource on which it may overtake.
pub(super) fn overtakers<R: Records>(
    records: &R,
    id: SessionId,
    session: &Session,
) -> Result<Vec<(Resource, SessionId)>, R::Error> {
    let mut found = Vec::new();
    let last = Rank::waiting(records.last_seq()?);
    let is_awaited = is_awaited(records, &session.ancestors)?;
    for ClaimRecord { claim, rank, .. } in &session.claims {
        let name = &claim.resource;
        let Some(state) = records.resource(name)?.filter(|state| state.waiting > 0) else { continue };
        let waiting = blocked_by(claim.mode);
        let query = Query { span: &claim.span, held: Modes::EMPTY, waiting, before: Rank::LAST };
        let mut failure = Ok(());
        if is_awaited && !session.ancestors.is_empty() {
            state.tree.visit(records, name, Query { before: *rank, ..query }, |ahead| {
                let ancestor = records.session(ahead.session).and_then(|waiter| match waiter {
                    Some(waiter) => awaited(records, (ahead.session, &waiter), &session.ancestors),
                    None => Ok(None),
                });
                match ancestor {
                    Ok(None) => return ControlFlow::Continue(()),
                    Ok(Some(_)) => found.push((name.clone(), id)),
                    Err(error) => failure = Err(error),
                }
                ControlFlow::Break(())
            })?;
        }
        if state.waiting_below > 0 && *rank < last {
            state.tree.visit(records, name, query, |behind| {
                let overtaker = records.session(behind.session).and_then(|waiter| match waiter {
                    Some(waiter) if behind.rank > *rank && !waiter.ancestors.is_empty() => {
                        awaited(records, (id, session), &waiter.ancestors)
                    }
                    _ => Ok(None),
                });
                match overtaker {
                    Ok(ancestor) => found.extend(ancestor.map(|_| (name.clone(), behind.session))),
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
    use rlock_sys::clock::StoreTime;

    /// A table in which 1 holds `e`, 2 the prewrite of `r`, 3 and 4 its slots, and 11 waits for a
    /// slot below 1. The first place in the queue is free again.
    fn table() -> LockTable {
        let mut table = LockTable::default();
        let e = Claim { resource: name("e"), ..claim(Mode::Write, "") };
        let slot = claim(Mode::Slot, "");
        ask(&mut table, 1, &[], &[e]);
        ask(&mut table, 2, &[], &[claim(Mode::Prewrite, "")]);
        ask(&mut table, 3, &[], std::slice::from_ref(&slot));
        ask(&mut table, 4, &[], std::slice::from_ref(&slot));
        ask(&mut table, 5, &[], std::slice::from_ref(&slot));
        ask(&mut table, 11, &[1], &[slot]);
        release(&mut table, 5);
        table
    }

    fn ask(table: &mut LockTable, session: u8, ancestors: &[u8], claims: &[Claim]) {
        let Ok(_) = table.apply(
            StoreTime::from_micros(1),
            Op::Acquire { request: request(session, ancestors, claims), place: None },
        );
    }

    fn release(table: &mut LockTable, session: u8) {
        let Ok(_) = table.apply(StoreTime::from_micros(2), Op::Release { session: id(session), end: None });
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
    fn waiter_that_returns_ahead_is_noted_as_overtaken() {
        let mut table = table();
        let place = Place { number: 1, asked: StoreTime::from_micros(1) };
        let Ok(_) = table
            .apply(StoreTime::from_micros(2), Op::Acquire { request: request(12, &[], &both()), place: Some(place) });
        assert_eq!(noted(&table), (1, vec![id(11)]));
        release(&mut table, 11);
        release(&mut table, 12);
        let Ok(state) = table.records().resource(&name("r"));
        assert_eq!((state.unwrap().waiting_below, noted(&table).1), (0, vec![]));
    }

    #[test]
    fn nested_request_overtakes_those_behind_a_waiter_that_returns() {
        let mut table = LockTable::default();
        ask(&mut table, 1, &[], &both()[1..]);
        ask(&mut table, 2, &[], &[claim(Mode::Read, "")]);
        ask(&mut table, 3, &[], &both());
        ask(&mut table, 4, &[], &both()[..1]);
        release(&mut table, 3);
        ask(&mut table, 5, &[1], &[claim(Mode::Read, "")]);
        let Ok(blockers) = table.blockers(id(5));
        assert_eq!(blockers, [id(4)]);
        let place = Place { number: 1, asked: StoreTime::from_micros(1) };
        let Ok(outcome) = table
            .apply(StoreTime::from_micros(2), Op::Acquire { request: request(3, &[], &both()), place: Some(place) });
        assert_eq!(outcome.granted, [id(5)]);
    }

    /// 7 waits for `e`, 8 heeds 7, and 9 heeds 8 as soon as it is back, though 5 overtook 7 before.
    #[test]
    fn nested_request_that_overtakes_already_is_tried_when_a_waiter_returns() {
        let mut table = LockTable::default();
        let slot = Claim { slots: Some(3), ..claim(Mode::Slot, "") };
        ask(&mut table, 1, &[], &both()[1..]);
        ask(&mut table, 2, &[], std::slice::from_ref(&slot));
        ask(&mut table, 7, &[], &[slot.clone(), both()[1].clone()]);
        ask(&mut table, 8, &[], &both()[..1]);
        ask(&mut table, 9, &[], &[slot.clone(), slot.clone()]);
        release(&mut table, 8);
        ask(&mut table, 5, &[1], std::slice::from_ref(&slot));
        assert_eq!(noted(&table).1, [id(5)]);
        let Ok(blockers) = table.blockers(id(5));
        assert_eq!(blockers, [id(2), id(9), id(9)]);
        let place = Place { number: 2, asked: StoreTime::from_micros(1) };
        let returns = Op::Acquire { request: request(8, &[], &both()[..1]), place: Some(place) };
        let Ok(outcome) = table.apply(StoreTime::from_micros(2), returns);
        assert_eq!(outcome.granted, [id(5)]);
    }

    /// 3 waits for 1, and 4 heeds 3 when it is back. So 5 overtakes 4 in a queue that 3 is not in.
    #[test]
    fn nested_request_overtakes_in_a_queue_that_the_returning_waiter_is_not_in() {
        let mut table = LockTable::default();
        let of = |named: &str, mode| Claim { resource: name(named), ..claim(mode, "") };
        ask(&mut table, 1, &[], &[of("shared", Mode::Read), of("own", Mode::Write)]);
        ask(&mut table, 2, &[], &[claim(Mode::Read, "")]);
        ask(&mut table, 3, &[], &[of("shared", Mode::Write)]);
        ask(&mut table, 4, &[], &[of("shared", Mode::Read), claim(Mode::Write, "")]);
        ask(&mut table, 6, &[], &[claim(Mode::Write, ""), of("own", Mode::Write)]);
        release(&mut table, 3);
        ask(&mut table, 5, &[1], &[claim(Mode::Read, "")]);
        let Ok(blockers) = table.blockers(id(5));
        assert_eq!(blockers, [id(4)]);
        let place = Place { number: 1, asked: StoreTime::from_micros(1) };
        let request = request(3, &[], &[of("shared", Mode::Write)]);
        let Ok(outcome) = table.apply(StoreTime::from_micros(2), Op::Acquire { request, place: Some(place) });
        assert_eq!(outcome.granted, [id(5)]);
    }

    #[test]
    fn waiter_that_comes_later_is_behind_and_not_overtaken() {
        let mut table = table();
        ask(&mut table, 12, &[], &both());
        assert_eq!(noted(&table), (1, vec![]));
    }
}
