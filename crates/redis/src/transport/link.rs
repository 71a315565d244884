//! Speaks the wire protocol over one connection: commands go out, replies and pushes come in.
//! Nothing blocks; the poll loop waits.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Parser, PushKind, ServerError, Value};
use rustix::event::PollFlags;

use super::tls;
use crate::failure::{ErrorKind, Failure, Right};
use crate::interface::Event;
use crate::nodes::{Known, all_of};
use crate::target::{Kind, Login, Target};
use rlock_store::credentials::Credentials;
use rlock_store::network::resolve::Order;
use rlock_store::network::stream::{Received, Stream, connect_tcp, connect_unix};
use rlock_store::network::{NetworkError, Stage};
use rlock_store::node::Node;
use rlock_store::secrets::Password;
use rlock_sys::clock::Boottime;

/// The first byte of a TLS server that received plain text: an alert, or a part of a handshake.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// The largest reply or push in bytes, unless [`Link::raise_reply_max`] allows more.
const REPLY_MAX: usize = 1 << 20;

/// The address of a server.
pub(super) struct Address {
    /// The node as the URL or a redirect names it.
    pub(super) node: Node,
    /// How to reach it.
    pub(super) way: Way,
    /// The epoch of the Sentinels' configuration that names it, or 0.
    pub(super) epoch: u64,
}

impl Address {
    pub(super) fn new(node: &Node, way: Way) -> Self {
        Self { node: node.clone(), way, epoch: 0 }
    }

    /// The address of a server that the search has connected to.
    pub(super) fn open(link: Link, node: &Node) -> Self {
        Self::new(node, Way::Open(Box::new(link)))
    }
}

/// How to reach a server.
pub(super) enum Way {
    /// By the path of the node.
    Path,
    /// By the only address of its host.
    Socket(SocketAddr),
    /// Over a connection to this one of the addresses of its host.
    Connected(OwnedFd, SocketAddr),
    /// Over a connection on which the search has spoken to it.
    Open(Box<Link>),
    /// No way is known: no server that was asked has answered.
    Unknown,
}

/// A connection to a server.
pub(super) struct Link {
    server: String,
    node: Node,
    /// The number of the database.
    db: u32,
    /// The nodes of a Cluster that were heard of.
    known: Arc<Known>,
    stream: Stream,
    parser: Parser,
    inbox: Inbox,
    /// The commands whose replies are still to come.
    expected: VecDeque<Expected>,
    /// The password of the login, unless the server is a Sentinel.
    credentials: Option<(Arc<Credentials>, Password)>,
    /// The address of the server, if its host has several.
    order: Option<(Arc<Order>, SocketAddr)>,
    /// The error with which the server has refused RESP3.
    refused_hello: Option<ServerError>,
    /// The number of replicas when the connection was opened, if the server told it.
    pub(super) replicas: Option<usize>,
    /// Whether the server has answered.
    is_used: bool,
    /// Whether `advance` has read since it last gave `None`.
    has_read: bool,
}

/// What a reply belongs to. Only the replies to the conversation's commands are handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// A command of the conversation.
    Command,
    /// A subscription to this channel: a push confirms it, and only its failure is a reply.
    Subscription(String),
    /// The end of a subscription, confirmed likewise.
    Unsubscription,
    /// A command that has to succeed before the others make sense, such as SELECT or ASKING.
    Added,
    /// The change to RESP3, without which there are no messages between replies.
    Hello,
    /// The password.
    Auth,
    /// A command that only a node of a Cluster accepts.
    IsCluster,
    /// The name of this client in the lists of the server.
    Name,
    /// The question for the nodes of the Cluster.
    Nodes,
    /// The question whether the master has lost a replica.
    Role,
}

/// The bytes that are received and not yet parsed.
///
/// The parser keeps the bytes of an incomplete value and resumes where it stopped. So a value in
/// many pieces costs no more than one in a single piece.
struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
    /// Whether the parser has taken all bytes.
    ran_dry: bool,
    first: Option<u8>,
    /// How many bytes the parser has taken since the last complete value.
    of_value: usize,
    /// The limit for these.
    value_max: usize,
}

