//! Redis and Valkey servers of a test. Each starts in a temporary folder, and ends with the test,
//! even if the test is killed.
//!
//! tests/run names the server programs in the environment; a test that starts a server asks
//! [`Kind::is_present`] first. No server listens on a well-known port. It always has a unix socket,
//! and on request TCP and TLS on free ports. A server writes nothing to the disk unless the test
//! asks for it.
//!
//! [`cluster`] and [`sentinels`] combine several servers. [`proxy`] stands between a server and its
//! clients, and loses messages on demand.

pub mod certificates;
pub mod cluster;
pub mod crowd;
pub mod flood;
pub mod postgres;
pub mod proxy;
pub mod sentinels;

mod keeper;
mod ports;

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use self::certificates::Certificates;
use super::{needs, wait_until};

/// A kind of server that rlock is tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Redis 6.2, the oldest version that rlock supports.
    Redis6,
    /// Debian's version: Redis 7.0 or newer. It is the only kind that is built with TLS.
    Redis7,
    /// Redis 8.
    Redis8,
    /// Valkey 9.
    Valkey9,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Redis6, Self::Redis7, Self::Redis8, Self::Valkey9];

    /// Whether this machine has the server. If not, a line says why the test does not run.
    pub fn is_present(self) -> bool {
        !Self::present_among(&[self]).is_empty()
    }

    /// The kinds that this machine has. A line names the others.
    pub fn present() -> Vec<Self> {
        Self::present_among(&Self::ALL)
    }

    /// Runs a test on the server if this machine has it.
    pub fn run(self, test: impl FnOnce(Self)) {
        if self.is_present() {
            test(self);
        }
    }

    fn present_among(kinds: &[Self]) -> Vec<Self> {
        let (present, absent): (Vec<Self>, Vec<Self>) = kinds.iter().partition(|kind| kind.program().is_some());
        let named = |kinds: Vec<Self>| kinds.into_iter().map(Self::variable).collect::<Vec<_>>().join(", ");
        let (impossible, missing): (Vec<Self>, Vec<Self>) = absent.into_iter().partition(|kind| kind.is_impossible());
        if !missing.is_empty() {
            needs::left_out(&format!("no server in {}: tests/run brings them", named(missing)));
        }
        if !impossible.is_empty() {
            needs::excused(&format!("no server for this processor in {}", named(impossible)));
        }
        if present.is_empty() || needs::programs(&["setpriv"]) { present } else { Vec::new() }
    }

    /// The environment variable that names the program.
    fn variable(self) -> &'static str {
        match self {
            Self::Redis6 => "RLOCK_REDIS_6",
            Self::Redis7 => "RLOCK_REDIS_7",
            Self::Redis8 => "RLOCK_REDIS_8",
            Self::Valkey9 => "RLOCK_VALKEY_9",
        }
    }

    /// Whether tests/run has no such server for this processor.
    fn is_impossible(self) -> bool {
        std::env::var_os(self.variable()).is_some_and(|program| program == "none")
    }

    fn program(self) -> Option<OsString> {
        std::env::var_os(self.variable()).filter(|program| program != "none")
    }
}

/// The configuration with which a server starts.
#[derive(Clone)]
pub struct Setup {
    kind: Kind,
    options: Vec<String>,
    environment: Vec<(String, OsString)>,
    tcp: bool,
    tls: bool,
    role: Role,
}

/// The role of a server.
#[derive(Clone)]
enum Role {
    /// It stores data.
    Plain,
    /// It stores a part of the data of a Cluster.
    Node,
    /// It monitors other servers, as this configuration file says.
    Sentinel(String),
}

impl Setup {
    /// A server on a unix socket.
    pub fn new(kind: Kind) -> Self {
        let (options, environment) = (Vec::new(), Vec::new());
        Self { kind, options, environment, tcp: false, tls: false, role: Role::Plain }
    }

