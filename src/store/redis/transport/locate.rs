//! Finds a server: resolves its name, asks the Sentinels for it, or tries the nodes of a Cluster.
//!
//! Only what can't be done without waiting gets a thread, which tells by a pipe when it is done. A
//! server that was spoken to in order to find it is handed over with its connection.

use std::io::{self, PipeReader, PipeWriter, pipe};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use redis::{ServerError, Value};
use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::link::{Address, Link};
use super::{blocking, now};
use crate::store::redis::failure::{ErrorKind, Failure, Right, Stage};
use crate::store::redis::interface::Seek;
use crate::store::redis::target::{Kind, Node, Target};
use crate::words::reason;

/// How many searches run, with those that nobody waits for any more: nothing ends a thread that is
/// blocked in the resolver.
static SEARCHES: AtomicUsize = AtomicUsize::new(0);

/// How many of them there may be, so that a resolver that never answers costs a long wait no more
/// than this.
const SEARCHES_MAX: usize = 16;

/// What came of it so far.
pub(super) enum Located {
    /// It is known where the server is.
    Ready(Address),
    /// It has to be looked for.
    Pending(Lookup),
}

/// A search under way.
pub(super) struct Lookup {
    /// Ends when the search has.
    end: PipeReader,
    found: Receiver<Result<Address, Failure>>,
    server: String,
}

/// Begins to look for a server. What takes several steps is given up at `deadline`, on the clock of
/// [`now`]; each step has its share of the time that is left, so that one which never answers
/// doesn't keep the others from being asked.
pub(super) fn locate(target: &Arc<Target>, seek: Seek, deadline: Duration) -> Result<Located, Failure> {
    let (node, is_sought) = match seek {
        Seek::Redirect(redirect) => (redirect.node, false),
        // The path of a socket may lie on a mount that does not answer, and connect(2) waits for
        // that.
        Seek::Start(_) if matches!(&target.nodes[..], [Node::Unix(path)] if !is_at_hand(path)) => {
            let (target, node) = (Arc::clone(target), target.nodes[0].clone());
            return search(target.shown_node(&node), move || {
                let address = Address { node: node.clone(), sockets: Vec::new(), open: None };
                Link::open(&target, address).map(|link| by(link, &node))
            });
        }
        Seek::Start(attempt) => {
            let several = target.kind == Kind::Cluster && target.nodes.len() > 1;
            let is_sought = several || matches!(target.kind, Kind::Sentinel { .. });
            (target.nodes[attempt % target.nodes.len()].clone(), is_sought)
        }
    };
    if !is_sought {
        if let Some(address) = known(&node) {
            return Ok(Located::Ready(address));
        }
        let server = target.shown_node(&node);
        return search(server.clone(), move || resolve(&node).map_err(|kind| kind.of(&server)));
    }
    let searched = Arc::clone(target);
    search(target.shown(), move || {
        let find = if searched.kind == Kind::Cluster { node_of_cluster } else { master };
        in_turn(&searched, &node, deadline, find)
    })
}

/// Whether the kernel can look a path up without waiting for a file system: all parts of it, or
/// that one is missing, are cached.
fn is_at_hand(path: &Path) -> bool {
    let looked_up = openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED);
    // Kernels before 5.12, and sandboxes, refuse the question.
    matches!(looked_up, Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS))
}

/// Where a node is, if that is plain to see.
fn known(node: &Node) -> Option<Address> {
    let sockets = match node {
        Node::Unix(_) => Vec::new(),
        Node::Tcp { host, port } => vec![SocketAddr::new(host.parse::<IpAddr>().ok()?, *port)],
    };
    Some(Address { node: node.clone(), sockets, open: None })
}

fn search(
    server: String,
    find: impl FnOnce() -> Result<Address, Failure> + Send + 'static,
) -> Result<Located, Failure> {
    if SEARCHES.fetch_add(1, Ordering::Relaxed) >= SEARCHES_MAX {
        SEARCHES.fetch_sub(1, Ordering::Relaxed);
        return Err(ErrorKind::ConnectionFailed("earlier attempts to find it have not ended".to_owned()).of(&server));
    }
    let (sender, found) = channel();
    let begin = |(end, running): (PipeReader, PipeWriter)| {
        let run = move || {
            // Whoever has given up looking for it doesn't need it.
            let _ = sender.send(find());
            SEARCHES.fetch_sub(1, Ordering::Relaxed);
            drop(running);
        };
        thread::Builder::new().name("locate".to_owned()).spawn(run).map(|_| end)
    };
    match pipe().and_then(begin) {
        Ok(end) => Ok(Located::Pending(Lookup { end, found, server })),
        Err(error) => {
            SEARCHES.fetch_sub(1, Ordering::Relaxed);
            Err(ErrorKind::ConnectionFailed(format!("cannot look for it: {}", reason(&error))).of(&server))
        }
    }
}

impl Lookup {
    /// What to wait for.
    pub(super) fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.end.as_fd(), PollFlags::IN)
    }

    /// What was found, once there is something. It is not asked again after that.
    pub(super) fn result(&self) -> Option<Result<Address, Failure>> {
        match self.found.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(ErrorKind::ConnectionFailed("the search for it failed".to_owned()).of(&self.server)))
            }
        }
    }

    /// What to say when nothing was found in time.
    pub(super) fn timeout_failure(&self) -> Failure {
        ErrorKind::TimedOut(Stage::Connecting).of(&self.server)
    }
}

