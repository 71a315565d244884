//! The server: the real lock table behind the replies of the scripts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::mem;
use std::time::Duration;

use redis::{ServerError, Value};

use super::cluster::KINDS;
use super::data::{Channel, Data, Effect, sure};
use super::database::{Carried, Circumstances};
use super::told::Before;
use super::wire::{self, Call, Operation, Script};
use rlock_model::index::Rank;
use rlock_model::op::{Change, Op, Outcome, Reply, ResourceListing};
use rlock_model::records::{Memory, Phase, Records as _, Session};
use rlock_model::request::{self, Claim, Place, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::table::LockTable;
use rlock_redis::codec::{Lease, ScriptReply};
use rlock_store::Obstruction;
use rlock_store::engine::{self, Engine};
use rlock_sys::clock::StoreTime;

const NO_SCRIPT: &str = "NOSCRIPT No matching script.";
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'. script: f, on @user_script:1.";
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
    /// The channels of each connection that has subscribed to any.
    channels: BTreeMap<usize, BTreeSet<String>>,
    /// The number of calls that find more expired sessions than one call removes.
    pub(super) crowd: u32,
    /// Whether the server has no memory left.
    pub(super) is_full: bool,
    /// Whether somebody is subscribed to every channel.
    pub(super) has_monitor: bool,
    /// Whether the clients may ask how many subscribers a channel has, not counting patterns.
    pub(super) may_count: bool,
}

/// What a call leads to besides its reply.
#[derive(Default)]
pub(super) struct Consequences {
    /// The messages, each with the connection that receives it and its channel.
    pub(super) messages: Vec<(usize, String)>,
    /// The sessions that the call grants their requests.
    pub(super) granted: Vec<SessionId>,
    /// The number of grants before the operation of the caller.
    pub(super) granted_before: usize,
    /// The sessions that were granted their requests and passed over, and the number of them before
    /// the operation of the caller.
    pub(super) passed: Vec<SessionId>,
    pub(super) passed_before: usize,
    /// The sessions that leave the queue because their jobs are done.
    pub(super) done: Vec<SessionId>,
    /// The instant of the call.
    pub(super) now: StoreTime,
    /// The session that joins the queue, and the number of grants before that. None of these
    /// overtakes the session.
    pub(super) joined: Option<(SessionId, usize)>,
    /// The number of claims that wait when a request joins that supersedes others.
    pub(super) crowd: usize,
    /// The waiter that cannot get its place back, because another one has its number.
    pub(super) displaced: Option<SessionId>,
    /// The sessions whose grants the call revokes.
    pub(super) broken: Vec<SessionId>,
    /// The sessions whose grants are revoked, and which still hold.
    pub(super) revoked: Vec<SessionId>,
    /// The session that calls, if the server carries out its call.
    pub(super) session: Option<SessionId>,
    /// The waiters that have left the queue in a way that a database does not tell: passed over, or
    /// because their jobs are done.
    pub(super) gone: Vec<SessionId>,
}

/// The reply of a script as the clients parse it.
pub(super) type Replied = Result<ScriptReply, ServerError>;

impl Server {
    pub(super) fn new(is_replica: bool) -> Self {
        Self { is_replica, ..Self::default() }
    }

    /// Carries out a call. Returns the reply, and the same as clients parse it.
    pub(super) fn call(&mut self, call: &Call, now: StoreTime) -> (Result<Value, ServerError>, Replied, Consequences) {
        if call.is_source {
            self.scripts.insert(call.script);
        }
        let no_script = !self.scripts.contains(&call.script);
        if self.data.database.is_some() && !no_script {
            return self.run(call, now);
        }
        let (reply, also) = match no_script {
            true => (Err(NO_SCRIPT), Consequences::default()),
            false => self.answer(call, now),
        };
        let reply = reply.map_err(wire::error);
        (reply.as_ref().map(wire::value).map_err(Clone::clone), reply, also)
    }