impl Link {
    /// Begins to connect and queues the login. The first write follows as soon as the kernel
    /// allows.
    pub(super) fn open(target: &Target, address: Address) -> Result<Self, Failure> {
        let mut link = match address.way {
            Way::Open(link) => return Ok(*link),
            way => Self::begin(target, &address.node, way)?,
        };
        let password = target.credentials.password();
        link.log_in(target.login.username.as_deref(), password.as_ref());
        link.credentials = password.map(|password| (Arc::clone(&target.credentials), password));
        if let Some(name) = &target.client_name {
            link.send(redis::cmd("CLIENT").arg("SETNAME").arg(name), Expected::Name);
        }
        if target.db != 0 {
            link.send(redis::cmd("SELECT").arg(target.db), Expected::Added);
        }
        if target.kind == Kind::Cluster {
            // Valkey answers other commands about slots without a Cluster too.
            link.send(redis::cmd("CLUSTER").arg("MYID"), Expected::IsCluster);
        }
        Ok(link)
    }

    /// Begins to connect to a Sentinel.
    pub(super) fn open_sentinel(target: &Target, address: Address) -> Result<Self, Failure> {
        let mut link = Self::begin(target, &address.node, address.way)?;
        let Login { username, password } = &target.sentinel_login;
        link.log_in(username.as_deref(), password.as_ref());
        Ok(link)
    }

    fn begin(target: &Target, node: &Node, way: Way) -> Result<Self, Failure> {
        let server = target.shown_node(node);
        let connected = if let Way::Connected(_, address) = way { Some(address) } else { None };
        let socket = match (way, node) {
            (Way::Open(link), _) => return Ok(*link),
            (Way::Connected(socket, _), _) => Ok(socket),
            (Way::Socket(address), _) => connect_tcp(address),
            (Way::Path, Node::Unix(path)) => connect_unix(path),
            (Way::Path, Node::Tcp { .. }) | (Way::Unknown, _) => {
                Err(NetworkError::Unresolved("it has no address".to_owned()))
            }
        };
        let tls = tls::client(target, node);
        let stream = tls.and_then(|tls| Ok(Stream::over(socket?, connected.is_some(), tls)));
        Ok(Self {
            stream: stream.map_err(|error| ErrorKind::Network(error).of(&server))?,
            server,
            node: node.clone(),
            db: target.db,
            known: Arc::clone(&target.known),
            parser: Parser::new(),
            inbox: Inbox {
                bytes: Vec::new(),
                taken: 0,
                ran_dry: false,
                first: None,
                of_value: 0,
                value_max: REPLY_MAX,
            },
            expected: VecDeque::new(),
            credentials: None,
            order: connected.map(|address| (Arc::clone(&target.order), address)),
            refused_hello: None,
            replicas: None,
            is_used: false,
            has_read: false,
        })
    }

    fn log_in(&mut self, username: Option<&str>, password: Option<&Password>) {
        let Some(password) = password else { return };
        let mut auth = redis::cmd("AUTH");
        if let Some(username) = username {
            auth.arg(username);
        }
        self.send(auth.arg(password.reveal()), Expected::Auth);
    }

    /// Allows replies of up to `bytes`, if this is more than [`REPLY_MAX`].
    pub(super) fn raise_reply_max(&mut self, bytes: usize) {
        self.inbox.value_max = self.inbox.value_max.max(bytes);
    }

    /// The end of the validity of the server's certificate since 1970, if there is one.
    pub(super) fn certificate_end(&self) -> Option<Duration> {
        self.stream.certificate_end()
    }

