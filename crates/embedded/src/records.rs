//! What only the embedded store keeps beside the [`MapRecords`]: beacons, the clock of the machine,
//! and what the table's file has room for.
//!
//! The file has one unnamed database, so that an ordinary operation writes one leaf page.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem;
use std::time::Duration;

use super::beacon::{Identity, time_namespace};
use super::failure::Error;
use super::file::{self, TableFile};
use super::lmdb::Txn;
use rlock_model::records::Records;
use rlock_model::remember;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_store::records::codec::{decode, encode};
use rlock_store::records::{CLOCK, Clock, Item, Map, MapRecords};
use rlock_sys::clock::{Boottime, StoreTime, micros};

/// The part of the file that the table may fill before the past stops to grow.
const PAST_SHARE: [usize; 2] = [3, 4];
/// The part that requests with a success to keep may fill. What is left serves all other requests,
/// which give back what they take.
pub(super) const SUCCESSES_SHARE: [usize; 2] = [7, 8];

/// The namespace in a key.
fn namespace(key: &[u8]) -> Result<String, Error> {
    let namespace = key[1..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8(namespace.to_vec()).map_err(|_| Error::Damaged)
}

fn since_boot(boottime: Boottime) -> u64 {
    micros(boottime - Boottime::default())
}

/// The keys and values of the table's file, in a transaction.
pub(super) struct FileMap<'t> {
    pub(super) txn: Txn<'t>,
    pub(super) file: &'t TableFile,
    /// The length of the file in bytes.
    pub(super) len: usize,
    /// The length that the file may get. The file system is asked for it when it matters.
    pub(super) bytes_max: OnceCell<usize>,
    /// Whether the past does not grow, whatever room there is, since a change of the table has
    /// failed.
    pub(super) forgets: bool,
}

/// The records of one namespace, in a transaction.
pub(super) type Transaction<'t> = MapRecords<'t, FileMap<'t>>;

/// A copy of records, and its instant.
pub(super) struct Copied {
    pub(super) now: StoreTime,
    pub(super) records: MapRecords<'static, BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl FileMap<'_> {
    /// Whether the file would be large enough if the table could have this part of it.
    pub(super) fn fits(&self, part: [usize; 2]) -> Result<bool, Error> {
        let pages = self.txn.pages()?;
        let bytes_max = || *self.bytes_max.get_or_init(|| self.file.bytes_max(self.len));
        Ok(file::fits(pages, part, self.len) || file::fits(pages, part, bytes_max()))
    }

    /// The namespaces that have sessions.
    pub(super) fn namespaces(&self) -> Result<BTreeSet<String>, Error> {
        self.scan(b"s", usize::MAX)?.into_iter().map(|(key, _)| namespace(key)).collect()
    }

    /// The ids of the sessions of all namespaces.
    pub(super) fn session_ids(&self) -> Result<HashSet<SessionId>, Error> {
        let id = |key: &[u8]| key.last_chunk().copied().map(SessionId).ok_or(Error::Damaged);
        self.scan(b"s", usize::MAX)?.into_iter().map(|(key, _)| id(key)).collect()
    }
}

impl Map for FileMap<'_> {
    type Error = Error;
    type Bytes<'m>
        = &'m [u8]
    where
        Self: 'm;

    fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, Error> {
        self.txn.get(key)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.txn.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        // The identity of a beacon goes with its session.
        if let [b's', session @ ..] = key {
            self.txn.delete(&[b"b", session].concat())?;
        }
        self.txn.delete(key)
    }

