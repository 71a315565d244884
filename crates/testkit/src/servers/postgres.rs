//! PostgreSQL servers of a test, and pgbouncer before them. Each starts in a temporary folder, and
//! ends with the test, even if the test is killed.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::certificates::Certificates;
use super::{keeper, ports};
use crate::{needs, wait_until};

/// The user who runs the servers if the tests run as root, which these programs refuse: nobody.
const NOBODY: u32 = 65534;

/// The port in the names of the sockets. No server listens there.
const PORT: u16 = 5432;

/// The settings of every server: nothing has to survive a crash of the machine.
const SETTINGS: [&str; 6] = [
    "fsync=off",
    "max_connections=300",
    "shared_buffers=16MB",
    "max_wal_size=64MB",
    "logging_collector=off",
    "jit=off",
];

/// A running server, ended when dropped.
pub struct Postgres {
    child: Child,
    folder: TempDir,
    port: Option<u16>,
}

/// A pgbouncer in transaction mode.
pub struct Bouncer {
    child: Child,
    folder: TempDir,
}

/// A pgpool-II before a primary and a standby, to which it sends the reads where it may.
pub struct Splitter {
    child: Child,
    folder: TempDir,
}

fn program(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("RLOCK_POSTGRES").map(PathBuf::from);
    folder.map(|folder| folder.join(name)).filter(|path| path.is_file())
}

