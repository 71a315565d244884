//! Descriptors whose last close blocks, and messages that carry them.

use std::io::{ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// How long the last close of a `lingering` connection blocks: longer than any test waits.
pub const LINGER: Duration = Duration::from_secs(1000);

/// A connection whose last close blocks because its peer takes nothing; and the peer.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    set_socket_recv_buffer_size(&listener, 1024).expect("the socket takes the option");
    let mut stream = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("the test listens");
    let (peer, _) = listener.accept().expect("the test has connected");
    stream.set_nonblocking(true).expect("the flag can be set");
    let mut failures = std::iter::repeat_with(|| stream.write(&[0; 1 << 16])).filter_map(Result::err);
    assert_eq!(failures.next().expect("the peer takes nothing").kind(), ErrorKind::WouldBlock);
    drop(failures);
    set_socket_linger(&stream, Some(LINGER)).expect("the socket takes the option");
    (stream, peer)
}

/// Sends bytes with the only descriptor of a connection whose close blocks until the returned peer
/// is dropped. The receiver must not take them yet: the last close would be that of this process.
///
/// # Errors
/// The kernel's: the receiver refuses descriptors.
pub fn send_lingering(socket: impl AsFd, bytes: &[u8]) -> Result<TcpStream, Errno> {
    let (stream, peer) = lingering();
    let files = [stream.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()) {
        Ok(_) => Ok(peer),
        Err(error) => {
            // This process would linger at its own close.
            set_socket_linger(&stream, None).expect("the socket takes the option");
            Err(error)
        }
    }
}
