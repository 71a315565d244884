//! The bytes of one connection. Nothing here waits.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, getsockname, shutdown, sockopt};

use super::input::{Input, TooLong};
use super::listing::Listing;
use rlock_sys::rights::{self, Read};

/// How many bytes are read at once.
const READ_BYTES: usize = 4096;
/// How many bytes are written at once to a descriptor that other processes share. A pipe that is
/// ready for writing takes so many without blocking, see pipe(7).
const SHARED_WRITE_BYTES: usize = 4096;
/// How many reads of unread input a close drops at most.
const DROPPED_READS: usize = 16;
/// How long a client at a socket may take for its output: this long, and a second more for so many
/// bytes.
const TAKEN_AFTER: Duration = Duration::from_secs(25);
const BYTES_PER_SECOND: usize = 100_000;
/// The keepalive of TCP connections: a dead peer is found after 25 seconds.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;
const USER_TIMEOUT_MILLIS: u32 = 25_000;

/// A connection to a client.
pub(super) struct Connection {
    ends: Ends,
    input: Input,
    /// The lines that the client has not taken yet.
    output: VecDeque<Output>,
    /// The number of bytes of the first of them that the client has taken.
    sent: usize,
    /// Whether the client cannot receive anything any more.
    is_broken: bool,
}

/// A line with its end.
enum Output {
    Line(String),
    Listing(Arc<Listing>),
}

impl Output {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Line(line) => line.as_bytes(),
            Self::Listing(listing) => listing.as_bytes(),
        }
    }
}

enum Ends {
    Tcp(OwnedFd),
    Unix(OwnedFd),
    /// Standard input and output, which stay as blocking as they were.
    Stdio {
        input: OwnedFd,
        output: OwnedFd,
    },
}

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Bytes,
    Nothing,
    /// The client has sent descriptors, which are not taken.
    Descriptors,
    End,
}

