//! Replicas: they make the changes of the primary later, in the same order, and one of them may
//! take the place of the primary.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use redis::Value;

use super::data::Effect;
use super::database::Database;
use super::network::ToClient;
use super::random::Random;
use super::wire;
use super::world::{Happening, Key, World};
use rlock_model::records::Session;
use rlock_model::resource::Resource;

/// The replicas of the primary, and what they have to make up for.
#[derive(Default)]
pub(super) struct Replication {
    /// The number of failovers. Whatever is on its way from an earlier primary is void.
    term: u64,
    /// The changes that some replica does not have.
    log: VecDeque<Effect>,
    /// The number of changes before these.
    dropped: usize,
    /// The replicas by their nodes.
    replicas: BTreeMap<usize, Replica>,
    /// The connections that wait for replicas.
    waits: BTreeMap<usize, Wait>,
    /// How long a change takes to a replica at most.
    pub(super) lag: Duration,
    pub(super) is_failing_over: bool,
}

/// The lag of replicas when nothing slows them down.
pub(super) const LAG: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Replica {
    /// The number of changes that the replica has made.
    made: usize,
    /// The number of changes of which the primary knows that the replica has made them.
    acknowledged: usize,
    is_cut_off: bool,
    /// Whether changes are on their way.
    has_mail: bool,
}

struct Wait {
    replicas: usize,
    end: Key,
}

/// What happens to the replicas.
pub(super) enum Event {
    /// Changes up to this one arrive at a replica.
    Changes { node: usize, term: u64, upto: usize, copy: Option<Database> },
    /// The primary learns how many changes a replica has made.
    Acknowledged { node: usize, term: u64, made: usize },
    /// The limit of WAIT on a connection is over.
    WaitEnds(usize),
    /// A replica becomes the primary.
    Promoted { node: usize, failover: Failover },
    /// A node that was a primary learns that it is one no more.
    Demoted { node: usize, closes: bool },
    /// A node gets all data of the primary, and follows its changes.
    Attached(usize),
}

/// How a primary is replaced.
#[derive(Clone, Copy)]
pub(super) enum Failover {
    /// The primary dies.
    Crash,
    /// The primary is cut off from the other nodes, but not from all clients.
    Partition,
    /// An administrator has another node promoted.
    Order,
}

const MS: fn(u64) -> Duration = Duration::from_millis;

impl Replication {
    fn end(&self) -> usize {
        self.dropped + self.log.len()
    }

    /// Drops the changes that all replicas have made.
    fn trim(&mut self) {
        let least = self.replicas.values().map(|replica| replica.made).min().unwrap_or(self.end());
        self.log.drain(..least - self.dropped);
        self.dropped = least;
    }

    /// How many replicas have made so many changes.
    fn count(&self, made: usize) -> usize {
        self.replicas.values().filter(|replica| replica.acknowledged >= made).count()
    }

    pub(super) fn forget(&mut self, connection: usize) -> Option<Key> {
        self.waits.remove(&connection).map(|wait| wait.end)
    }

    /// Cuts a replica off from the primary, or connects it again.
    fn cut_off(&mut self, node: usize, is_cut_off: bool) {
        if let Some(replica) = self.replicas.get_mut(&node) {
            replica.is_cut_off = is_cut_off;
        }
    }

    pub(super) fn cut_off_one(&mut self, random: &mut Random) {
        if !self.replicas.is_empty() {
            let nodes: Vec<_> = self.replicas.keys().copied().collect();
            self.cut_off(*random.pick(&nodes), true);
        }
    }
}

/// The resources that differ in a database after these changes.
fn changed<'e>(effects: impl Iterator<Item = &'e Effect>) -> BTreeSet<Resource> {
    let names = effects.filter_map(|effect| if let Effect::Copy(names) = effect { Some(names) } else { None });
    names.flatten().cloned().collect()
}

impl World {
    pub(super) fn has_replicas(&self) -> bool {
        self.nodes.len() > 1 && self.cluster.is_none()
    }

