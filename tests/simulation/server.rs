//! The server: the real lock table behind the replies of the scripts.
//!
//! The server differs from the scripts in one way: a waiter that was passed over returns to the end
//! of the queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::wire::{Call, Operation, Script};
use crate::clock::StoreTime;
use crate::lock::op::{Op, Outcome, Reply, ResourceListing};
use crate::lock::records::{Records as _, Session};
use crate::lock::request::{Request, SessionId};
use crate::lock::resource::Resource;
use crate::lock::table::LockTable;
use crate::store::Obstruction;
use crate::store::redis::codec::ScriptReply;

/// The number of snapshots that a server may return to.
const SNAPSHOTS: usize = 10;

/// What a restart may lose.
#[derive(Clone, Default)]
struct Data {
    table: LockTable,
    channels: BTreeMap<SessionId, Channel>,
}

/// The channel of a session.
#[derive(Clone)]
struct Channel {
    name: String,
    /// Whether the session said that it is subscribed.
    is_listening: bool,
}

#[derive(Default)]
pub(super) struct Server {
    data: Data,
    snapshots: VecDeque<Data>,
    scripts: BTreeSet<Script>,
    /// The connections that are subscribed to a channel.
    subscribers: BTreeMap<String, BTreeSet<usize>>,
    /// The number of calls that find more expired sessions than one call removes.
    pub(super) crowd: u32,
}

/// What a call leads to.
pub(super) struct Answer {
    /// `None` if the server does not know the script.
    pub(super) reply: Option<ScriptReply>,
    /// The messages, each with the connection that receives it and its channel.
    pub(super) messages: Vec<(usize, String)>,
}

/// Unwraps a result of records in memory, which never fail.
fn sure<T>(result: Result<T, std::convert::Infallible>) -> T {
    let Ok(value) = result;
    value
}

impl Server {
    pub(super) fn call(&mut self, call: &Call, now: StoreTime) -> Answer {
        if call.is_source {
            self.scripts.insert(call.script);
        }
        if !self.scripts.contains(&call.script) {
            return Answer { reply: None, messages: Vec::new() };
        }
        let mut messages = Vec::new();
        let reply = self.need(call, now).unwrap_or_else(|| self.execute(call, now, &mut messages));
        Answer { reply: Some(reply), messages }
    }

    /// The resources that the call has to name too: those of the expired sessions that it removes,
    /// and those of the waiters that it may grant because it frees something.
    fn need(&mut self, call: &Call, now: StoreTime) -> Option<ScriptReply> {
        if self.crowd > 0 {
            self.crowd -= 1;
            return Some(ScriptReply::Need(Vec::new()));
        }
        let table = &self.data.table;
        let is_due = sure(table.records().due(now)).is_some();
        let is_release = matches!(&call.operation, Operation::Release(session) if self.session(*session).is_some());
        if matches!(call.operation, Operation::Inspect) || !is_due && !is_release {
            return None;
        }
        let mut missing = BTreeSet::new();
        for resource in &call.resources {
            for id in sure(table.sessions_of(resource, |_| true)) {
                let Some(session) = self.session(id) else { continue };
                if !session.is_holder() || session.expiry.is_some_and(|expiry| expiry <= now) {
                    missing.extend(session.claims.iter().map(|record| &record.claim.resource));
                }
            }
        }
        missing.retain(|name| !call.resources.contains(name));
        (!missing.is_empty()).then(|| ScriptReply::Need(missing.into_iter().cloned().collect()))
    }

    fn execute(&mut self, call: &Call, now: StoreTime, messages: &mut Vec<(usize, String)>) -> ScriptReply {
        let (op, caller) = match &call.operation {
            Operation::Acquire { request, channel, listening } => {
                let channel = Channel { name: channel.clone(), is_listening: *listening };
                self.data.channels.insert(request.session, channel);
                (Op::Acquire(Request::clone(request)), request.session)
            }
            Operation::Renew { session, listening } => {
                if let Some(channel) = self.data.channels.get_mut(session) {
                    channel.is_listening = *listening;
                }
                (Op::Renew(*session), *session)
            }
            Operation::Release(session) => (Op::Release(*session), *session),
            Operation::Inspect => return ScriptReply::Listing { now, resources: Vec::new(), sessions: Vec::new() },
        };
        let reply = self.apply(op, Some(caller), now, messages);
        match reply {
            Reply::Granted { lease, tokens } => ScriptReply::Granted { lease, tokens },
            Reply::Waiting => self.place(caller, &call.resources, now),
            Reply::Busy(_) => ScriptReply::Busy(call.resources.iter().map(|name| self.obstruction(name)).collect()),
            Reply::Refused(refusal) => ScriptReply::Refused(refusal),
            Reply::Released(tokens) => ScriptReply::Released(tokens),
            Reply::Unknown => ScriptReply::Unknown,
            reply => panic!("no client asks for {reply:?}"),
        }
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
        let Outcome { reply, granted, mut expired } = sure(self.data.table.apply(now, op));
        let mut granted = VecDeque::from(granted);
        while let Some(id) = granted.pop_front() {
            let listener = self.data.channels.get(&id).filter(|channel| channel.is_listening && caller != Some(id));
            if listener.is_some_and(|channel| !self.publish(&channel.name, messages)) {
                granted.extend(sure(self.data.table.apply(now, Op::Reap(id))).granted);
                expired.push(id);
            }
        }
        if !matches!(reply, Reply::Granted { .. } | Reply::Waiting) {
            expired.extend(caller);
        }
        for id in expired {
            self.data.channels.remove(&id);
        }
        reply
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
        let is_here =
            |session: &Session| session.claims.iter().any(|record| resources.contains(&record.claim.resource));
        let next = self.data.table.records().by_expiry().find(|(_, other)| is_here(other));
        ScriptReply::Waiting {
            // No session returns to its place, so the number is of no use.
            seq: 1,
            position: ahead.len() as u32 + 1,
            next: next.map(|(expiry, _)| expiry - now).filter(|next| !next.is_zero()),
        }
    }

    fn obstruction(&self, name: &Resource) -> Obstruction {
        ResourceListing { name: name.clone(), holders: Vec::new(), waiters: Vec::new() }.into()
    }

    pub(super) fn session(&self, id: SessionId) -> Option<&Session> {
        self.data.table.records().get(id)
    }

    pub(super) fn subscribe(&mut self, connection: usize, channel: String) {
        self.subscribers.entry(channel).or_default().insert(connection);
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