impl Connection {
    /// A connection over an accepted socket.
    pub(super) fn of_socket(socket: OwnedFd) -> Self {
        let is_tcp = getsockname(&socket).is_ok_and(|address| SocketAddr::try_from(address).is_ok());
        if is_tcp {
            // A kernel that refuses an option serves the client all the same.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
            let _ = sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE);
            let _ = sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL);
            let _ = sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_COUNT);
            let _ = sockopt::set_tcp_user_timeout(&socket, USER_TIMEOUT_MILLIS);
            return Self::over(Ends::Tcp(socket));
        }
        // A look at what has come sees out-of-band data, too, which may have descriptors.
        let _ = sockopt::set_socket_oobinline(&socket, true);
        Self::over(Ends::Unix(socket))
    }

    /// A connection over standard input and output.
    pub(super) fn of_stdio() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self::over(Ends::Stdio { input, output }))
    }

    fn over(ends: Ends) -> Self {
        Self { ends, input: Input::default(), output: VecDeque::new(), sent: 0, is_broken: false }
    }

    /// The descriptor for reading.
    pub(super) fn input(&self) -> BorrowedFd<'_> {
        let (Ends::Tcp(input) | Ends::Unix(input) | Ends::Stdio { input, .. }) = &self.ends;
        input.as_fd()
    }

    /// The descriptor for writing.
    pub(super) fn output(&self) -> BorrowedFd<'_> {
        let (Ends::Tcp(output) | Ends::Unix(output) | Ends::Stdio { output, .. }) = &self.ends;
        output.as_fd()
    }

    /// Whether one descriptor serves both directions.
    pub(super) fn is_socket(&self) -> bool {
        !matches!(self.ends, Ends::Stdio { .. })
    }

    /// Takes the next line that has been received.
    pub(super) fn next_line(&mut self) -> Option<Result<Vec<u8>, TooLong>> {
        self.input.next_line()
    }

    /// Whether lines may be left that have been received.
    pub(super) fn has_input(&self) -> bool {
        self.input.has_unsearched()
    }

    /// Receives what is there.
    pub(super) fn receive(&mut self) -> Received {
        if !self.is_socket() && !is_ready(self.input(), PollFlags::IN) {
            return Received::Nothing;
        }
        let mut buffer = [0; READ_BYTES];
        match self.read(&mut buffer) {
            Ok(Read::Bytes(0)) => Received::End,
            Ok(Read::Bytes(count)) => {
                self.input.push(&buffer[..count]);
                Received::Bytes
            }
            Ok(Read::Descriptors) => Received::Descriptors,
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    fn read(&self, buffer: &mut [u8]) -> Result<Read, Errno> {
        match &self.ends {
            Ends::Unix(socket) => rights::read(socket.as_fd(), buffer),
            Ends::Tcp(input) | Ends::Stdio { input, .. } => rustix::io::read(input, buffer).map(Read::Bytes),
        }
    }

    /// Sends a line, or keeps what the client does not take yet.
    pub(super) fn say(&mut self, line: &str) {
        self.push(Output::Line(format!("{line}\n")));
    }

    /// Sends a listing, or keeps it like a line.
    pub(super) fn show(&mut self, listing: Arc<Listing>) {
        self.push(Output::Listing(listing));
    }

    fn push(&mut self, output: Output) {
        self.output.push_back(output);
        self.send();
    }

    /// Whether the client has not taken all output yet.
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// How long the client may take for its output, as far as that is limited.
    pub(super) fn output_limit(&self) -> Option<Duration> {
        let bytes: usize = self.output.iter().map(|output| output.as_bytes().len()).sum();
        (self.is_socket() && bytes > 0).then(|| TAKEN_AFTER + Duration::from_secs((bytes / BYTES_PER_SECOND) as u64))
    }

    /// Whether the client cannot receive anything any more. Its input may go on for ever if it is
    /// another pipe.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Sends as much as the client takes. The output of a connection that is broken is dropped.
    pub(super) fn send(&mut self) {
        while let Some(first) = self.output.front() {
            let mut rest = &first.as_bytes()[self.sent..];
            if rest.is_empty() {
                self.output.pop_front();
                self.sent = 0;
                continue;
            }
            if !self.is_socket() {
                if !is_ready(self.output(), PollFlags::OUT) {
                    break;
                }
                rest = &rest[..rest.len().min(SHARED_WRITE_BYTES)];
            }
            match rustix::io::write(self.output(), rest) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.is_broken = true;
                    self.sent = 0;
                    self.output.clear();
                }
            }
        }
        if self.output.is_empty() {
            self.output = VecDeque::new();
        }
    }

    /// Closes the connection after the last line. Unread input would make the kernel throw away
    /// output that is under way. Returns a socket that may have descriptors of the client left, for
    /// another thread to close.
    pub(super) fn close(mut self) -> Option<OwnedFd> {
        self.send();
        let how = if matches!(self.ends, Ends::Unix(_)) { Shutdown::Both } else { Shutdown::Write };
        if self.is_socket() && shutdown(self.output(), how).is_ok() {
            let mut buffer = [0; READ_BYTES];
            // A client that never stops sending must not keep the server here.
            for _ in 0..DROPPED_READS {
                match self.read(&mut buffer) {
                    Ok(Read::Bytes(1..)) => {}
                    Ok(Read::Descriptors) => break,
                    // A unix socket that takes nothing any more has nothing left.
                    Ok(Read::Bytes(_)) | Err(_) => return None,
                }
            }
        }
        match self.ends {
            Ends::Unix(socket) => Some(socket),
            Ends::Tcp(_) | Ends::Stdio { .. } => None,
        }
    }
}

/// Whether a descriptor is ready now.
pub(super) fn is_ready(descriptor: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(descriptor, flags)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use rlock_testkit::rights::{LINGER, send_lingering};

    /// "A client at a unix socket that sends descriptors is disconnected", and holds up nobody.
    #[test]
    fn descriptors_of_a_client_are_neither_taken_nor_closed_by_the_loop() {
        let begun = std::time::Instant::now();
        for is_read in [true, false] {
            let (mut client, socket) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let mut connection = Connection::of_socket(socket.into());
            client.write_all(b"PING\n").unwrap();
            assert_eq!(connection.receive(), Received::Bytes);
            let _peer = send_lingering(&client, b"x").unwrap();
            if is_read {
                assert_eq!(connection.receive(), Received::Descriptors);
            }
            let socket = connection.close().unwrap();
            assert!(begun.elapsed() < LINGER);
            rlock_sys::rights::Closer::default().close(socket);
            assert_eq!(client.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        }
        assert!(begun.elapsed() < LINGER);
    }

    #[test]
    fn connection_without_descriptors_is_closed_at_once() {
        let (mut client, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut connection = Connection::of_socket(socket.into());
        client.write_all(b"PING\n").unwrap();
        connection.say("pong");
        assert!(connection.close().is_none());
        assert_eq!(io::read_to_string(&client).unwrap(), "pong\n");
    }
}
