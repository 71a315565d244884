//! Describes the client at the other end of a connection, for the log and for `rlock inspect`.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::{SocketAddrAny, getpeername};

use crate::identity;
use crate::lock::request::Process;

/// The client's name in the log, and its description in `rlock inspect`. `address` is the address
/// at which the server listens.
pub(super) fn of_socket(socket: impl AsFd, address: &str, number: u64) -> (String, Process) {
    let command = vec!["serve".to_owned(), address.to_owned()];
    let remote = getpeername(&socket).ok().flatten();
    match remote.and_then(|remote| SocketAddr::try_from(remote).ok()) {
        Some(remote) => {
            let (host, user) = (remote.to_string(), "client".to_owned());
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

/// Whether an address can be reached from other machines.
pub(super) fn is_beyond_loopback(address: &SocketAddrAny) -> bool {
    SocketAddr::try_from(address.clone()).is_ok_and(|address| !address.ip().to_canonical().is_loopback())
}
