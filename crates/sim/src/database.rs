//! The database of a simulated server: a real server runs the real scripts on it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use redis::{ServerError, Value};

use super::cluster::KINDS;
use super::link::Link;
use super::wire::{self, Call, Script};
use rlock_model::records::Session;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_redis::codec::{self, ScriptReply, Setting, Wake};
use rlock_redis::keys::Keyspace;
use rlock_sys::clock::StoreTime;
use rlock_testkit::servers::Kind;

pub(super) struct Database {
    link: Rc<RefCell<Link>>,
    number: usize,
}

/// What some keys of a resource say.
pub(super) struct Keys {
    pub(super) name: Resource,
    /// The state, which changes with the holders and with the queue.
    pub(super) state: Vec<u8>,
    /// The ends of leases, beside several sessions.
    pub(super) leases: BTreeMap<SessionId, StoreTime>,
    /// The waiters by their numbers.
    pub(super) queue: BTreeMap<SessionId, u64>,
}

/// The instant of the last change of a resource, and its holders.
pub(super) type Holders = (StoreTime, Vec<(SessionId, Session)>);

/// The state of the node that carries out a call.
pub(super) struct Circumstances<'c> {
    pub(super) now: StoreTime,
    pub(super) is_replica: bool,
    pub(super) is_full: bool,
    /// Whether a few sessions are a crowd, so that the script leaves work to the next calls.
    pub(super) is_crowded: bool,
    pub(super) has_monitor: bool,
    pub(super) may_count: bool,
    /// The channels with subscribers.
    pub(super) channels: Vec<&'c str>,
}

/// What a call leads to.
pub(super) struct Carried {
    pub(super) reply: Result<Value, ServerError>,
    /// The channels of the messages.
    pub(super) messages: Vec<String>,
    /// The resources that the call names, after a call that may change something.
    pub(super) keys: Vec<Keys>,
}

/// The keys that [`Keys`] reads: the state, the expiries and the queue.
const READ: [usize; 3] = [0, 2, 3];

