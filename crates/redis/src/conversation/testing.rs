//! Helpers for the tests of the conversations: replies as events, and actions as text.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ServerError, Value};

use super::exchange::Exchange;
use crate::codec::{Setting, Wake};
use crate::failure::{ErrorKind, Failure};
use crate::interface::{Action, Conversation, Event, Seek};
use crate::keys::Keyspace;
use crate::scripts;
use crate::target::Target;
use rlock_model::mode::Mode;
use rlock_model::request::{Claim, Job, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::network::{NetworkError, Stage};
use rlock_store::node::Node;
use rlock_sys::clock::Boottime;

/// Makes an event. An event cannot be copied, so each use makes a new one.
pub(super) type Make = fn() -> Event;

pub(super) const START: Boottime = Boottime::since_boot(Duration::from_secs(1_000));
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const TTL: Duration = Duration::from_secs(30);

pub(super) const SINGLE: &str = "redis://h:1";
pub(super) const SENTINELS: &str = "redis+sentinel://s1:1,s2:1/m";
pub(super) const CLUSTER: &str = "redis+cluster://h:1";

pub(super) fn exchange(url: &str) -> Exchange {
    let target = Arc::new(Target::parse(url).unwrap().unwrap());
    Exchange::new(target, Setting { keyspace: Keyspace::new("ns"), wake: Wake::Publish, now: None })
}

pub(super) fn node(port: u16) -> Node {
    Node::Tcp { host: "h".to_owned(), port }
}

pub(super) fn resource(name: &str) -> Resource {
    Resource::new(name).unwrap()
}

pub(super) fn terms() -> Terms {
    Terms { ttl: Duration::from_secs(30), claim: Duration::from_secs(3), heartbeat: Duration::from_secs(15) }
}

/// A request for two resources.
pub(super) fn request() -> Request {
    let claim = |name| Claim { resource: resource(name), mode: Mode::Write, span: Span::Whole, slots: None };
    Request {
        session: SessionId([1; 16]),
        ancestors: Vec::new(),
        claims: vec![claim("{t}a"), claim("{t}b")],
        wait: true,
        terms: Some(terms()),
        job: Job::default(),
        process: Process::default(),
    }
}

pub(super) fn reply(words: &[&str]) -> Event {
    let value = |word: &&str| match word.parse() {
        Ok(number) => Value::Int(number),
        Err(_) => Value::BulkString(word.as_bytes().to_vec()),
    };
    Event::Reply(Ok(Value::Array(words.iter().map(value).collect())))
}

/// The reply that a request would have to wait, without a word about the sessions in its way.
pub(super) fn busy() -> Event {
    Event::Reply(Ok(Value::Array(vec![Value::SimpleString("busy".to_owned()), Value::Array(Vec::new())])))
}

pub(super) fn granted() -> Event {
    reply(&["granted", "30000000", "7", "8"])
}

pub(super) fn error(text: &str) -> ServerError {
    match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
        Ok(Value::ServerError(error)) => error,
        other => panic!("{other:?}"),
    }
}

pub(super) fn error_reply(text: &str) -> Event {
    Event::Reply(Err(error(text)))
}

pub(super) fn failure(kind: ErrorKind) -> Failure {
    kind.of("redis://h:1")
}

pub(super) fn failed(kind: ErrorKind) -> Event {
    Event::Failed(failure(kind))
}

/// A message on the channel of the session of [`request`].
pub(super) fn message() -> Event {
    Event::Message(channel(request().session))
}

pub(super) fn subscribe_failed(text: &str) -> Event {
    Event::SubscribeFailed(channel(request().session), error(text))
}

fn channel(session: SessionId) -> String {
    Keyspace::new("ns").channel(&resource("{t}a"), session)
}

pub(super) fn timed_out() -> Event {
    Event::TimedOut(failure(ErrorKind::Network(NetworkError::TimedOut(Stage::Used))))
}

/// Handles an event and a tick, and returns the actions that follow.
pub(super) fn after(conversation: &mut impl Conversation, event: Event, now: Boottime) -> String {
    conversation.on(event, now);
    at(conversation, now)
}

/// Returns the actions that are due at an instant.
pub(super) fn at(conversation: &mut impl Conversation, now: Boottime) -> String {
    let mut actions = drain(|| conversation.next_action());
    conversation.tick(now);
    actions.extend(drain(|| conversation.next_action()));
    actions.join(", ")
}

/// Checks that these pauses grow. Each session waits for its own part of a pause.
#[track_caller]
pub(super) fn assert_grow(pauses: &[Duration]) {
    let whole = [0, 50, 100, 200].map(Duration::from_millis);
    let is_part = |(pause, whole): (&Duration, Duration)| (whole / 2..=whole).contains(pause);
    assert!(pauses.len() == 4 && pauses.iter().zip(whole).all(is_part), "{pauses:?}");
}

pub(super) fn drain(next: impl FnMut() -> Option<Action>) -> Vec<String> {
    std::iter::from_fn(next).map(|action| described(&action)).collect()
}

pub(super) fn described(action: &Action) -> String {
    match action {
        Action::CheckMaster(limit) => format!("check the master for {limit:?}"),
        Action::CheckReplicas => "check the replicas".to_owned(),
        Action::Open(Seek::After(node)) => format!("open after {node}"),
        Action::Open(Seek::Start(attempt)) => format!("open {attempt}"),
        Action::Open(Seek::Redirect(redirect)) if redirect.asking => format!("open {} asking", redirect.node),
        Action::Open(Seek::Redirect(redirect)) => format!("open {}", redirect.node),
        Action::Close => "close".to_owned(),
        Action::Send(command) => sent(command),
        Action::Subscribe(_) => "subscribe".to_owned(),
        Action::Unsubscribe(_) => "unsubscribe".to_owned(),
        Action::ReportTimeout => "report timeout".to_owned(),
        Action::SetAside => "set aside".to_owned(),
        Action::ReadAside => "read aside".to_owned(),
    }
}

/// Returns the name of the script or command, with `source` for a script that is sent by its
/// source.
fn sent(command: &Cmd) -> String {
    let words = |command: &Cmd| -> Vec<Vec<u8>> {
        let arguments = command.args_iter().map(|argument| match argument {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        });
        arguments.take(2).collect()
    };
    let begin = words(command);
    let known = [
        ("acquire", &scripts::ACQUIRE),
        ("renew", &scripts::RENEW),
        ("renew alone", &scripts::RENEW_ALONE),
        ("release", &scripts::RELEASE),
        ("give up", &scripts::GIVE_UP),
        ("inspect", &scripts::INSPECT),
    ];
    for (name, script) in known {
        if begin == [b"EVALSHA".as_slice(), script.sha1().as_bytes()] {
            return name.to_owned();
        }
        if begin == [b"EVAL".as_slice(), script.source().as_bytes()] {
            return format!("{name} source");
        }
    }
    String::from_utf8_lossy(&begin[0]).into_owned()
}
