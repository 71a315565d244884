//! A network that is cut inside a message, at each byte of it: the server never hears the rest, nor
//! that nobody is there any more. Meanwhile another client of the namespace gets the lock.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use crate::Target;
use crate::client::task;
use crate::exchange::{Exchange, Question};
use crate::rows::Stop;
use crate::step::{Progress, Step, Task};
use crate::work::{Work, ranges};
use rlock_model::op::{Op, Reply};
use rlock_model::request::SessionId;
use rlock_store::engine::Engine as _;
use rlock_store::lease::Retry;
use rlock_sys::clock::Boottime;
use rlock_testkit::servers::postgres::Postgres as Server;

/// How long another client waits on a machine that also does other work. Before the server bounded
/// each message, the wait had no end.
const LIMIT: Duration = Duration::from_secs(30);
/// How many clients are cut at once, each in a namespace of its own.
const AT_ONCE: usize = 8;

/// A transaction of all messages that there are: the first, the one that makes the row of the
/// namespace, a read of more rows, and the commit.
fn long_task() -> Task<Reply> {
    let run = |work: &mut Work| -> Result<Reply, Stop> {
        work.fetch([SessionId([9; 16])])?;
        work.wake(SessionId([8; 16]));
        work.apply(Op::Renew(SessionId([9; 16])))
    };
    task(ranges([], []), run)
}

/// A client whose network can be cut.
struct Client {
    stream: UnixStream,
    inbox: BytesMut,
    pid: i32,
}

impl Client {
    fn new(server: &Server) -> Self {
        let stream = UnixStream::connect(server.socket()).unwrap();
        let mut client = Self { stream, inbox: BytesMut::new(), pid: 0 };
        let mut out = BytesMut::new();
        frontend::startup_message([("user", "tester"), ("database", "postgres")], &mut out).unwrap();
        client.stream.write_all(&out).unwrap();
        loop {
            match client.message().expect("the server lets the client in") {
                Message::BackendKeyData(body) => client.pid = body.process_id(),
                Message::ReadyForQuery(_) => return client,
                _ => {}
            }
        }
    }

    /// The next message, unless the server has ended the connection.
    fn message(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = Message::parse(&mut self.inbox).unwrap() {
                return Some(message);
            }
            let mut read = [0; 1 << 14];
            let count = self.stream.read(&mut read).ok().filter(|count| *count > 0)?;
            self.inbox.extend_from_slice(&read[..count]);
        }
    }

    /// Carries out a transaction up to a byte of a message. Gives the lengths of the messages,
    /// unless this machine was so slow that the server has ended the transaction before.
    fn speak(&mut self, namespace: &str, message: usize, byte: usize) -> Option<Vec<usize>> {
        let mut step = Step::new(long_task(), namespace.into(), self.pid, 0);
        let (mut out, mut lengths) = (step.begin(), Vec::new());
        loop {
            let end = if lengths.len() == message { byte.min(out.len() - 1) } else { out.len() };
            self.stream.write_all(&out[..end]).ok()?;
            lengths.push(out.len());
            if end < out.len() {
                return Some(lengths);
            }
            out = loop {
                match step.on(self.message()?) {
                    Progress::Nothing => {}
                    Progress::Send(bytes) => break bytes,
                    Progress::Done(..) => return Some(lengths),
                    Progress::Failed(kind) => panic!("the transaction fails: {kind:?}"),
                }
            };
        }
    }
}

/// "Whatever the instant at which its network is cut": an ordinary run tries some of the bytes.
#[test]
fn client_that_is_cut_at_any_byte_keeps_the_others_for_a_moment_only() {
    if !Server::is_present() {
        return;
    }
    let server = Server::start(&[]);
    let target = || Arc::new(Target::parse(&server.url()).unwrap().unwrap());
    let ask = |namespace: &str| {
        let until = Boottime::now() + LIMIT;
        Question::new(long_task(), Retry::WhileUp, until).run(&mut Exchange::new(target(), namespace.into(), LIMIT))
    };
    ask("tables").unwrap();
    let until_cut = |namespace: &str, message, byte| loop {
        let mut client = Client::new(&server);
        if let Some(lengths) = client.speak(namespace, message, byte) {
            break (client, lengths);
        }
    };
    let (_, lengths) = until_cut("whole", usize::MAX, 0);
    assert_eq!(lengths.len(), 4, "the transaction has all messages");
    let each = rlock_testkit::share::share(37, 1);
    let cuts: Vec<_> = lengths
        .iter()
        .enumerate()
        .flat_map(|(message, len)| {
            (0..*len).filter(move |byte| byte % each == 0 || byte + 6 > *len).map(move |byte| (message, byte))
        })
        .collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((message, byte)) = cuts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let namespace = format!("cut {message} {byte}");
                    if *message == 0 {
                        // There is a row to lock.
                        ask(&namespace).unwrap();
                    }
                    let (client, _) = until_cut(&namespace, *message, *byte);
                    let begun = Instant::now();
                    let asked = ask(&namespace);
                    assert!(asked.is_ok(), "byte {byte} of message {message}: {asked:?} after {:?}", begun.elapsed());
                    // The network of the client was there all the time.
                    drop(client);
                }
            });
        }
    });
}
