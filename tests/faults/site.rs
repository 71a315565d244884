//! The store of a scenario, and the check that the store is idle at the end.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::checkers::{Entry, RING};
use super::command;
use rlock_testkit::servers::cluster::Cluster;
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::servers::proxy::Proxy;
use rlock_testkit::servers::sentinels::Sentinels;
use rlock_testkit::servers::{Kind, Server, Setup};
use rlock_testkit::small_disk::SmallDisk;
use rlock_testkit::{Lab, RLOCK, needs, wait_until};

pub(crate) struct Site {
    /// The first field, because a disk must be unmounted before the lab removes its folder.
    backend: Backend,
    lab: Lab,
    url: String,
}

enum Backend {
    Embedded,
    Disk(SmallDisk),
    Server(Mutex<Server>, Option<Proxy>),
    Sentinels(Mutex<Sentinels>),
    Cluster(Cluster),
    Postgres(Postgres),
}

/// The number of nodes of a Cluster.
pub(crate) const NODES: usize = 3;

impl Site {
    pub(crate) fn embedded() -> Option<Self> {
        let lab = Lab::new();
        Some(Self { url: lab.url(), lab, backend: Backend::Embedded })
    }

    /// On a disk of 2 MB, if this machine allows the tests to mount one.
    pub(crate) fn on_disk() -> Option<Self> {
        let lab = Lab::new();
        let disk = SmallDisk::mount(lab.folder(), "2m")?;
        Some(Self { url: format!("file://{}/store", disk.place().display()), lab, backend: Backend::Disk(disk) })
    }

    /// On a server of its own. Returns none if this machine lacks the server, as the functions
    /// below.
    pub(crate) fn on_server(setup: Setup) -> Option<Self> {
        let server = setup.start_if_present()?;
        Some(Self { lab: Lab::new(), url: server.url(), backend: Backend::Server(Mutex::new(server), None) })
    }

    /// On a server behind a proxy.
    pub(crate) fn behind_proxy(kind: Kind) -> Option<Self> {
        let server = Setup::new(kind).start_if_present()?;
        let proxy = Proxy::new(&server);
        Some(Self { lab: Lab::new(), url: proxy.url(), backend: Backend::Server(Mutex::new(server), Some(proxy)) })
    }

    /// On a server whose clock [`Site::set_clock`] sets.
    pub(crate) fn with_clock(kind: Kind) -> Option<Self> {
        if !needs::programs(&["faketime"]) {
            return None;
        }
        let lab = Lab::new();
        let clock = lab.folder().join(CLOCK);
        fs::write(&clock, "+0").expect("the file is written");
        let setup = Setup::new(kind)
            // The dynamic loader expands $LIB.
            .environment("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1")
            .environment("FAKETIME_TIMESTAMP_FILE", &clock)
            .environment("FAKETIME_NO_CACHE", "1")
            .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let server = setup.start_if_present()?;
        Some(Self { url: server.url(), lab, backend: Backend::Server(Mutex::new(server), None) })
    }

    pub(crate) fn on_sentinels(kind: Kind) -> Option<Self> {
        let sentinels = kind.is_present().then(|| Sentinels::start(kind))?;
        Some(Self { lab: Lab::new(), url: sentinels.url(), backend: Backend::Sentinels(Mutex::new(sentinels)) })
    }

    pub(crate) fn on_cluster(kind: Kind) -> Option<Self> {
        let cluster = kind.is_present().then(|| Cluster::start(kind, NODES))?;
        Some(Self { lab: Lab::new(), url: cluster.url(), backend: Backend::Cluster(cluster) })
    }

    pub(crate) fn on_postgres() -> Option<Self> {
        let server = Postgres::is_present().then(|| Postgres::start(&[]))?;
        Some(Self { lab: Lab::new(), url: server.url(), backend: Backend::Postgres(server) })
    }

    /// The folder for the log and for the files of the commands.
    pub(crate) fn folder(&self) -> &Path {
        self.lab.folder()
    }

    /// The program under test, for questions about the store.
    pub(crate) fn rlock(&self) -> Command {
        self.with_store(RLOCK.as_ref())
    }

    /// The program under test or the other one.
    pub(crate) fn any_rlock(&self) -> Command {
        self.with_store(&command::program())
    }

    fn with_store(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.lab.settle(&mut command);
        command.env("RLOCK_STORE", &self.url).env("RLOCK_HISTORY", RING.to_string());
        command
    }

    pub(crate) fn disk(&self) -> Option<&SmallDisk> {
        if let Backend::Disk(disk) = &self.backend { Some(disk) } else { None }
    }

