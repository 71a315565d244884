//! What a server knows about locks, which a restart or a failover may lose.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::StoreTime;
use crate::lock::op::{Op, Outcome, Reply};
use crate::lock::records::{Records as _, Session};
use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::lock::table::LockTable;
use crate::store::redis::codec::{Lease, ScriptReply};

#[derive(Clone, Default)]
pub(super) struct Data {
    pub(super) table: LockTable,
    pub(super) channels: BTreeMap<SessionId, Channel>,
    /// The resources that anybody has asked for.
    pub(super) used: BTreeSet<Resource>,
    /// The leases of sessions that were renewed resource by resource.
    parts: BTreeMap<SessionId, BTreeMap<Resource, StoreTime>>,
    /// The latest instant of a change, or the highest token.
    pub(super) clock: StoreTime,
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
    Apply { now: StoreTime, op: Box<Op> },
    Listen(SessionId, Channel),
}

/// Unwraps a result of records in memory, which never fail.
pub(super) fn sure<T>(result: Result<T, std::convert::Infallible>) -> T {
    let Ok(value) = result;
    value
}

impl Data {
    /// The instant of a script: time never goes back, whatever the clock says. The table forgets
    /// the last token of a resource that nobody uses, which the scripts keep. So the time exceeds
    /// every token.
    pub(super) fn time(&self, now: StoreTime) -> StoreTime {
        now.max(self.clock + Duration::from_micros(1))
    }

    /// Applies an operation and forgets the channels of the sessions that have left.
    pub(super) fn apply(&mut self, now: StoreTime, op: Op) -> Outcome {
        let subject = match &op {
            Op::Acquire(request) | Op::Return { request, .. } => Some(request.session),
            Op::Renew(id)
            | Op::Release { session: id, .. }
            | Op::GiveUp(id)
            | Op::Cancel(id)
            | Op::Reap { session: id, .. } => Some(*id),
            _ => None,
        };
        if let Op::Acquire(request) | Op::Return { request, .. } = &op {
            let new = request.claims.iter().map(|claim| &claim.resource).filter(|name| !self.used.contains(*name));
            let new: Vec<_> = new.cloned().collect();
            self.used.extend(new);
        }
        let outcome = sure(self.table.apply(now, op));
        let records = self.table.records();
        let has_left = |id: &&SessionId| records.get(**id).is_none();
        let broken = if let Reply::Broken(broken) = &outcome.reply { broken.as_slice() } else { &[] };
        for id in outcome.expired.iter().chain(broken).chain(subject.as_ref().filter(has_left)) {
            self.channels.remove(id);
            self.parts.remove(id);
        }
        subject.map(|id| self.parts.remove(&id));
        let granted = outcome.granted.iter().filter_map(|id| records.get(*id));
        let own = if let Reply::Granted { tokens, .. } = &outcome.reply { tokens.as_slice() } else { &[] };
        let token = granted.flat_map(|session| session.tokens()).chain(own.iter().copied()).max();
        self.clock = self.clock.max(now).max(StoreTime::from_micros(token.unwrap_or_default()));
        outcome
    }

    /// The key that has the lease of a session on a resource.
    pub(super) fn lease_key(&self, id: SessionId, resource: &Resource) -> Lease {
        let session = sure(self.table.records().session(id));
        let claims_on = |session: &Session| session.claims.iter().filter(|its| its.claim.resource == *resource).count();
        let is_plain = session.is_some_and(|session| claims_on(&session) == 1 && session.ancestors.is_empty());
        let is_sole = is_plain && sure(self.table.sessions_of(resource, |_| true)).len() == 1;
        if is_sole { Lease::Sole } else { Lease::Shared }
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
        *part = (now + ttl).max(*part);
        session.expiry = parts.values().min().copied();
        sure(self.table.records_mut().put_session(id, session));
        ScriptReply::Renewed(ttl)
    }

    /// Repeats a change that the primary has made.
    pub(super) fn repeat(&mut self, effect: Effect) {
        match effect {
            Effect::Apply { now, op } => drop(self.apply(now, *op)),
            Effect::Listen(session, channel) => drop(self.channels.insert(session, channel)),
        }
    }
}
