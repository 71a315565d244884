//! One connection to a server for a loop that waits with `poll`: commands go out, replies and
//! pushes come in, nothing blocks.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use redis::{Cmd, Parser, PushKind, ServerError, Value};
use rustix::event::PollFlags;

use super::stream::{Received, Stream};
use super::tls;
use crate::store::redis::failure::{ErrorKind, Failure, Right, Stage};
use crate::store::redis::target::{Kind, Login, Node, Target};

/// The first bytes that a server sends which speaks TLS and hears something else: an alert, or a
/// part of a handshake.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// The largest reply or push in bytes, unless [`Link::raise_reply_max`] allows more.
const REPLY_MAX: usize = 1 << 20;

/// Where a server was found.
pub(super) struct Address {
    /// As it is named.
    pub(super) node: Node,
    /// What a host comes to; tried in turn.
    pub(super) sockets: Vec<SocketAddr>,
    /// The connection by which it was found, if that took one.
    pub(super) open: Option<Box<Link>>,
}

/// A connection to a server.
pub(super) struct Link {
    server: String,
    stream: Stream,
    parser: Parser,
    inbox: Inbox,
    /// What was sent first, whose replies nobody else sees.
    login: VecDeque<Step>,
    is_used: bool,
    /// Whether bytes were read since `advance` last gave `None`.
    has_read: bool,
}

/// Something that has arrived.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    /// The reply to the first command that has none yet.
    Reply(Result<Value, ServerError>),
    /// Something that comes by itself, but for the answer to a subscription.
    Push(Push),
}

/// What comes by itself, or answers a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Push {
    /// Somebody has published in the channel.
    Message {
        /// The channel.
        channel: Vec<u8>,
    },
    /// The channel is subscribed to now; there is no other reply.
    Subscribed {
        /// The channel.
        channel: Vec<u8>,
    },
    /// The channel is no more subscribed to: in a Cluster because its slot has moved.
    Unsubscribed {
        /// The channel.
        channel: Vec<u8>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Auth,
    Select,
    /// The question that only a node of a Cluster answers.
    IsCluster,
    /// The name of this client, for people who look into the server.
    Name,
}

/// The bytes that were received and not yet parsed.
///
/// The parser keeps what it took for a value that is not complete yet, and resumes where it
/// stopped, so a value in many pieces costs no more than one in a single piece.
struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
    /// The parser took all bytes.
    ran_dry: bool,
    first: Option<u8>,
    /// How many bytes the parser took since the last complete value.
    of_value: usize,
    /// How many of these there may be.
    value_max: usize,
}

impl Link {
    /// Begins to connect, and queues what a server is told first; the first write goes out as soon
    /// as the kernel lets it.
    pub(super) fn open(target: &Target, address: Address) -> Result<Self, Failure> {
        if let Some(link) = address.open {
            return Ok(*link);
        }
        let mut link = Self::begin(target, &address)?;
        link.log_in(&target.login);
        if let Some(name) = &target.client_name {
            link.first(Step::Name, redis::cmd("CLIENT").arg("SETNAME").arg(name));
        }
        if target.db != 0 {
            link.first(Step::Select, redis::cmd("SELECT").arg(target.db));
        }
        if target.kind == Kind::Cluster {
            // Valkey answers other questions about slots without a Cluster, too.
            link.first(Step::IsCluster, redis::cmd("CLUSTER").arg("MYID"));
        }
        Ok(link)
    }

    /// The same to a Sentinel.
    pub(super) fn open_sentinel(target: &Target, address: &Address) -> Result<Self, Failure> {
        let mut link = Self::begin(target, address)?;
        link.log_in(&target.sentinel_login);
        Ok(link)
    }

    fn begin(target: &Target, address: &Address) -> Result<Self, Failure> {
        let server = target.shown_node(&address.node);
        let stream =
            tls::client(target, &address.node).and_then(|tls| Stream::open(&address.node, &address.sockets, tls));
        Ok(Self {
            stream: stream.map_err(|kind| kind.of(&server))?,
            server,
            parser: Parser::new(),
            inbox: Inbox {
                bytes: Vec::new(),
                taken: 0,
                ran_dry: false,
                first: None,
                of_value: 0,
                value_max: REPLY_MAX,
            },
            login: VecDeque::new(),
            is_used: false,
            has_read: false,
        })
    }

    fn log_in(&mut self, login: &Login) {
        let Some(password) = &login.password else { return };
        let mut auth = redis::cmd("AUTH");
        if let Some(username) = &login.username {
            auth.arg(username);
        }
        self.first(Step::Auth, auth.arg(password.reveal()));
    }

