//! The claims on one resource, held and waiting, ordered by where their spans begin.
//!
//! The index is a B+-tree. For each child, an inner node stores where the child's claims end at the
//! latest and which modes they have. This makes the tree an interval tree (Cormen et al.,
//! "Introduction to Algorithms", augmented trees). The search for a conflicting claim skips every
//! subtree that is disjoint, compatible or later, so it costs O(log n).
//!
//! The nodes live in [`Records`], so a store reads and writes only the nodes on the path. A node is
//! freed when it is empty, not when it is half full (Johnson and Shasha, "B-trees with inserts and
//! deletes: why free-at-empty is better than merge-at-half", 1993).

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::mode::{Mode, Modes};
use super::records::Records;
use super::request::SessionId;
use super::resource::Resource;
use super::span::{Cut, Span};

/// Maximum number of entries or children of a node. A node of ordinary claims then fits into a page
/// of an ordered store.
const FANOUT: usize = 48;

/// The place of a claim in the order of grants. Holders come first, then waiters, first come, first
/// served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(u64);

impl Rank {
    /// The rank of a held claim, ahead of every waiter.
    pub const HELD: Self = Self(0);
    /// The rank behind every claim.
    pub const LAST: Self = Self(u64::MAX);

    /// The rank of a waiting claim. `seq` counts requests from 1.
    pub fn waiting(seq: u64) -> Self {
        Self(seq)
    }

    /// The number of the request that waits with this rank; 0 for a held claim.
    pub fn seq(self) -> u64 {
        self.0
    }

    /// Whether a claim of this rank is held.
    pub fn is_held(self) -> bool {
        self == Self::HELD
    }
}

/// One claim of one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The cut at which the claim begins.
    pub lower: Cut,
    /// The cut at which the claim ends.
    pub upper: Cut,
    /// The mode of the claim.
    pub mode: Mode,
    /// The place of the claim in the order of grants.
    pub rank: Rank,
    /// The session that made the claim.
    pub session: SessionId,
    /// The index of the claim in its session.
    pub claim: u32,
    /// Whether the claim takes from the slots that an ancestor holds. The conflict check does not
    /// count these slots a second time.
    pub shares: bool,
    /// The number of the slot, for a held claim in mode slot only.
    pub slot: Option<u32>,
    /// The number of slots of the resource as the claim states it, for mode slot only.
    pub slots: Option<u32>,
}

impl Entry {
    fn key(&self) -> (&Cut, Rank, &SessionId, u32) {
        (&self.lower, self.rank, &self.session, self.claim)
    }
}

/// A child of an inner node, with a summary of all entries below the child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// The number of the child's node.
    pub node: u32,
    /// The first entry below the child.
    pub first: Entry,
    /// The latest cut at which a claim below the child ends.
    pub upper: Cut,
    /// The modes of the held claims below the child.
    pub held: Modes,
    /// The modes of the waiting claims below the child.
    pub waiting: Modes,
    /// The rank of the first waiting claim below the child, or [`Rank::LAST`].
    pub first_waiting: Rank,
}

impl Child {
    /// Whether this summary equals the summary of `node`. A store on disk checks this, because
    /// other processes may have written to the store.
    pub fn sums_up(&self, node: &Node) -> bool {
        summary(self.node, node).as_ref() == Some(self)
    }
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Node {
    /// The entries of a leaf, in order.
    Leaf(Vec<Entry>),
    /// The children of an inner node, in order; at least one.
    Inner(Vec<Child>),
}

/// The tree of one resource. The root is stored with the resource, so a small tree needs no record
/// of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// The root node.
    pub root: Node,
    /// The number that the next new node gets.
    pub next: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Self { root: Node::Leaf(Vec::new()), next: 0 }
    }
}

/// A search for the entries that overlap a span and have one of the given modes.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The span that the entries overlap.
    pub span: &'a Span,
    /// The modes of the held claims that the search finds.
    pub held: Modes,
    /// The modes of the waiting claims that the search finds.
    pub waiting: Modes,
    /// The search skips waiting claims of this rank and of later ranks.
    pub before: Rank,
}

