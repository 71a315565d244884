//! What waits for what among the sessions of a reading, and the cycles in that.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::conflict::{Taker, are_full};
use crate::records::Session;
use crate::request::{Claim, SessionId};
use crate::resource::Resource;
use crate::table::LockTable;
use rlock_sys::clock::StoreTime;

/// The sessions that hold or wait for the resources of a reading, with their claims on these
/// resources.
pub type Reading = BTreeMap<SessionId, Session>;

/// Maximum number of claims on a resource that count as reasons to wait. More would make the search
/// slow. A request behind more claims still waits for the first of them.
const CLAIMS_MAX: u32 = 1_000;

/// A set of sessions.
pub(super) type Set = BTreeSet<SessionId>;

/// What one session waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wait {
    /// All of these have to end.
    all: Set,
    /// For each resource of which too few slots are free: how many the session needs, of how many,
    /// and the claims that take slots.
    slots: BTreeMap<Resource, ((usize, u32), Vec<Taker>)>,
    /// For a holder, the waiters below it. The holder ends no sooner than each of them.
    below: Set,
}

impl Wait {
    /// For a waiter, the sessions that block it.
    pub(super) fn blockers(&self) -> impl Iterator<Item = &SessionId> {
        self.all.iter().chain(self.slots.values().flat_map(|(_, takers)| takers.iter().map(|taker| &taker.session)))
    }
}

/// What the sessions of a reading wait for. A session that waits for nobody is not in the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    pub(super) waits: BTreeMap<SessionId, Wait>,
}

impl Graph {
    /// The graph of a reading. A kept hold without an end counts as a holder whose command waits
    /// for the requests below it: only its owner ends it. Any other kept hold ends by itself.
    pub fn new(reading: &Reading) -> Self {
        Self::seen(reading, |_, kept| kept.expiry == Some(StoreTime::NEVER))
    }

    /// The graph of a reading in which these kept holds count as holders that wait.
    pub fn seen(reading: &Reading, stays: impl Fn(SessionId, &Session) -> bool) -> Self {
        let claims = Claims::new(reading);
        let mut graph = Self::default();
        for (id, session) in reading.iter().filter(|(_, session)| !session.is_holder()) {
            graph.add(*id, claims.wait(*id, session));
            graph.add_below(reading, *id, &session.ancestors, &stays);
        }
        graph
    }

    /// Adds that these sessions wait for a waiter below them, as far as they hold something.
    pub(super) fn add_below<'s>(
        &mut self,
        reading: &Reading,
        waiter: SessionId,
        above: impl IntoIterator<Item = &'s SessionId>,
        stays: impl Fn(SessionId, &Session) -> bool,
    ) {
        let waits = |id, above: &Session| above.is_holder() && (!above.is_kept() || stays(id, above));
        for ancestor in above {
            if reading.get(ancestor).is_some_and(|above| waits(*ancestor, above)) {
                self.waits.entry(*ancestor).or_default().below.insert(waiter);
            }
        }
    }

    fn add(&mut self, id: SessionId, wait: Wait) {
        if wait != Wait::default() {
            self.waits.insert(id, wait);
        }
    }

    /// What both graphs have.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::default();
        let common = |one: &Set, two: &Set| one.intersection(two).copied().collect();
        for (id, one) in &self.waits {
            let Some(two) = other.waits.get(id) else { continue };
            let slots = one.slots.iter().filter_map(|(name, (wanted, takers))| {
                let (_, others) = two.slots.get(name).filter(|two| two.0 == *wanted)?;
                let common = takers.iter().filter(|taker| others.contains(taker)).copied();
                Some((name.clone(), (*wanted, common.collect())))
            });
            let wait =
                Wait { slots: slots.collect(), all: common(&one.all, &two.all), below: common(&one.below, &two.below) };
            both.add(*id, wait);
        }
        both
    }

    /// The sessions that no progress of others can help: each waits for another of them.
    pub(super) fn stuck(&self) -> Set {
        let mut stuck: Set = self.waits.keys().copied().collect();
        loop {
            let before = stuck.len();
            let is_stuck = |id: &SessionId| !self.edges(*id, &stuck).is_empty();
            let still: Set = stuck.iter().copied().filter(is_stuck).collect();
            if still.len() == before {
                return stuck;
            }
            stuck = still;
        }
    }

    /// What a session waits for among these sessions, as far as that keeps it waiting.
    fn edges(&self, id: SessionId, among: &Set) -> Set {
        let Some(wait) = self.waits.get(&id) else { return Set::new() };
        let mut edges: Set = wait.all.union(&wait.below).filter(|other| among.contains(other)).copied().collect();
        for (wanted, takers) in wait.slots.values() {
            let takers: Vec<_> = takers.iter().filter(|taker| among.contains(&taker.session)).copied().collect();
            if are_full(&takers, *wanted) {
                edges.extend(takers.iter().map(|taker| taker.session));
            }
        }
        edges
    }

    /// The groups of sessions that wait for each other, directly or through others. Every session
    /// of a group is in a cycle.
    pub fn cycles(&self) -> Vec<Set> {
        let stuck = self.stuck();
        let mut left = stuck.clone();
        let mut cycles = Vec::new();
        while let Some(id) = left.pop_first() {
            let cycle = self.cycle(id, &stuck);
            left.retain(|other| !cycle.contains(other));
            cycles.extend((!cycle.is_empty()).then_some(cycle));
        }
        cycles
    }

    /// The sessions that wait for this one and that it waits for, with itself; empty if it is in no
    /// cycle.
    pub(super) fn cycle(&self, id: SessionId, stuck: &Set) -> Set {
        let ahead = reached(id, |id| self.edges(id, stuck));
        if !ahead.contains(&id) {
            return Set::new();
        }
        let mut behind: BTreeMap<SessionId, Set> = BTreeMap::new();
        for from in &ahead {
            for to in self.edges(*from, stuck) {
                behind.entry(to).or_default().insert(*from);
            }
        }
        reached(id, |id| behind.get(&id).cloned().unwrap_or_default())
    }

    /// The shortest way from a session of a cycle back to itself.
    pub(super) fn way_around(&self, id: SessionId, cycle: &Set) -> Vec<SessionId> {
        let mut ways: BTreeMap<SessionId, SessionId> = BTreeMap::new();
        let mut next = VecDeque::from([id]);
        while let Some(from) = next.pop_front() {
            for to in self.edges(from, cycle) {
                if ways.contains_key(&to) {
                    continue;
                }
                ways.insert(to, from);
                next.push_back(to);
            }
        }
        let mut way = Vec::new();
        let mut at = id;
        while let Some(from) = ways.get(&at).filter(|_| way.first() != Some(&id)) {
            way.insert(0, *from);
            at = *from;
        }
        way
    }
}