/// Copies keys from one database to another: those that are missing there are removed.
const COPY: &[u8] = b"
redis.call('SELECT', ARGV[1])
local missing = {}
for i = 1, #KEYS do
  if redis.call('COPY', KEYS[i], KEYS[i], 'DB', ARGV[2], 'REPLACE') == 0 then missing[#missing + 1] = KEYS[i] end
end
redis.call('SELECT', ARGV[2])
for i = 1, #missing do redis.call('DEL', missing[i]) end";

/// Copies all keys of a database to an empty one.
const COPY_ALL: &[u8] = b"
redis.call('SELECT', ARGV[1])
for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', ARGV[2]) end";

/// Why a server refuses to write for a script that only reads.
const READS_ONLY: &str = "Write commands are not allowed";
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

impl Database {
    /// An empty database, the first of an episode.
    pub(super) fn first(kind: Kind) -> Self {
        Self::of(&Link::to(kind))
    }

    /// Another empty database of the same server.
    pub(super) fn another(&self) -> Self {
        Self::of(&self.link)
    }

    fn of(link: &Rc<RefCell<Link>>) -> Self {
        let number = link.borrow_mut().take_free();
        Self { link: Rc::clone(link), number }
    }

    /// Carries out a call.
    pub(super) fn call(&self, call: &Call, how: &Circumstances) -> Carried {
        let mut link = self.link.borrow_mut();
        link.select(self.number);
        link.let_count(how.may_count);
        let mut words = wire::words(&call.command);
        let now_at = 3 + wire::number(words[2]) as usize;
        let is_shard = call.script != Script::RenewAlone && words[now_at + 1] == b"SPUBLISH";
        link.listen(how.channels.iter().copied(), is_shard, how.has_monitor && !is_shard);
        if how.is_full {
            link.send(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
        }
        let (name, now) = (link.name(call.script, how.is_crowded), how.now.as_micros().to_string());
        let verb: &[u8] = if how.is_replica { b"EVALSHA_RO" } else { b"EVALSHA" };
        (words[0], words[1], words[now_at]) = (verb, name.as_bytes(), now.as_bytes());
        link.send(&words);
        if how.is_full {
            link.send(&[b"CONFIG", b"SET", b"maxmemory", b"0"]);
        }
        let is_read = how.is_replica || call.script == Script::Inspect;
        let listed: &[Resource] = if is_read { &[] } else { &call.resources };
        let (mut replies, keys) = read_after(1 + usize::from(how.is_full), &mut link, listed);
        let reply = replies.remove(0).map_err(|error| match error.details() {
            Some(details) if how.is_replica && details.contains(READS_ONLY) => wire::error(READ_ONLY),
            _ => error,
        });
        Carried { reply, messages: link.take_messages(), keys }
    }

    /// What the keys of some resources say.
    pub(super) fn read(&self, names: &[Resource]) -> Vec<Keys> {
        let mut link = self.link.borrow_mut();
        link.select(self.number);
        read_after(0, &mut link, names).1
    }

    /// What the scripts list of the holders of some resources.
    pub(super) fn holders(&self, names: &[&Resource]) -> Vec<Holders> {
        let mut link = self.link.borrow_mut();
        link.select(self.number);
        for name in names {
            // At this place the listing of the holders begins.
            let call = codec::Call::inspect_part(vec![(*name).clone()], 0, b"l".to_vec());
            link.send_command(&call.evalsha(&setting(StoreTime::default())));
        }
        let holders = link.replies(names.len()).into_iter().map(|reply| {
            let reply = reply.unwrap_or_else(|error| panic!("the server lists nothing: {error:?}"));
            match ScriptReply::read(&reply) {
                Some(ScriptReply::Listing { now, sessions, .. }) => (now, sessions),
                _ => panic!("{reply:?} is no listing"),
            }
        });
        holders.collect()
    }

    /// Copies all keys of some resources to another database of the same server.
    pub(super) fn copy_to(&self, other: &Self, names: &BTreeSet<Resource>) {
        let keys: Vec<_> = names.iter().flat_map(keys).collect();
        let [count, from, to] = [keys.len(), self.number, other.number].map(|number| number.to_string().into_bytes());
        let words = [&b"EVAL"[..], COPY, &count].into_iter();
        let words: Vec<&[u8]> = words.chain(keys.iter().map(|key| key.as_bytes())).chain([&from[..], &to]).collect();
        self.link.borrow_mut().send(&words);
    }

    /// What is on its way to a replica: some resources as they are now.
    pub(super) fn part(&self, names: &BTreeSet<Resource>) -> Self {
        let part = self.another();
        self.copy_to(&part, names);
        part
    }

    /// Which keys of a resource exist.
    pub(super) fn exist(&self, name: &Resource) -> [bool; KINDS] {
        let mut link = self.link.borrow_mut();
        link.select(self.number);
        let keys = keys(name);
        keys.iter().for_each(|key| link.send(&[b"EXISTS", key.as_bytes()]));
        let replies = link.replies(KINDS);
        std::array::from_fn(|kind| replies[kind] == Ok(Value::Int(1)))
    }

    /// Removes one key of a resource.
    pub(super) fn lose_key(&self, name: &Resource, kind: usize) {
        let mut link = self.link.borrow_mut();
        link.select(self.number);
        link.send(&[b"DEL", keys(name)[kind].as_bytes()]);
    }

    /// Drops the sessions whose leases are over, as the scripts do. Returns whether no live key is
    /// left.
    pub(super) fn expire(&self, names: Vec<Resource>, now: StoreTime) -> bool {
        if names.is_empty() {
            return true;
        }
        let mut link = self.link.borrow_mut();
        link.select(self.number);
        for round in 0.. {
            assert!(round < 10_000, "leases of {names:?} never end");
            link.send_command(&codec::Call::expire(names.clone()).evalsha(&setting(now)));
            let reply = link.replies(1).remove(0).expect("a server without memory has got it back");
            match ScriptReply::read(&reply) {
                Some(ScriptReply::Expired(sessions)) if sessions.is_empty() => break,
                Some(ScriptReply::Expired(_)) => {}
                Some(ScriptReply::Need(more)) if more.is_empty() => {}
                reply => panic!("the script that ends leases replies {reply:?}"),
            }
        }
        let Value::Array(left) = link.ask(&[b"KEYS", b"*:[deqlu]"]) else { panic!("a server lists its keys") };
        left.is_empty()
    }
}

/// A copy of all data.
impl Clone for Database {
    fn clone(&self) -> Self {
        let copy = self.another();
        let [from, to] = [self.number, copy.number].map(|number| number.to_string().into_bytes());
        self.link.borrow_mut().send(&[b"EVAL", COPY_ALL, b"0", &from, &to]);
        copy
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.link.borrow_mut().give_back(self.number);
    }
}

/// Reads keys of some resources after the last commands, whose replies come too.
fn read_after(count: usize, link: &mut Link, names: &[Resource]) -> (Vec<Result<Value, ServerError>>, Vec<Keys>) {
    for name in names {
        let [state, leases, queue] = READ.map(|kind| keys(name)[kind].clone().into_bytes());
        link.send(&[b"GET", &state]);
        link.send(&[b"ZRANGE", &leases, b"0", b"-1", b"WITHSCORES"]);
        link.send(&[b"ZRANGE", &queue, b"0", b"-1", b"WITHSCORES"]);
    }
    let mut replies = link.replies(count + READ.len() * names.len());
    let mut values = replies.split_off(count).into_iter().map(|reply| reply.expect("a key can be read"));
    let mut next = || values.next().expect("each command has a reply");
    let read = names.iter().map(|name| {
        let state = redis::from_redis_value(next()).expect("a state is text");
        let [leases, queue] = [(); 2].map(|()| members(next()));
        let leases = leases.into_iter().map(|(id, end)| (id, StoreTime::from_micros(end))).collect();
        Keys { name: name.clone(), state, leases, queue: queue.into_iter().collect() }
    });
    let read = read.collect();
    (replies, read)
}

/// The sessions of a sorted set with their scores. The epoch is no session.
fn members(value: Value) -> Vec<(SessionId, u64)> {
    let Value::Array(pairs) = value else { panic!("{value:?} is no sorted set") };
    let pairs = pairs.into_iter().filter_map(|pair| {
        let Value::Array(pair) = pair else { panic!("{pair:?} is no member") };
        let [Value::BulkString(member), Value::Double(score)] = pair.as_slice() else {
            panic!("{pair:?} is no member")
        };
        let id = std::str::from_utf8(member.get(..32)?).ok()?.parse().ok()?;
        // Half a microsecond tells that a grant is not claimed.
        Some((id, score.ceil() as u64))
    });
    pairs.collect()
}

fn setting(now: StoreTime) -> Setting {
    Setting { keyspace: Keyspace::new(wire::NAMESPACE), wake: Wake::Nobody, now: Some(now) }
}

fn keys(name: &Resource) -> [String; KINDS] {
    Keyspace::new(wire::NAMESPACE).keys(name)
}
