//! Where a connection leads: to the server of the URL, to the primary that a Sentinel names, or to
//! a node of a Cluster.

use std::sync::Arc;
use std::time::Duration;

use super::network::ToClient;
use super::random::Random;
use super::world::{Happening, World};
use rlock_redis::failure::ErrorKind;
use rlock_redis::interface::Seek;
use rlock_redis::target::{Kind, Target};
use rlock_store::network::NetworkError;
use rlock_store::node::Node;

pub(super) struct Location {
    pub(super) target: Arc<Target>,
    /// The node that each Sentinel, or the resolver of the system, takes for the primary; or the
    /// nodes of a Cluster.
    known: Vec<usize>,
    /// The last failover that each of them has noticed. None of them goes back to an earlier one.
    noticed: Vec<u64>,
    /// The number of failovers.
    failovers: u64,
    /// How long they may take to notice a failover.
    pub(super) notice_within: Duration,
}

/// How long Sentinels take to notice a failover.
pub(super) const NOTICE_WITHIN: Duration = Duration::from_millis(500);

/// The servers of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Servers {
    One,
    /// A primary and a replica, which the name of the server finds.
    Replicated,
    Sentinels,
    Cluster,
}

impl Servers {
    pub(super) const ALL: [Self; 4] = [Self::One, Self::Replicated, Self::Sentinels, Self::Cluster];

    /// One server in half of the cases.
    pub(super) fn random(random: &mut Random) -> Self {
        *random.pick(&[Self::One, Self::One, Self::One, Self::Replicated, Self::Sentinels, Self::Cluster])
    }

    pub(super) fn has_replicas(self) -> bool {
        matches!(self, Self::Replicated | Self::Sentinels)
    }

    /// The number of nodes that hold data.
    pub(super) fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Replicated => 2,
            Self::Sentinels | Self::Cluster => 3,
        }
    }

    fn url(self) -> &'static str {
        match self {
            Self::One | Self::Replicated => "redis://h:1",
            Self::Sentinels => "redis+sentinel://s1,s2,s3/m",
            Self::Cluster => "redis+cluster://n0:1,n1:1,n2:1",
        }
    }
}

impl Location {
    pub(super) fn new(servers: Servers) -> Self {
        let target = Target::parse(servers.url()).expect("a valid URL").expect("the URL of a server");
        let known = match target.kind {
            Kind::Cluster => (0..servers.count()).collect(),
            Kind::Single | Kind::Sentinel { .. } => vec![0; target.nodes.len()],
        };
        let noticed = vec![0; known.len()];
        Self { known, noticed, failovers: 0, target: Arc::new(target), notice_within: NOTICE_WITHIN }
    }

    pub(super) fn has_sentinels(&self) -> bool {
        matches!(self.target.kind, Kind::Sentinel { .. })
    }

    /// The address of a node as clients know it.
    pub(super) fn address(&self, node: usize) -> Node {
        match self.target.kind {
            Kind::Single => self.target.nodes[0].clone(),
            Kind::Sentinel { .. } | Kind::Cluster => Node::Tcp { host: format!("n{node}"), port: 1 },
        }
    }
}

impl World {
    /// The node to which a new connection leads if no lookup is needed.
    pub(super) fn node_at_once(&self, seek: &Seek) -> Option<usize> {
        match (seek, &self.location.target.kind) {
            (Seek::Start(_), Kind::Single) => Some(self.location.known[0]),
            (Seek::Start(_), Kind::Sentinel { .. } | Kind::Cluster) | (Seek::After(_), _) => None,
            (Seek::Redirect(redirect), _) => {
                let is_meant = |node: &usize| self.location.address(*node) == redirect.node;
                Some((0..self.nodes.len()).find(is_meant).expect("a node of the Cluster"))
            }
        }
    }

    /// Ends the lookup of a connection: asks the Sentinels, or one node after another, and the node
    /// that they name for its role.
    pub(super) fn look_up(&mut self, id: usize, seek: &Seek) {
        let attempt = match seek {
            Seek::Start(attempt) => attempt,
            Seek::After(_) => &0,
            Seek::Redirect(_) => return,
        };
        let count = self.location.known.len();
        let named: Vec<_> = if self.location.has_sentinels() {
            vec![self.newest()]
        } else {
            (0..count).map(|step| self.location.known[(attempt + step) % count]).collect()
        };
        let mut failure = ErrorKind::Network(NetworkError::Refused);
        let mut found = None;
        for node in named {
            if self.is_down(node) || self.weather.refuses {
                failure = ErrorKind::Network(NetworkError::Refused);
            } else if self.nodes[node].server.is_replica {
                failure = ErrorKind::NotTheMaster;
            } else {
                found = Some(node);
                break;
            }
        }
        match found {
            Some(node) => {
                let address = self.location.address(node);
                self.note(|| format!("network: connection {id} leads to node {node}"));
                self.at_client(id, ToClient::Located(address));
                self.lead(id, node);
            }
            None => self.fail(id, failure),
        }
    }

    /// What a majority of the Sentinels says by the newest of their epochs.
    fn newest(&mut self) -> usize {
        let count = self.location.known.len();
        let silent = self.random.below(count as u64) as usize;
        let answers = (0..count).filter(|sentinel| *sentinel != silent);
        let newest = answers.max_by_key(|sentinel| self.location.noticed[*sentinel]);
        self.location.known[newest.expect("there are three Sentinels")]
    }

    /// Asks the Sentinels for a client which node is the primary.
    pub(super) fn check_master(&mut self, id: usize, limit: Duration) {
        let took = self.lookup_time();
        if took <= limit {
            let primary = self.newest();
            self.at(self.now + took, Happening::Checked(id, primary));
        }
    }

    /// Lets the Sentinels notice the new primary, each at its own time.
    pub(super) fn announce(&mut self, node: usize) {
        self.location.failovers += 1;
        let failover = self.location.failovers;
        for sentinel in 0..self.location.known.len() {
            let is_prompt = self.random.once_in(2);
            let within = if is_prompt { Duration::ZERO } else { self.location.notice_within };
            let at = self.now + self.between(Duration::ZERO, within);
            self.at(at, Happening::Noticed { sentinel, failover, node });
        }
    }

    pub(super) fn notice(&mut self, sentinel: usize, failover: u64, node: usize) {
        if self.location.noticed[sentinel] < failover {
            self.location.noticed[sentinel] = failover;
            self.location.known[sentinel] = node;
        }
    }
}
