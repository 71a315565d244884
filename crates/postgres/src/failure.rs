//! The reasons why a server can't be used.

use super::wire::ServerError;
use rlock_model::tables::FORMAT;
use rlock_store::network::Spelling;

/// The statements that make the tables in a schema that is there.
macro_rules! tables {
    () => {
        "create table if not exists rlock.namespaces (name text collate \"C\" primary key, format int not null); \
    create table if not exists rlock.records (namespace text collate \"C\", key bytea, value bytea not null, pid int, \
    started bigint, primary key (namespace, key))"
    };
}

/// The statements that make the schema and the tables, which rlock runs where its role may.
pub(super) const SCHEMA: &str = concat!("create schema if not exists rlock; ", tables!());

/// How rlock tries to make the tables. The first may be refused to a role that owns the schema.
pub(super) const MAKES: &[&str] = &[SCHEMA, tables!()];

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
    if_silent: "see whether the server is stopped or overloaded, or waits for a synchronous standby",
};

// A reply is the start of a SQLSTATE.
rlock_store::server_errors! {
    pub(crate) with SPELLING;

    NotPostgres [] Permanent:
        "is no PostgreSQL server", "correct the host and the port";
    NoPassword [] Permanent:
        "asks for a password", "set RLOCK_PASSWORD or RLOCK_PASSWORD_FILE, or write it into ~/.pgpass";
    OpenPassFile(path: String) [] Permanent:
        "asks for a password, and '{path}' does not count since others may read it", "take their rights by chmod 600";
    UnreadPassFile(text: String) [] Permanent:
        "asks for a password, and rlock cannot read {text}", "let this user read the file, or set RLOCK_PASSWORD";
    WrongPassword ["28P01"] Permanent:
        "refused the password, or the user", "correct the password, or the user name";
    /// The password may have been right before, or may have changed since.
    StalePassword [] Transient:
        "refused the password, or the user", "correct the password, or the user name";
    UnknownLogin [] Permanent:
        "asks for a login that rlock lacks", "let pg_hba.conf ask this user for scram-sha-256, or for cert";
    NoBinding [] Permanent:
        "cannot bind the login to the TLS connection, as channel_binding=require demands",
        "let pg_hba.conf ask for scram-sha-256, or leave channel_binding out";
    ForbiddenLogin(method: String) [] Permanent:
        "uses the login '{method}', which require_auth forbids", "let pg_hba.conf ask for another, or change require_auth";
    Impostor [] Permanent:
        "does not prove that it knows the password", "check the address, and see whether a proxy answers";
    SlowFiles [] Transient:
        "cannot be used: the files of passwords and certificates could not be read in time", "see whether the file system answers";
    Rejected(text: String) ["28"] Permanent:
        "rejected the user: {text}", "correct the user, or the server's pg_hba.conf";
    NoDatabase(text: String) ["3D000"] Permanent:
        "lacks the database: {text}", "correct the database in the URL, or create it";
    NoTables ["42P01", "3F000"] Permanent:
        "has no tables of rlock, and this role may not make them", "let a role that may run this: {SCHEMA}";
    NoRight(text: String) ["42501"] Permanent:
        "does not let this role do what it has to: {text}", "grant the role the rights that rlock-postgres(7) lists";
    OtherFormat(format: String) [] Permanent:
        "keeps the namespace in format {format}, and this rlock knows format {FORMAT}",
        "use one version of rlock in a namespace";
    Damaged [] Permanent:
        "has a record in the table 'rlock.records' that rlock did not write",
        "remove the rows of the namespace, or use another --namespace";
    ReadOnly ["25006"] WrongServer:
        "takes no writes, as a standby does, or as default_transaction_read_only demands",
        "name the primary, or all servers as in postgres://one,other, or turn the setting off";
    StatementMode [] Permanent:
        "is behind pgbouncer in statement mode, which allows no transactions", "set pool_mode to transaction or session";
    SplitReads [] Permanent:
        "is behind a proxy that sends reads inside a transaction to another server, whose locks may be old",
        "let the proxy leave transactions on the primary, or name the primary itself in the URL";
    OneClient [] Permanent:
        "is PGlite, which serves one client at a time", "use a PostgreSQL server, or a file:// store on one machine";
    // The first four mean that the server is told to end this connection or all, or recovers.
    // pgbouncer has no code of its own, and sends the last, for a server that does not answer it.
    NotReady(text: String) ["57P01", "57P02", "57P03", "57P05", "08P01"] Transient:
        "is not ready: {text}", "try again soon";
    TooManyClients(text: String) ["53300"] Transient:
        "takes no more clients: {text}", "raise the limit of the server, the role or the database, or put a pooler before it";
    Full(text: String) ["53"] WrongServer:
        "has no room: {text}", "free disk or memory of the server";
    Locked(text: String) [] Transient:
        "waits for {text}, as VACUUM FULL, ALTER TABLE and REINDEX take it", "see the statement of the pid in pg_stat_activity";
    /// The transaction kept others waiting, or was kept waiting by them.
    TooSlow ["25P03", "25P04", "55P03", "57014", "40001", "40P01"] Transient:
        "ended a transaction that took too long", "see whether the server is overloaded, or the network slow";
    UnexpectedReply [] Permanent:
        "sent an unexpected reply", "see whether a proxy answers that changes what passes";
    Other(text: String) [] Permanent:
        "sent the error {text}", "see the server's log";
}

