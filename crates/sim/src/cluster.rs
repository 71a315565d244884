//! A Cluster: which node has which slot, and slots that migrate key by key.
//!
//! The data of all slots is one table, and a node works on it while it executes a call. All nodes
//! have the same clock. Otherwise a migration would be a step of the clock, which the promise does
//! not cover.

use std::collections::BTreeSet;
use std::time::Duration;

use super::network::ToClient;
use super::server::Server;
use super::wire::{self, Call, Operation};
use super::world::{Happening, World};
use rlock_model::resource::Resource;
use rlock_redis::codec::Lease;
use rlock_redis::keys::KINDS_LEN;

/// The number of slots in use.
pub(super) const SLOTS: usize = 3;

/// The kinds of keys of a resource.
pub(super) const KINDS: usize = KINDS_LEN;
/// The kind of the expiries, the only key of a renewal of one resource.
const EXPIRIES: usize = 2;

/// A key: its resource and its kind.
type Key = (Resource, usize);

pub(super) struct Cluster {
    slots: [Slot; SLOTS],
    is_down: bool,
    /// Whether the nodes reply ASK where a part of the keys has left, as servers before 7.0 do.
    always_asks: bool,
}

struct Slot {
    owner: usize,
    migration: Option<Migration>,
}

/// The migration of a slot from its owner.
struct Migration {
    to: usize,
    moved: BTreeSet<Key>,
}

/// The slot of a key, a channel or a resource with the tag of its slot.
pub(super) fn slot_of(text: &str) -> usize {
    let (_, tag) = text.split_once("{t").expect("each name has a tag");
    tag.split('}').next().and_then(|number| number.parse().ok()).expect("a tag has a number")
}

impl Cluster {
    pub(super) fn new(nodes: usize, always_asks: bool) -> Self {
        let slots = std::array::from_fn(|slot| Slot { owner: slot % nodes, migration: None });
        Self { slots, is_down: false, always_asks }
    }

    /// Why a node does not execute a call, if so. `server` has the data.
    fn refuse(&self, node: usize, asks: bool, call: &Call, server: &Server) -> Option<String> {
        let slot = slot_of(call.resources[0].as_str());
        let Slot { owner, migration } = &self.slots[slot];
        let is_source = node == *owner;
        if self.is_down {
            return Some("CLUSTERDOWN The cluster is down".to_owned());
        }
        let Some(Migration { to, moved }) = migration else {
            return (!is_source).then(|| format!("MOVED {slot} n{owner}:1"));
        };
        let keys = keys_of(call);
        let is_there = |(name, kind): &&Key| server.keys(name)[*kind];
        let present = keys.iter().filter(is_there).filter(|key| moved.contains(*key) != is_source).count();
        let is_complete = present == keys.len();
        if is_source {
            let tries_again = present > 0 && !self.always_asks;
            let text = || if tries_again { TRY_AGAIN.to_owned() } else { format!("ASK {slot} n{to}:1") };
            (!is_complete).then(text)
        } else if node == *to && asks {
            (!is_complete && keys.len() > 1).then(|| TRY_AGAIN.to_owned())
        } else {
            Some(format!("MOVED {slot} n{owner}:1"))
        }
    }

    /// Takes note of which node has the keys that a call has left.
    fn place(&mut self, node: usize, call: &Call, server: &Server) {
        let Slot { owner, migration } = &mut self.slots[slot_of(call.resources[0].as_str())];
        let Some(migration) = migration else { return };
        for key in keys_of(call) {
            if server.keys(&key.0)[key.1] && node != *owner {
                migration.moved.insert(key);
            } else {
                migration.moved.remove(&key);
            }
        }
    }
}

fn keys_of(call: &Call) -> Vec<Key> {
    let kinds = match call.operation {
        Operation::RenewAlone { lease: Lease::Sole, .. } => 0..1,
        Operation::RenewAlone { lease: Lease::Shared, .. } => EXPIRIES..EXPIRIES + 1,
        _ => 0..KINDS,
    };
    call.resources.iter().flat_map(|name| kinds.clone().map(|kind| (name.clone(), kind))).collect()
}

