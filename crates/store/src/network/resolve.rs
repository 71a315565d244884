//! Resolves the names of servers, and connects to the first of several addresses that accepts.
//!
//! The address that answered last is tried first, and those that accepted a connection and said
//! nothing are tried last. An address that says nothing must not keep the others from being tried,
//! so the next one is tried beside it after a moment, as RFC 8305 advises.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::stream::connect_tcp;
use super::{NetworkError, Stage};
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

/// What is known of the addresses of names that have several. All connections to a store share it.
#[derive(Debug, Default)]
pub struct Order(Mutex<Experience>);

#[derive(Debug, Default)]
struct Experience {
    answered: Option<SocketAddr>,
    /// Those that have accepted a connection and not answered since, the first one first.
    silent: Vec<SocketAddr>,
}

/// Maximum number of silent addresses that are known.
const SILENT_MAX: usize = 64;

impl Order {
    /// Orders the addresses in which to try them.
    pub fn sort(&self, addresses: &mut [SocketAddr]) {
        let Experience { answered, silent } = &*self.experience();
        let turn = |address: &SocketAddr| silent.iter().position(|other| other == address).map_or(0, |place| place + 1);
        addresses.sort_by_key(|address| (turn(address), *answered != Some(*address)));
    }

    /// An address has accepted a connection.
    pub fn accepted(&self, address: SocketAddr) {
        let mut experience = self.experience();
        experience.silent.retain(|other| *other != address);
        experience.silent.push(address);
        if experience.silent.len() > SILENT_MAX {
            experience.silent.remove(0);
        }
    }

    /// The server at an address has answered.
    pub fn answered(&self, address: SocketAddr) {
        let mut experience = self.experience();
        experience.answered = Some(address);
        experience.silent.retain(|other| *other != address);
    }

    fn experience(&self) -> MutexGuard<'_, Experience> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long an address has before the next one is tried as well (RFC 8305, section 5).
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// Returns the first connection to one of `addresses`, which are tried in this order until
/// `deadline`. This blocks.
///
/// # Errors
/// None of them accepts: the last failure.
pub fn connect_first(addresses: &[SocketAddr], deadline: Boottime) -> Result<(OwnedFd, SocketAddr), NetworkError> {
    let mut next = addresses.iter();
    let mut begun: Vec<(OwnedFd, SocketAddr)> = Vec::new();
    let mut failure = NetworkError::TimedOut(Stage::Connecting);
    let mut next_at = Boottime::now();
    loop {
        let now = Boottime::now();
        if next_at <= now
            && let Some(address) = next.next()
        {
            match connect_tcp(*address) {
                Ok(socket) => {
                    begun.push((socket, *address));
                    next_at = now + NEXT_AFTER;
                }
                Err(kind) => failure = kind,
            }
            continue;
        }
        let has_more = !next.as_slice().is_empty();
        if begun.is_empty() && !has_more || deadline <= now {
            return Err(failure);
        }
        let until = if has_more { next_at.min(deadline) } else { deadline };
        for index in connected_or_failed(&begun, until) {
            let (socket, address) = begun.remove(index);
            match sockopt::socket_error(&socket) {
                Ok(Ok(())) => return Ok((socket, address)),
                Ok(Err(error)) | Err(error) => {
                    failure = NetworkError::from_kernel(error, Stage::Connecting);
                    next_at = now;
                }
            }
        }
    }
}

/// Waits until the kernel has decided about one of the connections, or until an instant. Returns
/// the indexes, the largest first.
fn connected_or_failed(begun: &[(OwnedFd, SocketAddr)], until: Boottime) -> Vec<usize> {
    let mut polled: Vec<_> =
        begun.iter().map(|(socket, _)| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)).collect();
    let timeout = Timespec::try_from(until - Boottime::now()).ok();
    // An error, for example a signal, leaves nothing decided.
    let _ = poll(&mut polled, timeout.as_ref());
    (0..polled.len()).rev().filter(|index| !polled[*index].revents().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::{AddressFamily, SocketType, bind, getpeername, getsockname, listen, socket};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A listener without room, so that it does not answer, and what fills it.
    fn silent() -> (SocketAddr, Vec<OwnedFd>) {
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&listener, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let address = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
        let mut kept = vec![listener];
        loop {
            let (connection, is_open) = (connect_tcp(address).unwrap(), Boottime::now() + Duration::from_millis(200));
            let begun = [(connection, address)];
            let decided = connected_or_failed(&begun, is_open);
            kept.extend(begun.map(|(connection, _)| connection));
            if decided.is_empty() {
                return (address, kept);
            }
        }
    }

    #[test]
    fn first_address_that_accepts_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap();
        let (silent, _kept) = silent();
        let deserted = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // This prefix is for packets that are to be discarded.
        let nowhere = SocketAddr::from((std::net::Ipv6Addr::from_bits(0x100 << 112), 1));
        for addresses in
            [vec![good, silent], vec![silent, good], vec![nowhere, deserted, good], vec![silent, deserted, good]]
        {
            let (socket, address) = connect_first(&addresses, Boottime::now() + PATIENCE).unwrap();
            assert_eq!((address, SocketAddr::try_from(getpeername(&socket).unwrap().unwrap()).unwrap()), (good, good));
        }
    }

    #[test]
    fn failure_of_all_addresses_is_reported_in_time() {
        let (silent, _kept) = silent();
        let deserted = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let failed = |addresses: &[SocketAddr], patience| connect_first(addresses, Boottime::now() + patience).err();
        assert_eq!(failed(&[deserted, deserted], PATIENCE), Some(NetworkError::Refused));
        assert_eq!(failed(&[silent], Duration::from_millis(50)), Some(NetworkError::TimedOut(Stage::Connecting)));
        assert_eq!(failed(&[], PATIENCE), Some(NetworkError::TimedOut(Stage::Connecting)));
    }

    #[test]
    fn address_that_answered_comes_first_and_a_silent_one_last() {
        let [a, b, c] = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let order = Order::default();
        let sorted = || {
            let mut addresses = [a, b, c];
            order.sort(&mut addresses);
            addresses
        };
        assert_eq!(sorted(), [a, b, c]);
        order.answered(b);
        assert_eq!(sorted(), [b, a, c]);
        order.accepted(b);
        assert_eq!(sorted(), [a, c, b], "it has accepted a connection, and has not answered");
        order.accepted(a);
        assert_eq!(sorted(), [c, b, a], "the one that was tried last comes last");
        order.answered(a);
        assert_eq!(sorted(), [a, c, b]);
    }

    #[test]
    fn name_servers_that_fail_are_told_of_in_the_same_words_by_each_c_library() {
        for words in ["Try again", "Temporary failure in name resolution"] {
            let error = io::Error::other(format!("failed to lookup address information: {words}"));
            assert_eq!(resolver_words(&error), "temporary failure in name resolution");
        }
    }
}
