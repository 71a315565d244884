//! Lookups among servers that the tests simulate.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use redis::Value;
use rustix::event::{PollFd, poll};
use rustix::io::retry_on_intr;

use super::*;
use crate::interface::Redirect;
use rlock_store::network::NetworkError;
use rlock_sys::clock::Boottime;

/// Longer than any test needs on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn target(url: &str) -> Arc<Target> {
    Arc::new(Target::parse(url).unwrap().unwrap())
}

fn found(url: &str, patience: Duration) -> Result<Address, Failure> {
    match locate(&target(url), Seek::Start(0), Boottime::now() + patience)? {
        Located::Ready(address) => Ok(address),
        Located::Pending(locating) => wait(&locating),
    }
}

/// Waits as the poll loop does: asks for the result only when the descriptor is ready, and there
/// must be a result then.
fn wait(locating: &Lookup) -> Result<Address, Failure> {
    let (descriptor, flags) = locating.descriptor();
    // Other tests of this process send signals to the process.
    let ready = retry_on_intr(|| poll(&mut [PollFd::from_borrowed_fd(descriptor, flags)], None));
    assert_eq!(ready, Ok(1));
    locating.result().expect("the pipe ends when there is a result")
}

/// Starts a server that answers each connection by `replies`. The key of a reply is the first line
/// of the request that is not a length.
fn server(replies: &'static [(&'static str, &'static str)]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap(), replies));
        }
    });
    port
}

