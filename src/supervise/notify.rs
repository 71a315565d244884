//! The socket by which a command of `--until-ready` tells that it is ready, as sd_notify(3) does.
//!
//! The socket is in the abstract namespace, because a container may have no folder that can be
//! written. Everybody on the machine can send to such a socket, so a message counts only if a
//! process below rlock has sent it. What counts is passed on to the socket that rlock itself was
//! given, for example by systemd, with its descriptors.

use std::ffi::{OsStr, OsString, c_int};
use std::io::IoSlice;
use std::mem::{MaybeUninit, size_of, size_of_val, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_passcred, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind,
    sendmsg_addr, socket_with,
};
use rustix::process::{Pid, getpid, getuid};

use crate::show::failure::Failure;
use crate::system::exit;
use crate::system::processes;
use crate::words::{one_line, reason};

/// The variable with the address of the socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Maximum length of a message. systemd ignores longer ones, too.
const BYTES_MAX: usize = 4096;
/// Maximum number of descriptors in a message, the kernel's.
const FILES_MAX: usize = 253;
/// The space for the credentials and the descriptors of a message, in words of 8 bytes.
const CONTROL_WORDS: usize = (FILES_MAX * size_of::<c_int>() + 128) / 8;

/// How long the outer socket may take to accept a message. A longer wait could cost the lease.
const SEND_LIMIT: Duration = Duration::from_millis(100);

/// The socket of the command, and the socket to which its messages are passed on.
#[derive(Debug)]
pub(crate) struct NotifySocket {
    socket: OwnedFd,
    name: String,
    outer: Option<(OwnedFd, SocketAddrUnix)>,
}

/// A message that somebody has sent.
struct Message {
    bytes: Vec<u8>,
    /// The process that sent it; `None` if the message is too long to count.
    sender: Option<libc::ucred>,
    files: Vec<OwnedFd>,
}

impl NotifySocket {
    /// Makes the socket for the command of this session.
    ///
    /// # Errors
    /// The kernel's, or the variable that rlock itself was given is no address of a unix socket.
    pub(crate) fn open(session: &str) -> Result<Self, Failure> {
        let outer = std::env::var_os(VARIABLE).filter(|address| !address.is_empty());
        let outer = outer.map(|address| Ok::<_, Failure>((send_socket().map_err(failed)?, address_of(&address)?)));
        let outer = outer.transpose()?;
        let name = format!("rlock/{session}");
        let made = || {
            let socket = datagram_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
            set_socket_passcred(&socket, true)?;
            bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
            Ok(socket)
        };
        Ok(Self { socket: made().map_err(failed)?, name, outer })
    }

    /// The variable by which the command finds the socket.
    pub(crate) fn variable(&self) -> (OsString, OsString) {
        (VARIABLE.into(), format!("@{}", self.name).into())
    }

    /// Takes the next message of a process below rlock, and passes it on. Returns whether it says
    /// that the command is ready, or `None` if there is no message.
    pub(crate) fn next(&self) -> Option<bool> {
        loop {
            let message = receive(self.socket.as_fd()).ok()?;
            if !message.sender.is_some_and(counts) {
                continue;
            }
            if let Some((socket, address)) = &self.outer {
                let _ = pass_on(&message, socket, address);
            }
            return Some(message.bytes.split(|byte| *byte == b'\n').any(|line| line == b"READY=1"));
        }
    }
}

impl AsFd for NotifySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn failed(error: Errno) -> Failure {
    Failure::new(exit::FAILURE, format!("cannot make the socket of --until-ready: {}", reason(&error)))
}

fn datagram_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

fn send_socket() -> Result<OwnedFd, Errno> {
    let socket = datagram_socket(SocketFlags::CLOEXEC)?;
    set_socket_timeout(&socket, Timeout::Send, Some(SEND_LIMIT))?;
    Ok(socket)
}

/// The address that sd_notify(3) reads in such a text.
fn address_of(text: &OsStr) -> Result<SocketAddrUnix, Failure> {
    let address = match text.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
        path @ [b'/', ..] => SocketAddrUnix::new(path),
        _ => Err(Errno::INVAL),
    };
    address.map_err(|_| {
        let text = one_line(&text.to_string_lossy());
        Failure::usage(format!(
            "{VARIABLE} '{text}' is not a unix socket, so --until-ready cannot pass messages on: unset it"
        ))
    })
}

