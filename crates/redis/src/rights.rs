//! Finds the right that a user lacks, by commands in forms that change nothing: Redis 6.2 and 7.0
//! do not tell which command of a script they refuse.

use redis::Cmd;

use super::client::Client;
use super::codec::{Setting, Wake};
use super::failure::{ErrorKind, Failure, Right};

/// The commands that every user needs, as words. KEY stands for a key that nobody
/// uses, and CHANNEL for a channel that nobody hears. Two are missing, which have no harmless form:
/// LPUSH and SUBSCRIBE, of which the server tells the name itself.
const HARMLESS: [&str; 19] = [
    "eval -- 0",
    "evalsha 0000000000000000000000000000000000000000 0",
    "get KEY",
    "set KEY x XX KEEPTTL",
    "exists KEY",
    "time",
    "hmget KEY x",
    "hlen KEY",
    // A field without a value, so the server refuses it after it has looked at the rights.
    "hset KEY x x x",
    "hdel KEY x",
    "zadd KEY XX 0 x",
    "zrem KEY x",
    "zrange KEY 0 0",
    "zcount KEY 0 0",
    "zlexcount KEY - +",
    "zscore KEY x",
    "persist KEY",
    "pexpire KEY 1",
    "publish CHANNEL x",
];

impl Client {
    /// Names the command of a script that the user may not run, if the server has not named it.
    pub(super) fn with_right(&mut self, failure: Failure) -> Failure {
        if *failure.kind() != ErrorKind::NoRight(Right::Command(None)) {
            return failure;
        }
        for words in HARMLESS {
            let command = self.harmless(words);
            match self.command(command) {
                Err(refused) if matches!(refused.kind(), ErrorKind::NoRight(Right::Command(_))) => return refused,
                Err(unknown) if unknown.is_transient() => return failure,
                Ok(_) | Err(_) => {}
            }
        }
        // The one that can't be tried is left.
        self.failure(ErrorKind::NoRight(Right::Command(Some("lpush".to_owned()))))
    }

    fn harmless(&self, words: &str) -> Cmd {
        let Setting { keyspace, wake, .. } = self.setting();
        // A Cluster has a command of its own.
        let words = if *wake == Wake::ShardPublish { words.replace("publish", "spublish") } else { words.to_owned() };
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap_or_default());
        for word in words {
            match word {
                "KEY" => command.arg(keyspace.unused(":x")),
                "CHANNEL" => command.arg(keyspace.unused(":w:")),
                word => command.arg(word),
            };
        }
        command
    }
}
