//! The store of a scenario, and how it must look when nobody is there any more.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::support::servers::cluster::Cluster;
use super::support::servers::proxy::Proxy;
use super::support::servers::sentinels::Sentinels;
use super::support::servers::{Kind, Server, Setup};
use super::support::small_disk::SmallDisk;
use super::support::{Lab, needs, wait_until};

pub(crate) struct Site {
    /// Goes before the folder of the lab does, where its disk is.
    place: Place,
    lab: Lab,
    url: String,
}

enum Place {
    Embedded,
    Disk(SmallDisk),
    Server(Mutex<Server>, Option<Proxy>),
    Sentinels(Mutex<Sentinels>),
    Cluster(Cluster),
}

/// How many nodes a Cluster has.
pub(crate) const NODES: usize = 3;

impl Site {
    pub(crate) fn embedded() -> Option<Self> {
        let lab = Lab::new();
        Some(Self { url: lab.url(), lab, place: Place::Embedded })
    }

    /// On a disk that is soon full, if this machine lets the tests mount one.
    pub(crate) fn on_disk() -> Option<Self> {
        let lab = Lab::new();
        let disk = SmallDisk::mount(lab.folder(), "2m")?;
        Some(Self { url: format!("file://{}/store", disk.place().display()), lab, place: Place::Disk(disk) })
    }

    /// On a server of its own; none if this machine lacks the server, as in the functions below.
    pub(crate) fn on_server(setup: Setup) -> Option<Self> {
        let server = setup.start_if_present()?;
        Some(Self { lab: Lab::new(), url: server.url(), place: Place::Server(Mutex::new(server), None) })
    }

    /// On a server that is reached by a proxy.
    pub(crate) fn behind_proxy(kind: Kind) -> Option<Self> {
        let server = Setup::new(kind).start_if_present()?;
        let proxy = Proxy::new(&server);
        Some(Self { lab: Lab::new(), url: proxy.url(), place: Place::Server(Mutex::new(server), Some(proxy)) })
    }

    /// On a server whose clock [`Site::set_clock`] sets.
    pub(crate) fn with_clock(kind: Kind) -> Option<Self> {
        if !needs::programs(&["faketime"]) {
            return None;
        }
        let lab = Lab::new();
        let clock = lab.folder().join(CLOCK);
        fs::write(&clock, "+0").expect("a file can be made");
        let setup = Setup::new(kind)
            // The loader knows what $LIB is on this machine.
            .environment("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1")
            .environment("FAKETIME_TIMESTAMP_FILE", &clock)
            .environment("FAKETIME_NO_CACHE", "1")
            .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let server = setup.start_if_present()?;
        Some(Self { url: server.url(), lab, place: Place::Server(Mutex::new(server), None) })
    }

    pub(crate) fn on_sentinels(kind: Kind) -> Option<Self> {
        let sentinels = kind.is_present().then(|| Sentinels::start(kind))?;
        Some(Self { lab: Lab::new(), url: sentinels.url(), place: Place::Sentinels(Mutex::new(sentinels)) })
    }

    pub(crate) fn on_cluster(kind: Kind) -> Option<Self> {
        let cluster = kind.is_present().then(|| Cluster::start(kind, NODES))?;
        Some(Self { lab: Lab::new(), url: cluster.url(), place: Place::Cluster(cluster) })
    }

    /// For the log and for what the commands work on.
    pub(crate) fn folder(&self) -> &Path {
        self.lab.folder()
    }

    pub(crate) fn rlock(&self) -> Command {
        let mut command = self.lab.rlock([""; 0]);
        command.env("RLOCK_STORE", &self.url);
        command
    }

    pub(crate) fn disk(&self) -> Option<&SmallDisk> {
        if let Place::Disk(disk) = &self.place { Some(disk) } else { None }
    }