/// Whether a message of this process counts: of a process below rlock, or of one that has ended
/// since and had the user of rlock. A short program such as systemd-notify(1) may have ended.
fn counts(sender: libc::ucred) -> bool {
    // A process of a pid namespace around this one has no id here.
    let Some(pid) = Pid::from_raw(sender.pid) else { return false };
    let parent = |pid| processes::stat(pid).ok().map(|stat| stat.parent);
    let is_below = processes::are_visible().then(|| descends(pid, getpid(), parent)).flatten();
    is_below.unwrap_or_else(|| [getuid().as_raw(), 0].contains(&sender.uid))
}

/// Whether a process descends from another one; `None` if it has ended. `parent` returns the parent
/// of a process that has not ended.
fn descends(sender: Pid, from: Pid, parent: impl Fn(Pid) -> Option<Option<Pid>>) -> Option<bool> {
    let mut pid = sender;
    loop {
        match parent(pid) {
            None if pid == sender => return None,
            // It has ended since, so its child has another parent now.
            None => pid = sender,
            Some(None) => return Some(false),
            Some(Some(parent)) if parent == from => return Some(true),
            Some(Some(parent)) => pid = parent,
        }
    }
}

fn receive(socket: BorrowedFd<'_>) -> Result<Message, Errno> {
    let mut bytes = vec![0; BYTES_MAX];
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a value of this struct, without pointers.
    let mut head: libc::msghdr = unsafe { zeroed() };
    head.msg_iov = &raw mut part;
    head.msg_iovlen = 1;
    head.msg_control = control.as_mut_ptr().cast();
    // The type of lengths depends on the C library.
    head.msg_controllen = size_of_val(&control) as _;
    // SAFETY: all pointers lead to variables that live longer than the call, with these lengths.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut head, libc::MSG_CMSG_CLOEXEC) };
    let length = usize::try_from(length).map_err(|_| Errno::AGAIN)?;
    bytes.truncate(length);
    let mut message = Message { bytes, sender: None, files: Vec::new() };
    // SAFETY: the kernel has written whole control messages, as long as their headers say.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(&raw const head);
        while let Some(it) = next.as_ref() {
            let data = libc::CMSG_DATA(it);
            match (it.cmsg_level, it.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    message.sender = Some(data.cast::<libc::ucred>().read_unaligned());
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let length: usize = it.cmsg_len as _;
                    let count = (length - libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
                    let file = |i| OwnedFd::from_raw_fd(data.cast::<c_int>().add(i).read_unaligned());
                    message.files.extend((0..count).map(file));
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(&raw const head, it);
        }
    }
    if head.msg_flags & libc::MSG_TRUNC != 0 {
        message.sender = None;
    }
    Ok(message)
}

fn pass_on(message: &Message, socket: &OwnedFd, address: &SocketAddrUnix) -> Result<usize, Errno> {
    let files: Vec<_> = message.files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg_addr(socket, address, &[IoSlice::new(&message.bytes)], &mut control, SendFlags::NOSIGNAL)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    #[test]
    fn process_below_rlock_counts_and_others_do_not() {
        let parents = BTreeMap::from([(20, 10), (30, 20), (10, 1), (40, 1)]);
        let parent = |of: Pid| match of.as_raw_nonzero().get() {
            1 => Some(None),
            number => parents.get(&number).map(|parent| Pid::from_raw(*parent)),
        };
        let descends = |number| descends(pid(number), pid(10), parent);
        assert_eq!([20, 30, 10, 40, 1].map(descends), [true, true, false, false, false].map(Some));
        assert_eq!(descends(50), None, "it has ended");
    }

    /// rlock becomes the parent of the orphan.
    #[test]
    fn process_whose_parent_ends_meanwhile_is_looked_at_again() {
        let looks = std::cell::Cell::new(0);
        let parent = |of: Pid| {
            looks.set(looks.get() + 1);
            match (of.as_raw_nonzero().get(), looks.get()) {
                (30, 1) => Some(Some(pid(20))),
                (30, _) => Some(Some(pid(10))),
                _ => None,
            }
        };
        assert_eq!(descends(pid(30), pid(10), parent), Some(true));
    }

    #[test]
    fn address_is_a_path_or_an_abstract_name() {
        let address = |text: &str| address_of(OsStr::new(text));
        assert_eq!(address("/run/n").unwrap(), SocketAddrUnix::new("/run/n").unwrap());
        assert_eq!(address("@n").unwrap(), SocketAddrUnix::new_abstract_name(b"n").unwrap());
        for text in ["vsock:2:1", "n", &format!("/{}", "x".repeat(200))] {
            let failure = address(text).unwrap_err().to_string();
            assert!(failure.starts_with(&format!("NOTIFY_SOCKET '{text}' is not a unix socket")), "{failure}");
        }
    }
}
