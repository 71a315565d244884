//! The scripts, as the build script puts them together from lua/: the prelude and one operation, named by their SHA-1.

/// A script and the name by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    /// The source, in parts that most scripts share.
    parts: [&'static str; 4],
    sha1: &'static str,
}

impl Script {
    /// The command that runs it where the server knows it already.
    pub(super) fn evalsha(&self, keys: &[String], arguments: &[Vec<u8>]) -> redis::Cmd {
        command("EVALSHA", self.sha1, keys, arguments)
    }

    /// The command that runs it and teaches it to the server.
    pub(super) fn eval(&self, keys: &[String], arguments: &[Vec<u8>]) -> redis::Cmd {
        command("EVAL", &self.parts.concat(), keys, arguments)
    }
}

fn command(name: &str, script: &str, keys: &[String], arguments: &[Vec<u8>]) -> redis::Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    command
}

include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
