//! A link against servers that the tests simulate.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::blocking;
use super::*;
use rlock_store::network::resolve::connect_first;
use rlock_store::network::{NetworkError, Stage};
use rlock_sys::clock::Boottime;

/// Longer than any test needs on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn target(url: &str) -> Target {
    Target::parse(url).unwrap().unwrap().with_password(None, None, Duration::ZERO).unwrap()
}

struct Server {
    dir: TempDir,
    listener: UnixListener,
}

impl Server {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        Self { dir, listener }
    }

    /// Returns a link to the server and the server's end of the connection. `userinfo` and `query`
    /// are the parts of the URL beside the path.
    fn link(&self, userinfo: &str, query: &str) -> (Link, UnixStream) {
        let target = target(&format!("redis+unix://{userinfo}{}/socket{query}", self.dir.path().display()));
        let link = Link::open(&target, address(&target)).unwrap();
        (link, self.listener.accept().unwrap().0)
    }
}

fn address(target: &Target) -> Address {
    Address::new(&target.nodes[0], Way::Path)
}

fn tcp(listener: &TcpListener) -> (Target, Address) {
    let bound = listener.local_addr().unwrap();
    let target = target(&format!("redis://127.0.0.1:{}", bound.port()));
    let address = Address::new(&target.nodes[0], Way::Socket(bound));
    (target, address)
}

/// Returns the next reply or push, as the poll loop would get it.
fn arrival(link: &mut Link) -> Result<Event, Failure> {
    loop {
        if let Some(event) = link.advance()? {
            return Ok(event);
        }
        blocking::wait_for(link, Boottime::now() + PATIENCE)?;
    }
}

fn read_exactly(stream: &mut impl Read, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}

fn ping() -> Cmd {
    redis::cmd("PING")
}

fn text(value: &str) -> Value {
    Value::BulkString(value.as_bytes().to_vec())
}

/// A value in the encoding of a server.
fn encoded(value: &Value) -> Vec<u8> {
    let items = |sign: char, items: &[Value]| {
        let mut bytes = format!("{sign}{}\r\n", items.len()).into_bytes();
        items.iter().for_each(|item| bytes.extend(encoded(item)));
        bytes
    };
    match value {
        Value::Nil => b"$-1\r\n".to_vec(),
        Value::Int(number) => format!(":{number}\r\n").into_bytes(),
        Value::BulkString(bytes) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
        Value::Okay => b"+OK\r\n".to_vec(),
        Value::SimpleString(text) => format!("+{text}\r\n").into_bytes(),
        Value::Array(array) => items('*', array),
        Value::Set(array) => items('~', array),
        Value::Map(pairs) => {
            let mut bytes = format!("%{}\r\n", pairs.len()).into_bytes();
            pairs.iter().for_each(|(key, value)| bytes.extend([encoded(key), encoded(value)].concat()));
            bytes
        }
        other => unreachable!("{other:?} is not among those that the tests send"),
    }
}