/// What pgbouncer says of it, under the code of all its errors.
const STATEMENT_MODE: &str = "statement pooling mode";

impl ErrorKind {
    /// The kind of an error of the server, by its SQLSTATE.
    pub(super) fn from_server(ServerError { code, text, .. }: &ServerError) -> Self {
        if text.contains(STATEMENT_MODE) {
            return Self::StatementMode;
        }
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let known = Self::of_reply(|start| code.starts_with(start), &text);
        known.unwrap_or_else(|| Self::Other(format!("{code}: {text}")))
    }
}

#[cfg(test)]
mod tests {
    use rlock_store::error::Error;
    use rlock_store::lease::FailureClass::{self, *};

    use super::*;

    fn kind(code: &str) -> ErrorKind {
        ErrorKind::from_server(&ServerError { code: code.to_owned(), text: "a\u{7}b".to_owned(), is_fatal: false })
    }

    #[test]
    fn sqlstate_decides_what_an_error_is_and_whether_it_passes() {
        use ErrorKind::*;
        let text = || "a?b".to_owned();
        let cases: [(&str, ErrorKind, FailureClass); 10] = [
            ("28P01", WrongPassword, Permanent),
            ("28000", Rejected(text()), Permanent),
            ("3D000", NoDatabase(text()), Permanent),
            ("42501", NoRight(text()), Permanent),
            ("25006", ReadOnly, WrongServer),
            ("57P03", NotReady(text()), Transient),
            ("53300", TooManyClients(text()), Transient),
            ("53100", Full(text()), WrongServer),
            ("40P01", TooSlow, Transient),
            ("XX000", Other("XX000: a?b".to_owned()), Permanent),
        ];
        for (code, expected, class) in cases {
            let found = kind(code);
            assert_eq!((found.class_among(false), &found), (class, &expected), "{code}");
            let among_others = if class == Permanent { Permanent } else { Transient };
            assert_eq!(found.class_among(true), among_others, "{code}");
        }
    }

    #[test]
    fn message_names_the_server_and_what_to_do() {
        let said = |kind: ErrorKind| Error::from(kind.of("postgres://h")).to_string();
        assert_eq!(said(kind("57P03")), "'postgres://h' is not ready: a?b; try again soon");
        assert_eq!(said(kind("XX000")), "'postgres://h' sent the error XX000: a?b; see the server's log");
    }
}
