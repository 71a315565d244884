//! Compares the tree with a list.

use std::collections::HashSet;

use proptest::prelude::*;

use super::super::records::Memory;
use super::*;

fn name() -> Resource {
    Resource::new("r").unwrap()
}

/// A tree, the records with the nodes of the tree, and a list of the same entries.
#[derive(Default)]
struct Both {
    tree: Tree,
    records: Memory,
    list: Vec<Entry>,
}

impl Both {
    fn insert(&mut self, entry: Entry) {
        self.tree.insert(&mut self.records, &name(), entry.clone()).unwrap();
        self.list.push(entry);
    }

    fn remove(&mut self, at: usize) {
        let entry = self.list.swap_remove(at);
        assert!(self.tree.remove(&mut self.records, &name(), &entry).unwrap());
        assert!(!self.tree.remove(&mut self.records, &name(), &entry).unwrap(), "the entry was in the tree twice");
    }

    fn sorted(&self) -> Vec<Entry> {
        let mut sorted = self.list.clone();
        sorted.sort_by(|a, b| a.key().cmp(&b.key()));
        sorted
    }

    /// Checks every node: its size, the order of its entries, its summary in the parent, and its
    /// number.
    fn check(&self) {
        let mut nodes = HashSet::new();
        let entries = self.check_below(&self.tree.root, &mut nodes);
        assert_eq!(entries, self.sorted());
        assert_eq!(self.tree.is_empty(), self.list.is_empty());
        assert!(nodes.iter().all(|node| *node < self.tree.next), "the number of a node would be used twice");
        if self.list.is_empty() {
            assert_eq!(self.tree, Tree::default());
            assert!(self.records.is_empty(), "a node was left behind");
        }
    }

    fn check_below(&self, node: &Node, nodes: &mut HashSet<u32>) -> Vec<Entry> {
        let children = match node {
            Node::Leaf(entries) => {
                assert!(entries.len() <= FANOUT);
                return entries.clone();
            }
            Node::Inner(children) => children,
        };
        assert!((1..=FANOUT).contains(&children.len()));
        let mut all: Vec<Entry> = Vec::new();
        for child in children {
            assert!(nodes.insert(child.node), "a node has two parents");
            let below = self.check_below(&self.records.node(&name(), child.node).unwrap(), nodes);
            assert!(!below.is_empty(), "an empty node was kept");
            assert_eq!(child.first, below[0]);
            assert_eq!(Some(&child.upper), below.iter().map(|entry| &entry.upper).max());
            let modes = |held: bool| {
                let of = |entry: &&Entry| entry.rank.is_held() == held;
                Modes::of(&below.iter().filter(of).map(|entry| entry.mode).collect::<Vec<_>>())
            };
            assert_eq!((child.held, child.waiting), (modes(true), modes(false)));
            let waiting = below.iter().map(|entry| entry.rank).filter(|rank| !rank.is_held());
            assert_eq!(child.first_waiting, waiting.min().unwrap_or(Rank::LAST));
            all.extend(below);
        }
        all
    }

