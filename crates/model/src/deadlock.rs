//! Finds the requests that wait for each other in a cycle, across resources.
//!
//! One request holds nothing while it waits, so a cycle needs nested requests: a holder whose
//! command waits for a request below it. The detector follows what waits for what:
//!
//! - a waiter waits for the holders and the earlier waiters that block it, as the table decides;
//! - a holder waits for the waiters **below** it: its command runs until they are done.
//!
//! Siblings below one hold do not wait for each other, so they are no cycle. A waiter for a slot
//! waits for any one of those that take the slots, so it is stuck only if all of them are.
//!
//! A kept hold ends at its instant, so a waiter for one is not stuck. But a request below a kept
//! hold relies on it, and the owner releases the hold after that request. So a kept hold counts as
//! a holder for the requests below it, and for each request whose own wait is over before the hold.
//!
//! The detector has no clock and no I/O. It is told what a reading of some resources has found, and
//! says which resources to read next. Readings of several resources are not atomic, so only what
//! two readings in a row have seen counts: the same sessions, waiting for each other in the same
//! way. A session makes one request, so what both readings saw was so in between, too.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::conflict::may_block;
use super::index::Rank;
use super::records::{ClaimRecord, Session};
use super::request::SessionId;
use super::resource::Resource;
use rlock_sys::clock::StoreTime;

mod graph;

use graph::Set;
pub use graph::{Claims, Graph, Reading};

/// Maximum number of resources that a reading asks for beside those of the request, twice: those
/// that each reading asks for, and a part of the rest.
const NAMES_MAX: usize = 256;

/// Maximum number of resources that the readings of a round ask for beside those of the request.
const FOLLOWED_MAX: usize = 4_096;

/// Number of readings in a row that a younger request of a cycle gets to end itself before the
/// next older request ends. The younger request may be stopped, or it may not look.
const PATIENCE: u32 = 5;

/// One session of a cycle, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The session.
    pub session: SessionId,
    /// For a waiter, its claim, and the claim of the next session in the cycle that blocks it. For
    /// a holder `None`: it waits for the request below it.
    pub blocked: Option<(ClaimRecord, ClaimRecord)>,
}

/// A cycle in which a session waits for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The cycle, which begins with the session that looked.
    pub links: Vec<Link>,
    /// The request to end: the youngest nested one of those that wait for each other, or an older
    /// one if the youngest does not end.
    pub ends: SessionId,
}

/// Follows one waiting request until it finds that the request waits for itself.
///
/// The names that could close a cycle may be too many for one reading. The names of the request
/// and the nearest others are then in each reading, and the rest in one after another. These
/// readings are a round. Two rounds in a row count as two readings in a row: each name was read in
/// both, so what both have seen was so between them.
#[derive(Clone, Debug)]
pub struct Detector {
    session: SessionId,
    /// See [`runs_below`](Self::runs_below).
    above: Vec<SessionId>,
    /// How long the request waits at most, if that is limited.
    wait: Option<Duration>,
    /// The resources of the request, and those that its ancestors hold.
    own: Vec<Resource>,
    /// The resources that each reading of the round asks for.
    near: Vec<Resource>,
    /// The resources that the later readings of the round ask for.
    rest: VecDeque<Resource>,
    names: Vec<Resource>,
    before: Graph,
    /// What the readings of the round have found so far, and what they have asked for.
    round: Reading,
    round_names: BTreeSet<Resource>,
    round_before: Graph,
    /// For each request of the cycle, how many readings or rounds in a row have seen it there.
    seen: BTreeMap<SessionId, u32>,
}

impl Detector {
    /// A detector for the request of `session`, which waits for so long at most. `own` are the
    /// resources of the request and those that its ancestors hold, as far as they are known.
    pub fn new(session: SessionId, wait: Option<Duration>, own: impl IntoIterator<Item = Resource>) -> Self {
        let mut seen = BTreeSet::new();
        let own: Vec<_> = own.into_iter().filter(|name| seen.insert(name.clone())).collect();
        Self {
            session,
            above: Vec::new(),
            wait,
            near: own.clone(),
            rest: VecDeque::new(),
            names: own.clone(),
            own,
            before: Graph::default(),
            round: Reading::new(),
            round_names: BTreeSet::new(),
            round_before: Graph::default(),
            seen: BTreeMap::new(),
        }
    }

    /// The session that looks.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Looks for another session from now on, which makes the same request.
    pub fn rename(&mut self, session: SessionId) {
        self.session = session;
    }

    /// The resources to read next.
    pub fn names(&self) -> &[Resource] {
        &self.names
    }