    /// Lets the database of the server carry out a call.
    fn run(&mut self, call: &Call, now: StoreTime) -> (Result<Value, ServerError>, Replied, Consequences) {
        if let Operation::Acquire { request, .. } = &call.operation {
            self.data.requests.insert(request.session, Request::clone(request));
        }
        self.data.used.extend(call.resources.iter().cloned());
        let before = Before::new(&self.data, call, now);
        let circumstances = Circumstances {
            now,
            is_replica: self.is_replica,
            is_full: self.is_full,
            is_crowded: self.crowd > 0,
            has_monitor: self.has_monitor,
            may_count: self.may_count,
            channels: self.subscribers.keys().map(String::as_str).collect(),
        };
        let database = self.data.database.as_ref().expect("the caller has asked");
        let Carried { reply, messages, keys } = database.call(call, &circumstances);
        self.crowd = self.crowd.saturating_sub(1);
        let parsed = |value: &Value| ScriptReply::read(value).unwrap_or_else(|| panic!("no script replies {value:?}"));
        let replied = reply.as_ref().map(parsed).map_err(Clone::clone);
        let is_read = keys.is_empty();
        let is_other = match (&call.operation, &replied) {
            (Operation::Change { .. }, _) | (_, Ok(ScriptReply::KeptUntil(_))) => true,
            (Operation::Renew { session, .. } | Operation::RenewAlone { session, .. }, _) => {
                self.session(*session).is_some_and(|session| session.phase == Phase::Granted)
            }
            _ => false,
        };
        self.data.show(keys, is_other);
        if is_read {
            return (reply, replied, Consequences { now: before.now(), ..Consequences::default() });
        }
        self.log(|| Effect::Copy(call.resources.clone()));
        let mut also = before.compare(&self.data, call, &replied);
        for channel in messages {
            self.publish(&channel, &mut also.messages);
        }
        (reply, replied, also)
    }

    /// Carries out a call on the table.
    fn answer(&mut self, call: &Call, now: StoreTime) -> (Result<ScriptReply, &'static str>, Consequences) {
        let mut also = Consequences::default();
        if self.is_full && call.script == Script::Acquire {
            return (Err(OUT_OF_MEMORY), also);
        }
        let now = self.data.time(now);
        also.now = now;
        let reply = match self.need(call, now) {
            Some(reply) => Ok(reply),
            None => self.execute(call, now, &mut also),
        };
        (reply, also)
    }

    /// The resources that the call has to name too: those of the sessions that it removes, and
    /// those of the waiters that it may grant because it frees something.
    fn need(&mut self, call: &Call, now: StoreTime) -> Option<ScriptReply> {
        if let Operation::Inspect { .. } | Operation::RenewAlone { .. } = call.operation {
            return None;
        }
        if self.crowd > 0 {
            self.crowd -= 1;
            return Some(ScriptReply::Need(Vec::new()));
        }
        let table = &self.data.table;
        let is_due = sure(table.records().due(now)).is_some();
        let breaks = |resource: &Resource| call.script == Script::Break && *resource == call.resources[0];
        let is_release = match &call.operation {
            Operation::Change { change: Change::Extend { .. }, .. } => false,
            Operation::Release { session, .. } | Operation::GiveUp(session) | Operation::Change { session, .. } => {
                self.session(*session).is_some()
            }
            Operation::Break { .. } => !self.holders(&call.resources[0]).is_empty(),
            _ => false,
        };
        if !is_due && !is_release {
            return None;
        }
        let mut missing = BTreeSet::new();
        for resource in &call.resources {
            let is_broken = breaks(resource);
            for id in sure(table.sessions_of(resource, |rank| is_due || is_broken || !rank.is_held())) {
                let Some(session) = self.session(id) else { continue };
                if is_broken || !session.is_holder() || session.is_over(now) {
                    let names = session.claims.iter().map(|record| &record.claim.resource);
                    missing.extend(names.filter(|name| !call.resources.contains(name)));
                }
            }
        }
        (!missing.is_empty()).then(|| ScriptReply::Need(missing.into_iter().cloned().collect()))
    }