    pub(crate) fn server(&self) -> MutexGuard<'_, Server> {
        match &self.backend {
            Backend::Server(server, _) => server.lock().expect("no thread panics with the lock"),
            _ => panic!("the scenario has no single server"),
        }
    }

    pub(crate) fn postgres(&self) -> &Postgres {
        match &self.backend {
            Backend::Postgres(server) => server,
            _ => panic!("the scenario has no PostgreSQL"),
        }
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        match &self.backend {
            Backend::Server(_, Some(proxy)) => proxy,
            _ => panic!("the scenario has no proxy"),
        }
    }

    pub(crate) fn sentinels(&self) -> MutexGuard<'_, Sentinels> {
        match &self.backend {
            Backend::Sentinels(sentinels) => sentinels.lock().expect("no thread panics with the lock"),
            _ => panic!("the scenario has no Sentinels"),
        }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        match &self.backend {
            Backend::Cluster(cluster) => cluster,
            _ => panic!("the scenario has no Cluster"),
        }
    }

    /// Sets the offset of the server's clock in seconds.
    pub(crate) fn set_clock(&self, seconds: i64) {
        // A rename is atomic, so the server never reads a partial file.
        let (clock, new) = (self.folder().join(CLOCK), self.folder().join("new-clock"));
        fs::write(&new, format!("{seconds:+}")).and_then(|()| fs::rename(new, clock)).expect("the file is written");
        wait_until("libfaketime, of the package faketime, steps the server's clock", || {
            let (there, _): (i64, i64) = self.server().ask(&["TIME"]);
            let here = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
            (there - here - seconds).abs() < 10
        });
    }

    /// Waits until all processes of the runs have ended and nothing is held.
    pub(crate) fn assert_free(&self) {
        wait_until("the last process of the scenario ends", || !self.has_processes());
        wait_until("no session holds or waits", || {
            // The call fails while a failover is under way.
            self.rlock().arg("cleanup").output().is_ok_and(|ran| ran.status.success()) && self.listing() == json!([])
        });
    }

    /// Asserts that the store is idle after the end of all processes.
    pub(crate) fn assert_idle(&self) {
        match &self.backend {
            Backend::Embedded | Backend::Disk(_) => {}
            Backend::Server(server, _) => assert_server_idle(&server.lock().expect("no thread panics with the lock")),
            Backend::Sentinels(sentinels) => {
                assert_server_idle(sentinels.lock().expect("no thread panics with the lock").master())
            }
            Backend::Cluster(cluster) => (0..NODES).for_each(|node| assert_server_idle(cluster.node(node))),
            Backend::Postgres(server) => wait_until("no rlock is connected", || {
                server.ask("select count(*) from pg_stat_activity where application_name like 'rlock%'") == "0"
            }),
        }
    }

    /// The entries of all resources, without the skips.
    pub(crate) fn history(&self) -> Vec<Entry> {
        let ran = self.rlock().args(["history", "--json"]).output().expect("rlock starts");
        let found: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("rlock history prints JSON");
        let resources = found["resources"].as_array().expect("a list of resources");
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let entries = resources.iter().flat_map(|resource| {
            let entries = resource["entries"].as_array().expect("a list of entries");
            entries.iter().map(|entry| Entry {
                resource: text(&resource["name"]),
                owner: text(&entry["owner"]),
                outcome: text(&entry["outcome"]),
                exit: entry["exit"].as_i64().map(|code| code as i32),
            })
        });
        entries.collect()
    }

    /// Whether a process has the path of this log in its environment, as all processes of the
    /// scenario do.
    fn has_processes(&self) -> bool {
        let mark = self.folder().join("log").display().to_string().into_bytes();
        let processes = fs::read_dir("/proc").expect("there is a /proc").filter_map(Result::ok);
        let environments = processes.filter_map(|process| fs::read(process.path().join("environ")).ok());
        environments.into_iter().any(|text| text.windows(mark.len()).any(|part| part == mark))
    }

    /// The resources that `rlock inspect` lists.
    pub(crate) fn listing(&self) -> serde_json::Value {
        let ran = self.rlock().args(["inspect", "--json"]).output().expect("rlock starts");
        let listing: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
        listing["resources"].clone()
    }
}

/// The file with the offset of the server's clock.
const CLOCK: &str = "clock";

/// Asserts that a server has only the state of idle resources, which expire, and that no rlock is
/// connected or subscribed.
fn assert_server_idle(server: &Server) {
    let keys: Vec<String> = server.ask(&["KEYS", "*"]);
    for key in keys {
        let left: i64 = server.ask(&["PTTL", &key]);
        assert!(key.ends_with(['s', 'h']) && left != -1, "'{key}' was left behind with a PTTL of {left} ms");
    }
    wait_until("no rlock is connected", || {
        let clients: String = server.ask(&["CLIENT", "LIST"]);
        // The connections of this test, of replicas and of Sentinels do not count.
        let others = |line: &&str| !line.contains(" cmd=client") && !line.contains(" name=sentinel-");
        let is_replica = |line: &&str| ["replconf", "psync"].iter().any(|name| line.contains(&format!(" cmd={name}")));
        clients.lines().filter(|line| others(line) && !is_replica(line)).count() == 0
    });
    let channels: Vec<String> = server.ask(&["PUBSUB", "CHANNELS", "*:w:*"]);
    assert!(channels.is_empty(), "a client is subscribed to {channels:?}");
}