    pub(crate) fn server(&self) -> MutexGuard<'_, Server> {
        match &self.place {
            Place::Server(server, _) => server.lock().expect("only one thread breaks servers"),
            _ => panic!("the scenario has no single server"),
        }
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        match &self.place {
            Place::Server(_, Some(proxy)) => proxy,
            _ => panic!("the scenario has no proxy"),
        }
    }

    pub(crate) fn sentinels(&self) -> MutexGuard<'_, Sentinels> {
        match &self.place {
            Place::Sentinels(sentinels) => sentinels.lock().expect("only one thread breaks servers"),
            _ => panic!("the scenario has no Sentinels"),
        }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        match &self.place {
            Place::Cluster(cluster) => cluster,
            _ => panic!("the scenario has no Cluster"),
        }
    }

    /// Sets how far the server's clock is off, in seconds.
    pub(crate) fn set_clock(&self, seconds: i64) {
        // Whole in any instant in which the server reads it.
        let (clock, new) = (self.folder().join(CLOCK), self.folder().join("new-clock"));
        fs::write(&new, format!("{seconds:+}")).and_then(|()| fs::rename(new, clock)).expect("a file can be made");
        wait_until("libfaketime, of the package faketime, steps the server's clock", || {
            let (told, _): (i64, i64) = self.server().ask(&["TIME"]);
            let here = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
            (told - here - seconds).abs() < 10
        });
    }

    /// Waits until nobody is left, and fails if anybody has left anything.
    pub(crate) fn assert_quiet(&self) {
        wait_until("the last process of the scenario ends", || !self.is_peopled());
        wait_until("nobody holds or waits", || {
            // A server may have a replica to make a master of.
            self.rlock().arg("cleanup").output().is_ok_and(|ran| ran.status.success()) && self.listing() == json!([])
        });
        match &self.place {
            Place::Embedded | Place::Disk(_) => {}
            Place::Server(server, _) => assert_server_quiet(&server.lock().expect("nobody breaks it now")),
            Place::Sentinels(sentinels) => {
                assert_server_quiet(sentinels.lock().expect("nobody breaks them now").master())
            }
            Place::Cluster(cluster) => (0..NODES).for_each(|node| assert_server_quiet(cluster.node(node))),
        }
    }

    /// Whether any process has the log of the scenario in its environment, as all that it started do.
    fn is_peopled(&self) -> bool {
        let mark = self.folder().join("log").display().to_string().into_bytes();
        let processes = fs::read_dir("/proc").expect("there is a /proc").filter_map(Result::ok);
        let environments = processes.filter_map(|process| fs::read(process.path().join("environ")).ok());
        environments.into_iter().any(|text| text.windows(mark.len()).any(|part| part == mark))
    }

    fn listing(&self) -> serde_json::Value {
        let ran = self.rlock().args(["inspect", "--json"]).output().expect("rlock can be started");
        let listing: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
        listing["resources"].clone()
    }
}

/// The file that says how far the clock is off.
const CLOCK: &str = "clock";

/// Fails if a server has more than idle resources, which go by themselves, or anybody else is connected or subscribed.
fn assert_server_quiet(server: &Server) {
    let keys: Vec<String> = server.ask(&["KEYS", "*"]);
    for key in keys {
        let left: i64 = server.ask(&["PTTL", &key]);
        assert!(key.ends_with(":d") && left != -1, "'{key}' was left behind, to live for {left} ms");
    }
    wait_until("nobody is connected any more", || {
        let clients: String = server.ask(&["CLIENT", "LIST"]);
        // Beside this test there may be replicas and Sentinels.
        let others = |line: &&str| !line.contains(" cmd=client") && !line.contains(" name=sentinel-");
        let is_replica = |line: &&str| ["replconf", "psync"].iter().any(|name| line.contains(&format!(" cmd={name}")));
        clients.lines().filter(|line| others(line) && !is_replica(line)).count() == 0
    });
    let channels: Vec<String> = server.ask(&["PUBSUB", "CHANNELS", "*:w:*"]);
    assert!(channels.is_empty(), "somebody is subscribed to {channels:?}");
}
