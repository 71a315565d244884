//! Reads and writes a socket, with or without TLS, and never blocks.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};
use rustls::ClientConnection;
use rustls::pki_types::CertificateDer;

use super::tls::{end_of, from_tls};
use super::{NetworkError, Stage};

/// The number of bytes after which a read stops, although the kernel may have more. A peer that
/// never stops sending then leaves the poll loop time for signals and timers.
const READ_MAX: usize = 16 * 1024;

/// A socket with the bytes that are still to be sent, and with its TLS session, if it has one.
pub struct Stream {
    socket: OwnedFd,
    /// Whether bytes have passed, so that the other side has accepted the connection.
    is_connected: bool,
    tls: Option<Box<ClientConnection>>,
    /// The bytes to send. TLS takes all of them with the next write.
    outgoing: Vec<u8>,
    sent: usize,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Bytes have arrived. With TLS, perhaps none of them is for the reader.
    Bytes,
    /// Nothing has arrived since the last read.
    Nothing,
    /// The peer has closed the connection.
    End,
}

impl Stream {
    /// Speaks over a socket that is connected, or about to be.
    pub fn over(socket: OwnedFd, is_connected: bool, tls: Option<ClientConnection>) -> Self {
        let mut stream = Self { socket, is_connected, tls: None, outgoing: Vec::new(), sent: 0 };
        tls.into_iter().for_each(|tls| stream.encrypt(tls));
        stream
    }

    /// Encrypts what passes from now on.
    pub fn encrypt(&mut self, mut tls: ClientConnection) {
        // No limit, as without TLS: its owner waits for replies before it sends more.
        tls.set_buffer_limit(None);
        self.tls = Some(Box::new(tls));
    }

    /// The certificate that the server has shown, if there is one.
    pub fn certificate(&self) -> Option<&CertificateDer<'_>> {
        self.tls.as_ref()?.peer_certificates()?.first()
    }

    /// The protocol that the server has chosen for the encrypted bytes, if it has chosen one.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.alpn_protocol()
    }

    /// How far the connection has come while the server has not answered.
    pub fn stage(&self) -> Stage {
        match &self.tls {
            _ if !self.is_connected => Stage::Connecting,
            Some(tls) if tls.is_handshaking() => Stage::Handshake,
            Some(_) => Stage::Encrypted,
            None => Stage::Silent,
        }
    }

    /// The end of the validity of the server's certificate since 1970, if there is one.
    pub fn certificate_end(&self) -> Option<Duration> {
        end_of(self.certificate()?)
    }

    /// The descriptor and the events to poll for.
    pub fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.socket.as_fd(), if self.has_unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN })
    }

    /// Whether bytes are still to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// The buffer that [`write`](Self::write) sends.
    pub fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Sends as much as the kernel takes; tells whether it took anything.
    pub fn write(&mut self) -> Result<bool, NetworkError> {
        if let Some(tls) = &mut self.tls {
            // Its buffer has no limit, so it takes all bytes.
            let _ = tls.writer().write_all(&self.outgoing);
            self.outgoing.clear();
        }
        let mut wrote = false;
        loop {
            match self.write_once() {
                Ok(0) => return Ok(wrote),
                Ok(_) => {
                    self.is_connected = true;
                    wrote = true;
                }
                Err(Errno::AGAIN) => return Ok(wrote),
                Err(Errno::INTR) => {}
                // The server may have said why it closed the connection; the next read tells.
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    self.outgoing.clear();
                    self.sent = 0;
                    return Ok(false);
                }
                Err(error) => return Err(NetworkError::from_kernel(error, self.stage())),
            }
        }
    }

    fn write_once(&mut self) -> Result<usize, Errno> {
        let mut out = Socket(self.socket.as_fd());
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        match &mut self.tls {
            Some(tls) if tls.wants_write() => tls.write_tls(&mut out).map_err(errno),
            None if !self.outgoing.is_empty() => {
                let count = out.write(&self.outgoing[self.sent..]).map_err(errno)?;
                self.sent += count;
                if self.sent == self.outgoing.len() {
                    self.outgoing.clear();
                    self.sent = 0;
                }
                Ok(count)
            }
            _ => Ok(0),
        }
    }

    /// Appends what has arrived to `into`, but little more than `READ_MAX` bytes. The descriptor
    /// stays ready if the kernel has more.
    pub fn read(&mut self, into: &mut Vec<u8>) -> Result<Received, NetworkError> {
        loop {
            let received = match &mut self.tls {
                None => read_plain(self.socket.as_fd(), into),
                Some(tls) => match read_tls(self.socket.as_fd(), tls, into) {
                    Ok(received) => Ok(received),
                    Err(TlsError::Kernel(error)) => Err(error),
                    Err(TlsError::Protocol(error)) => {
                        // Send the alert, so that the server logs the reason.
                        let _ = self.write_once();
                        return Err(from_tls(&error));
                    }
                },
            };
            match received {
                Ok(received) => {
                    self.is_connected |= received == Received::Bytes;
                    return Ok(received);
                }
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(Received::End),
                Err(error) => return Err(NetworkError::from_kernel(error, self.stage())),
            }
        }
    }
}

