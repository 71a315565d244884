//! Reads and writes the table's records in one LMDB transaction.
//!
//! The file has one unnamed database, so that an ordinary operation writes one leaf page. The keys,
//! in byte order:
//!
//! | key | value |
//! | --- | --- |
//! | `b` namespace 0 session id | the identity of the session's beacon |
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

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::beacon::{Identity, time_namespace};
use super::codec::{Open, decode, decode_entry, decode_open, encode, encode_open};
use super::failure::Error;
use super::lmdb::Txn;
use super::size::pages_needed;
use crate::lock::index::Node;
use crate::lock::past::{Entry, Past};
use crate::lock::records::{Records, ResourceState, Session};
use crate::lock::remember;
use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::system::clock::{Boottime, StoreTime, micros};

const CLOCK: &[u8] = b"c";
const SEQ: &[u8] = b"q";

/// The part of the file that the table may fill before the past stops to grow.
const PAST_SHARE: [usize; 2] = [3, 4];
/// The part that requests with a success to keep may fill. What is left serves all other requests,
/// which give back what they take.
pub(super) const SUCCESSES_SHARE: [usize; 2] = [7, 8];

/// The expiry and the session in the key of an expiry.
fn ending(key: &[u8]) -> Result<(StoreTime, SessionId), Error> {
    let (expiry, id) = instant(key)?;
    Ok((expiry, decode(id)?))
}

/// The instant at the beginning of a key, and the rest of the key.
fn instant(key: &[u8]) -> Result<(StoreTime, &[u8]), Error> {
    let (instant, rest) = key.split_first_chunk().ok_or(Error::Damaged)?;
    Ok((StoreTime::from_micros(u64::from_be_bytes(*instant)), rest))
}

/// The resource in a key.
fn resource(name: &[u8]) -> Result<Resource, Error> {
    let name = std::str::from_utf8(name).map_err(|_| Error::Damaged)?;
    Resource::new(name).map_err(|_| Error::Damaged)
}

/// The clock of the table.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Clock {
    /// The instant of the last operation, or the last token if that is later.
    pub(super) now: StoreTime,
    /// The time from the boot of the machine to the last operation, in microseconds.
    since_boot: u64,
    /// The inode of the time namespace in which `since_boot` counts; 0 if it is not known.
    times: u64,
}

fn since_boot(boottime: Boottime) -> u64 {
    micros(boottime - Boottime::default())
}

/// The records of one namespace, in a transaction that takes effect as a whole or not at all.
pub(super) struct Transaction<'t> {
    txn: Txn<'t>,
    namespace: Cow<'t, str>,
    pages_max: usize,
    /// Whether the past does not grow, whatever room there is.
    forgets: bool,
}

/// A copy of encoded records.
#[derive(Default)]
pub(super) struct Raw {
    /// The instant of the copy.
    pub(super) now: StoreTime,
    /// The sessions of the namespace.
    pub(super) sessions: Vec<(SessionId, Vec<u8>)>,
    /// The identities of the beacons of these sessions.
    pub(super) beacons: HashMap<SessionId, Vec<u8>>,
    /// The requested resources.
    pub(super) resources: Vec<(Resource, Vec<u8>)>,
    /// The nodes of the resources' trees, with resource and number.
    pub(super) nodes: Vec<(Resource, u32, Vec<u8>)>,
}

impl<'t> Transaction<'t> {
    /// Copies the records of the named resources, or of all resources if none is named, and those
    /// of all sessions.
    pub(super) fn copy(&self, now: StoreTime, names: &[Resource]) -> Result<Raw, Error> {
        let mut raw = Raw { now, ..Raw::default() };
        let (sessions, beacons) = (self.key(b"s", &[]), self.key(b"b", &[]));
        for (key, value) in self.txn.scan(&sessions)? {
            raw.sessions.push((decode(&key[sessions.len()..])?, value.to_vec()));
        }
        for (key, value) in self.txn.scan(&beacons)? {
            raw.beacons.insert(decode(&key[beacons.len()..])?, value.to_vec());
        }
        let all = if names.is_empty() { self.resources()? } else { Vec::new() };
        for name in names.iter().chain(&all) {
            let Some(state) = self.txn.get(&self.resource_key(name))? else { continue };
            raw.resources.push((name.clone(), state.to_vec()));
            let nodes = self.key(b"n", &[name.as_str().as_bytes(), b"\0"]);
            for (key, value) in self.txn.scan(&nodes)? {
                let number = key[nodes.len()..].try_into().map_err(|_| Error::Damaged)?;
                raw.nodes.push((name.clone(), u32::from_be_bytes(number), value.to_vec()));
            }
        }
        Ok(raw)
    }