impl Query<'_> {
    /// The search that finds every entry.
    pub const ALL: Self = Self { span: &Span::Whole, held: Modes::ALL, waiting: Modes::ALL, before: Rank::LAST };

    fn overlaps(&self, lower: &Cut, upper: &Cut) -> bool {
        self.span.is_whole() || (lower < self.span.upper() && self.span.lower() < upper)
    }

    fn matches(&self, entry: &Entry) -> bool {
        let asked = if entry.rank.is_held() { self.held } else { self.waiting };
        asked.contains(entry.mode) && entry.rank < self.before && self.overlaps(&entry.lower, &entry.upper)
    }

    fn may_match(&self, child: &Child) -> bool {
        (child.held.intersects(self.held)
            || (child.first_waiting < self.before && child.waiting.intersects(self.waiting)))
            && self.overlaps(&child.first.lower, &child.upper)
    }
}

impl Tree {
    /// Adds an entry.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn insert<R: Records>(&mut self, records: &mut R, resource: &Resource, entry: Entry) -> Result<(), R::Error> {
        let path = self.path(records, resource, &entry)?;
        self.change(records, resource, path, |entries| {
            let at = entries.partition_point(|other| other.key() < entry.key());
            entries.insert(at, entry);
        })
    }

    /// Removes the entry with the lower cut, rank, session and claim index of `entry`. Returns
    /// whether the tree had such an entry.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn remove<R: Records>(
        &mut self,
        records: &mut R,
        resource: &Resource,
        entry: &Entry,
    ) -> Result<bool, R::Error> {
        let mut found = false;
        let path = self.path(records, resource, entry)?;
        self.change(records, resource, path, |entries| {
            let at = entries.partition_point(|other| other.key() < entry.key());
            found = entries.get(at).is_some_and(|other| other.key() == entry.key());
            if found {
                entries.remove(at);
            }
        })?;
        Ok(found)
    }

    /// The path from the root to the leaf that contains an entry, or that would contain it.
    fn path<R: Records>(&self, records: &R, resource: &Resource, entry: &Entry) -> Result<Vec<Step>, R::Error> {
        let mut path = Vec::new();
        let mut node = Cow::Borrowed(&self.root);
        while let Node::Inner(children) = node.as_ref() {
            let at = child_for(children, entry);
            let child = children[at].clone();
            let id = child.node;
            path.push(Step { at, child });
            node = records.node(resource, id)?;
        }
        Ok(path)
    }

    /// Changes the leaf at the end of a path, then updates the nodes above it whose summaries
    /// change.
    fn change<R: Records>(
        &mut self,
        records: &mut R,
        resource: &Resource,
        path: Vec<Step>,
        edit: impl FnOnce(&mut Vec<Entry>),
    ) -> Result<(), R::Error> {
        let mut edit = Some(edit);
        let mut below = None;
        for step in path.into_iter().rev() {
            let id = step.child.node;
            let mut node = records.take_node(resource, id)?;
            alter(&mut node, &mut edit, below.take());
            let right = node.split().map(|right| store(records, resource, &mut self.next, right)).transpose()?;
            let now = summary(id, &node);
            match now {
                Some(_) => records.put_node(resource, id, node)?,
                None => records.remove_node(resource, id)?,
            }
            if right.is_none() && now.as_ref() == Some(&step.child) {
                return Ok(());
            }
            below = Some(Altered { at: step.at, now, right });
        }
        alter(&mut self.root, &mut edit, below);
        if let Some(right) = self.root.split() {
            let left = std::mem::replace(&mut self.root, Node::Inner(Vec::new()));
            let left = store(records, resource, &mut self.next, left)?;
            let right = store(records, resource, &mut self.next, right)?;
            self.root = Node::Inner(vec![left, right]);
        }
        self.lower_root(records, resource)
    }

    /// Replaces the root by its only child until the root has several children or is a leaf.
    fn lower_root<R: Records>(&mut self, records: &mut R, resource: &Resource) -> Result<(), R::Error> {
        while let Node::Inner(children) = &self.root {
            self.root = match children.as_slice() {
                [] => Node::Leaf(Vec::new()),
                [only] => {
                    let node = only.node;
                    let root = records.take_node(resource, node)?;
                    records.remove_node(resource, node)?;
                    root
                }
                _ => break,
            };
        }
        if self.is_empty() {
            self.next = 0;
        }
        Ok(())
    }

    /// Whether the tree has no entry.
    pub fn is_empty(&self) -> bool {
        matches!(&self.root, Node::Leaf(entries) if entries.is_empty())
    }

    /// Calls `visit` for each entry that matches, from the last to the first, until `visit` breaks.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn visit<R: Records>(
        &self,
        records: &R,
        resource: &Resource,
        query: Query<'_>,
        mut visit: impl FnMut(&Entry) -> ControlFlow<()>,
    ) -> Result<(), R::Error> {
        search(records, resource, &self.root, &query, &mut visit).map(drop)
    }

    /// The first `limit` waiting entries after `after` that match, by rank, and the others of the
    /// last rank: several claims of a session on the resource.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub(crate) fn waiting_after<R: Records>(
        &self,
        records: &R,
        resource: &Resource,
        query: Query<'_>,
        after: Rank,
        limit: usize,
    ) -> Result<Vec<Entry>, R::Error> {
        let mut found = Vec::new();
        // A best-first search: the heap orders each subtree by the rank of its first waiter. A
        // subtree is opened when that waiter is the next.
        let mut subtrees = BinaryHeap::new();
        // Each entry lies at its place in `seen`.
        let mut entries = BinaryHeap::new();
        let mut seen = Vec::new();
        let mut open = Some(Cow::Borrowed(&self.root));
        loop {
            match open.as_deref() {
                Some(Node::Leaf(leaf)) => {
                    let fits = |entry: &&Entry| !entry.rank.is_held() && entry.rank > after && query.matches(entry);
                    for entry in leaf.iter().filter(fits) {
                        entries.push(Reverse((entry.rank, entry.claim, seen.len())));
                        seen.push(entry.clone());
                    }
                }
                Some(Node::Inner(children)) => {
                    let may = children.iter().filter(|child| query.may_match(child));
                    subtrees.extend(may.map(|child| Reverse((child.first_waiting, child.node))));
                }
                None => {}
            }
            let next_subtree = subtrees.peek().map_or(Rank::LAST, |Reverse((rank, _))| *rank);
            let last = |found: &Vec<Entry>| found.last().map(|entry| entry.rank);
            let mut next = None;
            while let Some(Reverse((rank, _, at))) = entries.peek() {
                if *rank >= next_subtree || found.len() >= limit && last(&found) != Some(*rank) {
                    next = Some(*rank);
                    break;
                }
                found.push(seen[*at].clone());
                entries.pop();
            }
            if found.len() >= limit && last(&found) < Some(next_subtree) && last(&found) != next {
                return Ok(found);
            }
            open = match subtrees.pop() {
                Some(Reverse((_, node))) => Some(records.node(resource, node)?),
                None => return Ok(found),
            };
        }
    }

    /// Whether a waiting entry has this rank.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub(crate) fn has_waiter<R: Records>(
        &self,
        records: &R,
        resource: &Resource,
        rank: Rank,
    ) -> Result<bool, R::Error> {
        let before = Rank(rank.0.saturating_add(1));
        let query = Query { span: &Span::Whole, held: Modes::EMPTY, waiting: Modes::ALL, before };
        let found = self.waiting_after(records, resource, query, Rank(rank.0.saturating_sub(1)), 1)?;
        Ok(!found.is_empty())
    }

    /// All entries, in the order of their keys.
    ///
    /// # Errors
    /// Returns an error of the records.
    pub fn entries<R: Records>(&self, records: &R, resource: &Resource) -> Result<Vec<Entry>, R::Error> {
        let mut entries = Vec::new();
        self.visit(records, resource, Query::ALL, |entry| {
            entries.push(entry.clone());
            ControlFlow::Continue(())
        })?;
        entries.reverse();
        Ok(entries)
    }
}

