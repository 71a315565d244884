//! Reads the holders and waiters of resources, for the search for a deadlock.

use std::collections::BTreeMap;

use super::client::Client;
use super::findings::live;
use super::keys;
use super::survey::CLAIMS_AT_ONCE;
use rlock_model::deadlock::{self, Reading};
use rlock_model::resource::Resource;
use rlock_store::error::Error;

/// How many holders and waiters of a resource are followed.
const FOLLOWED: usize = 1_000;
/// How many resources one call reads, so that the server soon serves other clients.
const READ_AT_ONCE: usize = 64;

/// The live sessions that hold or wait for these resources.
pub(super) fn read(mut client: Client, resources: &[Resource]) -> Result<Option<Reading>, Error> {
    // A script gets the keys of one slot.
    let mut groups: BTreeMap<u16, Vec<Resource>> = BTreeMap::new();
    for name in resources {
        let slot = if client.is_cluster() { keys::slot(name) } else { 0 };
        groups.entry(slot).or_default().push(name.clone());
    }
    let mut reading = Reading::new();
    for names in groups.values().flat_map(|names| names.chunks(READ_AT_ONCE)) {
        let Some(read) = live(names, FOLLOWED, CLAIMS_AT_ONCE, |call| client.call(call))? else { return Ok(None) };
        deadlock::merge(&mut reading, read);
    }
    Ok(Some(reading))
}
