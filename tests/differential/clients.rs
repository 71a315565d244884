//! Numbered sessions with requests on one resource, for the directed tests.

use std::time::Duration;

use redis::ServerError;
use rlock_model::mode::Mode;
use rlock_model::op::Change;
use rlock_model::past::{End, Ending};
use rlock_model::request::{Claim, Job, Process, Request, SessionId, Terms};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_redis::codec::{Call, ScriptReply, Wake};
use rlock_sys::clock::StoreTime;

use crate::side::Side;
use rlock_testkit::servers::Server;

/// A realistic instant.
pub(crate) const NOW: StoreTime = StoreTime::from_micros(1_795_000_000_000_000);

pub(crate) const TERMS: Terms =
    Terms { ttl: Duration::from_secs(30), claim: Duration::from_secs(3), heartbeat: Duration::from_secs(15) };

pub(crate) const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Numbered sessions on the resource `r`, with a clock that only [`Clients::advance`] moves.
pub(crate) struct Clients {
    pub(crate) side: Side,
}

pub(crate) fn id(number: u32) -> SessionId {
    SessionId(u128::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes())
}

pub(crate) fn resource() -> Resource {
    Resource::new("r").unwrap()
}

/// A request for an interval of `r`, or for the whole resource if `part` is empty.
pub(crate) fn request(number: u32, mode: Mode, part: &str) -> Request {
    let span = if part.is_empty() { Span::Whole } else { Span::parse(part).unwrap() };
    let claim = Claim { resource: resource(), mode, span, slots: (mode == Mode::Slot).then_some(2) };
    Request {
        session: id(number),
        ancestors: Vec::new(),
        claims: vec![claim],
        wait: true,
        terms: Some(TERMS),
        job: Job::default(),
        process: Process {
            host: "h".to_owned(),
            pid: number,
            user: "u".to_owned(),
            command: vec!["c".to_owned()],
            owner: None,
            reason: Some("r".to_owned()),
            lasts_for: None,
        },
    }
}

/// Shrinks the interval of `r` that a session holds.
pub(crate) fn shrink(number: u32, part: &str) -> Call {
    Call::change(id(number), &[], &Change::Shrink { resource: resource(), span: Span::parse(part).unwrap() })
}

/// Lowers the mode in which a session holds `r`.
pub(crate) fn downgrade(number: u32, mode: Mode) -> Call {
    Call::change(id(number), &[], &Change::Downgrade { resource: resource(), mode })
}

impl Clients {
    pub(crate) fn new(server: &Server, namespace: &str, wake: Wake) -> Self {
        let mut side = Side::new(server, namespace, wake);
        side.setting.now = Some(NOW);
        Self { side }
    }

    pub(crate) fn now(&self) -> StoreTime {
        self.side.setting.now.expect("the clock is set")
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.side.setting.now = Some(self.now() + by);
    }

    pub(crate) fn acquire(&mut self, number: u32, mode: Mode, part: &str) -> ScriptReply {
        self.side.call(Call::acquire(&request(number, mode, part), 0, false))
    }

    pub(crate) fn try_acquire(&mut self, number: u32, mode: Mode, part: &str) -> Result<ScriptReply, ServerError> {
        self.side.try_call(Call::acquire(&request(number, mode, part), 0, false))
    }

    pub(crate) fn renew(&mut self, number: u32, listening: bool) -> ScriptReply {
        self.side.call(Call::renew(id(number), vec![resource()], listening))
    }

    pub(crate) fn release(&mut self, number: u32) -> ScriptReply {
        self.side.call(Call::release(id(number), vec![resource()]))
    }

    /// Releases the grant of a session whose command has ended.
    pub(crate) fn end(&mut self, number: u32, outcome: &str, history: u32) -> ScriptReply {
        let ending = outcome.parse().expect("the outcome is that of a command");
        let end = End { ending, is_success: ending == Ending::Exit(0) };
        let job = Job { history, ..Job::default() };
        self.side.call(Call::release_after(id(number), vec![resource()], Some(end), &job))
    }

    /// The numbers of the holders by token, and of the waiters in queue order.
    pub(crate) fn holders_and_waiters(&mut self) -> (Vec<u32>, Vec<u32>) {
        let reply = self.side.call(Call::inspect(vec![resource()], 0));
        let ScriptReply::Listing { resources, .. } = reply else { panic!("inspect replies {reply:?}") };
        let listing = &resources[0].listing;
        let holders = listing.holders.iter().map(|holder| holder.process.pid).collect();
        (holders, listing.waiters.iter().map(|waiter| waiter.process.pid).collect())
    }
}

pub(crate) fn is_granted(reply: &ScriptReply) -> bool {
    matches!(reply, ScriptReply::Granted { .. })
}

pub(crate) fn is_waiting(reply: &ScriptReply) -> bool {
    matches!(reply, ScriptReply::Waiting { .. })
}

pub(crate) fn is_released(reply: &ScriptReply) -> bool {
    matches!(reply, ScriptReply::Released(_))
}

/// The tokens of a grant.
pub(crate) fn tokens(reply: ScriptReply) -> Vec<u64> {
    match reply {
        ScriptReply::Granted { tokens, .. } => tokens,
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// All keys of a server, each with its contents and whether it has a TTL.
pub(crate) fn snapshot(connection: &mut redis::Connection) -> Vec<(String, Vec<Vec<u8>>, bool)> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    keys.sort();
    let mut snapshot = Vec::with_capacity(keys.len());
    for key in keys {
        let kind: String = redis::cmd("TYPE").arg(&key).query(connection).unwrap();
        let mut content: Vec<Vec<u8>> = match kind.as_str() {
            "hash" => {
                let flat: Vec<Vec<u8>> = redis::cmd("HGETALL").arg(&key).query(connection).unwrap();
                flat.chunks(2).map(|pair| pair.join(&b'='.clone())).collect()
            }
            "zset" => {
                let flat: Vec<Vec<u8>> =
                    redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).arg("WITHSCORES").query(connection).unwrap();
                flat.chunks(2).map(|pair| pair.join(&b'='.clone())).collect()
            }
            "list" => redis::cmd("LRANGE").arg(&key).arg(0).arg(-1).query(connection).unwrap(),
            _ => vec![redis::cmd("GET").arg(&key).query(connection).unwrap()],
        };
        content.sort();
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(connection).unwrap();
        snapshot.push((key, content, ttl >= 0));
    }
    snapshot
}