    /// The number of replicas of a primary.
    pub(super) fn replicas(&self) -> usize {
        if self.has_replicas() { self.nodes.len() - 1 } else { 0 }
    }

    /// Whether a node still behaves as the primary that it was.
    pub(super) fn is_stale(&self, node: usize) -> bool {
        self.cluster.is_none() && node != self.primary && !self.nodes[node].server.is_replica
    }

    /// Hands on the changes that a node has just made for a connection.
    pub(super) fn replicate(&mut self, node: usize, connection: Option<usize>) {
        let effects = self.nodes[node].server.take_effects();
        if node != self.primary || effects.is_empty() {
            return;
        }
        self.replication.log.extend(effects);
        if let Some(connection) = connection.and_then(|id| self.connections.get_mut(&id)) {
            connection.changes = self.replication.end();
        }
        self.send_changes();
    }

    /// Sends the replicas what they do not have.
    pub(super) fn send_changes(&mut self) {
        let (term, upto, lag) = (self.replication.term, self.replication.end(), self.replication.lag);
        let Self { replication, random, nodes, .. } = self;
        let database = nodes[self.primary].server.data.database.as_ref();
        let mut mail = Vec::new();
        for (node, replica) in &mut replication.replicas {
            let is_behind = replica.made < upto && !replica.is_cut_off;
            if is_behind && !std::mem::replace(&mut replica.has_mail, true) {
                let changed = changed(replication.log.range(replica.made - replication.dropped..));
                let copy = database.map(|database| database.part(&changed));
                mail.push((*node, Duration::from_nanos(random.below(lag.as_nanos() as u64 + 1)), copy));
            }
        }
        for (node, delay, copy) in mail {
            self.at(self.now + delay, Happening::Replication(Event::Changes { node, term, upto, copy }));
        }
    }

    /// Ends the fault that cut a replica off. A failover under way cuts off all, and connects them
    /// to the new primary.
    pub(super) fn connect_replicas(&mut self) {
        if self.replication.is_failing_over {
            return;
        }
        self.replication.replicas.values_mut().for_each(|replica| replica.is_cut_off = false);
        self.send_changes();
    }

    pub(super) fn on_replication(&mut self, event: Event) {
        match event {
            Event::Changes { node, term, upto, copy } if term == self.replication.term => {
                self.make_changes(node, upto, copy);
            }
            Event::Acknowledged { node, term, made } if term == self.replication.term => {
                if let Some(replica) = self.replication.replicas.get_mut(&node) {
                    replica.acknowledged = made.max(replica.acknowledged);
                }
                self.end_waits();
            }
            Event::Changes { .. } | Event::Acknowledged { .. } => {}
            Event::WaitEnds(id) => self.end_wait(id),
            Event::Promoted { node, failover } => self.promote(node, failover),
            Event::Demoted { node, closes } => self.demote(node, closes),
            Event::Attached(node) => self.attach(node),
        }
    }

    fn make_changes(&mut self, node: usize, upto: usize, copy: Option<Database>) {
        let Replication { log, dropped, replicas, term, .. } = &mut self.replication;
        let Some(replica) = replicas.get_mut(&node) else { return };
        replica.has_mail = false;
        if replica.is_cut_off {
            return;
        }
        // The replica may have got all data since.
        let upto = upto.max(replica.made);
        let effects = log.range(replica.made - *dropped..upto - *dropped);
        let data = &mut self.nodes[node].server.data;
        if let (Some(copy), Some(database)) = (&copy, &data.database) {
            copy.copy_to(database, &changed(effects.clone()));
        }
        effects.for_each(|effect| data.repeat(effect.clone()));
        replica.made = upto;
        let event = Event::Acknowledged { node, term: *term, made: upto };
        self.replication.trim();
        let delay = self.weather.delay(&mut self.random);
        self.at(self.now + delay, Happening::Replication(event));
        self.send_changes();
    }

