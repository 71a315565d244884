//! Keeps a poll loop from the descriptors that other processes send to its unix sockets.
//!
//! The kernel closes a sent descriptor in the thread that takes its message, unless the thread
//! keeps the descriptor. Whoever opened the file decides how long that close blocks: a TCP socket
//! lingers, and a file system in user space answers when it likes. So a loop looks at a message
//! before it takes it, and leaves to another thread what has descriptors.

use std::ffi::{c_int, c_uint};
use std::mem::{ManuallyDrop, size_of, size_of_val, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags, recvmsg};

use crate::background;

/// Maximum number of descriptors in a message, the kernel's.
pub const FILES_MAX: usize = 253;
/// The space for the credentials of a message, in words of 8 bytes.
const CREDENTIALS_WORDS: usize = (size_of::<libc::cmsghdr>() + size_of::<libc::ucred>()).div_ceil(8);
/// The space for the credentials and the descriptors of a message.
const CONTROL_WORDS: usize = CREDENTIALS_WORDS + (size_of::<libc::cmsghdr>() + FILES_MAX * 4).div_ceil(8);
/// A small stack suffices for a thread that makes a few system calls.
const STACK_BYTES: usize = 64 << 10;

/// Whether others can send descriptors to a socket, since Linux 6.16.
#[cfg(not(any(target_arch = "sparc", target_arch = "sparc64")))]
const SO_PASSRIGHTS: c_int = 83;
#[cfg(any(target_arch = "sparc", target_arch = "sparc64"))]
const SO_PASSRIGHTS: c_int = 0x5c;

/// Says whether the kernel lets other processes send descriptors to this unix socket. Those that
/// are accepted at a listening socket inherit it. An older kernel lets them in any case.
pub fn let_in(socket: BorrowedFd<'_>, are_welcome: bool) {
    let value = c_int::from(are_welcome);
    let length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes, which is the size of `value`.
    let _ = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, ptr::from_ref(&value).cast(), length)
    };
}

/// What a read of a stream found.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes; none at the end of the stream.
    Bytes(usize),
    /// The peer has sent descriptors, which are still in the socket.
    Descriptors,
}

