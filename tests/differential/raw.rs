//! Checks the keys of a resource directly, without the scripts.

use std::collections::{BTreeMap, BTreeSet};

use rlock::lock::op::ResourceListing;

use crate::side::Side;

/// The fields that remain of a resource without holders and waiters.
const IDLE_FIELDS: [&str; 4] = ["#format", "#seq", "#token", "#clock"];

/// The replies for a resource: the TTLs of its keys, the fields of d, the members of e, and the
/// sizes of q, l and u.
type Answers = ((i64, i64, i64, i64, i64), BTreeSet<String>, BTreeSet<String>, usize, usize, usize);

/// Checks the keys of every resource against its holders and waiters.
pub(crate) fn check(side: &mut Side, listings: &[ResourceListing]) -> Result<(), String> {
    // A single pipeline, because every step runs this check.
    let mut pipeline = redis::pipe();
    for listing in listings {
        let keys = side.keys(&listing.name);
        let ttls = "local ttls = {} for i = 1, #KEYS do ttls[i] = redis.call('PTTL', KEYS[i]) end return ttls";
        pipeline.cmd("EVAL").arg(ttls).arg(keys.len()).arg(&keys);
        let [d, e, q, l, u] = keys;
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
    let ttls = <[i64; 5]>::from(ttls);
    let claims = listing.holders.len() + listing.waiters.len();
    if (lower, upper) != (claims, claims) {
        return Err(format!("{claims} claims have {lower} lower and {upper} upper ends"));
    }
    let mut sessions = BTreeMap::new();
    sessions.extend(listing.holders.iter().map(|holder| (holder.session.to_string(), holder.expiry.is_some())));
    let waiting: BTreeSet<_> = listing.waiters.iter().map(|waiter| waiter.session.to_string()).collect();
    // The sets e and q also contain the epoch.
    let epochs: Vec<_> = expiries.extract_if(.., |member| member.len() != 32).collect();
    if epochs.len() != usize::from(claims > 0) {
        return Err(format!("the epochs among the expiries are {epochs:?}"));
    }
    let queued = queued - usize::from(queued > 0);
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
    if claims > 0 {
        return if ttls.iter().all(|ttl| *ttl < 0) { Ok(()) } else { Err(format!("live keys have TTLs: {ttls:?}")) };
    }
    let untouched = ttls == [-2; 5];
    let idle = ttls[0] > 0 && ttls[1..] == [-2; 4] && fields.iter().all(|field| IDLE_FIELDS.contains(&field.as_str()));
    if untouched || idle {
        Ok(())
    } else {
        Err(format!("no session is left, but there are {fields:?} and keys with TTLs {ttls:?}"))
    }
}
