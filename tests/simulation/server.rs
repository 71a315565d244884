//! The server: the real lock table behind the replies of the scripts.
//!
//! The server differs from the scripts in one way: a waiter that was passed over returns to the end
//! of the queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use super::cluster::KINDS;
use super::data::{Channel, Data, Effect, sure};
use super::wire::{Call, Operation, Script};
use crate::clock::StoreTime;
use crate::lock::op::{Op, Outcome, Reply, ResourceListing};
use crate::lock::records::{Records as _, Session};
use crate::lock::request::{Request, SessionId};
use crate::lock::resource::Resource;
use crate::store::Obstruction;
use crate::store::redis::codec::ScriptReply;

const NO_SCRIPT: &str = "NOSCRIPT No matching script.";
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// The number of snapshots that a server may return to.
const SNAPSHOTS: usize = 10;

#[derive(Default)]
pub(super) struct Server {
    pub(super) data: Data,
    /// Whether the server refuses changes.
    pub(super) is_replica: bool,
    /// The changes that the replicas do not have, if there are replicas.
    pub(super) effects: Option<Vec<Effect>>,
    snapshots: VecDeque<Data>,
    scripts: BTreeSet<Script>,
    /// The connections that are subscribed to a channel.
    subscribers: BTreeMap<String, BTreeSet<usize>>,
    /// The number of calls that find more expired sessions than one call removes.
    pub(super) crowd: u32,
}

/// What a call leads to.
pub(super) struct Answer {
    /// The reply, or the text of an error.
    pub(super) reply: Result<ScriptReply, &'static str>,
    /// The messages, each with the connection that receives it and its channel.
    pub(super) messages: Vec<(usize, String)>,
}

impl Server {
    pub(super) fn new(is_replica: bool) -> Self {
        Self { is_replica, ..Self::default() }
    }

    pub(super) fn call(&mut self, call: &Call, now: StoreTime) -> Answer {
        if call.is_source {
            self.scripts.insert(call.script);
        }
        if !self.scripts.contains(&call.script) {
            return Answer { reply: Err(NO_SCRIPT), messages: Vec::new() };
        }
        let now = self.data.time(now);
        let mut messages = Vec::new();
        let reply = self.need(call, now).map_or_else(|| self.execute(call, now, &mut messages), Ok);
        Answer { reply, messages }
    }

    /// The resources that the call has to name too: those of the sessions that it may remove or
    /// grant.
    fn need(&mut self, call: &Call, now: StoreTime) -> Option<ScriptReply> {
        if let Operation::Inspect | Operation::RenewAlone { .. } = call.operation {
            return None;
        }
        if self.crowd > 0 {
            self.crowd -= 1;
            return Some(ScriptReply::Need(Vec::new()));
        }
        let mut missing = BTreeSet::new();
        for resource in &call.resources {
            for id in sure(self.data.table.sessions_of(resource, |_| true)) {
                let Some(session) = self.session(id) else { continue };
                if !session.is_holder() || session.expiry.is_some_and(|expiry| expiry <= now) {
                    missing.extend(session.claims.into_iter().map(|record| record.claim.resource));
                }
            }
        }
        missing.retain(|name| !call.resources.contains(name));
        (!missing.is_empty()).then(|| ScriptReply::Need(missing.into_iter().collect()))
    }