fn serve(mut stream: TcpStream, replies: &[(&str, &str)]) {
    let mut seen = String::new();
    let mut bytes = [0; 1024];
    let mut answered = 0;
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        seen.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        for (word, reply) in &replies[answered..] {
            if !seen.contains(word) {
                break;
            }
            answered += 1;
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// Returns a free port without a listener.
fn deserted() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn known_address_takes_no_thread() {
    // The kernel then has the path in its cache.
    std::fs::metadata("/proc/self/status").unwrap();
    for (url, socket) in [
        ("redis://127.0.0.1:7", Some("127.0.0.1:7")),
        ("redis://[::1]:7", Some("[::1]:7")),
        ("redis+cluster://127.0.0.1:7", Some("127.0.0.1:7")),
        ("redis+unix:///proc/self/status", None),
    ] {
        match locate(&target(url), Seek::Start(3), Boottime::now()) {
            Ok(Located::Ready(address)) => {
                let found = if let Way::Socket(socket) = address.way { Some(socket.to_string()) } else { None };
                assert_eq!(found.as_deref(), socket, "{url}");
            }
            _ => panic!("{url}"),
        }
    }
    let several = target("redis+sentinel://127.0.0.1:7/m");
    let node = Node::Tcp { host: "10.0.0.1".to_owned(), port: 8 };
    assert!(matches!(
        locate(&several, Seek::Redirect(Redirect { node, asking: false }), Boottime::now()),
        Ok(Located::Ready(_))
    ));
}

#[test]
fn host_name_is_resolved() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = found(&format!("redis://localhost:{port}"), PATIENCE).unwrap();
    // With several addresses, the lookup connects to one of them.
    let (Way::Socket(socket) | Way::Connected(_, socket)) = address.way else { panic!("the name has an address") };
    assert!(socket.ip().is_loopback() && socket.port() == port);
}

#[test]
fn unresolvable_name_is_reported() {
    // The name is too long, so no name server is asked.
    let failure = found(&format!("redis://{}:7", "x".repeat(300)), PATIENCE).err().unwrap();
    assert!(
        matches!(failure.kind(), ErrorKind::Network(NetworkError::Unresolved(why)) if !why.contains("lookup")),
        "{failure}"
    );
}

/// Starts a Sentinel that takes the server at this port for the master, by a configuration of this
/// epoch; 0 for one that refuses to tell it.
fn sentinel(master: u16, epoch: u64) -> u16 {
    let address = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{master}\r\n", master.to_string().len());
    let fields = match epoch {
        0 => "-NOPERM no right to run 'sentinel|master'\r\n".to_owned(),
        _ => format!("*2\r\n$12\r\nconfig-epoch\r\n${}\r\n{epoch}\r\n", epoch.to_string().len()),
    };
    let answers = [("\r\nMASTER\r\n$6\r\nmaster", &*fields.leak()), ("get-master-addr-by-name", &*address.leak())];
    server(answers.to_vec().leak())
}

fn sentinels(ports: &[u16]) -> Arc<Target> {
    let nodes: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    target(&format!("redis+sentinel://{}/master", nodes.join(",")))
}

fn found_by(target: &Arc<Target>) -> Result<Address, Failure> {
    let Located::Pending(lookup) = locate(target, Seek::Start(0), Boottime::now() + PATIENCE)? else { panic!() };
    wait(&lookup)
}

const MASTER: &[(&str, &str)] = &[("ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"), ("PING", "+PONG\r\n")];
const REPLICA: &[(&str, &str)] = &[("ROLE", "*5\r\n$5\r\nslave\r\n$1\r\nx\r\n:1\r\n$9\r\nconnected\r\n:0\r\n")];

fn node(port: u16) -> Node {
    Node::Tcp { host: "127.0.0.1".to_owned(), port }
}

#[test]
fn master_is_named_by_the_sentinel_with_the_newest_epoch_and_confirms_its_role() {
    let (old, master) = (server(MASTER), server(MASTER));
    for epochs in [[3, 7, 3], [7, 3, 0], [0, 3, 7]] {
        let of = |epoch| sentinel(if epoch == 7 { master } else { old }, epoch);
        // A majority has to know it: the third Sentinel may answer too late.
        let also = sentinel(master, 7);
        let address = found_by(&sentinels(&[deserted(), of(epochs[0]), of(epochs[1]), of(epochs[2]), also])).unwrap();
        assert_eq!(address.node, node(master));
        // The connection is passed on as it is.
        let Way::Open(mut link) = address.way else { panic!("the lookup has connected") };
        let reply = blocking::ask(&mut link, &redis::cmd("PING"), Boottime::now() + PATIENCE).unwrap();
        assert_eq!(reply, Ok(Value::SimpleString("PONG".into())));
        assert!(matches!(link.advance(), Ok(None)));
    }
    let failure = found_by(&sentinels(&[sentinel(server(REPLICA), 7)])).err().unwrap();
    assert_eq!((failure.kind(), failure.is_transient()), (&ErrorKind::NotTheMaster, true));
}

/// The Sentinels may name the old master for good: it has lost a replica, and there is no failover.
#[test]
fn doubtful_master_is_taken_if_the_sentinels_name_no_other_in_time() {
    let (old, new) = (server(MASTER), server(MASTER));
    for (master, waits) in [(new, false), (old, true)] {
        let began = Boottime::now();
        let located = locate(&sentinels(&[sentinel(master, 7)]), Seek::After(node(old)), began + PATIENCE);
        let Ok(Located::Pending(lookup)) = located else { panic!() };
        assert_eq!(wait(&lookup).unwrap().node, node(master));
        assert!(!waits || Boottime::now() - began > Duration::from_secs(1));
    }
}

#[test]
fn silent_sentinel_is_not_awaited_for_long() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let master = server(MASTER);
    let began = Boottime::now();
    let target = sentinels(&[silent.local_addr().unwrap().port(), deserted(), sentinel(master, 1)]);
    assert_eq!(found_by(&target).unwrap().node, node(master));
    assert!(Boottime::now() - began < PATIENCE / 2);
    let alone = sentinels(&[silent.local_addr().unwrap().port()]);
    let Ok(Located::Pending(lookup)) = locate(&alone, Seek::Start(0), Boottime::now() + Duration::from_millis(100))
    else {
        panic!()
    };
    assert!(matches!(wait(&lookup).err().unwrap().kind(), ErrorKind::Network(NetworkError::TimedOut(_))));
}

