//! Lists the holders and waiters of resources for `inspect`.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;

use super::mode::Mode;
use super::op::{HolderListing, ResourceListing, WaiterListing};
use super::records::{ClaimRecord, Records, Session};
use super::request::{Claim, SessionId};
use super::resource::Resource;
use rlock_sys::clock::StoreTime;

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
    let entries = match records.resource(name)? {
        Some(state) => state.tree.entries(records, name)?,
        None => Vec::new(),
    };
    for entry in &entries {
        if let MapEntry::Vacant(unknown) = sessions.entry(entry.session) {
            unknown.insert(records.session(entry.session)?);
        }
    }
    let mut claims: Vec<_> = entries.iter().map(|entry| (entry.session, entry.claim)).collect();
    claims.sort_unstable();
    let claims = claims.into_iter().filter_map(|(id, claim)| {
        let session = sessions[&id].as_ref()?;
        Some((id, session, &session.claims[claim as usize]))
    });
    Ok(ResourceListing::of(name.clone(), claims.collect()))
}

impl ClaimRecord {
    /// Whether another claim of the same session is a further slot of this one's resource.
    fn is_listed_with(&self, other: &Self) -> bool {
        self.claim.mode == Mode::Slot && self.claim == other.claim && self.token == other.token
    }
}

impl ResourceListing {
    /// Lists claims on a resource, with their sessions. The claims of each session are in their
    /// order, and its slots are listed as one claim. The waiters are numbered as if the queue had
    /// no others.
    pub fn of(name: Resource, mut claims: Vec<(SessionId, &Session, &ClaimRecord)>) -> Self {
        let mut listing = Self { name, holders: Vec::new(), waiters: Vec::new() };
        claims.sort_by_key(|(id, _, record)| (record.rank, *id));
        let mut last = None;
        let mut position = 0;
        for same in claims.chunk_by(|(id, _, one), (next, _, other)| id == next && one.is_listed_with(other)) {
            let ((id, session, record), count) = (same[0], same.len());
            let Claim { mode, span, slots, .. } = record.claim.clone();
            if record.rank.is_held() {
                listing.holders.push(HolderListing {
                    session: id,
                    mode,
                    span,
                    slots,
                    count,
                    numbers: same.iter().filter_map(|(_, _, record)| record.slot).collect(),
                    token: record.token,
                    since: session.since,
                    expiry: session.expiry.filter(|expiry| *expiry < StoreTime::NEVER),
                    kept: session.is_kept(),
                    revoked: session.revoked.clone(),
                    ancestors: session.ancestors.clone(),
                    process: session.process.clone(),
                    gate: None,
                });
            } else {
                // All claims of one request share one place in the queue.
                position += u32::from(last.replace(id) != Some(id));
                listing.waiters.push(WaiterListing {
                    session: id,
                    mode,
                    span,
                    slots,
                    count,
                    since: session.asked,
                    position,
                    ancestors: session.ancestors.clone(),
                    process: session.process.clone(),
                });
            }
        }
        // Nested holds share a token, and the outer hold has the earlier grant.
        listing.holders.sort_by_key(|holder| (holder.token, holder.since, holder.session));
        listing
    }
}
