//! Holds the scripts that the build script assembles from lua/. Most scripts are the prelude and
//! one operation.

/// A script with its SHA-1, by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    /// The source without the fast path, in parts that several scripts share.
    parts: &'static [&'static str],
    /// The fast path, which stands behind the first two parts.
    fast_path: &'static str,
    sha1: &'static str,
}

impl Script {
    /// The SHA-1 of the source.
    pub(super) fn sha1(&self) -> &'static str {
        self.sha1
    }

    /// The command for a server that knows the script.
    pub(super) fn evalsha(&self, keys: &[String], arguments: &[Vec<u8>]) -> redis::Cmd {
        command("EVALSHA", self.sha1, keys, arguments)
    }

    /// The command for a server that does not know it yet.
    pub(super) fn eval(&self, keys: &[String], arguments: &[Vec<u8>]) -> redis::Cmd {
        let (first, rest) = self.parts.split_at(self.parts.len().min(2));
        command("EVAL", &[first, &[self.fast_path], rest].concat().concat(), keys, arguments)
    }

    /// The command without the fast path.
    pub(super) fn eval_general(&self, keys: &[String], arguments: &[Vec<u8>]) -> redis::Cmd {
        command("EVAL", &self.parts.concat(), keys, arguments)
    }
}

fn command(name: &str, script: &str, keys: &[String], arguments: &[Vec<u8>]) -> redis::Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    command
}

include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
