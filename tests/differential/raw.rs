//! Checks the keys of a resource directly, without the scripts.

use std::collections::{BTreeMap, BTreeSet};

use rlock_model::op::{HolderListing, ResourceListing};
use rlock_redis::keys::KINDS_LEN;

use crate::side::Side;

/// The fields of d that are not records.
const FIELDS: [&str; 1] = ["#epoch"];

/// The replies for a resource: the TTLs of its keys, the fields of d, the members of e, and the
/// sizes of q, l and u.
type Answers = ([i64; KINDS_LEN], BTreeSet<String>, BTreeSet<String>, usize, usize, usize);

/// Checks the keys of every resource against its holders and waiters.
pub(crate) fn check(side: &mut Side, listings: &[ResourceListing]) -> Result<(), String> {
    // A single pipeline, because every step runs this check.
    let mut pipeline = redis::pipe();
    for listing in listings {
        let keys = side.keys(&listing.name);
        let ttls = "local ttls = {} for i = 1, #KEYS do ttls[i] = redis.call('PTTL', KEYS[i]) end return ttls";
        pipeline.cmd("EVAL").arg(ttls).arg(keys.len()).arg(&keys);
        let [_, d, e, q, l, u, _] = keys;
        pipeline.cmd("HKEYS").arg(d).cmd("ZRANGE").arg(e).arg(0).arg(-1);
        pipeline.cmd("ZCARD").arg(q).cmd("ZCARD").arg(l).cmd("ZCARD").arg(u);
    }
    let answers: Vec<redis::Value> = pipeline.query(&mut side.connection).map_err(|error| error.to_string())?;
    listings.iter().zip(answers.chunks(6)).try_for_each(|(listing, answers)| {
        let answers =
            redis::from_redis_value(redis::Value::Array(answers.to_vec())).map_err(|error| error.to_string())?;
        check_one(answers, listing).map_err(|error| format!("{}: {error}", listing.name))
    })
}

fn check_one(answers: Answers, listing: &ResourceListing) -> Result<(), String> {
    let (ttls, fields, mut expiries, queued, lower, upper) = answers;
    let [quiet, busy @ .., history] = ttls;
    if listing.holders.is_empty() && listing.waiters.is_empty() {
        let is_idle = (quiet > 0 || quiet == -2) && busy == [-2; 5] && history != -1;
        return if is_idle { Ok(()) } else { Err(format!("an idle resource has keys with the TTLs {ttls:?}")) };
    }
    let slots = listing.holders.iter().map(|it| it.count).chain(listing.waiters.iter().map(|it| it.count));
    let claims: usize = slots.sum();
    if busy == [-2; 5] {
        let is_sole = (listing.holders.len(), claims) == (1, 1) && listing.waiters.is_empty() && quiet == -1;
        return if is_sole { Ok(()) } else { Err(format!("several claims have keys with the TTLs {ttls:?}")) };
    }
    if (lower, upper) != (claims, claims) {
        return Err(format!("{claims} claims have {lower} lower and {upper} upper ends"));
    }
    let mut sessions = BTreeMap::new();
    let has_expiry = |holder: &HolderListing| holder.kept || holder.expiry.is_some();
    sessions.extend(listing.holders.iter().map(|holder| (holder.session.to_string(), has_expiry(holder))));
    let waiting: BTreeSet<_> = listing.waiters.iter().map(|waiter| waiter.session.to_string()).collect();
    // The sets e and q also contain the epoch.
    let epochs: Vec<_> = expiries.extract_if(.., |member| member.len() != 32).collect();
    if epochs.len() != 1 {
        return Err(format!("the epochs among the expiries are {epochs:?}"));
    }
    let queued = queued - usize::from(queued > 0);
    if queued < waiting.len() || queued > listing.waiters.len() {
        return Err(format!("{} sessions wait, and {queued} are in the queue", waiting.len()));
    }
    sessions.extend(waiting.into_iter().map(|id| (id.clone(), expiries.contains(&id))));
    let known: BTreeSet<_> = fields.iter().filter(|field| !FIELDS.contains(&field.as_str())).cloned().collect();
    if known != sessions.keys().cloned().collect() {
        return Err(format!("the records are of {known:?}, not of {:?}", sessions.keys()));
    }
    let with_terms: BTreeSet<_> = sessions.iter().filter(|(_, terms)| **terms).map(|(id, _)| id.clone()).collect();
    if expiries != with_terms {
        return Err(format!("the expiries are of {expiries:?}, not of {with_terms:?}"));
    }
    if quiet == -1 && history > 0 && busy.iter().all(|ttl| *ttl < 0) {
        Ok(())
    } else {
        Err(format!("live keys have TTLs: {ttls:?}"))
    }
}
