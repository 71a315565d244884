//! Finds the requests that wait for each other in a circle, across resources.
//!
//! One request holds nothing while it waits, so a circle needs nested requests: a holder whose
//! command waits for a request below it. The detector follows what waits for what:
//!
//! - a waiter waits for the holders and the earlier waiters that block it, as the table decides;
//! - a holder waits for the waiters **below** it: its command runs until they are done.
//!
//! Siblings below one hold do not wait for each other, so they are no circle. A waiter for a slot
//! waits for any one of those that take the slots, so it is stuck only if all of them are. A kept
//! hold ends at its instant and waits for nobody.
//!
//! The detector has no clock and no I/O. It is told what a reading of some resources has found, and
//! says which resources to read next. Readings of several resources are not atomic, so only what
//! two readings in a row have seen counts: the same sessions, waiting for each other in the same
//! way. A session makes one request, so what both readings saw was so in between, too.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;

use super::conflict::blocked_by;
use super::index::Rank;
use super::mode::Mode;
use super::op::ResourceListing;
use super::overtaking::{Overtaken, Queues, awaited};
use super::records::{ClaimRecord, Phase, Session};
use super::request::{Claim, Job, Process, SessionId};
use super::resource::Resource;
use super::span::Span;

/// Maximum number of resources that a reading asks for beside those of the request, twice: those
/// that each reading asks for, and a part of the rest.
const NAMES_MAX: usize = 256;

/// Maximum number of resources that the readings of a round ask for beside those of the request.
const FOLLOWED_MAX: usize = 4_096;

/// Maximum number of claims on a resource that count as reasons to wait. More would make the search
/// slow. A request behind more claims still waits for the first of them.
const CLAIMS_MAX: usize = 1_000;

/// Number of readings in a row that a younger request of a circle gets to end itself before the
/// next older request ends. The younger request may be stopped, or it may not look.
const PATIENCE: u32 = 5;

/// The sessions that hold or wait for the resources of a reading, with their claims on these
/// resources.
pub type Reading = BTreeMap<SessionId, Session>;

/// The sessions of a listing of all resources, to find the circles in it. `ancestors` tells below
/// which sessions a session runs, innermost first.
pub fn reading_of(listings: &[ResourceListing], ancestors: impl Fn(SessionId) -> Vec<SessionId>) -> Reading {
    let mut reading = Reading::new();
    for listing in listings {
        let mut add = |session, phase, asked, process: &Process, record: ClaimRecord| {
            let new = || Session {
                ancestors: ancestors(session),
                claims: Vec::new(),
                phase,
                asked,
                since: asked,
                expiry: None,
                terms: None,
                job: Job::default(),
                last: None,
                process: process.clone(),
            };
            reading.entry(session).or_insert_with(new).claims.push(record);
        };
        let record = |session, mode: Mode, span: &Span, slots, position: Option<u32>| {
            // A slot above is shared even if a nearer hold includes the claim.
            let is_slot_above = |above| listing.holders.iter().any(|it| it.session == above && it.mode == Mode::Slot);
            let shares = mode == Mode::Slot && ancestors(session).into_iter().any(is_slot_above);
            let rank = position.map_or(Rank::HELD, |position| Rank::waiting(position.into()));
            let claim = Claim { resource: listing.name.clone(), mode, span: span.clone(), slots };
            ClaimRecord { claim, rank, token: 0, shares, slot: None }
        };
        for it in &listing.holders {
            let phase = if it.kept { Phase::Kept } else { Phase::Held };
            add(it.session, phase, it.since, &it.process, record(it.session, it.mode, &it.span, it.slots, None));
        }
        for it in &listing.waiters {
            let record = record(it.session, it.mode, &it.span, it.slots, Some(it.position));
            add(it.session, Phase::Waiting, it.since, &it.process, record);
        }
    }
    reading
}

/// A set of sessions.
type Set = BTreeSet<SessionId>;

/// What one session waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wait {
    /// All of these have to end.
    all: Set,
    /// For each resource of which all slots are taken: their number, and the sessions that take
    /// them.
    slots: BTreeMap<Resource, (u32, Set)>,
    /// For a holder, the waiters below it. The holder ends no sooner than each of them.
    below: Set,
}

impl Wait {
    /// For a waiter, the sessions that block it.
    fn blockers(&self) -> impl Iterator<Item = &SessionId> {
        self.all.iter().chain(self.slots.values().flat_map(|(_, takers)| takers))
    }
}

