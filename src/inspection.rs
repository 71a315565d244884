//! Writes the holders and waiters of resources as JSON.

use serde_json::{Value, json};

use crate::clock::StoreTime;
use crate::lock::mode::Mode;
use crate::lock::op::{HolderListing, ResourceListing, WaiterListing};
use crate::lock::request::Process;
use crate::lock::span::Span;
use crate::messages;
use crate::store::Inspection;

/// The listing of `rlock inspect --json` for the store at this URL.
pub(crate) fn as_json(store: &str, inspection: &Inspection) -> Value {
    let Inspection { now, resources } = inspection;
    let holder = |holder: &HolderListing| {
        let mut value = claim(holder.mode, &holder.span, holder.slots, &holder.process, holder.since);
        value["session"] = json!(holder.session.to_string());
        value["token"] = json!(holder.token);
        value["expires_in_ms"] =
            json!(holder.expiry.map(|expiry| u64::try_from((expiry - *now).as_millis()).unwrap_or(u64::MAX)));
        value["kept"] = json!(holder.kept);
        value
    };
    let waiter = |waiter: &WaiterListing| {
        let mut value = claim(waiter.mode, &waiter.span, waiter.slots, &waiter.process, waiter.since);
        value["session"] = json!(waiter.session.to_string());
        value["position"] = json!(waiter.position);
        value
    };
    let resource = |listing: &ResourceListing| {
        json!({
            "name": listing.name.as_str(),
            "holders": listing.holders.iter().map(holder).collect::<Vec<_>>(),
            "waiters": listing.waiters.iter().map(waiter).collect::<Vec<_>>(),
        })
    };
    json!({ "store": store, "resources": resources.iter().map(resource).collect::<Vec<_>>() })
}

fn claim(mode: Mode, span: &Span, slots: Option<u32>, process: &Process, since: StoreTime) -> Value {
    let span = span.as_interval().map(|interval| {
        json!({
            "lo": interval.lo().text(),
            "hi": interval.hi().text(),
            "lo_open": interval.lo_open(),
            "hi_open": interval.hi_open(),
        })
    });
    json!({
        "mode": mode.as_str(),
        "span": span,
        "slots": slots,
        "host": process.host,
        "pid": process.pid,
        "user": process.user,
        "command": process.command,
        "owner": process.owner,
        "reason": process.reason,
        "since": messages::time(since),
    })
}