    /// The records of a namespace, in a file that may have so many pages.
    pub(super) fn new(txn: Txn<'t>, namespace: &'t str, pages_max: usize) -> Self {
        Self { txn, namespace: Cow::Borrowed(namespace), pages_max, forgets: false }
    }

    /// Lets the past not grow any more, since a change of the table has failed.
    pub(super) fn forget(&mut self) {
        self.forgets = true;
    }

    /// The number of pages of the table, without free ones.
    pub(super) fn pages(&self) -> Result<usize, Error> {
        self.txn.pages()
    }

    /// Whether the file would be large enough if the table could have this part of it.
    pub(super) fn fits(&self, [part, of]: [usize; 2]) -> Result<bool, Error> {
        Ok(pages_needed(self.pages()?) <= self.pages_max / of * part)
    }

    /// A namespace in which resources have a past, other than this one.
    fn other_namespace(&self) -> Result<Option<String>, Error> {
        let own = self.key(b"f", &[]);
        let mut first = self.txn.first(b"f")?;
        if first.is_some_and(|(key, _)| key.starts_with(&own)) {
            // No namespace has a control character, so this is beyond the keys of this one.
            let beyond = [&own[..own.len() - 1], b"\x01"].concat();
            first = self.txn.first_from(&beyond)?.filter(|(key, _)| key.starts_with(b"f"));
        }
        let namespace = first.map(|(key, _)| key[1..].split(|byte| *byte == 0).next().unwrap_or_default().to_vec());
        namespace.map(|name| String::from_utf8(name).map_err(|_| Error::Damaged)).transpose()
    }

    pub(super) fn commit(self) -> Result<(), Error> {
        self.txn.commit()
    }

    /// Returns the instant of an operation: `wall`, or later if an earlier instant or token is not
    /// below `wall`. So the clock never goes back. A token is at least the instant of its grant, so
    /// tokens rise even on a resource whose state was dropped in between.
    ///
    /// If the wall clock is set back, the clock of the table follows the time since the boot.
    /// Otherwise no session would end until the wall clock has caught up.
    pub(super) fn advance_clock(&mut self, wall: StoreTime, boottime: Boottime) -> Result<StoreTime, Error> {
        let now = self.time(wall, boottime)?;
        self.put(CLOCK, &Clock { now, since_boot: since_boot(boottime), times: time_namespace() })?;
        Ok(now)
    }

    /// The instant that [`advance_clock`](Self::advance_clock) would return.
    pub(super) fn time(&self, wall: StoreTime, boottime: Boottime) -> Result<StoreTime, Error> {
        let Clock { now, since_boot: last, times } = self.clock()?;
        // A process of another time namespace counts from another instant.
        let passed = if times == time_namespace() { since_boot(boottime).saturating_sub(last) } else { 0 };
        let passed = Duration::from_micros(passed);
        Ok(wall.max(now + passed.max(Duration::from_micros(1))))
    }

    fn clock(&self) -> Result<Clock, Error> {
        // Without a record, no time has passed.
        Ok(self.get(CLOCK)?.unwrap_or(Clock { now: StoreTime::default(), since_boot: u64::MAX, times: 0 }))
    }

    /// The instant at which the next session ends of itself.
    pub(super) fn first_expiry(&self) -> Result<Option<StoreTime>, Error> {
        Ok(self.first_to_end()?.map(|(expiry, _)| expiry))
    }

    fn first_to_end(&self) -> Result<Option<(StoreTime, SessionId)>, Error> {
        let prefix = self.key(b"e", &[]);
        self.txn.first(&prefix)?.map(|(key, _)| ending(&key[prefix.len()..])).transpose()
    }

