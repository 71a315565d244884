//! The state of the lock table: its records, the trait that reads and writes them, and an
//! implementation in memory.
//!
//! The table reads and writes only the records that an operation touches, so a store on disk can
//! implement the trait directly.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;

use serde::{Deserialize, Serialize};

use super::conflict::Needs;
use super::index::{Node, Rank, Tree};
use super::past::{Ending, Entry, Past};
use super::remember::{self, Ungranted};
use super::request::{self, Claim, Job, Process, SessionId, Terms};
use super::resource::Resource;
use rlock_sys::clock::StoreTime;

/// One claim of a session, with its rank and token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// The claim.
    pub claim: Claim,
    /// The place of the claim in the order of grants.
    pub rank: Rank,
    /// The fencing token, or 0 while the claim waits.
    pub token: u64,
    /// See [`super::index::Entry::shares`].
    pub shares: bool,
    /// See [`super::index::Entry::slot`].
    pub slot: Option<u32>,
}

/// The phase of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The claims wait.
    Waiting,
    /// The claims were granted from the queue, and the session has not claimed the grant yet. No
    /// command runs.
    Granted,
    /// The claims are held, and their command runs.
    Held,
    /// The claims are held without a process until the expiry.
    Kept,
}

/// The demand of an operator that a session gives its grant back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// The instant of the first demand.
    pub at: StoreTime,
    /// The process that made the last demand.
    pub by: Process,
}

/// A session: a holder if its claims are held, otherwise a waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The sessions whose commands this session runs below, innermost first.
    pub ancestors: Vec<SessionId>,
    /// The claims of the session, which are all held or all waiting.
    pub claims: Vec<ClaimRecord>,
    /// The phase.
    pub phase: Phase,
    /// The instant of the request. A request that was passed over keeps its instant.
    pub asked: StoreTime,
    /// The instant at which the session became a holder or a waiter.
    pub since: StoreTime,
    /// The instant at which the lease or the kept hold ends, if there is one.
    pub expiry: Option<StoreTime>,
    /// The lengths of the leases that the session asked for.
    pub terms: Option<Terms>,
    /// The command of the request.
    pub job: Job,
    /// How the last hold of the first resource had ended when this session was granted its request.
    pub last: Option<Ending>,
    /// The rlock process of the session.
    pub process: Process,
    /// The revocation of the grant, if there is one. The session holds until it gives the grant
    /// back.
    #[serde(skip)]
    pub revoked: Option<Revocation>,
    /// What later versions have added to the session.
    #[serde(skip)]
    pub later: Later,
}

/// Optional fields of a record that this version does not know, each with its number and its bytes.
/// They stay with the record.
pub type Later = Vec<(u8, Vec<u8>)>;

impl Session {
    /// Whether the request of the session is granted.
    pub fn is_holder(&self) -> bool {
        self.phase != Phase::Waiting
    }

    /// Whether the session holds its claims without a process.
    pub fn is_kept(&self) -> bool {
        self.phase == Phase::Kept
    }

    /// Whether the lease, the place in the queue or the kept hold is over.
    pub fn is_over(&self, now: StoreTime) -> bool {
        self.expiry.is_some_and(|expiry| expiry <= now)
    }

    /// Whether the session has a claim on one of these resources, or none is named.
    pub fn concerns(&self, names: &[Resource]) -> bool {
        names.is_empty() || self.claims.iter().any(|record| names.contains(&record.claim.resource))
    }

    /// The resources of the session, each once.
    pub fn resources(&self) -> Vec<&Resource> {
        request::resources(self.claims.iter().map(|record| &record.claim))
    }

    /// The number of the request in the queue; 0 for a holder.
    pub fn place(&self) -> u64 {
        self.claims.iter().map(|claim| claim.rank.seq()).max().unwrap_or(0)
    }

    /// The token of each claim, in the order of the claims.
    pub fn tokens(&self) -> Vec<u64> {
        self.claims.iter().map(|claim| claim.token).collect()
    }

