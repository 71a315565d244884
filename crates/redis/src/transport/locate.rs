//! Finds the address of a server: resolves its name, has `sentinels` ask for it, or tries the nodes
//! of a Cluster.
//!
//! A lookup that may block runs in a thread, which closes a pipe when it ends. The connection over
//! which a server was found is handed over.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::link::{Address, Link, Way};
use super::{blocking, sentinels};
use crate::failure::{ErrorKind, Failure};
use crate::interface::Seek;
use crate::target::{Kind, Target};
use rlock_store::credentials::Refused;
use rlock_store::network::lookup::{self as network, NoResult};
use rlock_store::network::resolve::{self, Resolved};
use rlock_store::network::{NetworkError, Stage};
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;
use rlock_words::reason;

/// The state of a search.
pub(super) enum Located {
    /// The address is known.
    Ready(Address),
    /// A thread is looking for it.
    Pending(Lookup),
}

/// A lookup in a thread.
pub(super) struct Lookup {
    found: network::Lookup<Result<Address, Failure>>,
    server: String,
}

/// Begins to look for a server. A lookup of several steps ends at `deadline`. Each step has its
/// share of the time that is left, so that a silent server does not keep the next from being asked.
pub(super) fn locate(target: &Arc<Target>, seek: Seek, deadline: Boottime) -> Result<Located, Failure> {
    let is_refused = target.credentials.is_refused();
    let node = match seek {
        Seek::Redirect(redirect) => {
            target.known.add(redirect.node.clone());
            redirect.node
        }
        // The path of a socket may be on a mount that does not answer, and connect(2) waits for it.
        Seek::Start(_) if matches!(&target.nodes[..], [Node::Unix(path)] if !is_at_hand(path)) => {
            let node = target.nodes[0].clone();
            return search(target, target.shown_node(&node), move |target| {
                let address = Address::new(&node, Way::Path);
                Link::open(target, address).map(|link| Address::open(link, &node))
            })
            .map(Located::Pending);
        }
        Seek::Start(_) if matches!(target.kind, Kind::Sentinel { .. }) => {
            let search = search(target, target.shown(), move |target| sentinels::connect(target, None, deadline));
            return search.map(Located::Pending);
        }
        Seek::After(old) => {
            let search = search(target, target.shown(), move |target| sentinels::connect(target, Some(&old), deadline));
            return search.map(Located::Pending);
        }
        Seek::Start(attempt) if target.kind == Kind::Cluster => {
            let nodes = target.known.in_turn(&target.nodes, attempt);
            match <[Node; 1]>::try_from(nodes) {
                Ok([node]) => node,
                Err(nodes) => {
                    let search = search(target, target.shown(), move |target| in_turn(target, &nodes, deadline));
                    return search.map(Located::Pending);
                }
            }
        }
        Seek::Start(_) => target.nodes[0].clone(),
    };
    match known(&node) {
        Some(address) if !is_refused => Ok(Located::Ready(address)),
        _ => {
            let server = target.shown_node(&node);
            search(target, server.clone(), move |target| {
                resolve(target, &node, deadline).map_err(|kind| kind.of(&server))
            })
            .map(Located::Pending)
        }
    }
}

/// Begins to ask whether `node`, which the Sentinels have named by a configuration of this epoch,
/// is still the master, until `deadline`. The result is [`Way::Path`] if it is, [`Way::Unknown`] if
/// no Sentinel answers, or the failure that it is not.
pub(super) fn check_master(
    target: &Arc<Target>,
    node: &Node,
    epoch: u64,
    deadline: Boottime,
) -> Result<Lookup, Failure> {
    let node = node.clone();
    search(target, target.shown_node(&node), move |target| {
        let is_answered = sentinels::check(target, &node, epoch, deadline)?;
        Ok(Address::new(&node, if is_answered { Way::Path } else { Way::Unknown }))
    })
}

