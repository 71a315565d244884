//! What a server knows about locks, which a restart or a failover may lose.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::database::{Database, Keys};
use rlock_model::index::{Entry, Rank};
use rlock_model::op::{Op, Outcome, Reply};
use rlock_model::records::{ClaimRecord, Phase, Records as _, ResourceState, Session};
use rlock_model::request::{Claim, Process, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::table::LockTable;
use rlock_redis::codec::{Lease, ScriptReply};
use rlock_sys::clock::StoreTime;

#[derive(Clone, Default)]
pub(super) struct Data {
    /// The database that the scripts change, if the server has one. The table then shows what the
    /// scripts list.
    pub(super) database: Option<Database>,
    pub(super) table: LockTable,
    pub(super) channels: BTreeMap<SessionId, Channel>,
    /// The resources that anybody has asked for.
    pub(super) used: BTreeSet<Resource>,
    /// The leases of sessions that were renewed resource by resource.
    parts: BTreeMap<SessionId, BTreeMap<Resource, StoreTime>>,
    /// The latest instant of a change, or the highest token.
    clock: StoreTime,
    /// With a database: the clock of each resource.
    clocks: BTreeMap<Resource, StoreTime>,
    /// With a database: the end of the lease of each session on each resource, and its begin.
    leases: BTreeMap<SessionId, BTreeMap<Resource, (Option<StoreTime>, StoreTime)>>,
    /// With a database: the requests.
    pub(super) requests: BTreeMap<SessionId, Request>,
    /// With a database: the state of each resource that the table shows.
    states: BTreeMap<Resource, Vec<u8>>,
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
    Apply {
        now: StoreTime,
        op: Box<Op>,
    },
    Listen(SessionId, Channel),
    /// Something has changed in the database at these resources.
    Copy(Vec<Resource>),
}

/// Unwraps a result of records in memory, which never fail.
pub(super) fn sure<T>(result: Result<T, std::convert::Infallible>) -> T {
    let Ok(value) = result;
    value
}

/// A waiter with the claims of its request on a resource.
fn waiter(request: &Request, name: &Resource, seq: u64, expiry: Option<StoreTime>, since: StoreTime) -> Session {
    let claims = request.claims.iter().filter(|claim| claim.resource == *name).map(|claim| ClaimRecord {
        claim: claim.clone(),
        rank: Rank::waiting(seq),
        token: 0,
        shares: false,
        slot: None,
    });
    Session {
        ancestors: request.ancestors.clone(),
        claims: claims.collect(),
        phase: Phase::Waiting,
        asked: since,
        since,
        expiry,
        terms: request.terms,
        job: request.job.clone(),
        last: None,
        process: Process::default(),
        revoked: None,
        later: Vec::new(),
    }
}

impl Data {
    /// The instant of a script: time never goes back, whatever the clock says. The table forgets
    /// the last token of a resource that nobody uses, which the scripts keep. So the time exceeds
    /// every token.
    pub(super) fn time(&self, now: StoreTime) -> StoreTime {
        now.max(self.clock + Duration::from_micros(1))
    }

    /// The clock of some resources: with a database, each has one of its own.
    pub(super) fn clock<'r>(&self, names: impl IntoIterator<Item = &'r Resource>) -> StoreTime {
        let own = names.into_iter().filter_map(|name| self.clocks.get(name)).copied().max();
        if self.database.is_some() { own.unwrap_or_default() } else { self.clock }
    }

    /// Whether a clock of these data is ahead of that of others.
    pub(super) fn is_ahead_of(&self, other: &Self) -> bool {
        self.clock > other.clock || self.clocks.iter().any(|(name, clock)| *clock > other.clock([name]))
    }

    /// Applies an operation and forgets the channels of the sessions that have left.
    pub(super) fn apply(&mut self, now: StoreTime, op: Op) -> Outcome {
        let subject = match &op {
            Op::Acquire { request, .. } => Some(request.session),
            Op::Renew(id) | Op::Release { session: id, .. } | Op::GiveUp(id) | Op::Reap { session: id, .. } => {
                Some(*id)
            }
            _ => None,
        };
        if let Op::Acquire { request, .. } = &op {
            let new = request.claims.iter().map(|claim| &claim.resource).filter(|name| !self.used.contains(*name));
            let new: Vec<_> = new.cloned().collect();
            self.used.extend(new);
        }
        let outcome = sure(self.table.apply(now, op));
        let records = self.table.records();
        let has_left = |id: &&SessionId| records.get(**id).is_none();
        let broken = if let Reply::Broken(broken) = &outcome.reply { broken.as_slice() } else { &[] };
        let broken = broken.iter().filter(has_left);
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
            Effect::Copy(names) => self.used.extend(names),
        }
    }

    /// Data without a session, in a database if these are in one.
    pub(super) fn emptied(&self) -> Self {
        Self { database: self.database.as_ref().map(Database::another), ..Self::default() }
    }

    /// Lets the table show what the database has, whatever it has shown before.
    pub(super) fn reload(&mut self) {
        self.states.clear();
        let names: Vec<_> = self.used.iter().cloned().collect();
        let keys = self.database.as_ref().map(|database| database.read(&names)).unwrap_or_default();
        self.show(keys, true);
    }

    /// Lets the table show what the database has of some resources. With `is_other`, a record may
    /// differ though its state is the same.
    pub(super) fn show(&mut self, keys: Vec<Keys>, is_other: bool) {
        let is_same = |keys: &Keys| !is_other && self.states.get(&keys.name) == Some(&keys.state);
        let (same, other): (Vec<_>, Vec<_>) = keys.into_iter().partition(is_same);
        same.iter().for_each(|keys| self.show_leases(keys));
        let names: Vec<_> = other.iter().map(|keys| &keys.name).collect();
        let holders = match &self.database {
            Some(database) if !names.is_empty() => database.holders(&names),
            _ => return,
        };
        let mut changed = BTreeMap::new();
        for (Keys { name, state, leases, queue }, (clock, holders)) in other.into_iter().zip(holders) {
            let waiters = queue.into_iter().filter_map(|(id, seq)| {
                let since = self.leases.get(&id).and_then(|parts| parts.get(&name)).map_or(clock, |(_, since)| *since);
                Some((id, waiter(self.requests.get(&id)?, &name, seq, leases.get(&id).copied(), since)))
            });
            let mut listed: BTreeMap<_, _> = waiters.chain(holders).collect();
            let before = sure(self.table.sessions_of(&name, |_| true));
            let all: BTreeSet<_> = before.into_iter().chain(listed.keys().copied()).collect();
            for id in &all {
                self.show_session(*id, &name, listed.remove(id));
            }
            self.clocks.insert(name.clone(), clock);
            self.states.insert(name.clone(), state);
            changed.insert(name, all);
        }
        // A claim may have another number in its session now.
        for id in changed.values().flatten().copied().collect::<BTreeSet<_>>() {
            let names = self.table.records().get(id).map(Session::resources).unwrap_or_default();
            let elsewhere: Vec<_> = names.into_iter().filter(|name| !changed.contains_key(*name)).cloned().collect();
            for name in elsewhere {
                let all = sure(self.table.sessions_of(&name, |_| true));
                changed.insert(name, all.into_iter().collect());
            }
        }
        changed.iter().for_each(|(name, sessions)| self.show_claims(name, sessions));
    }

    /// Lets the table show the ends of the leases at one resource.
    fn show_leases(&mut self, keys: &Keys) {
        for (id, end) in &keys.leases {
            let Some(parts) = self.leases.get_mut(id) else { continue };
            match parts.get_mut(&keys.name) {
                Some((expiry, _)) if *expiry != Some(*end) => *expiry = Some(*end),
                _ => continue,
            }
            let expiry = parts.values().filter_map(|(expiry, _)| *expiry).min();
            if let Some(session) = self.table.records().get(*id).cloned() {
                sure(self.table.records_mut().put_session(*id, Session { expiry, ..session }));
            }
        }
    }

    /// Lets the table show a session as the scripts list it at one resource. Its claims on others
    /// stay as they are.
    fn show_session(&mut self, id: SessionId, name: &Resource, listed: Option<Session>) {
        let old = self.table.records().get(id).cloned();
        let parts = self.leases.entry(id).or_default();
        parts.remove(name);
        parts.extend(listed.as_ref().map(|session| (name.clone(), (session.expiry, session.since))));
        let elsewhere = old.iter().flat_map(|old| &old.claims).filter(|record| record.claim.resource != *name);
        let mut claims: Vec<_> = elsewhere.cloned().collect();
        claims.extend(listed.iter().flat_map(|session| &session.claims).cloned());
        if claims.is_empty() {
            self.leases.remove(&id);
            return sure(self.table.records_mut().remove_session(id));
        }
        // The claims come in the order of the request.
        let order = self.requests.get(&id).map(|request| request.claims.as_slice()).unwrap_or_default();
        let mut sorted = Vec::with_capacity(claims.len());
        for claim in order {
            let next = claims.iter().position(|record| record.claim.resource == claim.resource);
            sorted.extend(next.map(|next| claims.remove(next)));
        }
        sorted.append(&mut claims);
        // Each resource has a clock of its own. The first lease to end is the one that counts.
        let expiry = parts.values().filter_map(|(expiry, _)| *expiry).min();
        let since = parts.values().map(|(_, since)| *since).min().unwrap_or_default();
        if let Some(session) = listed.or(old) {
            let session = Session { claims: sorted, expiry, since, ..session };
            sure(self.table.records_mut().put_session(id, session));
        }
    }

    /// Lets the index of a resource have the claims of these sessions.
    fn show_claims(&mut self, name: &Resource, sessions: &BTreeSet<SessionId>) {
        let records = self.table.records_mut();
        let mut state = sure(records.take_resource(name)).unwrap_or_default();
        for entry in sure(state.tree.entries(records, name)) {
            sure(state.tree.remove(records, name, &entry));
        }
        // The search for a deadlock counts on these numbers.
        state = ResourceState { tree: state.tree, ..ResourceState::default() };
        for id in sessions {
            let Some(session) = records.get(*id).cloned() else { continue };
            let here = session.claims.iter().enumerate().filter(|(_, record)| record.claim.resource == *name);
            for (index, record) in here {
                let (lower, upper) = (record.claim.span.lower().clone(), record.claim.span.upper().clone());
                let ClaimRecord { claim: Claim { mode, slots, .. }, rank, shares, slot, .. } = *record;
                let entry = Entry { lower, upper, mode, rank, session: *id, claim: index as u32, shares, slot, slots };
                sure(state.tree.insert(records, name, entry));
                state.held += u32::from(rank.is_held());
                state.waiting += u32::from(!rank.is_held());
                state.waiting_below += u32::from(!rank.is_held() && !session.ancestors.is_empty());
                state.slot_claims += u32::from(slots.is_some());
                state.shared_slots += u32::from(shares);
            }
        }
        if state.held + state.waiting > 0 {
            sure(records.put_resource(name, state));
        }
    }
}
