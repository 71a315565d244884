//! The waiters that a newer request of their job supersedes.

use super::*;
use crate::past::Superseded;
use crate::tables::SUPERSEDED_MAX;

impl<R: Records> LockTable<R> {
    /// The waiters that a new request supersedes, in the order in which they leave: those of its
    /// job that wait for one of its resources, without its ancestors. Looks at the first
    /// [`SUPERSEDED_MAX`] waiting claims of its resources.
    pub(super) fn superseded(&self, request: &Request) -> Result<Vec<SessionId>, R::Error> {
        let mut found = Vec::new();
        let mut left = if request.job.supersedes { SUPERSEDED_MAX } else { 0 };
        let query = Query { span: &Span::Whole, held: Modes::EMPTY, waiting: Modes::ALL, before: Rank::LAST };
        for name in request::resources(&request.claims) {
            let Some(state) = self.records.resource(name)?.filter(|state| state.waiting > 0 && left > 0) else {
                continue;
            };
            let mut waiters = state.tree.waiting_after(&self.records, name, query, Rank::HELD, left)?;
            left -= waiters.len();
            waiters.dedup_by_key(|entry| entry.session);
            for Entry { session: id, .. } in waiters {
                let session = self.records.session(id)?.filter(|session| session.job.name == request.job.name);
                if session.is_some() && !request.ancestors.contains(&id) && !found.contains(&id) {
                    found.push(id);
                }
            }
        }
        Ok(found)
    }

    /// Removes the waiters that a request supersedes, and adds them to those to wake: they find out
    /// when they ask again. Returns what they waited for.
    pub(super) fn supersede(
        &mut self,
        now: StoreTime,
        superseded: &[SessionId],
        woken: &mut Vec<SessionId>,
    ) -> Result<Vec<Freed>, R::Error> {
        let mut freed = Vec::new();
        for id in superseded {
            freed.extend(self.remove(now, *id, Leaving::Released(None))?);
        }
        woken.extend(superseded);
        Ok(freed)
    }

    /// The request that has superseded one that returns to its place, if there is one.
    pub(super) fn superseding(
        &self,
        now: StoreTime,
        request: &Request,
        place: Place,
    ) -> Result<Option<Superseded>, R::Error> {
        for name in request::resources(&request.claims) {
            let past = remember::past(&self.records, now, name)?;
            if let Some(superseded) = past.and_then(|past| past.superseded(&request.job.name, place.number).cloned()) {
                return Ok(Some(superseded));
            }
        }
        Ok(None)
    }
}
