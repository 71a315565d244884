//! Classifies the reasons why a server can't be used, and writes the messages about them.

use std::path::PathBuf;

use super::wire::ServerError;
use rlock_model::tables::FORMAT;
use rlock_store::error::Error;
use rlock_store::lease_client::FailureClass;
use rlock_store::network::{NetworkError, Spelling};
use rlock_words::Explained;

/// The statements that make the tables, which rlock runs where its role may.
pub(super) const SCHEMA: &str = "create schema if not exists rlock; \
    create table if not exists rlock.namespaces (name text collate \"C\" primary key, format int not null); \
    create table if not exists rlock.records (namespace text collate \"C\", key bytea, value bytea not null, pid int, \
    started bigint, primary key (namespace, key))";

/// How a URL names what the network may be about.
pub(super) const SPELLING: Spelling = Spelling {
    ca: "?sslrootcert=FILE",
    identity: "?sslcert=FILE&sslkey=FILE",
    server_name: "another host",
    without_tls: "?sslmode=disable",
    with_tls: "?sslmode=require",
    if_plain: "write ?sslmode=disable, or let the server speak TLS",
    if_tls: "correct the port, since a proxy answers there",
    if_forbidden: "see the server's unix_socket_permissions, or use another user",
};

/// Why a server can't be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// The server as messages name it.
    server: String,
    kind: ErrorKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ErrorKind {
    /// The server can't be reached.
    Network(NetworkError),
    /// The server speaks another protocol.
    NotPostgres,
    /// The server wants a password, and there is none. A password file may not count.
    NoPassword { ignored: Option<PathBuf> },
    /// The password is wrong.
    WrongPassword,
    /// The server refuses a password that may have been right before, or may have changed since.
    StalePassword,
    /// The server wants a login of a kind that rlock lacks.
    UnknownLogin,
    /// The login can't be bound to the TLS connection, and the URL demands it.
    NoBinding,
    /// The server does not prove that it knows the password.
    Impostor,
    /// The server rejects the user, with its words.
    Rejected(String),
    /// The database does not exist, with the words of the server.
    NoDatabase(String),
    /// The tables are missing, and the role may not make them.
    NoTables,
    /// The role lacks a right, with the words of the server.
    NoRight(String),
    /// The records have another format.
    OtherFormat(i32),
    /// A record can't be read.
    Damaged,
    /// The server takes no writes.
    ReadOnly,
    /// The server starts, stops or recovers, with its words.
    NotReady(String),
    /// The server has too many clients.
    TooManyClients,
    /// The server has no disk or memory left, with its words.
    Full(String),
    /// The server ended a transaction that others had kept waiting, or that took too long.
    TooSlow,
    /// The server sent what answers no question.
    UnexpectedReply,
    /// Another error, with its code and the text of the server.
    Other { code: String, text: String },
}

impl From<NetworkError> for ErrorKind {
    fn from(error: NetworkError) -> Self {
        Self::Network(error)
    }
}

impl ErrorKind {
    /// The failure of this kind of a server.
    pub(crate) fn of(self, server: &str) -> Failure {
        Failure { server: server.to_owned(), kind: self }
    }

    /// The kind of an error of the server, by its SQLSTATE.
    pub(super) fn from_server(ServerError { code, text, .. }: &ServerError) -> Self {
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        match code.as_str() {
            "28P01" => Self::WrongPassword,
            "3D000" => Self::NoDatabase(text),
            "42501" => Self::NoRight(text),
            "25006" => Self::ReadOnly,
            // The server is told to end this connection or all, or recovers.
            "57P01" | "57P02" | "57P03" | "57P05" => Self::NotReady(text),
            "53300" => Self::TooManyClients,
            "25P03" | "25P04" | "55P03" | "57014" | "40001" | "40P01" => Self::TooSlow,
            "42P01" | "3F000" => Self::NoTables,
            code if code.starts_with("28") => Self::Rejected(text),
            code if code.starts_with("53") => Self::Full(text),
            // pgbouncer has no code of its own for a server that does not answer it.
            "08P01" => Self::NotReady(text),
            code => Self::Other { code: code.to_owned(), text },
        }
    }

