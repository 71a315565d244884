//! Finds out who is at the other end of a connection, for the log and for `rlock inspect`.

use std::net::SocketAddr;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketAddrAny, getpeername};
use std::os::fd::AsFd;

use crate::lock::request::Process;
use crate::passwd;

/// The client's name in the log, and its description in `rlock inspect`. `address` is the address
/// at which the server listens.
pub(super) fn of_socket(socket: impl AsFd, address: &str, number: u64) -> (String, Process) {
    let command = vec!["serve".to_owned(), address.to_owned()];
    let remote = getpeername(&socket).ok().flatten();
    match remote.and_then(|remote| SocketAddr::try_from(remote).ok()) {
        Some(remote) => {
            let (host, user) = (remote.to_string(), "client".to_owned());
            (host.clone(), Process { host, pid: 0, user, command })
        }
        None => {
            let process = match socket_peercred(&socket) {
                Ok(peer) => of_process(peer.uid.as_raw(), peer.pid.as_raw_pid().unsigned_abs(), command),
                Err(_) => Process { command, ..Process::default() },
            };
            (format!("client {number} of {}, pid {}", process.user, process.pid), process)
        }
    }
}

/// The client on standard input and output.
pub(super) fn of_stdio() -> (String, Process) {
    let command = vec!["serve".to_owned(), "--stdio".to_owned()];
    let uid = rustix::process::geteuid().as_raw();
    ("the client".to_owned(), of_process(uid, std::process::id(), command))
}

fn of_process(uid: u32, pid: u32, command: Vec<String>) -> Process {
    Process {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid,
        user: passwd::lookup(uid).map_or_else(|| uid.to_string(), |(name, _)| name),
        command,
    }
}

/// Whether an address can be reached from other machines.
pub(super) fn is_beyond_loopback(address: &SocketAddrAny) -> bool {
    SocketAddr::try_from(address.clone()).is_ok_and(|address| !address.ip().to_canonical().is_loopback())
}