/// The summary of a node, or none if the node is empty.
fn summary(id: u32, node: &Node) -> Option<Child> {
    let (mut held, mut waiting, mut first_waiting) = (Modes::EMPTY, Modes::EMPTY, Rank::LAST);
    let (first, upper) = match node {
        Node::Leaf(entries) => {
            for entry in entries {
                if entry.rank.is_held() {
                    held.insert(entry.mode);
                } else {
                    waiting.insert(entry.mode);
                    first_waiting = first_waiting.min(entry.rank);
                }
            }
            (entries.first()?, entries.iter().map(|entry| &entry.upper).max()?)
        }
        Node::Inner(children) => {
            for child in children {
                held = held.union(child.held);
                waiting = waiting.union(child.waiting);
                first_waiting = first_waiting.min(child.first_waiting);
            }
            (&children.first()?.first, children.iter().map(|child| &child.upper).max()?)
        }
    };
    Some(Child { node: id, first: first.clone(), upper: upper.clone(), held, waiting, first_waiting })
}

/// Assigns a number to a new node and puts the node into the records.
fn store<R: Records>(records: &mut R, resource: &Resource, next: &mut u32, node: Node) -> Result<Child, R::Error> {
    let id = *next;
    *next += 1;
    let child = summary(id, &node).expect("a node that is split has entries on both sides");
    records.put_node(resource, id, node)?;
    Ok(child)
}

