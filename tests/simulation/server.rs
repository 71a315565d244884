//! The server: the real lock table behind the replies of the scripts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::wire::{Call, Operation, Script};
use crate::clock::StoreTime;
use crate::lock::index::{Entry, Rank};
use crate::lock::mode::Mode;
use crate::lock::op::{Op, Outcome, Reply, ResourceListing};
use crate::lock::records::{ClaimRecord, Records as _, Session};
use crate::lock::request::{Claim, Process, Request, SessionId};
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
    /// The last number of a queued request.
    seq: u64,
    /// The latest instant of a call. A script never uses an earlier one.
    clock: StoreTime,
}

/// The channel of a session.
#[derive(Clone)]
struct Channel {
    name: String,
    /// Whether the session said that it is subscribed.
    is_listening: bool,
    /// The number of the request in the queue; 0 where it was granted at once.
    seq: u64,
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
    /// Whether the server has no memory left.
    pub(super) is_full: bool,
    /// Whether somebody is subscribed to every channel.
    pub(super) has_monitor: bool,
    /// Whether the clients may ask how many subscribers a channel has, not counting patterns.
    pub(super) may_count: bool,
}

/// What a call leads to.
#[derive(Default)]
pub(super) struct Answer {
    /// `None` if the server replies an error.
    pub(super) reply: Option<ScriptReply>,
    pub(super) error: &'static str,
    /// The messages, each with the connection that receives it and its channel.
    pub(super) messages: Vec<(usize, String)>,
    /// The sessions that the call grants their requests.
    pub(super) granted: Vec<SessionId>,
    /// The waiter that cannot get its place back, because another one has its number.
    pub(super) displaced: Option<SessionId>,
    /// The session that calls, if the server carries out its call.
    pub(super) session: Option<SessionId>,
}

/// Unwraps a result of records in memory, which never fail.
fn sure<T>(result: Result<T, std::convert::Infallible>) -> T {
    let Ok(value) = result;
    value
}

impl Server {
    pub(super) fn call(&mut self, call: &Call, now: StoreTime) -> Answer {
        let mut answer = Answer::default();
        if call.is_source {
            self.scripts.insert(call.script);
        }
        if !self.scripts.contains(&call.script) {
            answer.error = "NOSCRIPT No matching script.";
            return answer;
        }
        if self.is_full && call.script == Script::Acquire {
            answer.error = "OOM command not allowed when used memory > 'maxmemory'. script: f, on @user_script:1.";
            return answer;
        }
        let now = self.time(now);
        answer.reply = self.need(call, now);
        if answer.reply.is_none() {
            answer.session = call.operation.session();
            answer.reply = Some(self.execute(call, now, &mut answer));
            let granted = answer.granted.iter().filter_map(|id| self.session(*id));
            let token = granted.flat_map(|session| session.tokens()).max().unwrap_or_default();
            self.data.clock = self.data.clock.max(StoreTime::from_micros(token));
        }
        answer
    }

