//! A connection to a real server, whose databases stand for the servers of an episode.
//!
//! Everything is synchronous: commands are gathered, and written when a reply is wanted. With RESP3
//! the messages to the channels of the connection come on the connection itself, in order.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Write as _};
use std::mem;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use redis::{Cmd, Parser, PushKind, ServerError, Value};

use super::wire::{self, Script};
use rlock_redis::scripts::{self, Variant};
use rlock_testkit::servers::{Kind, Server};

/// The number of databases: those of the nodes, of snapshots and of what is on its way to replicas.
const DATABASES: usize = 64;

/// A channel, and whether it is a shard channel.
type Channel = (bool, String);

pub(super) struct Link {
    stream: BufReader<UnixStream>,
    parser: Parser,
    /// The commands that are written next.
    out: Vec<u8>,
    /// The number of replies that nobody has read, those to commands in `out` too.
    unread: usize,
    /// The messages that have arrived, by their channels.
    messages: Vec<String>,
    selected: usize,
    /// The databases that nobody uses.
    free: Vec<usize>,
    channels: BTreeSet<Channel>,
    has_monitor: bool,
    may_count: bool,
    /// The names of the scripts by their texts, and of those for which a few sessions are a crowd.
    names: BTreeMap<(Script, bool), String>,
    /// The server ends with the link.
    _server: Server,
}

thread_local! {
    /// The server of the thread, which plays one episode after another.
    static LINK: RefCell<Option<(Kind, Rc<RefCell<Link>>)>> = const { RefCell::new(None) };
}

impl Link {
    /// The link of this thread to an empty server of a kind.
    pub(super) fn to(kind: Kind) -> Rc<RefCell<Self>> {
        LINK.with_borrow_mut(|known| {
            known.take_if(|(other, _)| *other != kind);
            let (_, link) = known.get_or_insert_with(|| (kind, Rc::new(RefCell::new(Self::open(kind)))));
            link.borrow_mut().send(&[b"FLUSHALL"]);
            Rc::clone(link)
        })
    }

    fn open(kind: Kind) -> Self {
        let server = Server::with(kind, &["--databases", &DATABASES.to_string()]);
        let stream = UnixStream::connect(server.socket()).expect("the server listens");
        let mut link = Self {
            stream: BufReader::new(stream),
            parser: Parser::new(),
            out: Vec::new(),
            unread: 0,
            messages: Vec::new(),
            selected: 0,
            free: (0..DATABASES).rev().collect(),
            channels: BTreeSet::new(),
            has_monitor: false,
            may_count: true,
            names: BTreeMap::new(),
            _server: server,
        };
        link.send(&[b"HELLO", b"3"]);
        link.load(&scripts::EXPIRE.source());
        for (text, script) in wire::texts() {
            for is_bounded in [false, true] {
                let name = link.load(&text.variant(Variant { is_bounded, ..Variant::default() }));
                link.names.insert((script, is_bounded), name);
            }
        }
        link
    }

    /// Makes a script known to the server, and returns its name.
    fn load(&mut self, text: &str) -> String {
        let name = self.ask(&[b"SCRIPT", b"LOAD", text.as_bytes()]);
        redis::from_redis_value(name).expect("the name of a script is text")
    }

    /// The name of a script, or of its variant for which a few sessions are a crowd.
    pub(super) fn name(&self, script: Script, is_bounded: bool) -> String {
        self.names[&(script, is_bounded)].clone()
    }

    /// Adds a command whose reply is read later.
    pub(super) fn send(&mut self, words: &[&[u8]]) {
        self.unread += 1;
        self.write(words);
    }

    /// Adds a command that some code of rlock has made.
    pub(super) fn send_command(&mut self, command: &Cmd) {
        self.unread += 1;
        command.write_packed_command(&mut self.out);
    }

    fn write(&mut self, words: &[&[u8]]) {
        let _ = write!(self.out, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.out, "${}\r\n", word.len());
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// The replies to the last commands.
    ///
    /// # Panics
    /// If the server has refused a command before those.
    pub(super) fn replies(&mut self, count: usize) -> Vec<Result<Value, ServerError>> {
        let out = mem::take(&mut self.out);
        self.stream.get_mut().write_all(&out).expect("the server reads");
        for _ in count..mem::take(&mut self.unread) {
            self.read().unwrap_or_else(|error| panic!("the server refuses a command of the simulation: {error:?}"));
        }
        (0..count).map(|_| self.read()).collect()
    }

    /// The reply to one more command.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> Value {
        self.send(words);
        self.replies(1).remove(0).unwrap_or_else(|error| panic!("the server refuses a command: {error:?}"))
    }

    fn read(&mut self) -> Result<Value, ServerError> {
        loop {
            match self.parser.parse_value(&mut self.stream).expect("the server replies") {
                Value::Push { kind: PushKind::Message | PushKind::SMessage, data } => {
                    let [Value::BulkString(channel), _] = data.as_slice() else { panic!("{data:?} is no message") };
                    self.messages.push(String::from_utf8(channel.clone()).expect("a channel is text"));
                }
                Value::Push { .. } => {}
                Value::ServerError(error) => return Err(error),
                value => return Ok(value),
            }
        }
    }

    /// Takes the channels of the messages that have arrived.
    pub(super) fn take_messages(&mut self) -> Vec<String> {
        mem::take(&mut self.messages)
    }

    pub(super) fn select(&mut self, database: usize) {
        if mem::replace(&mut self.selected, database) != database {
            self.send(&[b"SELECT", database.to_string().as_bytes()]);
        }
    }

    /// Takes a database that nobody uses, and empties it.
    pub(super) fn take_free(&mut self) -> usize {
        let database = self.free.pop().expect("an episode has few copies");
        self.select(database);
        self.send(&[b"FLUSHDB"]);
        database
    }

    pub(super) fn give_back(&mut self, database: usize) {
        self.free.push(database);
    }

    /// Subscribes to exactly these channels. With `has_monitor`, also to every channel by a
    /// pattern.
    pub(super) fn listen<'c>(&mut self, channels: impl Iterator<Item = &'c str>, is_shard: bool, has_monitor: bool) {
        let wanted: BTreeSet<Channel> = channels.map(|channel| (is_shard, channel.to_owned())).collect();
        for (is_shard, channel) in &self.channels - &wanted {
            let command: &[u8] = if is_shard { b"SUNSUBSCRIBE" } else { b"UNSUBSCRIBE" };
            self.write(&[command, channel.as_bytes()]);
        }
        for (is_shard, channel) in &wanted - &self.channels {
            let command: &[u8] = if is_shard { b"SSUBSCRIBE" } else { b"SUBSCRIBE" };
            self.write(&[command, channel.as_bytes()]);
        }
        self.channels = wanted;
        if mem::replace(&mut self.has_monitor, has_monitor) != has_monitor {
            let command: &[u8] = if has_monitor { b"PSUBSCRIBE" } else { b"PUNSUBSCRIBE" };
            self.write(&[command, b"*"]);
        }
    }

    /// Lets the scripts count the subscribers of a channel, or not.
    pub(super) fn let_count(&mut self, may_count: bool) {
        if mem::replace(&mut self.may_count, may_count) != may_count {
            let sign = if may_count { "+" } else { "-" };
            let [channels, shards] = ["pubsub|numsub", "pubsub|shardnumsub"].map(|right| format!("{sign}{right}"));
            self.send(&[b"ACL", b"SETUSER", b"default", channels.as_bytes(), shards.as_bytes()]);
        }
    }
}