    /// Adds words to the command line, such as `["--maxmemory", "1mb"]`. They override the options
    /// that every server gets.
    pub fn options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    /// Sets a variable in the server's environment.
    pub fn environment(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Listens also on a TCP port of 127.0.0.1 and ::1.
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Listens also for TLS with the certificate of this name. With `clients`, the server demands
    /// certificates from its clients.
    pub fn tls(mut self, certificates: &Certificates, name: &str, clients: bool) -> Self {
        self.tls = true;
        let path = |path: PathBuf| path.to_str().expect("folders for tests have plain names").to_owned();
        for (option, value) in [
            ("--tls-cert-file", path(certificates.certificate(name))),
            ("--tls-key-file", path(certificates.key(name))),
            ("--tls-ca-cert-file", path(certificates.authority())),
            ("--tls-auth-clients", if clients { "yes" } else { "no" }.to_owned()),
        ] {
            self.options.extend([option.to_owned(), value]);
        }
        self
    }

    /// Starts the server if this machine has it.
    pub fn start_if_present(self) -> Option<Server> {
        self.kind.is_present().then(|| self.start())
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    /// If the server does not come up; the message has the server's output.
    pub fn start(self) -> Server {
        let folder = tempfile::Builder::new().prefix("rlock-server-").tempdir().expect("a folder can be made");
        // Another process may have taken the free port meanwhile.
        for _ in 0..20 {
            let ports = Ports {
                tcp: self.tcp.then(if matches!(self.role, Role::Node) { ports::free_with_bus } else { ports::free }),
                tls: self.tls.then(ports::free),
            };
            match run(&self, ports, folder.path()) {
                Ok(child) => return Server { setup: self, ports, child, folder },
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("{:?} ends instead of serving:\n{log}", self.kind),
            }
        }
        panic!("{:?} finds no free port", self.kind)
    }
}

/// The ports on which a server listens, beside its unix socket.
#[derive(Clone, Copy)]
struct Ports {
    tcp: Option<u16>,
    tls: Option<u16>,
}

/// A running server, killed when dropped.
pub struct Server {
    setup: Setup,
    ports: Ports,
    child: Child,
    folder: TempDir,
}

impl Server {
    /// Starts a server on a unix socket.
    pub fn start(kind: Kind) -> Self {
        Setup::new(kind).start()
    }

    /// Like [`Server::start`] with more words on the command line, such as `["--maxmemory",
    /// "1mb"]`.
    pub fn with(kind: Kind, options: &[&str]) -> Self {
        Setup::new(kind).options(options).start()
    }

    /// Starts a server on a unix socket and on a TCP port.
    pub fn on_tcp(kind: Kind) -> Self {
        Setup::new(kind).tcp().start()
    }

    /// The server of this kind that the tests of one program share while any of them uses it. Each
    /// test needs a namespace of its own.
    pub fn shared(kind: Kind) -> Arc<Self> {
        static SHARED: [Mutex<Weak<Server>>; 4] = [const { Mutex::new(Weak::new()) }; 4];
        // If a test failed while it started the server, that test has reported it, and the next
        // test may try again.
        let mut shared = SHARED[kind as usize].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(kind));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    pub fn kind(&self) -> Kind {
        self.setup.kind
    }

    /// A folder for files that belong to the server.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    pub fn port(&self) -> u16 {
        self.ports.tcp.expect("the server was started with a TCP port")
    }

    pub fn tls_port(&self) -> u16 {
        self.ports.tls.expect("the server was started with TLS")
    }

    /// The URL of a store on the server: by TCP if the server listens there, else by its unix
    /// socket.
    pub fn url(&self) -> String {
        match self.ports.tcp {
            Some(port) => format!("redis://127.0.0.1:{port}"),
            None => self.unix_url(),
        }
    }

    /// The URL of a store on the server by its unix socket.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// A connection for the test itself.
    ///
    /// # Panics
    /// If the server does not answer.
    pub fn client(&self) -> redis::Connection {
        connect(self.folder.path()).unwrap_or_else(|error| panic!("{:?}: {error}", self.kind()))
    }

    /// Sends one command, such as `["CONFIG", "SET", "maxmemory", "1"]`, on a new connection.
    ///
    /// # Panics
    /// If the server refuses the command, or the reply is not a `T`.
    #[track_caller]
    pub fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        ask(&mut self.client(), words)
    }

    /// Whether the reply to a command, such as `["INFO", "replication"]`, contains this text. The
    /// result is false if the server cannot reply now.
    pub fn says(&self, words: &[&str], text: &str) -> bool {
        let answer = connect(self.folder.path())
            .and_then(|mut connection| redis::cmd(words[0]).arg(&words[1..]).query::<String>(&mut connection));
        answer.is_ok_and(|answer| answer.contains(text))
    }

    /// Waits until the server has all data of its master.
    pub fn until_replicated(&self) {
        wait_until("the replica has the data of its master", || {
            self.says(&["INFO", "replication"], "master_link_status:up")
        });
    }

    /// Waits until the server is a master.
    pub fn until_master(&self) {
        wait_until("the replica is a master", || self.says(&["INFO", "replication"], "role:master"));
    }

    /// Waits until the server is a replica.
    pub fn until_replica(&self) {
        wait_until("the master is a replica", || self.says(&["INFO", "replication"], "role:slave"));
    }

    /// The content of the server's log.
    pub fn log(&self) -> String {
        log(self.folder.path())
    }

    /// Stops the server by SIGSTOP: connections stay open, and the server answers nothing.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues the server after [`Server::stop`].
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the server with SIGKILL. Data that is not on the disk is lost.
    pub fn kill(&mut self) {
        // This fails only if the server was killed before.
        let _ = self.child.kill();
        self.child.wait().expect("the process is a child");
    }