    fn execute(&mut self, call: &Call, now: StoreTime, also: &mut Consequences) -> Result<ScriptReply, &'static str> {
        let caller = call.operation.session();
        let reply = match &call.operation {
            Operation::Inspect { is_live } => {
                let resources = call.resources.iter().map(obstruction).collect();
                // Nothing depends on what people see.
                let sessions = if *is_live { self.living(&call.resources, now) } else { Vec::new() };
                return Ok(ScriptReply::Listing { now, next: Vec::new(), resources, sessions });
            }
            Operation::RenewAlone { session, ttl, lease } => {
                let resource = &call.resources[0];
                let is_there = self.data.lease_key(*session, resource) == *lease;
                return Ok(match is_there {
                    true => self.data.renew_alone(*session, resource, now, *ttl),
                    false => ScriptReply::Unknown,
                });
            }
            // Where there is nothing to renew or release, the script writes nothing.
            Operation::Renew { session, .. }
            | Operation::Release { session, .. }
            | Operation::GiveUp(session)
            | Operation::Change { session, change: Change::Extend { .. } }
                if self.is_replica && self.session(*session).is_none() =>
            {
                return Ok(ScriptReply::Unknown);
            }
            _ if self.is_replica => return Err(READ_ONLY),
            _ => sure(self.transaction(caller, now, also).act(call)),
        };
        Ok(match (reply, caller) {
            (Reply::Granted { lease, tokens, slots, last, is_revoked }, _) => {
                ScriptReply::Granted { lease, tokens, slots, last, is_revoked }
            }
            (Reply::Waiting, Some(caller)) => self.place(caller, &call.resources, now),
            (Reply::KeptUntil(until), _) => ScriptReply::KeptUntil(until),
            (Reply::Refused(refusal), _) => ScriptReply::Refused(refusal),
            (Reply::Released(tokens), _) => ScriptReply::Released(tokens),
            (Reply::Broken(_), _) => ScriptReply::Broken { next: Vec::new(), sessions: Vec::new() },
            (Reply::Done, _) => ScriptReply::Done,
            (Reply::Unknown, _) => ScriptReply::Unknown,
            (reply, _) => {
                // The reply to a give-up lists nobody.
                let listed = if call.script == Script::GiveUp { &[] } else { call.resources.as_slice() };
                let obstructions = listed.iter().map(obstruction).collect();
                ScriptReply::Over(engine::standing(reply, obstructions).expect("a client asks for a standing"))
            }
        })
    }

    fn transaction<'s>(
        &'s mut self,
        caller: Option<SessionId>,
        now: StoreTime,
        also: &'s mut Consequences,
    ) -> Transaction<'s> {
        Transaction { server: self, caller, now, also, superseded: Vec::new() }
    }

    /// The holders of these resources, and the waiters that hear of their grants.
    fn living(&self, resources: &[Resource], now: StoreTime) -> Vec<(SessionId, Session)> {
        let here = resources.iter().flat_map(|name| sure(self.data.table.sessions_of(name, |_| true)));
        let is_over = |id| self.session(id).is_some_and(|session| session.is_over(now));
        let living: BTreeSet<_> = here.filter(|id| !is_over(*id) && (!self.waits(*id) || self.is_heard(*id))).collect();
        let told = |id| {
            let mut session = self.session(id)?.clone();
            let own: Vec<_> = session.resources().into_iter().cloned().collect();
            if !session.is_holder() {
                session.job.held_above.extend(own);
            }
            Some((id, session))
        };
        living.into_iter().filter_map(told).collect()
    }

    fn holders(&self, name: &Resource) -> Vec<SessionId> {
        sure(self.data.table.sessions_of(name, Rank::is_held))
    }

    /// Whether another waiter has this number.
    fn is_taken(&self, seq: u64, claims: &[Claim]) -> bool {
        let has_it = |name| !sure(self.data.table.sessions_of(name, |rank| rank == Rank::waiting(seq))).is_empty();
        claims.iter().any(|claim| has_it(&claim.resource))
    }

    /// Whether a waiter shows its regular sign of life, so that it was not away.
    fn is_at_heartbeat(&self, id: SessionId, now: StoreTime) -> bool {
        let session = self.session(id);
        let Some((session, terms)) = session.and_then(|session| Some((session, session.terms?))) else { return false };
        let left = session.expiry.map_or(Duration::ZERO, |expiry| expiry - now);
        let silent = terms.heartbeat.saturating_sub(left);
        terms.heartbeat * 3 / 10 <= silent && silent <= terms.heartbeat / 2
    }

    /// Whether a waiter has a subscriber, cannot be subscribed yet, or cannot be asked for.
    fn is_heard(&self, id: SessionId) -> bool {
        let listener = self.data.channels.get(&id).filter(|channel| channel.is_listening && self.may_count);
        listener.is_none_or(|channel| self.subscribers.contains_key(&channel.name))
    }

    /// The sessions of a job that wait for a resource.
    pub(super) fn waiters_of(&self, name: &Resource, job: &str) -> Vec<SessionId> {
        let mut waiters = sure(self.data.table.sessions_of(name, |rank| !rank.is_held()));
        waiters.retain(|id| self.session(*id).is_some_and(|session| session.job.name == job));
        waiters
    }

    fn change(&mut self, now: StoreTime, op: Op) -> Outcome {
        self.log(|| Effect::Apply { now, op: Box::new(op.clone()) });
        self.data.apply(now, op)
    }

    fn listen(&mut self, session: SessionId, channel: Channel) {
        self.log(|| Effect::Listen(session, channel.clone()));
        self.data.channels.insert(session, channel);
    }

    /// Keeps a change for the replicas.
    fn log(&mut self, effect: impl FnOnce() -> Effect) {
        if let Some(effects) = &mut self.effects {
            effects.push(effect());
        }
    }

    /// Takes the changes that the replicas do not have.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        self.effects.as_mut().map(mem::take).unwrap_or_default()
    }

    fn publish(&self, channel: &str, messages: &mut Vec<(usize, String)>) -> bool {
        let Some(subscribers) = self.subscribers.get(channel) else { return self.has_monitor && !self.may_count };
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
            seq: session.place(),
            position: ahead.len() as u32 + 1,
            next: next.map(|(expiry, _)| expiry - now).filter(|next| !next.is_zero()),
        }
    }

    /// The number of a session in the queue, and 0 for a holder.
    pub(super) fn place_of(&self, id: SessionId) -> Option<u64> {
        self.session(id).map(|session| if session.is_holder() { 0 } else { session.place() })
    }

    /// How many sessions wait for a resource.
    pub(super) fn waiting(&self, name: &Resource) -> usize {
        sure(self.data.table.sessions_of(name, |rank| !rank.is_held())).len()
    }

    fn waiting_claims(&self, name: &Resource) -> usize {
        sure(self.data.table.records().resource(name)).map_or(0, |state| state.waiting as usize)
    }

    /// Whether a session is in the queue.
    pub(super) fn waits(&self, id: SessionId) -> bool {
        self.session(id).is_some_and(|session| !session.is_holder())
    }

    pub(super) fn session(&self, id: SessionId) -> Option<&Session> {
        self.data.table.records().get(id)
    }

    pub(super) fn subscribe(&mut self, connection: usize, channel: String) {
        self.channels.entry(connection).or_default().insert(channel.clone());
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
        if let Some(database) = &self.data.database {
            return database.exist(name);
        }
        let sessions = sure(self.data.table.sessions_of(name, |_| true));
        let is_queued = !sure(self.data.table.sessions_of(name, |rank| !rank.is_held())).is_empty();
        let is_quiet = sessions.iter().all(|id| self.data.lease_key(*id, name) == Lease::Sole);
        let is_busy = !is_quiet;
        [is_quiet && self.data.used.contains(name), is_busy, is_busy, is_queued, is_busy, is_busy, false]
    }

    pub(super) fn unsubscribe(&mut self, connection: usize, channel: &str) {
        if let Some(own) = self.channels.get_mut(&connection) {
            own.remove(channel);
        }
        self.leave(connection, channel);
    }

    fn leave(&mut self, connection: usize, channel: &str) {
        let Some(subscribers) = self.subscribers.get_mut(channel) else { return };
        subscribers.remove(&connection);
        if subscribers.is_empty() {
            self.subscribers.remove(channel);
        }
    }

    /// The server has noticed the end of a connection.
    pub(super) fn disconnect(&mut self, connection: usize) {
        let own = self.channels.remove(&connection).unwrap_or_default();
        own.iter().for_each(|channel| self.leave(connection, channel));
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
        self.data = self.snapshots.front().cloned().unwrap_or_else(|| self.data.emptied());
    }

    pub(super) fn lose_all(&mut self) {
        self.snapshots.clear();
        self.data = self.data.emptied();
    }

    /// Loses a key of a resource, which the scripts notice. The table drops all sessions of the
    /// resource and tells them, as the scripts do.
    pub(super) fn lose_key(&mut self, name: &Resource, kind: usize, now: StoreTime) -> Consequences {
        self.snapshots.clear();
        if let Some(database) = &self.data.database {
            database.lose_key(name, kind);
            let keys = database.read(std::slice::from_ref(name));
            self.data.show(keys, true);
            self.log(|| Effect::Copy(vec![name.clone()]));
            return Consequences { now, ..Consequences::default() };
        }
        let now = self.data.time(now);
        let mut also = Consequences { now, ..Consequences::default() };
        // The waiters leave first, so that the loss grants nothing to a session that it concerns.
        for is_held in [false, true] {
            for id in sure(self.data.table.sessions_of(name, |rank| rank.is_held() == is_held)) {
                if let Some(channel) = self.data.channels.get(&id) {
                    self.publish(&channel.name, &mut also.messages);
                }
                let is_kept = self.session(id).is_some_and(Session::is_kept);
                let op = if is_kept {
                    Op::Release { session: id, end: None }
                } else {
                    Op::Reap { session: id, ended: None }
                };
                sure(self.transaction(Some(id), now, &mut also).apply(op));
            }
        }
        also
    }

    /// Whether nothing is left but kept holds, which end at their instants.
    pub(super) fn has_only_kept(&self) -> bool {
        self.data.table.records().by_expiry().all(|(_, session)| session.is_kept())
    }

    /// Whether no session is left.
    pub(super) fn is_empty(&self) -> bool {
        self.data.table.records().is_empty()
    }

    /// Drops the sessions whose leases are over after this time.
    pub(super) fn expire(&mut self, now: StoreTime, after: Duration) {
        if let Some(database) = &self.data.database {
            let names: Vec<_> = self.data.used.iter().cloned().collect();
            let latest = now.max(self.data.clock(&names));
            let has_ended = database.expire(names, latest + after);
            self.data.reload();
            return assert!(has_ended || !self.is_empty(), "the server keeps a key for ever");
        }
        let now = self.data.time(now) + after;
        let mut also = Consequences::default();
        sure(self.transaction(None, now, &mut also).apply(Op::Expire));
    }
}