    /// States which holders of the next reading run their commands around the process of this
    /// request. They wait for the request, and so do their ancestors, as if the request named them.
    pub fn runs_below(&mut self, holders: Vec<SessionId>) {
        self.above = holders;
    }

    /// The stated holders that the request does not name as its ancestors.
    pub fn unnamed(&self, reading: &Reading) -> Vec<SessionId> {
        let named = reading.get(&self.session).map_or(&[][..], |own| &own.ancestors);
        self.above.iter().copied().filter(|id| !named.contains(id)).collect()
    }

    /// What the sessions of a reading wait for.
    fn graph(&self, reading: &Reading) -> Graph {
        let (own, family) = (reading.get(&self.session), self.family(reading));
        let outlasts = |id, kept: &Session| own.is_some_and(|own| outlasts((id, kept), own, self.wait));
        let stays = |id, kept: &Session| family.contains(&id) || outlasts(id, kept);
        let mut graph = Graph::seen(reading, stays);
        graph.add_below(reading, self.session, &family, stays);
        graph
    }

    /// The sessions whose commands this request runs below.
    fn family(&self, reading: &Reading) -> BTreeSet<SessionId> {
        let known = std::iter::once(&self.session).chain(&self.above).filter_map(|id| reading.get(id));
        known.flat_map(|session| session.ancestors.iter()).chain(&self.above).copied().collect()
    }

    /// Takes in a reading of [`names`](Self::names). Returns a deadlock that this reading and the
    /// one before have seen, or this round of readings and the one before.
    pub fn read(&mut self, reading: &Reading) -> Option<Deadlock> {
        let graph = self.graph(reading);
        let names: BTreeSet<_> = std::mem::take(&mut self.names).into_iter().collect();
        let cycle = self.cycle(reading, &graph, &self.before, &names);
        let mut deadlock = cycle.and_then(|cycle| self.deadlock(reading, cycle));
        let is_last = self.rest.is_empty();
        if is_last && self.round_names.is_empty() {
            (self.near, self.rest) = self.next_names(reading, &graph);
            self.round_before.clone_from(&graph);
        } else {
            merge(&mut self.round, reading.clone());
            self.round_names.extend(names);
            if is_last {
                let (round, names) = (std::mem::take(&mut self.round), std::mem::take(&mut self.round_names));
                let graph = self.graph(&round);
                if deadlock.is_none() {
                    let cycle = self.cycle(&round, &graph, &self.round_before, &names);
                    deadlock = cycle.and_then(|cycle| self.deadlock(&round, cycle));
                }
                (self.near, self.rest) = self.next_names(&round, &graph);
                self.round_before = graph;
            }
        }
        self.before = graph;
        let page = self.rest.len().min(NAMES_MAX);
        self.names = self.near.iter().cloned().chain(self.rest.drain(..page)).collect();
        // Some cycles show in whole rounds only.
        if deadlock.is_none() && is_last {
            self.seen.clear();
        }
        deadlock
    }

    /// The sessions in a cycle with this one, in what both graphs have seen, with that graph.
    /// `names` are the resources of the reading.
    fn cycle(
        &self,
        reading: &Reading,
        graph: &Graph,
        before: &Graph,
        names: &BTreeSet<Resource>,
    ) -> Option<(Graph, Set)> {
        let mut stable = graph.intersection(before);
        stable.waits.retain(|id, _| has_read_all_of(names, &reading[id]));
        let cycle = stable.cycle(self.session, &stable.stuck());
        (!cycle.is_empty()).then_some((stable, cycle))
    }

    /// Decides which request of a cycle has to end. A cycle without nested requests is none.
    fn deadlock(&mut self, reading: &Reading, (stable, cycle): (Graph, Set)) -> Option<Deadlock> {
        let has_ancestors =
            |id: &SessionId, it: &Session| !it.ancestors.is_empty() || *id == self.session && !self.above.is_empty();
        let is_nested = |id: &SessionId| reading.get(id).is_some_and(|it| !it.is_holder() && has_ancestors(id, it));
        let mut nested: Vec<_> = cycle.iter().copied().filter(is_nested).collect();
        nested.sort_unstable_by_key(|id| Reverse((reading[id].asked, *id)));
        let before = std::mem::take(&mut self.seen);
        self.seen = nested.iter().map(|id| (*id, before.get(id).map_or(1, |readings| readings + 1))).collect();
        let youngest = *nested.first()?;
        let place = nested.iter().position(|id| *id == self.session);
        let younger = &nested[..place.unwrap_or_default()];
        // Those between a younger request and this one have their turn in between.
        let has_had_time = |(id, turns): (&SessionId, u32)| self.seen[id] > PATIENCE * turns;
        let may_end = place.is_some() && younger.iter().rev().zip(1..).all(has_had_time);
        let ends = if may_end { self.session } else { youngest };
        let way = stable.way_around(self.session, &cycle);
        Some(Deadlock { links: links(reading, &way), ends })
    }