/// What the sessions of a reading wait for. A session that waits for nobody is not in the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    waits: BTreeMap<SessionId, Wait>,
}

impl Graph {
    /// The graph of a reading.
    pub fn new(reading: &Reading) -> Self {
        let claims = Claims::new(reading);
        let mut graph = Self::default();
        for (id, session) in reading.iter().filter(|(_, session)| !session.is_holder()) {
            graph.add(*id, claims.seen_by(*id, session).wait(*id, session));
            for ancestor in &session.ancestors {
                let holds = |above: &&Session| matches!(above.phase, Phase::Held | Phase::Granted);
                if reading.get(ancestor).filter(holds).is_some() {
                    graph.waits.entry(*ancestor).or_default().below.insert(*id);
                }
            }
        }
        graph
    }

    fn add(&mut self, id: SessionId, wait: Wait) {
        if wait != Wait::default() {
            self.waits.insert(id, wait);
        }
    }

    /// What both graphs have.
    fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::default();
        let common = |one: &Set, two: &Set| one.intersection(two).copied().collect();
        for (id, one) in &self.waits {
            let Some(two) = other.waits.get(id) else { continue };
            let slots = one.slots.iter().filter_map(|(name, (slots, takers))| {
                let (same, others) = two.slots.get(name)?;
                (slots == same).then(|| (name.clone(), (*slots, common(takers, others))))
            });
            let wait =
                Wait { slots: slots.collect(), all: common(&one.all, &two.all), below: common(&one.below, &two.below) };
            both.add(*id, wait);
        }
        both
    }

    /// The sessions that no progress of others can help: each waits for another of them.
    fn stuck(&self) -> Set {
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
        for (slots, takers) in wait.slots.values() {
            let takers: Set = takers.intersection(among).copied().collect();
            if takers.len() >= *slots as usize {
                edges.extend(takers);
            }
        }
        edges
    }

    /// What a session waits for: a waiter for those that block it, a holder for the waiters below
    /// it.
    pub fn waits_for(&self, id: SessionId) -> Set {
        let Some(wait) = self.waits.get(&id) else { return Set::new() };
        wait.blockers().chain(&wait.below).copied().collect()
    }

    /// The groups of sessions that wait for each other, directly or through others. Every session
    /// of a group is in a circle.
    pub fn circles(&self) -> Vec<Set> {
        let stuck = self.stuck();
        let mut left = stuck.clone();
        let mut circles = Vec::new();
        while let Some(id) = left.pop_first() {
            let circle = self.circle(id, &stuck);
            left.retain(|other| !circle.contains(other));
            circles.extend((!circle.is_empty()).then_some(circle));
        }
        circles
    }

    /// The sessions that wait for this one and that it waits for, with itself; empty if it is in no
    /// circle.
    fn circle(&self, id: SessionId, stuck: &Set) -> Set {
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

    /// The shortest way from a session of a circle back to itself.
    fn way_around(&self, id: SessionId, circle: &Set) -> Vec<SessionId> {
        let mut ways: BTreeMap<SessionId, SessionId> = BTreeMap::new();
        let mut next = VecDeque::from([id]);
        while let Some(from) = next.pop_front() {
            for to in self.edges(from, circle) {
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

/// The claims of a reading, on each resource in the order of their ranks.
#[derive(Clone, Debug)]
pub struct Claims<'r> {
    reading: &'r Reading,
    by_resource: BTreeMap<&'r Resource, Vec<(SessionId, &'r Session, &'r ClaimRecord)>>,
    /// The waiters that may overtake others of a resource.
    overtakers: BTreeSet<(&'r Resource, SessionId)>,
    /// The same claims, with all nested waiters as overtakers.
    cautious: OnceCell<Box<Claims<'r>>>,
}

impl<'r> Claims<'r> {
    /// The claims of a reading.
    pub fn new(reading: &'r Reading) -> Self {
        let mut by_resource: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (id, session) in reading {
            for record in &session.claims {
                by_resource.entry(&record.claim.resource).or_default().push((*id, session, record));
            }
        }
        for claims in by_resource.values_mut() {
            claims.sort_by_key(|(id, _, record)| (record.rank, *id));
            claims.truncate(CLAIMS_MAX);
        }
        let mut claims = Self { reading, by_resource, overtakers: BTreeSet::new(), cautious: OnceCell::new() };
        let nests = |(_, session): &(&SessionId, &Session)| !session.is_holder() && !session.ancestors.is_empty();
        let mut nested: Vec<_> = reading.iter().filter(nests).collect();
        // Whether a waiter overtakes others depends on those ahead only.
        nested.sort_by_key(|(_, session)| session.place());
        for (id, session) in nested {
            for name in session.resources() {
                if claims.overtakes_any(name, (*id, session)) {
                    claims.overtakers.insert((name, *id));
                }
            }
        }
        claims
    }

    /// The sessions that block a waiting claim of a session. They block it as the table decides,
    /// with overtaking and shared slots.
    pub fn blockers(&self, id: SessionId, claim: &Claim) -> BTreeSet<SessionId> {
        let mut wait = Wait::default();
        if let Some(session) = self.reading.get(&id).filter(|session| !session.is_holder()) {
            let claims = self.seen_by(id, session);
            for record in session.claims.iter().filter(|record| record.claim == *claim) {
                claims.look_at(id, session, record, &mut wait);
            }
        }
        wait.blockers().copied().collect()
    }

    /// Whether a waiter of a resource is behind another that it would heed and that waits for one
    /// of its ancestors. That is what the table notes. `overtakers` has those ahead already.
    fn overtakes_any(&self, name: &Resource, (id, waiter): (SessionId, &Session)) -> bool {
        self.ahead(name, (id, waiter)).any(|(ahead, its_session, its)| {
            let Ok(awaited) = match waiter.claims.iter().any(|own| is_heeded(&own.claim, &its.claim)) {
                true => awaited(self, (ahead, its_session), &waiter.ancestors),
                false => Ok(None),
            };
            awaited.is_some()
        })
    }

    /// The waiting claims on a resource ahead of a waiter, in their order.
    fn ahead(
        &self,
        name: &Resource,
        (id, waiter): (SessionId, &Session),
    ) -> impl Iterator<Item = (SessionId, &'r Session, &'r ClaimRecord)> {
        let own = waiter.claims.iter().find(|record| record.claim.resource == *name);
        let before = own.map_or(Rank::HELD, |record| record.rank);
        let claims = self.by_resource.get(name).into_iter().flatten().copied();
        let waiting = claims.skip_while(|(_, _, its)| its.rank.is_held());
        waiting.take_while(move |(_, _, its)| its.rank < before).filter(move |(other, ..)| *other != id)
    }

    /// The claims as the table sees them for a waiter.
    ///
    /// The table notes a nested waiter as an overtaker when the waiter joins the queue, and keeps
    /// the note when the waiter's ancestor or the overtaken waiter has left. A request overtakes a
    /// noted waiter only if that waiter itself waits for an ancestor of the request, and not because
    /// of the waiters ahead. A reading does not have the notes. So if a nested session waits and
    /// nobody here blocks the session, it waits as if all nested waiters were noted.
    fn seen_by(&self, id: SessionId, session: &Session) -> &Self {
        let is_exact = session.ancestors.is_empty() || self.wait(id, session).blockers().next().is_some();
        if is_exact { self } else { self.cautious() }
    }

    fn cautious(&self) -> &Self {
        self.cautious.get_or_init(|| {
            let nested = self.reading.iter().filter(|(_, session)| !session.ancestors.is_empty());
            let noted = nested.flat_map(|(id, session)| session.resources().into_iter().map(|name| (name, *id)));
            Box::new(Self { overtakers: noted.collect(), cautious: OnceCell::new(), ..self.clone() })
        })
    }

    /// What a session waits for.
    fn wait(&self, id: SessionId, session: &Session) -> Wait {
        let mut wait = Wait::default();
        session.claims.iter().for_each(|record| self.look_at(id, session, record, &mut wait));
        wait
    }

    /// Adds what a waiting claim waits for, by the one rule and its exception.
    fn look_at(&self, id: SessionId, session: &Session, record: &ClaimRecord, wait: &mut Wait) {
        let claim = &record.claim;
        let mut takers = Set::new();
        let mut overtaken = Overtaken::default();
        for (other, its_session, its) in self.by_resource.get(&claim.resource).into_iter().flatten() {
            let is_ahead = its.rank < record.rank;
            let is_strange = *other != id && !session.ancestors.contains(other);
            if !is_ahead || !is_strange || !its.claim.span.overlaps(&claim.span) {
                continue;
            }
            let clashes = claim.mode.clashes_with(its.claim.mode);
            let takes = claim.mode == Mode::Slot && its.claim.mode == Mode::Slot && !its.shares;
            if !clashes && !takes {
                continue;
            }
            if !its.rank.is_held() && !session.ancestors.is_empty() {
                let heeds_all = !self.overtakers.contains(&(&claim.resource, *other));
                let awaited = || awaited(self, (*other, its_session), &session.ancestors);
                let Ok(is_overtaken) = overtaken.has(&claim.resource, its_session, heeds_all, awaited);
                if is_overtaken {
                    continue;
                }
            }
            if clashes {
                wait.all.insert(*other)
            } else {
                takers.insert(*other)
            };
        }
        let slots = claim.slots.unwrap_or(0);
        if claim.mode == Mode::Slot && !record.shares && takers.len() >= slots as usize {
            wait.slots.insert(claim.resource.clone(), (slots, takers));
        }
    }
}

/// Whether a claim heeds one ahead of it in the queue.
fn is_heeded(claim: &Claim, ahead: &Claim) -> bool {
    claim.resource == ahead.resource && claim.span.overlaps(&ahead.span) && blocked_by(claim.mode).contains(ahead.mode)
}

impl Queues for Claims<'_> {
    type Error = Infallible;

    fn session(&self, id: SessionId) -> Result<Option<Cow<'_, Session>>, Infallible> {
        Ok(self.reading.get(&id).map(Cow::Borrowed))
    }

    fn heeded(
        &self,
        name: &Resource,
        waiter: (SessionId, &Session),
        limit: usize,
    ) -> Result<Vec<Cow<'_, Session>>, Infallible> {
        if self.overtakers.contains(&(name, waiter.0)) {
            return Ok(Vec::new());
        }
        let mut found: Vec<(SessionId, &Session)> = Vec::new();
        for (id, session, _) in self.ahead(name, waiter) {
            let is_new = found.last().is_none_or(|(last, _)| *last != id);
            if is_new && found.len() == limit {
                break;
            }
            found.extend(is_new.then_some((id, session)));
        }
        Ok(found.into_iter().map(|(_, session)| Cow::Borrowed(session)).collect())
    }
}

/// One session of a circle, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The session.
    pub session: SessionId,
    /// For a waiter, its claim, and the claim of the next session in the circle that blocks it. For
    /// a holder `None`: it waits for the request below it.
    pub blocked: Option<(ClaimRecord, ClaimRecord)>,
}