    /// Carries out WAIT: replies once so many replicas have all changes of the connection.
    pub(super) fn await_replicas(&mut self, id: usize, replicas: usize, timeout: Duration) {
        let end = self.at(self.now + timeout, Happening::Replication(Event::WaitEnds(id)));
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.held_back = Some(Vec::new());
        self.replication.waits.insert(id, Wait { replicas, end });
        self.end_waits();
    }

    /// How many replicas have all changes of a connection. The replicas of a primary that was
    /// replaced have left it.
    fn replicas_of(&self, id: usize) -> usize {
        let Some(connection) = self.connections.get(&id) else { return 0 };
        if connection.node == Some(self.primary) { self.replication.count(connection.changes) } else { 0 }
    }

    fn end_waits(&mut self) {
        let waits = self.replication.waits.iter();
        let done: Vec<_> =
            waits.filter(|(id, wait)| self.replicas_of(**id) >= wait.replicas).map(|(id, _)| *id).collect();
        done.into_iter().for_each(|id| self.end_wait(id));
    }

    fn end_wait(&mut self, id: usize) {
        let count = self.replicas_of(id);
        self.note(|| format!("connection {id}: {count} replicas have its changes"));
        self.forget_wait(id);
        self.send_to_client(id, ToClient::Reply(Ok(Value::Int(count as i64))));
        self.let_go(id);
    }

    pub(super) fn forget_wait(&mut self, id: usize) {
        if let Some(end) = self.replication.forget(id) {
            self.queue.remove(&end);
        }
    }

    /// Begins a failover; returns how long it takes.
    pub(super) fn fail_over(&mut self) -> Duration {
        if std::mem::replace(&mut self.replication.is_failing_over, true) {
            return Duration::ZERO;
        }
        let candidates: Vec<_> = self.replication.replicas.keys().copied().collect();
        let failover = *self.random.pick(&[Failover::Crash, Failover::Partition, Failover::Order]);
        let Some(node) = (!candidates.is_empty()).then(|| *self.random.pick(&candidates)) else {
            self.replication.is_failing_over = false;
            return Duration::ZERO;
        };
        let delay = self.between(Duration::ZERO, MS(3000));
        let delay = match failover {
            Failover::Crash => {
                let until = self.now + delay + self.between(Duration::ZERO, MS(3000));
                self.stop_node(self.primary, until);
                delay
            }
            Failover::Partition => {
                self.replication.replicas.values_mut().for_each(|replica| replica.is_cut_off = true);
                delay
            }
            Failover::Order => Duration::ZERO,
        };
        self.at(self.now + delay, Happening::Replication(Event::Promoted { node, failover }));
        delay
    }

    fn promote(&mut self, node: usize, failover: Failover) {
        let old = self.primary;
        self.note(|| format!("node {node}: takes the place of node {old}"));
        self.lose_what_is_missing(old, node);
        self.primary = node;
        let Replication { term, lag, waits, .. } = std::mem::take(&mut self.replication);
        self.replication = Replication { term: term + 1, lag, waits, is_failing_over: true, ..Replication::default() };
        self.nodes[old].server.effects = None;
        self.nodes[node].server.is_replica = false;
        self.nodes[node].server.effects = Some(Vec::new());
        self.checkers.disturb(self.now);
        for other in (0..self.nodes.len()).filter(|other| *other != node && *other != old) {
            let at = self.now + self.between(Duration::ZERO, MS(1000));
            self.at(at, Happening::Replication(Event::Attached(other)));
        }
        let closes = self.location.has_sentinels();
        let at = match failover {
            // The Sentinels leave the old primary in its role for some seconds.
            Failover::Order if closes => self.now + self.between(Duration::ZERO, MS(10_000)),
            Failover::Order => self.now,
            Failover::Crash | Failover::Partition => {
                self.now.max(self.nodes[old].down_until) + self.between(Duration::ZERO, MS(2000))
            }
        };
        self.at(at, Happening::Replication(Event::Demoted { node: old, closes }));
        self.announce(node);
    }

