//! The claims on one resource, held and waiting, ordered by where they begin and summed up by
//! subtree.
//!
//! A B+-tree whose inner nodes know of each child where its claims end at the latest and which
//! modes they have, as an interval tree does (Cormen et al., "Introduction to Algorithms",
//! augmented trees); so the search for a conflicting claim passes over all that is disjoint,
//! compatible or later, and costs O(log n). Nodes live in [`Records`], so that a store reads and
//! writes only those on the way. A node is given up when it is empty, not when it is half full
//! (Johnson and Shasha, "B-trees with inserts and deletes: why free-at-empty is better than
//! merge-at-half", 1993).

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use super::mode::{Mode, Modes};
use super::records::Records;
use super::request::SessionId;
use super::resource::Resource;
use super::span::{Cut, Span};

/// How many entries or children a node has at most: a node of ordinary claims then fits into a page
/// of an ordered store.
const FANOUT: usize = 48;

/// The place of a claim in the order of the one rule: holders, then waiters below a hold of their
/// own ancestors, then the others, first come, first served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u64);

impl Rank {
    /// Held: ahead of every waiter.
    pub const HELD: Self = Self(0);
    /// Ahead of every waiter, behind every holder.
    pub const FIRST_WAITING: Self = Self(1);
    /// Ahead of every ordinary waiter, behind every nested one.
    pub const FIRST_ORDINARY: Self = Self(1 << 63);
    /// Behind everybody.
    pub const LAST: Self = Self(u64::MAX);

    /// The rank of a waiting claim. `seq` counts requests and begins at 1; `nested` says that it is
    /// below a hold of an ancestor.
    pub fn waiting(seq: u64, nested: bool) -> Self {
        if nested { Self(seq) } else { Self(Self::FIRST_ORDINARY.0 | seq) }
    }

    /// Whether it is held.
    pub fn is_held(self) -> bool {
        self == Self::HELD
    }

    /// The rank before which claims stand in the way of a waiting one of this rank. An ordinary one
    /// waits for whatever is ahead of it; a nested one for holders alone, since any waiter may be
    /// waiting for its ancestor, who waits for it.
    pub fn waits_behind(self) -> Self {
        if self < Self::FIRST_ORDINARY { Self::FIRST_WAITING } else { self }
    }

    /// The bits, for stores.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The rank with these bits.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// One claim of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it begins.
    pub lower: Cut,
    /// Where it ends.
    pub upper: Cut,
    /// How.
    pub mode: Mode,
    /// Held, or its place among the waiters.
    pub rank: Rank,
    /// Whose.
    pub session: SessionId,
    /// Which of the session's claims.
    pub claim: u32,
    /// A slot that is a share of one that an ancestor holds, and so is not counted beside that.
    pub shares: bool,
}

impl Entry {
    fn key(&self) -> (&Cut, Rank, &SessionId, u32) {
        (&self.lower, self.rank, &self.session, self.claim)
    }
}

/// A child of an inner node and what is known of all that lies below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The number of the child's node.
    pub node: u32,
    /// Its first entry.
    pub first: Entry,
    /// Where its claims end at the latest.
    pub upper: Cut,
    /// The modes of the held claims in it.
    pub held: Modes,
    /// The modes of the waiting claims in it.
    pub waiting: Modes,
    /// The rank of the first waiting claim in it, or [`Rank::LAST`].
    pub first_waiting: Rank,
}

impl Child {
    /// Whether it says of a node what there is to say: what a store on disk has to ask where others
    /// may have written to it.
    pub fn sums_up(&self, node: &Node) -> bool {
        summary(node).is_some_and(|sum| *self == child_of((self.node, sum)))
    }
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Entries in order.
    Leaf(Vec<Entry>),
    /// Children in order; never none.
    Inner(Vec<Child>),
}

/// The tree of one resource; its root is kept with the resource, so that a small tree is no record
/// of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The root.
    pub root: Node,
    /// The number of the next node.
    pub next: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Self { root: Node::Leaf(Vec::new()), next: 0 }
    }
}

/// Which entries a search is for: all that overlap and have one of the modes.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The part of the resource.
    pub span: &'a Span,
    /// Modes of the held claims that are looked for.
    pub held: Modes,
    /// Modes of the waiting claims that are looked for.
    pub waiting: Modes,
    /// Waiting claims of this rank and later ones are passed over.
    pub before: Rank,
}

