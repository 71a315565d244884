//! Finds a server that the URL names, connects to it and keeps the connection.
//!
//! Nothing here blocks, and nothing is sent twice. What was sent on a connection that broke is
//! lost, and the exchange decides what to send again.

use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::failure::{ErrorKind, Failure};
use super::link::{Event, Link};
use super::target::{Loaded, Server, SslMode, Target};
use rlock_store::network::lookup::{Lookup, NoResult};
use rlock_store::network::resolve::{self, Resolved};
use rlock_store::network::stream::{connect_tcp, connect_unix};
use rlock_store::network::{self, NetworkError, Stage};
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;
use rlock_words::reason;

/// How long the files may take of a client that has read them before: less than a release gives the
/// first connection. A file system that does not answer then costs no holder its lease.
const RELOAD_LIMIT: Duration = Duration::from_millis(200);

/// A connection to one of the servers.
pub(super) struct Connection {
    target: Arc<Target>,
    /// How long finding a server may take.
    limit: Duration,
    state: State,
    /// The server that is asked, or was asked last.
    server: usize,
    /// Whether the next attempt at this server uses TLS, where the first was refused for that.
    encrypts: Option<bool>,
    /// What was read from files for the last connection, if there was one.
    loaded: Option<Loaded>,
}

/// A socket, and whether it is connected already.
type Socket = (OwnedFd, bool);

enum State {
    Closed,
    /// The files are read, until this instant if what was read before will do.
    Loading(Lookup<Result<Loaded, ErrorKind>>, Boottime),
    Locating(Lookup<Result<Socket, ErrorKind>>),
    Open(Box<Link>),
}

impl Connection {
    /// No connection yet. Finding a server may take `limit`.
    pub(super) fn new(target: Arc<Target>, limit: Duration) -> Self {
        Self { target, limit, state: State::Closed, server: 0, encrypts: None, loaded: None }
    }

    /// A connection to the same servers, not open yet.
    pub(super) fn another(&self) -> Self {
        let (server, encrypts, loaded) = (self.server, self.encrypts, self.loaded.clone());
        Self { server, encrypts, loaded, ..Self::new(Arc::clone(&self.target), self.limit) }
    }