/// The columns: what the Sentinels say when the server is looked for, and what they say later.
#[test]
fn server_is_the_master_until_a_newer_epoch_names_another_one() {
    let (old, new) = (server(MASTER), server(MASTER));
    for (before, after, is_master) in [
        ((old, 3), (old, 3), true),
        ((old, 3), (old, 4), true),
        ((old, 3), (new, 4), false),
        // A Sentinel that is behind.
        ((old, 3), (new, 2), true),
        ((old, 3), (new, 3), true),
        // A user without the right to ask for the epoch.
        ((old, 0), (new, 0), false),
        ((old, 0), (old, 0), true),
    ] {
        let target = sentinels(&[sentinel(before.0, before.1)]);
        let found = found_by(&target).unwrap();
        let target = sentinels(&[sentinel(after.0, after.1)]);
        let checked = wait(&check_master(&target, &found.node, found.epoch, Boottime::now() + PATIENCE).unwrap());
        assert_eq!(checked.is_ok(), is_master, "{before:?} {after:?}");
        assert!(checked.err().is_none_or(|failure| *failure.kind() == ErrorKind::NotTheMaster));
    }
    let target = sentinels(&[deserted()]);
    let checked = wait(&check_master(&target, &node(old), 3, Boottime::now() + PATIENCE).unwrap());
    assert!(checked.is_ok_and(|checked| matches!(checked.way, Way::Unknown)), "without an answer, nothing changes");
}

#[test]
fn unusable_sentinel_is_reported_with_its_reason() {
    for (reply, kind) in [
        ("*-1\r\n", ErrorKind::UnknownMaster("mine".to_owned())),
        ("-NOAUTH Authentication required.\r\n", ErrorKind::NoSentinelPassword),
        (
            "-ERR unknown command 'SENTINEL', with args beginning with: 'get-master-addr-by-name' 'mine'\r\n",
            ErrorKind::NotASentinel,
        ),
    ] {
        let port = server(vec![("MASTER", reply), ("get-master-addr-by-name", reply)].leak());
        // An error that no retry can fix is reported, whatever the later nodes reply.
        let url = format!("redis+sentinel://127.0.0.1:{port},127.0.0.1:{}/mine", deserted());
        assert_eq!(found(&url, PATIENCE).err().unwrap().kind(), &kind);
    }
}

#[test]
fn cluster_begins_at_a_node_that_answers() {
    const NODE: &[(&str, &str)] = &[("MYID", "$3\r\nabc\r\n")];
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let (one, other) = (server(NODE), server(NODE));
    let url =
        format!("redis+cluster://127.0.0.1:{},127.0.0.1:{silent_port},127.0.0.1:{one},127.0.0.1:{other}", deserted());
    // The silent node takes a third of the time.
    let address = found(&url, Duration::from_secs(6)).unwrap();
    assert_eq!(address.node, Node::Tcp { host: "127.0.0.1".to_owned(), port: one });
    assert!(matches!(address.way, Way::Open(_)));

    let Ok(Located::Pending(locating)) = locate(&target(&url), Seek::Start(7), Boottime::now() + PATIENCE) else {
        panic!()
    };
    assert_eq!(wait(&locating).unwrap().node, Node::Tcp { host: "127.0.0.1".to_owned(), port: other });
    drop(silent);
}

/// With many sessions, each lookup would wait for the silent node.
#[test]
fn silent_node_is_asked_by_the_first_lookup_only() {
    const NODE: &[(&str, &str)] = &[("MYID", "$3\r\nabc\r\n")];
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let target = target(&format!("redis+cluster://127.0.0.1:{silent_port},127.0.0.1:{}", server(NODE)));
    for patience in [Duration::from_secs(4), PATIENCE, PATIENCE] {
        let located = locate(&target, Seek::Start(0), Boottime::now() + patience);
        let Ok(Located::Pending(lookup)) = located else { panic!() };
        assert_eq!(wait(&lookup).unwrap().node, target.nodes[1]);
    }
    silent.set_nonblocking(true).unwrap();
    assert_eq!((0..3).filter(|_| silent.accept().is_ok()).count(), 1);
}
