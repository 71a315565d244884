//! What lies under the keys of a resource, whatever the scripts say of it.

use std::collections::{BTreeMap, BTreeSet};

use rlock::lock::op::ResourceListing;

use crate::side::Side;

/// What is left of a resource that nobody holds or waits for.
const LEFT: [&str; 3] = ["#seq", "#token", "#clock"];

/// Checks the keys of every resource against who holds and who waits.
pub(crate) fn check(side: &mut Side, listings: &[ResourceListing]) -> Result<(), String> {
    listings.iter().try_for_each(|listing| {
        let keys = side.keys(&listing.name);
        check_one(side, &keys, listing).map_err(|what| format!("{}: {what}", listing.name))
    })
}

fn check_one(side: &mut Side, keys: &[String; 5], listing: &ResourceListing) -> Result<(), String> {
    let [d, e, q, l, u] = keys;
    let mut pipeline = redis::pipe();
    for key in keys {
        pipeline.cmd("PTTL").arg(key);
    }
    pipeline.cmd("HKEYS").arg(d).cmd("ZRANGE").arg(e).arg(0).arg(-1).cmd("ZCARD").arg(q);
    pipeline.cmd("ZCARD").arg(l).cmd("ZCARD").arg(u);
    type Answers = (i64, i64, i64, i64, i64, BTreeSet<String>, BTreeSet<String>, usize, usize, usize);
    let answers: Answers = pipeline.query(&mut side.connection).map_err(|error| error.to_string())?;
    let (d_ttl, e_ttl, q_ttl, l_ttl, u_ttl, fields, expiries, queued, lower, upper) = answers;

    let claims = listing.holders.len() + listing.waiters.len();
    if (lower, upper) != (claims, claims) {
        return Err(format!("{claims} claims have {lower} lower and {upper} upper ends"));
    }
    let mut sessions = BTreeMap::new();
    sessions.extend(listing.holders.iter().map(|holder| (holder.session.to_string(), holder.expiry.is_some())));
    let waiting: BTreeSet<_> = listing.waiters.iter().map(|waiter| waiter.session.to_string()).collect();
    if queued < waiting.len() || queued > listing.waiters.len() {
        return Err(format!("{} sessions wait, and {queued} are in the queue", waiting.len()));
    }
    sessions.extend(waiting.into_iter().map(|id| (id.clone(), expiries.contains(&id))));
    let known: BTreeSet<_> = fields.iter().filter(|field| !field.starts_with('#')).cloned().collect();
    if known != sessions.keys().cloned().collect() {
        return Err(format!("the records are of {known:?}, not of {:?}", sessions.keys()));
    }
    let with_terms: BTreeSet<_> = sessions.iter().filter(|(_, terms)| **terms).map(|(id, _)| id.clone()).collect();
    if expiries != with_terms {
        return Err(format!("the expiries are of {expiries:?}, not of {with_terms:?}"));
    }
    let ttls = [d_ttl, e_ttl, q_ttl, l_ttl, u_ttl];
    if claims > 0 {
        return if ttls.iter().all(|ttl| *ttl < 0) { Ok(()) } else { Err(format!("live keys have TTLs: {ttls:?}")) };
    }
    let untouched = ttls == [-2; 5];
    let idle = d_ttl > 0 && ttls[1..] == [-2; 4] && fields.iter().all(|field| LEFT.contains(&field.as_str()));
    if untouched || idle { Ok(()) } else { Err(format!("nobody is left, but {fields:?} and keys with TTLs {ttls:?}")) }
}
