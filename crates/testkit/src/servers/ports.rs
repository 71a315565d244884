//! Free TCP ports.

use std::net::{Ipv4Addr, TcpListener};

/// The distance between a Cluster node's port for clients and its bus port, on which the nodes talk
/// to each other.
const BUS: u16 = 10_000;

/// A port that is free at the moment of the call.
pub(super) fn free() -> u16 {
    listener().1
}

/// A port for a Cluster node, whose bus port is free as well.
pub(super) fn free_with_bus() -> u16 {
    loop {
        let (_listener, port) = listener();
        if let Some(bus) = port.checked_add(BUS)
            && TcpListener::bind((Ipv4Addr::LOCALHOST, bus)).is_ok()
        {
            return port;
        }
    }
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    let port = listener.local_addr().expect("the listener has an address").port();
    (listener, port)
}