    /// The descriptor to poll, if there is one.
    pub(super) fn descriptor(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Closed => None,
            State::Loading(lookup, _) => Some(lookup.descriptor()),
            State::Locating(lookup) => Some(lookup.descriptor()),
            State::Open(link) => Some(link.descriptor()),
        }
    }

    /// Whether the connection is encrypted, and until when the server's certificate is valid.
    pub(super) fn security(&self) -> (bool, Option<Duration>) {
        if let State::Open(link) = &self.state { link.security() } else { (false, None) }
    }

    /// The server as messages name it.
    pub(super) fn shown(&self) -> String {
        self.target.shown_node(&self.server().node)
    }

    /// Whether the server is reached without a network.
    pub(super) fn is_local(&self) -> bool {
        self.server().node.is_local()
    }

    fn server(&self) -> &Server {
        &self.target.servers[self.server]
    }

    /// How long a server may take until the login is done, so that the next one has its turn before
    /// the request gives up.
    pub(super) fn turn(&self) -> Duration {
        let share = self.limit * 9 / 10 / self.target.servers.len() as u32;
        self.target.connect_timeout.map_or(share, |limit| limit.min(share))
    }

    /// Until when files are read in whose place those of the last connection will do.
    pub(super) fn reloads_until(&self) -> Option<Boottime> {
        if let (State::Loading(_, until), Some(_)) = (&self.state, &self.loaded) { Some(*until) } else { None }
    }

    /// Begins to connect, to the next server if `turns`.
    ///
    /// # Errors
    /// The connection fails at once.
    pub(super) fn open(&mut self, turns: bool) -> Result<(), Failure> {
        if turns {
            self.server = (self.server + 1) % self.target.servers.len();
            self.encrypts = None;
        }
        let (target, server, before) = (Arc::clone(&self.target), self.server().clone(), self.loaded.clone());
        if !target.has_files(&server) {
            let loaded = target.load(&server, before).map_err(|kind| kind.of(&self.shown()))?;
            return self.locate(loaded);
        }
        let lookup = self.begin(move || target.load(&server, before))?;
        self.state = State::Loading(lookup, Boottime::now() + RELOAD_LIMIT);
        Ok(())
    }

    /// Does in a thread what may block.
    fn begin<T: Send + 'static>(&self, find: impl FnOnce() -> T + Send + 'static) -> Result<Lookup<T>, Failure> {
        Lookup::begin(find).map_err(|error| {
            let why = format!("cannot look for it: {}", reason(&error));
            ErrorKind::Network(NetworkError::ConnectionFailed(why)).of(&self.shown())
        })
    }

    /// Finds the server and begins to connect, with what was read from files.
    fn locate(&mut self, loaded: Loaded) -> Result<(), Failure> {
        self.loaded = Some(loaded);
        let deadline = Boottime::now() + self.turn();
        let node = self.server().node.clone();
        let socket = match &node {
            Node::Unix(path) => Some(connect_unix(path)),
            Node::Tcp { host, port } => host.parse::<IpAddr>().ok().map(|address| connect_tcp((address, *port).into())),
        };
        if let Some(socket) = socket {
            let socket = socket.map_err(|error| ErrorKind::from(error).of(&self.shown()))?;
            return self.speak((socket, false));
        }
        let order = Arc::clone(&self.target.order);
        let find = move || {
            let (host, port) = match &node {
                Node::Unix(path) => return Ok((connect_unix(path)?, false)),
                Node::Tcp { host, port } => (host, *port),
            };
            Ok(match resolve::resolve(host, port, &order, deadline)? {
                Resolved::Only(address) => (connect_tcp(address)?, false),
                Resolved::Connected(socket, _) => (socket, true),
            })
        };
        self.state = State::Locating(self.begin(find)?);
        Ok(())
    }

    fn speak(&mut self, socket: Socket) -> Result<(), Failure> {
        let (target, loaded) = (Arc::clone(&self.target), self.loaded.clone().unwrap_or_default());
        let encrypts = target.may_encrypt(self.server()) && self.encrypts.unwrap_or(target.ssl_mode != SslMode::Allow);
        let link = Link::new(target, self.server().clone(), loaded, socket, encrypts)?;
        self.state = State::Open(Box::new(link));
        Ok(())
    }

    /// Closes the connection. The server learns of it at once, if it is there.
    pub(super) fn close(&mut self) {
        if let State::Open(link) = &mut self.state {
            link.goodbye();
        }
        self.state = State::Closed;
    }

    /// Queues bytes, which the next [`advance`](Self::advance) writes.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        if let State::Open(link) = &mut self.state {
            link.send(bytes);
        }
    }

    /// Does what is possible without waiting, and gives the next event.
    ///
    /// # Errors
    /// The connection has failed.
    pub(super) fn advance(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            match &mut self.state {
                State::Closed => return Ok(None),
                State::Loading(lookup, until) => match (lookup.result(), &self.loaded) {
                    (Ok(None), Some(before)) if *until <= Boottime::now() => self.locate(before.clone())?,
                    (Ok(None), _) => return Ok(None),
                    (found, _) => self.found(found).and_then(|loaded| self.locate(loaded))?,
                },
                State::Locating(lookup) => match lookup.result() {
                    Ok(None) => return Ok(None),
                    found => self.found(found).and_then(|socket| self.speak(socket))?,
                },
                State::Open(link) => match link.advance() {
                    // Where the user does not demand TLS, nor its absence, the other is tried.
                    Err(failure) if self.encrypts.is_none() && link.other_encryption(&failure).is_some() => {
                        self.encrypts = link.other_encryption(&failure);
                        self.open(false)?;
                    }
                    result => return result,
                },
            }
        }
    }

    /// What a lookup has found.
    fn found<T>(&self, found: Result<Option<Result<T, ErrorKind>>, NoResult>) -> Result<T, Failure> {
        let failed = || ErrorKind::Network(NetworkError::ConnectionFailed("the search for it failed".to_owned()));
        found.ok().flatten().unwrap_or_else(|| Err(failed())).map_err(|kind| kind.of(&self.shown()))
    }

    /// The failure when nothing arrived in time.
    pub(super) fn timeout_failure(&self) -> Failure {
        match &self.state {
            State::Open(link) => link.timeout_failure(),
            // An attempt that has only just begun is not what has taken the time.
            State::Loading(_, until) if *until <= Boottime::now() => ErrorKind::SlowFiles.of(&self.shown()),
            _ => ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting)).of(&self.shown()),
        }
    }

    /// Waits until there is something to do, or until an instant. It may return early.
    pub(super) fn wait(&self, until: Option<Boottime>) {
        network::wait(self.descriptor().as_slice(), until);
    }
}
