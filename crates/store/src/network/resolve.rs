//! Resolves the names of servers.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

use super::NetworkError;
use super::order::Order;
use super::race::connect_first;
use rlock_sys::clock::Boottime;
use rlock_words::reason;

/// The address of a host.
pub enum Resolved {
    /// The only address.
    Only(SocketAddr),
    /// The address among several that has accepted this connection.
    Connected(OwnedFd, SocketAddr),
}

/// Resolves a name, which may block for as long as the resolver of the system does. Of several
/// addresses, the first one that accepts a connection counts, beginning with the one that answered
/// last.
pub fn resolve(host: &str, port: u16, order: &Order, deadline: Boottime) -> Result<Resolved, NetworkError> {
    use_built_in_services();
    let sockets = (host, port).to_socket_addrs().map_err(|error| NetworkError::Unresolved(resolver_words(&error)))?;
    let mut sockets: Vec<_> = sockets.collect();
    match &sockets[..] {
        [] => Err(NetworkError::Unresolved("it has no address".to_owned())),
        [socket] => Ok(Resolved::Only(*socket)),
        _ => {
            order.sort(&mut sockets);
            let (connection, address) = connect_first(&sockets, deadline)?;
            order.accepted(address);
            Ok(Resolved::Connected(connection, address))
        }
    }
}

/// The reason of the resolver, without its prefix. Of name servers that fail, musl says only to try
/// again, which rlock does.
fn resolver_words(error: &io::Error) -> String {
    let words = reason(error);
    let last = words.rsplit(": ").next().unwrap_or(&words);
    let last = if last == "Try again" { "Temporary failure in name resolution" } else { last };
    let mut letters = last.chars();
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}

/// Resolves names by /etc/hosts and DNS alone, whatever /etc/nsswitch.conf names.
///
/// The other services are shared libraries of the installed glibc. The binary is linked statically
/// against another glibc, so loading them can crash. These two are built in.
#[cfg(target_env = "gnu")]
fn use_built_in_services() {
    use std::ffi::{c_char, c_int};

    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }

    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: both arguments are strings that end in NUL and are only read. No other thread
        // resolves names before this call returns.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    });
}

#[cfg(not(target_env = "gnu"))]
fn use_built_in_services() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_that_fail_are_told_of_in_the_same_words_by_each_c_library() {
        for words in ["Try again", "Temporary failure in name resolution"] {
            let error = io::Error::other(format!("failed to lookup address information: {words}"));
            assert_eq!(resolver_words(&error), "temporary failure in name resolution");
        }
    }
}
