//! `rlock history`: shows which requests have ended, when and how.

use std::time::Duration;

use anyhow::Context;

use super::context;
use super::look::look;
use crate::cli::invocation::History;
use crate::cli::stdout;
use crate::clock::StoreTime;
use crate::failure::Failure;
use crate::history::{self, Selection};
use crate::lock::past::{HISTORY_MAX, Past, Remembered};
use crate::store::{self, Store};
use crate::{view, words};

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
        (true, stats) => words::json(&history::as_json(&store.url(), &found, stats)) + "\n",
        (false, true) if !found.is_empty() => joined(&view::history::statistics(&found, &look(options.color, false))),
        (false, false) if found.iter().any(|known| !known.entries.is_empty()) => {
            joined(&view::history::entries(&found, &look(options.color, false)))
        }
        (false, _) => "no entries\n".to_owned(),
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

fn joined(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}