    /// The claims, with one for all slots of a resource.
    pub(super) fn distinct_claims(&self) -> impl Iterator<Item = &ClaimRecord> {
        self.claims.chunk_by(|one, other| one.claim == other.claim).filter_map(<[_]>::first)
    }

    /// The claims as they were requested.
    pub(super) fn requested(&self) -> Vec<Claim> {
        self.claims.iter().map(|record| record.claim.clone()).collect()
    }

    /// The request of a waiter that ends without a grant, with its [claims](Self::requested).
    pub(super) fn ungranted<'a>(&'a self, claims: &'a [Claim]) -> Ungranted<'a> {
        let Self { job, process, ancestors, asked, .. } = self;
        Ungranted { claims, job, process, ancestors, asked: *asked }
    }

    /// What the session needs of the slots of the resource of a claim.
    pub(super) fn slots_needed(&self, of: &ClaimRecord) -> Needs {
        let claims = self.claims.iter().map(|record| &record.claim);
        Needs { slots: request::slots_of(claims, &of.claim.resource), shares: of.shares }
    }

    /// The numbers of the held slots, in the order of their claims.
    pub fn slots(&self) -> Vec<u32> {
        self.claims.iter().filter_map(|claim| claim.slot).collect()
    }
}

/// The state of a resource that is held or waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceState {
    /// The last token that was issued for the resource.
    pub last_token: u64,
    /// The number of claims in mode slot, held and waiting.
    pub slot_claims: u32,
    /// The number of claims in mode slot that share an ancestor's slot.
    pub shared_slots: u32,
    /// The number of held claims.
    pub held: u32,
    /// The number of waiting claims.
    pub waiting: u32,
    /// The claims, ordered by where their spans begin.
    pub tree: Tree,
    /// The number of waiting claims of sessions with ancestors, which may overtake.
    pub waiting_below: u32,
    /// The waiters that may overtake an earlier one: see `overtaking`.
    pub overtakers: BTreeSet<SessionId>,
}

/// The storage of the table. A method that changes one record leaves all other records alone.
pub trait Records {
    /// The error of a storage that can't be read or written.
    type Error;

    /// The session, if it is a holder or a waiter.
    ///
    /// # Errors
    /// Every method of this trait returns an error if the store can't be used.
    fn session(&self, id: SessionId) -> Result<Option<Session>, Self::Error>;
    /// Inserts or replaces a session.
    fn put_session(&mut self, id: SessionId, session: Session) -> Result<(), Self::Error>;
    /// Removes a session.
    fn remove_session(&mut self, id: SessionId) -> Result<(), Self::Error>;

    /// The state of a resource, if a session holds it or waits for it.
    fn resource(&self, name: &Resource) -> Result<Option<Cow<'_, ResourceState>>, Self::Error>;
    /// Takes the state of a resource out. The caller changes it and puts it back.
    fn take_resource(&mut self, name: &Resource) -> Result<Option<ResourceState>, Self::Error> {
        Ok(self.resource(name)?.map(Cow::into_owned))
    }
    /// Inserts or replaces the state of a resource.
    fn put_resource(&mut self, name: &Resource, state: ResourceState) -> Result<(), Self::Error>;
    /// Removes a resource, whose tree is already empty.
    fn remove_resource(&mut self, name: &Resource) -> Result<(), Self::Error>;
    /// The names of all resources, in order.
    fn resources(&self) -> Result<Vec<Resource>, Self::Error>;

    /// A node of a resource's tree.
    fn node(&self, name: &Resource, id: u32) -> Result<Cow<'_, Node>, Self::Error>;
    /// Takes a node out. The caller changes it, then puts it back or removes it.
    fn take_node(&mut self, name: &Resource, id: u32) -> Result<Node, Self::Error> {
        self.node(name, id).map(Cow::into_owned)
    }
    /// Inserts or replaces a node.
    fn put_node(&mut self, name: &Resource, id: u32, node: Node) -> Result<(), Self::Error>;
    /// Removes a node.
    fn remove_node(&mut self, name: &Resource, id: u32) -> Result<(), Self::Error>;

