//! Where a connection leads: to the server of the URL, or to the primary that a Sentinel names.

use std::sync::Arc;
use std::time::Duration;

use super::network::ToClient;
use super::random::Random;
use super::world::{Happening, World};
use crate::store::redis::failure::ErrorKind;
use crate::store::redis::interface::Seek;
use crate::store::redis::target::{Kind, Node, Target};

pub(super) struct Location {
    pub(super) target: Arc<Target>,
    /// The node that each Sentinel, or the resolver of the system, takes for the primary.
    known: Vec<usize>,
    /// How long they may take to notice a failover.
    pub(super) notice_within: Duration,
}

/// How long Sentinels take to notice a failover.
pub(super) const NOTICE_WITHIN: Duration = Duration::from_millis(500);

impl Location {
    pub(super) fn random(random: &mut Random) -> Self {
        let url = *random.pick(&["redis://h:1", "redis+sentinel://s1,s2,s3/m"]);
        let target = Target::parse(url).expect("a valid URL").expect("the URL of a server");
        Self { known: vec![0; target.nodes.len()], target: Arc::new(target), notice_within: NOTICE_WITHIN }
    }

    pub(super) fn has_sentinels(&self) -> bool {
        matches!(self.target.kind, Kind::Sentinel { .. })
    }

    /// The address of a node as clients know it.
    pub(super) fn address(&self, node: usize) -> Node {
        if self.has_sentinels() {
            Node::Tcp { host: format!("n{node}"), port: 1 }
        } else {
            self.target.nodes[0].clone()
        }
    }
}

impl World {
    /// The node to which a new connection leads if no lookup is needed.
    pub(super) fn node_at_once(&self) -> Option<usize> {
        (!self.location.has_sentinels()).then(|| self.location.known[0])
    }

    /// Ends the lookup of a connection: asks one Sentinel after another, and the node that it names
    /// for its role.
    pub(super) fn look_up(&mut self, id: usize, seek: &Seek) {
        let Seek::Start(attempt) = seek else { return };
        let sentinels = self.location.known.len();
        let named = (0..sentinels).map(|step| self.location.known[(attempt + step) % sentinels]);
        let mut failure = ErrorKind::Refused;
        let mut found = None;
        for node in named {
            if self.is_down(node) || self.weather.refuses {
                failure = ErrorKind::Refused;
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

    /// Lets the Sentinels notice the new primary, each at its own time.
    pub(super) fn announce(&mut self, node: usize) {
        for sentinel in 0..self.location.known.len() {
            let is_prompt = self.random.once_in(2);
            let within = if is_prompt { Duration::ZERO } else { self.location.notice_within };
            let at = self.now + self.between(Duration::ZERO, within);
            self.at(at, Happening::Noticed { sentinel, node });
        }
    }

    pub(super) fn notice(&mut self, sentinel: usize, node: usize) {
        self.location.known[sentinel] = node;
    }
}
