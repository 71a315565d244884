//! Writes what resources remember of ended requests as JSON, and selects among the entries.

pub mod blame;
mod spans;
mod statistics;
pub mod text;
pub mod timeline;
pub mod trace;

use std::time::Duration;

use serde_json::{Value, json};

use crate::json;
use crate::messages;
use rlock_model::past::{Ended, Ending, Entry, Event, Remembered};
use rlock_model::request::{self, Claim};
use rlock_sys::clock::StoreTime;
use statistics::{Spread, Statistics};

/// Which entries of each resource to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selection {
    /// The instant at or after which the request ended.
    pub since: Option<StoreTime>,
    /// The instant before which the request ended.
    pub until: Option<StoreTime>,
    /// Only requests that failed.
    pub failed: bool,
    /// At most so many of the last entries.
    pub last: Option<usize>,
}

impl Selection {
    /// Removes all other entries.
    pub fn apply(&self, entries: &mut Vec<Entry>) {
        entries.retain(|entry| {
            let ended = entry.ended.latest();
            self.since.is_none_or(|since| ended >= since)
                && self.until.is_none_or(|until| ended < until)
                && (!self.failed || entry.event.has_failed())
        });
        let surplus = entries.len().saturating_sub(self.last.unwrap_or(usize::MAX));
        entries.drain(..surplus);
    }
}

/// The listing of `rlock history --json` for the store at this URL. With `stats`, each resource
/// has the statistics of its entries, too.
pub fn as_json(store: &str, remembered: &[Remembered], stats: bool) -> Value {
    let resource = |found: &Remembered| {
        let mut value = json!({
            "name": found.name.as_str(),
            "entries": found.entries.iter().map(entry).collect::<Vec<_>>(),
        });
        if stats {
            value["stats"] = statistics(&Statistics::of(found));
        }
        value
    };
    json!({ "store": store, "resources": remembered.iter().map(resource).collect::<Vec<_>>() })
}

fn entry(entry: &Entry) -> Value {
    let (outcome, exit, signal, count) = match entry.event {
        Event::Ended(Ending::Exit(code)) => ("exit".to_owned(), Some(code), None, None),
        Event::Ended(Ending::Signal(number)) => ("signal".to_owned(), None, Some(number), None),
        Event::Ended(ending) => (ending.to_string(), None, None, None),
        Event::Skipped(count) => ("skipped".to_owned(), None, None, Some(count)),
        Event::Done(count) => ("done".to_owned(), None, None, Some(count)),
        Event::Waited { how, count, .. } => (how.as_str().to_owned(), None, None, Some(count)),
    };
    let noticed = match entry.ended {
        Ended::At(_) => None,
        Ended::Noticed(at) => Some(at),
    };
    let claims = request::counted(&entry.claims);
    let claim = |it: &Claim, count| json::held(json::claim(it.mode, &it.span, it.slots, count), &entry.slots);
    let own = json!({
        "outcome": outcome,
        "exit": exit,
        "signal": signal,
        "count": count,
        "claims": claims.map(|(it, count)| claim(it, count)).collect::<Vec<_>>(),
        "asked": messages::time(entry.asked),
        "granted": entry.granted.map(messages::time),
        "ended": entry.ended.known().map(messages::time),
        "noticed": noticed.map(messages::time),
        "token": entry.token,
    });
    json::joined([json!(entry.process), own])
}

fn statistics(found: &Statistics) -> Value {
    json!({
        "ended": found.ended,
        "failures": found.failures,
        "busy_share": found.busy_share,
        "longest_queue": found.longest_queue,
        "wait_ms": found.waits.map(spread),
        "hold_ms": found.holds.map(spread),
    })
}

fn spread(Spread { p50, p95, max }: Spread) -> Value {
    let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    json!({ "p50": millis(p50), "p95": millis(p95), "max": millis(max) })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rlock_model::past::Origin;

    pub(super) fn at(second: u64) -> StoreTime {
        StoreTime::default() + Duration::from_secs(second)
    }

    /// An entry of a request that was asked, granted and ended in these seconds.
    pub(super) fn entry_of(ending: Ending, [asked, granted, ended]: [u64; 3]) -> Entry {
        Entry {
            event: Event::Ended(ending),
            process: rlock_model::request::Process::default(),
            claims: Vec::new(),
            asked: at(asked),
            granted: Some(at(granted)),
            ended: Ended::At(at(ended)),
            token: Some(1),
            origin: Origin::default(),
            slots: Vec::new(),
            later: Vec::new(),
        }
    }

    #[test]
    fn selection_takes_the_last_of_the_entries_that_fit() {
        let entries: Vec<_> = [Ending::Exit(1), Ending::Exit(0), Ending::Signal(9), Ending::Lost, Ending::Kept]
            .into_iter()
            .zip(0..)
            .map(|(ending, second)| entry_of(ending, [second; 3]))
            .collect();
        let ends = |selection: Selection| {
            let mut entries = entries.clone();
            selection.apply(&mut entries);
            entries.iter().map(|entry| entry.ended.latest().as_micros() / 1_000_000).collect::<Vec<_>>()
        };
        assert_eq!(ends(Selection::default()), [0, 1, 2, 3, 4]);
        assert_eq!(ends(Selection { failed: true, ..Selection::default() }), [0, 2, 3]);
        assert_eq!(ends(Selection { since: Some(at(2)), ..Selection::default() }), [2, 3, 4]);
        assert_eq!(ends(Selection { since: Some(at(1)), until: Some(at(3)), ..Selection::default() }), [1, 2]);
        assert_eq!(ends(Selection { failed: true, last: Some(2), ..Selection::default() }), [2, 3]);
        assert_eq!(ends(Selection { last: Some(0), ..Selection::default() }), [0; 0]);
    }
}
