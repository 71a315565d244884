//! A Redis server for the bench, and its command counters.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::daemon::Daemon;
use super::lab::free_port;

/// A server that listens by TCP and on a unix socket, and writes nothing to the disk.
pub(crate) struct Redis {
    port: u16,
    socket: PathBuf,
    daemon: Daemon,
}

impl Redis {
    /// Returns the server that `RLOCK_REDIS_7` names, as in the tests, or the installed server.
    pub(crate) fn program() -> String {
        env::var("RLOCK_REDIS_7").unwrap_or_else(|_| "redis-server".into())
    }

    /// Starts a server in a new folder within this one.
    pub(crate) fn start(program: &str, folder: &Path) -> Result<Self, String> {
        Self::start_with(program, folder, free_port(), &[])
    }

    /// Starts a node of a Cluster that does not know the others yet.
    pub(crate) fn start_node(program: &str, folder: &Path) -> Result<Self, String> {
        // The nodes talk to each other on a port that is higher by 10,000.
        let port = std::iter::repeat_with(free_port).find(|port| *port < u16::MAX - 10_000).expect("a port is free");
        Self::start_with(program, folder, port, &["--cluster-enabled", "yes"])
    }

    fn start_with(program: &str, folder: &Path, port: u16, options: &[&str]) -> Result<Self, String> {
        let folder = tempfile::tempdir_in(folder).expect("a folder can be made").keep();
        let socket = folder.join("socket");
        let at = port.to_string();
        let path = socket.to_str().expect("paths of a bench are text").to_owned();
        let words =
            [program, "--bind", "127.0.0.1", "--port", &at, "--unixsocket", &path, "--save", "", "--appendonly", "no"];
        let words: Vec<_> = words.iter().chain(options).map(|word| (*word).to_owned()).collect();
        let client = redis::Client::open(format!("redis+unix://{path}")).expect("the URL is valid");
        let ready =
            || client.get_connection().is_ok_and(|mut client| redis::cmd("PING").query::<()>(&mut client).is_ok());
        Ok(Self { port, socket, daemon: Daemon::start(&words, &folder, ready)? })
    }

    /// Returns the TCP port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the processor time that the server has taken so far. It does not grow while other
    /// processes have the processors.
    pub(crate) fn processor_time(&self) -> Duration {
        let path = format!("/proc/{}/schedstat", self.daemon.id());
        let text = fs::read_to_string(path).expect("the kernel counts the time of each process");
        Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number"))
    }

    /// Returns the URL of a store on the server, by TCP.
    pub(crate) fn tcp(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the URL of a store on the server, by its unix socket.
    pub(crate) fn unix(&self) -> String {
        format!("redis+unix://{}", self.socket.display())
    }

    /// Returns a connection by TCP.
    pub(crate) fn client(&self) -> redis::Connection {
        let client = redis::Client::open(self.tcp()).expect("the URL is valid");
        client.get_connection().expect("the server is up")
    }
}

/// The server's counters: for each command, including commands in scripts, the number of calls and
/// the total microseconds.
pub(crate) struct Counts(BTreeMap<String, (f64, f64)>);

impl Counts {
    /// Reads the counters since the start of the server.
    pub(crate) fn of(client: &mut redis::Connection) -> Self {
        let text: String = redis::cmd("INFO").arg("commandstats").query(client).expect("the server answers");
        let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
        Self(lines.map(|(name, fields)| (name.to_owned(), (field(fields, "calls"), field(fields, "usec")))).collect())
    }

    /// Subtracts earlier counters. The command that reads the counters does not count.
    pub(crate) fn since(mut self, earlier: &Self) -> Self {
        self.0.remove("info");
        for (name, (calls, usec)) in &mut self.0 {
            let (before, spent) = earlier.0.get(name).copied().unwrap_or_default();
            *calls -= before;
            *usec -= spent;
        }
        self
    }

    /// Returns the number of all calls.
    pub(crate) fn calls(&self) -> f64 {
        self.0.values().map(|(calls, _)| calls).sum()
    }

    /// Returns the number of calls of one command.
    pub(crate) fn calls_of(&self, command: &str) -> f64 {
        self.0.get(command).map_or(0.0, |(calls, _)| *calls)
    }

    /// Returns the microseconds of these commands. The time of `evalsha` includes the commands that
    /// its script calls.
    pub(crate) fn usec(&self, commands: &[&str]) -> f64 {
        commands.iter().filter_map(|command| self.0.get(*command)).map(|(_, usec)| usec).sum()
    }
}

fn field(fields: &str, name: &str) -> f64 {
    let value = fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    value.expect("all servers report the field").parse().expect("a number")
}