const TRY_AGAIN: &str = "TRYAGAIN Multiple keys request during rehashing of slot";

/// The longest pause between two keys that migrate.
const PACE: Duration = Duration::from_millis(300);

impl World {
    /// Exchanges the data of a node with the data of all slots.
    fn exchange_data(&mut self, node: usize) {
        if let Ok([one, other]) = self.nodes.get_disjoint_mut([self.primary, node]) {
            std::mem::swap(&mut one.server.data, &mut other.server.data);
        }
    }

    /// Lets a node of a Cluster have the data for a call; replies to the call if the node has no
    /// right to it.
    pub(super) fn begin_at_node(&mut self, node: usize, id: usize, call: &Call) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        let asks = self.connections.get(&id).is_some_and(|connection| connection.asks);
        let Some(text) = cluster.refuse(node, asks, call, &self.nodes[self.primary].server) else {
            self.exchange_data(node);
            return true;
        };
        self.note(|| format!("node {node}: connection {id} {:?} on {:?}: {text}", call.operation, call.resources));
        self.send_to_client(id, ToClient::Reply(Err(wire::error(&text))));
        false
    }

    pub(super) fn end_at_node(&mut self, node: usize, call: &Call) {
        if self.cluster.is_some() {
            self.exchange_data(node);
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.place(node, call, &self.nodes[self.primary].server);
        }
    }

    /// Subscribes a connection to a channel of its own, if its node has the slot.
    pub(super) fn subscribe(&mut self, node: usize, id: usize, channel: String) {
        let asks = self.connections.get(&id).is_some_and(|connection| connection.asks);
        if let Some(cluster) = &self.cluster {
            let slot = slot_of(&channel);
            let Slot { owner, migration } = &cluster.slots[slot];
            let imports = asks && migration.as_ref().is_some_and(|migration| migration.to == node);
            if node != *owner && !imports {
                let error = wire::error(&format!("MOVED {slot} n{owner}:1"));
                return self.send_to_client(id, ToClient::SubscribeFailed(channel, error));
            }
        }
        self.nodes[node].server.subscribe(id, channel);
    }

    pub(super) fn set_cluster_down(&mut self, is_down: bool) {
        if let Some(cluster) = &mut self.cluster {
            cluster.is_down = is_down;
        }
    }

    /// Begins to migrate a slot, unless it migrates already.
    pub(super) fn migrate_slot(&mut self) {
        let (slot, step) = (self.random.below(SLOTS as u64) as usize, 1 + self.random.below(2) as usize);
        let nodes = self.nodes.len();
        let Some(cluster) = &mut self.cluster else { return };
        let Slot { owner, migration } = &mut cluster.slots[slot];
        if migration.is_none() {
            *migration = Some(Migration { to: (*owner + step) % nodes, moved: BTreeSet::new() });
            self.at(self.now, Happening::Migrates(slot));
        }
    }

    /// Moves one key of a slot; ends the migration if all have moved.
    pub(super) fn move_key(&mut self, slot: usize) {
        self.checkers.disturb(self.now);
        let pause = self.between(Duration::ZERO, PACE);
        let server = &self.nodes[self.primary].server;
        let Some(cluster) = &mut self.cluster else { return };
        let Slot { owner, migration } = &mut cluster.slots[slot];
        let Some(Migration { to, moved }) = migration else { return };
        let keys = server.used().filter(|name| slot_of(name.as_str()) == slot);
        let keys = keys.flat_map(|name| (0..KINDS).map(|kind| (name.clone(), kind)));
        let left: Vec<Key> = keys.filter(|key| server.keys(&key.0)[key.1] && !moved.contains(key)).collect();
        if !left.is_empty() {
            let key = self.random.pick(&left).clone();
            let to = *to;
            moved.insert(key.clone());
            self.note(|| format!("node {to}: gets key {} of {}", key.1, key.0));
            self.at(self.now + pause, Happening::Migrates(slot));
            return;
        }
        let old = std::mem::replace(owner, *to);
        *migration = None;
        self.nodes[old].server.unsubscribe_all(|channel| slot_of(channel) == slot);
        self.note(|| format!("slot {slot} has left node {old}"));
    }
}