/// Connects to a socket in the file system.
pub fn connect_unix(path: &Path) -> Result<OwnedFd, NetworkError> {
    let connected = || {
        let socket = socket(AddressFamily::UNIX)?;
        connect(&socket, &SocketAddrUnix::new(path)?).map(|()| socket)
    };
    connected().map_err(|error| match error {
        Errno::AGAIN => NetworkError::QueueFull,
        error => NetworkError::from_kernel(error, Stage::Connecting),
    })
}

/// Begins to connect to an address.
pub fn connect_tcp(address: SocketAddr) -> Result<OwnedFd, NetworkError> {
    let begun = || {
        let socket = socket(if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
        // Each write is a whole request whose reply somebody awaits.
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
            Err(error) => Err(error),
        }
    };
    begun().map_err(|error| NetworkError::from_kernel(error, Stage::Connecting))
}

fn socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
}

fn read_plain(socket: BorrowedFd<'_>, into: &mut Vec<u8>) -> Result<Received, Errno> {
    let mut total = 0;
    while total < READ_MAX {
        into.reserve(READ_MAX);
        let room = into.capacity() - into.len();
        let count = match recv(socket, spare_capacity(into), RecvFlags::empty()) {
            Ok((_, count)) => count,
            // Hand out what was read; a failure recurs with the next read.
            Err(_) if total > 0 => return Ok(Received::Bytes),
            Err(error) => return Err(error),
        };
        total += count;
        match count {
            0 if total > 0 => return Ok(Received::Bytes),
            0 => return Ok(Received::End),
            // A short read means that the kernel has no more.
            _ if count < room => return Ok(Received::Bytes),
            _ => {}
        }
    }
    Ok(Received::Bytes)
}

enum TlsError {
    Kernel(Errno),
    Protocol(rustls::Error),
}

fn read_tls(socket: BorrowedFd<'_>, tls: &mut ClientConnection, into: &mut Vec<u8>) -> Result<Received, TlsError> {
    let start = into.len();
    // Encrypted bytes count, since a record may have no content.
    let mut total = 0;
    while total < READ_MAX {
        let count = match tls.read_tls(&mut Socket(socket)) {
            Ok(count) => count,
            // Process what was read; a failure recurs with the next read.
            Err(_) if total > 0 => break,
            Err(error) => return Err(TlsError::Kernel(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
        };
        total += count;
        let state = tls.process_new_packets().map_err(TlsError::Protocol)?;
        // Take all plaintext: no descriptor reports what rustls still has.
        let before = into.len();
        into.resize(before + state.plaintext_bytes_to_read(), 0);
        if tls.reader().read_exact(&mut into[before..]).is_err() {
            return Err(TlsError::Kernel(Errno::IO));
        }
        if count == 0 || state.peer_has_closed() {
            return Ok(if into.len() > start { Received::Bytes } else { Received::End });
        }
    }
    Ok(Received::Bytes)
}

/// Reads and writes the socket for rustls.
struct Socket<'a>(BorrowedFd<'a>);

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0, buffer, RecvFlags::empty())?.1)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
