//! Resolves the names of servers.

use std::net::{IpAddr, SocketAddr};

use super::link::{Address, Way};
use crate::failure::ErrorKind;
use crate::target::Target;
use rlock_store::network::resolve::{self, Resolved};
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;

/// The address of a node that needs no lookup.
pub(super) fn known(node: &Node) -> Option<Address> {
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