    /// Restarts the server in the same folder and on the same ports, and waits until it answers. A
    /// running server is killed first.
    pub fn restart(&mut self) {
        self.kill();
        // The old process leaves its socket behind, and its port may be unavailable for a moment.
        let _ = fs::remove_file(self.socket());
        wait_until("the server starts again", || match run(&self.setup, self.ports, self.folder.path()) {
            Ok(child) => {
                self.child = child;
                true
            }
            Err(log) if log.contains("Address already in use") => false,
            Err(log) => panic!("{:?} does not start again:\n{log}", self.setup.kind),
        });
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process was not reaped");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends one command.
///
/// # Panics
/// If the server refuses the command, or the reply is not a `T`.
#[track_caller]
pub fn ask<T: redis::FromRedisValue>(connection: &mut redis::Connection, words: &[&str]) -> T {
    let answer = redis::cmd(words[0]).arg(&words[1..]).query(connection);
    answer.unwrap_or_else(|error| panic!("{}: {error}", words.join(" ")))
}

/// Runs a server until it answers. If it ends before, returns its log.
fn run(setup: &Setup, ports: Ports, folder: &Path) -> Result<Child, String> {
    let _ = fs::remove_file(folder.join(LOG));
    // The server ends in any case: the kernel kills it with the thread that started it.
    let mut command = Command::new("setpriv");
    let program = setup.kind.program().expect("the test asked whether the server is present");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    let own = match &setup.role {
        Role::Plain => COPIES.to_vec(),
        Role::Node => [&COPIES[..], &["--cluster-enabled", "yes", "--cluster-node-timeout", "3000"]].concat(),
        Role::Sentinel(text) => {
            let file = folder.join("sentinel.conf");
            // A restarted Sentinel has written its state to this file.
            if !file.exists() {
                fs::write(&file, text).expect("a file can be made in a fresh folder");
            }
            command.arg(file);
            vec!["--sentinel"]
        }
    };
    command.args(own).arg("--dir").arg(folder).args(["--logfile", LOG, "--daemonize", "no"]);
    command.arg("--unixsocket").arg(socket(folder));
    command.args(["--port", &ports.tcp.unwrap_or(0).to_string()]);
    if ports.tcp.is_some() || ports.tls.is_some() {
        command.args(["--bind", "127.0.0.1", "-::1"]);
    }
    if let Some(port) = ports.tls {
        command.args(["--tls-port", &port.to_string()]);
    }
    command.args(&setup.options).envs(setup.environment.iter().map(|(name, value)| (name, value)));
    // The server reports unknown options before it opens its log.
    let output = File::create(folder.join(OUTPUT)).expect("the folder can be written");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    let mut child = keeper::spawn(command);
    let mut ended = false;
    wait_until("the server answers", || {
        ended = child.try_wait().expect("a child can be waited for").is_some();
        ended || answers(folder)
    });
    if ended { Err(log(folder)) } else { Ok(child) }
}

/// Nothing is written to the disk. A replica gets its copy at once, without a wait for further
/// replicas.
const COPIES: [&str; 6] = ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"];

/// The name of the log in the server's folder.
const LOG: &str = "log";

/// The file for the server's standard error.
const OUTPUT: &str = "output";

fn log(folder: &Path) -> String {
    [OUTPUT, LOG].map(|name| fs::read_to_string(folder.join(name)).unwrap_or_default()).concat()
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

/// The connection has no timeout: with one, a read fails if this process is stopped and continued
/// meanwhile, since the kernel doesn't restart such reads. `tests/run` ends a suite that waits for
/// ever.
fn connect(folder: &Path) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(format!("redis+unix://{}", socket(folder).display()))?.get_connection()
}

/// Whether a server is ready. A server that demands a password is ready; a server that is loading
/// its data is not.
fn answers(folder: &Path) -> bool {
    let pong = connect(folder).and_then(|mut connection| redis::cmd("PING").query::<()>(&mut connection));
    match pong {
        Ok(()) => true,
        Err(error) => error.code() == Some("NOAUTH"),
    }
}

/// Turns a function that takes the kind of server into one test for each kind.
#[macro_export]
macro_rules! on_each_kind {
    ($test:expr) => {
        #[test]
        fn on_redis_6() {
            $crate::servers::Kind::Redis6.run($test);
        }

        #[test]
        fn on_redis_7() {
            $crate::servers::Kind::Redis7.run($test);
        }

        #[test]
        fn on_redis_8() {
            $crate::servers::Kind::Redis8.run($test);
        }

        #[test]
        fn on_valkey_9() {
            $crate::servers::Kind::Valkey9.run($test);
        }
    };
}
pub use on_each_kind;
