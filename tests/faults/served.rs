//! The `rlock serve`s of a scenario, and the faults that concern them and their clients.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::Signal;

use super::command::{GRACE, TTL};
use super::nemesis::{Fault, sleep_between};
use super::site::Site;
use super::stage::Stage;
use rlock_testkit::random::Random;
use rlock_testkit::serve::{Client, LockServer};

/// The servers, and the clients that currently run.
pub(crate) struct Servers {
    servers: Vec<Mutex<Server>>,
    clients: Mutex<Vec<(String, Sender<Order>)>>,
}

struct Server {
    serve: LockServer,
    /// The runs of the clients that have connected to this process.
    runs: Vec<String>,
}

/// What a client does as soon as it learns of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// The client dies, so that the kernel closes its connection.
    Die,
    /// The connection breaks.
    Break,
    /// The client does nothing for a while.
    Stop(Duration),
}

impl Servers {
    pub(crate) fn start(site: &Site, count: usize) -> Self {
        let server = |number| Mutex::new(Server { serve: start(site, number, 0), runs: Vec::new() });
        Self { servers: (0..count).map(server).collect(), clients: Mutex::default() }
    }

    /// Connects a client of this run to a random server, and returns the number of the server.
    pub(crate) fn connect(&self, run: &str, orders: Sender<Order>, random: &mut Random) -> (usize, Client) {
        let number = random.below(self.servers.len() as u64) as usize;
        let mut server = self.server(number);
        server.runs.push(run.to_owned());
        let connection = server.serve.tcp();
        self.clients().push((run.to_owned(), orders));
        (number, connection)
    }

    /// Adds a run of a client that is connected to a server.
    pub(crate) fn add(&self, server: usize, run: &str) {
        self.server(server).runs.push(run.to_owned());
    }

    /// Removes a run that has ended.
    pub(crate) fn remove(&self, server: usize, run: &str) {
        self.server(server).runs.retain(|other| other != run);
        self.clients().retain(|(other, _)| other != run);
    }

    /// Whether no client is connected.
    pub(crate) fn are_idle(&self) -> bool {
        self.clients().is_empty()
    }

    /// Ends all servers.
    ///
    /// # Panics
    /// If a server without clients fails, or does not end.
    pub(crate) fn end(&self) {
        for number in 0..self.servers.len() {
            let serve = &mut self.server(number).serve;
            serve.signal(Signal::TERM);
            assert!(serve.wait().success(), "rlock serve fails:\n{}", serve.log().join("\n"));
        }
    }

    fn server(&self, number: usize) -> MutexGuard<'_, Server> {
        self.servers[number].lock().expect("no thread panics with the lock")
    }

    fn clients(&self) -> MutexGuard<'_, Vec<(String, Sender<Order>)>> {
        self.clients.lock().expect("no thread panics with the lock")
    }
}

/// Starts a server on this port, or on a free one if the port is 0.
fn start(site: &Site, number: usize, port: u16) -> LockServer {
    let path = site.folder().join(format!("serve-{number}.sock"));
    let mut rlock = site.any_rlock();
    rlock.args(["serve", "-v", "--listen", &format!("127.0.0.1:{port}"), "--listen"]);
    rlock.arg(format!("unix:{}", path.display()));
    rlock.args([format!("--ttl={}ms", TTL.as_millis()), format!("--grace={}ms", GRACE.as_millis())]);
    LockServer::of(&mut rlock, path)
}

/// Kills a server and starts another one in its place. The holds of its clients end at the instant
/// of the kill, although the clients learn of it only when they read the end of their connections.
pub(crate) const KILL_SERVE: Fault = Fault {
    name: "rlock serve killed",
    covered: true,
    inject: |stage, random| {
        let servers = &stage.servers;
        let number = random.below(servers.servers.len() as u64) as usize;
        // Nobody connects while the server is locked.
        let mut server = servers.server(number);
        server.runs.drain(..).for_each(|run| stage.log_of_run(&run, "freed"));
        server.serve.kill();
        sleep_between(random, 0, 200);
        let port = server.serve.port();
        server.serve = start(&stage.site, number, port);
        true
    },
};

pub(crate) const KILL_CLIENT: Fault =
    Fault { name: "client killed", covered: true, inject: |stage, random| order(stage, random, "killed", Order::Die) };

/// Sends a RST to the server.
pub(crate) const CUT_CLIENT: Fault = Fault {
    name: "client cut off",
    covered: true,
    inject: |stage, random| order(stage, random, "cut-off", Order::Break),
};

/// Stops a client for less time than the grace, after which it can still obey a loss.
pub(crate) const PAUSE_CLIENT: Fault = Fault {
    name: "client stopped for a moment",
    covered: true,
    inject: |stage, random| {
        let time = Duration::from_millis(10 + random.below(140));
        order(stage, random, "stopped", Order::Stop(time))
    },
};

/// Stops a client of the embedded store, which revokes no lock.
pub(crate) const STOP_CLIENT_EMBEDDED: Fault = Fault {
    name: "client stopped",
    covered: true,
    inject: |stage, random| {
        let time = Duration::from_millis(10 + random.below(1000));
        order(stage, random, "stopped", Order::Stop(time))
    },
};

/// Gives an order to a random client.
fn order(stage: &Stage, random: &mut Random, fault: &str, order: Order) -> bool {
    let clients = stage.servers.clients();
    if clients.is_empty() {
        return false;
    }
    let (run, orders) = random.pick(&clients);
    stage.log_of_run(run, &format!("faulted {fault}"));
    // The client is in the list, so it still takes orders, or is about to leave.
    let _ = orders.send(order);
    true
}
