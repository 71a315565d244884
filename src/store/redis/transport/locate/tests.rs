//! Lookups among servers that the tests simulate.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, poll};
use rustix::io::retry_on_intr;

use super::*;
use crate::clock::Boottime;
use crate::store::redis::interface::Redirect;

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
    for (url, sockets) in [
        ("redis://127.0.0.1:7", &["127.0.0.1:7"][..]),
        ("redis://[::1]:7", &["[::1]:7"]),
        ("redis+cluster://127.0.0.1:7", &["127.0.0.1:7"]),
        ("redis+unix:///proc/self/status", &[]),
    ] {
        match locate(&target(url), Seek::Start(3), Boottime::now()) {
            Ok(Located::Ready(address)) => {
                let expected: Vec<SocketAddr> = sockets.iter().map(|text| text.parse().unwrap()).collect();
                assert!(address.sockets == expected && address.open.is_none(), "{url}");
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
    let address = found("redis://localhost:7", PATIENCE).unwrap();
    assert!(address.sockets.iter().all(|socket| socket.ip().is_loopback() && socket.port() == 7));
    assert!(!address.sockets.is_empty());
}

#[test]
fn unresolvable_name_is_reported() {
    // The name is too long, so no name server is asked.
    let failure = found(&format!("redis://{}:7", "x".repeat(300)), PATIENCE).err().unwrap();
    assert!(matches!(failure.kind(), ErrorKind::Unresolved(why) if !why.contains("lookup")), "{failure}");
}

#[test]
fn master_is_named_by_a_sentinel_and_confirms_its_role() {
    const MASTER: &[(&str, &str)] = &[("ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"), ("PING", "+PONG\r\n")];
    const REPLICA: &[(&str, &str)] = &[("ROLE", "*5\r\n$5\r\nslave\r\n$1\r\nx\r\n:1\r\n$9\r\nconnected\r\n:0\r\n")];
    let says = |port: u16| -> u16 {
        let reply = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.to_string().len());
        server(vec![("get-master-addr-by-name\r\n$6\r\nmaster\r\n", &*reply.leak())].leak())
    };
    let replica = server(REPLICA);
    let master = server(MASTER);
    let lost = says(deserted());
    let late = says(replica);
    let right = says(master);
    let url =
        format!("redis+sentinel://127.0.0.1:{},127.0.0.1:{lost},127.0.0.1:{late},127.0.0.1:{right}/master", deserted());
    let mut address = found(&url, PATIENCE).unwrap();
    assert_eq!(address.node, Node::Tcp { host: "127.0.0.1".to_owned(), port: master });
    // The connection is passed on as it is.
    let mut link = *address.open.take().unwrap();
    let reply = blocking::ask(&mut link, &redis::cmd("PING"), Boottime::now() + PATIENCE).unwrap();
    assert_eq!(reply, Ok(Value::SimpleString("PONG".into())));
    assert!(matches!(link.advance(), Ok(None)));

    let url = format!("redis+sentinel://127.0.0.1:{late}/master");
    let failure = found(&url, PATIENCE).err().unwrap();
    assert_eq!((failure.kind(), failure.is_transient()), (&ErrorKind::NotTheMaster, true));
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
        let port = server(vec![("SENTINEL", reply)].leak());
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
    assert!(address.open.is_some());

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