/// Tries the nodes of the URL, `first` before all others, until one leads to the server. If none
/// does, what is told is what no trying can mend, else what came last.
fn in_turn(
    target: &Target,
    first: &Node,
    deadline: Duration,
    find: fn(&Target, &Node, Duration) -> Result<Address, Failure>,
) -> Result<Address, Failure> {
    let start = target.nodes.iter().position(|node| node == first).unwrap_or(0);
    let mut worst: Option<Failure> = None;
    for step in 0..target.nodes.len() {
        let left = u32::try_from(target.nodes.len() - step).unwrap_or(u32::MAX);
        let began = now();
        let share = began + deadline.saturating_sub(began) / left;
        match find(target, &target.nodes[(start + step) % target.nodes.len()], share) {
            Ok(address) => return Ok(address),
            Err(failure) if worst.as_ref().is_none_or(Failure::is_transient) => worst = Some(failure),
            Err(_) => {}
        }
    }
    Err(worst.unwrap_or_else(|| ErrorKind::TimedOut(Stage::Connecting).of(&target.shown())))
}

fn node_of_cluster(target: &Target, node: &Node, deadline: Duration) -> Result<Address, Failure> {
    let address = resolve(node).map_err(|kind| kind.of(&target.shown_node(node)))?;
    let mut link = Link::open(target, address)?;
    blocking::log_in(&mut link, deadline)?;
    Ok(by(link, node))
}

/// The master, as the Sentinel at `node` knows it.
fn master(target: &Target, node: &Node, deadline: Duration) -> Result<Address, Failure> {
    let Kind::Sentinel { master } = &target.kind else { unreachable!("only a URL with Sentinels names a master") };
    let sentinel = target.shown_node(node);
    let address = resolve(node).map_err(|kind| kind.of(&sentinel))?;
    let mut link = Link::open_sentinel(target, &address)?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(master);
    let reply = blocking::ask(&mut link, &question, deadline)?;
    let found = master_node(reply, master).map_err(|kind| kind.of(&sentinel))?;

    let server = target.shown_node(&found);
    let address = resolve(&found).map_err(|kind| kind.of(&server))?;
    let mut link = Link::open(target, address)?;
    let role = blocking::ask(&mut link, &redis::cmd("ROLE"), deadline)?;
    match is_master(role) {
        Ok(true) => Ok(by(link, &found)),
        Ok(false) => Err(ErrorKind::NotTheMaster.of(&server)),
        Err(kind) => Err(kind.of(&server)),
    }
}

fn by(link: Link, node: &Node) -> Address {
    Address { node: node.clone(), sockets: Vec::new(), open: Some(Box::new(link)) }
}

fn master_node(reply: Result<Value, ServerError>, name: &str) -> Result<Node, ErrorKind> {
    let parts = match reply {
        Ok(Value::Nil) => return Err(ErrorKind::UnknownMaster(name.to_owned())),
        Ok(Value::Array(parts)) => parts,
        Err(error) => {
            return Err(match ErrorKind::from_reply(&error) {
                ErrorKind::TooOld => ErrorKind::NotASentinel,
                ErrorKind::NoPassword => ErrorKind::NoSentinelPassword,
                kind => kind,
            });
        }
        _ => return Err(ErrorKind::NotASentinel),
    };
    let text = |part: &Value| match part {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let node = match &parts[..] {
        [host, port] => text(host).zip(text(port).and_then(|port| port.parse().ok())),
        _ => None,
    };
    node.map(|(host, port)| Node::Tcp { host, port }).ok_or(ErrorKind::NotASentinel)
}

/// A Sentinel that has not noticed a failover yet names what is no master any more.
fn is_master(reply: Result<Value, ServerError>) -> Result<bool, ErrorKind> {
    match reply {
        Ok(Value::Array(parts)) => Ok(parts.first() == Some(&Value::BulkString(b"master".to_vec()))),
        Err(error) => match ErrorKind::from_reply(&error) {
            // Without the right to ask, the first write tells.
            ErrorKind::NoRight(Right::Command(_)) => Ok(true),
            kind => Err(kind),
        },
        _ => Err(ErrorKind::NotRedis),
    }
}

/// Looks a name up; this may take as long as the system's resolver likes.
fn resolve(node: &Node) -> Result<Address, ErrorKind> {
    if let Some(address) = known(node) {
        return Ok(address);
    }
    let Node::Tcp { host, port } = node else { unreachable!("a path is known") };
    use_built_in_services();
    let sockets =
        (host.as_str(), *port).to_socket_addrs().map_err(|error| ErrorKind::Unresolved(resolver_words(&error)))?;
    Ok(Address { node: node.clone(), sockets: sockets.collect(), open: None })
}

/// What the resolver says, without what everybody knows.
fn resolver_words(error: &io::Error) -> String {
    let words = reason(error);
    let last = words.rsplit(": ").next().unwrap_or(&words);
    let mut letters = last.chars();
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}

/// Has names resolved by /etc/hosts and DNS alone, whatever /etc/nsswitch.conf names besides.
///
/// The other services are shared libraries of the glibc that is installed, and the binary is linked
/// statically against another one that may not fit: loading them can crash. These two are built in.
#[cfg(target_env = "gnu")]
fn use_built_in_services() {
    use std::ffi::{c_char, c_int};

    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }

    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: both are texts that end in NUL and that it only reads. No other thread resolves
        // names before this is done.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    });
}

#[cfg(not(target_env = "gnu"))]
fn use_built_in_services() {}

#[cfg(test)]
mod tests;
