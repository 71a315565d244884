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

pub(super) mod codec;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Bound, Deref};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::codec::{Damaged, Open, decode, decode_entry, decode_open, encode, encode_open};
use crate::lock::index::Node;
use crate::lock::past::{Entry, Past};
use crate::lock::records::{Records, ResourceState, Session};
use crate::lock::remember;
use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::system::clock::StoreTime;

const CLOCK: &[u8] = b"c";
const SEQ: &[u8] = b"q";

/// Keys and their values in byte order of the keys, in a transaction that takes effect as a whole
/// or not at all.
pub(super) trait Map: Sized {
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
    /// The first key that is not before `key`.
    fn first_from(&self, key: &[u8]) -> Result<Option<Item<'_, Self>>, Self::Error>;

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
pub(super) type Item<'m, M> = (<M as Map>::Bytes<'m>, <M as Map>::Bytes<'m>);

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
        let with_prefix = items_from(self, prefix).take_while(|(key, _)| key.starts_with(prefix));
        Ok(with_prefix.take(count).collect())
    }

    fn first_from(&self, key: &[u8]) -> Result<Option<Item<'_, Self>>, Damaged> {
        Ok(items_from(self, key).next())
    }
}

fn items_from<'m>(map: &'m BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8]) -> impl Iterator<Item = (&'m [u8], &'m [u8])> {
    let items = map.range::<[u8], _>((Bound::Included(key), Bound::Unbounded));
    items.map(|(key, value)| (key.as_slice(), value.as_slice()))
}

/// The clock of the table.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Clock {
    /// The instant of the last operation, or the last token if that is later.
    pub(super) now: StoreTime,
    /// The time from the boot of the machine to the last operation, in microseconds.
    pub(super) since_boot: u64,
    /// The inode of the time namespace in which `since_boot` counts; 0 if it is not known.
    pub(super) times: u64,
}

/// The records of one namespace in a map.
pub(super) struct MapRecords<'t, M> {
    pub(super) map: M,
    pub(super) namespace: Cow<'t, str>,
}

/// The expiry and the session in the key of an expiry.
fn ending(key: &[u8]) -> Result<(StoreTime, SessionId), Damaged> {
    let (expiry, id) = instant(key)?;
    Ok((expiry, decode(id)?))
}

/// The instant at the beginning of a key, and the rest of the key.
fn instant(key: &[u8]) -> Result<(StoreTime, &[u8]), Damaged> {
    let (instant, rest) = key.split_first_chunk().ok_or(Damaged)?;
    Ok((StoreTime::from_micros(u64::from_be_bytes(*instant)), rest))
}

/// The resource in a key.
fn resource(name: &[u8]) -> Result<Resource, Damaged> {
    let name = std::str::from_utf8(name).map_err(|_| Damaged)?;
    Resource::new(name).map_err(|_| Damaged)
}

impl<'t, M: Map> MapRecords<'t, M> {
    /// The records of a namespace.
    pub(super) fn new(map: M, namespace: impl Into<Cow<'t, str>>) -> Self {
        Self { map, namespace: namespace.into() }
    }

    pub(super) fn clock(&self) -> Result<Clock, M::Error> {
        // Without a record, no time has passed.
        Ok(self.get(CLOCK)?.unwrap_or(Clock { now: StoreTime::default(), since_boot: u64::MAX, times: 0 }))
    }

    pub(super) fn put_clock(&mut self, clock: &Clock) -> Result<(), M::Error> {
        self.put(CLOCK, clock)
    }

    /// The instant at which the next session ends of itself.
    pub(super) fn first_expiry(&self) -> Result<Option<StoreTime>, M::Error> {
        Ok(self.first_to_end()?.map(|(expiry, _)| expiry))
    }

    fn first_to_end(&self) -> Result<Option<(StoreTime, SessionId)>, M::Error> {
        let prefix = self.key(b"e", &[]);
        Ok(self.first(&prefix)?.map(|(key, _)| ending(&key[prefix.len()..])).transpose()?)
    }