    /// The highest number of a queued request so far; 0 before the first.
    fn last_seq(&self) -> Result<u64, Self::Error>;
    /// Stores the highest number of a queued request.
    fn put_last_seq(&mut self, seq: u64) -> Result<(), Self::Error>;
    /// The session whose lease ended first, if a lease has ended by `now`.
    fn due(&self, now: StoreTime) -> Result<Option<SessionId>, Self::Error>;

    /// Whether the past may grow. Without room the table adds to the past nothing but successes
    /// that must not be forgotten.
    fn has_room(&self) -> Result<bool, Self::Error> {
        Ok(true)
    }
    /// Lets some of the resources that were idle longest forget what they need not keep, until
    /// there is room. Returns how many it has looked at.
    fn forget_idle(&mut self, now: StoreTime) -> Result<usize, Self::Error>
    where
        Self: Sized,
    {
        remember::forget_idle(self, now)
    }
    /// The past of a resource.
    fn past(&self, name: &Resource) -> Result<Option<Past>, Self::Error>;
    /// Inserts or replaces the past of a resource. `known` is the instant by which the records find
    /// the past so far, if there is one.
    fn put_past(&mut self, name: &Resource, past: Past, known: Option<StoreTime>) -> Result<(), Self::Error>;
    /// Removes the past of a resource, whose ring is already empty. The records find it by
    /// `check_at`.
    fn remove_past(&mut self, name: &Resource, check_at: StoreTime) -> Result<(), Self::Error>;
    /// The first [`Past::check_at`], and the resource whose past has it.
    fn first_to_check(&self) -> Result<Option<(StoreTime, Resource)>, Self::Error>;

    /// An entry of a resource's ring.
    fn entry(&self, name: &Resource, number: u64) -> Result<Option<Entry>, Self::Error>;
    /// Inserts or replaces an entry.
    fn put_entry(&mut self, name: &Resource, number: u64, entry: Entry) -> Result<(), Self::Error>;
    /// Removes an entry.
    fn remove_entry(&mut self, name: &Resource, number: u64) -> Result<(), Self::Error>;
}

/// Records in memory.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    sessions: BTreeMap<SessionId, Session>,
    expiries: BTreeSet<(StoreTime, SessionId)>,
    resources: BTreeMap<Resource, ResourceState>,
    nodes: HashMap<(Resource, u32), Node>,
    seq: u64,
    pasts: BTreeMap<Resource, Past>,
    checks: BTreeSet<(StoreTime, Resource)>,
    entries: BTreeMap<(Resource, u64), Entry>,
    /// How many pasts and entries there may be before the past stops to grow, if that is limited.
    room: Option<usize>,
}

impl Memory {
    /// Records in which the past stops to grow at so many pasts and entries.
    pub fn with_room(room: usize) -> Self {
        Self { room: Some(room), ..Self::default() }
    }

    /// Whether no session, expiry, resource or node is left.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.expiries.is_empty() && self.resources.is_empty() && self.nodes.is_empty()
    }

    /// Whether the past of every resource is forgotten.
    pub fn is_forgotten(&self) -> bool {
        self.pasts.is_empty() && self.checks.is_empty() && self.entries.is_empty()
    }

    /// How many pasts and entries there are.
    pub fn remembered(&self) -> usize {
        self.pasts.len() + self.entries.len()
    }

    /// The session, if it is a holder or a waiter.
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// The sessions with a lease, in the order in which their leases end.
    pub fn by_expiry(&self) -> impl Iterator<Item = (StoreTime, &Session)> {
        self.expiries.iter().filter_map(|(expiry, id)| Some((*expiry, self.get(*id)?)))
    }
}

/// The table puts a node into the records before it stores the node's number in the tree.
const MISSING: &str = "the tree of a resource names only nodes that exist";

impl Records for Memory {
    type Error = Infallible;

    fn session(&self, id: SessionId) -> Result<Option<Session>, Infallible> {
        Ok(self.sessions.get(&id).cloned())
    }

