//! What a call of a script has done, as the scripts list its resources before and after.

use std::collections::{BTreeMap, BTreeSet};

use super::data::{Data, sure};
use super::server::{Consequences, Replied};
use super::wire::{Call, Operation};
use rlock_model::records::{Phase, Session};
use rlock_model::request::{self, SessionId};
use rlock_model::resource::Resource;
use rlock_redis::codec::ScriptReply;
use rlock_sys::clock::StoreTime;

/// The sessions with claims on the resources of a call, before the call.
pub(super) struct Before {
    sessions: BTreeMap<SessionId, Session>,
    /// The instant of the call.
    now: StoreTime,
}

/// The sessions with claims on these resources.
fn sessions_at(data: &Data, names: &[Resource]) -> BTreeMap<SessionId, Session> {
    let ids: BTreeSet<_> = names.iter().flat_map(|name| sure(data.table.sessions_of(name, |_| true))).collect();
    ids.into_iter().filter_map(|id| Some((id, data.table.records().get(id)?.clone()))).collect()
}

impl Before {
    pub(super) fn new(data: &Data, call: &Call, now: StoreTime) -> Self {
        // A call may declare further resources, whose clocks do not matter to the caller.
        let now = now.max(data.clock(call.resources.first()));
        Self { sessions: sessions_at(data, &call.resources), now }
    }

    /// The instant of the call.
    pub(super) fn now(&self) -> StoreTime {
        self.now
    }

    fn is_due(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|session| session.is_over(self.now))
    }

    /// Whether a session waited before the call, unless its place was over.
    fn waited(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|session| !session.is_holder()) && !self.is_due(id)
    }

    /// Tells what a call has done from what is left after it.
    pub(super) fn compare(&self, data: &Data, call: &Call, reply: &Replied) -> Consequences {
        let after = sessions_at(data, &call.resources);
        let caller = call.operation.session();
        let is_known = caller.is_some_and(|caller| self.sessions.contains_key(&caller) && !self.is_due(caller));
        let mut also = Consequences { now: self.now, ..Consequences::default() };
        let is_new = |(id, session): &(&SessionId, &Session)| {
            let before = self.sessions.get(*id).filter(|before| before.is_holder());
            session.is_holder() && before.is_none_or(|before| before.since < session.since)
        };
        let mut granted: Vec<_> = after.iter().filter(is_new).collect();
        granted.sort_by_key(|(id, session)| (Some(**id) == caller, session.tokens().into_iter().max()));
        also.granted = granted.into_iter().map(|(id, _)| *id).collect();
        let is_gone = |id: &&SessionId| !after.contains_key(*id) && self.waited(**id) && Some(**id) != caller;
        also.gone = self.sessions.keys().filter(is_gone).copied().collect();
        let Ok(reply) = reply else { return also };
        match (&call.operation, reply) {
            (_, ScriptReply::Need(_)) => return also,
            (Operation::Acquire { request, place, .. }, _) => {
                also.session = caller;
                also.joined = caller.filter(|_| !is_known).map(|caller| (caller, also.granted.len()));
                let waiting = self.sessions.values().filter(|session| !session.is_holder());
                let claims = waiting.flat_map(|session| &session.claims).map(|record| &record.claim);
                let names = request::resources(&request.claims);
                also.crowd = claims.filter(|claim| names.contains(&&claim.resource)).count();
                let has_place = matches!(reply, ScriptReply::Waiting { seq, .. } if seq == place);
                let is_moved = !is_known && *place > 0 && matches!(reply, ScriptReply::Waiting { .. }) && !has_place;
                also.displaced = caller.filter(|_| is_moved);
            }
            (Operation::Renew { .. } | Operation::Release { .. } | Operation::GiveUp(_), _) => also.session = caller,
            (Operation::Break { revokes }, ScriptReply::Broken { sessions, .. }) => {
                let stays = |session: &Session| *revokes && session.phase == Phase::Held;
                let (revoked, broken): (Vec<_>, Vec<_>) = sessions.iter().partition(|(_, session)| stays(session));
                also.revoked = revoked.into_iter().map(|(id, _)| *id).collect();
                also.broken = broken.into_iter().map(|(id, _)| *id).collect();
            }
            _ => {}
        }
        // A waiter may be granted its request and release it in one call.
        if let ScriptReply::Released(_) | ScriptReply::KeptUntil(_) = reply {
            let has_held = matches!(reply, ScriptReply::Released(tokens) if tokens.iter().any(|token| *token > 0));
            also.granted.splice(0..0, caller.filter(|id| has_held && self.waited(*id)));
        }
        // Nothing tells whether a grant came before the operation or after it, if sessions that
        // were due blocked it.
        let has_due = self.sessions.keys().any(|id| self.is_due(*id));
        let comes_first = has_due || matches!(call.operation, Operation::Acquire { .. });
        also.granted_before = if comes_first { also.granted.len() } else { 0 };
        also
    }
}
