//! Classifies the reasons why a server can't be used, and writes the messages about them.

use std::fmt;

use super::target::Kind;
use rlock_model::tables::FORMAT;
use rlock_store::error::Error;
use rlock_store::lease_client::FailureClass;
use rlock_store::network::{NetworkError, Spelling};
use rlock_words::Explained;

mod reply;

/// Why a server can't be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The server as messages name it.
    server: String,
    kind: ErrorKind,
}

/// The kind of a failure, from which its message and its class follow.
#[derive(Clone, Debug, PartialEq)]
pub enum ErrorKind {
    /// The server can't be reached.
    Network(NetworkError),
    /// The server speaks another protocol.
    NotRedis,
    /// The server wants a password, and there is none.
    NoPassword,
    /// The server sent a reply that no script gives.
    UnexpectedReply,
    /// A key of a resource has a value that no script wrote, with the names of the keys.
    ForeignValue(String),
    /// The state of a resource has another format, with the names of the keys.
    OtherFormat {
        /// The format that the state states.
        format: String,
        /// The names of the keys.
        keys: String,
    },
    /// The server sent more bytes than the largest reply has.
    ReplyTooLong,
    /// The password is wrong.
    WrongPassword,
    /// The server refuses a password that may have been right before, or may have changed since.
    StalePassword,
    /// The server has no password, and the URL gives one.
    NeedlessPassword,
    /// The server rejected the login for another reason. Its text may quote the password.
    LoginFailed,
    /// The user lacks a right.
    NoRight(Right),
    /// The server was started without its engine for Lua scripts.
    NoLua,
    /// The server lacks a command that rlock needs.
    TooOld,
    /// The server is a read-only replica.
    ReadOnly,
    /// The server is still loading its data.
    Loading,
    /// The Cluster is down.
    ClusterDown,
    /// The server is no node of a Cluster.
    NotACluster,
    /// The server is a node of a Cluster, and the URL names a single server.
    IsACluster,
    /// The Cluster is moving the data to another node.
    Migrating,
    /// The server has no memory left.
    OutOfMemory,
    /// The server is running a script of another client.
    Busy,
    /// The server is a replica that has lost its master.
    MasterDown,
    /// The server can't save its data.
    CannotSave,
    /// The server does not know WAITAOF.
    NoWaitAof,
    /// The server writes nothing to its disk by which WAITAOF could go.
    NotOnDisk,
    /// The server has fewer replicas than min-replicas-to-write.
    TooFewReplicas,
    /// The server has too many clients.
    TooManyClients,
    /// The server accepts only clients of its own machine.
    Protected,
    /// The database does not exist.
    NoDatabase,
    /// The Sentinels know no such master.
    UnknownMaster(String),
    /// A Sentinel wants a password, and there is none.
    NoSentinelPassword,
    /// The server is no Sentinel.
    NotASentinel,
    /// The server that a Sentinel names is not the master.
    NotTheMaster,
    /// The master has one replica less, which may be the next master.
    LostReplica,
    /// Another error, with the text of the server.
    Other(String),
}

/// A right that a user may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    /// To run a command, with its name if the server gives it.
    Command(Option<String>),
    /// To access the keys.
    Keys,
    /// To publish or subscribe to the channels.
    Channels,
    /// To use the database, with its number.
    Database(String),
}

/// How a URL names what the network may be about.
pub(crate) const SPELLING: Spelling = Spelling {
    ca: "?ca=FILE",
    identity: "?cert=FILE&key=FILE",
    server_name: "?server-name=NAME",
    without_tls: "redis:// or valkey://",
    with_tls: "rediss:// or valkeys://",
    if_plain: "write redis:// or valkey:// without the s",
    if_tls: "write rediss:// or valkeys://",
    if_forbidden: "see the server's unixsocketperm, or use another user",
};

impl From<NetworkError> for ErrorKind {
    fn from(error: NetworkError) -> Self {
        Self::Network(error)
    }
}

impl ErrorKind {
    /// The failure of this kind of a server.
    pub fn of(self, server: &str) -> Failure {
        Failure { server: server.to_owned(), kind: self }
    }

