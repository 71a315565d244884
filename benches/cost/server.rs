//! A Redis server of the bench's own, and what it counts.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::daemon::Daemon;
use super::lab::free_port;

/// A server that listens by TCP and on a unix socket; nothing is written to the disk.
pub(crate) struct Redis {
    port: u16,
    socket: PathBuf,
    _daemon: Daemon,
}

impl Redis {
    /// The server that `RLOCK_REDIS_7` names, as in the tests, or the one that is installed.
    pub(crate) fn program() -> String {
        env::var("RLOCK_REDIS_7").unwrap_or_else(|_| "redis-server".into())
    }

    /// Starts it.
    pub(crate) fn start(folder: &Path) -> Result<Self, String> {
        let program = Self::program();
        let folder = folder.join("redis");
        fs::create_dir(&folder).expect("a folder can be made");
        let (port, socket) = (free_port(), folder.join("socket"));
        let at = port.to_string();
        let path = socket.to_str().expect("paths of a bench are text").to_owned();
        let words =
            [&program, "--bind", "127.0.0.1", "--port", &at, "--unixsocket", &path, "--save", "", "--appendonly", "no"];
        let words = words.map(str::to_owned);
        let client = redis::Client::open(format!("redis+unix://{path}")).expect("it is a URL");
        let ready =
            || client.get_connection().is_ok_and(|mut client| redis::cmd("PING").query::<()>(&mut client).is_ok());
        Ok(Self { port, socket, _daemon: Daemon::start(&words, &folder, ready)? })
    }

    /// The URL of a store on it, by TCP.
    pub(crate) fn tcp(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The URL of a store on it, by its unix socket.
    pub(crate) fn unix(&self) -> String {
        format!("redis+unix://{}", self.socket.display())
    }

    /// A connection by TCP.
    pub(crate) fn client(&self) -> redis::Connection {
        let client = redis::Client::open(self.tcp()).expect("it is a URL");
        client.get_connection().expect("the server is up")
    }
}

/// What a server has done: by command, those called by scripts included, how often and how many microseconds in all.
pub(crate) struct Counts(BTreeMap<String, (f64, f64)>);

impl Counts {
    /// Since the server was started.
    pub(crate) fn of(client: &mut redis::Connection) -> Self {
        let text: String = redis::cmd("INFO").arg("commandstats").query(client).expect("the server answers");
        let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
        Self(lines.map(|(name, fields)| (name.to_owned(), (field(fields, "calls"), field(fields, "usec")))).collect())
    }

    /// What was done since then. Asking for the counts does not count.
    pub(crate) fn since(mut self, earlier: &Self) -> Self {
        self.0.remove("info");
        for (name, (calls, usec)) in &mut self.0 {
            let (before, spent) = earlier.0.get(name).copied().unwrap_or_default();
            *calls -= before;
            *usec -= spent;
        }
        self
    }

    /// How many commands there were.
    pub(crate) fn calls(&self) -> f64 {
        self.0.values().map(|(calls, _)| calls).sum()
    }

    /// How many there were of one.
    pub(crate) fn calls_of(&self, command: &str) -> f64 {
        self.0.get(command).map_or(0.0, |(calls, _)| *calls)
    }

    /// How many microseconds these took. What a script calls is part of `evalsha` as well.
    pub(crate) fn usec(&self, commands: &[&str]) -> f64 {
        commands.iter().filter_map(|command| self.0.get(*command)).map(|(_, usec)| usec).sum()
    }
}

fn field(fields: &str, name: &str) -> f64 {
    let value = fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    value.expect("all servers tell it").parse().expect("a number")
}
