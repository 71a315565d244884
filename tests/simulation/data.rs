//! What a server knows about locks, which a restart or a failover may lose.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::StoreTime;
use crate::lock::index::{Entry, Rank};
use crate::lock::op::{Op, Outcome, Reply};
use crate::lock::records::{ClaimRecord, Records as _};
use crate::lock::request::{Claim, SessionId};
use crate::lock::resource::Resource;
use crate::lock::table::LockTable;
use crate::store::redis::codec::ScriptReply;

#[derive(Clone, Default)]
pub(super) struct Data {
    pub(super) table: LockTable,
    pub(super) channels: BTreeMap<SessionId, Channel>,
    /// The last number of a queued request.
    pub(super) seq: u64,
    /// The resources that anybody has asked for.
    pub(super) used: BTreeSet<Resource>,
    /// The leases of sessions that were renewed resource by resource.
    parts: BTreeMap<SessionId, BTreeMap<Resource, StoreTime>>,
    /// The latest instant of a change, or the highest token.
    clock: StoreTime,
}

/// The channel of a session.
#[derive(Clone)]
pub(super) struct Channel {
    pub(super) name: String,
    /// Whether the session said that it is subscribed.
    pub(super) is_listening: bool,
    /// The number of the request in the queue; 0 where it was granted at once.
    pub(super) seq: u64,
}

/// A change, which a replica makes too.
#[derive(Clone)]
pub(super) enum Effect {
    Apply {
        now: StoreTime,
        op: Op,
    },
    Listen(SessionId, Channel),
    /// A waiter gets this number in the queue.
    Number(SessionId, u64),
}

/// Unwraps a result of records in memory, which never fail.
pub(super) fn sure<T>(result: Result<T, std::convert::Infallible>) -> T {
    let Ok(value) = result;
    value
}

impl Data {
    /// The instant of a script: time never goes back, whatever the clock says. The table forgets the
    /// last token of a resource that nobody uses, which the scripts keep. So the time exceeds every
    /// token.
    pub(super) fn time(&self, now: StoreTime) -> StoreTime {
        now.max(self.clock + Duration::from_micros(1))
    }

    /// Applies an operation and forgets the channels of the sessions that have left.
    pub(super) fn apply(&mut self, now: StoreTime, op: Op) -> Outcome {
        let subject = match &op {
            Op::Acquire(request) => Some(request.session),
            Op::Renew(id) | Op::Release(id) | Op::Reap(id) => Some(*id),
            _ => None,
        };
        if let Op::Acquire(request) = &op {
            let new = request.claims.iter().map(|claim| &claim.resource).filter(|name| !self.used.contains(*name));
            let new: Vec<_> = new.cloned().collect();
            self.used.extend(new);
        }
        let outcome = sure(self.table.apply(now, op));
        let records = self.table.records();
        let has_left = |id: &&SessionId| records.get(**id).is_none();
        for id in outcome.expired.iter().chain(subject.as_ref().filter(has_left)) {
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

    /// Gives a waiter this number in the queue.
    pub(super) fn number(&mut self, id: SessionId, seq: u64) {
        self.seq = self.seq.max(seq);
        self.channels.entry(id).and_modify(|channel| channel.seq = seq);
        let Some(mut session) = self.table.records().get(id).cloned() else { return };
        let records = self.table.records_mut();
        for (claim, record) in (0..).zip(&mut session.claims) {
            let ClaimRecord { claim: Claim { resource: name, mode, span, .. }, shares, .. } = record.clone();
            let mut state = sure(records.take_resource(&name)).expect("a resource with a waiter has a state");
            let (lower, upper) = (span.lower().clone(), span.upper().clone());
            let mut entry = Entry { lower, upper, mode, rank: record.rank, session: id, claim, shares };
            sure(state.tree.remove(records, &name, &entry));
            record.rank = Rank::waiting(seq, record.rank < Rank::FIRST_ORDINARY);
            entry.rank = record.rank;
            sure(state.tree.insert(records, &name, entry));
            sure(records.put_resource(&name, state));
        }
        sure(records.put_session(id, session));
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
            Effect::Apply { now, op } => drop(self.apply(now, op)),
            Effect::Listen(session, channel) => drop(self.channels.insert(session, channel)),
            Effect::Number(session, seq) => self.number(session, seq),
        }
    }
}