    fn first(&mut self, step: Step, command: &Cmd) {
        self.login.push_back(step);
        self.queue(command);
    }

    fn queue(&mut self, command: &Cmd) {
        command.write_packed_command(self.stream.outgoing());
    }

    /// Allows replies of up to `bytes`, if that is more than [`REPLY_MAX`].
    pub(super) fn raise_reply_max(&mut self, bytes: usize) {
        self.inbox.value_max = self.inbox.value_max.max(bytes);
    }

    /// How messages name the server.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// What to wait for now. An error or a hang-up counts as well.
    pub(super) fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        self.stream.descriptor()
    }

    /// Queues a command, which [`advance`](Self::advance) sends, with all others that are queued,
    /// in one write.
    pub(super) fn send(&mut self, command: &Cmd) {
        self.queue(command);
    }

    /// Writes and reads what is possible without waiting, and gives the next thing that has
    /// arrived. `None` means: wait for the descriptor, which may be ready.
    ///
    /// Between two `None`s the link reads once, and each of these reads is bounded. So the caller
    /// comes to look at its signals and timers even if the peer never stops sending. Nothing that
    /// was read stays behind when `None` is given.
    pub(super) fn advance(&mut self) -> Result<Option<Incoming>, Failure> {
        let wrote = self.stream.write().map_err(|kind| self.failure(kind))?;
        loop {
            while let Some(value) = self.parse()? {
                if let Some(incoming) = self.sort(value)? {
                    return Ok(Some(incoming));
                }
            }
            // What was asked this instant has no answer yet, and what came by itself keeps the
            // descriptor ready.
            if std::mem::take(&mut self.has_read) || wrote {
                return Ok(None);
            }
            match self.stream.read(&mut self.inbox.bytes).map_err(|kind| self.failure(kind))? {
                Received::Bytes => self.has_read = true,
                Received::Nothing => return Ok(None),
                Received::End => return Err(self.failure(ErrorKind::Closed(self.stage()))),
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
                Err(self.failure(ErrorKind::IsTls))
            }
            Err(_) => Err(self.failure(ErrorKind::NotRedis)),
        }
    }

    /// Takes what is for the link itself.
    fn sort(&mut self, value: Value) -> Result<Option<Incoming>, Failure> {
        self.is_used = true;
        let reply = match value {
            Value::Push { kind, data } => return Ok(push(&kind, data).map(Incoming::Push)),
            Value::ServerError(error) => Err(error),
            value => Ok(value),
        };
        match (self.login.pop_front(), reply) {
            (None, reply) => Ok(Some(Incoming::Reply(reply))),
            (Some(_), Ok(_)) => Ok(None),
            (Some(step), Err(error)) => match step.failed(&error) {
                Some(kind) => Err(self.failure(kind)),
                None => Ok(None),
            },
        }
    }

    /// Whether the server has accepted the login.
    pub(super) fn is_logged_in(&self) -> bool {
        self.login.is_empty()
    }

    /// What to say when there was no reply in time.
    pub(super) fn timeout_failure(&self) -> Failure {
        self.failure(ErrorKind::TimedOut(self.stage()))
    }

    fn stage(&self) -> Stage {
        if self.is_used { Stage::Used } else { self.stream.stage() }
    }

    fn failure(&self, kind: ErrorKind) -> Failure {
        kind.of(&self.server)
    }
}

impl Step {
    /// What the error that the server replied means, if it means anything.
    fn failed(self, error: &ServerError) -> Option<ErrorKind> {
        match (self, ErrorKind::from_reply(error)) {
            // The server may have repeated what it was sent.
            (Self::Auth, ErrorKind::Other(_)) => Some(ErrorKind::LoginFailed),
            // Without the right to ask, what follows tells it.
            (Self::IsCluster, ErrorKind::NoRight(Right::Command(_))) => None,
            // What else a server replies here it says to every client: that there are too many, for
            // example.
            (Self::Name, ErrorKind::NoRight(_) | ErrorKind::TooOld | ErrorKind::Other(_)) => None,
            (_, kind) => Some(kind),
        }
    }
}

fn push(kind: &PushKind, data: Vec<Value>) -> Option<Push> {
    let Some(Value::BulkString(channel)) = data.into_iter().next() else { return None };
    match kind {
        PushKind::Message | PushKind::SMessage => Some(Push::Message { channel }),
        PushKind::Subscribe | PushKind::SSubscribe => Some(Push::Subscribed { channel }),
        PushKind::Unsubscribe | PushKind::SUnsubscribe => Some(Push::Unsubscribed { channel }),
        _ => None,
    }
}

impl Inbox {
    /// Whether the value that is being parsed is longer than any may be.
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