/// The index of the child into which an entry belongs: the last child that does not begin after the
/// entry, otherwise the first child.
fn child_for(children: &[Child], entry: &Entry) -> usize {
    children.partition_point(|child| child.first.key() <= entry.key()).saturating_sub(1)
}

/// One step of a path: the index of a child, and the summary that the parent stores for the child.
struct Step {
    at: usize,
    child: Child,
}

/// A change of a child that its parent must store.
struct Altered {
    at: usize,
    /// The new summary of the child, or none if the child was removed.
    now: Option<Child>,
    /// The right half of the child, if the child was split.
    right: Option<Child>,
}

/// Edits a leaf, or stores the change of a child in an inner node.
fn alter(node: &mut Node, edit: &mut Option<impl FnOnce(&mut Vec<Entry>)>, below: Option<Altered>) {
    match (node, below) {
        (Node::Leaf(entries), _) => edit.take().into_iter().for_each(|edit| edit(entries)),
        (Node::Inner(children), Some(Altered { at, now, right })) => {
            children.splice(at..=at, now.into_iter().chain(right));
        }
        (Node::Inner(_), None) => {}
    }
}

impl Node {
    /// Splits a node that exceeds [`FANOUT`] and returns its right half.
    fn split(&mut self) -> Option<Node> {
        match self {
            Node::Leaf(entries) => (entries.len() > FANOUT).then(|| Node::Leaf(entries.split_off(FANOUT / 2))),
            Node::Inner(children) => (children.len() > FANOUT).then(|| Node::Inner(children.split_off(FANOUT / 2))),
        }
    }
}

/// Visits the matching entries below `node`, from the last to the first.
fn search<R: Records>(
    records: &R,
    resource: &Resource,
    node: &Node,
    query: &Query<'_>,
    visit: &mut impl FnMut(&Entry) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, R::Error> {
    match node {
        Node::Leaf(entries) => {
            let end = entries.partition_point(|entry| entry.lower < *query.span.upper());
            Ok(entries[..end].iter().rev().filter(|entry| query.matches(entry)).try_for_each(visit))
        }
        Node::Inner(children) => {
            let end = children.partition_point(|child| child.first.lower < *query.span.upper());
            for child in children[..end].iter().rev().filter(|child| query.may_match(child)) {
                let below = records.node(resource, child.node)?;
                if search(records, resource, &below, query, visit)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        }
    }
}

#[cfg(test)]
mod tests;
