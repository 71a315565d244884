//! What a server knows about locks, which a restart or a failover may lose.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::StoreTime;
use crate::lock::op::{Op, Outcome, Reply};
use crate::lock::records::Records as _;
use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::lock::table::LockTable;
use crate::store::redis::codec::ScriptReply;

#[derive(Clone, Default)]
pub(super) struct Data {
    pub(super) table: LockTable,
    pub(super) channels: BTreeMap<SessionId, Channel>,
    /// The resources that anybody has asked for.
    pub(super) used: BTreeSet<Resource>,
    /// The leases of sessions that were renewed resource by resource.
    parts: BTreeMap<SessionId, BTreeMap<Resource, StoreTime>>,
    /// The instant of the last change. Time never goes back, whatever the clock says.
    clock: StoreTime,
}

/// The channel of a session.
#[derive(Clone)]
pub(super) struct Channel {
    pub(super) name: String,
    /// Whether the session said that it is subscribed.
    pub(super) is_listening: bool,
}

/// A change, which a replica makes too.
#[derive(Clone)]
pub(super) enum Effect {
    Apply { now: StoreTime, op: Op, caller: Option<SessionId> },
    Listen(SessionId, Channel),
}

/// Unwraps a result of records in memory, which never fail.
pub(super) fn sure<T>(result: Result<T, std::convert::Infallible>) -> T {
    let Ok(value) = result;
    value
}

impl Data {
    /// The instant, which is never before the last change.
    pub(super) fn time(&self, now: StoreTime) -> StoreTime {
        now.max(self.clock)
    }

    /// Applies an operation and forgets the channels of the sessions that have left.
    pub(super) fn apply(&mut self, now: StoreTime, op: Op, caller: Option<SessionId>) -> Outcome {
        self.clock = self.time(now);
        if let Op::Acquire(request) = &op {
            self.used.extend(request.claims.iter().map(|claim| claim.resource.clone()));
        }
        let outcome = sure(self.table.apply(self.clock, op));
        let stays = matches!(outcome.reply, Reply::Granted { .. } | Reply::Waiting);
        self.parts.retain(|id, _| !outcome.expired.contains(id) && Some(*id) != caller);
        self.channels.retain(|id, _| !outcome.expired.contains(id) && (stays || Some(*id) != caller));
        outcome
    }

    /// Renews the lease of a session on one resource. The session is lost as soon as one of its
    /// leases is over.
    pub(super) fn renew_alone(
        &mut self,
        id: SessionId,
        resource: &Resource,
        now: StoreTime,
        ttl: Duration,
    ) -> ScriptReply {
        let session = sure(self.table.records().session(id));
        let Some((mut session, expiry)) = session.and_then(|session| session.expiry.map(|expiry| (session, expiry)))
        else {
            return ScriptReply::Unknown;
        };
        let names = session.claims.iter().map(|record| record.claim.resource.clone());
        let parts = self.parts.entry(id).or_insert_with(|| names.map(|name| (name, expiry)).collect());
        let Some(part) = parts.get_mut(resource).filter(|part| **part > now) else { return ScriptReply::Unknown };
        *part = now + ttl;
        session.expiry = parts.values().min().copied();
        sure(self.table.records_mut().put_session(id, session));
        ScriptReply::Renewed(ttl)
    }

    /// Repeats a change that the primary has made.
    pub(super) fn repeat(&mut self, effect: Effect) {
        match effect {
            Effect::Apply { now, op, caller } => drop(self.apply(now, op, caller)),
            Effect::Listen(session, channel) => drop(self.channels.insert(session, channel)),
        }
    }
}