    /// The descriptor and the events to poll for. An error or a hang-up counts too.
    pub(super) fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        self.stream.descriptor()
    }

    /// Queues a command. [`advance`](Self::advance) sends all queued commands in one write.
    pub(super) fn send(&mut self, command: &Cmd, expected: Expected) {
        self.expected.push_back(expected);
        command.write_packed_command(self.stream.outgoing());
    }

    /// Writes and reads what is possible without waiting, and gives the next event. `None`
    /// means: poll the descriptor, which may be ready already.
    ///
    /// Between two `None`s the link reads once, and each read is bounded. So a peer that never
    /// stops sending leaves the caller time for its signals and timers. Before `None`, the link
    /// hands out everything that it has read.
    pub(super) fn advance(&mut self) -> Result<Option<Event>, Failure> {
        let wrote = self.stream.write().map_err(|error| self.failure(error))?;
        loop {
            while let Some(value) = self.parse()? {
                if let Some(event) = self.sort(value)? {
                    return Ok(Some(event));
                }
            }
            // A command that was just written has no reply yet, and pushes keep the descriptor
            // ready.
            if std::mem::take(&mut self.has_read) || wrote {
                return Ok(None);
            }
            match self.stream.read(&mut self.inbox.bytes).map_err(|error| self.failure(error))? {
                Received::Bytes => self.has_read = true,
                Received::Nothing => return Ok(None),
                Received::End => return Err(self.failure(ErrorKind::Network(NetworkError::Closed(self.stage())))),
            }
        }
    }

    fn parse(&mut self) -> Result<Option<Value>, Failure> {
        self.inbox.ran_dry = false;
        match self.parser.parse_value(&mut self.inbox) {
            Ok(value) => {
                self.inbox.of_value = 0;
                Ok(Some(value))
            }
            Err(_) if self.inbox.is_over() => Err(self.failure(ErrorKind::ReplyTooLong)),
            Err(_) if self.inbox.ran_dry => Ok(None),
            Err(_) if self.inbox.first.is_some_and(|first| TLS_RECORDS.contains(&first)) => {
                Err(self.failure(ErrorKind::Network(NetworkError::IsTls)))
            }
            Err(_) => Err(self.failure(ErrorKind::NotRedis)),
        }
    }

    /// The event that a reply or push is, if its conversation has to know of it.
    fn sort(&mut self, value: Value) -> Result<Option<Event>, Failure> {
        if !std::mem::replace(&mut self.is_used, true)
            && let Some((order, address)) = &self.order
        {
            order.answered(*address);
        }
        let reply = match value {
            Value::Push { kind, data } => return self.on_push(&kind, &data),
            Value::ServerError(error) => Err(error),
            value => Ok(value),
        };
        match (self.expected.pop_front(), reply) {
            (Some(Expected::Command) | None, reply) => Ok(Some(Event::Reply(reply))),
            (Some(Expected::Subscription(channel)), Err(error)) => Ok(Some(Event::SubscribeFailed(channel, error))),
            (Some(Expected::Auth), reply) => {
                let failure = reply.err().and_then(|error| Expected::Auth.failed(&error));
                self.on_login(failure).map_or(Ok(None), |kind| Err(self.failure(kind)))
            }
            (Some(Expected::Role), reply) => match reply.ok().as_ref().and_then(replicas_of) {
                Some(count) if Some(count) < self.replicas => Err(self.failure(ErrorKind::LostReplica)),
                _ => Ok(None),
            },
            (Some(Expected::Hello), Err(error)) => {
                self.refused_hello = Some(error);
                // The subscription behind it makes the connection useless for other commands.
                Err(self.failure(ErrorKind::Network(NetworkError::Closed(Stage::Used))))
            }
            (Some(expected), Err(error)) => expected.failed(&error).map_or(Ok(None), |kind| Err(self.failure(kind))),
            (Some(Expected::Nodes), Ok(reply)) => {
                self.known.set(all_of(&reply, &self.node));
                Ok(None)
            }
            (Some(_), Ok(_)) => Ok(None),
        }
    }

    /// The server has answered the login. Returns the failure to report.
    fn on_login(&self, failure: Option<ErrorKind>) -> Option<ErrorKind> {
        let Some((credentials, password)) = &self.credentials else { return failure };
        match failure {
            None => credentials.accepted(),
            Some(ErrorKind::WrongPassword) if credentials.refused(password, Boottime::now()) => {
                return Some(ErrorKind::StalePassword);
            }
            Some(_) => {}
        }
        failure
    }

    fn on_push(&mut self, kind: &PushKind, data: &[Value]) -> Result<Option<Event>, Failure> {
        match kind {
            PushKind::Message | PushKind::SMessage => {
                let channel = match data.first() {
                    Some(Value::BulkString(name)) => String::from_utf8_lossy(name).into_owned(),
                    _ => String::new(),
                };
                return Ok(Some(Event::Message(channel)));
            }
            PushKind::Subscribe | PushKind::SSubscribe => drop(self.expected.pop_front()),
            PushKind::Unsubscribe | PushKind::SUnsubscribe
                if self.expected.front() == Some(&Expected::Unsubscription) =>
            {
                self.expected.pop_front();
            }
            // The slot has moved, and its publishers with it.
            PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                return Err(self.failure(ErrorKind::Network(NetworkError::Closed(Stage::Used))));
            }
            _ => {}
        }
        Ok(None)
    }

    /// The error with which the server has refused RESP3, if it did.
    pub(super) fn refused_hello(&self) -> Option<&ServerError> {
        self.refused_hello.as_ref()
    }

    /// Whether the master has not told its replicas yet.
    pub(super) fn awaits_role(&self) -> bool {
        self.expected.contains(&Expected::Role)
    }

    /// Whether no reply is still to come.
    pub(super) fn is_quiet(&self) -> bool {
        self.expected.is_empty()
    }

    /// The failure when no reply came in time.
    pub(super) fn timeout_failure(&self) -> Failure {
        self.failure(ErrorKind::Network(NetworkError::TimedOut(self.stage())))
    }

    fn stage(&self) -> Stage {
        if self.is_used { Stage::Used } else { self.stream.stage() }
    }

    fn failure(&self, kind: impl Into<ErrorKind>) -> Failure {
        kind.into().in_database(self.db).of(&self.server)
    }
}

