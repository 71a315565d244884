//! The nodes of a Cluster: what `CLUSTER SLOTS` says, and which nodes this process knows.
//!
//! A URL may name one node. A holder keeps the other nodes that it has heard of, so that it finds
//! the Cluster again after that node has died.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Value, from_redis_value_ref};

use rlock_store::node::{Node, number};
use rlock_sys::clock::Boottime;

/// Maximum number of nodes that a process keeps beside those of the URL.
const NODES_MAX: usize = 64;

/// Maximum number of nodes that a lookup tries, if the URL names fewer: each of them has a share of
/// the time.
const TRIED_MAX: usize = 8;

/// How long the answer about all nodes is good.
const ASKED_AFTER: Duration = Duration::from_secs(60);

/// The nodes that were heard of, beside those of the URL. All connections to a store share them.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    nodes: Vec<Node>,
    /// When a node was last asked for all of them.
    asked: Option<Boottime>,
    /// Those that did not answer when they were last asked, among all nodes.
    failed: Vec<Node>,
}

impl Known {
    /// Takes note of a node that another one has named.
    pub(super) fn add(&self, node: Node) {
        let mut heard = self.heard();
        if heard.nodes.len() < NODES_MAX && !heard.nodes.contains(&node) {
            heard.nodes.push(node);
        }
    }

    /// Takes note of all nodes of the Cluster.
    pub(super) fn set(&self, nodes: impl IntoIterator<Item = Node>) {
        let mut all: Vec<Node> = Vec::new();
        for node in nodes {
            if all.len() < NODES_MAX && !all.contains(&node) {
                all.push(node);
            }
        }
        // A node that is left out of its Cluster knows of none.
        if !all.is_empty() {
            self.heard().nodes = all;
        }
    }

    /// Whether it is time to ask for all nodes at `now`. The caller is going to.
    pub(super) fn is_due(&self, now: Boottime) -> bool {
        let mut heard = self.heard();
        let is_due = heard.asked.is_none_or(|asked| asked + ASKED_AFTER <= now);
        if is_due {
            heard.asked = Some(now);
        }
        is_due
    }

    /// The nodes to try: those of the URL, and then others, each part beginning with one that the
    /// number `attempt` chooses. Those that did not answer last time come last, so that a silent
    /// node costs the lookups of many sessions only once.
    pub(super) fn in_turn(&self, named: &[Node], attempt: usize) -> Vec<Node> {
        let heard = self.heard();
        let rotated = |mut nodes: Vec<Node>| {
            let count = nodes.len().max(1);
            nodes.rotate_left(attempt % count);
            nodes
        };
        let others = heard.nodes.iter().filter(|node| !named.contains(node)).cloned().collect();
        let mut nodes = [rotated(named.to_vec()), rotated(others)].concat();
        nodes.sort_by_key(|node| heard.failed.contains(node));
        nodes.truncate(named.len().max(TRIED_MAX));
        nodes
    }

    /// Takes note of whether a node has answered.
    pub(super) fn tried(&self, node: &Node, has_answered: bool) {
        let mut heard = self.heard();
        heard.failed.retain(|failed| failed != node);
        if !has_answered {
            heard.failed.push(node.clone());
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
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

/// The slots that a node moves, or takes over, one key at a time, in its reply to `CLUSTER NODES`.
/// Each node tells its own, in brackets behind its ranges: `[93->-NODE]` or `[77-<-NODE]`.
pub(super) fn open_slots(reply: &str) -> Vec<u16> {
    let words = reply.split_whitespace().filter_map(|word| word.strip_prefix('['));
    words.filter_map(|word| word.split_once("->-").or(word.split_once("-<-"))?.0.parse().ok()).collect()
}

fn ranges(reply: &Value, asked: &Node) -> Vec<Range> {
    let Value::Array(ranges) = reply else { return Vec::new() };
    let node = |value: &Value| {
        // A node is its address, its port and more.
        let Value::Array(parts) = value else { return None };
        let [host, port, ..] = parts.as_slice() else { return None };
        let host = from_redis_value_ref::<Option<String>>(host).ok()?;
        sibling(asked, host.as_deref().unwrap_or_default(), from_redis_value_ref(port).ok()?)
    };
    let range = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let [first, last, nodes @ ..] = parts.as_slice() else { return None };
        let (first, last) = (from_redis_value_ref(first).ok()?, from_redis_value_ref(last).ok()?);
        Some(Range { first, last, nodes: nodes.iter().filter_map(node).collect() })
    };
    ranges.iter().filter_map(range).collect()
}

/// The node that a MOVED or ASK error of `asked` names. `details` is the text without the first
/// word, such as `3999 10.0.0.1:6381`.
pub(super) fn redirected(asked: &Node, details: &str) -> Option<Node> {
    let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
    sibling(asked, host.trim_start_matches('[').trim_end_matches(']'), number(port)?)
}

/// The node that `asked` calls by a host and a port. A node that does not know its own host leaves
/// it out, and means the host by which it was reached.
pub(super) fn sibling(asked: &Node, host: &str, port: u16) -> Option<Node> {
    let host = match (host, asked) {
        ("" | "?", Node::Tcp { host, .. }) => host,
        ("" | "?", Node::Unix(_)) => return None,
        (host, _) => host,
    };
    Some(Node::Tcp { host: host.to_owned(), port })
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
    fn nodes_of_the_url_come_first_and_those_that_did_not_answer_last() {
        let (known, named) = (Known::default(), [node(1), node(2)]);
        [3, 2, 4, 3].into_iter().for_each(|port| known.add(node(port)));
        let ports = |attempt| known.in_turn(&named, attempt).iter().map(Node::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!([ports(0), ports(1), ports(4)], ["h:1 h:2 h:3 h:4", "h:2 h:1 h:4 h:3", "h:1 h:2 h:3 h:4"]);
        known.tried(&node(2), false);
        known.tried(&node(3), true);
        assert_eq!(ports(1), "h:1 h:4 h:3 h:2");
        known.tried(&node(2), true);
        known.set([5, 1, 5].map(node));
        known.set([]);
        assert_eq!(ports(0), "h:1 h:2 h:5");
    }

    #[test]
    fn number_of_nodes_is_limited() {
        let known = Known::default();
        (10..500).for_each(|port| known.add(node(port)));
        assert_eq!(known.heard().nodes.len(), NODES_MAX);
        known.set((10..500).map(node));
        assert_eq!(known.heard().nodes.len(), NODES_MAX);
        assert_eq!(known.in_turn(&[node(1)], 0).len(), TRIED_MAX);
        let named: Vec<_> = (1..20).map(node).collect();
        assert_eq!(known.in_turn(&named, 0).len(), 19, "all nodes of the URL are tried");
    }

    #[test]
    fn all_nodes_are_asked_for_again_after_a_while() {
        let (known, now) = (Known::default(), Boottime::since_boot(Duration::from_secs(100)));
        let due = [0, 1, 60, 61, 120].map(|after| known.is_due(now + Duration::from_secs(after)));
        assert_eq!(due, [true, false, true, false, true]);
    }

    #[test]
    fn open_slots_of_a_node_are_read() {
        let reply = "a1 127.0.0.1:2@12 master - 0 1 2 connected 5461-10922\n\
                     b2 127.0.0.1:1@11 myself,master - 0 0 1 connected 0-92 93-5460 [93->-a1] [7-<-c3]\n";
        assert_eq!(open_slots(reply), [93, 7]);
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