    /// The sessions that end by `now`, at most so many.
    pub(super) fn due_until(&self, now: StoreTime, count: usize) -> Result<Vec<SessionId>, M::Error> {
        if self.due(now)?.is_none() {
            return Ok(Vec::new());
        }
        let prefix = self.key(b"e", &[]);
        let all = self.map.scan(&prefix, count)?.into_iter().map(|(key, _)| ending(&key[prefix.len()..]));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().filter(|(expiry, _)| *expiry <= now).map(|(_, id)| id).collect())
    }

    /// All sessions of the namespace.
    pub(super) fn sessions(&self) -> Result<Vec<(SessionId, Session)>, M::Error> {
        let prefix = self.key(b"s", &[]);
        let session = |(key, value): Item<'_, M>| Ok((decode(&key[prefix.len()..])?, decode_open(&value)?));
        self.map.scan(&prefix, usize::MAX)?.into_iter().map(session).collect()
    }

    /// The names of all resources with a past, in order.
    pub(super) fn pasts(&self) -> Result<Vec<Resource>, M::Error> {
        self.names(b"p")
    }

    fn names(&self, kind: &[u8; 1]) -> Result<Vec<Resource>, M::Error> {
        let prefix = self.key(kind, &[]);
        let name = |(key, _): Item<'_, M>| Ok(resource(&key[prefix.len()..])?);
        self.map.scan(&prefix, usize::MAX)?.into_iter().map(name).collect()
    }

    fn first(&self, prefix: &[u8]) -> Result<Option<Item<'_, M>>, M::Error> {
        Ok(self.map.first_from(prefix)?.filter(|(key, _)| key.starts_with(prefix)))
    }

    pub(super) fn get<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, M::Error> {
        Ok(self.map.get(key)?.map(|value| decode(&value)).transpose()?)
    }

    fn get_open<T: Open>(&self, key: &[u8]) -> Result<Option<T>, M::Error> {
        Ok(self.map.get(key)?.map(|value| decode_open(&value)).transpose()?)
    }

    pub(super) fn put(&mut self, key: &[u8], record: &impl Serialize) -> Result<(), M::Error> {
        self.map.put(key, &encode(record))
    }

    fn put_open(&mut self, key: &[u8], record: &impl Open) -> Result<(), M::Error> {
        self.map.put(key, &encode_open(record))
    }

    pub(super) fn key(&self, kind: &[u8; 1], rest: &[&[u8]]) -> Vec<u8> {
        let mut key = [kind, self.namespace.as_bytes(), b"\0"].concat();
        rest.iter().for_each(|part| key.extend_from_slice(part));
        key
    }

    fn session_key(&self, id: SessionId) -> Vec<u8> {
        self.key(b"s", &[&id.0])
    }

    fn expiry_key(&self, expiry: StoreTime, id: SessionId) -> Vec<u8> {
        self.key(b"e", &[&expiry.as_micros().to_be_bytes(), &id.0])
    }

    /// Removes the key of a session's expiry, if the session has one.
    fn forget_expiry(&mut self, id: SessionId) -> Result<(), M::Error> {
        match self.session(id)?.and_then(|session| session.expiry) {
            Some(expiry) => self.map.delete(&self.expiry_key(expiry, id)),
            None => Ok(()),
        }
    }

    pub(super) fn resource_key(&self, name: &Resource) -> Vec<u8> {
        self.key(b"r", &[name.as_str().as_bytes()])
    }

    fn past_key(&self, name: &Resource) -> Vec<u8> {
        self.key(b"p", &[name.as_str().as_bytes()])
    }

    fn check_key(&self, check_at: StoreTime, name: &Resource) -> Vec<u8> {
        self.key(b"f", &[&check_at.as_micros().to_be_bytes(), name.as_str().as_bytes()])
    }

    fn history_key(&self, name: &Resource, number: u64) -> Vec<u8> {
        self.key(b"h", &[name.as_str().as_bytes(), b"\0", &number.to_be_bytes()])
    }

    fn node_key(&self, name: &Resource, id: u32) -> Vec<u8> {
        self.key(b"n", &[name.as_str().as_bytes(), b"\0", &id.to_be_bytes()])
    }
}

