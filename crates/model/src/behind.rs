//! Finds the waiters that a session may have blocked, after the session is gone.
//!
//! A waiter watches the sessions that [`conflict::blockers`](super::conflict::blockers) named when
//! it last looked. It has to look again when one of them ends. Other processes notice the end of a
//! process, but not the end of a session whose process goes on, so that process tells them. It
//! tells all waiters whose list may contain the session. In a queue for a whole resource, these are
//! the next waiter, or the next readers.
//!
//! The search for blockers goes through the claims from the last to the first, by where they begin
//! and then by rank, and ends at the first conflict. So a waiter has an earlier waiter in its list,
//! and not the session, if the earlier waiter
//!
//! - clashes with it,
//! - begins where the session's claim begins, and ends no sooner, and
//! - was behind the session in the queue, even if the session was granted ahead of it since.
//!
//! A nested waiter goes through the waiters from the first on, and need not have the earlier waiter
//! in its list.
//!
//! A list that names the sessions with slots is full when it has as many as there are slots. A
//! waiter for a slot names those sessions only if nothing else clashes with it.

use super::index::{Query, Rank};
use super::mode::blocked_by;
use super::mode::{Mode, Modes};
use super::records::Records;
use super::request::{Claim, SessionId};

/// The waiters whose list of blockers may contain a session that had `claim`. `queued` is the rank
/// at which the session waited, or [`Rank::HELD`] if it did not wait.
pub(super) fn waiters<R: Records>(records: &R, claim: &Claim, queued: Rank) -> Result<Vec<SessionId>, R::Error> {
    let mut found = Vec::new();
    let Some(state) = records.resource(&claim.resource)?.filter(|state| state.waiting > 0) else { return Ok(found) };
    let blocked = blocked_by(claim.mode);
    // The modes of the waiters that have other blockers in their lists.
    let mut closed = Modes::EMPTY;
    let mut slots = 0;
    let mut after = Rank::HELD;
    let mut batch = 1;
    loop {
        let open = if state.waiting_below == 0 { closed.complement() } else { Modes::ALL };
        let waiting = open.intersection(blocked);
        let query = Query { span: &claim.span, held: Modes::EMPTY, waiting, before: Rank::LAST };
        let waiters = state.tree.waiting_after(records, &claim.resource, query, after, batch)?;
        if waiters.is_empty() {
            return Ok(found);
        }
        for waiter in waiters {
            after = waiter.rank;
            let is_full = claim.mode == Mode::Slot && waiter.slots.is_some_and(|its| slots >= its);
            if (is_full || closed.contains(waiter.mode))
                && !(state.waiting_below > 0 && nests(records, waiter.session)?)
            {
                continue;
            }
            found.push(waiter.session);
            if after > queued && waiter.lower == *claim.span.lower() && *claim.span.upper() <= waiter.upper {
                closed = closed.union(waiter.mode.clashing());
                slots += u32::from(waiter.mode == Mode::Slot && !waiter.shares);
            }
        }
        batch *= 2;
    }
}

