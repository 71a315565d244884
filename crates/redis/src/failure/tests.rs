//! Tests that the error replies of Redis 6.2, 7.0 and 8.2 and Valkey 9.1 are classified.

use redis::{ServerError, Value};
use rustix::io::Errno;

use super::*;
use rlock_store::error::Error;
use rlock_store::network::{NetworkError, Stage};
use rlock_words::reason;

fn error(text: &str) -> ServerError {
    match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
        Ok(Value::ServerError(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn command(name: &str) -> ErrorKind {
    ErrorKind::NoRight(Right::Command(Some(name.to_owned())))
}

#[test]
fn error_replies_have_the_same_kind_in_all_versions() {
    let some_command = || ErrorKind::NoRight(Right::Command(None));
    let keys = || ErrorKind::NoRight(Right::Keys);
    let channels = || ErrorKind::NoRight(Right::Channels);
    let foreign = || ErrorKind::ForeignValue(String::new());
    let other_format = || ErrorKind::OtherFormat("4".to_owned(), String::new());
    let cases = [
        ("NOAUTH Authentication required.", ErrorKind::NoPassword),
        ("NOAUTH HELLO must be called with the client already authenticated, otherwise …", ErrorKind::NoPassword),
        ("WRONGPASS invalid username-password pair or user is disabled.", ErrorKind::WrongPassword),
        ("ERR invalid password", ErrorKind::WrongPassword),
        (
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
            ErrorKind::NeedlessPassword,
        ),
        ("ERR Client sent AUTH, but no password is set", ErrorKind::NeedlessPassword),
        ("NOPERM this user has no permissions to run the 'zadd' command or its subcommand", command("zadd")),
        ("NOPERM this user has no permissions to run the 'zadd' command", command("zadd")),
        ("NOPERM User bob has no permissions to run the 'zadd' command", command("zadd")),
        ("NOPERM this user has no permissions to access one of the keys used as arguments", keys()),
        ("NOPERM No permissions to access a key", keys()),
        ("NOPERM this user has no permissions to access one of the channels used as arguments", channels()),
        ("NOPERM No permissions to access a channel", channels()),
        ("NOPERM No permissions to access database", ErrorKind::NoRight(Right::Database(String::new()))),
        ("READONLY You can't write against a read only replica.", ErrorKind::ReadOnly),
        ("LOADING Redis is loading the dataset in memory", ErrorKind::Loading),
        ("CLUSTERDOWN Hash slot not served", ErrorKind::ClusterDown),
        ("MOVED 3999 127.0.0.1:6381", ErrorKind::IsACluster),
        ("CROSSSLOT Keys in request don't hash to the same slot", ErrorKind::IsACluster),
        ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::OutOfMemory),
        ("BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", ErrorKind::Busy),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", ErrorKind::MasterDown),
        (
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            ErrorKind::CannotSave,
        ),
        ("NOREPLICAS Not enough good replicas to write.", ErrorKind::TooFewReplicas),
        ("DENIED Redis is running in protected mode because protected mode is enabled", ErrorKind::Protected),
        ("ERR max number of clients reached", ErrorKind::TooManyClients),
        ("ERR DB index is out of range", ErrorKind::NoDatabase),
        ("ERR SELECT is not allowed in cluster mode", ErrorKind::IsACluster),
        ("ERR This instance has cluster support disabled", ErrorKind::NotACluster),
        ("ERR Could not find scripting engine 'lua'", ErrorKind::NoLua),
        ("ERR unknown command `HELLO`, with args beginning with: `3`, ", ErrorKind::TooOld),
        ("ERR unknown command `WAITAOF`, with args beginning with: `1`, `1`, `5000`, ", ErrorKind::NoWaitAof),
        ("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.", ErrorKind::NotOnDisk),
        ("ERR unknown command 'nosuch', with args beginning with: 'a' 'b' ", ErrorKind::TooOld),
        ("ERR Unknown subcommand or wrong number of arguments for 'MYID'. Try CLUSTER HELP.", ErrorKind::TooOld),
        ("ERR wrong number of arguments for 'auth' command", ErrorKind::TooOld),
        ("WRONGTYPE Operation against a key", foreign()),
        ("ERR Protocol error: unauthenticated multibulk length", ErrorKind::NoPassword),
        ("ERR strange\u{7}error", ErrorKind::Other("strange?error".to_owned())),
    ];
    for (text, kind) in cases {
        assert_eq!(ErrorKind::from_reply(&error(text)), kind, "{text}");
    }

    let old = "ERR Error running script (call to f_0523826e14637c1cc9153c8506277da7a8456298): @user_script:1:";
    let seven = "script: 0523826e14637c1cc9153c8506277da7a8456298, on @user_script:1.";
    let valkey = "script: on @user_script:1.";
    let in_scripts = [
        (
            format!("{old} @user_script: 1: The user executing the script can't run this command or subcommand"),
            some_command(),
        ),
        (format!("ERR The user executing the script can't run this command or subcommand {seven}"), some_command()),
        (
            format!("ERR ACL failure in script: User bob has no permissions to run the 'zadd' command {valkey}"),
            command("zadd"),
        ),
        (
            format!(
                "{old} @user_script: 1: The user executing the script can't access at least one of the keys mentioned in \
                 the command arguments"
            ),
            keys(),
        ),
        (format!("ERR ACL failure in script: No permissions to access a key {seven}"), keys()),
        (
            format!("ERR The user executing the script can't publish to the channel mentioned in the command {seven}"),
            channels(),
        ),
        (format!("ERR ACL failure in script: No permissions to access a channel {valkey}"), channels()),
        (format!("{old} @user_script: 1: Unknown Redis command called from Lua script"), ErrorKind::TooOld),
        (format!("ERR Unknown Redis command called from script {seven}"), ErrorKind::TooOld),
        (format!("ERR Unknown command called from script {valkey}"), ErrorKind::TooOld),
        (
            format!("{old} @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'."),
            ErrorKind::OutOfMemory,
        ),
        (format!("OOM command not allowed when used memory > 'maxmemory'. {seven}"), ErrorKind::OutOfMemory),
        (format!("{old} @user_script: 1: -READONLY You can't write against a read only replica."), ErrorKind::ReadOnly),
        (format!("READONLY You can't write against a read only replica. {valkey}"), ErrorKind::ReadOnly),
        (format!("NOREPLICAS Not enough good replicas to write. {seven}"), ErrorKind::TooFewReplicas),
        (format!("{old} ERR syntax error"), ErrorKind::TooOld),
        (format!("{old} ERR value is not an integer or out of range"), ErrorKind::TooOld),
        (format!("ERR no such key {valkey}"), ErrorKind::Other("no such key".to_owned())),
        (format!("{old} user_script:1: attempt to perform arithmetic on a nil value"), foreign()),
        (format!("{old} RLOCKFORMAT 4"), other_format()),
        (format!("ERR RLOCKFORMAT 4 {seven}"), other_format()),
        (format!("RLOCKFORMAT 4 {valkey}"), other_format()),
    ];
    for (text, kind) in in_scripts {
        assert_eq!(ErrorKind::from_reply(&error(&text)), kind, "{text}");
    }
}

/// Some errors quote the arguments of the command.
#[test]
fn arguments_in_error_replies_are_not_shown() {
    for text in [
        "ERR unknown command 'EVALSHA', with args beginning with: 'S3CRET'",
        "ERR unknown command `AUTH`, with args: S3CRET",
    ] {
        assert!(!ErrorKind::from_reply(&error(text)).of("redis://h:1").to_string().contains("S3CRET"));
    }
}

#[test]
fn failures_that_may_pass_soon_are_transient() {
    for text in ["LOADING x", "READONLY x", "CLUSTERDOWN x", "TRYAGAIN x", "BUSY x", "MASTERDOWN x", "OOM x"] {
        assert!(ErrorKind::from_reply(&error(text)).of("h").is_transient(), "{text}");
    }
    for text in
        ["NOAUTH x", "WRONGPASS x", "NOPERM x", "ERR unknown command 'x'", "MOVED 1 h:1", "DENIED x", "ERR what"]
    {
        assert!(!ErrorKind::from_reply(&error(text)).of("h").is_transient(), "{text}");
    }
    for errno in [Errno::CONNREFUSED, Errno::NOENT, Errno::HOSTUNREACH, Errno::CONNRESET, Errno::TIMEDOUT, Errno::IO] {
        assert!(
            ErrorKind::Network(NetworkError::from_kernel(errno, Stage::Connecting)).of("h").is_transient(),
            "{errno}"
        );
    }
    assert!(!ErrorKind::Network(NetworkError::from_kernel(Errno::ACCESS, Stage::Connecting)).of("h").is_transient());
}

/// A proxy without a server behind it accepts and closes, before or after the TLS handshake.
#[test]
fn closed_connection_advises_what_its_url_lacks() {
    let remedy = |stage| ErrorKind::Network(NetworkError::Closed(stage)).of("h").words().remedy.expect("there is one");
    for stage in [Stage::Connecting, Stage::Handshake, Stage::Silent, Stage::Encrypted] {
        assert!(remedy(stage).contains("whether a proxy has no server behind it"), "{stage:?}");
        assert_eq!(remedy(stage).contains("write rediss://"), stage == Stage::Silent, "{stage:?}");
    }
}

#[test]
fn message_names_the_server_and_what_to_do() {
    let said = |kind: ErrorKind| kind.of("redis://h:1").to_string();
    assert_eq!(
        said(ErrorKind::Network(NetworkError::Refused)),
        "'redis://h:1' refused the connection; start the server, or correct the address"
    );
    // The words of the system depend on the C library.
    let unreachable = reason(&Errno::NETUNREACH);
    assert_eq!(
        said(ErrorKind::Network(NetworkError::from_kernel(Errno::NETUNREACH, Stage::Connecting))),
        format!("'redis://h:1' cannot be reached: {unreachable}; check the address and the network")
    );
    assert_eq!(
        said(command("zadd")),
        "'redis://h:1' does not let this user run the command 'zadd'; give the user the rights that rlock-redis(7) lists"
    );
    assert_eq!(
        said(ErrorKind::NoRight(Right::Database(String::new())).in_database(2)),
        "'redis://h:1' does not let this user use database 2; give the user the rights that rlock-redis(7) lists"
    );
    assert!(
        matches!(Error::from(ErrorKind::Loading.of("x")), Error::Unavailable(words) if words.what == "'x' is still loading data")
    );
}

/// The columns are the classes at a single server, and where the URL leads to several.
#[test]
fn class_depends_on_failure_and_store() {
    use ErrorKind::*;
    use FailureClass::{Absent, Permanent, Transient, WrongServer};
    let text = String::new;
    for (failure, expected) in [
        (Network(NetworkError::Refused), [Absent, Transient]),
        (Network(NetworkError::NoSocket), [Absent, Transient]),
        (Network(NetworkError::Unresolved(text())), [Absent, Transient]),
        (Network(NetworkError::Unreachable(text())), [Absent, Transient]),
        (ReadOnly, [WrongServer, Transient]),
        (OutOfMemory, [WrongServer, Transient]),
        (Network(NetworkError::TimedOut(Stage::Used)), [Transient, Transient]),
        (Network(NetworkError::Closed(Stage::Used)), [Transient, Transient]),
        (Network(NetworkError::ConnectionFailed(text())), [Transient, Transient]),
        (Loading, [Transient, Transient]),
        (ClusterDown, [Transient, Transient]),
        (Migrating, [Transient, Transient]),
        (Busy, [Transient, Transient]),
        (MasterDown, [Transient, Transient]),
        (CannotSave, [Transient, Transient]),
        (TooFewReplicas, [Transient, Transient]),
        (TooManyClients, [Transient, Transient]),
        (Network(NetworkError::QueueFull), [Transient, Transient]),
        (NotTheMaster, [Transient, Transient]),
        (LostReplica, [Transient, Transient]),
        (Network(NetworkError::NotAllowed), [Permanent, Permanent]),
        (NoPassword, [Permanent, Permanent]),
        (TooOld, [Permanent, Permanent]),
        (UnexpectedReply, [Permanent, Permanent]),
        (ForeignValue(text()), [Permanent, Permanent]),
        (Other(text()), [Permanent, Permanent]),
    ] {
        assert_eq!(failure.class(&Kind::Single), expected[0], "{failure:?}");
        for store in [Kind::Cluster, Kind::Sentinel { master: text() }] {
            assert_eq!(failure.class(&store), expected[1], "{failure:?} {store:?}");
        }
    }
}