    fn execute(
        &mut self,
        call: &Call,
        now: StoreTime,
        messages: &mut Vec<(usize, String)>,
    ) -> Result<ScriptReply, &'static str> {
        let (op, caller) = match &call.operation {
            Operation::Inspect => {
                return Ok(ScriptReply::Listing { now, resources: Vec::new(), sessions: Vec::new() });
            }
            Operation::RenewAlone { session, ttl } => {
                return Ok(self.data.renew_alone(*session, &call.resources[0], now, *ttl));
            }
            // Where there is nothing to renew or release, the script writes nothing.
            Operation::Renew { session, .. } | Operation::Release(session)
                if self.is_replica && self.session(*session).is_none() =>
            {
                return Ok(ScriptReply::Unknown);
            }
            _ if self.is_replica => return Err(READ_ONLY),
            Operation::Acquire { request, channel, listening } => {
                self.listen(request.session, Channel { name: channel.clone(), is_listening: *listening });
                (Op::Acquire(Request::clone(request)), request.session)
            }
            Operation::Renew { session, listening } => {
                if let Some(channel) = self.data.channels.get(session) {
                    self.listen(*session, Channel { is_listening: *listening, ..channel.clone() });
                }
                (Op::Renew(*session), *session)
            }
            Operation::Release(session) => (Op::Release(*session), *session),
            Operation::Downgrade { session, mode } => {
                let op = Op::Downgrade { session: *session, resource: call.resources[0].clone(), mode: *mode };
                return Ok(match self.apply(op, None, now, messages) {
                    Reply::Done => ScriptReply::Done,
                    Reply::Refused(refusal) => ScriptReply::Refused(refusal),
                    Reply::Unknown => ScriptReply::Unknown,
                    reply => panic!("a downgrade leads to {reply:?}"),
                });
            }
        };
        let reply = self.apply(op, Some(caller), now, messages);
        Ok(match reply {
            Reply::Granted { lease, tokens } => ScriptReply::Granted { lease, tokens },
            Reply::Waiting => self.place(caller, &call.resources, now),
            Reply::Busy(_) => ScriptReply::Busy(call.resources.iter().map(|name| self.obstruction(name)).collect()),
            Reply::Refused(refusal) => ScriptReply::Refused(refusal),
            Reply::Released(tokens) => ScriptReply::Released(tokens),
            Reply::Unknown => ScriptReply::Unknown,
            reply => panic!("no client asks for {reply:?}"),
        })
    }

    /// Applies an operation, wakes the sessions that it grants, and passes over those that nobody
    /// would wake.
    fn apply(
        &mut self,
        op: Op,
        caller: Option<SessionId>,
        now: StoreTime,
        messages: &mut Vec<(usize, String)>,
    ) -> Reply {
        let Outcome { reply, granted, .. } = self.change(op, caller, now);
        let mut granted = VecDeque::from(granted);
        while let Some(id) = granted.pop_front() {
            let listener = self.data.channels.get(&id).filter(|channel| channel.is_listening && caller != Some(id));
            if listener.is_some_and(|channel| !self.publish(&channel.name, messages)) {
                granted.extend(self.change(Op::Reap(id), Some(id), now).granted);
            }
        }
        reply
    }

    fn change(&mut self, op: Op, caller: Option<SessionId>, now: StoreTime) -> Outcome {
        if let Some(effects) = &mut self.effects {
            effects.push(Effect::Apply { now, op: op.clone(), caller });
        }
        self.data.apply(now, op, caller)
    }

    fn listen(&mut self, session: SessionId, channel: Channel) {
        if let Some(effects) = &mut self.effects {
            effects.push(Effect::Listen(session, channel.clone()));
        }
        self.data.channels.insert(session, channel);
    }

    /// Takes the changes that the replicas do not have.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        self.effects.as_mut().map(mem::take).unwrap_or_default()
    }

    fn publish(&self, channel: &str, messages: &mut Vec<(usize, String)>) -> bool {
        let Some(subscribers) = self.subscribers.get(channel) else { return false };
        messages.extend(subscribers.iter().map(|connection| (*connection, channel.to_owned())));
        true
    }

    fn place(&self, id: SessionId, resources: &[Resource], now: StoreTime) -> ScriptReply {
        let session = self.session(id).expect("a session that waits is in the table");
        let first = &session.claims[0];
        let ahead =
            sure(self.data.table.sessions_of(&first.claim.resource, |rank| !rank.is_held() && rank < first.rank));
        let others = resources.iter().flat_map(|name| sure(self.data.table.sessions_of(name, |_| true)));
        let next = others.filter_map(|other| self.session(other)?.expiry).min();
        ScriptReply::Waiting {
            // No session returns to its place, so the number is of no use.
            seq: 1,
            position: ahead.len() as u32 + 1,
            next: next.map(|expiry| expiry - now).filter(|next| !next.is_zero()),
        }
    }

    fn obstruction(&self, name: &Resource) -> Obstruction {
        ResourceListing { name: name.clone(), holders: Vec::new(), waiters: Vec::new() }.into()
    }

    pub(super) fn session(&self, id: SessionId) -> Option<Session> {
        sure(self.data.table.records().session(id))
    }

    pub(super) fn subscribe(&mut self, connection: usize, channel: String) {
        self.subscribers.entry(channel).or_default().insert(connection);
    }

    /// Takes over all data of a primary.
    pub(super) fn receive(&mut self, data: Data) {
        self.snapshots.clear();
        self.data = data;
    }

    /// Ends the subscriptions to some channels.
    pub(super) fn unsubscribe_all(&mut self, wanted: impl Fn(&str) -> bool) {
        self.subscribers.retain(|channel, _| !wanted(channel));
    }

    /// The resources that anybody has asked for.
    pub(super) fn used(&self) -> impl Iterator<Item = &Resource> {
        self.data.used.iter()
    }

    /// Which keys of a resource exist: the hash, the expiries, the queue, and the two sets of ends.
    pub(super) fn keys(&self, name: &Resource) -> [bool; KINDS] {
        let sessions = sure(self.data.table.sessions_of(name, |_| true));
        let is_queued = !sure(self.data.table.sessions_of(name, |rank| !rank.is_held())).is_empty();
        let is_in_use = !sessions.is_empty();
        [self.data.used.contains(name), is_in_use, is_queued, is_in_use, is_in_use]
    }

    pub(super) fn unsubscribe(&mut self, connection: usize, channel: &str) {
        let Some(subscribers) = self.subscribers.get_mut(channel) else { return };
        subscribers.remove(&connection);
        if subscribers.is_empty() {
            self.subscribers.remove(channel);
        }
    }

    /// The server has noticed the end of a connection.
    pub(super) fn disconnect(&mut self, connection: usize) {
        self.subscribers.retain(|_, subscribers| {
            subscribers.remove(&connection);
            !subscribers.is_empty()
        });
    }

    pub(super) fn take_snapshot(&mut self) {
        self.snapshots.truncate(SNAPSHOTS - 1);
        self.snapshots.push_front(self.data.clone());
    }

    pub(super) fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Restarts with the data of the snapshot of this age.
    ///
    /// No loss is undone by a later one. Otherwise a holder could not learn that another session
    /// held its lock in between.
    pub(super) fn return_to_snapshot(&mut self, age: usize) {
        self.snapshots.drain(..age.min(self.snapshots.len()));
        self.data = self.snapshots.front().cloned().unwrap_or_default();
    }

    pub(super) fn lose_all(&mut self) {
        self.snapshots.clear();
        self.data = Data::default();
    }

    /// Drops all sessions of a resource and tells them, as the scripts do when a key is lost.
    pub(super) fn lose_key(&mut self, name: &Resource, now: StoreTime) -> Vec<(usize, String)> {
        self.snapshots.clear();
        let mut messages = Vec::new();
        // The waiters leave first, so that the loss grants nothing to a session that it concerns.
        for is_held in [false, true] {
            for id in sure(self.data.table.sessions_of(name, |rank| rank.is_held() == is_held)) {
                if let Some(channel) = self.data.channels.get(&id) {
                    self.publish(&channel.name, &mut messages);
                }
                self.apply(Op::Reap(id), Some(id), now, &mut messages);
            }
        }
        messages
    }

    /// Whether no session is left.
    pub(super) fn is_empty(&self) -> bool {
        self.data.table.records().is_empty()
    }

    /// Drops the sessions whose leases are over.
    pub(super) fn expire(&mut self, now: StoreTime) {
        self.apply(Op::Expire, None, now, &mut Vec::new());
    }
}