fn nests<R: Records>(records: &R, waiter: SessionId) -> Result<bool, R::Error> {
    Ok(records.session(waiter)?.is_some_and(|waiter| !waiter.ancestors.is_empty()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::op::Op;
    use super::super::samples::{claim, id, request};
    use super::super::table::LockTable;
    use super::*;
    use rlock_sys::clock::StoreTime;

    /// A table, and for each waiter the blockers that it watches since it last looked.
    #[derive(Default)]
    struct World {
        table: LockTable,
        watched: BTreeMap<SessionId, Vec<SessionId>>,
        queued: BTreeMap<SessionId, Rank>,
        woken: Vec<SessionId>,
    }

    impl World {
        fn apply(&mut self, op: Op) {
            let Ok(outcome) = self.table.apply(StoreTime::from_micros(1), op);
            self.woken.extend(outcome.granted);
        }

        fn look(&mut self, session: SessionId) {
            let Ok(blockers) = self.table.blockers(session);
            self.watched.insert(session, blockers);
            let Ok(found) = self.table.records().session(session);
            if let Some(rank) = found.and_then(|session| session.claims.iter().map(|claim| claim.rank).max()) {
                self.queued.entry(session).or_insert(rank);
            }
        }

        fn ask(&mut self, session: u8, ancestors: &[u8], claims: &[Claim]) {
            self.apply(Op::Acquire { request: request(session, ancestors, claims), place: None });
            self.look(id(session));
        }

        fn release(&mut self, session: u8) {
            let session = id(session);
            let Ok(found) = self.table.records().session(session);
            let queued = self.queued.remove(&session).unwrap_or(Rank::HELD);
            self.apply(Op::Release { session, end: None });
            self.watched.remove(&session);
            for record in found.map(|session| session.claims).unwrap_or_default() {
                let Ok(waiters) = self.table.waiters_behind(&record.claim, queued);
                self.woken.extend(waiters);
            }
            self.settle();
        }

        fn settle(&mut self) {
            for session in std::mem::take(&mut self.woken) {
                self.look(session);
            }
        }

        fn waiters_behind(&self, claim: &Claim) -> Vec<SessionId> {
            let Ok(mut waiters) = self.table.waiters_behind(claim, Rank::HELD);
            waiters.sort();
            waiters
        }
    }

    #[test]
    fn only_the_next_of_a_queue_is_behind_a_session() {
        let mut world = World::default();
        for session in 1..=9 {
            world.ask(session, &[], &[claim(Mode::Write, "")]);
        }
        assert_eq!(world.waiters_behind(&claim(Mode::Write, "")), [id(2)]);
    }

    #[test]
    fn as_many_as_there_are_slots_are_behind_a_slot() {
        let mut world = World::default();
        for session in 1..=9 {
            world.ask(session, &[], &[claim(Mode::Slot, "")]);
        }
        let behind = world.waiters_behind(&claim(Mode::Slot, ""));
        assert!(behind.starts_with(&[id(3), id(4)]) && behind.len() <= 3, "{behind:?}");
    }

    fn some_claim() -> impl Strategy<Value = Claim> {
        let part = prop::sample::select(vec!["", "", "[0,9]", "[0,5]", "[3,7]", "[5,9]"]);
        (prop::sample::select(Mode::ALL.to_vec()), part, any::<bool>()).prop_map(|(mode, part, other)| {
            let mut claim = claim(mode, if mode == Mode::Slot { "" } else { part });
            if other {
                claim.resource = super::super::samples::name("other");
            }
            claim
        })
    }

    #[derive(Clone, Debug)]
    enum Step {
        Ask { session: u8, ancestor: Option<u8>, claims: Vec<Claim> },
        Release(u8),
        Look(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let session = 0..24_u8;
        prop_oneof![
            3 => (session.clone(), prop::option::weighted(0.3, session.clone()), prop::collection::vec(some_claim(), 1..3))
                .prop_map(|(session, ancestor, claims)| Step::Ask { session, ancestor, claims }),
            3 => session.clone().prop_map(Step::Release),
            1 => session.prop_map(Step::Look),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        /// A waiter that watches a session that is gone would not notice the death of those that
        /// block it now.
        #[test]
        fn every_waiter_looks_again_when_a_session_that_it_watches_is_released(
            steps in prop::collection::vec(step(), 1..80)
        ) {
            let mut world = World::default();
            for step in steps {
                let Ok(known) = world.table.records().session(id(match &step {
                    Step::Ask { session, .. } | Step::Release(session) | Step::Look(session) => *session,
                }));
                match step {
                    Step::Ask { session, ancestor, claims } if known.is_none() => {
                        // Only a holder runs a command, below which a request may be made.
                        let Ok(above) = ancestor.map_or(Ok(None), |above| world.table.records().session(id(above)));
                        let ancestor = ancestor.filter(|_| above.is_some_and(|above| above.is_holder()));
                        world.ask(session, ancestor.as_slice(), &claims);
                    }
                    Step::Release(session) => world.release(session),
                    Step::Look(session) if known.is_some() => world.look(id(session)),
                    _ => {}
                }
                for (waiter, blockers) in &world.watched {
                    let Ok(found) = world.table.records().session(*waiter);
                    if found.is_none_or(|waiter| waiter.is_holder()) {
                        continue;
                    }
                    prop_assert!(!blockers.is_empty(), "{waiter} watches nobody");
                    for blocker in blockers {
                        let Ok(found) = world.table.records().session(*blocker);
                        prop_assert!(found.is_some(), "{waiter} watches {blocker}, which is gone");
                    }
                }
            }
        }
    }
}
