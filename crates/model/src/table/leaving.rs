//! How sessions leave the table: by a release, by expiry, by death, by a break, or tired of
//! waiting.

use super::*;
use crate::past::End;
use crate::request::CLAIMS_MAX;

impl<R: Records> LockTable<R> {
    pub(super) fn expire(&mut self, now: StoreTime, granted: &mut Vec<SessionId>) -> Result<Vec<SessionId>, R::Error> {
        let mut expired = Vec::new();
        let mut freed = Vec::new();
        // All expired sessions are removed before any waiter is granted (invariant 6). Otherwise a
        // waiter could get a grant at the instant at which its own lease ends.
        while self.portion.is_none_or(|left| expired.len() < left && freed.len() < CLAIMS_MAX)
            && let Some(id) = self.records.due(now)?
        {
            freed.extend(self.remove(now, id, Leaving::Expired)?);
            expired.push(id);
        }
        self.portion = self.portion.map(|left| if freed.len() < CLAIMS_MAX { left - expired.len() } else { 0 });
        self.settle_all(now, freed, granted)?;
        Ok(expired)
    }

    pub(super) fn take_away(
        &mut self,
        now: StoreTime,
        resource: &Resource,
        only: Option<SessionId>,
        by: Option<Process>,
        granted: &mut Vec<SessionId>,
    ) -> Result<Reply, R::Error> {
        let mut holders = self.sessions_of(resource, Rank::is_held)?;
        holders.retain(|holder| only.is_none_or(|only| *holder == only));
        let mut leaving = holders.clone();
        if let Some(by) = by {
            leaving.clear();
            for id in &holders {
                let Some(mut session) = self.records.session(*id)? else { continue };
                if session.phase != Phase::Held {
                    leaving.push(*id);
                } else {
                    let at = session.revoked.map_or(now, |revoked| revoked.at);
                    session.revoked = Some(Revocation { at, by: by.clone() });
                    self.records.put_session(*id, session)?;
                }
            }
        }
        self.leave(now, &leaving, Leaving::Broken, granted)?;
        Ok(Reply::Broken(holders))
    }

    /// Ends a grant or a wait. The end of a run leaves a kept hold if the hold has to stay and
    /// nobody has revoked it. A release that says how the run ended does not end that kept hold,
    /// because it may be a repetition.
    pub(super) fn release(
        &mut self,
        now: StoreTime,
        id: SessionId,
        end: Option<End>,
        granted: &mut Vec<SessionId>,
    ) -> Result<Reply, R::Error> {
        let Some(mut session) = self.records.session(id)? else { return Ok(Reply::Unknown) };
        let end = end.map(|end| if session.revoked.is_some() { end.of_revoked() } else { end });
        if let (Some(end), None) = (end, session.job.keep_for) {
            let was_kept = session.is_kept();
            if let Some(until) = session.keep_after_run(now) {
                if !was_kept {
                    remember::ran(&mut self.records, now, &session, end)?;
                    self.records.put_session(id, session)?;
                }
                return Ok(Reply::KeptUntil(until));
            }
        }
        if !session.is_holder() {
            let claims = session.requested();
            remember::has_left(&mut self.records, now, &session.ungranted(&claims))?;
        }
        self.leave(now, &[id], Leaving::Released(end), granted)?;
        Ok(Reply::Released(session.tokens()))
    }

    /// Ends a wait. A session that was granted its request in the meantime keeps the grant.
    pub(super) fn give_up(
        &mut self,
        now: StoreTime,
        id: SessionId,
        granted: &mut Vec<SessionId>,
    ) -> Result<Reply, R::Error> {
        let Some(session) = self.records.session(id)? else { return Ok(Reply::Unknown) };
        if session.is_holder() {
            return Ok(standing(now, &session));
        }
        let claims = session.requested();
        let streak = remember::is_busy(&mut self.records, now, &session.ungranted(&claims), WaitEnd::Busy)?;
        self.leave(now, &[id], Leaving::Released(None), granted)?;
        Ok(Reply::Busy { blockers: Vec::new(), streak })
    }

    /// Removes a session whose process is dead. A kept hold has no process, and stays.
    pub(super) fn reap(
        &mut self,
        now: StoreTime,
        id: SessionId,
        ended: Option<StoreTime>,
        granted: &mut Vec<SessionId>,
    ) -> Result<Reply, R::Error> {
        let Some(session) = self.records.session(id)? else { return Ok(Reply::Unknown) };
        if session.is_kept() {
            return Ok(standing(now, &session));
        }
        self.leave(now, &[id], Leaving::Dead(ended), granted)?;
        Ok(Reply::Released(session.tokens()))
    }

    /// Removes sessions, then grants the waiters that they blocked.
    fn leave(
        &mut self,
        now: StoreTime,
        sessions: &[SessionId],
        leaving: Leaving,
        granted: &mut Vec<SessionId>,
    ) -> Result<(), R::Error> {
        let mut freed = Vec::new();
        for session in sessions {
            freed.extend(self.remove(now, *session, leaving)?);
        }
        self.settle_all(now, freed, granted)
    }

    /// Removes a session and returns the claims that it held or waited for. The list is empty for
    /// an unknown session.
    pub(super) fn remove(&mut self, now: StoreTime, id: SessionId, leaving: Leaving) -> Result<Vec<Freed>, R::Error> {
        let Some(session) = self.records.session(id)? else { return Ok(Vec::new()) };
        remember::leaves(&mut self.records, now, &session, leaving)?;
        self.records.remove_session(id)?;
        let mut freed = Vec::with_capacity(session.claims.len());
        for (index, record) in session.claims.iter().enumerate() {
            let name = record.claim.resource.clone();
            let mut state = self.records.take_resource(&name)?.unwrap_or_default();
            state.tree.remove(&mut self.records, &name, &entry(id, index, record))?;
            if record.rank.is_held() {
                state.held -= 1;
            } else {
                state.count_leaving(id, &session.ancestors);
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
            let Claim { mode, span, .. } = record.claim.clone();
            freed.push(Freed { resource: name, span, modes: blocked_by(mode) });
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
}
