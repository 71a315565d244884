//! The table's records as keys and values, for each store that keeps these in an ordered map.
//!
//! The keys, in byte order:
//!
//! | key | value |
//! | --- | --- |
//! | `b` namespace 0 session id | in the embedded store: the identity of the session's beacon |
//! | `c` | the [`Clock`] |
//! | `f` namespace 0 instant (8 bytes, big-endian) resource | empty: the past is checked at the instant |
//! | `h` namespace 0 resource 0 number (8 bytes, big-endian) | an entry of the resource's history |
//! | `e` namespace 0 expiry (8 bytes, big-endian) session id | empty: the session ends at the expiry |
//! | `n` namespace 0 resource 0 number (4 bytes, big-endian) | a node of the resource's tree |
//! | `p` namespace 0 resource | the past of a resource |
//! | `q` | the last number of a queued request |
//! | `r` namespace 0 resource | the state of a resource |
//! | `s` namespace 0 session id | a session |
//! | `x` anything | what later versions keep |
//!
//! Names contain no control characters, so the zero bytes end them.

pub mod codec;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use self::codec::{Damaged, decode, decode_entry, decode_open, encode, encode_open};
use rlock_model::index::Node;
use rlock_model::past::{Entry, Past};
use rlock_model::records::{Records, ResourceState, Session};
use rlock_model::remember;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_sys::clock::StoreTime;

/// The key of the [`Clock`].
pub const CLOCK: &[u8] = b"c";
/// The key of the last number of a queued request.
const SEQ: &[u8] = b"q";

/// Keys and their values in byte order of the keys, in a transaction that takes effect as a whole
/// or not at all.
pub trait Map: Sized {
    /// Why the map cannot be read or written.
    type Error: From<Damaged>;
    /// The bytes of a key or a value.
    type Bytes<'m>: Deref<Target = [u8]>
    where
        Self: 'm;

    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Self::Bytes<'_>>, Self::Error>;
    /// Sets the value of a key.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Self::Error>;
    /// Removes a key, which may be missing.
    fn delete(&mut self, key: &[u8]) -> Result<(), Self::Error>;
    /// The first keys that begin with `prefix`, at most so many, in order.
    fn scan(&self, prefix: &[u8], count: usize) -> Result<Vec<Item<'_, Self>>, Self::Error>;

    /// See [`Records::has_room`].
    fn has_room(&self) -> Result<bool, Self::Error> {
        Ok(true)
    }
    /// See [`Records::forget_idle`].
    fn forget_idle(records: &mut MapRecords<'_, Self>, now: StoreTime) -> Result<usize, Self::Error> {
        remember::forget_idle(records, now)
    }
}

/// A key and its value.
pub type Item<'m, M> = (<M as Map>::Bytes<'m>, <M as Map>::Bytes<'m>);

/// A copy of keys and values.
impl Map for BTreeMap<Vec<u8>, Vec<u8>> {
    type Error = Damaged;
    type Bytes<'m> = &'m [u8];

    fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, Damaged> {
        Ok(self.get(key).map(Vec::as_slice))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damaged> {
        self.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), Damaged> {
        self.remove(key);
        Ok(())
    }

    fn scan(&self, prefix: &[u8], count: usize) -> Result<Vec<Item<'_, Self>>, Damaged> {
        let items = self.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(items.take(count).map(|(key, value)| (key.as_slice(), value.as_slice())).collect())
    }
}

/// The clock of the table.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Clock {
    /// The instant of the last operation, or the last token if that is later.
    pub now: StoreTime,
    /// The time from the boot of the machine to the last operation, in microseconds. It counts only
    /// for the machine of the embedded store, as `times` does.
    pub since_boot: u64,
    /// The inode of the time namespace in which `since_boot` counts; 0 if it is not known.
    pub times: u64,
}

/// The records of one namespace in a map.
pub struct MapRecords<'t, M> {
    /// The records of all namespaces.
    pub map: M,
    /// The namespace, which stands in the keys of its records.
    pub namespace: Cow<'t, str>,
}

