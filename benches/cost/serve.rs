//! The lock server: pairs of a lock and an unlock in a second, the time from an unlock to the grant
//! of the next client, and the memory of a client.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::aims::{Aim, Bound};
use super::daemon::Daemon;
use super::lab::{Lab, free_port};
use super::options::Effort;
use super::table::{Findings, Row, Spread, Table};

/// The numbers of clients. Each client has a lock of its own.
const CLIENTS: [usize; 3] = [1, 16, 256];
/// The number of clients whose memory is measured together.
const MEASURED: usize = 1000;
const EMBEDDED: &str = "rlock serve, embedded";
const PEER: &str = "tcpnetlock, a connection for each lock";
const REDIS: &str = "rlock serve, Redis";
const DFLOCKD: &str = "dflockd, in memory";
/// Names the program of dflockd, which is measured if this is set.
const DFLOCKD_PROGRAM: &str = "RLOCK_DFLOCKD";

/// A running lock server.
struct Server {
    name: &'static str,
    port: u16,
    protocol: Protocol,
    daemon: Daemon,
}

#[derive(Clone, Copy, PartialEq)]
enum Protocol {
    Rlock,
    /// The protocol of tcpnetlock, which ends a connection after its first lock.
    Tcpnetlock,
    Dflockd,
}

/// How the clients of a measurement lock.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Each client has a lock of its own.
    Own,
    /// Each client takes turns with all others.
    Shared,
    /// Each client has a lock of its own, and connects anew for each pair.
    Fresh,
}

impl How {
    /// The end of the row's name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Own => "",
            Self::Shared => ", one name for all",
            Self::Fresh => ", a connection for each lock",
        }
    }
}

impl Protocol {
    /// The number of clients that the server can serve at once.
    fn clients_max(self) -> usize {
        match self {
            Self::Rlock | Self::Dflockd => usize::MAX,
            // It lets the kernel keep five connections until it accepts them.
            Self::Tcpnetlock => 16,
        }
    }

    /// What clients of the server can do.
    fn ways(self) -> &'static [How] {
        match self {
            Self::Rlock => &[How::Own, How::Shared, How::Fresh],
            Self::Tcpnetlock => &[How::Fresh],
            Self::Dflockd => &[How::Own, How::Shared],
        }
    }

    /// The line that locks.
    fn lock(self, key: &str) -> String {
        match self {
            Self::Rlock => format!("LOCK {key}\n"),
            Self::Tcpnetlock => format!("lock,name:{key}\n"),
            Self::Dflockd => format!("l\n{key}\n60 60\n"),
        }
    }

    /// The line that unlocks, after this answer to the other one.
    fn unlock(self, key: &str, answer: &str) -> String {
        let mut words = answer.split(' ');
        assert_eq!(words.next(), Some("ok"), "{answer}");
        match self {
            Self::Rlock => "UNLOCK\n".to_owned(),
            Self::Tcpnetlock => format!("release,name:{key}\n"),
            Self::Dflockd => format!("r\n{key}\n{}\n", words.next().expect("the answer has a token")),
        }
    }
}

/// A connection to a server.
struct Client {
    socket: BufReader<TcpStream>,
    line: String,
}

impl Client {
    fn new(port: u16) -> Self {
        Self::connect(port).expect("the server listens")
    }

    fn connect(port: u16) -> io::Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket: BufReader::new(socket), line: String::new() })
    }

    fn say(&mut self, line: &str) {
        self.socket.get_mut().write_all(line.as_bytes()).expect("the server reads");
    }

    /// Sends a line and returns the answer, or an error if the connection ended.
    fn ask(&mut self, line: &str) -> io::Result<&str> {
        self.socket.get_mut().write_all(line.as_bytes())?;
        self.line.clear();
        match self.socket.read_line(&mut self.line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(self.line.trim_end()),
        }
    }

    fn answer(&mut self) -> &str {
        self.line.clear();
        self.socket.read_line(&mut self.line).expect("the server answers");
        self.line.trim_end()
    }
}

