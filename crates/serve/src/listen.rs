//! Opens the listening sockets: those of `--listen`, those that systemd passes, or the default.

use std::error::Error;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, getsockname,
    listen, socket_with, sockopt,
};

use super::peer::{self, is_beyond_loopback};
use rlock_arguments::values::Address;
use rlock_show::failure::Failure;
use rlock_sys::exit;
use rlock_sys::rights;
use rlock_words::reason;

/// The port of the older lock server.
const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1006);
/// The number of connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 4096;
/// The first port that needs no right, see ip(7).
const FIRST_FREE_PORT: u16 = 1024;

/// A socket that accepts clients.
pub(super) struct Listener {
    socket: OwnedFd,
    /// The address in the log and in `rlock inspect`.
    pub(super) address: String,
    /// The unix socket that this process has made, with its device and inode.
    made: Option<(PathBuf, Option<(u64, u64)>)>,
}

impl Listener {
    /// Accepts one connection.
    pub(super) fn accept(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
    }

    fn new(socket: OwnedFd, made: Option<(PathBuf, Option<(u64, u64)>)>) -> Result<Self, Errno> {
        let address = getsockname(&socket)?;
        if address.address_family() == AddressFamily::UNIX {
            rights::let_in(socket.as_fd(), false);
        }
        Ok(Self { socket, address: peer::shown(&address), made })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody may have replaced the socket by that of another server.
        if let Some((path, _)) = self.made.take().filter(|(path, made)| made.is_some() && inode(path) == *made) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Opens the sockets. `is_guarded` says whether clients need a token, or may do without one on
/// purpose.
pub(super) fn open(addresses: &[Address], is_guarded: bool) -> Result<Vec<Listener>, Failure> {
    let mut listeners = Vec::new();
    for address in addresses {
        match address {
            Address::Unix(path) => listeners.push(on_path(path)?),
            Address::Tcp(host, port) => {
                let shown = format!("{host}:{port}");
                let found = (host.as_str(), *port).to_socket_addrs().map_err(|error| failed(&shown, &error))?;
                for address in found {
                    listeners.push(on_address(address, is_guarded)?);
                }
            }
        }
    }
    if addresses.is_empty() {
        listeners = from_systemd(is_guarded)?;
    }
    if listeners.is_empty() {
        listeners.push(on_address(DEFAULT, is_guarded)?);
    }
    Ok(listeners)
}

fn on_address(address: SocketAddr, is_guarded: bool) -> Result<Listener, Failure> {
    check_guard(&address.into(), &address, is_guarded)?;
    let make = || {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Listener::new(socket, None)
    };
    make().map_err(|error| match error {
        Errno::ACCESS | Errno::PERM if address.port() < FIRST_FREE_PORT => {
            let text = format!(
                "cannot listen on {address}: {}: a port below 1024 needs a right, so let systemd pass the socket, see \
                 rlock-serve(8), or choose another port with --listen",
                reason(&error)
            );
            Failure::new(exit::FAILURE, text)
        }
        error => failed(&address, &error),
    })
}

fn on_path(path: &Path) -> Result<Listener, Failure> {
    let shown = format!("unix:{}", path.display());
    let make = || {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        let address = SocketAddrUnix::new(path)?;
        remove_if_dead(path, &address)?;
        // The socket is made with mode 0600. No other thread makes files yet.
        let before = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
        let bound = bind(&socket, &address);
        rustix::process::umask(before);
        bound?;
        listen(&socket, BACKLOG)?;
        Listener::new(socket, Some((path.to_owned(), inode(path))))
    };
    make().map_err(|error: Errno| failed(&shown, &error))
}

/// The device and the inode of a file.
fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Removes the socket of a server that has ended.
fn remove_if_dead(path: &Path, address: &SocketAddrUnix) -> Result<(), Errno> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        let probe =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        if connect(&probe, address) == Err(Errno::CONNREFUSED) {
            // If it stays, bind reports why.
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// The sockets of sd_listen_fds(3).
fn from_systemd(is_guarded: bool) -> Result<Vec<Listener>, Failure> {
    let passed = sd_notify::listen_fds().map_err(|error: io::Error| failed(&"the sockets of systemd", &error))?;
    passed
        .map(|number| {
            // SAFETY: the service manager passed the descriptor to this process, and nothing else
            // here uses it.
            let socket = unsafe { OwnedFd::from_raw_fd(number) };
            let wrong = || {
                Failure::usage(format!(
                    "descriptor {number} from systemd is not a listening stream socket: use ListenStream= without Accept=yes"
                ))
            };
            let is_stream = sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
            if !is_stream || sockopt::socket_acceptconn(&socket) != Ok(true) {
                return Err(wrong());
            }
            let address = getsockname(&socket).map_err(|_| wrong())?;
            let inherited = |error: Errno| failed(&format_args!("descriptor {number} from systemd"), &error);
            let flags = rustix::fs::fcntl_getfl(&socket).map_err(inherited)?;
            rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK).map_err(inherited)?;
            rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(inherited)?;
            let listener = Listener::new(socket, None).map_err(inherited)?;
            check_guard(&address, &listener.address, is_guarded)?;
            Ok(listener)
        })
        .collect()
}

fn check_guard(address: &SocketAddrAny, shown: &dyn Display, is_guarded: bool) -> Result<(), Failure> {
    if is_guarded || !is_beyond_loopback(address) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{shown} can be reached from other machines: require a token with --token-file, or allow everybody with --insecure"
    )))
}

fn failed(address: &dyn Display, error: &(dyn Error + 'static)) -> Failure {
    Failure::new(exit::FAILURE, format!("cannot listen on {address}: {}", reason(error)))
}