    /// What the failure says about the next attempt. `has_others` says whether the URL names other
    /// servers, of which one may be right.
    pub(super) fn class(&self, has_others: bool) -> FailureClass {
        let class = match self {
            Self::Network(error) => error.class(),
            Self::ReadOnly | Self::Full(_) => FailureClass::WrongServer,
            Self::NotReady(_) | Self::TooManyClients | Self::TooSlow | Self::StalePassword => FailureClass::Transient,
            _ => FailureClass::Permanent,
        };
        if has_others && class != FailureClass::Permanent { FailureClass::Transient } else { class }
    }

    /// The message after the name of the server: what happened, and what to do.
    fn words(&self) -> Explained {
        let (what, remedy) = match self {
            Self::Network(error) => return error.words(&SPELLING),
            Self::NotPostgres => ("is no PostgreSQL server", "correct the host and the port"),
            Self::NoPassword { ignored: None } => {
                ("asks for a password", "set RLOCK_PASSWORD or RLOCK_PASSWORD_FILE, or write it into ~/.pgpass")
            }
            Self::NoPassword { ignored: Some(path) } => {
                let what =
                    format!("asks for a password, and '{}' does not count since others may read it", path.display());
                return Explained::with_semicolon(what, "take their rights by chmod 600");
            }
            Self::WrongPassword | Self::StalePassword => {
                ("refused the password, or the user", "correct the password, or the user name")
            }
            Self::UnknownLogin => {
                ("asks for a login that rlock lacks", "let pg_hba.conf ask this user for scram-sha-256, or for cert")
            }
            Self::NoBinding => (
                "cannot bind the login to the TLS connection, as channel_binding=require demands",
                "let pg_hba.conf ask for scram-sha-256, or leave channel_binding out",
            ),
            Self::Impostor => {
                ("does not prove that it knows the password", "check the address, and see whether a proxy answers")
            }
            Self::Rejected(text) => {
                let what = format!("rejected the user: {text}");
                return Explained::with_semicolon(what, "correct the user, or the server's pg_hba.conf");
            }
            Self::NoDatabase(text) => {
                let what = format!("lacks the database: {text}");
                return Explained::with_semicolon(what, "correct the database in the URL, or create it");
            }
            Self::NoTables => {
                let remedy = format!("let a role that may run this: {SCHEMA}");
                return Explained::with_semicolon("has no tables of rlock, and this role may not make them", remedy);
            }
            Self::NoRight(text) => {
                let what = format!("does not let this role do what it has to: {text}");
                return Explained::with_semicolon(what, "grant the role the rights that rlock-postgres(7) lists");
            }
            Self::OtherFormat(format) => {
                let what = format!("keeps the namespace in format {format}, and this rlock knows format {FORMAT}");
                return Explained::with_semicolon(what, "use one version of rlock in a namespace");
            }
            Self::Damaged => (
                "has a record in the table 'rlock.records' that rlock did not write",
                "remove the rows of the namespace, or use another --namespace",
            ),
            Self::ReadOnly => {
                ("takes no writes, as a standby does", "name the primary, or all servers as in postgres://one,other")
            }
            Self::NotReady(text) => {
                return Explained::with_semicolon(format!("is not ready: {text}"), "try again soon");
            }
            Self::TooManyClients => ("takes no more clients", "raise max_connections, or put a pooler before it"),
            Self::Full(text) => {
                return Explained::with_semicolon(format!("has no room: {text}"), "free disk or memory of the server");
            }
            Self::TooSlow => {
                ("ended a transaction that took too long", "see whether the server is overloaded, or the network slow")
            }
            Self::UnexpectedReply => {
                ("sent an unexpected reply", "see whether a proxy answers that changes what passes")
            }
            Self::Other { code, text } => {
                return Explained::with_semicolon(format!("sent the error {code}: {text}"), "see the server's log");
            }
        };
        Explained::with_semicolon(what, remedy)
    }
}

impl Failure {
    /// The failure to report of two consecutive ones: a timeout says less than the failure before
    /// it.
    pub(super) fn prefer(self, earlier: Option<Self>) -> Self {
        match (&self.kind, earlier) {
            (ErrorKind::Network(NetworkError::TimedOut(_)), Some(earlier)) => earlier,
            _ => self,
        }
    }

    pub(super) fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Unavailable(failure.kind.words().behind(format_args!("'{}' ", failure.server)))
    }
}
