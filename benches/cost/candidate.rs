//! The candidates that run a command under a lock: rlock on each of its stores, its peers, and the
//! command without a lock.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::etcd::{Etcd, etcdctl};
use super::options::Effort;
use super::server::Redis;
use super::wrappers;
use rlock_testkit::servers::postgres::Postgres;

/// The names of the candidates in the tables.
pub(crate) const NOTHING: &str = "no lock";
pub(crate) const EMBEDDED: &str = "rlock, embedded";
pub(crate) const PACKAGED: &str = "rlock as packaged, embedded";
pub(crate) const REDIS_TCP: &str = "rlock, Redis by TCP";
pub(crate) const REDIS_UNIX: &str = "rlock, Redis by unix socket";
pub(crate) const POSTGRES: &str = "rlock, PostgreSQL by unix socket";
pub(crate) const PSQL: &str = "psql, select 1";
pub(crate) const BATON: &str = "a message and a PING by TCP";
pub(crate) const FLOCK: &str = "flock";
pub(crate) const ETCDCTL: &str = "etcdctl lock";
pub(crate) const SEM: &str = "sem of GNU parallel";

/// The name of the lock that all candidates take.
const LOCK: &str = "k";

/// One way to run a command under a lock.
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    way: Way,
}

enum Way {
    Nothing,
    Rlock { program: PathBuf, store: String, namespace: &'static str },
    Baton { url: String },
    Flock { file: PathBuf },
    Etcdctl { endpoint: String },
    Sem { home: PathBuf },
    Psql { url: String },
}

impl Candidate {
    /// The command without a lock.
    pub(crate) fn nothing() -> Self {
        Self { name: NOTHING, way: Way::Nothing }
    }

    /// rlock with its embedded store.
    pub(crate) fn embedded(program: &Path, folder: &Path) -> Self {
        Self::rlock(EMBEDDED, program, format!("file://{}/store", folder.display()), "own")
    }

    /// The program of a package, with its embedded store.
    pub(crate) fn packaged(program: &Path, folder: &Path) -> Self {
        Self::rlock(PACKAGED, program, format!("file://{}/packaged", folder.display()), "own")
    }

    /// rlock on Redis by TCP.
    pub(crate) fn redis_tcp(program: &Path, redis: &Redis) -> Self {
        Self::rlock(REDIS_TCP, program, redis.tcp(), "tcp")
    }

    /// rlock on Redis by unix socket.
    pub(crate) fn redis_unix(program: &Path, redis: &Redis) -> Self {
        Self::rlock(REDIS_UNIX, program, redis.unix(), "unix")
    }

    /// rlock on PostgreSQL by unix socket.
    pub(crate) fn postgres(program: &Path, server: &Postgres) -> Self {
        Self::rlock(POSTGRES, program, server.url(), "unix")
    }

    /// A query of psql on the same socket, in place of the command.
    pub(crate) fn psql(server: &Postgres) -> Self {
        Self { name: PSQL, way: Way::Psql { url: server.url() } }
    }

    fn rlock(name: &'static str, program: &Path, store: String, namespace: &'static str) -> Self {
        Self { name, way: Way::Rlock { program: program.to_owned(), store, namespace } }
    }

    /// Commands one after another by messages through Redis, without a lock.
    pub(crate) fn baton(redis: &Redis) -> Self {
        Self { name: BATON, way: Way::Baton { url: redis.tcp() } }
    }

    pub(crate) fn flock(folder: &Path) -> Self {
        Self { name: FLOCK, way: Way::Flock { file: folder.join("flock") } }
    }

    /// The lock of etcdctl.
    pub(crate) fn etcdctl(etcd: &Etcd) -> Self {
        Self { name: ETCDCTL, way: Way::Etcdctl { endpoint: etcd.endpoint().to_owned() } }
    }

    /// The semaphore of GNU parallel, with one place.
    pub(crate) fn sem(folder: &Path) -> Self {
        Self { name: SEM, way: Way::Sem { home: folder.join("home") } }
    }

