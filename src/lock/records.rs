//! Where the table keeps its state: the records, the trait through which it reaches them, and the one in memory.
//!
//! The table reads and writes only what an operation touches, so that a store on disk can be put under it as it is.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;

use super::index::{Node, Rank, Tree};
use super::request::{Claim, Micros, Process, SessionId, Terms};
use super::resource::Resource;

/// One claim of a session, and how far it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRecord {
    /// The claim.
    pub claim: Claim,
    /// Its place in the order.
    pub rank: Rank,
    /// The fencing token, or 0 while it waits.
    pub token: u64,
    /// See [`super::index::Entry::shares`].
    pub shares: bool,
}

/// A session: a holder when its claims are held, a waiter before that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The sessions above it, innermost first.
    pub ancestors: Vec<SessionId>,
    /// Its claims: all held or all waiting.
    pub claims: Vec<ClaimRecord>,
    /// Since when it holds, or waits.
    pub since: Micros,
    /// When its lease is over, where it has one.
    pub expiry: Option<Micros>,
    /// The leases it asked for.
    pub terms: Option<Terms>,
    /// The process behind it.
    pub process: Process,
}

impl Session {
    /// Whether its request is granted.
    pub fn is_holder(&self) -> bool {
        self.claims.iter().all(|claim| claim.rank.is_held())
    }

    /// The tokens, claim by claim.
    pub fn tokens(&self) -> Vec<u64> {
        self.claims.iter().map(|claim| claim.token).collect()
    }
}

/// A resource that somebody holds or waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceState {
    /// The last token that was given out.
    pub last_token: u64,
    /// Into how many slots it is shared; stored while `slot_claims` is above 0.
    pub slots: u32,
    /// How many claims in mode slot there are, held and waiting.
    pub slot_claims: u32,
    /// How many of those are shares of a slot that an ancestor holds.
    pub shared_slots: u32,
    /// How many claims are held.
    pub held: u32,
    /// How many claims wait.
    pub waiting: u32,
    /// The claims by place.
    pub tree: Tree,
}

/// The table's memory. A method that changes one record leaves all others alone.
pub trait Records {
    /// What can go wrong in reaching them.
    type Error;

    /// The session, if it holds or waits.
    ///
    /// # Errors
    /// The store can't be used; likewise below.
    fn session(&self, id: SessionId) -> Result<Option<Session>, Self::Error>;
    /// Sets a session.
    fn put_session(&mut self, id: SessionId, session: Session) -> Result<(), Self::Error>;
    /// Forgets a session.
    fn remove_session(&mut self, id: SessionId) -> Result<(), Self::Error>;

    /// The state of a resource, if anybody holds or waits.
    fn resource(&self, name: &Resource) -> Result<Option<Cow<'_, ResourceState>>, Self::Error>;
    /// The state of a resource, to be changed and put back.
    fn take_resource(&mut self, name: &Resource) -> Result<Option<ResourceState>, Self::Error>;
    /// Sets the state of a resource.
    fn put_resource(&mut self, name: &Resource, state: ResourceState) -> Result<(), Self::Error>;
    /// Forgets a resource; its tree is empty by then.
    fn remove_resource(&mut self, name: &Resource) -> Result<(), Self::Error>;
    /// The names of all resources, in order.
    fn resources(&self) -> Result<Vec<Resource>, Self::Error>;

    /// A node of a resource's tree.
    fn node(&self, name: &Resource, id: u32) -> Result<Cow<'_, Node>, Self::Error>;
    /// A node, to be changed and put back or removed.
    fn take_node(&mut self, name: &Resource, id: u32) -> Result<Node, Self::Error>;
    /// Sets a node.
    fn put_node(&mut self, name: &Resource, id: u32, node: Node) -> Result<(), Self::Error>;
    /// Forgets a node.
    fn remove_node(&mut self, name: &Resource, id: u32) -> Result<(), Self::Error>;

    /// The next number of a queued request: 1, 2, ….
    fn next_seq(&mut self) -> Result<u64, Self::Error>;
    /// A session whose lease is over at `now`, the one that ended first.
    fn due(&self, now: Micros) -> Result<Option<SessionId>, Self::Error>;
}

/// Records in memory.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    sessions: HashMap<SessionId, Session>,
    expiries: BTreeSet<(Micros, SessionId)>,
    resources: BTreeMap<Resource, ResourceState>,
    nodes: BTreeMap<Resource, Nodes>,
    seq: u64,
}

impl Memory {
    /// Whether nothing is held, waits, or was left behind.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.expiries.is_empty() && self.resources.is_empty() && self.nodes.is_empty()
    }
}

/// The nodes of one tree by their numbers, which a tree gives out in order.
#[derive(Clone, Debug, Default)]
struct Nodes {
    slots: Vec<Option<Node>>,
    used: usize,
}

impl Nodes {
    fn put(&mut self, id: u32, node: Node) {
        let at = id as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.used += usize::from(self.slots[at].replace(node).is_none());
    }

    fn take(&mut self, id: u32) -> Option<Node> {
        let node = self.slots.get_mut(id as usize).and_then(Option::take);
        self.used -= usize::from(node.is_some());
        node
    }
}

/// What a tree points to is there: the table puts a node before it points to it.
const MISSING: &str = "the tree of a resource names only nodes that exist";

impl Records for Memory {
    type Error = Infallible;

    fn session(&self, id: SessionId) -> Result<Option<Session>, Infallible> {
        Ok(self.sessions.get(&id).cloned())
    }

    fn put_session(&mut self, id: SessionId, session: Session) -> Result<(), Infallible> {
        self.remove_session(id)?;
        self.expiries.extend(session.expiry.map(|expiry| (expiry, id)));
        self.sessions.insert(id, session);
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
        let slot = self.nodes.get(name).and_then(|nodes| nodes.slots.get(id as usize));
        Ok(Cow::Borrowed(slot.and_then(Option::as_ref).expect(MISSING)))
    }

    fn take_node(&mut self, name: &Resource, id: u32) -> Result<Node, Infallible> {
        Ok(self.nodes.get_mut(name).and_then(|nodes| nodes.take(id)).expect(MISSING))
    }

    fn put_node(&mut self, name: &Resource, id: u32, node: Node) -> Result<(), Infallible> {
        match self.nodes.get_mut(name) {
            Some(nodes) => nodes.put(id, node),
            None => self.nodes.entry(name.clone()).or_default().put(id, node),
        }
        Ok(())
    }

    fn remove_node(&mut self, name: &Resource, id: u32) -> Result<(), Infallible> {
        if let Some(nodes) = self.nodes.get_mut(name) {
            nodes.take(id);
            if nodes.used == 0 {
                self.nodes.remove(name);
            }
        }
        Ok(())
    }

    fn next_seq(&mut self) -> Result<u64, Infallible> {
        self.seq += 1;
        Ok(self.seq)
    }

    fn due(&self, now: Micros) -> Result<Option<SessionId>, Infallible> {
        Ok(self.expiries.first().filter(|(expiry, _)| *expiry <= now).map(|(_, id)| *id))
    }
}