/// A call in progress.
struct Transaction<'s> {
    server: &'s mut Server,
    /// The session that calls, which learns from the reply what it is granted.
    caller: Option<SessionId>,
    now: StoreTime,
    also: &'s mut Consequences,
    /// The waiters of the job whose request supersedes those that it finds.
    superseded: Vec<SessionId>,
}

impl Engine for Transaction<'_> {
    type Records = Memory;
    type Error = Infallible;

    fn table(&self) -> &LockTable {
        &self.server.data.table
    }

    fn step(&mut self, op: Op) -> Result<Outcome, Infallible> {
        if let Op::Acquire { request, place: None } = &op
            && request.job.supersedes
        {
            let names = request::resources(&request.claims);
            self.also.crowd = names.iter().map(|name| self.server.waiting_claims(name)).sum();
            let waiters = names.into_iter().flat_map(|name| self.server.waiters_of(name, &request.job.name));
            self.superseded = waiters.collect();
        }
        Ok(self.server.change(self.now, op))
    }

    /// Passes over a session that nobody would wake.
    fn tell(&mut self, id: SessionId) -> Result<Option<Op>, Infallible> {
        let is_there = self.server.session(id).is_some();
        let known = self.server.data.channels.get(&id);
        let channel = known.filter(|channel| channel.is_listening && self.caller != Some(id));
        let is_deaf = channel.is_some_and(|channel| !self.server.publish(&channel.name, &mut self.also.messages));
        if self.superseded.contains(&id) && !is_there {
            return Ok(None);
        }
        if is_deaf {
            self.also.passed.push(id);
            return Ok(Some(Op::Reap { session: id, ended: None }));
        }
        if is_there {
            self.also.granted.push(id);
        } else if self.caller != Some(id) {
            // A caller that is granted and leaves in one call has done nothing.
            self.also.done.push(id);
        }
        Ok(None)
    }

    /// Drops the expired sessions, and grants what they blocked, before anything else: the caller
    /// may be granted its request meanwhile.
    fn drop_due(&mut self) -> Result<(), Infallible> {
        if self.table().records().due(self.now)?.is_some() {
            self.apply(Op::Expire)?;
        }
        Ok(())
    }

    /// Removes the waiters that nobody would wake. A holder ends with its lease.
    fn remove_gone(&mut self, suspects: &[SessionId]) -> Result<bool, Infallible> {
        let is_gone = |id: &&SessionId| self.server.waits(**id) && !self.server.is_heard(**id);
        let gone: Vec<_> = suspects.iter().filter(is_gone).copied().collect();
        for session in &gone {
            self.apply(Op::Reap { session: *session, ended: None })?;
        }
        Ok(!gone.is_empty())
    }
}