    /// The instant of a script: time never goes back. The table forgets the last token of a resource
    /// that nobody uses, which the scripts keep. So the time exceeds every token.
    fn time(&mut self, now: StoreTime) -> StoreTime {
        self.data.clock = now.max(self.data.clock + Duration::from_micros(1));
        self.data.clock
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

    fn execute(&mut self, call: &Call, now: StoreTime, answer: &mut Answer) -> ScriptReply {
        let caller = call.operation.session();
        let reply = match &call.operation {
            Operation::Acquire { request, channel, place, listening } => {
                let channel = Channel { name: channel.clone(), is_listening: *listening, seq: 0 };
                self.acquire(request, channel, *place, now, answer)
            }
            Operation::Renew { session, listening } => {
                if let Some(channel) = self.data.channels.get_mut(session) {
                    channel.is_listening = *listening;
                }
                self.apply(Op::Renew(*session), caller, now, answer)
            }
            Operation::Release(session) => self.apply(Op::Release(*session), caller, now, answer),
            Operation::Inspect => return ScriptReply::Listing { now, resources: Vec::new(), sessions: Vec::new() },
        };
        let is_known = matches!(reply, Reply::Granted { .. } | Reply::Waiting);
        caller.filter(|_| !is_known).into_iter().for_each(|caller| drop(self.data.channels.remove(&caller)));
        match (reply, caller) {
            (Reply::Granted { lease, tokens }, _) => ScriptReply::Granted { lease, tokens },
            (Reply::Waiting, Some(caller)) => self.place(caller, &call.resources, now),
            (Reply::Busy(_), _) => {
                ScriptReply::Busy(call.resources.iter().map(|name| self.obstruction(name)).collect())
            }
            (Reply::Refused(refusal), _) => ScriptReply::Refused(refusal),
            (Reply::Released(tokens), _) => ScriptReply::Released(tokens),
            (Reply::Unknown, _) => ScriptReply::Unknown,
            (reply, _) => panic!("no client asks for {reply:?}"),
        }
    }

    fn acquire(
        &mut self,
        request: &Request,
        channel: Channel,
        place: u64,
        now: StoreTime,
        answer: &mut Answer,
    ) -> Reply {
        let id = request.session;
        let caller = Some(id);
        self.apply(Op::Expire, caller, now, answer);
        let is_known = self.session(id).is_some();
        self.data.channels.entry(id).or_insert(channel);
        let reply = self.apply(Op::Acquire(request.clone()), caller, now, answer);
        match &reply {
            Reply::Granted { .. } if !is_known => answer.granted.push(id),
            Reply::Waiting if !is_known => {
                let is_taken = place > 0 && self.is_taken(place, &request.claims);
                answer.displaced = caller.filter(|_| is_taken);
                let seq = if place > 0 && !is_taken { place } else { self.data.seq + 1 };
                self.data.seq = self.data.seq.max(seq);
                self.data.channels.entry(id).and_modify(|channel| channel.seq = seq);
                let session = self.number(id, seq);
                // Perhaps only requests with later numbers are in the way.
                if sure(self.data.table.blockers(id)).is_empty() {
                    self.look_again(id, &session, now, answer);
                }
                return self.apply(Op::Renew(id), caller, now, answer);
            }
            _ => {}
        }
        reply
    }

    /// Whether another waiter has this number.
    fn is_taken(&self, seq: u64, claims: &[Claim]) -> bool {
        let ranks = [false, true].map(|is_nested| Rank::waiting(seq, is_nested));
        let has_it = |name| !sure(self.data.table.sessions_of(name, |rank| ranks.contains(&rank))).is_empty();
        claims.iter().any(|claim| has_it(&claim.resource))
    }

    /// Gives a waiter this number in the queue.
    fn number(&mut self, id: SessionId, seq: u64) -> Session {
        let mut session = self.session(id).expect("a session that waits is in the table").clone();
        let records = self.data.table.records_mut();
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
        sure(records.put_session(id, session.clone()));
        session
    }

    /// Lets the table grant what it can where a session waits: another session asks to write there,
    /// and leaves.
    fn look_again(&mut self, id: SessionId, session: &Session, now: StoreTime, answer: &mut Answer) {
        const OTHER: SessionId = SessionId([0xff; 16]);
        let caller = Some(id);
        let claims =
            session.claims.iter().map(|record| Claim { mode: Mode::Write, slots: None, ..record.claim.clone() });
        let request = Request {
            session: OTHER,
            ancestors: Vec::new(),
            claims: claims.collect(),
            wait: true,
            terms: session.terms,
            process: Process::default(),
        };
        self.apply(Op::Acquire(request), caller, now, answer);
        self.apply(Op::Release(OTHER), caller, now, answer);
    }

    /// Applies an operation, wakes the sessions that it grants, and passes over those that nobody
    /// would wake.
    fn apply(&mut self, op: Op, caller: Option<SessionId>, now: StoreTime, answer: &mut Answer) -> Reply {
        let Outcome { reply, granted, expired } = sure(self.data.table.apply(now, op));
        expired.iter().for_each(|id| drop(self.data.channels.remove(id)));
        let mut granted = VecDeque::from(granted);
        while let Some(id) = granted.pop_front() {
            let listener = self.data.channels.get(&id).filter(|channel| channel.is_listening && caller != Some(id));
            if listener.is_some_and(|channel| !self.publish(&channel.name, &mut answer.messages)) {
                granted.extend(sure(self.data.table.apply(now, Op::Reap(id))).granted);
                self.data.channels.remove(&id);
            } else {
                answer.granted.push(id);
            }
        }
        reply
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
            seq: self.data.channels.get(&id).map_or(0, |channel| channel.seq),
            position: ahead.len() as u32 + 1,
            next: next.map(|(expiry, _)| expiry - now).filter(|next| !next.is_zero()),
        }
    }