impl Expected {
    /// The failure that an error reply to this command means, if any.
    fn failed(self, error: &ServerError) -> Option<ErrorKind> {
        match (self, ErrorKind::from_reply(error)) {
            // The server may have repeated the password.
            (Self::Auth, ErrorKind::Other(_)) => Some(ErrorKind::LoginFailed),
            // Without the right to ask, the next command tells.
            (Self::IsCluster, ErrorKind::NoRight(Right::Command(_))) => None,
            // Other errors are about every client, such as too many of them.
            (Self::Name, ErrorKind::NoRight(_) | ErrorKind::TooOld | ErrorKind::Other(_)) => None,
            // Without an answer, the nodes of the URL and of redirects are known.
            (Self::Nodes, _) => None,
            // The channel stays subscribed, and its messages are ignored.
            (Self::Unsubscription, ErrorKind::NoRight(_) | ErrorKind::TooOld) => None,
            (_, kind) => Some(kind),
        }
    }
}

/// The number of replicas that a master tells in its reply to ROLE.
pub(super) fn replicas_of(role: &Value) -> Option<usize> {
    let Value::Array(parts) = role else { return None };
    if let [Value::BulkString(role), _, Value::Array(replicas)] = &parts[..]
        && role == b"master"
    {
        return Some(replicas.len());
    }
    None
}

impl Inbox {
    /// Whether the value that is being parsed exceeds the limit.
    fn is_over(&self) -> bool {
        self.of_value > self.value_max
    }
}

impl Read for Inbox {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_over() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let rest = &self.bytes[self.taken..];
        if rest.is_empty() {
            self.bytes.clear();
            self.taken = 0;
            self.ran_dry = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.first.get_or_insert(rest[0]);
        self.taken += count;
        self.of_value += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