impl Transaction<'_> {
    /// Carries out the call of a client.
    fn act(mut self, call: &Call) -> Result<Reply, Infallible> {
        self.drop_due()?;
        self.count_before();
        if !matches!(call.operation, Operation::Change { .. } | Operation::Break { .. }) {
            self.also.session = self.caller;
        }
        match &call.operation {
            Operation::Acquire { request, channel, place, listening } => {
                let channel = Channel { name: channel.clone(), is_listening: *listening };
                self.acquire(request, channel, *place)
            }
            Operation::Renew { session, listening } => {
                let known = self.server.data.channels.get(session);
                if let Some(channel) = known.filter(|channel| channel.is_listening != *listening) {
                    let channel = Channel { is_listening: *listening, ..channel.clone() };
                    self.server.listen(*session, channel);
                }
                // A waiter passes over the dead ahead of it as a new request does.
                match self.server.is_at_heartbeat(*session, self.now) {
                    true => self.ask(*session, Op::Renew(*session)),
                    false => self.apply(Op::Renew(*session)),
                }
            }
            Operation::Release { session, end } => self.apply(Op::Release { session: *session, end: *end }),
            Operation::GiveUp(session) => self.apply(Op::GiveUp(*session)),
            Operation::Change { session, change } => {
                self.apply(Op::Change { session: *session, change: change.clone() })
            }
            Operation::Break { revokes } => self.break_grants(&call.resources[0], *revokes),
            Operation::Inspect { .. } | Operation::RenewAlone { .. } => unreachable!("these calls are answered before"),
        }
    }

    /// What was granted so far came before the operation of the caller.
    fn count_before(&mut self) {
        (self.also.granted_before, self.also.passed_before) = (self.also.granted.len(), self.also.passed.len());
    }

    fn acquire(&mut self, request: &Request, channel: Channel, number: u64) -> Result<Reply, Infallible> {
        let id = request.session;
        let is_known = self.server.session(id).is_some();
        if !self.server.data.channels.contains_key(&id) {
            self.server.listen(id, channel);
        }
        let is_taken = number > 0 && !is_known && self.server.is_taken(number, &request.claims);
        let place = (number > 0).then_some(Place { number, asked: self.now });
        if !is_known && place.is_none() {
            self.clear_the_way(request)?;
        }
        self.count_before();
        self.also.joined = self.caller.filter(|_| !is_known).map(|caller| (caller, self.also.granted.len()));
        let reply = match is_known {
            true => self.apply(Op::Acquire { request: request.clone(), place })?,
            false => self.ask(id, Op::Acquire { request: request.clone(), place })?,
        };
        match &reply {
            Reply::Granted { .. } if !is_known => self.also.granted.push(id),
            Reply::Waiting if !is_known => self.also.displaced = self.caller.filter(|_| is_taken),
            _ => {}
        }
        Ok(reply)
    }

    /// Breaks all grants on a resource, and tells the holders.
    fn break_grants(&mut self, name: &Resource, revokes: bool) -> Result<Reply, Infallible> {
        let holders = self.server.holders(name);
        let channels: Vec<_> = holders.iter().filter_map(|id| self.server.data.channels.get(id).cloned()).collect();
        let by = revokes.then(request::Process::default);
        let reply = self.apply(Op::Break { resource: name.clone(), only: None, by })?;
        (self.also.revoked, self.also.broken) = holders.into_iter().partition(|id| self.server.session(*id).is_some());
        for channel in channels {
            self.server.publish(&channel.name, &mut self.also.messages);
        }
        Ok(reply)
    }
}

