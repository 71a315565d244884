//! `rlock history`: shows which requests have ended, when and how.

use std::time::Duration;

use anyhow::Context;

use super::context;
use crate::cli::invocation::History;
use crate::cli::stdout;
use crate::clock::StoreTime;
use crate::failure::Failure;
use crate::history::statistics::{Spread, Statistics};
use crate::history::{self, Selection};
use crate::lock::past::{Entry, Event, HISTORY_MAX, Past, Remembered};
use crate::lock::request::Claim;
use crate::messages;
use crate::store::{self, Store};
use crate::words::{one_line, shell_quoted};

/// Prints the entries or their statistics, and returns the exit code.
pub(super) fn run(options: &History) -> anyhow::Result<u8> {
    let mut store = context::open_store(&options.store)?;
    let mut found = remembered(store.as_mut(), options).map_err(Failure::from)?;
    let unusable = store.take_unusable();
    for name in &options.resources {
        // A store does not list a resource that remembers nothing.
        if !found.iter().any(|known| known.name == *name) {
            found.push(Remembered { name: name.clone(), past: Past::default(), entries: Vec::new() });
        }
    }
    found.sort_by_key(|known| options.resources.iter().position(|name| *name == known.name));
    let text = match (options.json, options.stats) {
        (true, stats) => format!("{}\n", history::as_json(&store.url(), &found, stats)),
        (false, true) => aligned(STATISTICS, found.iter().map(statistics).collect()),
        (false, false) => aligned(ENTRIES, found.iter().flat_map(entries).collect()),
    };
    stdout::print(text.as_bytes()).context("can't write to standard output")?;
    Ok(super::after_all_but(&unusable))
}

/// What the resources remember, with the selected entries.
fn remembered(store: &mut dyn Store, options: &History) -> Result<Vec<Remembered>, store::Error> {
    let is_filtered = options.failed || options.since.is_some();
    let last = options.last.filter(|_| !is_filtered).unwrap_or(HISTORY_MAX);
    let mut found = store.history(&options.resources, last.min(HISTORY_MAX))?;
    let since = match (options.since, found.first()) {
        (Some(length), Some(known)) => Some(before(store.inspect(std::slice::from_ref(&known.name))?.now, length)),
        _ => None,
    };
    let last = options.last.map(|last| usize::try_from(last).unwrap_or(usize::MAX));
    let selection = Selection { since, failed: options.failed, last };
    found.iter_mut().for_each(|known| selection.apply(&mut known.entries));
    Ok(found)
}

/// The instant this long before another, or the first one.
fn before(now: StoreTime, length: Duration) -> StoreTime {
    StoreTime::from_micros(now.as_micros().saturating_sub(crate::clock::micros(length)))
}

const ENTRIES: &[&str] = &["RESOURCE", "ENDED", "OUTCOME", "CLAIM", "WAITED", "HELD", "WHO", "PID", "COMMAND"];

fn entries(found: &Remembered) -> impl Iterator<Item = Vec<String>> {
    found.entries.iter().map(|entry| row(found.name.as_str(), entry))
}

fn row(name: &str, entry: &Entry) -> Vec<String> {
    let outcome = match entry.event {
        Event::Ended(ending) => ending.to_string(),
        Event::Skipped(1) => "skipped once".to_owned(),
        Event::Skipped(count) => format!("skipped {count} times"),
    };
    let process = &entry.process;
    let claims: Vec<_> = entry.claims.iter().map(claim).collect();
    let times = entry.granted.map(|granted| [granted - entry.asked, entry.ended - granted].map(length));
    let [waited, held] = times.unwrap_or_else(|| ["-", "-"].map(str::to_owned));
    let command: Vec<_> = process.command.iter().map(|word| shell_quoted(word)).collect();
    vec![
        name.to_owned(),
        messages::time(entry.ended),
        outcome,
        claims.join(", "),
        waited,
        held,
        format!("{}{}@{}", messages::owner_and_reason(process), process.user, process.host),
        process.pid.to_string(),
        command.join(" "),
    ]
}

fn claim(claim: &Claim) -> String {
    let mode = claim.slots.map_or_else(|| claim.mode.to_string(), |slots| format!("{} of {slots}", claim.mode));
    if claim.span.is_whole() { mode } else { format!("{mode} {}", claim.span) }
}

const STATISTICS: &[&str] =
    &["RESOURCE", "ENDED", "FAILED", "BUSY", "QUEUE", "WAITED", "P95", "MAX", "HELD", "P95", "MAX"];

fn statistics(known: &Remembered) -> Vec<String> {
    let found = Statistics::of(known);
    let lengths = |spread: Option<Spread>| match spread {
        Some(Spread { p50, p95, max }) => [p50, p95, max].map(length),
        None => ["-", "-", "-"].map(str::to_owned),
    };
    let busy = found.busy_share.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0));
    let counts = [found.ended.to_string(), found.failures.to_string(), busy, found.longest_queue.to_string()];
    std::iter::once(known.name.as_str().to_owned())
        .chain(counts)
        .chain(lengths(found.waits))
        .chain(lengths(found.holds))
        .collect()
}

/// A length of time, to the millisecond if it is short.
fn length(length: Duration) -> String {
    match length.as_secs() {
        0 => format!("{}ms", length.as_millis()),
        1..60 => format!("{:.1}s", length.as_secs_f64()),
        _ => messages::duration(length),
    }
}

/// A table whose columns are as wide as their widest cells.
fn aligned(headings: &[&str], mut rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return "no entries\n".to_owned();
    }
    rows.insert(0, headings.iter().map(|heading| (*heading).to_owned()).collect());
    // Names and commands are external text.
    rows.iter_mut().flatten().for_each(|cell| *cell = one_line(cell));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<_> = (0..headings.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