/// The sessions that a session reaches in one or more steps.
fn reached(from: SessionId, edges: impl Fn(SessionId) -> Set) -> Set {
    let mut found = Set::new();
    let mut next = vec![from];
    while let Some(id) = next.pop() {
        next.extend(edges(id).into_iter().filter(|other| found.insert(*other)));
    }
    found
}

/// The sessions of a reading in a table of their own, which decides what blocks a waiter.
#[derive(Clone, Debug)]
pub struct Claims<'r> {
    reading: &'r Reading,
    table: LockTable,
    /// The same table, with all nested waiters noted as overtakers.
    cautious: OnceCell<LockTable>,
    /// The same table, with no waiter noted as an overtaker.
    strict: OnceCell<LockTable>,
}

impl<'r> Claims<'r> {
    /// The claims of a reading.
    pub fn new(reading: &'r Reading) -> Self {
        let table = LockTable::of(reading, CLAIMS_MAX);
        Self { reading, table, cautious: OnceCell::new(), strict: OnceCell::new() }
    }

    /// The sessions that block a waiting claim of a session. They block it as the table decides,
    /// with overtaking and shared slots.
    pub fn blockers(&self, id: SessionId, claim: &Claim) -> BTreeSet<SessionId> {
        let Some(session) = self.reading.get(&id) else { return BTreeSet::new() };
        let wait = wait(self.seen_by(id, session), (id, session), |its| its == claim);
        wait.blockers().copied().collect()
    }

    /// What a session waits for.
    fn wait(&self, id: SessionId, session: &Session) -> Wait {
        wait(self.seen_by(id, session), (id, session), |_| true)
    }

    /// The table as it is for a waiter.
    ///
    /// The table notes a nested waiter as an overtaker when the waiter joins the queue, and keeps
    /// the note when the waiter's ancestor or the overtaken waiter has left. A request overtakes a
    /// noted waiter only if that waiter itself waits for an ancestor of the request, and not
    /// because of the waiters ahead. A reading does not have the notes. So if a nested session
    /// waits and nobody here blocks the session, it waits as if all nested waiters were noted. If
    /// nobody blocks it then either, it is not noted itself: a waiter has returned ahead of it.
    fn seen_by(&self, id: SessionId, session: &Session) -> &LockTable {
        let is_blocked = |table: &&LockTable| wait(table, (id, session), |_| true).blockers().next().is_some();
        if session.ancestors.is_empty() || is_blocked(&&self.table) {
            return &self.table;
        }
        let cautious =
            self.cautious.get_or_init(|| self.table.with_noted(self.reading, |waiter| !waiter.ancestors.is_empty()));
        let strict = || self.strict.get_or_init(|| self.table.with_noted(self.reading, |_| false));
        if is_blocked(&cautious) { cautious } else { strict() }
    }
}

/// What a session waits for with some of its claims.
fn wait(table: &LockTable, (id, session): (SessionId, &Session), wanted: impl Fn(&Claim) -> bool) -> Wait {
    let mut wait = Wait::default();
    for record in session.distinct_claims().filter(|record| !record.rank.is_held() && wanted(&record.claim)) {
        let found = table.all_blockers(id, session, record);
        wait.all.extend(found.clashing);
        if !found.takers.is_empty() {
            wait.slots.insert(record.claim.resource.clone(), (found.wanted, found.takers));
        }
    }
    wait
}