/// Reads from a connected unix socket as read(2) does, unless the peer has sent descriptors.
///
/// # Errors
/// The kernel's; [`Errno::AGAIN`] if there is nothing to read.
pub fn read(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Read, Errno> {
    let mut parts = [rustix::io::IoSliceMut::new(buffer)];
    let seen = recvmsg(socket, &mut parts, &mut Default::default(), RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(Read::Descriptors);
    }
    // What arrives in between may have descriptors.
    rustix::io::read(socket, &mut buffer[..seen.bytes]).map(Read::Bytes)
}

/// A message of a datagram socket with SO_PASSCRED.
pub struct Message {
    /// The content, no longer than asked for.
    pub bytes: Vec<u8>,
    /// The process that sent the message; `None` if the message is longer than asked for.
    pub sender: Option<libc::ucred>,
    /// Whether the message has descriptors that were not taken.
    pub has_files: bool,
    /// The descriptors that were taken. They are closed with the message.
    pub files: Vec<OwnedFd>,
}

/// Looks at the next message of a datagram socket, which stays there with its descriptors.
///
/// # Errors
/// The kernel's; [`Errno::AGAIN`] if there is no message.
pub fn look(socket: BorrowedFd<'_>, max: usize) -> Result<Message, Errno> {
    receive(socket, max, libc::MSG_PEEK, &[const { AtomicU64::new(0) }; CREDENTIALS_WORDS])
}

/// Takes the next message of a datagram socket, with its descriptors.
///
/// # Errors
/// The kernel's; [`Errno::AGAIN`] if there is no message.
pub fn take(socket: BorrowedFd<'_>, max: usize) -> Result<Message, Errno> {
    receive(socket, max, 0, &[const { AtomicU64::new(0) }; CONTROL_WORDS])
}

/// The kernel writes control messages into atomic numbers, because another thread may look at them
/// before the call returns.
fn receive(socket: BorrowedFd<'_>, max: usize, flags: c_int, control: &[AtomicU64]) -> Result<Message, Errno> {
    let mut bytes = vec![0; max];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a value of this struct, without pointers.
    let mut head: libc::msghdr = unsafe { zeroed() };
    head.msg_iov = &raw mut part;
    head.msg_iovlen = 1;
    head.msg_control = control.as_ptr().cast_mut().cast();
    // The type of lengths depends on the C library.
    head.msg_controllen = size_of_val(control) as _;
    let flags = flags | libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: all pointers lead to variables that live longer than the call, with these lengths,
    // and atomic numbers may be written through a shared reference.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut head, flags) };
    let length = usize::try_from(length).map_err(|_| Errno::AGAIN)?;
    bytes.truncate(length);
    let has_files = head.msg_flags & libc::MSG_CTRUNC != 0;
    let mut message = Message { bytes, sender: None, has_files, files: Vec::new() };
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
                    let count = (length - libc::CMSG_LEN(0 as c_uint) as usize) / size_of::<c_int>();
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

/// A thread that takes one message of a datagram socket and keeps none of its descriptors. It ends
/// when they are closed.
#[derive(Debug)]
pub struct Drain {
    control: Arc<[AtomicU64; CREDENTIALS_WORDS]>,
    thread: JoinHandle<()>,
}

impl Drain {
    /// Starts to take the next message.
    ///
    /// # Errors
    /// The kernel has no thread to spare.
    pub fn start(socket: Arc<OwnedFd>) -> std::io::Result<Self> {
        let control = Arc::new([const { AtomicU64::new(0) }; CREDENTIALS_WORDS]);
        let theirs = Arc::clone(&control);
        let thread = background::spawn(Builder::new().stack_size(STACK_BYTES), move || {
            let _ = receive(socket.as_fd(), 1, 0, theirs.as_slice());
        })?;
        Ok(Self { control, thread })
    }

    /// Whether the message is out of the socket. The kernel writes its credentials, and closes its
    /// descriptors after that.
    pub fn has_taken(&self) -> bool {
        self.has_ended() || self.control[0].load(Ordering::Acquire) != 0
    }

    /// Whether the descriptors are closed, too.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Closes descriptors on a thread of its own, one after another.
#[derive(Debug, Default)]
pub struct Closer {
    /// Leads to the thread, once there is one.
    thread: Option<Sender<OwnedFd>>,
    open: Arc<AtomicUsize>,
}

impl Closer {
    /// The number of descriptors that are not closed yet.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Closes a descriptor soon. It stays open if the kernel has no thread to spare.
    pub fn close(&mut self, file: OwnedFd) {
        self.open.fetch_add(1, Ordering::AcqRel);
        if self.thread.is_none() {
            let (sender, files) = channel::<OwnedFd>();
            let open = Arc::clone(&self.open);
            let run = move || {
                for file in files {
                    drop(file);
                    open.fetch_sub(1, Ordering::AcqRel);
                }
            };
            let thread = Builder::new().stack_size(STACK_BYTES);
            self.thread = background::spawn(thread, run).is_ok().then_some(sender);
        }
        let file = match &self.thread {
            Some(thread) => thread.send(file).err().map(|unsent| unsent.0),
            None => Some(file),
        };
        let _ = ManuallyDrop::new(file);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::time::Instant;

    use rlock_testkit::rights::{LINGER, send_lingering};
    use rustix::net::sockopt::set_socket_passcred;

    use super::*;

    fn datagrams() -> (UnixDatagram, Arc<OwnedFd>) {
        let (theirs, ours) = UnixDatagram::pair().unwrap();
        set_socket_passcred(&ours, true).unwrap();
        (theirs, Arc::new(ours.into()))
    }

    #[test]
    fn look_at_a_message_leaves_its_descriptors_and_a_drain_closes_them_elsewhere() {
        let (theirs, ours) = datagrams();
        let begun = Instant::now();
        let _peer = send_lingering(&theirs, b"x").unwrap();
        theirs.send(b"next").unwrap();
        let seen = look(ours.as_fd(), 9).unwrap();
        assert_eq!((seen.bytes.as_slice(), seen.has_files, seen.files.len()), (&b"x"[..], true, 0));
        let drain = Drain::start(Arc::clone(&ours)).unwrap();
        while !drain.has_taken() {
            std::thread::yield_now();
        }
        let next = look(ours.as_fd(), 9).unwrap();
        assert_eq!((next.bytes.as_slice(), next.has_files), (&b"next"[..], false));
        assert!(!drain.has_ended());
        assert!(begun.elapsed() < LINGER);
    }

    #[test]
    fn message_longer_than_asked_for_has_no_sender() {
        let (theirs, ours) = datagrams();
        theirs.send(b"long").unwrap();
        assert!(look(ours.as_fd(), 3).unwrap().sender.is_none());
        assert!(take(ours.as_fd(), 4).unwrap().sender.is_some_and(|sender| sender.pid == std::process::id() as i32));
        assert_eq!(look(ours.as_fd(), 4).err(), Some(Errno::AGAIN));
    }

    #[test]
    fn read_stops_before_descriptors_and_takes_none() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let mut buffer = [0; 9];
        assert_eq!(read(ours.as_fd(), &mut buffer), Err(Errno::AGAIN));
        theirs.write_all(b"one").unwrap();
        assert_eq!(read(ours.as_fd(), &mut buffer), Ok(Read::Bytes(3)));
        let _peer = send_lingering(&theirs, b"x").unwrap();
        let begun = Instant::now();
        assert_eq!(read(ours.as_fd(), &mut buffer), Ok(Read::Descriptors));
        let mut closer = Closer::default();
        closer.close(ours.into());
        assert!(begun.elapsed() < LINGER);
        assert_eq!(closer.open(), 1);
    }

    #[test]
    fn end_of_a_stream_is_no_bytes() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        drop(theirs);
        assert_eq!(read(ours.as_fd(), &mut [0; 9]), Ok(Read::Bytes(0)));
    }

    #[test]
    fn descriptor_is_closed_on_another_thread() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let mut closer = Closer::default();
        closer.close(ours.into());
        assert_eq!(
            read(theirs.as_fd(), &mut [0; 1]).or_else(|_| {
                theirs.set_nonblocking(false).unwrap();
                rustix::io::read(&theirs, &mut [0; 1]).map(Read::Bytes)
            }),
            Ok(Read::Bytes(0))
        );
    }
}