/// Measures the servers side by side.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let servers = servers(lab);
    let (rounds, length) = effort.pick((3, Duration::from_millis(300)), (20, Duration::from_millis(500)));
    let candidates: Vec<_> =
        servers.iter().flat_map(|server| server.protocol.ways().iter().map(move |how| (server, *how))).collect();
    let mut rates = vec![vec![Vec::new(); CLIENTS.len()]; candidates.len()];
    for _ in 0..rounds {
        for ((server, how), rates) in candidates.iter().zip(&mut rates) {
            for (clients, rates) in CLIENTS.into_iter().zip(rates) {
                if clients <= server.protocol.clients_max() {
                    rates.extend(rate(server, *how, clients, length).ok());
                }
            }
        }
    }
    let rate = Table {
        title: "Lock server: lock and unlock",
        unit: "pairs/s",
        about: format!(
            "Each client waits for each answer, and has a lock of its own unless the row says otherwise; {rounds} times \
             {} ms in turn, by TCP on 127.0.0.1. The clients run on the same processors as the server. tcpnetlock, in \
             Python, needs a connection for each lock, and loses connections of 256 clients at once. dflockd, in Go, \
             is measured where its program is named.",
            length.as_millis()
        ),
        columns: CLIENTS.map(|clients| format!("clients: {clients}")).to_vec(),
        against: Some(PEER),
        rows: candidates
            .iter()
            .zip(rates)
            .map(|((server, how), rates)| Row {
                name: format!("{}{}", server.name, how.suffix()),
                cells: rates.into_iter().map(Spread::of).collect(),
            })
            .collect(),
        drawn: false,
    };
    let own: Vec<_> = servers.iter().filter(|server| server.protocol == Protocol::Rlock).collect();
    let hand_over = Table {
        title: "Lock server: from an unlock to the grant of the next client",
        unit: "µs",
        about: "Two clients take turns; from sending UNLOCK to the other's ok. tcpnetlock has no queue.".into(),
        columns: vec!["one waits".into()],
        against: None,
        rows: own
            .iter()
            .map(|server| Row {
                name: server.name.to_owned(),
                cells: vec![Spread::of(hand_overs(server, effort.pick(300, 3000)))],
            })
            .collect(),
        drawn: false,
    };
    let memory = Table {
        title: "Lock server: memory of a client",
        unit: "KiB",
        about: format!("What the server grows by for {MEASURED} clients, divided by their number."),
        columns: ["idle", "waiting"].map(str::to_owned).to_vec(),
        against: None,
        rows: own
            .iter()
            .map(|server| Row {
                name: server.name.to_owned(),
                cells: memory_of_clients(server).map(Spread::exactly).map(Some).to_vec(),
            })
            .collect(),
        drawn: false,
    };
    let mut aims = vec![Aim {
        what: format!("from an unlock to the next grant: {EMBEDDED}"),
        bound: Bound::AtMost(200.0),
        figure: hand_over.median(EMBEDDED, 0),
        unit: "µs",
    }];
    for (how, column, who) in [
        (How::Own, 0, "1 client"),
        (How::Own, 1, "16 clients with names of their own"),
        (How::Shared, 1, "16 clients with one name"),
    ] {
        let [own, theirs] = [EMBEDDED, DFLOCKD].map(|name| rate.median(&format!("{name}{}", how.suffix()), column));
        // Without the program, the rows are missing as well.
        aims.extend(own.zip(theirs).map(|(own, theirs)| {
            Aim::times(format!("pairs of {who}, of dflockd's: {EMBEDDED}"), Bound::AtLeast(1.0), Some(own / theirs))
        }));
    }
    for (column, state) in ["idle", "waiting"].into_iter().enumerate() {
        aims.push(Aim {
            what: format!("memory of a client that is {state}: {EMBEDDED}"),
            bound: Bound::AtMost(4.0),
            figure: memory.median(EMBEDDED, column),
            unit: "KiB",
        });
    }
    Findings { tables: vec![rate, hand_over, memory], aims }
}