/// A circle in which a session waits for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The circle, which begins with the session that looked.
    pub links: Vec<Link>,
    /// The request to end: the youngest nested one of those that wait for each other, or an older
    /// one if the youngest does not end.
    pub ends: SessionId,
}

/// Follows one waiting request until it finds that the request waits for itself.
///
/// The names that could close a circle may be too many for one reading. The names of the request
/// and the nearest others are then in each reading, and the rest in one after another. These
/// readings are a round. Two rounds in a row count as two readings in a row: each name was read in
/// both, so what both have seen was so between them.
#[derive(Clone, Debug)]
pub struct Detector {
    session: SessionId,
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
    /// For each request of the circle, how many readings or rounds in a row have seen it there.
    seen: BTreeMap<SessionId, u32>,
}

impl Detector {
    /// A detector for the request of `session`. `own` are the resources of the request and those
    /// that its ancestors hold, as far as they are known.
    pub fn new(session: SessionId, own: impl IntoIterator<Item = Resource>) -> Self {
        let mut seen = BTreeSet::new();
        let own: Vec<_> = own.into_iter().filter(|name| seen.insert(name.clone())).collect();
        Self {
            session,
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

    /// The resources to read next.
    pub fn names(&self) -> &[Resource] {
        &self.names
    }

    /// Takes in a reading of [`names`](Self::names). Returns a deadlock that this reading and the
    /// one before have seen, or this round of readings and the one before.
    pub fn read(&mut self, reading: &Reading) -> Option<Deadlock> {
        let graph = Graph::new(reading);
        let names: BTreeSet<_> = std::mem::take(&mut self.names).into_iter().collect();
        let circle = self.circle(reading, &graph, &self.before, &names);
        let mut deadlock = circle.and_then(|circle| self.deadlock(reading, circle));
        let is_last = self.rest.is_empty();
        if is_last && self.round_names.is_empty() {
            (self.near, self.rest) = self.next_names(reading, &graph);
            self.round_before.clone_from(&graph);
        } else {
            merge(&mut self.round, reading.clone());
            self.round_names.extend(names);
            if is_last {
                let (round, names) = (std::mem::take(&mut self.round), std::mem::take(&mut self.round_names));
                let graph = Graph::new(&round);
                if deadlock.is_none() {
                    let circle = self.circle(&round, &graph, &self.round_before, &names);
                    deadlock = circle.and_then(|circle| self.deadlock(&round, circle));
                }
                (self.near, self.rest) = self.next_names(&round, &graph);
                self.round_before = graph;
            }
        }
        self.before = graph;
        let page = self.rest.len().min(NAMES_MAX);
        self.names = self.near.iter().cloned().chain(self.rest.drain(..page)).collect();
        // Some circles show in whole rounds only.
        if deadlock.is_none() && is_last {
            self.seen.clear();
        }
        deadlock
    }

    /// The sessions in a circle with this one, in what both graphs have seen, with that graph.
    /// `names` are the resources of the reading.
    fn circle(
        &self,
        reading: &Reading,
        graph: &Graph,
        before: &Graph,
        names: &BTreeSet<Resource>,
    ) -> Option<(Graph, Set)> {
        let mut stable = graph.intersection(before);
        stable.waits.retain(|id, _| has_read_all_of(names, &reading[id]));
        let circle = stable.circle(self.session, &stable.stuck());
        (!circle.is_empty()).then_some((stable, circle))
    }

    /// Decides which request of a circle has to end. A circle without nested requests is none.
    fn deadlock(&mut self, reading: &Reading, (stable, circle): (Graph, Set)) -> Option<Deadlock> {
        let is_nested = |id: &SessionId| reading.get(id).is_some_and(|it| !it.is_holder() && !it.ancestors.is_empty());
        let mut nested: Vec<_> = circle.iter().copied().filter(is_nested).collect();
        nested.sort_by_key(|id| Reverse((reading[id].asked, *id)));
        let before = std::mem::take(&mut self.seen);
        self.seen = nested.iter().map(|id| (*id, before.get(id).map_or(1, |readings| readings + 1))).collect();
        let youngest = *nested.first()?;
        let place = nested.iter().position(|id| *id == self.session);
        let younger = &nested[..place.unwrap_or_default()];
        // Those between a younger request and this one have their turn in between.
        let has_had_time = |(id, turns): (&SessionId, u32)| self.seen[id] > PATIENCE * turns;
        let may_end = place.is_some() && younger.iter().rev().zip(1..).all(has_had_time);
        let ends = if may_end { self.session } else { youngest };
        let way = stable.way_around(self.session, &circle);
        Some(Deadlock { links: links(reading, &way), ends })
    }

    /// The resources that could close a circle: those that each reading of the next round asks for,
    /// and the rest. A waiter that waits for the family of this request may be nested itself. Then
    /// other waiters may wait for the resources that its ancestors hold. A circle leads through
    /// nested waiters, so their resources come first: a crowd of others must not hide them.
    fn next_names(&self, reading: &Reading, graph: &Graph) -> (Vec<Resource>, VecDeque<Resource>) {
        let mut near = self.own.clone();
        let Some(own) = reading.get(&self.session) else { return (near, VecDeque::new()) };
        let mut behind: BTreeMap<SessionId, Set> = BTreeMap::new();
        for (id, wait) in &graph.waits {
            for other in wait.blockers() {
                behind.entry(*other).or_default().insert(*id);
            }
        }
        let family = || own.ancestors.iter().chain([&self.session]).copied();
        let mut seen: Set = family().collect();
        let mut next: VecDeque<_> = family().collect();
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

fn links(reading: &Reading, way: &[SessionId]) -> Vec<Link> {
    let next = way.iter().cycle().skip(1);
    let link = |(session, next): (&SessionId, &SessionId)| {
        let (waiter, blocker) = (&reading[session], &reading[next]);
        let blocks = |one: &ClaimRecord, other: &ClaimRecord| {
            let slots = one.claim.mode == Mode::Slot && other.claim.mode == Mode::Slot;
            one.claim.resource == other.claim.resource
                && (other.rank.is_held() || other.rank < one.rank)
                && one.claim.span.overlaps(&other.claim.span)
                && (slots || one.claim.mode.clashes_with(other.claim.mode))
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