fn obstruction(name: &Resource) -> Obstruction {
    ResourceListing { name: name.clone(), holders: Vec::new(), waiters: Vec::new() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_model::lease::Lease;
    use rlock_model::mode::Mode;
    use rlock_model::request::{Job, Process};
    use rlock_model::span::Span;

    const TTL: Duration = Duration::from_secs(10);

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    /// Carries out an operation; returns the reply and the sessions that it grants.
    fn carry_out(server: &mut Server, operation: Operation) -> (ScriptReply, Vec<SessionId>) {
        let script = match operation {
            Operation::Acquire { .. } => Script::Acquire,
            Operation::Release { .. } => Script::Release,
            _ => Script::Renew,
        };
        let resources = vec![Resource::new("k").unwrap()];
        let call = Call { script, is_source: true, resources, operation, command: redis::Cmd::new() };
        let (_, reply, also) = server.call(&call, StoreTime::from_micros(1));
        (reply.unwrap(), also.granted)
    }

    fn acquire(server: &mut Server, number: u8, interval: &str, place: u64) -> ScriptReply {
        let claim = Claim {
            resource: Resource::new("k").unwrap(),
            mode: Mode::Write,
            span: Span::parse(interval).unwrap(),
            slots: None,
        };
        let request = Request {
            session: session(number),
            ancestors: Vec::new(),
            claims: vec![claim],
            wait: true,
            terms: Some(Lease::new(TTL).terms()),
            job: Job::default(),
            process: Process::default(),
        };
        let channel = number.to_string();
        carry_out(server, Operation::Acquire { request: Box::new(request), channel, place, listening: false }).0
    }

    fn listen(server: &mut Server, number: u8) -> ScriptReply {
        carry_out(server, Operation::Renew { session: session(number), listening: true }).0
    }

    fn release(number: u8) -> Operation {
        Operation::Release { session: session(number), end: None }
    }

    fn seq(reply: &ScriptReply) -> u64 {
        let ScriptReply::Waiting { seq, .. } = reply else { panic!("{reply:?}") };
        *seq
    }

    #[test]
    fn passed_over_waiter_gets_its_place_back() {
        let mut server = Server::default();
        acquire(&mut server, 1, "[0,9]", 0);
        let place = seq(&acquire(&mut server, 2, "[0,9]", 0));
        acquire(&mut server, 3, "[0,9]", 0);
        listen(&mut server, 2);
        let released = carry_out(&mut server, release(1));
        assert_eq!(released.1, [session(3)], "nobody is subscribed to the channel of the second session");
        assert_eq!(listen(&mut server, 2), ScriptReply::Unknown);
        acquire(&mut server, 4, "[0,9]", 0);
        assert_eq!(seq(&acquire(&mut server, 2, "[0,9]", place)), place);
        assert_eq!(carry_out(&mut server, release(3)).1, [session(2)]);
    }

    #[test]
    fn returned_waiter_waits_for_no_later_one() {
        let mut server = Server::default();
        acquire(&mut server, 1, "[0,1]", 0);
        acquire(&mut server, 2, "[5,6]", 0);
        let place = seq(&acquire(&mut server, 3, "[0,1]", 0));
        acquire(&mut server, 4, "[0,9]", 0);
        listen(&mut server, 3);
        assert_eq!(carry_out(&mut server, release(1)).1, []);
        let reply = acquire(&mut server, 3, "[0,1]", place);
        assert!(matches!(reply, ScriptReply::Granted { lease: Some(TTL), .. }), "{reply:?}");
    }

    #[test]
    fn place_of_another_waiter_is_not_given_away() {
        let mut server = Server::default();
        acquire(&mut server, 1, "[0,1]", 0);
        let place = seq(&acquire(&mut server, 2, "[0,1]", 0));
        assert!(seq(&acquire(&mut server, 3, "[0,1]", place)) > place);
    }
}