    /// The sessions that end by `now`, at most so many.
    pub(super) fn due_until(&self, now: StoreTime, count: usize) -> Result<Vec<SessionId>, Error> {
        if self.due(now)?.is_none() {
            return Ok(Vec::new());
        }
        let prefix = self.key(b"e", &[]);
        let all = self.txn.scan_first(&prefix, count)?.into_iter().map(|(key, _)| ending(&key[prefix.len()..]));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().filter(|(expiry, _)| *expiry <= now).map(|(_, id)| id).collect())
    }

    /// All sessions of the namespace.
    pub(super) fn sessions(&self) -> Result<Vec<(SessionId, Session)>, Error> {
        let prefix = self.key(b"s", &[]);
        let mut sessions = Vec::new();
        for (key, value) in self.txn.scan(&prefix)? {
            sessions.push((decode(&key[prefix.len()..])?, decode_open(value)?));
        }
        Ok(sessions)
    }

    /// The names of all resources with a past, in order.
    pub(super) fn pasts(&self) -> Result<Vec<Resource>, Error> {
        self.names(b"p")
    }

    fn names(&self, kind: &[u8; 1]) -> Result<Vec<Resource>, Error> {
        let prefix = self.key(kind, &[]);
        self.txn.scan(&prefix)?.into_iter().map(|(key, _)| resource(&key[prefix.len()..])).collect()
    }

    /// The namespaces that have sessions.
    pub(super) fn namespaces(&self) -> Result<BTreeSet<String>, Error> {
        let mut namespaces = BTreeSet::new();
        for (key, _) in self.txn.scan(b"s")? {
            let namespace = key[1..].split(|byte| *byte == 0).next().unwrap_or_default();
            namespaces.insert(String::from_utf8(namespace.to_vec()).map_err(|_| Error::Damaged)?);
        }
        Ok(namespaces)
    }

    /// The ids of the sessions of all namespaces.
    pub(super) fn all_session_ids(&self) -> Result<HashSet<SessionId>, Error> {
        let mut ids = HashSet::new();
        for (key, _) in self.txn.scan(b"s")? {
            let id = key.last_chunk().ok_or(Error::Damaged)?;
            ids.insert(SessionId(*id));
        }
        Ok(ids)
    }

    /// The identity of the beacon of a session that has a record.
    pub(super) fn beacon(&self, id: SessionId) -> Result<Option<Identity>, Error> {
        self.get(&self.beacon_key(id))
    }

    /// Stores the identity of a session's beacon.
    pub(super) fn put_beacon(&mut self, id: SessionId, beacon: &Identity) -> Result<(), Error> {
        self.put(&self.beacon_key(id), beacon)
    }

    fn get<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, Error> {
        Ok(self.txn.get(key)?.map(decode).transpose()?)
    }

    fn get_open<T: Open>(&self, key: &[u8]) -> Result<Option<T>, Error> {
        Ok(self.txn.get(key)?.map(decode_open).transpose()?)
    }

    fn put(&mut self, key: &[u8], record: &impl Serialize) -> Result<(), Error> {
        self.txn.put(key, &encode(record))
    }

    fn put_open(&mut self, key: &[u8], record: &impl Open) -> Result<(), Error> {
        self.txn.put(key, &encode_open(record))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        self.txn.delete(key)
    }

    fn key(&self, kind: &[u8; 1], rest: &[&[u8]]) -> Vec<u8> {
        let mut key = [kind, self.namespace.as_bytes(), b"\0"].concat();
        rest.iter().for_each(|part| key.extend_from_slice(part));
        key
    }

    fn beacon_key(&self, id: SessionId) -> Vec<u8> {
        self.key(b"b", &[&id.0])
    }

    fn session_key(&self, id: SessionId) -> Vec<u8> {
        self.key(b"s", &[&id.0])
    }

    fn expiry_key(&self, expiry: StoreTime, id: SessionId) -> Vec<u8> {
        self.key(b"e", &[&expiry.as_micros().to_be_bytes(), &id.0])
    }

    /// Removes the key of a session's expiry, if the session has one.
    fn forget_expiry(&mut self, id: SessionId) -> Result<(), Error> {
        match self.session(id)?.and_then(|session| session.expiry) {
            Some(expiry) => self.delete(&self.expiry_key(expiry, id)),
            None => Ok(()),
        }
    }

    fn resource_key(&self, name: &Resource) -> Vec<u8> {
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

impl Records for Transaction<'_> {
    type Error = Error;

    fn session(&self, id: SessionId) -> Result<Option<Session>, Error> {
        self.get_open(&self.session_key(id))
    }

    fn put_session(&mut self, id: SessionId, session: Session) -> Result<(), Error> {
        self.forget_expiry(id)?;
        if let Some(expiry) = session.expiry {
            let key = self.expiry_key(expiry, id);
            self.txn.put(&key, &[])?;
        }
        let key = self.session_key(id);
        self.put_open(&key, &session)
    }

    fn remove_session(&mut self, id: SessionId) -> Result<(), Error> {
        self.forget_expiry(id)?;
        self.delete(&self.beacon_key(id))?;
        self.delete(&self.session_key(id))
    }

    fn resource(&self, name: &Resource) -> Result<Option<Cow<'_, ResourceState>>, Error> {
        Ok(self.get(&self.resource_key(name))?.map(Cow::Owned))
    }

    fn take_resource(&mut self, name: &Resource) -> Result<Option<ResourceState>, Error> {
        self.get(&self.resource_key(name))
    }

    fn put_resource(&mut self, name: &Resource, state: ResourceState) -> Result<(), Error> {
        let token = StoreTime::from_micros(state.last_token);
        let clock = self.clock()?;
        if token > clock.now {
            self.put(CLOCK, &Clock { now: token, ..clock })?;
        }
        self.put(&self.resource_key(name), &state)
    }

    fn remove_resource(&mut self, name: &Resource) -> Result<(), Error> {
        self.delete(&self.resource_key(name))
    }

    fn resources(&self) -> Result<Vec<Resource>, Error> {
        self.names(b"r")
    }

    fn node(&self, name: &Resource, id: u32) -> Result<Cow<'_, Node>, Error> {
        self.get(&self.node_key(name, id))?.map(Cow::Owned).ok_or(Error::Damaged)
    }

    fn take_node(&mut self, name: &Resource, id: u32) -> Result<Node, Error> {
        self.get(&self.node_key(name, id))?.ok_or(Error::Damaged)
    }

    fn put_node(&mut self, name: &Resource, id: u32, node: Node) -> Result<(), Error> {
        self.put(&self.node_key(name, id), &node)
    }

    fn remove_node(&mut self, name: &Resource, id: u32) -> Result<(), Error> {
        self.delete(&self.node_key(name, id))
    }

    fn last_seq(&self) -> Result<u64, Error> {
        Ok(self.get(SEQ)?.unwrap_or(0))
    }

    fn put_last_seq(&mut self, seq: u64) -> Result<(), Error> {
        self.put(SEQ, &seq)
    }

    fn due(&self, now: StoreTime) -> Result<Option<SessionId>, Error> {
        Ok(self.first_to_end()?.filter(|(expiry, _)| *expiry <= now).map(|(_, id)| id))
    }

    fn has_room(&self) -> Result<bool, Error> {
        Ok(!self.forgets && self.fits(PAST_SHARE)?)
    }

    fn forget_idle(&mut self, now: StoreTime) -> Result<usize, Error> {
        if self.forgets {
            return Ok(0);
        }
        let looked_at = remember::forget_idle(self, now)?;
        if looked_at > 0 || self.has_room()? {
            return Ok(looked_at);
        }
        let Some(other) = self.other_namespace()? else { return Ok(0) };
        let own = std::mem::replace(&mut self.namespace, Cow::Owned(other));
        let looked_at = remember::forget_idle(self, now);
        self.namespace = own;
        looked_at
    }

    fn past(&self, name: &Resource) -> Result<Option<Past>, Error> {
        self.get_open(&self.past_key(name))
    }

    fn put_past(&mut self, name: &Resource, past: Past, known: Option<StoreTime>) -> Result<(), Error> {
        if known != Some(past.check_at) {
            if let Some(known) = known {
                self.delete(&self.check_key(known, name))?;
            }
            let key = self.check_key(past.check_at, name);
            self.txn.put(&key, &[])?;
        }
        self.put_open(&self.past_key(name), &past)
    }

    fn remove_past(&mut self, name: &Resource, check_at: StoreTime) -> Result<(), Error> {
        self.delete(&self.check_key(check_at, name))?;
        self.delete(&self.past_key(name))
    }

    fn first_to_check(&self) -> Result<Option<(StoreTime, Resource)>, Error> {
        let prefix = self.key(b"f", &[]);
        let Some((key, _)) = self.txn.first(&prefix)? else { return Ok(None) };
        let (check_at, name) = instant(&key[prefix.len()..])?;
        Ok(Some((check_at, resource(name)?)))
    }

    fn entry(&self, name: &Resource, number: u64) -> Result<Option<Entry>, Error> {
        Ok(self.txn.get(&self.history_key(name, number))?.map(decode_entry).transpose()?.flatten())
    }

    fn put_entry(&mut self, name: &Resource, number: u64, entry: Entry) -> Result<(), Error> {
        self.put_open(&self.history_key(name, number), &entry)
    }

    fn remove_entry(&mut self, name: &Resource, number: u64) -> Result<(), Error> {
        self.delete(&self.history_key(name, number))
    }
}
