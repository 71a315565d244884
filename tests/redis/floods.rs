//! A peer that never stops sending does not disable signals, `--connect-timeout` or the deadline,
//! and rlock's memory stays bounded.

use std::fs;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;

use crate::world::{Stubborn, expiry};
use rlock_testkit::servers::flood::{Flood, Water};
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, Ran, Running, wait_until};

const PUSHES: Water = Water { head: "", piece: ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n" };

/// Everything that can go on for ever within the protocol.
const WATERS: [Water; 8] = [
    PUSHES,
    Water { head: "", piece: ">2\r\n+nonsense\r\n:1\r\n" },
    Water { head: "$10737418240\r\n", piece: "x" },
    Water { head: "+", piece: "x" },
    Water { head: "*1000000000\r\n", piece: "_\r\n" },
    Water { head: "", piece: "*4096\r\n" },
    Water { head: "", piece: "+OK\r\n" },
    Water { head: "", piece: "-ERR x\r\n" },
];

/// More memory than rlock ever needs, and far less than a peer sends during a test.
const MEMORY_MAX_KB: u64 = 64 * 1024;

/// Waits for the end of an rlock and fails if its memory exceeded the limit.
#[track_caller]
fn bounded(mut rlock: Running) -> Ran {
    let mut peak = 0;
    wait_until("rlock ends", || {
        peak = peak_kb(&rlock).unwrap_or(peak);
        !rlock.runs()
    });
    assert!(peak < MEMORY_MAX_KB, "it took {peak} KB");
    rlock.end()
}

/// Returns the peak memory of a program so far, or none if it has ended.
fn peak_kb(program: &Running) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Runs a test for each kind of flood, each in front of a new server.
fn each_water(test: impl Fn(&Server, &Flood, Water) + Sync) {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    for water in WATERS {
        let server = Server::start(Kind::Redis7);
        let flood = Flood::before(&server);
        test(&server, &flood, water);
    }
}

#[test]
fn connect_timeout_holds_while_a_peer_never_stops_sending() {
    each_water(|_, flood, water| {
        flood.begin(water);
        let lab = Lab::at(flood.url());
        let all = [&["exec", "--connect-timeout", "1s", "k", "--", "true"][..], &["inspect"], &["cleanup", "k"]];
        // These run at the same time, since the timeout of `inspect` and `cleanup` is longer.
        for (words, rlock) in all.map(|words| (words, Running::start(&mut lab.rlock(words)))) {
            // Listings for `inspect` may be long, so it reads a value without end until the
            // timeout.
            let ran = if words[0] == "exec" { bounded(rlock) } else { rlock.end() };
            assert!(ran.failed(69).contains(&flood.url()), "{water:?}, {words:?}: {ran:?}");
        }
    });
}

#[test]
fn value_without_end_is_an_unexpected_reply() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let flood = Flood::before(&server);
    flood.begin(Water { head: "$10737418240\r\n", piece: "x" });
    let ran = Lab::at(flood.url()).run(["exec", "k", "--", "true"]);
    assert!(ran.failed(69).contains("sent an unexpected reply"), "{ran:?}");
}

#[test]
fn term_ends_a_request_to_a_peer_that_never_stops_sending() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let flood = Flood::before(&server);
    flood.begin(PUSHES);
    let lab = Lab::at(flood.url());
    let rlock = Running::start(&mut lab.rlock(["exec", "--connect-timeout", "1h", "k", "--", "true"]));
    flood.until_connected();
    let start = Instant::now();
    rlock.signal(Signal::TERM);
    let ran = bounded(rlock);
    assert_eq!(ran.code(), Some(143), "{ran:?}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn waiter_whose_peer_never_stops_sending_ends_by_term_or_with_69() {
    each_water(|server, flood, water| {
        let lab = Lab::at(flood.url());
        let direct = Lab::at(server.url()).with("RLOCK_NAMESPACE", lab.namespace());
        let holder = direct.hold("k");
        let waiter = lab.wait_by(["exec", "--connect-timeout", "2s", "k"]);
        direct.until_waiting("k", 1);
        flood.begin(water);
        waiter.signal(Signal::TERM);
        let ran = bounded(waiter);
        assert!(matches!(ran.code(), Some(143 | 69)), "{water:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{water:?}: the command was started");
        holder.end().silently(0);
    });
}

#[test]
fn command_is_stopped_at_the_deadline_while_the_peer_never_stops_sending() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let flooded = |water: Water| {
        let server = Server::start(Kind::Redis7);
        let flood = Flood::before(&server);
        let lab = Lab::at(flood.url());
        let holder = Stubborn::start(&lab, &["exec", "k", "--ttl", "8s", "--grace", "200ms"]);
        let end = expiry(&server, &lab, "k").expect("the lock is held");
        flood.begin(water);
        let gone = holder.gone();
        // A busy machine may be late to run rlock at the deadline.
        assert!(
            gone < end + 1_000_000,
            "{water:?}: the command lived {} µs longer than its lease",
            gone.saturating_sub(end)
        );
        let ran = bounded(holder.rlock);
        assert_eq!(ran.code(), Some(76), "{water:?}: {ran:?}");
    };
    // A machine with two processors has time for four at once.
    for waters in WATERS.chunks(4) {
        std::thread::scope(|scope| {
            for water in waters {
                scope.spawn(|| flooded(*water));
            }
        });
    }
}

/// "has no room for another connection": the queue of a unix socket is full while the server is
/// stopped. The client retries, and its request is granted when the server continues.
#[test]
fn request_retries_while_the_queue_of_the_unix_socket_is_full() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::with(Kind::Redis7, &["--tcp-backlog", "1"]);
    let lab = Lab::at(server.unix_url());
    server.stop();
    let others: Vec<_> = std::iter::from_fn(|| {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None);
        let socket = socket.expect("a socket can be made");
        let address = SocketAddrUnix::new(server.socket()).expect("the path is short");
        rustix::net::connect(&socket, &address).ok().map(|()| socket)
    })
    .collect();
    let ran = lab.run(["exec", "--connect-timeout", "1s", "k", "--", "true"]);
    assert!(ran.failed(69).contains("has no room for another connection"));
    let mut waiting = lab.wait_by(["exec", "k"]);
    drop(others);
    assert!(waiting.runs());
    server.cont();
    waiting.expect_held();
    waiting.end().silently(0);
    for command in [vec!["inspect"], vec!["cleanup"]] {
        assert_eq!(lab.run(command).code(), Some(0));
    }
}
