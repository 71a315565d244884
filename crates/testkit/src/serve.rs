//! A running `rlock serve`, and clients of it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use super::{Lab, wait_until};

/// The time limit for an answer.
const LIMIT: Duration = Duration::from_secs(180);

/// An `rlock serve` that listens on a unix socket in the folder of the lab, and on a free port.
/// Dropping it kills the server.
pub struct LockServer {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    path: PathBuf,
    port: u16,
}

impl LockServer {
    /// Starts a server with these further options.
    pub fn start(lab: &Lab, options: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let path = lab.folder().join("serve.sock");
        let mut command = lab.rlock(["serve", "-v", "--listen", "127.0.0.1:0", "--listen"]);
        command.arg(format!("unix:{}", path.display())).args(options);
        Self::of(&mut command, path)
    }

    /// Starts a server by this command, and waits until it listens.
    pub fn of(command: &mut Command, path: PathBuf) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("rlock can be started");
        let lines = BufReader::new(child.stderr.take().expect("the server has a pipe")).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                theirs.lock().expect("no thread panics with the log").push(line);
            }
        });
        let mut server = Self { child, log, path, port: 0 };
        wait_until("the server listens", || {
            assert!(server.runs(), "the server ended: {:?}", server.log());
            server.log().iter().filter(|line| line.contains("listening on")).count() >= 2
        });
        let port =
            server.log().iter().find_map(|line| line.strip_prefix("rlock: listening on 127.0.0.1:")?.parse().ok());
        server.port = port.expect("the server listens on a port");
        server
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// The lines that the server has written so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("no thread panics with the log").clone()
    }

    /// Connects by TCP.
    pub fn tcp(&self) -> Client {
        Client::tcp(self.port)
    }

    /// Connects to the unix socket.
    pub fn unix(&self) -> Client {
        let socket = UnixStream::connect(&self.path).expect("the server listens");
        Client { socket: Socket::Unix(socket), received: Vec::new() }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the server was not reaped");
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("the server is a child").is_none()
    }

    /// Waits for the end of the server.
    pub fn wait(&mut self) -> ExitStatus {
        wait_until("the server ends", || !self.runs());
        self.child.wait().expect("the server is a child")
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }
}

impl Drop for LockServer {
    fn drop(&mut self) {
        // Both calls fail only if the server has been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of a server.
pub struct Client {
    socket: Socket,
    received: Vec<u8>,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

/// What a client receives next.
#[derive(Debug)]
pub enum Next {
    Line(String),
    /// The server has closed the connection.
    End,
    /// Nothing has come in time.
    Nothing,
}

impl Client {
    /// Connects to a port of this machine.
    pub fn tcp(port: u16) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        socket.set_nodelay(true).expect("the socket takes the option");
        Self { socket: Socket::Tcp(socket), received: Vec::new() }
    }

    /// The two halves of the connection: one to send bytes, and one that returns the number of
    /// answers when the server has closed the connection.
    pub fn split(self) -> (impl FnMut(&[u8]) -> bool + Send, impl FnOnce() -> usize) {
        let Socket::Tcp(socket) = self.socket else { panic!("only a TCP connection is split") };
        let mut sender = socket.try_clone().expect("a socket can be shared");
        let send = move |bytes: &[u8]| sender.write_all(bytes).is_ok();
        let read_all = move || {
            let (mut socket, mut total, mut buffer) = (socket, 0, [0; 65536]);
            while let Ok(count @ 1..) = socket.read(&mut buffer) {
                total += buffer[..count].iter().filter(|byte| **byte == b'\n').count();
            }
            total
        };
        (send, read_all)
    }

    /// The client's own address, by which `rlock inspect` shows a client of a port.
    pub fn address(&self) -> SocketAddr {
        let Socket::Tcp(socket) = &self.socket else { panic!("only a TCP connection has a port") };
        socket.local_addr().expect("a connected socket has an address")
    }

    /// Sends bytes. A server that has closed is found by the next read.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = match &mut self.socket {
            Socket::Tcp(socket) => socket.write_all(bytes),
            Socket::Unix(socket) => socket.write_all(bytes),
        };
    }

    /// Sends a line.
    pub fn say(&mut self, line: &str) {
        self.send(format!("{line}\n").as_bytes());
    }

    /// Waits for the next line. `None` if the server has closed the connection.
    pub fn next(&mut self) -> Option<String> {
        match self.next_within(LIMIT) {
            Next::Line(line) => Some(line),
            Next::End => None,
            Next::Nothing => panic!("the server does not answer"),
        }
    }

    /// Waits at most this long for the next line or the end of the connection.
    pub fn next_within(&mut self, limit: Duration) -> Next {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Next::Line(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()));
            let left = left.expect("the limit is not too long");
            if poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)).expect("a socket can be polled") == 0
            {
                return Next::Nothing;
            }
            let mut buffer = [0; 65536];
            let read = match &mut self.socket {
                Socket::Tcp(socket) => socket.read(&mut buffer),
                Socket::Unix(socket) => socket.read(&mut buffer),
            };
            match read {
                Ok(0) => {
                    assert!(self.received.is_empty(), "the last line is cut off: {:?}", self.received);
                    return Next::End;
                }
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Next::End,
                Err(error) => panic!("the server does not answer: {error}"),
            }
        }
    }

    /// Waits until there is something to read, and reads nothing.
    pub fn until_readable(&self) {
        let limit = Timespec::try_from(LIMIT).expect("the limit is not too long");
        let ready = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit));
        assert_eq!(ready, Ok(1), "the server does not answer");
    }

    /// Waits for the next line.
    #[track_caller]
    pub fn line(&mut self) -> String {
        self.next().expect("the server closed the connection")
    }

    /// Sends a line and waits for the answer.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }

    /// Locks and returns the token.
    #[track_caller]
    pub fn token(&mut self, line: &str) -> u64 {
        let answer = self.ask(line);
        answer.strip_prefix("ok ").and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{line}: {answer}"))
    }

    /// Asserts that the server closes the connection without a further line.
    #[track_caller]
    pub fn expect_closed(&mut self) {
        assert_eq!(self.next(), None);
    }

    /// Closes the client's half of the connection.
    pub fn half_close(&self) {
        let _ = match &self.socket {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Socket::Unix(socket) => socket.shutdown(Shutdown::Write),
        };
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        if let Socket::Tcp(socket) = &self.socket {
            rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).expect("the socket takes the option");
        }
    }
}
