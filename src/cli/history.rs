//! `rlock history`: shows which requests have ended, when and how.

use std::time::Duration;

use anstream::ColorChoice;
use anyhow::Context;
use clap::{ArgMatches, Command};

use super::look::look;
use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use crate::arguments::help::notes;
use crate::arguments::mistake::Mistake;
use crate::arguments::options::{StoreOptions, color, id, keys, option, read_color, read_keys, read_store, switch};
use crate::arguments::values;
use crate::environment::{after_all_but, context};
use crate::lock::past::{Ended, HISTORY_MAX, Past, Remembered};
use crate::lock::records::Session;
use crate::lock::remember::add_unrecorded;
use crate::lock::resource::Resource;
use crate::show::failure::Failure;
use crate::show::history::{self, Selection};
use crate::store::{self, Store};
use crate::{show, words};

pub(super) const HISTORY: Subcommand = Subcommand {
    name: "history",
    page: "rlock-history",
    section: 1,
    about: "Show what ran under a lock, when, and how it ended",
    texts: &[include_str!("pages/history.txt")],
    define,
    read,
    has_numbers: false,
    runs_command: false,
};

/// `rlock history`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// The store to ask.
    pub(super) store: StoreOptions,
    /// The resources to show, none twice. If empty, all resources that remember anything are shown.
    pub(super) resources: Vec<Resource>,
    /// Show at most so many of the last entries of each resource.
    pub(super) last: Option<u32>,
    /// Show only what ended less than this time ago.
    pub(super) since: Option<Duration>,
    /// Show only holds that failed.
    pub(super) failed: bool,
    /// Sum up the entries.
    pub(super) stats: bool,
    /// Print JSON instead of a table.
    pub(super) json: bool,
    /// When to use colours.
    pub(super) color: ColorChoice,
}

/// The definition of its words.
fn define(command: Command) -> Command {
    command
        .override_usage("rlock history [KEY]... [-n N] [--since DUR] [--failed] [--stats] [--json]")
        .after_help(notes("", &["rlock history --failed --since 1d", "rlock history -n 5 backup"]))
        .arg(keys("What to show [default: all that is remembered]"))
        .arg(option(id::LAST, "N", values::entries, "Only the last N entries of each KEY").short('n').long("last"))
        .arg(option(id::SINCE, "DUR", values::duration, "Only what ended less than DUR ago"))
        .arg(switch(id::FAILED, "Only what failed: not exit 0, a skip, or the end of rlock acquire"))
        .arg(switch(id::STATS, "Sum up: waits, holds, failures, busy requests, queues"))
        .arg(switch(id::JSON, "Print JSON"))
        .arg(color())
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::History(History {
        resources: read_keys(&mut matches),
        last: matches.remove_one(id::LAST),
        since: matches.remove_one(id::SINCE),
        failed: matches.get_flag(id::FAILED),
        stats: matches.get_flag(id::STATS),
        json: matches.get_flag(id::JSON),
        color: read_color(&mut matches),
        store: read_store(&mut matches),
    }))
}

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
    let place = |name: &Resource| options.resources.iter().position(|asked| asked == name);
    found.sort_unstable_by(|a, b| (place(&a.name), &a.name).cmp(&(place(&b.name), &b.name)));
    let text = match (options.json, options.stats) {
        (true, stats) => words::json(&history::as_json(&store.url(), &found, stats)) + "\n",
        (false, true) if !found.is_empty() => {
            joined(&show::history::text::statistics(&found, &look(options.color, false)))
        }
        (false, false) if found.iter().any(|known| !known.entries.is_empty()) => {
            let by_time = options.resources.is_empty();
            joined(&show::history::text::entries(&found, by_time, &look(options.color, false)))
        }
        (false, _) => "no entries\n".to_owned(),
    };
    stdout::print(text.as_bytes()).context("can't write to standard output")?;
    Ok(after_all_but(&unusable))
}

/// What the resources remember, with the selected entries. Holds that have ended without a record
/// of it count as well.
fn remembered(store: &mut dyn Store, options: &History) -> Result<Vec<Remembered>, store::Error> {
    let is_filtered = options.failed || options.since.is_some();
    let last = options.last.filter(|_| !is_filtered).unwrap_or(HISTORY_MAX);
    // A hold that somebody finds ended in between is in both.
    let unrecorded = store.unrecorded(&options.resources)?;
    let mut found = store.history(&options.resources, last.min(HISTORY_MAX))?;
    for (session, ended) in &unrecorded {
        add(&mut found, session, *ended, &options.resources);
    }
    let since = match (options.since, found.first()) {
        (Some(length), Some(known)) => Some(store.inspect(std::slice::from_ref(&known.name))?.now - length),
        _ => None,
    };
    let last = options.last.map(|last| usize::try_from(last).unwrap_or(usize::MAX));
    let selection = Selection { since, failed: options.failed, last };
    found.iter_mut().for_each(|known| selection.apply(&mut known.entries));
    Ok(found)
}

/// Adds the end of a hold to what its resources remember, if they are wanted.
fn add(found: &mut Vec<Remembered>, session: &Session, ended: Ended, wanted: &[Resource]) {
    for name in session.resources() {
        if !wanted.is_empty() && !wanted.contains(name) {
            continue;
        }
        let index = found.iter().position(|known| known.name == *name).unwrap_or_else(|| {
            found.push(Remembered { name: name.clone(), past: Past::default(), entries: Vec::new() });
            found.len() - 1
        });
        add_unrecorded(&mut found[index], session, ended);
        // The end may have been long before the ends that others have found.
        found[index].entries.sort_by_key(|entry| entry.ended.latest());
    }
}

fn joined(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}
