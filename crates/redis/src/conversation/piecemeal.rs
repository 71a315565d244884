//! Renews a lease resource by resource while a slot migrates, because no script then gets all keys
//! together.
//!
//! One of two keys keeps the lease on a resource, on one of two nodes. All others report that
//! nothing is held, which proves nothing. So the lease counts as renewed once the lease on each
//! resource was renewed, wherever it is, and from the instant at which the first renewal was sent.

use std::time::Duration;

use crate::interface::Redirect;
use rlock_sys::clock::Boottime;

/// The progress of such a renewal.
#[derive(Debug)]
pub(super) struct Piecemeal {
    since: Boottime,
    /// The resources that still have to be renewed, by their indices in the request.
    left: Vec<usize>,
    /// The shortest lease that a node stated.
    lease: Duration,
    redirect: Option<Redirect>,
}

/// What follows a round of replies.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// All resources are renewed.
    Renewed {
        /// When the first renewal was sent.
        since: Boottime,
        /// The shortest lease that a node stated.
        lease: Duration,
    },
    /// The others may be on this node.
    Redirect(Redirect),
    /// No node has the others at the moment.
    Later,
}

impl Piecemeal {
    /// Begins to renew so many resources; the first renewal is sent at `since`.
    pub(super) fn new(resources: usize, since: Boottime) -> Self {
        Self { since, left: (0..resources).collect(), lease: Duration::MAX, redirect: None }
    }

    /// The resources to ask for.
    pub(super) fn left(&self) -> Vec<usize> {
        self.left.clone()
    }

    /// A node renewed a resource for as long as `lease`.
    pub(super) fn renewed(&mut self, resource: usize, lease: Duration) {
        self.lease = self.lease.min(lease);
        self.left.retain(|other| *other != resource);
    }

    /// Another node has a resource.
    pub(super) fn moved(&mut self, to: Redirect) {
        self.redirect = Some(to);
    }

    /// All replies of this round have arrived.
    pub(super) fn next(&mut self) -> Next {
        match self.redirect.take() {
            _ if self.left.is_empty() => Next::Renewed { since: self.since, lease: self.lease },
            Some(redirect) => Next::Redirect(redirect),
            None => Next::Later,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlock_store::node::Node;

    const SINCE: Boottime = Boottime::since_boot(Duration::from_secs(7));
    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_secs(3);

    fn redirect() -> Redirect {
        Redirect { node: Node::Tcp { host: "h".to_owned(), port: 1 }, asking: false }
    }

    #[test]
    fn keys_on_two_nodes_are_renewed_on_both() {
        let mut renewal = Piecemeal::new(3, SINCE);
        assert_eq!(renewal.left(), [0, 1, 2]);
        renewal.moved(redirect());
        renewal.renewed(1, SHORT);
        assert_eq!(renewal.next(), Next::Redirect(redirect()));
        assert_eq!(renewal.left(), [0, 2]);
        renewal.renewed(0, LONG);
        assert_eq!(renewal.next(), Next::Later, "one renewal is in flight");
        renewal.renewed(2, LONG);
        assert_eq!(renewal.next(), Next::Renewed { since: SINCE, lease: SHORT });
    }

    #[test]
    fn node_with_all_keys_needs_no_redirect() {
        let mut renewal = Piecemeal::new(1, SINCE);
        renewal.moved(redirect());
        renewal.renewed(0, LONG);
        assert_eq!(renewal.next(), Next::Renewed { since: SINCE, lease: LONG });
    }
}
