//! The nodes of a Cluster: what `CLUSTER SLOTS` says, and which nodes this process knows.
//!
//! A URL may name one node. A holder keeps the other nodes that it has heard of, so that it finds
//! the Cluster again after that node has died.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::{Value, from_redis_value_ref};

use super::target::Node;

/// Maximum number of nodes that a process keeps beside those of the URL.
const NODES_MAX: usize = 64;

/// The nodes that were heard of, beside those of the URL. All connections to a store share them.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    nodes: Vec<Node>,
    /// Whether a node was asked for all of them.
    is_asked: bool,
    /// Those that did not answer when they were last asked, among all nodes.
    failed: Vec<Node>,
}

impl Known {
    /// Takes note of nodes.
    pub(super) fn add(&self, nodes: impl IntoIterator<Item = Node>) {
        let mut state = self.state();
        for node in nodes {
            if state.nodes.len() < NODES_MAX && !state.nodes.contains(&node) {
                state.nodes.push(node);
            }
        }
    }

    /// Whether nobody has asked for the nodes yet. The caller is going to.
    pub(super) fn is_fresh(&self) -> bool {
        !std::mem::replace(&mut self.state().is_asked, true)
    }

    /// All nodes, those of the URL first, beginning with one that the number `attempt` chooses. Those that did not answer
    /// last time come last, so that a silent node costs the lookups of many sessions only once.
    pub(super) fn in_turn(&self, named: &[Node], attempt: usize) -> Vec<Node> {
        let state = self.state();
        let mut nodes: Vec<_> =
            named.iter().chain(state.nodes.iter().filter(|node| !named.contains(node))).cloned().collect();
        let count = nodes.len();
        nodes.rotate_left(attempt % count.max(1));
        nodes.sort_by_key(|node| state.failed.contains(node));
        nodes
    }

    /// Takes note of whether a node has answered.
    pub(super) fn tried(&self, node: &Node, has_answered: bool) {
        let mut state = self.state();
        state.failed.retain(|failed| failed != node);
        if !has_answered {
            state.failed.push(node.clone());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range of slots and its nodes, the primary first.
struct Range {
    first: u16,
    last: u16,
    nodes: Vec<Node>,
}

/// The nodes in the reply of the node `asked` to `CLUSTER SLOTS`.
pub(super) fn all_of(reply: &Value, asked: &Node) -> Vec<Node> {
    ranges(reply, asked).into_iter().flat_map(|range| range.nodes).collect()
}

/// The primaries in the reply of the node `asked` to `CLUSTER SLOTS`, each with its slots in words.
pub(super) fn primaries(reply: &Value, asked: &Node) -> Vec<(Node, String)> {
    /// Maximum number of ranges of slots that a message names.
    const NAMED_MAX: usize = 4;
    let mut slots: BTreeMap<String, (Node, Vec<String>)> = BTreeMap::new();
    for Range { first, last, nodes } in ranges(reply, asked) {
        let Some(node) = nodes.into_iter().next() else { continue };
        let named = if first == last { first.to_string() } else { format!("{first}-{last}") };
        slots.entry(node.to_string()).or_insert((node, Vec::new())).1.push(named);
    }
    let in_words = |ranges: Vec<String>| match ranges.len().checked_sub(NAMED_MAX) {
        None | Some(0) => ranges.join(", "),
        Some(more) => format!("{} and {more} more ranges", ranges[..NAMED_MAX].join(", ")),
    };
    slots.into_values().map(|(node, ranges)| (node, in_words(ranges))).collect()
}

fn ranges(reply: &Value, asked: &Node) -> Vec<Range> {
    let Value::Array(ranges) = reply else { return Vec::new() };
    let node = |value: &Value| {
        // A node is its address, its port and more.
        let Value::Array(parts) = value else { return None };
        let [host, port, ..] = parts.as_slice() else { return None };
        let host = from_redis_value_ref::<Option<String>>(host).ok()?;
        asked.sibling(host.as_deref().unwrap_or_default(), from_redis_value_ref(port).ok()?)
    };
    let range = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let [first, last, nodes @ ..] = parts.as_slice() else { return None };
        let (first, last) = (from_redis_value_ref(first).ok()?, from_redis_value_ref(last).ok()?);
        Some(Range { first, last, nodes: nodes.iter().filter_map(node).collect() })
    };
    ranges.iter().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> Node {
        Node::Tcp { host: "h".to_owned(), port }
    }

    fn range(first: i64, last: i64, ports: &[i64]) -> Value {
        let node = |port: &i64| Value::Array(vec![Value::BulkString(b"h".to_vec()), Value::Int(*port)]);
        Value::Array([Value::Int(first), Value::Int(last)].into_iter().chain(ports.iter().map(node)).collect())
    }

    #[test]
    fn nodes_are_kept_once_and_tried_after_those_that_answered() {
        let (known, named) = (Known::default(), [node(1), node(2)]);
        assert_eq!([known.is_fresh(), known.is_fresh()], [true, false]);
        known.add([node(3), node(2), node(3)]);
        let ports = |attempt| known.in_turn(&named, attempt).iter().map(Node::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!([ports(0), ports(1), ports(4)], ["h:1 h:2 h:3", "h:2 h:3 h:1", "h:2 h:3 h:1"]);
        known.tried(&node(2), false);
        known.tried(&node(3), true);
        assert_eq!(ports(1), "h:3 h:1 h:2");
        known.tried(&node(2), true);
        assert_eq!(ports(1), "h:2 h:3 h:1");
        known.add((10..500).map(node));
        assert_eq!(known.in_turn(&[node(1)], 0).len(), 1 + NODES_MAX);
    }

    #[test]
    fn slots_are_told_by_their_primaries() {
        let reply = Value::Array(vec![
            range(0, 99, &[1, 4]),
            range(100, 100, &[2]),
            range(101, 200, &[1]),
            range(201, 300, &[2, 5]),
            Value::Nil,
        ]);
        let told = [(node(1), "0-99, 101-200".to_owned()), (node(2), "100, 201-300".to_owned())];
        assert_eq!(primaries(&reply, &node(9)), told);
        assert_eq!(all_of(&reply, &node(9)), [1, 4, 2, 1, 2, 5].map(node));
        let many = Value::Array((0..9).map(|slot| range(2 * slot, 2 * slot, &[1])).collect());
        assert_eq!(primaries(&many, &node(9)), [(node(1), "0, 2, 4, 6 and 5 more ranges".to_owned())]);
    }
}
