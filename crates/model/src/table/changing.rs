//! How a session changes what it holds: it gives up an end of an interval or the height of a mode,
//! or lets a kept hold last longer.

use super::*;

impl<R: Records> LockTable<R> {
    /// Changes what a session holds.
    pub(super) fn change(
        &mut self,
        now: StoreTime,
        id: SessionId,
        change: Change,
        granted: &mut Vec<SessionId>,
    ) -> Result<Reply, R::Error> {
        match change {
            Change::Shrink { resource, span } => self.shrink(now, id, &resource, span, granted),
            Change::Downgrade { resource, mode } => self.downgrade(now, id, &resource, mode, granted),
            Change::Extend { by } => self.extend(now, id, by),
        }
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
        let numbered = session.claims.iter().enumerate().filter(|(_, record)| held(record));
        let shrunk = numbered.filter(|(_, record)| record.claim.shrinks_to(&span));
        let shrunk: Vec<_> = shrunk.map(|(index, _)| index).collect();
        if shrunk.is_empty() {
            let resource = resource.clone();
            // A slot contains every span, and has no parts to give up.
            let is_slot = session.claims.iter().any(|record| held(&record) && record.claim.mode == Mode::Slot);
            let refusal =
                if is_slot { Refusal::SlotIsWhole { resource } } else { Refusal::NotInside { resource, asked: span } };
            return Ok(Reply::Refused(refusal));
        }
        let keeps = |entry: &Entry| *span.lower() <= entry.lower && entry.upper <= *span.upper();
        for index in &shrunk {
            if self.nested_waits(id, resource, &session.claims[*index].claim.span, keeps)? {
                return Ok(Reply::Refused(Refusal::NestedWaits { resource: resource.clone() }));
            }
        }
        let mut freed = Vec::with_capacity(shrunk.len());
        for index in shrunk {
            let Claim { mode, span: old, .. } = session.claims[index].claim.clone();
            self.narrow(id, &mut session, index, |claim| claim.span = span.clone())?;
            freed.push(Freed { resource: resource.clone(), span: old, modes: blocked_by(mode) });
        }
        self.records.put_session(id, session)?;
        self.settle_all(now, freed, granted)?;
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
            self.narrow(id, &mut session, index, |claim| claim.mode = mode)?;
            let modes = old.clashing().intersection(mode.clashing().complement());
            freed.push(Freed { resource: resource.clone(), span, modes });
        }
        self.records.put_session(id, session)?;
        self.settle_all(now, freed, granted)?;
        Ok(Reply::Done)
    }

    fn extend(&mut self, now: StoreTime, id: SessionId, by: Option<Duration>) -> Result<Reply, R::Error> {
        let Some(mut session) = self.records.session(id)? else { return Ok(Reply::Unknown) };
        if !session.extend(now, by) {
            return Ok(Reply::Refused(Refusal::NotKept));
        }
        self.records.put_session(id, session.clone())?;
        Ok(standing(now, &session))
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
        let Some(state) = self.records.resource(resource)?.filter(|state| state.waiting_below > 0) else {
            return Ok(false);
        };
        let query = Query { span, held: Modes::EMPTY, waiting: Modes::ALL, before: Rank::LAST };
        for entry in state.tree.waiting_after(&self.records, resource, query, Rank::HELD, usize::MAX)? {
            let session = self.records.session(entry.session)?;
            if session.is_some_and(|session| session.ancestors.contains(&id)) && !keeps(&entry) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Changes a held claim and updates its entry in the tree.
    fn narrow(
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
}