fn servers(lab: &Lab) -> Vec<Server> {
    let mut servers = Vec::new();
    let mut start = |name, words: Vec<String>, port: u16, protocol| {
        let folder = lab.folder().join(name);
        fs::create_dir(&folder).expect("a folder can be made");
        let ready = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        match Daemon::start(&words, &folder, ready) {
            Ok(daemon) => servers.push(Server { name, port, protocol, daemon }),
            Err(problem) => eprintln!("{problem}"),
        }
    };
    let rlock = |store: &str, port: u16| -> Vec<String> {
        let address = format!("127.0.0.1:{port}");
        let words = [&lab.rlock.display().to_string(), "serve", "--store", store, "--listen", &address];
        let limits = ["--max-connections", "5000", "--max-waiting", "5000"];
        words.into_iter().chain(limits).map(str::to_owned).collect()
    };
    let port = free_port();
    let store = format!("file://{}", lab.folder().join("served").display());
    start(EMBEDDED, rlock(&store, port), port, Protocol::Rlock);
    if let Some(redis) = &lab.redis {
        let port = free_port();
        start(REDIS, rlock(&redis.tcp(), port), port, Protocol::Rlock);
    }
    if has_program("tcpnetlock_server") {
        let port = free_port();
        let words = ["tcpnetlock_server", "--listen", "127.0.0.1", "--port", &port.to_string()];
        let words = words.into_iter().map(str::to_owned).collect();
        start("tcpnetlock", words, port, Protocol::Tcpnetlock);
    }
    if let Ok(program) = std::env::var(DFLOCKD_PROGRAM) {
        let port = free_port();
        start(DFLOCKD, vec![program, "--port".to_owned(), port.to_string()], port, Protocol::Dflockd);
    }
    servers
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// The number of names that were given to locks.
static NAMES: AtomicU64 = AtomicU64::new(1);

/// The pairs that so many clients complete in a second. An error if the server drops connections.
fn rate(server: &Server, how: How, clients: usize, length: Duration) -> io::Result<f64> {
    let start = Barrier::new(clients);
    let count = |number: usize| {
        let mut client = Client::connect(server.port);
        let mut turn = 0;
        let mut pair = || {
            // tcpnetlock says that a lock is free before it is, so each of its locks has a name of
            // its own.
            let key = match how {
                How::Own => format!("rate{number}"),
                How::Shared => "rate".to_owned(),
                How::Fresh => format!("rate{number}x{}", NAMES.fetch_add(1, Ordering::Relaxed)),
            };
            if how == How::Fresh && turn > 0 {
                client = Client::connect(server.port);
            }
            turn += 1;
            let client = client.as_mut().map_err(|error| io::Error::from(error.kind()))?;
            let unlock = server.protocol.unlock(&key, client.ask(&server.protocol.lock(&key))?);
            client.ask(&unlock).map(drop)
        };
        let first = pair();
        start.wait();
        first?;
        let (started, mut pairs) = (Instant::now(), 0.0);
        while started.elapsed() < length {
            pair()?;
            pairs += 1.0;
        }
        Ok(pairs / started.elapsed().as_secs_f64())
    };
    thread::scope(|scope| {
        let count = &count;
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || count(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).sum()
    })
}

/// The times in microseconds from the unlock of one client to the grant of the other.
fn hand_overs(server: &Server, rounds: usize) -> Vec<f64> {
    let mut clients = [Client::new(server.port), Client::new(server.port)];
    clients[0].say("LOCK turns\n");
    assert_eq!(clients[0].answer(), "ok");
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let [holder, waiter] = &mut clients;
        waiter.say("LOCK turns\n");
        // The server answers lines of one connection in order, so the request is in the queue soon.
        let mut probe = Client::new(server.port);
        loop {
            probe.say("INSPECT turns\n");
            if !probe.answer().contains("\"waiters\":[]") {
                break;
            }
        }
        let started = Instant::now();
        holder.say("UNLOCK\n");
        assert_eq!(waiter.answer(), "ok");
        times.push(started.elapsed().as_secs_f64() * 1e6);
        assert_eq!(holder.answer(), "ok");
        clients.swap(0, 1);
    }
    times
}

/// The memory in KiB of an idle client and of a waiting one.
fn memory_of_clients(server: &Server) -> [f64; 2] {
    let process = format!("/proc/{}/status", server.daemon.id());
    let memory = || {
        let status = fs::read_to_string(Path::new(&process)).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("/proc has the line");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number")
    };
    let mut holder = Client::new(server.port);
    holder.say("LOCK held\n");
    assert_eq!(holder.answer(), "ok");
    ["PING\n", "LOCK held\n"].map(|line| {
        let before = memory();
        let mut clients: Vec<_> = (0..MEASURED).map(|_| Client::new(server.port)).collect();
        for client in &mut clients {
            client.say(line);
            if line == "PING\n" {
                assert_eq!(client.answer(), "pong");
            }
        }
        let waiting = || {
            let mut probe = Client::new(server.port);
            probe.say("INSPECT held\n");
            probe.answer().matches("\"position\"").count()
        };
        while line != "PING\n" && waiting() < MEASURED {
            thread::sleep(Duration::from_millis(10));
        }
        let grown = (memory() - before) / MEASURED as f64;
        drop(clients);
        while waiting() > 0 {
            thread::sleep(Duration::from_millis(10));
        }
        grown
    })
}