/// The instant at the beginning of a key, and the rest of the key.
fn instant(key: &[u8]) -> Result<(StoreTime, &[u8]), Damaged> {
    let (instant, rest) = key.split_first_chunk().ok_or(Damaged)?;
    Ok((StoreTime::from_micros(u64::from_be_bytes(*instant)), rest))
}

/// The resource in a key.
pub fn resource(name: &[u8]) -> Result<Resource, Damaged> {
    let name = std::str::from_utf8(name).map_err(|_| Damaged)?;
    Resource::new(name).map_err(|_| Damaged)
}

impl<'t, M: Map> MapRecords<'t, M> {
    /// The records of a namespace.
    pub fn new(map: M, namespace: impl Into<Cow<'t, str>>) -> Self {
        Self { map, namespace: namespace.into() }
    }

    /// The clock as the last operation has left it.
    pub fn clock(&self) -> Result<Clock, M::Error> {
        // Without a record, no time has passed.
        Ok(self.get(CLOCK, decode)?.unwrap_or(Clock { now: StoreTime::default(), since_boot: u64::MAX, times: 0 }))
    }

    /// The first sessions that end of themselves, at most so many, and the instants of their ends.
    pub fn first_to_end(&self, count: usize) -> Result<Vec<(StoreTime, SessionId)>, M::Error> {
        let prefix = self.key(b"e", &[]);
        let ending = |(key, _): Item<'_, M>| {
            let (expiry, id) = instant(&key[prefix.len()..])?;
            Ok((expiry, decode(id)?))
        };
        self.map.scan(&prefix, count)?.into_iter().map(ending).collect()
    }

    /// The sessions that end by `now`, at most so many.
    pub fn due_until(&self, now: StoreTime, count: usize) -> Result<Vec<(SessionId, Session)>, M::Error> {
        let first = if self.due(now)?.is_some() { self.first_to_end(count)? } else { Vec::new() };
        let due = first.into_iter().filter(|(expiry, _)| *expiry <= now);
        due.filter_map(|(_, id)| Some((id, self.session(id).transpose()?)))
            .map(|(id, session)| Ok((id, session?)))
            .collect()
    }

    /// All sessions of the namespace.
    pub fn sessions(&self) -> Result<Vec<(SessionId, Session)>, M::Error> {
        let prefix = self.key(b"s", &[]);
        let session = |(key, value): Item<'_, M>| Ok((decode(&key[prefix.len()..])?, decode_open(&value)?));
        self.map.scan(&prefix, usize::MAX)?.into_iter().map(session).collect()
    }

    /// The names of all resources with a past, in order.
    pub fn pasts(&self) -> Result<Vec<Resource>, M::Error> {
        self.names(b"p")
    }

    fn names(&self, kind: &[u8; 1]) -> Result<Vec<Resource>, M::Error> {
        let prefix = self.key(kind, &[]);
        let name = |(key, _): Item<'_, M>| Ok(resource(&key[prefix.len()..])?);
        self.map.scan(&prefix, usize::MAX)?.into_iter().map(name).collect()
    }

    /// The record of a key, if there is one.
    pub fn get<T>(&self, key: &[u8], decode: fn(&[u8]) -> Result<T, Damaged>) -> Result<Option<T>, M::Error> {
        Ok(self.map.get(key)?.map(|value| decode(&value)).transpose()?)
    }

    /// The key of this kind, and the prefix of such keys without its `rest`.
    pub fn key(&self, kind: &[u8; 1], rest: &[&[u8]]) -> Vec<u8> {
        let mut key = [kind, self.namespace.as_bytes(), b"\0"].concat();
        rest.iter().for_each(|part| key.extend_from_slice(part));
        key
    }

    /// The key of a part of a resource, such as a node of its tree.
    pub fn part_key(&self, kind: &[u8; 1], name: &Resource, part: &[u8]) -> Vec<u8> {
        self.key(kind, &[name.as_str().as_bytes(), b"\0", part])
    }

    /// The key of something that a resource has once.
    pub fn name_key(&self, kind: &[u8; 1], name: &Resource) -> Vec<u8> {
        self.key(kind, &[name.as_str().as_bytes()])
    }

    fn instant_key(&self, kind: &[u8; 1], instant: StoreTime, rest: &[u8]) -> Vec<u8> {
        self.key(kind, &[&instant.as_micros().to_be_bytes(), rest])
    }

    /// Removes the key of a session's expiry, if the session has one.
    fn forget_expiry(&mut self, id: SessionId) -> Result<(), M::Error> {
        match self.session(id)?.and_then(|session| session.expiry) {
            Some(expiry) => self.map.delete(&self.instant_key(b"e", expiry, &id.0)),
            None => Ok(()),
        }
    }
}