    /// Names the database by its number, if the failure is about the right to use it.
    pub(super) fn in_database(self, number: u32) -> Self {
        match self {
            Self::NoRight(Right::Database(_)) => Self::NoRight(Right::Database(number.to_string())),
            other => other,
        }
    }

    /// What the failure says about the next attempt at a store of this kind.
    pub(super) fn class(&self, store: &Kind) -> FailureClass {
        let class = match self {
            Self::Network(error) => error.class(),
            Self::ReadOnly | Self::OutOfMemory => FailureClass::WrongServer,
            Self::Loading
            | Self::ClusterDown
            | Self::Migrating
            | Self::Busy
            | Self::MasterDown
            | Self::CannotSave
            | Self::TooFewReplicas
            | Self::TooManyClients
            | Self::NotTheMaster
            | Self::LostReplica
            | Self::StalePassword => FailureClass::Transient,
            _ => FailureClass::Permanent,
        };
        match class {
            FailureClass::Permanent => class,
            _ if *store == Kind::Single => class,
            // Where the URL leads to several servers, another one may be right.
            _ => FailureClass::Transient,
        }
    }

    /// Whether an error reply of this kind is about its command, so that the server may accept
    /// others over the same connection.
    pub(super) fn concerns_one_command(&self) -> bool {
        matches!(
            self,
            Self::ForeignValue(_)
                | Self::OtherFormat { .. }
                | Self::UnexpectedReply
                | Self::OutOfMemory
                | Self::NoRight(_)
                | Self::TooOld
                | Self::Other(_)
        )
    }

    /// The message after the name of the server: what happened, and what to do.
    fn words(&self) -> Explained {
        let (what, remedy) = match self {
            Self::Network(error) => return error.words(&SPELLING),
            Self::NotRedis => ("is no Redis or Valkey server", "correct the host and the port"),
            Self::UnexpectedReply => (
                "sent an unexpected reply",
                "another rlock version may use this namespace: give each its own by --namespace",
            ),
            Self::ForeignValue(keys) => {
                return Explained::with_semicolon(
                    format!("has a value that rlock did not write under a key {keys}"),
                    "remove that key, or use another --namespace",
                );
            }
            Self::OtherFormat { format, keys } => {
                let what = format!("keeps {keys} in format {format}, and this rlock knows format {FORMAT}");
                return Explained::with_semicolon(what, "use one version of rlock in a namespace");
            }
            Self::ReplyTooLong => (
                "sent an unexpected reply, longer than any reply to rlock",
                "check that the URL names a Redis or Valkey server",
            ),
            Self::NoPassword => (
                "asks for a password",
                "set RLOCK_PASSWORD or RLOCK_PASSWORD_FILE, or put the password into the URL in RLOCK_STORE",
            ),
            Self::WrongPassword | Self::StalePassword => {
                ("refused the password, or the user", "correct the password, or the user name")
            }
            Self::NeedlessPassword => {
                ("has no password but was given one", "leave the password out, or set one at the server")
            }
            Self::LoginFailed => ("refused the login for another reason", "see the server's log and ACL rules"),
            Self::NoRight(right) => return right.words(),
            Self::NoLua => (
                "has no scripting engine for Lua, which rlock needs",
                "load the server's Lua module, see the output of 'module list'",
            ),
            Self::TooOld => {
                ("lacks a command that rlock needs", "use Redis 6.2 or Valkey 7.2 or newer, without renamed commands")
            }
            Self::NoWaitAof => {
                ("lacks WAITAOF, so --replicas cannot ask for a disk", "use Redis 7.2, or leave out +disk")
            }
            Self::NotOnDisk => {
                ("keeps no append-only file, so --replicas cannot ask for a disk", "set 'appendonly yes'")
            }
            Self::ReadOnly => ("is a replica, which can't be written to", "name the primary, or use redis+sentinel://"),
            Self::Loading => ("is still loading data", "try again soon"),
            Self::ClusterDown => ("is in a Cluster that does not serve now", "see the output of 'cluster info'"),
            Self::NotACluster => ("is no node of a Cluster", "write redis:// in place of redis+cluster://"),
            Self::IsACluster => ("is a node of a Cluster", "write redis+cluster:// in place of redis://"),
            Self::Migrating => ("is moving the data to another node of the Cluster", "try again soon"),
            Self::OutOfMemory => ("has no memory left", "raise maxmemory, or remove data"),
            Self::Busy => ("is busy with a script of another client", "wait, or end the script by 'script kill'"),
            Self::MasterDown => ("is a replica that has lost its primary", "name the primary, or bring it back"),
            Self::CannotSave => ("takes no writes: the data can't be saved", "see the server's log and disk"),
            Self::TooFewReplicas => {
                ("takes no writes: fewer replicas than min-replicas-to-write are connected", "bring the replicas back")
            }
            Self::TooManyClients => ("takes no more clients", "raise maxclients"),
            Self::Protected => {
                ("takes only clients of the same machine", "set a password on the server, or turn protected-mode off")
            }
            Self::NoDatabase => ("has no database of that number", "give a smaller number"),
            Self::UnknownMaster(name) => {
                return Explained::with_semicolon(
                    format!("knows no primary of the name '{name}'"),
                    "correct the name, see the output of 'sentinel masters'",
                );
            }
            Self::NoSentinelPassword => (
                "is a Sentinel that asks for a password",
                "put ?sentinel-password=PASSWORD into the URL in RLOCK_STORE",
            ),
            Self::NotASentinel => {
                ("is no Sentinel", "correct the host and the port, or write redis:// for a single server")
            }
            Self::NotTheMaster => ("is not the primary that the Sentinels name", "wait for the failover to end"),
            Self::LostReplica => ("has lost a replica, as in a failover", "wait for the failover to end"),
            Self::Other(text) => {
                return Explained::with_semicolon(format!("sent an unknown error: {text}"), "see the server's log");
            }
        };
        Explained::with_semicolon(what, remedy)
    }
}

