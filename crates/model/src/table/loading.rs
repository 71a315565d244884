//! Loads the sessions of a reading into a table of its own, so that one place decides who blocks
//! whom.

use std::collections::BTreeMap;

use super::LockTable;
use crate::conflict::{self, Asker, Blockers, Extent};
use crate::records::{ClaimRecord, Records as _, Session};
use crate::request::SessionId;

impl LockTable {
    /// A table with these sessions. On each resource it has at most so many claims, the held ones
    /// first and then the first of the queue. Overtakers are noted as if the waiters had come one
    /// after another.
    pub(crate) fn of(sessions: &BTreeMap<SessionId, Session>, claims_max: u32) -> Self {
        let mut table = Self::default();
        let mut in_order: Vec<_> = sessions.iter().collect();
        in_order.sort_unstable_by_key(|(id, session)| (session.place(), **id));
        for (id, session) in in_order {
            let Ok(()) = table.enter(*id, session.clone(), claims_max);
        }
        table
    }

    /// The same table, with those of its waiters noted as overtakers that `is_noted` tells.
    pub(crate) fn with_noted(
        &self,
        sessions: &BTreeMap<SessionId, Session>,
        is_noted: impl Fn(&Session) -> bool,
    ) -> Self {
        let mut records = self.records.clone();
        for (id, session) in sessions {
            for name in session.resources() {
                let Ok(state) = records.take_resource(name);
                let mut state = state.unwrap_or_default();
                if is_noted(session) {
                    state.overtakers.insert(*id);
                } else {
                    state.overtakers.remove(id);
                }
                let Ok(()) = records.put_resource(name, state);
            }
        }
        Self::new(records)
    }

    /// All sessions that block a waiting claim of a session.
    pub(crate) fn all_blockers(&self, id: SessionId, session: &Session, record: &ClaimRecord) -> Blockers {
        let needs = session.slots_needed(record);
        let asker = Asker::known(id, &session.ancestors);
        let Ok(found) = conflict::search(&self.records, &record.claim, needs, asker, record.rank, Extent::All);
        found
    }
}