fn values() -> impl Strategy<Value = Value> {
    let simple = prop_oneof![
        Just(Value::Nil),
        Just(Value::Okay),
        any::<i64>().prop_map(Value::Int),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
        "[a-z ]{0,9}".prop_filter("has a value of its own", |text| text != "OK").prop_map(Value::SimpleString),
    ];
    simple.prop_recursive(4, 40, 6, |inner| {
        let several = proptest::collection::vec(inner.clone(), 0..6);
        prop_oneof![
            several.clone().prop_map(Value::Array),
            several.prop_map(Value::Set),
            proptest::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// However the network splits the replies, the link returns each reply whole, in order, and as
    /// soon as its last byte has arrived.
    #[test]
    fn replies_in_pieces_are_parsed_whole_and_in_order(replies in proptest::collection::vec(values(), 1..5), cuts in any::<u64>()) {
        let server = Server::new();
        let (mut link, mut stream) = server.link("", "");
        for _ in &replies {
            link.send(&ping(), Expected::Command);
        }
        prop_assert_eq!(link.advance().unwrap(), None);
        for (at, reply) in replies.iter().enumerate() {
            let bytes = encoded(reply);
            // The bytes arrive one by one, or in a few pieces.
            let piece = if cuts >> (at % 64) & 1 == 0 { 1 } else { 7 };
            let mut pieces = bytes.chunks(piece).peekable();
            while let Some(part) = pieces.next() {
                stream.write_all(part).unwrap();
                let arrived = link.advance().unwrap();
                let expected = pieces.peek().is_none().then(|| Event::Reply(Ok(reply.clone())));
                prop_assert_eq!(arrived, expected);
            }
            prop_assert_eq!(link.advance().unwrap(), None);
        }
    }
}

#[test]
fn queued_commands_leave_in_one_write_after_the_login() {
    let server = Server::new();
    let (mut link, mut stream) = server.link("me:pass@", "?db=2");
    link.send(&ping(), Expected::Command);
    link.send(&ping(), Expected::Command);
    assert_eq!(link.advance().unwrap(), None);
    let mut bytes = [0; 1000];
    let count = stream.read(&mut bytes).unwrap();
    let expected = "*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$4\r\npass\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n2\r\n\
                    *1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n";
    assert_eq!(std::str::from_utf8(&bytes[..count]).unwrap(), expected);
    // The link does not report the replies to the login.
    stream.write_all(b"+OK\r\n+OK\r\n+PONG\r\n:7\r\n").unwrap();
    assert_eq!(arrival(&mut link).unwrap(), Event::Reply(Ok(Value::SimpleString("PONG".into()))));
    assert_eq!(link.advance().unwrap(), Some(Event::Reply(Ok(Value::Int(7)))));
    assert_eq!(link.advance().unwrap(), None);
}

#[test]
fn failed_login_reports_its_reason_and_quotes_no_password() {
    let cases = [
        ("-WRONGPASS invalid username-password pair or user is disabled.\r\n", ErrorKind::WrongPassword),
        ("-ERR max number of clients reached\r\n", ErrorKind::TooManyClients),
        ("-ERR unknown command 'AUTH', with args beginning with: 'secret'\r\n", ErrorKind::TooOld),
        ("-ERR sorry: secret\r\n", ErrorKind::LoginFailed),
        ("+OK\r\n-ERR DB index is out of range\r\n", ErrorKind::NoDatabase),
    ];
    for (reply, kind) in cases {
        let server = Server::new();
        let (mut link, mut stream) = server.link(":secret@", "?db=99");
        stream.write_all(reply.as_bytes()).unwrap();
        let failure = arrival(&mut link).unwrap_err();
        assert_eq!(failure.kind(), &kind);
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
}

#[test]
fn client_sets_its_name_with_the_login_and_goes_on_if_that_fails() {
    let cases = [
        ("+OK\r\n", None),
        ("-NOPERM User bob has no permissions to run the 'client|setname' command\r\n", None),
        ("-ERR unknown command 'CLIENT', with args beginning with: 'SETNAME'\r\n", None),
        ("-ERR Client names cannot contain spaces, newlines or special characters.\r\n", None),
        ("-ERR max number of clients reached\r\n", Some(ErrorKind::TooManyClients)),
        ("-NOAUTH Authentication required.\r\n", Some(ErrorKind::NoPassword)),
    ];
    for (reply, kind) in cases {
        let server = Server::new();
        let target = target(&format!("redis+unix://{}/socket", server.dir.path().display())).named("ho st\u{fc}", 7);
        let mut link = Link::open(&target, address(&target)).unwrap();
        let mut stream = server.listener.accept().unwrap().0;
        link.send(&ping(), Expected::Command);
        assert_eq!(link.advance().unwrap(), None);
        read_exactly(
            &mut stream,
            "*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$14\r\nrlock:ho_st_:7\r\n*1\r\n$4\r\nPING\r\n",
        );
        stream.write_all(reply.as_bytes()).unwrap();
        stream.write_all(b"+PONG\r\n").unwrap();
        match kind {
            None => assert!(matches!(arrival(&mut link), Ok(Event::Reply(Ok(_))))),
            Some(kind) => assert_eq!(arrival(&mut link).unwrap_err().kind(), &kind),
        }
    }
}

#[test]
fn cluster_login_checks_that_the_node_is_one() {
    let cases = [
        (&b"-ERR This instance has cluster support disabled\r\n"[..], Some(ErrorKind::NotACluster)),
        (b"$3\r\nabc\r\n", None),
        (b"-NOPERM User bob has no permissions to run the 'cluster|myid' command\r\n", None),
    ];
    for (reply, kind) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_, address) = tcp(&listener);
        let target = target("redis+cluster://node");
        let mut link = Link::open(&target, address).unwrap();
        link.send(&ping(), Expected::Command);
        let mut stream = listener.accept().unwrap().0;
        assert_eq!(link.advance().unwrap(), None);
        read_exactly(&mut stream, "*2\r\n$7\r\nCLUSTER\r\n$4\r\nMYID\r\n*1\r\n$4\r\nPING\r\n");
        stream.write_all(reply).unwrap();
        stream.write_all(b"+PONG\r\n").unwrap();
        match kind {
            None => assert!(matches!(arrival(&mut link), Ok(Event::Reply(Ok(_))))),
            Some(kind) => assert_eq!(arrival(&mut link).unwrap_err().kind(), &kind),
        }
    }
}

#[test]
fn errors_are_replies_and_pushes_may_come_between_them() {
    let server = Server::new();
    let (mut link, mut stream) = server.link("", "");
    link.send(&ping(), Expected::Command);
    link.send(redis::cmd("SUBSCRIBE").arg("c"), Expected::Subscription("c".to_owned()));
    link.send(&ping(), Expected::Command);
    assert_eq!(link.advance().unwrap(), None);
    let message: &[u8] = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n";
    let subscribed: &[u8] = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    let shard: &[u8] = b">3\r\n+smessage\r\n$1\r\nc\r\n$2\r\nhi\r\n>3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n";
    let other: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
    let noscript: &[u8] = b"-NOSCRIPT No matching script\r\n";
    stream.write_all(&[message, noscript, subscribed, other, b"+PONG\r\n", shard].concat()).unwrap();
    assert_eq!(arrival(&mut link).unwrap(), Event::Message("c".to_owned()));
    match link.advance().unwrap() {
        Some(Event::Reply(Err(error))) => assert_eq!(error.code(), "NOSCRIPT"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(link.advance().unwrap(), Some(Event::Reply(Ok(_)))), "the subscription has no reply");
    assert_eq!(link.advance().unwrap(), Some(Event::Message("c".to_owned())));
    assert_eq!(
        link.advance().unwrap_err().kind(),
        &ErrorKind::Network(NetworkError::Closed(Stage::Used)),
        "the subscription has ended"
    );
    assert_eq!(link.advance().unwrap(), None);
}

#[test]
fn question_times_out_at_its_deadline() {
    let server = Server::new();
    let (mut link, stream) = server.link("", "");
    let failure = blocking::ask(&mut link, &ping(), Boottime::now() + Duration::from_millis(20)).unwrap_err();
    assert_eq!(failure.kind(), &ErrorKind::Network(NetworkError::TimedOut(Stage::Silent)));
    drop(stream);
}

/// The replica may be the next master.
#[test]
fn master_fails_if_it_tells_fewer_replicas_than_before() {
    let (one, none) = ("*3\r\n$6\r\nmaster\r\n:0\r\n*1\r\n*0\r\n", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
    for (before, role, fails) in [
        (Some(1), none, true),
        (Some(2), one, true),
        (Some(1), one, false),
        (Some(0), one, false),
        (None, none, false),
        (Some(1), "-NOPERM this user has no permissions to run the 'role' command\r\n", false),
        (Some(1), "*5\r\n$5\r\nslave\r\n$1\r\nx\r\n:1\r\n$9\r\nconnected\r\n:0\r\n", false),
    ] {
        let server = Server::new();
        let (mut link, mut stream) = server.link("", "");
        link.replicas = before;
        link.send(&redis::cmd("ROLE"), Expected::Role);
        link.send(&ping(), Expected::Command);
        stream.write_all(&[role.as_bytes(), b"+PONG\r\n"].concat()).unwrap();
        let arrived = arrival(&mut link);
        assert_eq!(arrived.is_err_and(|failure| *failure.kind() == ErrorKind::LostReplica), fails, "{before:?} {role}");
    }
}

#[test]
fn reply_before_a_close_is_read() {
    let server = Server::new();
    let (mut link, mut stream) = server.link("", "");
    stream.write_all(b"-ERR max number of clients reached\r\n").unwrap();
    drop(stream);
    link.send(&ping(), Expected::Command);
    match arrival(&mut link).unwrap() {
        Event::Reply(Err(error)) => assert_eq!(ErrorKind::from_reply(&error), ErrorKind::TooManyClients),
        other => panic!("{other:?}"),
    }
    assert_eq!(arrival(&mut link).unwrap_err().kind(), &ErrorKind::Network(NetworkError::Closed(Stage::Used)));
}

#[test]
fn close_in_the_middle_of_a_reply_is_reported() {
    let server = Server::new();
    let (mut link, mut stream) = server.link("", "");
    link.send(&ping(), Expected::Command);
    stream.write_all(b"$10\r\nabc").unwrap();
    drop(stream);
    let failure = arrival(&mut link).unwrap_err();
    assert!(
        matches!(failure.kind(), ErrorKind::Network(NetworkError::Closed(_))) && failure.is_transient(),
        "{failure}"
    );
}

#[test]
fn other_protocols_are_recognised() {
    let cases = [
        (&b"HTTP/1.1 400 Bad Request\r\n"[..], ErrorKind::NotRedis),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", ErrorKind::NotRedis),
        (b"\x15\x03\x03\x00\x02\x02\x28", ErrorKind::Network(NetworkError::IsTls)),
    ];
    for (bytes, kind) in cases {
        let server = Server::new();
        let (mut link, mut stream) = server.link("", "");
        link.send(&ping(), Expected::Command);
        stream.write_all(bytes).unwrap();
        assert_eq!(arrival(&mut link).unwrap_err().kind(), &kind);
    }
}

/// More bytes than the buffers of the kernel take. The rest is sent when there is room, and no call
/// blocks until then.
#[test]
fn slow_reader_blocks_no_write() {
    let server = Server::new();
    let (mut link, mut stream) = server.link("", "");
    link.raise_reply_max(8 << 20);
    let long = "x".repeat(4 << 20);
    link.send(redis::cmd("ECHO").arg(&long), Expected::Command);
    assert_eq!(link.advance().unwrap(), None);
    assert!(link.descriptor().1.contains(PollFlags::OUT));
    let expected = encoded(&Value::Array(vec![text("ECHO"), text(&long)]));
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; expected.len()];
        stream.read_exact(&mut bytes).unwrap();
        assert!(bytes == expected);
        stream.write_all(&encoded(&text(&long))).unwrap();
        long
    });
    let arrived = arrival(&mut link).unwrap();
    assert_eq!(arrived, Event::Reply(Ok(text(&reader.join().unwrap()))));
    assert_eq!(link.descriptor().1, PollFlags::IN);
}

/// Sends `head` once and then `piece` without end.
fn flood(mut stream: UnixStream, head: &str, piece: &str) -> std::thread::JoinHandle<()> {
    let (head, piece) = (head.to_owned(), piece.repeat(10_000));
    std::thread::spawn(move || {
        let mut sent = stream.write_all(head.as_bytes());
        while sent.is_ok() {
            sent = stream.write_all(piece.as_bytes());
        }
    })
}

#[test]
fn peer_that_never_stops_sending_does_not_starve_the_loop() {
    for piece in [">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n", ">2\r\n+other\r\n:1\r\n", "+OK\r\n"] {
        let server = Server::new();
        let (mut link, stream) = server.link("", "");
        let flood = flood(stream, "", piece);
        for _ in 0..10 {
            blocking::wait_for(&link, Boottime::now() + PATIENCE).unwrap();
            // One turn reads fewer messages than this.
            let messages = (0..3 * 16 * 1024 / piece.len()).take_while(|_| link.advance().unwrap().is_some()).count();
            assert!(messages < 3 * 16 * 1024 / piece.len(), "{piece:?}: no turn ended");
        }
        drop(link);
        flood.join().unwrap();
    }
}

#[test]
fn question_to_a_peer_that_never_stops_sending_times_out() {
    let server = Server::new();
    let (mut link, stream) = server.link("", "");
    let flood = flood(stream, "", ">2\r\n+other\r\n:1\r\n");
    let failure = blocking::ask(&mut link, &ping(), Boottime::now() + Duration::from_millis(20)).unwrap_err();
    assert_eq!(failure.kind(), &ErrorKind::Network(NetworkError::TimedOut(Stage::Used)));
    drop(link);
    flood.join().unwrap();
}

#[test]
fn endless_value_is_a_reply_that_is_too_long() {
    let nested = "*1000000\r\n".repeat(90);
    let endless = [
        ("$10000000000\r\n", "x"),
        ("+", "x"),
        ("*1000000000\r\n", ":1\r\n"),
        (&nested, "_\r\n"),
        ("%1000000000\r\n", "*0\r\n"),
    ];
    for (head, piece) in endless {
        let server = Server::new();
        let (mut link, stream) = server.link("", "");
        let flood = flood(stream, head, piece);
        let failure = arrival(&mut link).unwrap_err();
        assert_eq!(failure.kind(), &ErrorKind::ReplyTooLong, "{head:?}");
        // Later calls return the same error.
        assert_eq!(link.advance().unwrap_err().kind(), &ErrorKind::ReplyTooLong, "{head:?}");
        drop(link);
        flood.join().unwrap();
    }
}

#[test]
fn largest_reply_is_accepted_again_and_again() {
    let server = Server::new();
    let (mut link, mut stream) = server.link("", "");
    let long = text(&"x".repeat(REPLY_MAX - 100));
    let bytes = encoded(&long).repeat(3);
    let writer = std::thread::spawn(move || stream.write_all(&bytes).map(|()| stream).unwrap());
    for _ in 0..3 {
        assert_eq!(arrival(&mut link).unwrap(), Event::Reply(Ok(long.clone())));
    }
    drop(writer.join().unwrap());
}

/// Returns a free port without a listener.
fn deserted() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The first address of several accepts a connection and says nothing.
#[test]
fn address_that_answers_is_the_first_of_the_next_connection() {
    let [silent, listener] = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [&silent, &listener].map(|listener| listener.local_addr().unwrap());
    let (target, _) = tcp(&listener);
    let link = |tried: &[SocketAddr]| {
        let (socket, address) = connect_first(tried, Boottime::now() + PATIENCE).unwrap();
        target.order.accepted(address);
        Link::open(&target, Address::new(&target.nodes[0], Way::Connected(socket, address))).unwrap()
    };
    let order = || {
        let mut order = addresses;
        target.order.sort(&mut order);
        order
    };
    let mut first = link(&order());
    assert!(blocking::ask(&mut first, &ping(), Boottime::now()).is_err_and(|failure| failure.is_transient()));
    assert_eq!(order(), [addresses[1], addresses[0]]);

    let mut second = link(&order());
    let server = std::thread::spawn(move || {
        let mut stream: TcpStream = listener.accept().unwrap().0;
        read_exactly(&mut stream, "*1\r\n$4\r\nPING\r\n");
        stream.write_all(b"+PONG\r\n").unwrap();
    });
    let reply = blocking::ask(&mut second, &ping(), Boottime::now() + PATIENCE).unwrap();
    assert_eq!(reply, Ok(Value::SimpleString("PONG".into())));
    server.join().unwrap();
    assert_eq!(order(), [addresses[1], addresses[0]]);
}

#[test]
fn refused_connection_is_reported() {
    let target = target("redis://127.0.0.1:1");
    let address = Address::new(&target.nodes[0], Way::Socket(deserted()));
    let refused =
        Link::open(&target, address).and_then(|mut link| blocking::ask(&mut link, &ping(), Boottime::now() + PATIENCE));
    let failure = refused.unwrap_err();
    assert_eq!(failure.kind(), &ErrorKind::Network(NetworkError::Refused));
    assert!(failure.to_string().starts_with("'redis://127.0.0.1:1' refused"), "{failure}");
}

#[test]
fn missing_socket_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let target = target(&format!("redis+unix://{}/none", dir.path().display()));
    assert_eq!(
        Link::open(&target, address(&target)).err().unwrap().kind(),
        &ErrorKind::Network(NetworkError::NoSocket)
    );
}

