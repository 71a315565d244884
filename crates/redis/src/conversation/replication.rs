//! Asks a server which replicas have a grant, or whose disks, and reads the answer.

use std::time::Duration;

use redis::{Cmd, Value};

use rlock_store::error::Error;
use rlock_store::handle::Replicas;
use rlock_words::Explained;

/// The copies of a grant that a server confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    /// Whether the disk of the primary has the grant, or was not asked.
    disk: bool,
    replicas: i64,
}

impl Copies {
    /// The command that waits until there are enough copies, or for `timeout`. The server counts
    /// only the writes of the connection over which the command comes.
    pub(super) fn command(wanted: Replicas, timeout: Duration) -> Cmd {
        let mut command = redis::cmd(if wanted.on_disk { "WAITAOF" } else { "WAIT" });
        if wanted.on_disk {
            command.arg(1);
        }
        // 0 stands for no limit.
        let timeout = u64::try_from(timeout.as_millis().max(1)).unwrap_or(u64::MAX);
        command.arg(wanted.count).arg(timeout);
        command
    }

    /// Reads the reply to this command.
    pub(super) fn of(reply: &Value) -> Option<Self> {
        match reply {
            Value::Int(replicas) => Some(Self { disk: true, replicas: *replicas }),
            Value::Array(numbers) => match numbers[..] {
                [Value::Int(primary), Value::Int(replicas)] => Some(Self { disk: primary > 0, replicas }),
                _ => None,
            },
            _ => None,
        }
    }

    /// The error about the copies that are missing at `server`, if there are any.
    pub(super) fn lacking(self, wanted: Replicas, server: &str) -> Option<Error> {
        let Self { disk, replicas } = self;
        let count = wanted.count;
        let words = match wanted.on_disk {
            _ if disk && replicas >= i64::from(count) => return None,
            true if !disk => Explained::new(
                "the disk of the server does not have the lock in time, so it was given back",
                "see to the disk, or raise --ttl",
            ),
            true => Explained::new(
                format!("the disks of {replicas} of {count} replicas have the lock, so it was given back"),
                "see to the replicas and their appendonly, or lower --replicas",
            ),
            false => Explained::new(
                format!("{replicas} of {count} replicas have the lock, so it was given back"),
                "see to the replicas or lower --replicas",
            ),
        };
        Some(Error::Unavailable(words.behind(format_args!("'{server}': "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON_DISK: Replicas = Replicas { count: 2, on_disk: true };

    fn copies(primary: i64, replicas: i64) -> Copies {
        Copies::of(&Value::Array(vec![Value::Int(primary), Value::Int(replicas)])).unwrap()
    }

    #[test]
    fn disks_of_the_primary_and_of_all_wanted_replicas_are_enough() {
        let lacking = |copies: Copies, wanted| copies.lacking(wanted, "h").map(|error| error.to_string());
        assert_eq!([lacking(copies(1, 2), ON_DISK), lacking(copies(1, 3), ON_DISK)], [None, None]);
        assert_eq!(lacking(copies(1, 0), Replicas { count: 0, ..ON_DISK }), None, "the disk of the primary alone");
        let starts = |copies, words| lacking(copies, ON_DISK).unwrap().starts_with(words);
        assert!(starts(copies(0, 2), "'h': the disk of the server does not have the lock"));
        assert!(starts(copies(1, 1), "'h': the disks of 1 of 2 replicas have the lock"));
    }

    #[test]
    fn reply_that_is_no_count_of_copies_is_not_read() {
        for reply in [Value::Nil, Value::Array(vec![Value::Int(1)]), Value::Array(vec![Value::Int(1), Value::Nil])] {
            assert_eq!(Copies::of(&reply), None);
        }
    }

    /// 0 would make the server wait for ever.
    #[test]
    fn limit_of_the_wait_is_never_zero() {
        let words = |wanted| String::from_utf8(Copies::command(wanted, Duration::ZERO).get_packed_command()).unwrap();
        assert!(words(ON_DISK).ends_with("WAITAOF\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n1\r\n"));
        assert!(words(Replicas { count: 2, on_disk: false }).ends_with("WAIT\r\n$1\r\n2\r\n$1\r\n1\r\n"));
    }
}
