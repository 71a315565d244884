//! Classifies the error replies of servers.
//!
//! The texts differ between versions, and between a command and the same command in a script. Some
//! repeat the arguments of a command, which may be a password, so an unknown text of a login is
//! never shown.

use redis::ServerError;

use super::{ErrorKind, Right};
use rlock_words::one_line;

impl ErrorKind {
    /// The kind of an error reply.
    pub(crate) fn from_reply(error: &ServerError) -> Self {
        let text = match error.details() {
            Some(details) => format!("{} {details}", error.code()),
            None => error.code().to_owned(),
        };
        let text = outside_of_script(&text);
        let (code, details) = text.split_once(' ').unwrap_or((text, ""));
        match code {
            "NOAUTH" => Self::NoPassword,
            "WRONGPASS" => Self::WrongPassword,
            "NOPERM" => Self::NoRight(Right::in_words(details)),
            "READONLY" => Self::ReadOnly,
            "LOADING" => Self::Loading,
            "CLUSTERDOWN" => Self::ClusterDown,
            "MOVED" | "ASK" | "CROSSSLOT" => Self::IsACluster,
            "TRYAGAIN" => Self::Migrating,
            "OOM" => Self::OutOfMemory,
            "WRONGTYPE" => Self::ForeignValue(String::new()),
            "BUSY" => Self::Busy,
            "MASTERDOWN" => Self::MasterDown,
            "MISCONF" => Self::CannotSave,
            "NOREPLICAS" => Self::TooFewReplicas,
            "DENIED" => Self::Protected,
            _ => Self::from_text(text),
        }
    }

    /// The kind of an error without a code of its own.
    fn from_text(text: &str) -> Self {
        let text = text.strip_prefix("ERR ").unwrap_or(text);
        let has = |words: &str| text.contains(words);
        if text.starts_with("ACL failure in script") || text.starts_with("The user executing the script can't") {
            Self::NoRight(Right::in_words(text))
        } else if has("invalid password") {
            Self::WrongPassword
        } else if has("unauthenticated multibulk length") || has("unauthenticated bulk length") {
            // The server rejects what is longer than a login before it reads it, and closes the
            // connection.
            Self::NoPassword
        } else if has("called without any password configured") || has("AUTH, but no password is set") {
            Self::NeedlessPassword
        } else if has("DB index is out of range") || has("invalid DB index") {
            Self::NoDatabase
        } else if has("not allowed in cluster mode") {
            Self::IsACluster
        } else if has("cluster support disabled") {
            Self::NotACluster
        } else if has("max number of clients") {
            Self::TooManyClients
        } else if has("WAITAOF") {
            // The server does not know the command, or writes nothing to its disk.
            if has("appendonly is disabled") { Self::NotOnDisk } else { Self::NoWaitAof }
        } else if text.to_ascii_lowercase().starts_with("unknown ")
            || has("wrong number of arguments for 'auth'")
            || text.starts_with("syntax error")
            || text.starts_with("value is not an integer or out of range")
        {
            // The last two are from servers that know the command but not a newer option of it.
            Self::TooOld
        } else if has("Could not find scripting engine") {
            Self::NoLua
        } else if has("No such master with that name") {
            Self::UnknownMaster(String::new())
        } else if let Some((_, format)) = text.split_once("RLOCKFORMAT ") {
            let format = format.split_whitespace().next().unwrap_or_default();
            Self::OtherFormat { format: one_line(format).chars().take(20).collect(), keys: String::new() }
        } else if text.starts_with("user_script:") {
            // A script met a value that no script wrote.
            Self::ForeignValue(String::new())
        } else {
            Self::Other(one_line(text).chars().take(200).collect())
        }
    }
}

impl Right {
    fn in_words(text: &str) -> Self {
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
