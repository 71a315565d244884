//! A renewal resource by resource, while the slot of what is held migrates and no script gets all
//! the keys together.
//!
//! What keeps a lease alive is one key in each resource, which is on either of two nodes. A node
//! that doesn't have it yet, or any more, says that nothing is held there, which is no verdict:
//! only the other one can tell. So the lease counts as renewed once each key has been, on whichever
//! node, from the instant at which the first of them was sent.
//!
//! Pure: [`super::hold`] sends and hears.

use std::time::Duration;

use super::transport::route::Redirect;

/// The resources whose keys are still to be renewed, by their numbers in the request.
#[derive(Debug)]
pub(super) struct Piecemeal {
    since: Duration,
    left: Vec<usize>,
    /// The shortest lease that was given so far.
    lease: Duration,
    elsewhere: Option<Redirect>,
}

/// What comes after a round of answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// All are renewed.
    Renewed {
        /// When the first renewal was sent.
        since: Duration,
        /// The shortest of the leases that the nodes gave.
        lease: Duration,
    },
    /// The others may be where a node said.
    Redirect(Redirect),
    /// Nobody knows where the others are now.
    Later,
}

impl Piecemeal {
    /// None of so many resources is renewed yet, and the first renewal is sent at `since`.
    pub(super) fn new(resources: usize, since: Duration) -> Self {
        Self { since, left: (0..resources).collect(), lease: Duration::MAX, elsewhere: None }
    }

    /// Those that are to be asked for.
    pub(super) fn left(&self) -> Vec<usize> {
        self.left.clone()
    }

    /// A resource's key was renewed for as long as `lease`.
    pub(super) fn renewed(&mut self, resource: usize, lease: Duration) {
        self.lease = self.lease.min(lease);
        self.left.retain(|other| *other != resource);
    }

    /// A resource's key is elsewhere.
    pub(super) fn moved(&mut self, to: Redirect) {
        self.elsewhere = Some(to);
    }

    /// All that were asked for have answered.
    pub(super) fn next(&mut self) -> Next {
        match self.elsewhere.take() {
            _ if self.left.is_empty() => Next::Renewed { since: self.since, lease: self.lease },
            Some(redirect) => Next::Redirect(redirect),
            None => Next::Later,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::Node;
    use super::*;

    const SINCE: Duration = Duration::from_secs(7);
    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_secs(3);

    fn redirect() -> Redirect {
        Redirect::to(Node::Tcp { host: "h".to_owned(), port: 1 })
    }

    #[test]
    fn what_two_nodes_have_is_renewed_on_both() {
        let mut renewal = Piecemeal::new(3, SINCE);
        assert_eq!(renewal.left(), [0, 1, 2]);
        renewal.moved(redirect());
        renewal.renewed(1, SHORT);
        assert_eq!(renewal.next(), Next::Redirect(redirect()));
        assert_eq!(renewal.left(), [0, 2]);
        renewal.renewed(0, LONG);
        assert_eq!(renewal.next(), Next::Later, "one is on its way");
        renewal.renewed(2, LONG);
        assert_eq!(renewal.next(), Next::Renewed { since: SINCE, lease: SHORT });
    }

    #[test]
    fn who_has_all_need_not_ask_elsewhere() {
        let mut renewal = Piecemeal::new(1, SINCE);
        renewal.moved(redirect());
        renewal.renewed(0, LONG);
        assert_eq!(renewal.next(), Next::Renewed { since: SINCE, lease: LONG });
    }
}