impl Query<'_> {
    fn overlaps(&self, lower: &Cut, upper: &Cut) -> bool {
        lower < self.span.upper() && self.span.lower() < upper
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
    /// Those of the records.
    pub fn insert<R: Records>(&mut self, records: &mut R, resource: &Resource, entry: Entry) -> Result<(), R::Error> {
        let path = self.path(records, resource, &entry)?;
        self.change(records, resource, path, |entries| {
            let at = entries.partition_point(|other| other.key() < entry.key());
            entries.insert(at, entry);
        })
    }

    /// Removes the entry that equals `entry` in place, rank, session and claim, and says whether
    /// there was one.
    ///
    /// # Errors
    /// Those of the records.
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

    /// The way down to the leaf in which an entry is or belongs.
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

    /// Changes the leaf at the end of a path, and of the nodes above it those that know something
    /// else of it now.
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
            let now = summary(&node).map(|sum| child_of((id, sum)));
            match now {
                Some(_) => records.put_node(resource, id, node)?,
                None => records.remove_node(resource, id)?,
            }
            if right.is_none() && now.as_ref() == Some(&step.child) {
                return Ok(());
            }
            below = Some(Altered { at: step.at, now, right: right.map(child_of) });
        }
        alter(&mut self.root, &mut edit, below);
        if let Some(right) = self.root.split() {
            let left = std::mem::replace(&mut self.root, Node::Inner(Vec::new()));
            let left = child_of(store(records, resource, &mut self.next, left)?);
            let right = child_of(store(records, resource, &mut self.next, right)?);
            self.root = Node::Inner(vec![left, right]);
        }
        self.lower_root(records, resource)
    }

    /// Puts the only child of the root in its place, as long as it has but one.
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

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        matches!(&self.root, Node::Leaf(entries) if entries.is_empty())
    }

    /// Calls `visit` for each entry that matches, the last first, until it breaks off.
    ///
    /// # Errors
    /// Those of the records.
    pub fn visit<R: Records>(
        &self,
        records: &R,
        resource: &Resource,
        query: Query<'_>,
        mut visit: impl FnMut(&Entry) -> ControlFlow<()>,
    ) -> Result<(), R::Error> {
        search(records, resource, &self.root, &query, &mut visit).map(drop)
    }

    /// The first `limit` waiting entries after `after` that match, by rank.
    ///
    /// # Errors
    /// Those of the records.
    pub fn waiting_after<R: Records>(
        &self,
        records: &R,
        resource: &Resource,
        query: Query<'_>,
        after: Rank,
        limit: usize,
    ) -> Result<Vec<Entry>, R::Error> {
        let mut found = Vec::new();
        // Best first: a subtree stands in the heap under the rank of its first waiter, and is
        // opened when that is the next.
        let mut subtrees = BinaryHeap::new();
        let mut entries = BinaryHeap::new();
        let mut open = Some(Cow::Borrowed(&self.root));
        loop {
            match open.as_deref() {
                Some(Node::Leaf(leaf)) => {
                    let fits = |entry: &&Entry| !entry.rank.is_held() && entry.rank > after && query.matches(entry);
                    entries.extend(leaf.iter().filter(fits).map(|entry| Reverse(ByRank(entry.clone()))));
                }
                Some(Node::Inner(children)) => {
                    let may = children.iter().filter(|child| query.may_match(child));
                    subtrees.extend(may.map(|child| Reverse((child.first_waiting, child.node))));
                }
                None => {}
            }
            let next_subtree = subtrees.peek().map_or(Rank::LAST, |Reverse((rank, _))| *rank);
            while found.len() < limit {
                match entries.peek() {
                    Some(Reverse(ByRank(entry))) if entry.rank < next_subtree => {
                        found.extend(entries.pop().map(|Reverse(ByRank(entry))| entry));
                    }
                    _ => break,
                }
            }
            if found.len() == limit {
                return Ok(found);
            }
            open = match subtrees.pop() {
                Some(Reverse((_, node))) => Some(records.node(resource, node)?),
                None => return Ok(found),
            };
        }
    }

    /// All entries, in order of place.
    ///
    /// # Errors
    /// Those of the records.
    pub fn entries<R: Records>(&self, records: &R, resource: &Resource) -> Result<Vec<Entry>, R::Error> {
        let mut entries = Vec::new();
        let all = Query { span: &Span::Whole, held: Modes::ALL, waiting: Modes::ALL, before: Rank::LAST };
        self.visit(records, resource, all, |entry| {
            entries.push(entry.clone());
            ControlFlow::Continue(())
        })?;
        entries.reverse();
        Ok(entries)
    }
}

/// An entry that is compared by its rank alone.
struct ByRank(Entry);

impl PartialEq for ByRank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByRank {}

impl PartialOrd for ByRank {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByRank {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.rank, self.0.claim).cmp(&(other.0.rank, other.0.claim))
    }
}

/// A node's number and its content, as it goes to the records.
type Numbered = (u32, Summary);

/// What an inner node knows of a child, but for the child's number.
struct Summary {
    first: Entry,
    upper: Cut,
    held: Modes,
    waiting: Modes,
    first_waiting: Rank,
}

fn child_of((node, summary): Numbered) -> Child {
    let Summary { first, upper, held, waiting, first_waiting } = summary;
    Child { node, first, upper, held, waiting, first_waiting }
}

/// Sums up a node; none for one that is empty.
fn summary(node: &Node) -> Option<Summary> {
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
    Some(Summary { first: first.clone(), upper: upper.clone(), held, waiting, first_waiting })
}

/// Gives a new node its number and hands it to the records.
fn store<R: Records>(records: &mut R, resource: &Resource, next: &mut u32, node: Node) -> Result<Numbered, R::Error> {
    let id = *next;
    *next += 1;
    let sum = summary(&node).expect("a node that is split has entries on both sides");
    records.put_node(resource, id, node)?;
    Ok((id, sum))
}

/// The child into which an entry belongs: the last that does not begin after it, or the first.
fn child_for(children: &[Child], entry: &Entry) -> usize {
    children.partition_point(|child| child.first.key() <= entry.key()).saturating_sub(1)
}

/// One step down: which child, and what its parent knows of it.
struct Step {
    at: usize,
    child: Child,
}

/// What a parent has to be told of a child.
struct Altered {
    at: usize,
    /// The child as it is now, or none where it is gone.
    now: Option<Child>,
    /// The right half of it, where it was split.
    right: Option<Child>,
}

/// Edits a leaf, or tells an inner node what became of a child.
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
    /// Takes the right half of a node that has too much in it.
    fn split(&mut self) -> Option<Node> {
        match self {
            Node::Leaf(entries) => (entries.len() > FANOUT).then(|| Node::Leaf(entries.split_off(FANOUT / 2))),
            Node::Inner(children) => (children.len() > FANOUT).then(|| Node::Inner(children.split_off(FANOUT / 2))),
        }
    }
}

/// Visits what matches below `node`, the last first.
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
