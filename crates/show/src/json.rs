//! Writes the holders and waiters of resources, and their changes, as JSON.

use std::collections::HashMap;
use std::slice;

use serde_json::{Map, Value, json};

use crate::changes::{Change, What};
use crate::messages;
use rlock_model::mode::Mode;
use rlock_model::op::{HolderListing, ResourceListing, WaiterListing};
use rlock_model::past::{Remembered, Streak};
use rlock_model::records::Revocation;
use rlock_model::request::Claim;
use rlock_model::span::Span;
use rlock_store::Inspection;
use rlock_sys::clock::StoreTime;
use rlock_words as words;

/// A place in the queue of these KEYs whose waiter is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentPlace {
    /// The name of `--place`.
    pub name: String,
    /// The KEYs of the request.
    pub keys: Vec<String>,
    /// When the first request was made.
    pub since: StoreTime,
}

/// The listing of `rlock inspect --json` for the store at this URL, on one line. `remembered` has
/// the pasts of the listed resources, as far as there are any.
///
/// Each resource is written before the next one becomes a [`Value`], because many values take ten
/// times the memory of their text.
pub fn as_text(store: &str, inspection: &Inspection, remembered: &[Remembered], places: &[AbsentPlace]) -> String {
    let pasts: HashMap<_, _> = remembered.iter().map(|past| (&past.name, past)).collect();
    let Inspection { now, resources, .. } = inspection;
    let holder = |holder: &HolderListing| {
        let millis = |expiry: StoreTime| u64::try_from((expiry - *now).as_millis()).unwrap_or(u64::MAX);
        let revoked = |Revocation { at, by }: &Revocation| joined([json!(by), json!({ "since": messages::time(*at) })]);
        let own = json!({
            "session": holder.session.to_string(),
            "token": holder.token,
            "since": messages::time(holder.since),
            "expires_in_ms": holder.expiry.map(millis),
            "kept": holder.kept,
            "revoked": holder.revoked.as_ref().map(revoked),
        });
        let claim = held(claim(holder.mode, &holder.span, holder.slots, holder.count), &holder.numbers);
        let mut value = joined([claim, json!(holder.process), own]);
        if let Some(gate) = &holder.gate {
            value["gate"] = json!(gate);
        }
        if holder.kept {
            value["kept_until"] = json!(messages::kept_until(holder).map(messages::time));
        }
        value
    };
    let waiter = |waiter: &WaiterListing| {
        let own = json!({
            "session": waiter.session.to_string(),
            "position": waiter.position,
            "since": messages::time(waiter.since),
        });
        joined([claim(waiter.mode, &waiter.span, waiter.slots, waiter.count), json!(waiter.process), own])
    };
    let resource = |listing: &ResourceListing| {
        let mut value = json!({
            "name": listing.name.as_str(),
            "holders": listing.holders.iter().map(holder).collect::<Vec<_>>(),
            "waiters": listing.waiters.iter().map(waiter).collect::<Vec<_>>(),
        });
        let past = pasts.get(&listing.name).map_or(&[][..], |past| slice::from_ref(*past));
        let skips = streaks(listing, past, *now);
        if !skips.is_empty() {
            value["skips"] = skips.into_iter().map(|(job, streak)| skip(job, streak)).collect();
        }
        value
    };
    let mut text = String::from(r#"{"resources":["#);
    for listing in resources {
        if !text.ends_with('[') {
            text.push(',');
        }
        text.push_str(&words::json(&resource(listing)));
    }
    text.push(']');
    if !places.is_empty() {
        let place = |place: &AbsentPlace| json!({ "name": place.name, "keys": place.keys, "since": messages::time(place.since) });
        let places = places.iter().map(place).collect::<Vec<_>>();
        text.push_str(r#","places":"#);
        text.push_str(&words::json(&json!(places)));
    }
    text + r#","store":"# + &words::json(&json!(store)) + "}"
}

/// A change as `rlock inspect --watch --json` tells it, on one line.
pub fn change_as_json(change: &Change) -> Value {
    let request = change.request.as_ref();
    let nobody = json!({ "host": null, "pid": null, "user": null, "command": null, "owner": null, "reason": null });
    let process = json!(request.map(|request| &request.process));
    let claims = request.map(|request| {
        let claims = request.claims.iter();
        let claim = |its: &Claim, count| held(claim(its.mode, &its.span, its.slots, count), &request.slots);
        claims.map(|(its, count)| claim(its, *count)).collect::<Vec<_>>()
    });
    let ending = change.ending.map(|ending| ending.to_string());
    let (word, number) = ending.as_deref().map_or((None, None), |text| match text.split_once(' ') {
        Some((word, number)) => (Some(word), number.parse::<u8>().ok()),
        None => (Some(text), None),
    });
    let count = if let What::Busy(count) = change.what { Some(count) } else { None };
    let own = json!({
        "event": change.what.as_str(),
        "count": count,
        "at": messages::time(change.at),
        "resource": change.resource.as_str(),
        "session": request.and_then(|request| request.session).map(|session| session.to_string()),
        "claims": claims,
        "token": request.and_then(|request| request.token),
        "outcome": word,
        "exit": number.filter(|_| word == Some("exit")),
        "signal": number.filter(|_| word == Some("signal")),
        "by": change.by,
    });
    joined([nobody, process, own])
}

/// The skips in a row of the jobs of a resource, by the names of the jobs.
pub fn streaks<'r>(
    listing: &ResourceListing,
    remembered: &'r [Remembered],
    now: StoreTime,
) -> Vec<(&'r str, &'r Streak)> {
    let pasts = remembered.iter().filter(|past| past.name == listing.name).map(|remembered| &remembered.past);
    pasts
        .flat_map(|past| past.jobs.keys().filter_map(move |job| Some((job.as_str(), past.streak(now, job)?))))
        .collect()
}

fn skip(job: &str, streak: &Streak) -> Value {
    json!({
        "job": job,
        "command": streak.command,
        "count": streak.count,
        "since": messages::time(streak.since),
        "last": messages::time(streak.last),
    })
}

/// A span: null for the whole, or an interval with its ends as text, and with its path if it is
/// that of a path.
pub fn span(span: &Span) -> Value {
    let Some(interval) = span.as_interval() else { return Value::Null };
    let mut value = json!({
        "lo": interval.lo().text(),
        "hi": interval.hi().text(),
        "lo_open": interval.lo_open(),
        "hi_open": interval.hi_open(),
    });
    if let Some(path) = span.as_path() {
        value["path"] = json!(path);
    }
    value
}

/// A claim, which takes so many of the slots if it is on slots.
pub fn claim(mode: Mode, span: &Span, slots: Option<u32>, count: usize) -> Value {
    json!({ "mode": mode.as_str(), "span": self::span(span), "slots": slots, "count": slots.map(|_| count) })
}

/// A held claim: on slots, it has their numbers.
pub fn held(mut claim: Value, numbers: &[u32]) -> Value {
    if !claim["slots"].is_null() && !numbers.is_empty() {
        claim["slot"] = json!(numbers);
    }
    claim
}

/// One object with the members of these. A later one wins.
pub fn joined<const N: usize>(objects: [Value; N]) -> Value {
    let members = |object| if let Value::Object(members) = object { members } else { Map::new() };
    objects.into_iter().flat_map(members).collect()
}
