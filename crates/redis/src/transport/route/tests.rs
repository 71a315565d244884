//! A route against a server that the tests simulate.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use tempfile::TempDir;

use super::*;
use crate::interface::Redirect;
use crate::transport::blocking;
use rlock_store::network::{NetworkError, Stage};
use rlock_sys::clock::Boottime;

/// A conversation that issues its actions and collects events until there are `expected`.
struct Scripted {
    actions: VecDeque<Action>,
    events: Vec<Event>,
    expected: usize,
}

impl Conversation for Scripted {
    fn on(&mut self, event: Event, _now: Boottime) {
        self.events.push(event);
    }

    fn tick(&mut self, _now: Boottime) {}

    fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn timeout(&self) -> Option<Boottime> {
        None
    }

    fn is_over(&self) -> bool {
        self.events.len() >= self.expected
    }
}

struct Server {
    /// This keeps the socket.
    _dir: TempDir,
    listener: UnixListener,
    route: Route,
}

impl Server {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let target = Target::parse(&format!("redis+unix://{}", path.display())).unwrap().unwrap();
        let route = Route::new(Arc::new(target), Duration::from_secs(60), 1 << 20);
        Self { _dir: dir, listener, route }
    }

    /// Executes the actions until this number of events has arrived.
    fn run<const N: usize>(&mut self, actions: [Action; N], expected: usize) -> Vec<Event> {
        let mut scripted = Scripted { actions: actions.into(), events: Vec::new(), expected };
        blocking::run(&mut self.route, &mut scripted);
        scripted.events
    }

    /// Opens a connection. With `asking`, each command needs ASKING.
    fn connect(&mut self, asking: bool) -> UnixStream {
        let node = self.route.target.nodes[0].clone();
        let seek = if asking { Seek::Redirect(Redirect { node, asking }) } else { Seek::Start(0) };
        let events = self.run([Action::Open(seek)], 1);
        assert!(matches!(events[..], [Event::Connecting(_)]));
        self.listener.accept().unwrap().0
    }
}

fn ping() -> Action {
    Action::Send(redis::cmd("PING"))
}

fn read(stream: &mut UnixStream, commands: &[&[&str]]) {
    let mut expected = String::new();
    for command in commands {
        expected += &format!("*{}\r\n", command.len());
        command.iter().for_each(|word| expected += &format!("${}\r\n{word}\r\n", word.len()));
    }
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}

#[test]
fn asking_goes_before_each_command_and_its_reply_is_not_reported() {
    let mut server = Server::new();
    let mut stream = server.connect(true);
    stream.write_all(b"+OK\r\n+ONE\r\n+OK\r\n+TWO\r\n").unwrap();
    let events = server.run([ping(), ping()], 2);
    read(&mut stream, &[&["ASKING"], &["PING"], &["ASKING"], &["PING"]]);
    let texts: Vec<_> = events.iter().map(|event| matches!(event, Event::Reply(Ok(_)))).collect();
    assert_eq!(texts, [true, true]);
}

#[test]
fn subscription_reports_only_its_messages_and_its_failure() {
    let mut server = Server::new();
    let mut stream = server.connect(false);
    let confirmed = b"%0\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n";
    stream.write_all(confirmed).unwrap();
    let events = server.run([Action::Subscribe("c".to_owned())], 1);
    read(&mut stream, &[&["HELLO", "3"], &["SUBSCRIBE", "c"]]);
    assert_eq!(events, [Event::Message("c".to_owned())]);
    stream.write_all(b"-NOPERM no\r\n+PONG\r\n").unwrap();
    let events = server.run([Action::Subscribe("d".to_owned()), ping()], 2);
    read(&mut stream, &[&["SUBSCRIBE", "d"], &["PING"]]);
    assert!(matches!(&events[..], [Event::SubscribeFailed(channel, _), Event::Reply(Ok(_))] if channel == "d"));
}

#[test]
fn subscription_that_the_conversation_ends_is_not_a_failure() {
    let mut server = Server::new();
    let mut stream = server.connect(false);
    let subscribed = &b"%0\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"[..];
    let unsubscribed = b">3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n+PONG\r\n";
    stream.write_all(&[subscribed, unsubscribed].concat()).unwrap();
    let channel = || "c".to_owned();
    let events = server.run([Action::Subscribe(channel()), Action::Unsubscribe(channel()), ping()], 1);
    read(&mut stream, &[&["HELLO", "3"], &["SUBSCRIBE", "c"], &["UNSUBSCRIBE", "c"], &["PING"]]);
    assert!(matches!(events[..], [Event::Reply(Ok(_))]));
}