    fn scan(&self, prefix: &[u8], count: usize) -> Result<Vec<Item<'_, Self>>, Error> {
        self.txn.scan(prefix, count)
    }

    fn has_room(&self) -> Result<bool, Error> {
        Ok(!self.forgets && self.fits(PAST_SHARE)?)
    }

    /// Turns to another namespace if this one has nothing to forget.
    fn forget_idle(records: &mut MapRecords<'_, Self>, now: StoreTime) -> Result<usize, Error> {
        if records.map.forgets {
            return Ok(0);
        }
        let looked_at = remember::forget_idle(records, now)?;
        if looked_at > 0 || records.has_room()? {
            return Ok(looked_at);
        }
        let Some(other) = other_namespace(records)? else { return Ok(0) };
        let own = mem::replace(&mut records.namespace, Cow::Owned(other));
        let looked_at = remember::forget_idle(records, now);
        records.namespace = own;
        looked_at
    }
}

/// The identity of the beacon of a session that has a record.
pub(super) fn beacon<M: Map>(records: &MapRecords<'_, M>, id: SessionId) -> Result<Option<Identity>, M::Error> {
    records.get(&records.key(b"b", &[&id.0]), decode)
}

/// Copies the records of the named resources, or of all resources if none is named, and those
/// of all sessions.
pub(super) fn copy(records: &Transaction<'_>, now: StoreTime, names: &[Resource]) -> Result<Copied, Error> {
    let kinds: &[&[u8; 1]] = if names.is_empty() { &[b"b", b"n", b"r", b"s"] } else { &[b"b", b"s"] };
    let mut prefixes: Vec<_> = kinds.iter().map(|kind| records.key(kind, &[])).collect();
    let mut copied = Vec::new();
    for name in names {
        let key = records.name_key(b"r", name);
        copied.extend(records.map.get(&key)?.map(|state| (key, state.to_vec())));
        prefixes.push(records.part_key(b"n", name, &[]));
    }
    for prefix in prefixes {
        let items = records.map.scan(&prefix, usize::MAX)?.into_iter();
        copied.extend(items.map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    Ok(Copied { now, records: MapRecords::new(copied.into_iter().collect(), records.namespace.to_string()) })
}

/// A namespace in which resources have a past, other than this one.
fn other_namespace(records: &Transaction<'_>) -> Result<Option<String>, Error> {
    let own = records.key(b"f", &[]);
    let mut first = records.map.txn.first_from(b"f")?;
    if first.is_some_and(|(key, _)| key.starts_with(&own)) {
        // No namespace has a control character, so this is beyond the keys of this one.
        first = records.map.txn.first_from(&[&own[..own.len() - 1], b"\x01"].concat())?;
    }
    first.filter(|(key, _)| key.starts_with(b"f")).map(|(key, _)| namespace(key)).transpose()
}

/// Returns the instant of an operation: `wall`, or later if an earlier instant or token is not
/// below `wall`. So the clock never goes back. A token is at least the instant of its grant, so
/// tokens rise even on a resource whose state was dropped in between.
///
/// If the wall clock is set back, the clock of the table follows the time since the boot.
/// Otherwise no session would end until the wall clock has caught up.
pub(super) fn advance_clock(
    records: &mut Transaction<'_>,
    wall: StoreTime,
    boottime: Boottime,
) -> Result<StoreTime, Error> {
    let now = time(records, wall, boottime)?;
    let clock = Clock { now, since_boot: since_boot(boottime), times: time_namespace() };
    records.map.put(CLOCK, &encode(&clock))?;
    Ok(now)
}

/// The instant that [`advance_clock`] would return.
pub(super) fn time(records: &Transaction<'_>, wall: StoreTime, boottime: Boottime) -> Result<StoreTime, Error> {
    let Clock { now, since_boot: last, times } = records.clock()?;
    // A process of another time namespace counts from another instant.
    let passed = if times == time_namespace() { since_boot(boottime).saturating_sub(last) } else { 0 };
    let passed = Duration::from_micros(passed);
    Ok(wall.max(now + passed.max(Duration::from_micros(1))))
}

/// Stores the identity of a session's beacon.
pub(super) fn put_beacon(records: &mut Transaction<'_>, id: SessionId, beacon: &Identity) -> Result<(), Error> {
    records.map.put(&records.key(b"b", &[&id.0]), &encode(beacon))
}
