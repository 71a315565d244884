//! Connects to the first of several addresses that accepts.
//!
//! An address that says nothing must not keep the others from being tried, so the next one is tried
//! beside it after a moment, as RFC 8305 advises.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::stream::connect_tcp;
use super::{NetworkError, Stage};
use rlock_sys::clock::Boottime;

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
}
