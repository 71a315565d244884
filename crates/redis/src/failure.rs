//! The reasons why a server can't be used.

use std::fmt;

use redis::ServerError;

use super::target::Kind;
use rlock_model::tables::FORMAT;
use rlock_store::lease::FailureClass;
use rlock_store::network::Spelling;
use rlock_words::one_line;

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
    if_silent: "see whether the server is stopped or overloaded",
};

// The texts of replies differ between versions, and between a command and the same command in a
// script. A text that begins with ^ begins the reply; others may stand anywhere in it.
rlock_store::server_errors! {
    pub with SPELLING;

    NotRedis [] Permanent:
        "is no Redis or Valkey server", "correct the host and the port";
    NoRight(right: Right) ["^NOPERM ", "^ACL failure in script", "^The user executing the script can't"] Permanent:
        "does not let this user {right}", "give the user the rights that rlock-redis(7) lists";
    // A server rejects what is longer than a login before it reads it, and closes the connection.
    NoPassword ["^NOAUTH ", "unauthenticated multibulk length", "unauthenticated bulk length"] Permanent:
        "asks for a password",
        "set RLOCK_PASSWORD or RLOCK_PASSWORD_FILE, or put the password into the URL in RLOCK_STORE";
    WrongPassword ["^WRONGPASS ", "invalid password"] Permanent:
        "refused the password, or the user", "correct the password, or the user name";
    /// The password may have been right before, or may have changed since.
    StalePassword [] Transient:
        "refused the password, or the user", "correct the password, or the user name";
    NeedlessPassword ["called without any password configured", "AUTH, but no password is set"] Permanent:
        "has no password but was given one", "leave the password out, or set one at the server";
    /// The text of the server may quote the password.
    LoginFailed [] Permanent:
        "refused the login for another reason", "see the server's log and ACL rules";
    ReadOnly ["^READONLY "] WrongServer:
        "is a replica, which can't be written to", "name the primary, or use redis+sentinel://";
    Loading ["^LOADING "] Transient:
        "is still loading data", "try again soon";
    ClusterDown ["^CLUSTERDOWN "] Transient:
        "is in a Cluster that does not serve now", "see the output of 'cluster info'";
    IsACluster ["^MOVED ", "^ASK ", "^CROSSSLOT ", "not allowed in cluster mode"] Permanent:
        "is a node of a Cluster", "write redis+cluster:// in place of redis://";
    NotACluster ["cluster support disabled"] Permanent:
        "is no node of a Cluster", "write redis:// in place of redis+cluster://";
    Migrating ["^TRYAGAIN "] Transient:
        "is moving the data to another node of the Cluster", "try again soon";
    OutOfMemory ["^OOM "] WrongServer:
        "has no memory left", "raise maxmemory, or remove data";
    Busy ["^BUSY "] Transient:
        "is busy with a script of another client", "wait, or end the script by 'script kill'";
    MasterDown ["^MASTERDOWN "] Transient:
        "is a replica that has lost its primary", "name the primary, or bring it back";
    CannotSave ["^MISCONF "] Transient:
        "takes no writes: the data can't be saved", "see the server's log and disk";
    TooFewReplicas ["^NOREPLICAS "] Transient:
        "takes no writes: fewer replicas than min-replicas-to-write are connected", "bring the replicas back";
    Protected ["^DENIED "] Permanent:
        "takes only clients of the same machine", "set a password on the server, or turn protected-mode off";
    NoDatabase ["DB index is out of range", "invalid DB index"] Permanent:
        "has no database of that number", "give a smaller number";
    TooManyClients ["max number of clients"] Transient:
        "takes no more clients", "raise maxclients";
    NotOnDisk ["numlocal is set but appendonly is disabled"] Permanent:
        "keeps no append-only file, so --replicas cannot ask for a disk", "set 'appendonly yes'";
    NoWaitAof ["WAITAOF"] Permanent:
        "lacks WAITAOF, so --replicas cannot ask for a disk", "use Redis 7.2, or leave out +disk";
    // The last two are from servers that know the command but not a newer option of it.
    TooOld [
        "^unknown ", "^Unknown ", "wrong number of arguments for 'auth'",
        "^syntax error", "^value is not an integer or out of range"
    ] Permanent:
        "lacks a command that rlock needs", "use Redis 6.2 or Valkey 7.2 or newer, without renamed commands";
    NoLua ["Could not find scripting engine"] Permanent:
        "has no scripting engine for Lua, which rlock needs",
        "load the server's Lua module, see the output of 'module list'";
    OtherFormat(format: String, keys: String) ["RLOCKFORMAT "] Permanent:
        "keeps {keys} in format {format}, and this rlock knows format {FORMAT}",
        "use one version of rlock in a namespace";
    // A script met a value that no script wrote.
    ForeignValue(keys: String) ["^WRONGTYPE ", "^user_script:"] Permanent:
        "has a value that rlock did not write under a key {keys}", "remove that key, or use another --namespace";
    UnexpectedReply [] Permanent:
        "sent an unexpected reply",
        "another rlock version may use this namespace: give each its own by --namespace";
    ReplyTooLong [] Permanent:
        "sent an unexpected reply, longer than any reply to rlock",
        "check that the URL names a Redis or Valkey server";
    UnknownMaster(name: String) ["No such master with that name"] Permanent:
        "knows no primary of the name '{name}'", "correct the name, see the output of 'sentinel masters'";
    NoSentinelPassword [] Permanent:
        "is a Sentinel that asks for a password", "put ?sentinel-password=PASSWORD into the URL in RLOCK_STORE";
    NotASentinel [] Permanent:
        "is no Sentinel", "correct the host and the port, or write redis:// for a single server";
    NotTheMaster [] Transient:
        "is not the primary that the Sentinels name", "wait for the failover to end";
    /// The lost replica may be the next master.
    LostReplica [] Transient:
        "has lost a replica, as in a failover", "wait for the failover to end";
    Other(text: String) [] Permanent:
        "sent an unknown error: {text}", "see the server's log";
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

impl From<&str> for Right {
    /// The right that a reply is about.
    fn from(text: &str) -> Self {
        let between = |from: &str, to: &str| Some(text.split_once(from)?.1.split_once(to)?.0.to_owned());
        if text.contains("channel") {
            Self::Channels
        } else if text.contains("access database") {
            Self::Database(String::new())
        } else if text.contains(" key") {
            Self::Keys
        } else {
            Self::Command(between("run the '", "'"))
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(Some(name)) => write!(f, "run the command '{name}'"),
            Self::Command(None) => f.write_str("run a command that rlock needs"),
            Self::Keys => f.write_str("touch the keys of the namespace"),
            Self::Channels => f.write_str("use the channels of the namespace"),
            Self::Database(number) => write!(f, "use database {number}"),
        }
    }
}

impl ErrorKind {
    /// The kind of an error reply. A text may repeat the arguments of a command, which may be a
    /// password, so an unknown text of a login is never shown.
    pub(crate) fn from_reply(error: &ServerError) -> Self {
        let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
        let text = outside_of_script(&text);
        let text = text.strip_prefix("ERR ").unwrap_or(text);
        let fits = |reply: &str| match reply.strip_prefix('^') {
            Some(start) => text.starts_with(start),
            None => text.contains(reply),
        };
        let shown = |text: &str, chars| one_line(text).chars().take(chars).collect();
        match Self::of_reply(fits, text) {
            Some(Self::OtherFormat(..)) => {
                let format = text.split_once("RLOCKFORMAT ").and_then(|(_, behind)| behind.split_whitespace().next());
                Self::OtherFormat(shown(format.unwrap_or_default(), 20), String::new())
            }
            Some(Self::ForeignValue(_)) => Self::ForeignValue(String::new()),
            Some(kind) => kind,
            None => Self::Other(shown(text.trim_end(), 200)),
        }
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
        self.class_among(*store != Kind::Single)
    }

    /// Whether an error reply of this kind is about its command, so that the server may accept
    /// others over the same connection.
    pub(super) fn concerns_one_command(&self) -> bool {
        self.concerns_one_resource()
            || matches!(self, Self::OutOfMemory | Self::NoRight(_) | Self::TooOld | Self::Other(_))
    }

    /// Whether the state of one resource is the reason.
    fn concerns_one_resource(&self) -> bool {
        matches!(self, Self::ForeignValue(_) | Self::OtherFormat(..) | Self::UnexpectedReply)
    }
}

impl Failure {
    /// Whether the failure may pass soon, so that a retry makes sense.
    pub(super) fn is_transient(&self) -> bool {
        self.kind.class(&Kind::Single) != FailureClass::Permanent
    }

    /// Names the keys, if the failure is about keys.
    pub(super) fn with_keys(mut self, keys: impl FnOnce() -> String) -> Self {
        if let ErrorKind::ForeignValue(named) | ErrorKind::OtherFormat(_, named) = &mut self.kind {
            *named = keys();
        }
        self
    }

    /// Whether the state of one resource is the reason, so that others can be used.
    pub(super) fn concerns_one_resource(&self) -> bool {
        self.kind.concerns_one_resource()
    }
}

/// Strips what a server adds to the error of a command in a script.
///
/// Redis 6.2 adds `ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -`
/// before it. Newer versions and Valkey add ` script: …, on @user_script:1.` after it.
fn outside_of_script(text: &str) -> &str {
    let text = match text.strip_prefix("ERR Error running script (call to ") {
        None => text,
        Some(rest) => {
            let mut inner = rest.split_once("): ").map_or(rest, |(_, inner)| inner);
            while let Some(rest) = inner.strip_prefix("@user_script:") {
                inner = rest.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).trim_start_matches(": ");
            }
            inner.strip_prefix('-').unwrap_or(inner)
        }
    };
    match text.rsplit_once(" script: ") {
        Some((inner, place)) if place.contains("@user_script") => inner,
        _ => text,
    }
}

#[cfg(test)]
mod tests;