    fn obstruction(&self, name: &Resource) -> Obstruction {
        ResourceListing { name: name.clone(), holders: Vec::new(), waiters: Vec::new() }.into()
    }

    /// The number of a session in the queue.
    pub(super) fn place_of(&self, id: SessionId) -> Option<u64> {
        self.data.channels.get(&id).filter(|_| self.waits(id)).map(|channel| channel.seq)
    }

    /// Whether a session is in the queue.
    pub(super) fn waits(&self, id: SessionId) -> bool {
        self.session(id).is_some_and(|session| !session.is_holder())
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
        let now = self.time(now);
        let mut answer = Answer::default();
        // The waiters leave first, so that the loss grants nothing to a session that it concerns.
        for is_held in [false, true] {
            for id in sure(self.data.table.sessions_of(name, |rank| rank.is_held() == is_held)) {
                if let Some(channel) = self.data.channels.get(&id) {
                    self.publish(&channel.name, &mut answer.messages);
                }
                self.apply(Op::Reap(id), Some(id), now, &mut answer);
                self.data.channels.remove(&id);
            }
        }
        answer.messages
    }

    /// Whether no session is left.
    pub(super) fn is_empty(&self) -> bool {
        self.data.table.records().is_empty()
    }

    /// Drops the sessions whose leases are over.
    pub(super) fn expire(&mut self, now: StoreTime) {
        let now = self.time(now);
        let mut answer = Answer::default();
        self.apply(Op::Expire, None, now, &mut answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::lease::Lease;
    use crate::lock::span::Span;

    const TTL: Duration = Duration::from_secs(10);

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    /// Carries out an operation; returns the reply and the sessions that it grants.
    fn carry_out(server: &mut Server, operation: Operation) -> (ScriptReply, Vec<SessionId>) {
        let script = match operation {
            Operation::Acquire { .. } => Script::Acquire,
            Operation::Release(_) => Script::Release,
            _ => Script::Renew,
        };
        let resources = vec![Resource::new("k").unwrap()];
        let call = Call { script, is_source: true, resources, operation };
        let answer = server.call(&call, StoreTime::from_micros(1));
        (answer.reply.unwrap(), answer.granted)
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
            process: Process::default(),
        };
        let channel = number.to_string();
        carry_out(server, Operation::Acquire { request: Box::new(request), channel, place, listening: false }).0
    }

    fn listen(server: &mut Server, number: u8) -> ScriptReply {
        carry_out(server, Operation::Renew { session: session(number), listening: true }).0
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
        let released = carry_out(&mut server, Operation::Release(session(1)));
        assert_eq!(released.1, [session(3)], "nobody is subscribed to the channel of the second session");
        assert_eq!(listen(&mut server, 2), ScriptReply::Unknown);
        acquire(&mut server, 4, "[0,9]", 0);
        assert_eq!(seq(&acquire(&mut server, 2, "[0,9]", place)), place);
        assert_eq!(carry_out(&mut server, Operation::Release(session(3))).1, [session(2)]);
    }

    #[test]
    fn returned_waiter_waits_for_no_later_one() {
        let mut server = Server::default();
        acquire(&mut server, 1, "[0,1]", 0);
        acquire(&mut server, 2, "[5,6]", 0);
        let place = seq(&acquire(&mut server, 3, "[0,1]", 0));
        acquire(&mut server, 4, "[0,9]", 0);
        listen(&mut server, 3);
        assert_eq!(carry_out(&mut server, Operation::Release(session(1))).1, []);
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