#[test]
fn lost_subscription_and_failed_addition_are_failures() {
    for sent in [&b"%0\r\n>3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n"[..], b"-ERR unknown command 'HELLO'\r\n"] {
        let mut server = Server::new();
        let mut stream = server.connect(false);
        stream.write_all(sent).unwrap();
        let events = server.run([Action::Subscribe("c".to_owned())], 1);
        assert!(matches!(events[..], [Event::Failed(_)]));
    }
}

#[test]
fn connection_set_aside_still_reports_its_replies() {
    let mut server = Server::new();
    let mut old = server.connect(false);
    server.run([ping()], 0);
    server.run([Action::SetAside], 0);
    assert!(server.route.descriptor().is_none());
    let mut new = server.connect(false);
    new.write_all(b"+NEW\r\n").unwrap();
    let events = server.run([ping()], 1);
    assert!(matches!(events[..], [Event::Reply(Ok(_))]));
    old.write_all(b"+OLD\r\n").unwrap();
    let events = server.run([Action::ReadAside], 1);
    assert!(matches!(events[..], [Event::Aside(Ok(_))]));
}

/// A connection to a master that had so many replicas.
fn connect_to_master(server: &mut Server, replicas: usize) -> UnixStream {
    let stream = server.connect(false);
    let State::Open(link) = &mut server.route.connection.state else { panic!("the server has an address") };
    link.replicas = Some(replicas);
    stream
}

fn role(replicas: usize) -> String {
    format!("*3\r\n$6\r\nmaster\r\n:0\r\n*{replicas}\r\n{}", "*0\r\n".repeat(replicas))
}

#[test]
fn command_waits_until_the_master_has_told_its_replicas() {
    for (told, leaves) in [(2, true), (1, false)] {
        let mut server = Server::new();
        let mut stream = connect_to_master(&mut server, 2);
        let master = thread::spawn(move || {
            read(&mut stream, &[&["ROLE"]]);
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            assert!(stream.read(&mut [0; 100]).is_err(), "nothing follows before the answer");
            stream.set_read_timeout(None).unwrap();
            stream.write_all(role(told).as_bytes()).unwrap();
            if leaves {
                read(&mut stream, &[&["PING"]]);
                stream.write_all(b"+PONG\r\n").unwrap();
            }
            stream.read(&mut [0; 100]).unwrap()
        });
        let events = server.run([Action::CheckReplicas, ping()], 1);
        match &events[..] {
            [Event::Reply(Ok(_))] => assert!(leaves),
            [Event::Failed(failure)] => assert_eq!((failure.kind(), leaves), (&ErrorKind::LostReplica, false)),
            other => panic!("{other:?}"),
        }
        drop(server);
        assert_eq!(master.join().unwrap(), 0, "nothing else has left");
    }
}

#[test]
fn command_that_waits_for_the_master_does_not_leave_over_a_connection_set_aside() {
    let mut server = Server::new();
    let mut old = connect_to_master(&mut server, 1);
    server.run([Action::CheckReplicas, ping()], 0);
    assert_eq!(server.route.next_event(Boottime::now()), None);
    read(&mut old, &[&["ROLE"]]);
    server.run([Action::SetAside], 0);
    old.write_all(role(1).as_bytes()).unwrap();
    server.run([Action::ReadAside], 0);
    drop(server);
    assert_eq!(old.read(&mut [0; 100]).unwrap(), 0);
}

#[test]
fn closed_connection_drops_unsent_commands() {
    let mut server = Server::new();
    let mut first = server.connect(false);
    server.run([ping(), Action::Close], 0);
    let mut bytes = Vec::new();
    first.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"");
    let mut second = server.connect(false);
    second.write_all(b"+PONG\r\n").unwrap();
    assert_eq!(server.run([ping()], 1).len(), 1);
    read(&mut second, &[&["PING"]]);
}

#[test]
fn timeout_names_the_stage_of_the_connection() {
    let mut server = Server::new();
    let stage = |events: Vec<Event>| match &events[..] {
        [Event::TimedOut(failure)] => failure.kind().clone(),
        _ => panic!("a timeout is reported"),
    };
    let report = || [Action::ReportTimeout];
    assert_eq!(stage(server.run(report(), 1)), ErrorKind::Network(NetworkError::TimedOut(Stage::Connecting)));
    let mut stream = server.connect(false);
    stream.write_all(b"+PONG\r\n").unwrap();
    server.run([ping()], 1);
    assert_eq!(stage(server.run(report(), 1)), ErrorKind::Network(NetworkError::TimedOut(Stage::Used)));
}