    /// Makes a command that runs under the lock.
    pub(crate) fn run(&self, words: &[&str]) -> Command {
        let mut command = match &self.way {
            Way::Nothing => Command::new(words[0]),
            Way::Rlock { program, store, namespace } => rlock(program, store, namespace, &["exec", LOCK, "--"]),
            Way::Baton { url } => wrappers::baton(url, &[]),
            Way::Flock { file } => with(Command::new("flock"), &[text(file)]),
            Way::Etcdctl { endpoint } => with(etcdctl(endpoint), &["lock", LOCK, "--"]),
            Way::Psql { url } => psql(url),
            Way::Sem { home } => {
                let mut command = with(Command::new("sem"), &["--fg", "-j1", "--id", LOCK]);
                // sem keeps its state in HOME, and prints a citation notice at each start.
                command.env("HOME", home).stderr(Stdio::null());
                command
            }
        };
        let rest = match self.way {
            Way::Nothing => &words[1..],
            Way::Psql { .. } => &[],
            _ => words,
        };
        command.args(rest).stdin(Stdio::null());
        command
    }

    /// Returns an error if the candidate does not work on this machine.
    pub(crate) fn works(&self) -> Result<(), String> {
        if let Way::Sem { home } = &self.way {
            fs::create_dir_all(home).expect("a folder can be made");
        }
        let output = self.run(&["true"]).output().map_err(|error| format!("{}: {error}", self.name))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let problem =
            || format!("{}: {}, {}", self.name, output.status, said.lines().next().unwrap_or("nothing was said"));
        output.status.success().then_some(()).ok_or_else(problem)
    }

    /// Returns the number of waiters, or none if the candidate cannot list them.
    pub(crate) fn waiting(&self) -> Option<usize> {
        match &self.way {
            Way::Nothing | Way::Baton { .. } | Way::Sem { .. } | Way::Psql { .. } => None,
            Way::Rlock { program, store, namespace } => {
                let mut inspect = rlock(program, store, namespace, &["inspect", "--json", LOCK]);
                let listing = inspect.output().expect("the program can be started").stdout;
                let listing: serde_json::Value = serde_json::from_slice(&listing).expect("inspect --json prints JSON");
                listing["resources"][0]["waiters"].as_array().map(Vec::len)
            }
            Way::Flock { file } => {
                let inode = format!(":{} ", fs::metadata(file).ok()?.ino());
                let locks = fs::read_to_string("/proc/locks").ok()?;
                Some(locks.lines().filter(|line| line.contains("->") && line.contains(&inode)).count())
            }
            Way::Etcdctl { endpoint } => {
                let mut list = with(etcdctl(endpoint), &["get", &format!("{LOCK}/"), "--prefix", "--keys-only"]);
                let keys = list.stdout(Stdio::piped()).output().expect("the program can be started").stdout;
                // The first key is that of the holder.
                let keys = String::from_utf8_lossy(&keys).lines().filter(|line| !line.is_empty()).count();
                Some(keys.saturating_sub(1))
            }
        }
    }

    /// Returns how many waiters the machine can run in a reasonable time.
    pub(crate) fn most_waiters(&self, effort: Effort) -> usize {
        match self.way {
            // Beyond its first waiters, a queue in PostgreSQL looks now and then.
            _ if self.name == POSTGRES => effort.pick(50, 100),
            Way::Nothing | Way::Rlock { .. } | Way::Flock { .. } => usize::MAX,
            Way::Baton { .. } => 100,
            Way::Psql { .. } => 0,
            Way::Etcdctl { .. } => effort.pick(50, 100),
            Way::Sem { .. } => effort.pick(10, 100),
        }
    }

    /// Whether this is the command without a lock.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.way, Way::Nothing)
    }

    /// Whether a start takes so long that fewer starts are measured.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self.way, Way::Etcdctl { .. } | Way::Sem { .. })
    }

    /// Whether the candidate uses the Redis server.
    pub(crate) fn is_on_redis(&self) -> bool {
        matches!(&self.way, Way::Rlock { store, .. } if store.starts_with("redis"))
    }
}

/// A query of the psql that came with the server of the tests.
fn psql(url: &str) -> Command {
    let folder = PathBuf::from(std::env::var_os("RLOCK_POSTGRES").expect("the server was started from there"));
    let mut command = with(Command::new(folder.join("psql")), &["-X", "-At", "-c", "select 1", url]);
    if let Some(libraries) = std::env::var_os("RLOCK_LIBRARIES") {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.stdout(Stdio::null());
    command
}

/// rlock without the variables of an rlock around the bench.
fn rlock(program: &Path, store: &str, namespace: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RLOCK_")) {
        command.env_remove(name);
    }
    command.env("RLOCK_STORE", store).env("RLOCK_NAMESPACE", namespace);
    with(command, words)
}

pub(crate) fn with(mut command: Command, words: &[&str]) -> Command {
    command.args(words);
    command
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of a bench are text")
}
