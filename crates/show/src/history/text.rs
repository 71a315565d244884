//! The tables of ended requests and of their statistics.

use std::time::Duration;

use anstyle::Style;

use super::statistics::{Spread, Statistics};
use crate::Look;
use crate::columns::{Cell, Column, NONE, lines};
use crate::listing::command;
use crate::messages;
use crate::tree::claim;
use rlock_model::past::{Ended, Entry, Event, Remembered};
use rlock_model::request::{self, Claim};
use rlock_model::text::shortened;

pub(super) const fn column(heading: &'static str, leaves: u8) -> Column {
    Column { heading, narrowest: None, keeps_end: false, leaves: Some(leaves) }
}

/// The end of a name often tells it from others.
const RESOURCE: Column = Column { heading: "RESOURCE", narrowest: Some(10), keeps_end: true, leaves: None };

const ENTRIES: [Column; 10] = [
    RESOURCE,
    column("ENDED", 2),
    Column { heading: "OUTCOME", narrowest: None, keeps_end: false, leaves: None },
    Column { narrowest: Some(9), ..column("CLAIM", 5) },
    column("WAITED", 6),
    column("HELD", 3),
    Column { narrowest: Some(14), keeps_end: true, ..column("WHO", 1) },
    column("PID", 4),
    Column { narrowest: Some(9), ..column("REASON", 7) },
    Column { narrowest: Some(7), ..column("COMMAND", 0) },
];

/// The table of the entries of these resources: resource by resource, or `by_time`.
pub fn entries(found: &[Remembered], by_time: bool, look: &Look) -> Vec<String> {
    let mut all: Vec<_> =
        found.iter().flat_map(|known| known.entries.iter().map(|entry| (&known.name, entry))).collect();
    if by_time {
        all.sort_by_key(|(_, entry)| entry.ended.latest());
    }
    let rows: Vec<_> = all.into_iter().map(|(name, entry)| row(name.as_str(), entry, look)).collect();
    lines(&ENTRIES, look.palette.heading, &rows, look.width)
}

/// How a request ended, in words.
pub(super) fn outcome(entry: &Entry) -> String {
    match entry.event {
        Event::Ended(ending) => ending.to_string(),
        Event::Skipped(1) => "skipped once".to_owned(),
        Event::Skipped(count) => format!("skipped {count} times"),
        Event::Done(1) => "already done".to_owned(),
        Event::Done(count) => format!("already done {count} times"),
        Event::Waited { how, count: 1, .. } => how.as_str().to_owned(),
        Event::Waited { how, count, .. } => format!("{} {count} times", how.as_str()),
    }
}

fn row(name: &str, entry: &Entry, look: &Look) -> Vec<Cell> {
    let outcome = outcome(entry);
    let style = if entry.event.has_failed() { look.palette.alarm } else { Style::new() };
    let process = &entry.process;
    let claim = |it: &Claim, count| {
        messages::held_slots(&entry.slots, it.slots).unwrap_or_else(|| claim(it.mode, it.slots, count, &it.span))
    };
    let claims: Vec<_> = request::counted(&entry.claims).map(|(it, count)| claim(it, count)).collect();
    let none = || NONE.to_owned();
    let waited = entry.waited().map_or_else(none, length);
    let held = entry.granted.zip(entry.ended.known()).map_or_else(none, |(granted, end)| length(end - granted));
    let ended = match entry.ended {
        Ended::At(end) => messages::time(end),
        Ended::Noticed(at) => format!("by {}", messages::time(at)),
    };
    let plain = [
        claims.join(", "),
        waited,
        held,
        messages::who(process),
        process.pid.to_string(),
        process.reason.as_deref().map_or_else(none, shortened),
        command(&process.command),
    ];
    let first = [name, &ended].map(|text| Cell::new(text, Style::new()));
    let plain = plain.iter().map(|text| Cell::new(text, Style::new()));
    first.into_iter().chain([Cell::new(&outcome, style)]).chain(plain).collect()
}

const STATISTICS: [Column; 11] = [
    RESOURCE,
    column("ENDED", 4),
    column("FAILED", 2),
    column("BUSY", 3),
    column("QUEUE", 5),
    column("WAITED", 1),
    column("P95", 6),
    column("MAX", 8),
    column("HELD", 1),
    column("P95", 7),
    column("MAX", 9),
];

/// The table of the statistics of these resources.
pub fn statistics(found: &[Remembered], look: &Look) -> Vec<String> {
    let rows: Vec<_> = found.iter().map(sums).collect();
    lines(&STATISTICS, look.palette.heading, &rows, look.width)
}

fn sums(known: &Remembered) -> Vec<Cell> {
    let found = Statistics::of(known);
    let lengths = |spread: Option<Spread>| match spread {
        Some(Spread { p50, p95, max }) => [p50, p95, max].map(length),
        None => [NONE; 3].map(str::to_owned),
    };
    let busy = found.busy_share.map_or_else(|| NONE.to_owned(), |share| format!("{:.0}%", share * 100.0));
    let counts = [found.ended.to_string(), found.failures.to_string(), busy, found.longest_queue.to_string()];
    let texts = std::iter::once(known.name.as_str().to_owned()).chain(counts);
    let texts = texts.chain(lengths(found.waits)).chain(lengths(found.holds));
    texts.map(|text| Cell::new(&text, Style::new())).collect()
}

/// A length of time, to the millisecond if it is short.
pub(super) fn length(length: Duration) -> String {
    match length.as_secs() {
        0 => format!("{}ms", length.as_millis()),
        1..60 => format!("{:.1}s", length.as_secs_f64()),
        _ => messages::duration(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_are_shown_to_the_millisecond() {
        let shown = [0, 7, 999, 1_500, 59_900, 192_000].map(|millis| length(Duration::from_millis(millis)));
        assert_eq!(shown, ["0ms", "7ms", "999ms", "1.5s", "59.9s", "3m 12s"]);
    }
}