    /// Takes note of what the new primary does not have. A grant counts as lost too if its lease
    /// ends there too early, because a renewal is missing or the clocks differ, or if a shrink or a
    /// downgrade is missing.
    fn lose_what_is_missing(&mut self, old: usize, new: usize) {
        // The margin of the shortest lease, less what clocks differ in that time.
        const SLACK: Duration = Duration::from_millis(40);
        self.nodes[new].server.data.requests = self.nodes[old].server.data.requests.clone();
        self.nodes[new].server.data.reload();
        let [before, after] = [old, new].map(|node| self.holders(node));
        self.checkers.give_back(&before, &after);
        let [old, new] = [old, new].map(|node| &self.nodes[node]);
        let now = new.store_time(self.now);
        for run in self.checkers.live() {
            let id = self.checkers.runs[run].session;
            let Some(held) = old.server.session(id).filter(|session| session.is_holder()) else { continue };
            let ends = held.expiry.map(|expiry| old.when_store_time(expiry));
            let claims = |session: &Session| -> Vec<_> { session.claims.iter().map(|it| it.claim.clone()).collect() };
            let is_same = |session: &Session| session.tokens() == held.tokens() && claims(session) == claims(held);
            let kept = new.server.session(id).filter(|session| session.is_holder() && is_same(session));
            let kept_until = kept.map(|session| session.expiry.map(|expiry| new.when_store_time(expiry) + SLACK));
            if kept_until.is_none_or(|until| until < ends) {
                self.checkers.lose(run);
            }
        }
        // From now on, the clock of the new primary ends the kept holds.
        for run in self.checkers.kept.runs().copied().collect::<Vec<_>>() {
            let session = new.server.session(self.checkers.runs[run].session).filter(|session| session.is_kept());
            if let Some((session, expiry)) = session.and_then(|session| Some((session, session.expiry?))) {
                let ahead = new.ahead(session, self.now);
                self.checkers.kept.keep(run, new.when_store_time(expiry), ahead);
            }
        }
        let back = old.store_time(self.now) - now;
        if old.server.data.is_ahead_of(&new.server.data) {
            self.checkers.lose_tokens();
        }
        // A token that only the old primary knew may be ahead of the clock of the new one.
        self.checkers.forget_tokens_after(now.as_micros());
        if !back.is_zero() {
            self.checkers.go_back(back, self.now);
        }
        self.checkers.lose_places(self.now);
    }

    fn demote(&mut self, node: usize, closes: bool) {
        self.note(|| format!("node {node}: becomes a replica"));
        self.nodes[node].server.is_replica = true;
        // The server ends what waits for its replicas.
        let waits: Vec<_> = self.replication.waits.keys().copied().collect();
        for id in waits {
            if self.connections.get(&id).is_some_and(|connection| connection.node == Some(node)) {
                self.forget_wait(id);
                self.send_to_client(id, ToClient::Reply(Err(wire::error(UNBLOCKED))));
                self.cut(id);
            }
        }
        if closes {
            self.cut_all(node);
        }
        let at = self.now + self.between(Duration::ZERO, MS(500));
        self.at(at, Happening::Replication(Event::Attached(node)));
        self.replication.is_failing_over = false;
        self.checkers.disturb(self.now);
    }

    pub(super) fn attach(&mut self, node: usize) {
        if node == self.primary {
            return;
        }
        let data = self.primary().server.data.clone();
        self.primary().server.effects.get_or_insert_default();
        self.nodes[node].server.receive(data);
        let made = self.replication.end();
        self.replication.replicas.insert(node, Replica { made, acknowledged: made, ..Replica::default() });
    }

    /// Gives the replicas what is left after the primary has lost data.
    pub(super) fn attach_all(&mut self) {
        let nodes: Vec<_> = self.replication.replicas.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.attach(node));
    }
}

const UNBLOCKED: &str = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
