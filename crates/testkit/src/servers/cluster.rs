//! A Redis Cluster for a test, with slots that migrate step by step.

use std::process::Command;

use super::{Kind, Role, Server, Setup, ask, wait_until};

/// The number of slots of a Cluster.
const SLOTS: usize = 16384;

/// Several nodes that share the slots evenly, in order.
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts `nodes` nodes and waits until each of them reports that the Cluster is complete.
    pub fn start(kind: Kind, nodes: usize) -> Self {
        Self::of((0..nodes).map(|_| node(kind)).collect())
    }

    /// Starts a node for each of these numbers, with a clock that is so many seconds ahead.
    pub fn with_clocks(kind: Kind, ahead: &[i64]) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let library = folder.path().join("clock.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/clock.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
        assert!(built.expect("there is a C compiler").success());
        let node = |ahead: &i64| {
            let setup = node_setup(kind).environment("LD_PRELOAD", &library);
            setup.environment("CLOCK_AHEAD", ahead.to_string()).start()
        };
        Self::of(ahead.iter().map(node).collect())
    }

    fn of(nodes: Vec<Server>) -> Self {
        for (index, node) in nodes.iter().enumerate() {
            let mut client = node.client();
            // Otherwise two nodes may claim the same epoch and need time to agree.
            ask::<()>(&mut client, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            let slots = (SLOTS * index / nodes.len())..(SLOTS * (index + 1) / nodes.len());
            let mut command = redis::cmd("CLUSTER");
            command.arg("ADDSLOTS").arg(slots.collect::<Vec<_>>());
            command.query::<()>(&mut client).expect("a new node has no slots");
            if index > 0 {
                let first = nodes[0].port().to_string();
                ask::<()>(&mut client, &["CLUSTER", "MEET", "127.0.0.1", &first]);
            }
        }
        let cluster = Self { nodes };
        cluster.until_whole();
        cluster
    }

    /// Adds a replica of the node `of`, and waits until the replica has all data. Returns the
    /// replica's index.
    pub fn add_replica(&mut self, of: usize) -> usize {
        let replica = node(self.nodes[of].kind());
        let first = self.nodes[0].port().to_string();
        replica.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &first]);
        self.nodes.push(replica);
        self.until_whole();
        let (replica, id) = (self.nodes.len() - 1, self.id(of));
        self.nodes[replica].ask::<()>(&["CLUSTER", "REPLICATE", &id]);
        self.nodes[replica].until_replicated();
        // A node that does not know the replica as a replica yet would not vote for it.
        wait_until("all nodes know the replica", || {
            self.nodes.iter().all(|node| !node.ask::<Vec<String>>(&["CLUSTER", "REPLICAS", &id]).is_empty())
        });
        replica
    }

    /// Makes a replica the master. Its old master becomes a replica; both live on.
    pub fn promote(&self, replica: usize) {
        self.nodes[replica].ask::<()>(&["CLUSTER", "FAILOVER"]);
        self.nodes[replica].until_master();
        self.until_whole();
    }

    /// The URL of a store on the Cluster.
    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// A node, to be killed or restarted.
    pub fn node_mut(&mut self, index: usize) -> &mut Server {
        &mut self.nodes[index]
    }

    /// The slot of a key or of a tag.
    pub fn slot(&self, key: &str) -> usize {
        self.nodes[0].ask(&["CLUSTER", "KEYSLOT", key])
    }

    /// The node that serves a slot.
    pub fn owner(&self, slot: usize) -> usize {
        let serves = |node: &Server| {
            let slots: Vec<(usize, usize, (String, u16))> = shards(node);
            slots.iter().any(|(from, to, (_, port))| (*from..=*to).contains(&slot) && *port == node.port())
        };
        self.nodes.iter().position(serves).expect("a node serves each slot")
    }

    /// Begins to migrate a slot: from now on, clients must ask `to` for keys that `from` does not
    /// have.
    pub fn migrate(&self, slot: usize, from: usize, to: usize) -> Migration<'_> {
        let number = slot.to_string();
        self.nodes[to].ask::<()>(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &self.id(from)]);
        self.nodes[from].ask::<()>(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &self.id(to)]);
        Migration { cluster: self, slot: number, from, to }
    }

    /// Moves a slot as a whole, as Valkey 9 can, and waits until all nodes know.
    pub fn move_whole(&self, slot: usize, from: usize, to: usize) {
        let number = slot.to_string();
        self.nodes[from].ask::<()>(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &number, &number, "NODE", &self.id(to)]);
        wait_until("all nodes know where the slot has moved to", || {
            let port = self.nodes[to].port();
            let has_slot = |(first, last, (_, at)): &(usize, usize, (String, u16))| {
                (*first..=*last).contains(&slot) && *at == port
            };
            self.nodes.iter().all(|node| shards(node).iter().any(has_slot))
        });
    }

    /// The id of a node.
    pub fn id(&self, node: usize) -> String {
        self.nodes[node].ask(&["CLUSTER", "MYID"])
    }

    /// Waits until each node knows all others and knows that every slot is served.
    fn until_whole(&self) {
        let known = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        wait_until("the cluster is whole", || {
            self.nodes.iter().all(|node| {
                let info = node.ask::<String>(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok\r\n") && info.contains(&known)
            })
        });
    }
}

/// A slot that is being migrated from one node to another.
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
}

impl Migration<'_> {
    /// The keys that have not been moved yet.
    pub fn keys(&self) -> Vec<String> {
        self.cluster.node(self.from).ask(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"])
    }

    /// Moves one key.
    pub fn move_key(&self, key: &str) {
        let port = self.cluster.node(self.to).port().to_string();
        self.cluster.node(self.from).ask::<()>(&["MIGRATE", "127.0.0.1", &port, key, "0", "60000"]);
    }

    /// Moves all keys that are left.
    pub fn move_keys(&self) {
        loop {
            let keys = self.keys();
            if keys.is_empty() {
                return;
            }
            keys.iter().for_each(|key| self.move_key(key));
        }
    }

    /// Ends the migration: all nodes learn that `to` serves the slot.
    pub fn finish(self) {
        self.move_keys();
        let id = self.cluster.id(self.to);
        let nodes = [self.to, self.from].into_iter().chain(0..self.cluster.nodes.len());
        // The new owner learns it first. If the old owner gave the slot away too early, clients
        // would be redirected in a cycle.
        for node in nodes {
            let node = self.cluster.node(node);
            let replica = node.says(&["INFO", "replication"], "role:slave");
            if !replica {
                node.ask::<()>(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id]);
            }
        }
    }
}

fn node(kind: Kind) -> Server {
    node_setup(kind).start()
}

fn node_setup(kind: Kind) -> Setup {
    let mut setup = Setup::new(kind).tcp();
    setup.role = Role::Node;
    setup
}

/// The slot ranges with their masters: first slot, last slot, address. Replicas, which come later
/// in each row, are omitted.
fn shards(node: &Server) -> Vec<(usize, usize, (String, u16))> {
    let rows: Vec<Vec<redis::Value>> = node.ask(&["CLUSTER", "SLOTS"]);
    let number = |value: &redis::Value| redis::from_redis_value_ref::<usize>(value).expect("a slot is a number");
    let row = |row: Vec<redis::Value>| {
        let master: Vec<redis::Value> = redis::from_redis_value_ref(&row[2]).expect("a node is a list");
        let host = redis::from_redis_value_ref(&master[0]).expect("a host is a text");
        let port = redis::from_redis_value_ref(&master[1]).expect("a port is a number");
        (number(&row[0]), number(&row[1]), (host, port))
    };
    rows.into_iter().map(row).collect()
}