    fn check_search(&self, query: Query<'_>, after: Rank, limit: usize) {
        let matches = |entry: &&Entry| {
            let modes = if entry.rank.is_held() { query.held } else { query.waiting };
            let meets = entry.lower < *query.span.upper() && *query.span.lower() < entry.upper;
            modes.contains(entry.mode) && meets && entry.rank < query.before
        };
        let sorted = self.sorted();
        let expected: Vec<Entry> = sorted.iter().filter(matches).cloned().collect();
        let mut visited = Vec::new();
        self.tree
            .visit(&self.records, &name(), query, |entry| {
                visited.push(entry.clone());
                if visited.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!(visited, expected.iter().rev().take(limit).cloned().collect::<Vec<_>>());

        let mut waiting: Vec<Entry> =
            expected.into_iter().filter(|entry| !entry.rank.is_held() && entry.rank > after).collect();
        waiting.sort_by_key(|entry| (entry.rank, entry.claim));
        let last = limit.checked_sub(1).and_then(|last| waiting.get(last)).map(|entry| entry.rank);
        let mut number = 0;
        waiting.retain(|entry| {
            number += 1;
            number <= limit || Some(entry.rank) == last
        });
        assert_eq!(self.tree.waiting_after(&self.records, &name(), query, after, limit).unwrap(), waiting);
    }
}

/// The closed interval from `lo` to `lo + width`.
fn span(lo: u16, width: u16) -> Span {
    Span::parse(&format!("[{lo},{}]", lo + width)).unwrap()
}

/// An entry. Two successive numbers are two claims of one request, so these entries share a session
/// and a sequence number.
fn entry(number: u32, [lo, width, mode, rank]: [u8; 4]) -> Entry {
    let span = if width == 255 { Span::Whole } else { span(lo.into(), (width / 16).into()) };
    let seq = u64::from(number / 2 + 1);
    Entry {
        lower: span.lower().clone(),
        upper: span.upper().clone(),
        mode: Mode::ALL[usize::from(mode % 4)],
        rank: if rank % 2 == 0 { Rank::HELD } else { Rank::waiting(seq) },
        session: SessionId(
            u128::from(number / 2).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes(),
        ),
        claim: number % 2,
        shares: false,
        slot: None,
        slots: None,
    }
}

fn modes(bits: u8) -> Modes {
    Modes::of(&Mode::ALL.into_iter().filter(|mode| bits >> *mode as u8 & 1 == 1).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tree_keeps_its_order_and_summaries(
        steps in prop::collection::vec((any::<[u8; 4]>(), any::<u16>()), 1..400),
        growth in 1..4_u16,
    ) {
        let mut both = Both::default();
        for (number, (numbers, choice)) in steps.iter().enumerate() {
            // In one half of the steps most entries are inserted, in the other half most are
            // removed.
            let grows = (choice % 4 < growth) == (number * 2 < steps.len());
            if grows || both.list.is_empty() {
                both.insert(entry(number as u32, *numbers));
            } else {
                both.remove(usize::from(*choice / 4) % both.list.len());
            }
            both.check();
        }
        while !both.list.is_empty() {
            both.remove(both.list.len() / 2);
        }
        both.check();
    }

    #[test]
    fn search_finds_the_same_entries_as_a_list(
        entries in prop::collection::vec(any::<[u8; 4]>(), 1..200),
        queries in prop::collection::vec((any::<[u8; 6]>(), 1..40_usize), 20),
    ) {
        let mut both = Both::default();
        for (number, numbers) in entries.iter().enumerate() {
            both.insert(entry(number as u32, *numbers));
        }
        for ([lo, width, held, waiting, before, after], limit) in queries {
            let span = if width == 255 { Span::Whole } else { span(lo.into(), (width / 8).into()) };
            let rank = |number: u8| match number {
                0..200 => Rank::waiting(u64::from(number / 2) + 1),
                200..230 => Rank::waiting(1),
                _ => Rank::LAST,
            };
            let query = Query { span: &span, held: modes(held), waiting: modes(waiting), before: rank(before) };
            both.check_search(query, if after < 128 { Rank::HELD } else { rank(after) }, limit);
            both.check_search(Query { held: Modes::ALL, waiting: Modes::ALL, before: Rank::LAST, ..query }, Rank::HELD, limit);
        }
    }
}

#[test]
fn tree_of_three_levels_grows_and_becomes_empty() {
    let mut both = Both::default();
    for number in 0..20_000_u32 {
        // The step is coprime to the count, so the places are visited in a scattered order.
        let place = number * 7_919 % 20_000;
        let span = span(place as u16, number as u16 % 3);
        let (lower, upper) = (span.lower().clone(), span.upper().clone());
        both.insert(Entry { lower, upper, ..entry(number, [0, 0, number as u8, number as u8]) });
    }
    both.check();
    let depth = {
        let mut depth = 1;
        let mut node = both.tree.root.clone();
        while let Node::Inner(children) = node {
            node = both.records.node(&name(), children[0].node).unwrap().into_owned();
            depth += 1;
        }
        depth
    };
    assert_eq!(depth, 3, "the test must insert more entries");
    both.check_search(
        Query { span: &span(7_000, 50), held: Modes::ALL, waiting: Modes::ALL, before: Rank::LAST },
        Rank::HELD,
        9,
    );
    while !both.list.is_empty() {
        both.remove(both.list.len() / 3);
        if both.list.len() % 4_000 == 0 {
            both.check();
        }
    }
}

#[test]
fn waiters_rank_behind_holders_in_their_order() {
    let ranks = [Rank::HELD, Rank::waiting(1), Rank::waiting(2), Rank::LAST];
    assert!(ranks.is_sorted_by(|a, b| a < b));
    assert_eq!(Rank::waiting(1), Rank::waiting(1));
    assert_eq!((Rank::waiting(7).seq(), Rank::HELD.seq()), (7, 0));
}
