//! Lists the holders and waiters of resources for `inspect`.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;

use super::op::{HolderListing, ResourceListing, WaiterListing};
use super::records::{Records, Session};
use super::request::SessionId;
use super::resource::Resource;

/// Lists the named resources, including those without holders and waiters. Without names, lists
/// every resource that has a holder or a waiter.
pub(super) fn list<R: Records>(records: &R, names: &[Resource]) -> Result<Vec<ResourceListing>, R::Error> {
    let all = if names.is_empty() { records.resources()? } else { Vec::new() };
    // A session with many claims appears in many listings, and its record contains all of its
    // claims. So each record is read once.
    let mut sessions = HashMap::new();
    names.iter().chain(&all).map(|name| list_one(records, name, &mut sessions)).collect()
}

/// The session records that were read so far.
type Sessions = HashMap<SessionId, Option<Session>>;

fn list_one<R: Records>(records: &R, name: &Resource, sessions: &mut Sessions) -> Result<ResourceListing, R::Error> {
    let mut listing = ResourceListing { name: name.clone(), holders: Vec::new(), waiters: Vec::new() };
    let Some(state) = records.resource(name)? else { return Ok(listing) };
    let mut entries = state.tree.entries(records, name)?;
    entries.sort_by_key(|entry| (entry.rank, entry.session, entry.claim));
    let mut last = None;
    let mut position = 0;
    for entry in entries {
        let session = match sessions.entry(entry.session) {
            MapEntry::Occupied(known) => known.into_mut(),
            MapEntry::Vacant(unknown) => unknown.insert(records.session(entry.session)?),
        };
        let Some(session) = session else { continue };
        let record = &session.claims[entry.claim as usize];
        let (mode, span, slots) = (record.claim.mode, record.claim.span.clone(), record.claim.slots);
        if entry.rank.is_held() {
            listing.holders.push(HolderListing {
                session: entry.session,
                mode,
                span,
                slots,
                token: record.token,
                since: session.since,
                expiry: session.expiry,
                kept: session.is_kept(),
                ancestors: session.ancestors.clone(),
                process: session.process.clone(),
            });
        } else {
            // All claims of one request share one place in the queue.
            position += u32::from(last.replace(entry.session) != Some(entry.session));
            listing.waiters.push(WaiterListing {
                session: entry.session,
                mode,
                span,
                slots,
                since: session.since,
                position,
                ancestors: session.ancestors.clone(),
                process: session.process.clone(),
            });
        }
    }
    // Nested holds share a token, and the outer hold has the earlier grant.
    listing.holders.sort_by_key(|holder| (holder.token, holder.since, holder.session));
    Ok(listing)
}