/// Whether the kernel can resolve a path from its cache, without waiting for a file system.
fn is_at_hand(path: &Path) -> bool {
    let looked_up = openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED);
    // Kernels before 5.12 and sandboxes reject this call.
    matches!(looked_up, Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS))
}

/// Begins to look for a server by `find`. A password that was refused is read again before.
fn search(
    target: &Arc<Target>,
    server: String,
    find: impl FnOnce(&Arc<Target>) -> Result<Address, Failure> + Send + 'static,
) -> Result<Lookup, Failure> {
    let (target, named) = (Arc::clone(target), server.clone());
    let run = move || {
        target.credentials.renew().map_err(|Refused| ErrorKind::WrongPassword.of(&named))?;
        find(&target)
    };
    match network::Lookup::begin(run) {
        Ok(found) => Ok(Lookup { found, server }),
        Err(error) => {
            let why = format!("cannot look for it: {}", reason(&error));
            Err(ErrorKind::Network(NetworkError::ConnectionFailed(why)).of(&server))
        }
    }
}

impl Lookup {
    /// The descriptor to poll.
    pub(super) fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        self.found.descriptor()
    }

    /// The result, once there is one. It is given once.
    pub(super) fn result(&self) -> Option<Result<Address, Failure>> {
        self.found.result().unwrap_or_else(|NoResult| {
            let error = NetworkError::ConnectionFailed("the search for it failed".to_owned());
            Some(Err(ErrorKind::Network(error).of(&self.server)))
        })
    }

    /// The failure when the lookup takes too long.
    pub(super) fn timeout_failure(&self) -> Failure {
        ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting)).of(&self.server)
    }
}

/// Tries nodes of a Cluster until one answers. If none does, a lasting failure is reported rather
/// than a passing one.
fn in_turn(target: &Target, nodes: &[Node], deadline: Boottime) -> Result<Address, Failure> {
    let mut worst: Option<Failure> = None;
    for (step, node) in nodes.iter().enumerate() {
        let left = u32::try_from(nodes.len() - step).unwrap_or(u32::MAX);
        let began = Boottime::now();
        let found = node_of_cluster(target, node, began + (deadline - began) / left);
        target.known.tried(node, found.is_ok());
        match found {
            Ok(address) => return Ok(address),
            // A node that was heard of may be another server by now.
            Err(_) if worst.is_some() && !target.nodes.contains(node) => {}
            Err(failure) if worst.as_ref().is_none_or(Failure::is_transient) => worst = Some(failure),
            Err(_) => {}
        }
    }
    Err(worst.unwrap_or_else(|| ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting)).of(&target.shown())))
}

fn node_of_cluster(target: &Target, node: &Node, deadline: Boottime) -> Result<Address, Failure> {
    let address = resolve(target, node, deadline).map_err(|kind| kind.of(&target.shown_node(node)))?;
    let mut link = Link::open(target, address)?;
    blocking::log_in(&mut link, deadline)?;
    Ok(Address::open(link, node))
}

/// The address of a node that needs no lookup.
fn known(node: &Node) -> Option<Address> {
    let way = match node {
        Node::Unix(_) => Way::Path,
        Node::Tcp { host, port } => Way::Socket(SocketAddr::new(host.parse::<IpAddr>().ok()?, *port)),
    };
    Some(Address::new(node, way))
}

/// Resolves a name, see [`resolve`](resolve::resolve).
pub(super) fn resolve(target: &Target, node: &Node, deadline: Boottime) -> Result<Address, ErrorKind> {
    if let Some(address) = known(node) {
        return Ok(address);
    }
    let Node::Tcp { host, port } = node else { unreachable!("a path is known") };
    let way = match resolve::resolve(host, *port, &target.order, deadline)? {
        Resolved::Only(socket) => Way::Socket(socket),
        Resolved::Connected(connection, address) => Way::Connected(connection, address),
    };
    Ok(Address::new(node, way))
}

#[cfg(test)]
mod tests;