    /// The resources that could close a cycle: those that each reading of the next round asks for,
    /// and the rest. A waiter that waits for the family of this request may be nested itself. Then
    /// other waiters may wait for the resources that its ancestors hold. A cycle leads through
    /// nested waiters, so their resources come first: a crowd of others must not hide them.
    fn next_names(&self, reading: &Reading, graph: &Graph) -> (Vec<Resource>, VecDeque<Resource>) {
        let mut near = self.own.clone();
        if !reading.contains_key(&self.session) {
            return (near, VecDeque::new());
        }
        let mut behind: BTreeMap<SessionId, Set> = BTreeMap::new();
        for (id, wait) in &graph.waits {
            for other in wait.blockers() {
                behind.entry(*other).or_default().insert(*id);
            }
        }
        let mut seen: Set = self.family(reading).into_iter().chain([self.session]).collect();
        let mut next: VecDeque<_> = seen.iter().copied().collect();
        let (mut nested, mut others) = (Vec::new(), Vec::new());
        while let Some(awaited) = next.pop_front() {
            for waiter in behind.get(&awaited).into_iter().flatten() {
                let session = &reading[waiter];
                let names = if session.ancestors.is_empty() { &mut others } else { &mut nested };
                names.extend(session.resources().into_iter().chain(&session.job.held_above));
                for met in std::iter::once(waiter).chain(&session.ancestors) {
                    if seen.insert(*met) {
                        next.push_back(*met);
                    }
                }
            }
        }
        let mut known: BTreeSet<_> = self.own.iter().collect();
        let mut rest: VecDeque<_> = nested.into_iter().chain(others).filter(|name| known.insert(*name)).collect();
        rest.truncate(FOLLOWED_MAX);
        near.extend(rest.drain(..rest.len().min(NAMES_MAX)).cloned());
        (near, rest.into_iter().cloned().collect())
    }
}

/// Whether a session is a holder, or a waiter that waits for what the reading of these names says.
/// A nested waiter overtakes others because of what its ancestors hold, and because of what the
/// others wait for elsewhere. Without these names it could seem to wait for a waiter that it
/// overtakes.
fn has_read_all_of(names: &BTreeSet<Resource>, session: &Session) -> bool {
    let has_read = |name: &Resource| names.contains(name);
    session.is_holder() || session.resources().into_iter().chain(&session.job.held_above).all(has_read)
}

/// Adds a later reading of some resources to one of others. A session that has been granted its
/// request since is a holder.
pub fn merge(reading: &mut Reading, later: Reading) {
    for (id, mut session) in later {
        if let Some(known) = reading.remove(&id).filter(|known| known.is_holder() == session.is_holder()) {
            let read: BTreeSet<_> = session.resources().into_iter().cloned().collect();
            session.claims.extend(known.claims.into_iter().filter(|record| !read.contains(&record.claim.resource)));
            let names: BTreeSet<_> = session.job.held_above.iter().cloned().collect();
            session.job.held_above.extend(known.job.held_above.into_iter().filter(|name| !names.contains(name)));
        }
        reading.insert(id, session);
    }
}

/// Whether a kept hold counts as a holder that waits, for a request that waits for so long at most:
/// the hold is around the request, or does not end before the wait.
pub fn outlasts((id, kept): (SessionId, &Session), own: &Session, wait: Option<Duration>) -> bool {
    let over_at = wait.map_or(StoreTime::NEVER, |wait| own.asked + wait);
    own.ancestors.contains(&id) || kept.expiry >= Some(over_at)
}

fn links(reading: &Reading, way: &[SessionId]) -> Vec<Link> {
    let next = way.iter().cycle().skip(1);
    let link = |(session, next): (&SessionId, &SessionId)| {
        let (waiter, blocker) = (&reading[session], &reading[next]);
        let blocks = |one: &ClaimRecord, other: &ClaimRecord| {
            one.claim.resource == other.claim.resource
                && (other.rank.is_held() || other.rank < one.rank)
                && may_block(&one.claim, other.claim.mode, &other.claim.span)
        };
        let pairs = waiter.claims.iter().flat_map(|one| blocker.claims.iter().map(move |other| (one, other)));
        let waits = |(one, other): &(&ClaimRecord, &ClaimRecord)| one.rank != Rank::HELD && blocks(one, other);
        let blocked = pairs.into_iter().find(waits).map(|(one, other)| (one.clone(), other.clone()));
        Link { session: *session, blocked }
    };
    way.iter().zip(next).map(link).collect()
}

#[cfg(test)]
mod tests;
