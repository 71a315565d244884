//! Describes the client at the other end of a connection, for the log and for `rlock inspect`.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, getpeername};

use rlock_model::request::Process;
use rlock_store::identity;

/// The client's name in the log, and its description in `rlock inspect`. `address` is the address
/// at which the server listens.
pub(super) fn of_socket(socket: impl AsFd, address: &str, number: u64) -> (String, Process) {
    let command = vec!["serve".to_owned(), address.to_owned()];
    match getpeername(&socket).ok().flatten().filter(|remote| remote.address_family() != AddressFamily::UNIX) {
        Some(remote) => {
            let (host, user) = (shown(&remote), "client".to_owned());
            (host.clone(), Process { host, user, command, ..Process::default() })
        }
        None => {
            let process = match credentials(socket.as_fd()) {
                Some(peer) => identity::process(peer.uid, peer.pid.unsigned_abs(), command),
                None => Process { command, ..Process::default() },
            };
            (format!("client {number} of {}, pid {}", process.user, process.pid), process)
        }
    }
}

/// The client on standard input and output.
pub(super) fn of_stdio() -> (String, Process) {
    let command = vec!["serve".to_owned(), "--stdio".to_owned()];
    let uid = rustix::process::geteuid().as_raw();
    ("the client".to_owned(), identity::process(uid, std::process::id(), command))
}

/// The process that connected to a unix socket, see unix(7). Its pid is 0 if this process's pid
/// namespace does not contain it. The type of rustix cannot hold a pid of 0.
fn credentials(socket: BorrowedFd<'_>) -> Option<libc::ucred> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    let place = (&raw mut found).cast();
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `found`. Every value
    // of these bytes is valid.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length) };
    (result == 0).then_some(found)
}

/// An address in the words of `--listen`, as far as it has such words.
pub(super) fn shown(address: &SocketAddrAny) -> String {
    if let Ok(address) = SocketAddr::try_from(address.clone()) {
        return address.to_string();
    }
    match address.address_family() {
        AddressFamily::UNIX => {
            let unix = SocketAddrUnix::try_from(address.clone()).ok();
            let path = unix.as_ref().and_then(|unix| unix.path()).map(|path| path.to_string_lossy().into_owned());
            format!("unix:{}", path.unwrap_or_default())
        }
        AddressFamily::VSOCK if address.addr_len() as usize >= size_of::<libc::sockaddr_vm>() => {
            // SAFETY: the address has the length of this type, and every value of its bytes is
            // valid.
            let found = unsafe { address.as_ptr().cast::<libc::sockaddr_vm>().read_unaligned() };
            format!("vsock:{}:{}", found.svm_cid, found.svm_port)
        }
        other => format!("family {}", other.as_raw()),
    }
}

/// Whether an address can be reached from other machines. Those of virtual machines count as other
/// machines, and so does whatever is not known.
pub(super) fn is_beyond_loopback(address: &SocketAddrAny) -> bool {
    match SocketAddr::try_from(address.clone()) {
        Ok(address) => !address.ip().to_canonical().is_loopback(),
        Err(_) => address.address_family() != AddressFamily::UNIX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_sockets_and_the_loopback_are_local_and_nothing_else() {
        let ip = |text: &str| SocketAddrAny::from(text.parse::<SocketAddr>().unwrap());
        for (address, shown_as, is_beyond) in [
            (ip("127.0.0.1:7"), "127.0.0.1:7", false),
            (ip("[::1]:7"), "[::1]:7", false),
            (ip("[::ffff:127.0.0.1]:7"), "[::ffff:127.0.0.1]:7", false),
            (ip("0.0.0.0:7"), "0.0.0.0:7", true),
            (SocketAddrUnix::new("/run/x").unwrap().into(), "unix:/run/x", false),
            (SocketAddrUnix::new_unnamed().into(), "unix:", false),
        ] {
            assert_eq!((shown(&address).as_str(), is_beyond_loopback(&address)), (shown_as, is_beyond));
        }
    }

    #[test]
    fn vsock_leads_to_another_machine() {
        let address = vsock(libc::VMADDR_CID_ANY, 1006);
        assert_eq!(shown(&address), format!("vsock:{}:1006", libc::VMADDR_CID_ANY));
        assert!(is_beyond_loopback(&address));
    }

    fn vsock(cid: u32, port: u32) -> SocketAddrAny {
        // SAFETY: zeros are a valid address.
        let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        address.svm_family = u16::try_from(libc::AF_VSOCK).unwrap();
        (address.svm_cid, address.svm_port) = (cid, port);
        // SAFETY: the pointer leads to an address of this length.
        unsafe { SocketAddrAny::read((&raw const address).cast(), size_of_val(&address) as u32) }
    }
}