#[test]
fn full_queue_of_a_unix_socket_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    let target = target(&format!("redis+unix://{}", path.display()));
    assert_eq!(
        Link::open(&target, address(&target)).err().unwrap().kind(),
        &ErrorKind::Network(NetworkError::QueueFull)
    );
}

#[test]
fn connection_of_the_lookup_is_used() {
    let server = Server::new();
    let (link, mut stream) = server.link("", "");
    let target = target("redis://elsewhere");
    let address = Address::new(&target.nodes[0], Way::Open(Box::new(link)));
    let mut link = Link::open(&target, address).unwrap();
    link.send(&ping(), Expected::Command);
    assert_eq!(link.advance().unwrap(), None);
    read_exactly(&mut stream, "*1\r\n$4\r\nPING\r\n");
}

#[test]
fn slow_accept_loses_no_command() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (target, address) = tcp(&listener);
    let mut link = Link::open(&target, address).unwrap();
    link.send(&ping(), Expected::Command);
    assert_eq!(link.advance().unwrap(), None);
    let mut stream = listener.accept().unwrap().0;
    while link.stream.stage() == Stage::Connecting {
        blocking::wait_for(&link, Boottime::now() + PATIENCE).unwrap();
        link.advance().unwrap();
    }
    read_exactly(&mut stream, "*1\r\n$4\r\nPING\r\n");
    stream.write_all(b"+PONG\r\n").unwrap();
    assert!(matches!(arrival(&mut link).unwrap(), Event::Reply(Ok(_))));
}