    fn put_session(&mut self, id: SessionId, session: Session) -> Result<(), Infallible> {
        let expiry = session.expiry;
        if let Some(old) = self.sessions.insert(id, session).and_then(|old| old.expiry) {
            self.expiries.remove(&(old, id));
        }
        self.expiries.extend(expiry.map(|expiry| (expiry, id)));
        Ok(())
    }

    fn remove_session(&mut self, id: SessionId) -> Result<(), Infallible> {
        if let Some(expiry) = self.sessions.remove(&id).and_then(|session| session.expiry) {
            self.expiries.remove(&(expiry, id));
        }
        Ok(())
    }

    fn resource(&self, name: &Resource) -> Result<Option<Cow<'_, ResourceState>>, Infallible> {
        Ok(self.resources.get(name).map(Cow::Borrowed))
    }

    fn take_resource(&mut self, name: &Resource) -> Result<Option<ResourceState>, Infallible> {
        Ok(self.resources.remove(name))
    }

    fn put_resource(&mut self, name: &Resource, state: ResourceState) -> Result<(), Infallible> {
        self.resources.insert(name.clone(), state);
        Ok(())
    }

    fn remove_resource(&mut self, name: &Resource) -> Result<(), Infallible> {
        self.resources.remove(name);
        Ok(())
    }

    fn resources(&self) -> Result<Vec<Resource>, Infallible> {
        Ok(self.resources.keys().cloned().collect())
    }

    fn node(&self, name: &Resource, id: u32) -> Result<Cow<'_, Node>, Infallible> {
        Ok(Cow::Borrowed(self.nodes.get(&(name.clone(), id)).expect(MISSING)))
    }

    fn take_node(&mut self, name: &Resource, id: u32) -> Result<Node, Infallible> {
        Ok(self.nodes.remove(&(name.clone(), id)).expect(MISSING))
    }

    fn put_node(&mut self, name: &Resource, id: u32, node: Node) -> Result<(), Infallible> {
        self.nodes.insert((name.clone(), id), node);
        Ok(())
    }

    fn remove_node(&mut self, name: &Resource, id: u32) -> Result<(), Infallible> {
        self.nodes.remove(&(name.clone(), id));
        Ok(())
    }

    fn last_seq(&self) -> Result<u64, Infallible> {
        Ok(self.seq)
    }

    fn put_last_seq(&mut self, seq: u64) -> Result<(), Infallible> {
        self.seq = seq;
        Ok(())
    }

    fn due(&self, now: StoreTime) -> Result<Option<SessionId>, Infallible> {
        Ok(self.expiries.first().filter(|(expiry, _)| *expiry <= now).map(|(_, id)| *id))
    }

    fn has_room(&self) -> Result<bool, Infallible> {
        Ok(self.room.is_none_or(|room| self.remembered() < room))
    }

    fn past(&self, name: &Resource) -> Result<Option<Past>, Infallible> {
        Ok(self.pasts.get(name).cloned())
    }

    fn put_past(&mut self, name: &Resource, past: Past, known: Option<StoreTime>) -> Result<(), Infallible> {
        known.map(|at| self.checks.remove(&(at, name.clone())));
        self.checks.insert((past.check_at, name.clone()));
        self.pasts.insert(name.clone(), past);
        Ok(())
    }

    fn remove_past(&mut self, name: &Resource, check_at: StoreTime) -> Result<(), Infallible> {
        self.checks.remove(&(check_at, name.clone()));
        self.pasts.remove(name);
        Ok(())
    }

    fn first_to_check(&self) -> Result<Option<(StoreTime, Resource)>, Infallible> {
        Ok(self.checks.first().cloned())
    }

    fn entry(&self, name: &Resource, number: u64) -> Result<Option<Entry>, Infallible> {
        Ok(self.entries.get(&(name.clone(), number)).cloned())
    }

    fn put_entry(&mut self, name: &Resource, number: u64, entry: Entry) -> Result<(), Infallible> {
        self.entries.insert((name.clone(), number), entry);
        Ok(())
    }

    fn remove_entry(&mut self, name: &Resource, number: u64) -> Result<(), Infallible> {
        self.entries.remove(&(name.clone(), number));
        Ok(())
    }
}
