//! Three Sentinels that monitor a master with one replica.

use std::time::Duration;

use super::super::{DEADLINE, wait_within};
use super::{Kind, Role, Server, Setup, wait_until};

/// The Sentinels' name for the master.
const NAME: &str = "rlock";

/// The time after which the Sentinels consider a server down: longer than any test. The Sentinels
/// cut connections themselves when they promote a server, and check for lost connections only once
/// a second. With a short time, they would promote the other server right afterwards.
const DOWN_AFTER: Duration = Duration::from_secs(600);

/// The Sentinels and the servers that they monitor.
pub struct Sentinels {
    sentinels: Vec<Server>,
    servers: [Server; 2],
}

impl Sentinels {
    /// Starts all of them, and waits until the Sentinels know the replica and each other.
    pub fn start(kind: Kind) -> Self {
        let master = Server::on_tcp(kind);
        let replica = Setup::new(kind).tcp().options(&["--replicaof", "127.0.0.1", &master.port().to_string()]).start();
        let sentinel = |_| {
            let mut setup = Setup::new(kind).tcp();
            setup.role = Role::Sentinel(format!(
                "sentinel monitor {NAME} 127.0.0.1 {} 2\n\
                 sentinel down-after-milliseconds {NAME} {}\n",
                master.port(),
                DOWN_AFTER.as_millis()
            ));
            setup.start()
        };
        let sentinels: Vec<_> = (0..3).map(sentinel).collect();
        let these = Self { sentinels, servers: [master, replica] };
        these.servers[1].until_replicated();
        these.until_ready();
        these
    }

    /// The URL of a store on the master.
    pub fn url(&self) -> String {
        let sentinels: Vec<_> = self.sentinels.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+sentinel://{}/{NAME}", sentinels.join(","))
    }

    pub fn sentinel(&self, index: usize) -> &Server {
        &self.sentinels[index]
    }

    /// A Sentinel, to be killed or restarted.
    pub fn sentinel_mut(&mut self, index: usize) -> &mut Server {
        &mut self.sentinels[index]
    }

    /// The current master, on which all Sentinels agree.
    pub fn master(&mut self) -> &mut Server {
        let port = self.master_port();
        self.servers.iter_mut().find(|server| server.port() == port).expect("the server is one of the two")
    }

    pub fn replica(&mut self) -> &mut Server {
        let port = self.master_port();
        self.servers.iter_mut().find(|server| server.port() != port).expect("the server is one of the two")
    }

    /// Kills the master and waits until the Sentinels have promoted the replica.
    pub fn failover(&mut self) {
        self.master().kill();
        self.promote();
    }

    /// Promotes the replica while the old master lives on and becomes a replica. The Sentinels need
    /// some seconds to reconfigure the old master. Until then it serves its clients, and its grants
    /// and releases are lost.
    pub fn switch(&mut self) {
        let old = self.promote();
        let old = self.servers.iter().find(|server| server.port() == old).expect("the server is one of the two");
        old.until_replica();
    }

    /// Waits until the Sentinels have promoted the replica. Returns the port of the old master.
    pub fn promote(&self) -> u16 {
        self.promote_by(&[])
    }

    /// Does the same, with more words for the Sentinel.
    pub fn promote_by(&self, words: &[&str]) -> u16 {
        let old = self.master_port();
        self.sentinels[0].ask::<()>(&[&["SENTINEL", "FAILOVER", NAME], words].concat());
        // A Sentinel that was delayed for two seconds distrusts its clock and does nothing for half
        // a minute. One that the others do not elect gives up after ten seconds, so it is asked
        // again; while it is at work, that is an error.
        wait_within(3 * DEADLINE, "the Sentinels make the replica the master", || {
            if port_at(&self.sentinels[0]) == Some(old)
                && let Ok(mut client) = super::connect(self.sentinels[0].folder())
            {
                let _ = redis::cmd("SENTINEL").arg("FAILOVER").arg(NAME).arg(words).query::<()>(&mut client);
            }
            self.sentinels.iter().all(|sentinel| port_at(sentinel).is_some_and(|port| port != old))
        });
        let new = self.servers.iter().find(|server| server.port() != old).expect("there are two");
        new.until_master();
        old
    }

    /// Makes the Sentinels name a server of another group, and kills the master.
    pub fn name_another_group(&mut self, other: &Server) {
        let port = other.port().to_string();
        self.master().kill();
        for sentinel in &self.sentinels {
            sentinel.ask::<()>(&["SENTINEL", "REMOVE", NAME]);
            sentinel.ask::<()>(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "2"]);
        }
    }

    /// The master's port, once the Sentinels agree on it.
    fn master_port(&self) -> u16 {
        let mut port = 0;
        wait_until("the Sentinels agree on the master", || {
            let ports: Vec<u16> = self.sentinels.iter().filter_map(port_at).collect();
            port = ports.first().copied().unwrap_or(0);
            !ports.is_empty() && ports.iter().all(|other| *other == port)
        });
        port
    }

    fn until_ready(&self) {
        wait_until("the Sentinels know the replica and each other", || {
            self.sentinels.iter().all(|sentinel| {
                let words: Vec<String> = sentinel.ask(&["SENTINEL", "MASTER", NAME]);
                let value = |name: &str| words.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone());
                let count = |name| value(name).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
                count("num-slaves") == 1 && count("num-other-sentinels") == 2
            })
        });
        wait_until("each Sentinel could promote the replica", || self.could_fail_over());
    }

    /// Whether each Sentinel could promote the replica, as far as the Sentinel knows now.
    pub fn could_fail_over(&self) -> bool {
        self.sentinels.iter().all(|sentinel| {
            let replicas: Vec<Vec<String>> = sentinel.ask(&["SENTINEL", "REPLICAS", NAME]);
            let says = |words: &[String], pair: [&str; 2]| words.chunks_exact(2).any(|words| words == pair);
            let is_good =
                |words: &Vec<String>| says(words, ["flags", "slave"]) && says(words, ["master-link-status", "ok"]);
            replicas.iter().any(is_good)
        })
    }
}

/// The port of the master according to a Sentinel; `None` if the Sentinel does not run.
fn port_at(sentinel: &Server) -> Option<u16> {
    let mut client = super::connect(sentinel.folder()).ok()?;
    let found: (String, u16) =
        redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(NAME).query(&mut client).ok()?;
    Some(found.1)
}
