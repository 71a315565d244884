//! Calls scripts of a server, and measures each call.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use redis::{Connection, ConnectionLike as _, Value};
use rlock_model::mode::Mode;
use rlock_model::request::{Claim, Job, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_redis::codec::{Call, ScriptReply, Setting, Wake};
use rlock_redis::keys::Keyspace;
use rlock_sys::clock::StoreTime;

use rlock_testkit::servers::{Server, ask};

pub(crate) const TERMS: Terms =
    Terms { ttl: Duration::from_secs(30), claim: Duration::from_secs(3), heartbeat: Duration::from_secs(15) };

/// A client of a server that nobody else uses.
pub(crate) struct Client<'s> {
    server: &'s Server,
    pub(crate) connection: Connection,
    pub(crate) setting: Setting,
    /// The file of the kernel with the time for which the server's thread has worked.
    worked: String,
    /// The slowest script of each step, in milliseconds.
    pub(crate) slowest: BTreeMap<String, f64>,
}

impl<'s> Client<'s> {
    pub(crate) fn new(server: &'s Server) -> Self {
        for (name, value) in [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "1")] {
            server.ask::<()>(&["CONFIG", "SET", name, value]);
        }
        let (keyspace, now) = (Keyspace::new("b"), Some(StoreTime::from_micros(1_795_000_000_000_000)));
        let pid = field(server, "server", "process_id");
        Self {
            server,
            connection: server.client(),
            setting: Setting { keyspace, wake: Wake::Publish, now },
            worked: format!("/proc/{pid}/task/{pid}/schedstat"),
            slowest: BTreeMap::new(),
        }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.setting.now = self.setting.now.map(|now| now + by);
    }

    /// Calls a script as the store does: it is called again if it needs more resources.
    pub(crate) fn call(&mut self, mut call: Call) -> ScriptReply {
        loop {
            let reply = self.send(&call);
            if let Some(reply) = answer(&mut call, &reply) {
                return reply;
            }
        }
    }

    /// Calls a script for a step of the walk, and notes the longest of its calls.
    pub(crate) fn step(&mut self, what: &str, mut call: Call) -> ScriptReply {
        loop {
            let before = self.worked();
            let reply = self.send(&call);
            let worked = self.worked() - before;
            let slowlog: Vec<Vec<Value>> = ask(&mut self.connection, &["SLOWLOG", "GET", "1"]);
            let micros: u32 = redis::from_redis_value(slowlog[0][2].clone()).expect("a time");
            // SLOWLOG also counts the time for which other programs had the processor.
            let longest = worked.min(f64::from(micros) / 1000.0);
            let noted = self.slowest.entry(what.to_owned()).or_default();
            *noted = noted.max(longest);
            if let Some(reply) = answer(&mut call, &reply) {
                return reply;
            }
        }
    }

    fn send(&mut self, call: &Call) -> Value {
        let mut send = |command: redis::Cmd| {
            let reply = self.connection.req_packed_command(&command.get_packed_command());
            reply.unwrap_or_else(|error| panic!("{error}"))
        };
        match send(call.evalsha(&self.setting)) {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => send(call.eval(&self.setting)),
            reply => reply,
        }
    }

    /// The time for which the server has worked, in milliseconds.
    fn worked(&self) -> f64 {
        let text = fs::read_to_string(&self.worked).expect("the kernel counts the time of a thread");
        let nanos: u64 = text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("nanoseconds");
        nanos as f64 / 1e6
    }

    /// The memory that the server uses for its data, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        field(self.server, "memory", "used_memory") - field(self.server, "memory", "used_memory_scripts")
    }
}

/// The answer of a script, or none if it has to be called again.
fn answer(call: &mut Call, reply: &Value) -> Option<ScriptReply> {
    match ScriptReply::read(reply) {
        Some(ScriptReply::Need(more)) => {
            call.declare(more);
            None
        }
        Some(reply) => Some(reply),
        None => panic!("no lock script replies {reply:?}"),
    }
}

/// A number that INFO tells; 0 if it does not.
fn field(server: &Server, section: &str, name: &str) -> u64 {
    let info: String = server.ask(&["INFO", section]);
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.parse().ok()).unwrap_or(0)
}

pub(crate) fn id(number: u32) -> SessionId {
    SessionId(u128::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes())
}

/// The resource at which all lists are long.
pub(crate) fn resource() -> Resource {
    Resource::new("r").expect("a name")
}

/// A request for all of `r`.
pub(crate) fn request(number: u32, mode: Mode) -> Request {
    Request {
        session: id(number),
        ancestors: Vec::new(),
        claims: vec![Claim { resource: resource(), mode, span: Span::Whole, slots: None }],
        wait: true,
        terms: Some(TERMS),
        job: Job::default(),
        process: Process {
            host: "host".to_owned(),
            pid: number,
            user: "user".to_owned(),
            command: vec!["/usr/local/bin/command".to_owned(), "argument".to_owned()],
            ..Process::default()
        },
    }
}