/// A command of a program that is not run by root, and finds its libraries.
fn command(program: impl AsRef<Path>, words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(words);
    if geteuid().is_root() {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command.arg("--").arg(program.as_ref()).stdin(Stdio::null()).stdout(Stdio::null());
    if let Some(libraries) = std::env::var_os("RLOCK_LIBRARIES") {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command
}

fn folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("rlock-postgres-").tempdir().expect("a folder can be made");
    if geteuid().is_root() {
        chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("root may give a folder away");
    }
    folder
}

fn log(folder: &TempDir) -> File {
    File::create(folder.path().join("log")).expect("the folder can be written")
}

impl Postgres {
    /// Whether this machine has the server. If not, a line says why the test does not run.
    pub fn is_present() -> bool {
        (program("postgres").is_some() || needs::left_out("no server in RLOCK_POSTGRES: tests/run brings it"))
            && needs::programs(&["setpriv"])
    }

    /// Starts a server on a unix socket, with these settings too, such as `max_connections=10`.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_on(&|| None, settings)
    }

    /// Starts a server that also listens on a TCP port.
    pub fn start_on_tcp(settings: &[&str]) -> Self {
        Self::start_on(&|| Some(ports::free()), settings)
    }

    /// Ends the server by this signal, and starts it again in the same folder.
    pub fn restart(&mut self, signal: Signal) {
        self.signal(signal);
        self.child.wait().expect("the process is a child");
        self.child = serve(&self.folder, self.port, &[]);
        wait_until("the server is ready", || said(&self.folder).contains("ready to accept connections"));
    }

    fn start_on(port: &dyn Fn() -> Option<u16>, settings: &[&str]) -> Self {
        let folder = folder();
        let data = folder.path().join("data");
        let initdb = program("initdb").expect("the test asked whether the server is present");
        let mut made = command(initdb, &[]);
        made.args(["--auth=trust", "--username=tester", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"]).arg(&data);
        assert!(made.stderr(log(&folder)).status().expect("setpriv runs").success(), "{}", said(&folder));
        loop {
            let port = port();
            let mut child = serve(&folder, port, settings);
            let is_ready = || said(&folder).contains("ready to accept connections");
            wait_until("the server is ready or ends", || is_ready() || matches!(child.try_wait(), Ok(Some(_))));
            if is_ready() {
                return Self { child, folder, port };
            }
            // The port was free a moment ago.
            assert!(said(&folder).contains("Address already in use"), "{}", said(&folder));
        }
    }

    /// Starts a standby of this server, whose commits wait for it from now on.
    pub fn synchronous_standby(&self) -> Self {
        let folder = folder();
        let copy = program("pg_basebackup").expect("the program comes with the server");
        let mut copied = command(copy, &[]);
        copied.args(["--write-recovery-conf", "--no-sync", "--checkpoint=fast", "-U", "tester", "-h"]);
        copied.arg(self.folder.path()).args(["-p", &self.port.unwrap_or(PORT).to_string(), "-D"]);
        copied.arg(folder.path().join("data")).stderr(log(&folder));
        assert!(copied.status().expect("setpriv runs").success(), "{}", said(&folder));
        let child = serve(&folder, None, &["cluster_name=standby"]);
        let started = Self { child, folder, port: None };
        wait_until("the standby is ready", || said(&started.folder).contains("ready to accept read-only connections"));
        self.ask("alter system set synchronous_standby_names = standby");
        self.ask("select pg_reload_conf()");
        let state = "select sync_state from pg_stat_replication";
        wait_until("the commits wait for the standby", || self.ask(state) == "sync");
        started
    }

    /// Makes a standby a primary, and waits until it takes writes.
    pub fn promote(&self) {
        assert_eq!(self.ask("select pg_promote()"), "t");
    }

    /// The URL of a store on two servers, of which one takes writes.
    pub fn url_with(&self, other: &Self) -> String {
        let (folder, other) = (self.folder.path().display(), other.folder.path().display());
        format!("postgres://tester@/postgres?host={folder},{other}&port={PORT}")
    }

    /// The server that the tests of one program share while any of them uses it. Each test needs a
    /// namespace of its own.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(&[]));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// The URL of a store on the server, by its socket.
    pub fn url(&self) -> String {
        let port = self.port.unwrap_or(PORT);
        format!("postgres://tester@/postgres?host={}&port={port}", self.folder.path().display())
    }

    /// The URL by TCP.
    pub fn tcp_url(&self) -> String {
        format!("postgres://tester@127.0.0.1:{}/postgres", self.port.expect("the server listens on a port"))
    }

    /// What a statement gives, one row in each line.
    pub fn ask(&self, statement: &str) -> String {
        let mut psql = self.psql();
        let output = psql.args(["-c", statement]).stdout(Stdio::piped()).stderr(Stdio::piped()).output();
        let output = output.expect("psql runs");
        assert!(output.status.success(), "{statement}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        said(&self.folder)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The socket of the server.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(format!(".s.PGSQL.{}", self.port.unwrap_or(PORT)))
    }

    /// A psql that runs statements from its input until that ends.
    pub fn psql(&self) -> Command {
        let mut psql = command(program("psql").expect("the client comes with the server"), &[]);
        psql.args(["-X", "-At", "-U", "tester", "-d", "postgres", "-h"]).arg(self.folder.path());
        psql.args(["-p", &self.port.unwrap_or(PORT).to_string()]);
        psql
    }

    /// Demands of each user what these lines of pg_hba.conf say.
    pub fn demand(&self, lines: &str) {
        fs::write(self.folder.path().join("data/pg_hba.conf"), lines).expect("the folder can be written");
        self.signal(Signal::HUP);
        let reloads = self.log().matches("reloading configuration files").count();
        wait_until("the server reads its settings", || {
            self.log().matches("reloading configuration files").count() >= reloads.max(1)
        });
    }

    /// Speaks TLS with the certificate of the server.
    pub fn encrypt(&self, certificates: &Certificates) {
        for (name, from) in
            [("server.crt", certificates.certificate("server")), ("server.key", certificates.key("server"))]
        {
            let to = self.folder.path().join("data").join(name);
            fs::copy(from, &to).expect("the folder can be written");
            fs::set_permissions(&to, Permissions::from_mode(0o600)).expect("the file is new");
            if geteuid().is_root() {
                chown(&to, Some(NOBODY), Some(NOBODY)).expect("root may give a file away");
            }
        }
        self.ask("alter system set ssl = on");
        self.ask("select pg_reload_conf()");
        wait_until("the server speaks TLS", || self.ask("show ssl") == "on");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process was not reaped");
    }

    /// Sends a signal to the server and to all of its backends, such as STOP, after which it
    /// answers nothing.
    pub fn signal_all(&self, signal: Signal) {
        self.signal(signal);
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("the server runs");
        for child in children.split_whitespace() {
            let child = child.parse().ok().and_then(Pid::from_raw).expect("the kernel lists numbers");
            // A backend may end at any time.
            let _ = kill_process(child, signal);
        }
    }
}

fn serve(folder: &TempDir, port: Option<u16>, settings: &[&str]) -> Child {
    let mut server = command(program("postgres").expect("the server is present"), &["--pdeathsig", "QUIT"]);
    server.arg("-D").arg(folder.path().join("data")).arg("-k").arg(folder.path());
    server.args(["-p", &port.unwrap_or(PORT).to_string()]);
    server.args(["-c", &format!("listen_addresses={}", port.map_or("", |_| "127.0.0.1"))]);
    for setting in SETTINGS.iter().chain(settings) {
        server.args(["-c", setting]);
    }
    server.stderr(log(folder));
    keeper::spawn(server)
}

fn said(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}

impl Drop for Postgres {
    /// An immediate shutdown, which leaves no memory behind as a kill would.
    fn drop(&mut self) {
        self.signal(Signal::QUIT);
        let _ = self.child.wait();
    }
}

impl Bouncer {
    /// Kills it, and starts it again in the same folder.
    pub fn restart(&mut self) {
        self.child.kill().expect("the process was not reaped");
        self.child.wait().expect("the process is a child");
        for left in [".s.PGSQL.5432", ".s.PGSQL.5432.lock"] {
            let _ = fs::remove_file(self.folder.path().join(left));
        }
        self.child = pool(&self.folder);
    }

    /// Whether this machine has pgbouncer and the server.
    pub fn is_present() -> bool {
        let is_there = std::env::var_os("RLOCK_PGBOUNCER").is_some_and(|path| Path::new(&path).is_file());
        (is_there || needs::left_out("no program in RLOCK_PGBOUNCER: tests/run brings it")) && Postgres::is_present()
    }

    /// Starts one before a server, with so many connections to it.
    pub fn before(server: &Postgres, connections: usize) -> Self {
        Self::in_mode("transaction", server, connections)
    }

    /// Starts one in another mode, such as `statement`.
    pub fn in_mode(mode: &str, server: &Postgres, connections: usize) -> Self {
        let folder = folder();
        let path = folder.path().display();
        let config = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={} port={} user=tester\n[pgbouncer]\nlisten_addr=\nunix_socket_dir={path}\n\
             listen_port={PORT}\nauth_type=any\npool_mode={mode}\ndefault_pool_size={connections}\n\
             max_client_conn=1000\nignore_startup_parameters=extra_float_digits\n",
            server.folder().display(),
            server.port.unwrap_or(PORT),
        );
        fs::write(&config, text).expect("the folder can be written");
        Self { child: pool(&folder), folder }
    }

    /// The URL of a store behind it.
    pub fn url(&self) -> String {
        format!("postgres://tester@/postgres?host={}&port={PORT}", self.folder.path().display())
    }
}

/// Starts pgbouncer with the configuration in a folder.
fn pool(folder: &TempDir) -> Child {
    let program = std::env::var_os("RLOCK_PGBOUNCER").expect("the test asked whether it is present");
    let mut bouncer = command(PathBuf::from(program), &["--pdeathsig", "KILL"]);
    bouncer.arg(folder.path().join("pgbouncer.ini")).stderr(log(folder));
    let child = keeper::spawn(bouncer);
    let socket = folder.path().join(format!(".s.PGSQL.{PORT}"));
    wait_until("pgbouncer listens", || socket.exists());
    child
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Splitter {
    /// Whether this machine has pgpool-II and the server.
    pub fn is_present() -> bool {
        let is_there = std::env::var_os("RLOCK_PGPOOL").is_some_and(|path| Path::new(&path).is_file());
        (is_there || needs::left_out("no program in RLOCK_PGPOOL: tests/run brings it")) && Postgres::is_present()
    }

    /// Starts one with a value of its setting `disable_load_balance_on_write`.
    pub fn before(primary: &Postgres, standby: &Postgres, splits: &str) -> Self {
        let folder = folder();
        let path = folder.path().display();
        let mut text = format!(
            "backend_clustering_mode = 'streaming_replication'\nlisten_addresses = ''\nport = {PORT}\n\
             socket_dir = '{path}'\nunix_socket_directories = '{path}'\npcp_listen_addresses = ''\n\
             pcp_socket_dir = '{path}'\nnum_init_children = 8\nload_balance_mode = on\nsr_check_period = 1\n\
             sr_check_user = 'tester'\nsr_check_database = 'postgres'\npid_file_name = '{path}/pid'\n\
             logdir = '{path}'\ndisable_load_balance_on_write = '{splits}'\n"
        );
        for (number, server) in [primary, standby].into_iter().enumerate() {
            let (host, port) = (server.folder().display(), server.port.unwrap_or(PORT));
            text += &format!(
                "backend_hostname{number} = '{host}'\nbackend_port{number} = {port}\nbackend_weight{number} = {number}\n\
                 backend_flag{number} = 'DISALLOW_TO_FAILOVER'\n"
            );
        }
        let [config, pcp, hba] = ["pgpool.conf", "pcp.conf", "pool_hba.conf"].map(|name| folder.path().join(name));
        for (file, text) in [(&config, text.as_str()), (&pcp, ""), (&hba, "")] {
            fs::write(file, text).expect("the folder can be written");
        }
        let program = std::env::var_os("RLOCK_PGPOOL").expect("the test asked whether it is present");
        let mut pool = command(PathBuf::from(program), &["--pdeathsig", "QUIT"]);
        pool.arg("-n").arg("-f").arg(config).arg("-F").arg(pcp).arg("-a").arg(hba).stderr(log(&folder));
        let splitter = Self { child: keeper::spawn(pool), folder };
        wait_until("pgpool knows both servers", || splitter.roles() == ["primary", "standby"]);
        splitter
    }

    /// What it takes the servers for.
    fn roles(&self) -> Vec<String> {
        let mut psql = command(program("psql").expect("the client comes with the server"), &[]);
        psql.args(["-X", "-At", "-U", "tester", "-d", "postgres", "-p", &PORT.to_string(), "-c", "show pool_nodes"]);
        let output = psql.arg("-h").arg(self.folder.path()).stdout(Stdio::piped()).stderr(Stdio::null()).output();
        let output = String::from_utf8_lossy(&output.expect("psql runs").stdout).into_owned();
        let role = |line: &str| line.split('|').find(|word| ["primary", "standby"].contains(word)).map(str::to_owned);
        output.lines().filter_map(role).collect()
    }

    /// The URL of a store behind it.
    pub fn url(&self) -> String {
        format!("postgres://tester@/postgres?host={}&port={PORT}", self.folder.path().display())
    }
}

impl Drop for Splitter {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::QUIT);
        let _ = self.child.wait();
    }
}