impl<M: Map> Records for MapRecords<'_, M> {
    type Error = M::Error;

    fn session(&self, id: SessionId) -> Result<Option<Session>, M::Error> {
        self.get_open(&self.session_key(id))
    }

    fn put_session(&mut self, id: SessionId, session: Session) -> Result<(), M::Error> {
        self.forget_expiry(id)?;
        if let Some(expiry) = session.expiry {
            let key = self.expiry_key(expiry, id);
            self.map.put(&key, &[])?;
        }
        let key = self.session_key(id);
        self.put_open(&key, &session)
    }

    fn remove_session(&mut self, id: SessionId) -> Result<(), M::Error> {
        self.forget_expiry(id)?;
        self.map.delete(&self.session_key(id))
    }

    fn resource(&self, name: &Resource) -> Result<Option<Cow<'_, ResourceState>>, M::Error> {
        Ok(self.get(&self.resource_key(name))?.map(Cow::Owned))
    }

    fn take_resource(&mut self, name: &Resource) -> Result<Option<ResourceState>, M::Error> {
        self.get(&self.resource_key(name))
    }

    fn put_resource(&mut self, name: &Resource, state: ResourceState) -> Result<(), M::Error> {
        let token = StoreTime::from_micros(state.last_token);
        let clock = self.clock()?;
        if token > clock.now {
            self.put_clock(&Clock { now: token, ..clock })?;
        }
        self.put(&self.resource_key(name), &state)
    }

    fn remove_resource(&mut self, name: &Resource) -> Result<(), M::Error> {
        self.map.delete(&self.resource_key(name))
    }

    fn resources(&self) -> Result<Vec<Resource>, M::Error> {
        self.names(b"r")
    }

    fn node(&self, name: &Resource, id: u32) -> Result<Cow<'_, Node>, M::Error> {
        self.get(&self.node_key(name, id))?.map(Cow::Owned).ok_or(Damaged.into())
    }

    fn take_node(&mut self, name: &Resource, id: u32) -> Result<Node, M::Error> {
        self.get(&self.node_key(name, id))?.ok_or(Damaged.into())
    }

    fn put_node(&mut self, name: &Resource, id: u32, node: Node) -> Result<(), M::Error> {
        self.put(&self.node_key(name, id), &node)
    }

    fn remove_node(&mut self, name: &Resource, id: u32) -> Result<(), M::Error> {
        self.map.delete(&self.node_key(name, id))
    }

    fn last_seq(&self) -> Result<u64, M::Error> {
        Ok(self.get(SEQ)?.unwrap_or(0))
    }

    fn put_last_seq(&mut self, seq: u64) -> Result<(), M::Error> {
        self.put(SEQ, &seq)
    }

    fn due(&self, now: StoreTime) -> Result<Option<SessionId>, M::Error> {
        Ok(self.first_to_end()?.filter(|(expiry, _)| *expiry <= now).map(|(_, id)| id))
    }

    fn has_room(&self) -> Result<bool, M::Error> {
        self.map.has_room()
    }

    fn forget_idle(&mut self, now: StoreTime) -> Result<usize, M::Error> {
        M::forget_idle(self, now)
    }

    fn past(&self, name: &Resource) -> Result<Option<Past>, M::Error> {
        self.get_open(&self.past_key(name))
    }

    fn put_past(&mut self, name: &Resource, past: Past, known: Option<StoreTime>) -> Result<(), M::Error> {
        if known != Some(past.check_at) {
            if let Some(known) = known {
                self.map.delete(&self.check_key(known, name))?;
            }
            let key = self.check_key(past.check_at, name);
            self.map.put(&key, &[])?;
        }
        self.put_open(&self.past_key(name), &past)
    }

    fn remove_past(&mut self, name: &Resource, check_at: StoreTime) -> Result<(), M::Error> {
        self.map.delete(&self.check_key(check_at, name))?;
        self.map.delete(&self.past_key(name))
    }

    fn first_to_check(&self) -> Result<Option<(StoreTime, Resource)>, M::Error> {
        let prefix = self.key(b"f", &[]);
        let Some((key, _)) = self.first(&prefix)? else { return Ok(None) };
        let (check_at, name) = instant(&key[prefix.len()..])?;
        Ok(Some((check_at, resource(name)?)))
    }

    fn entry(&self, name: &Resource, number: u64) -> Result<Option<Entry>, M::Error> {
        Ok(self.map.get(&self.history_key(name, number))?.map(|entry| decode_entry(&entry)).transpose()?.flatten())
    }

    fn put_entry(&mut self, name: &Resource, number: u64, entry: Entry) -> Result<(), M::Error> {
        self.put_open(&self.history_key(name, number), &entry)
    }

    fn remove_entry(&mut self, name: &Resource, number: u64) -> Result<(), M::Error> {
        self.map.delete(&self.history_key(name, number))
    }
}
