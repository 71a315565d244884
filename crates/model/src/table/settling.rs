//! How waiters are granted their requests when claims no longer block them.

use super::*;

impl<R: Records> LockTable<R> {
    /// Grants the waiters that the freed claims blocked, claim by claim. A waiter whose job is done
    /// leaves the queue instead, and its own claims are freed before the next.
    pub(super) fn settle_all(
        &mut self,
        now: StoreTime,
        mut freed: Vec<Freed>,
        granted: &mut Vec<SessionId>,
    ) -> Result<(), R::Error> {
        freed.reverse();
        while let Some(next) = freed.pop() {
            freed.extend(self.settle(now, &next, granted)?);
        }
        Ok(())
    }

    /// Grants the waiters that the freed claim blocked, first come, first served: invariants 2, 3.
    ///
    /// Only waiters that overlap the freed span in one of the freed modes can have become
    /// grantable, because nothing else has changed. If several claims are freed together, each
    /// claim has its own walk. A claim that covers the span, granted or still waiting, closes all
    /// modes that clash with its own for later waiters. The walk ends when all modes are closed, or
    /// at a waiter whose job is done: its claim, a write on the whole resource, is returned as
    /// freed, and the walk for that claim covers the rest of this one.
    fn settle(&mut self, now: StoreTime, freed: &Freed, granted: &mut Vec<SessionId>) -> Result<Vec<Freed>, R::Error> {
        let Freed { resource, span, modes } = freed;
        // Modes in which no later waiter can be granted here, unless it may overtake.
        let mut closed = Modes::EMPTY;
        // Whether no later waiter can be granted here that needs a slot. A share needs none.
        let mut is_full = false;
        let mut after = Rank::HELD;
        let mut batch = 2;
        loop {
            let Some(state) = self.records.resource(resource)?.filter(|state| state.waiting > 0) else {
                return Ok(Vec::new());
            };
            if is_full && state.shared_slots == 0 {
                closed.insert(Mode::Slot);
            }
            let open = if state.overtakers.is_empty() { closed.complement() } else { Modes::ALL };
            let query = Query { span, held: Modes::EMPTY, waiting: open.intersection(*modes), before: Rank::LAST };
            let candidates = state.tree.waiting_after(&self.records, resource, query, after, batch)?;
            let overtakers = state.overtakers.clone();
            if candidates.is_empty() {
                return Ok(Vec::new());
            }
            for candidate in candidates {
                after = candidate.rank;
                let is_closed =
                    closed.contains(candidate.mode) || is_full && candidate.mode == Mode::Slot && !candidate.shares;
                if is_closed && !overtakers.contains(&candidate.session) {
                    continue;
                }
                let outcome = match self.try_grant(now, candidate.session, granted)? {
                    Tried::IsDone(freed) => return Ok(freed),
                    outcome => outcome,
                };
                if candidate.lower <= *span.lower() && *span.upper() <= candidate.upper {
                    closed = closed.union(candidate.mode.clashing());
                    is_full |= outcome == Tried::OutOfSlots;
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
        let Some(mut session) = self.records.session(id)?.filter(|session| !session.is_holder()) else {
            return Ok(Tried::Granted);
        };
        if !self.blockers_of(id, &session)?.is_empty() {
            let names = session.resources();
            let wants_slots = session.claims.iter().all(|record| record.claim.mode == Mode::Slot && !record.shares);
            return Ok(if wants_slots && names.len() == 1 { Tried::OutOfSlots } else { Tried::Waits });
        }
        granted.push(id);
        if let [record, ..] = session.claims.as_slice()
            && remember::is_done(&mut self.records, now, &record.claim.resource, &session.job)?
        {
            return self.remove(now, id, Leaving::Released(None)).map(Tried::IsDone);
        }
        session.begin_unclaimed(now, self.claim_lease);
        self.grant(now, id, session)?;
        Ok(Tried::Granted)
    }
}

/// The result of an attempt to grant a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tried {
    Granted,
    Waits,
    /// The session has left the queue because its job is done. These are its claims.
    IsDone(Vec<Freed>),
    /// The session still waits, and slots are all that it asked for, but none of an ancestor's.
    /// Every later waiter that needs a slot of its own therefore waits as well.
    OutOfSlots,
}