impl<M: Map> Records for MapRecords<'_, M> {
    type Error = M::Error;

    fn session(&self, id: SessionId) -> Result<Option<Session>, M::Error> {
        self.get(&self.key(b"s", &[&id.0]), decode_open)
    }

    fn put_session(&mut self, id: SessionId, session: Session) -> Result<(), M::Error> {
        self.forget_expiry(id)?;
        if let Some(expiry) = session.expiry {
            self.map.put(&self.instant_key(b"e", expiry, &id.0), &[])?;
        }
        self.map.put(&self.key(b"s", &[&id.0]), &encode_open(&session))
    }

    fn remove_session(&mut self, id: SessionId) -> Result<(), M::Error> {
        self.forget_expiry(id)?;
        self.map.delete(&self.key(b"s", &[&id.0]))
    }

    fn resource(&self, name: &Resource) -> Result<Option<Cow<'_, ResourceState>>, M::Error> {
        Ok(self.get(&self.name_key(b"r", name), decode)?.map(Cow::Owned))
    }

    fn put_resource(&mut self, name: &Resource, state: ResourceState) -> Result<(), M::Error> {
        let token = StoreTime::from_micros(state.last_token);
        let clock = self.clock()?;
        if token > clock.now {
            self.map.put(CLOCK, &encode(&Clock { now: token, ..clock }))?;
        }
        self.map.put(&self.name_key(b"r", name), &encode(&state))
    }

    fn remove_resource(&mut self, name: &Resource) -> Result<(), M::Error> {
        self.map.delete(&self.name_key(b"r", name))
    }

    fn resources(&self) -> Result<Vec<Resource>, M::Error> {
        self.names(b"r")
    }

    fn node(&self, name: &Resource, id: u32) -> Result<Cow<'_, Node>, M::Error> {
        self.get(&self.part_key(b"n", name, &id.to_be_bytes()), decode)?.map(Cow::Owned).ok_or(Damaged.into())
    }

    fn put_node(&mut self, name: &Resource, id: u32, node: Node) -> Result<(), M::Error> {
        self.map.put(&self.part_key(b"n", name, &id.to_be_bytes()), &encode(&node))
    }

    fn remove_node(&mut self, name: &Resource, id: u32) -> Result<(), M::Error> {
        self.map.delete(&self.part_key(b"n", name, &id.to_be_bytes()))
    }

    fn last_seq(&self) -> Result<u64, M::Error> {
        Ok(self.get(SEQ, decode)?.unwrap_or(0))
    }

    fn put_last_seq(&mut self, seq: u64) -> Result<(), M::Error> {
        self.map.put(SEQ, &encode(&seq))
    }

    fn due(&self, now: StoreTime) -> Result<Option<SessionId>, M::Error> {
        Ok(self.first_to_end(1)?.pop().filter(|(expiry, _)| *expiry <= now).map(|(_, id)| id))
    }

    fn has_room(&self) -> Result<bool, M::Error> {
        self.map.has_room()
    }

    fn forget_idle(&mut self, now: StoreTime) -> Result<usize, M::Error> {
        M::forget_idle(self, now)
    }

    fn past(&self, name: &Resource) -> Result<Option<Past>, M::Error> {
        self.get(&self.name_key(b"p", name), decode_open)
    }

    fn put_past(&mut self, name: &Resource, past: Past, known: Option<StoreTime>) -> Result<(), M::Error> {
        if known != Some(past.check_at) {
            if let Some(known) = known {
                self.map.delete(&self.instant_key(b"f", known, name.as_str().as_bytes()))?;
            }
            self.map.put(&self.instant_key(b"f", past.check_at, name.as_str().as_bytes()), &[])?;
        }
        self.map.put(&self.name_key(b"p", name), &encode_open(&past))
    }

    fn remove_past(&mut self, name: &Resource, check_at: StoreTime) -> Result<(), M::Error> {
        self.map.delete(&self.instant_key(b"f", check_at, name.as_str().as_bytes()))?;
        self.map.delete(&self.name_key(b"p", name))
    }

    fn first_to_check(&self) -> Result<Option<(StoreTime, Resource)>, M::Error> {
        let prefix = self.key(b"f", &[]);
        let Some((key, _)) = self.map.scan(&prefix, 1)?.pop() else { return Ok(None) };
        let (check_at, name) = instant(&key[prefix.len()..])?;
        Ok(Some((check_at, resource(name)?)))
    }

    fn entry(&self, name: &Resource, number: u64) -> Result<Option<Entry>, M::Error> {
        Ok(self.get(&self.part_key(b"h", name, &number.to_be_bytes()), decode_entry)?.flatten())
    }

    fn put_entry(&mut self, name: &Resource, number: u64, entry: Entry) -> Result<(), M::Error> {
        self.map.put(&self.part_key(b"h", name, &number.to_be_bytes()), &encode_open(&entry))
    }

    fn remove_entry(&mut self, name: &Resource, number: u64) -> Result<(), M::Error> {
        self.map.delete(&self.part_key(b"h", name, &number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rlock_model::mode::Mode;
    use rlock_model::op::Op;
    use rlock_model::past::End;
    use rlock_model::request::{Claim, Job, Process, Request};
    use rlock_model::span::Span;
    use rlock_model::table::LockTable;

    fn request(session: u8, resource: &str, keep_for: Option<Duration>) -> Op {
        let resource = Resource::new(resource).unwrap();
        let request = Request {
            session: SessionId([session; 16]),
            ancestors: Vec::new(),
            claims: vec![Claim { resource, mode: Mode::Write, span: Span::Whole, slots: None }],
            wait: true,
            terms: None,
            job: Job { keep_for, ..Job::default() },
            process: Process::default(),
        };
        Op::Acquire { request, place: None }
    }

    /// A change of these keys is a new format: see docs/protocol.md.
    #[test]
    fn table_has_the_keys_of_format_4() {
        let mut table = LockTable::new(MapRecords::new(BTreeMap::new(), "n"));
        let release = Op::Release { session: SessionId(*b"aaaaaaaaaaaaaaaa"), end: Some(End::KEPT) };
        let ops = [request(b'a', "k", None), request(b'b', "k", Some(Duration::from_micros(1))), release];
        for (now, op) in (1..).zip(ops) {
            table.apply(StoreTime::from_micros(now), op).unwrap();
        }
        let keys = table.records().map.keys().map(|key| key.escape_ascii().to_string());
        let expected = [
            r"c",
            r"en\x00\x00\x00\x00\x00\x00\x00\x00\x04bbbbbbbbbbbbbbbb",
            r"fn\x00\x00\x00\x00\x8c\xd0\xe3\xa0\x03k",
            r"hn\x00k\x00\x00\x00\x00\x00\x00\x00\x00\x00",
            r"pn\x00k",
            r"q",
            r"rn\x00k",
            r"sn\x00bbbbbbbbbbbbbbbb",
        ];
        assert_eq!(keys.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn keys_of_another_namespace_are_left_alone() {
        let mut map = BTreeMap::new();
        for namespace in ["n", "n2"] {
            let mut table = LockTable::new(MapRecords::new(map, namespace));
            table.apply(StoreTime::from_micros(1), request(1, "k", None)).unwrap();
            map = table.into_records().map;
        }
        let mut records = MapRecords::new(map, "n");
        records.remove_session(SessionId([1; 16])).unwrap();
        assert_eq!(records.sessions().unwrap(), []);
        assert_eq!(MapRecords::new(records.map, "n2").sessions().unwrap().len(), 1);
    }
}
