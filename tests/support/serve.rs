//! A running `rlock serve`, and connections of clients.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown, sockopt};
use rustix::process::{Pid, Signal, kill_process};

use super::{DEADLINE, wait_until};

/// A server on a TCP port of 127.0.0.1, killed when dropped.
pub(crate) struct Serve {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Serve {
    /// Starts a server with these options and waits until it listens on this port, or on a free
    /// one if the port is 0. `rlock` is the program on its store. The log is a new file.
    pub(crate) fn start(mut rlock: Command, port: u16, options: &[&str], log: &Path) -> Self {
        let errors = File::create(log).expect("the log is created");
        rlock.args(["serve", "-v", "--listen", &format!("127.0.0.1:{port}")]).args(options);
        let child = rlock.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn();
        let mut child = child.expect("rlock starts");
        let mut address = None;
        wait_until("the server listens", || {
            let text = fs::read_to_string(log).unwrap_or_default();
            let first = text.split_inclusive('\n').next().and_then(|line| line.strip_suffix('\n'));
            address = first.and_then(|line| line.strip_prefix("rlock: listening on ")?.parse().ok());
            let ended = child.try_wait().expect("the server is a child");
            assert!(ended.is_none(), "the server ended with {ended:?}: {text}");
            address.is_some()
        });
        Self { child, address: address.expect("the server listens"), log: log.to_owned() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the server has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends the server with SIGTERM and waits for its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("the server was not reaped");
        let mut status = None;
        wait_until("the server ends", || {
            status = self.child.try_wait().expect("the server is a child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Kills the server with SIGKILL and reaps it.
    pub(crate) fn kill(&mut self) {
        // This fails only if the server has ended before.
        let _ = self.child.kill();
        self.child.wait().expect("the server is a child");
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The connection of a client.
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    has_ended: bool,
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(crate) fn open(server: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, received: Vec::new(), has_ended: false })
    }

    /// The client's own address, by which `rlock inspect` shows the client.
    pub(crate) fn address(&self) -> SocketAddr {
        self.stream.local_addr().expect("a connected socket has an address")
    }

    /// Sends a line. If the connection is broken, the next read finds its end.
    pub(crate) fn send(&mut self, line: &str) {
        let sent = self.stream.write(format!("{line}\n").as_bytes());
        assert!(sent.as_ref().is_err() || sent.is_ok_and(|sent| sent == line.len() + 1), "a short line is sent whole");
    }

    /// The next line that has arrived by now, without its end.
    pub(crate) fn line(&mut self) -> Option<String> {
        self.receive();
        let end = self.received.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.received.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    /// Waits for the next line. Returns none if the connection ends before, or at the deadline.
    pub(crate) fn wait_for_line(&mut self, limit: Duration) -> Option<String> {
        let deadline = Instant::now() + limit;
        loop {
            let line = self.line();
            let left = deadline.saturating_duration_since(Instant::now());
            if line.is_some() || self.has_ended || left.is_zero() {
                return line;
            }
            let timeout = Timespec::try_from(left).expect("the limit is not too long");
            poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&timeout)).expect("a socket can be polled");
        }
    }

    /// Sends a line and waits for its answer.
    ///
    /// # Panics
    /// If the connection ends before the answer.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.wait_for_line(DEADLINE).unwrap_or_else(|| panic!("the server does not answer '{line}'"))
    }

    /// Whether a search for a line has found the end of the connection.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Tells the server that no line will follow.
    pub(crate) fn end(&self) {
        // The server may have ended the connection before.
        let _ = shutdown(&self.stream, Shutdown::Write);
    }

    /// Breaks the connection, as the end of a client's machine or network does.
    pub(crate) fn reset(self) {
        sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).expect("a socket can be broken");
    }

    fn receive(&mut self) {
        let mut buffer = [0; 4096];
        while !self.has_ended {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.has_ended = true,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.has_ended = true,
            }
        }
    }
}