impl Right {
    fn words(&self) -> Explained {
        let lacking = match self {
            Self::Command(Some(name)) => format!("does not let this user run the command '{name}'"),
            Self::Command(None) => "does not let this user run a command that rlock needs".to_owned(),
            Self::Keys => "does not let this user touch the keys of the namespace".to_owned(),
            Self::Channels => "does not let this user use the channels of the namespace".to_owned(),
            Self::Database(number) => format!("does not let this user use database {number}"),
        };
        Explained::with_semicolon(lacking, "give the user the rights that rlock-redis(7) lists")
    }
}

impl Failure {
    /// Whether the failure may pass soon, so that a retry makes sense.
    pub(super) fn is_transient(&self) -> bool {
        self.kind.class(&Kind::Single) != FailureClass::Permanent
    }

    /// The failure to report of two consecutive ones: a timeout says less than the failure before
    /// it.
    pub(super) fn prefer(self, earlier: Option<Self>) -> Self {
        match (&self.kind, earlier) {
            (ErrorKind::Network(NetworkError::TimedOut(_)), Some(earlier)) => earlier,
            _ => self,
        }
    }

    /// Names the keys, if the failure is about keys.
    pub(super) fn with_keys(mut self, keys: impl FnOnce() -> String) -> Self {
        if let ErrorKind::ForeignValue(named) | ErrorKind::OtherFormat { keys: named, .. } = &mut self.kind {
            *named = keys();
        }
        self
    }

    /// Whether the state of one resource is the reason, so that others can be used.
    pub(super) fn concerns_one_resource(&self) -> bool {
        matches!(self.kind, ErrorKind::ForeignValue(_) | ErrorKind::OtherFormat { .. } | ErrorKind::UnexpectedReply)
    }

    pub(super) fn words(&self) -> Explained {
        self.kind.words().behind(format_args!("'{}' ", self.server))
    }

    pub(super) fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words().fmt(f)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Unavailable(failure.words())
    }
}

#[cfg(test)]
mod tests;
