//! TCP ports that nobody uses.

use std::net::{Ipv4Addr, TcpListener};

/// How far the port on which the nodes of a Cluster talk to each other is from that for clients.
const BUS: u16 = 10_000;

/// A port that was free just now.
pub(super) fn free() -> u16 {
    listener().1
}

/// A port for a node of a Cluster, whose bus port was free as well.
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
    let port = listener.local_addr().expect("it has an address").port();
    (listener, port)
}
