//! `rlock history`: shows which requests have ended, when and how.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgMatches, Args};

use super::exec::calendar;
use super::look::look;
use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use crate::environment::{after_all_but, context, paths};
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::{self, KEY, LookOptions, PathOptions, StoreOptions};
use rlock_arguments::values;
use rlock_model::past::{Ended, HISTORY_MAX, Past, Remembered, Totals};
use rlock_model::records::Session;
use rlock_model::remember::add_unrecorded;
use rlock_model::request::Claim;
use rlock_model::resource::Resource;
use rlock_show::failure::Failure;
use rlock_show::history::blame::blame;
use rlock_show::history::trace::trace;
use rlock_show::history::{self, Selection};
use rlock_store::{self as store, Store};
use rlock_sys::clock::StoreTime;
use rlock_words as words;

pub(super) const HISTORY: Subcommand = Subcommand {
    name: "history",
    page: "rlock-history",
    section: 1,
    about: "Show what ran under a lock, when, and how it ended",
    texts: &[include_str!("pages/history.txt")],
    define: History::augment_args,
    read,
    has_numbers: false,
};

/// `rlock history`.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(
    override_usage = "rlock history [KEY]... [-n N] [--since DUR] [--until DUR] [--failed]\n       \
                      rlock history [KEY]... --stats | --blame | --timeline | --trace",
    after_help = notes("", &["rlock history --failed --since 1d", "rlock history -n 5 backup"])
)]
#[group(skip)]
pub(crate) struct History {
    /// What to show [default: all that is remembered].
    #[arg(id = KEY, value_parser = values::resource)]
    pub(super) resources: Vec<Resource>,
    #[command(flatten)]
    pub(super) paths: PathOptions,
    /// Only the last N entries of each KEY.
    #[arg(short = 'n', long, value_name = "N", value_parser = values::entries)]
    pub(super) last: Option<u32>,
    /// Only what ended less than DUR ago.
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(super) since: Option<Duration>,
    /// Only what ended at least DUR ago.
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(super) until: Option<Duration>,
    /// Only what failed: not exit 0, a skip, or the end of rlock acquire.
    #[arg(long)]
    pub(super) failed: bool,
    /// Sum up: waits, holds, failures, busy requests, queues.
    #[arg(long, conflicts_with_all = ["blame", "timeline", "trace"])]
    pub(super) stats: bool,
    /// Show who made whom wait, and for how long.
    #[arg(long, conflicts_with_all = ["stats", "timeline", "trace", "failed"])]
    pub(super) blame: bool,
    /// Draw waits and holds as bars over time.
    #[arg(long, conflicts_with_all = ["stats", "blame", "trace"])]
    pub(super) timeline: bool,
    /// Print a trace for Perfetto or chrome://tracing.
    #[arg(long, conflicts_with_all = ["stats", "blame", "timeline"])]
    pub(super) trace: bool,
    /// Print the names of all that is remembered, held or waited for; =jobs: those of jobs.
    #[arg(long, value_name = "jobs", num_args = 0..=1, require_equals = true, default_missing_value = "keys")]
    #[arg(value_parser = ["keys", "jobs"], hide_possible_values = true)]
    #[arg(conflicts_with_all = [KEY, "path", "last", "since", "until", "failed"])]
    #[arg(conflicts_with_all = ["stats", "blame", "timeline", "trace", "json"])]
    pub(super) names: Option<String>,
    /// Print JSON.
    #[arg(long, conflicts_with_all = ["timeline", "trace"])]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) look: LookOptions,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// What becomes of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A list of the entries.
    Entries,
    /// Their statistics.
    Stats,
    /// Who made whom wait.
    Blame,
    /// Bars over a time axis.
    Timeline,
    /// A trace in Chrome's format.
    Trace,
}

impl History {
    pub(super) fn form(&self) -> Form {
        match [self.stats, self.blame, self.timeline, self.trace] {
            [true, ..] => Form::Stats,
            [_, true, ..] => Form::Blame,
            [.., true, _] => Form::Timeline,
            [.., true] => Form::Trace,
            _ => Form::Entries,
        }
    }
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let mut history: History = options::read(&mut matches);
    history.resources = history.paths.resolve(history.resources, paths::resolved)?;
    Ok(Invocation::History(history))
}

/// Prints the entries or their statistics, and returns the exit code.
pub(super) fn run(options: &History) -> anyhow::Result<u8> {
    let mut store = context::open_store(&options.store)?;
    if let Some(what) = &options.names {
        let names = names(store.as_mut(), what == "jobs").map_err(Failure::from)?;
        let lines: String = names.iter().flat_map(|name| [name, "\n"]).collect();
        stdout::print(lines.as_bytes()).context("can't write to standard output")?;
        return Ok(after_all_but(&store.take_unusable()));
    }
    let (mut found, window) = remembered(store.as_mut(), options).map_err(Failure::from)?;
    let unusable = store.take_unusable();
    for name in &options.resources {
        // A store does not list a resource that remembers nothing.
        if !found.iter().any(|known| known.name == *name) {
            found.push(Remembered { name: name.clone(), past: Past::default(), entries: Vec::new() });
        }
    }
    let place = |name: &Resource| options.resources.iter().position(|asked| asked == name);
    found.sort_unstable_by(|a, b| (place(&a.name), &a.name).cmp(&(place(&b.name), &b.name)));
    let look = look(options.look.color, false);
    let by_time = options.resources.is_empty();
    let has_entries = found.iter().any(|known| !known.entries.is_empty());
    let lines = match options.form() {
        Form::Trace => trace(&found, &window),
        Form::Blame if options.json => json(&blame(&found, &window).as_json(&store.url())),
        Form::Blame => joined(&blame(&found, &window).lines(&look)),
        form if options.json => json(&history::as_json(&store.url(), &found, form == Form::Stats)),
        Form::Stats if !found.is_empty() => joined(&history::text::statistics(&found, &look)),
        Form::Entries if has_entries => joined(&history::text::entries(&found, by_time, &look)),
        Form::Timeline if has_entries => {
            let zone = calendar::zone()?;
            let wall = |at| calendar::wall_clock(at, &zone);
            joined(&history::timeline::lines(&found, &window, !by_time, &wall, &look))
        }
        Form::Stats | Form::Entries | Form::Timeline => {
            let names: Vec<_> = options.resources.iter().map(|name| format!("'{name}'")).collect();
            let of =
                if names.is_empty() { String::new() } else { format!(" of {} in {}", names.join(", "), store.url()) };
            format!("no entries{of}\n")
        }
    };
    stdout::print(lines.as_bytes()).context("can't write to standard output")?;
    Ok(after_all_but(&unusable))
}

/// The names of the resources or of the jobs that the store knows. A job without a name has a hash.
fn names(store: &mut dyn Store, of_jobs: bool) -> Result<BTreeSet<String>, store::Error> {
    let found = store.history(&[], 0)?;
    if of_jobs {
        let names = found.into_iter().flat_map(|known| known.past.jobs.into_keys());
        return Ok(names.filter(|name| !rlock_show::messages::is_hash(name)).collect());
    }
    let live = store.inspect(&[])?.resources.into_iter().map(|listing| listing.name.to_string());
    Ok(found.into_iter().map(|known| known.name.to_string()).chain(live).collect())
}

fn json(value: &serde_json::Value) -> String {
    words::json(value) + "\n"
}

/// What the resources remember, with the selected entries, and the time from `--since` to
/// `--until`. Holds that have ended without a record of it count as well. What ended before, or
/// later, may have waited in that time, so only a list leaves it out.
fn remembered(store: &mut dyn Store, options: &History) -> Result<(Vec<Remembered>, Range<StoreTime>), store::Error> {
    let is_list = matches!(options.form(), Form::Entries | Form::Stats);
    let is_filtered =
        options.failed || options.since.is_some() || options.until.is_some() || !options.paths.spans.is_empty();
    let last = options.last.filter(|_| !is_filtered).unwrap_or(HISTORY_MAX);
    // A hold that somebody finds ended in between is in both.
    let unrecorded = store.unrecorded(&options.resources)?;
    let mut found = store.history(&options.resources, last.min(HISTORY_MAX))?;
    for (session, ended) in &unrecorded {
        add(&mut found, session, *ended, &options.resources);
    }
    let now = match found.first() {
        Some(known) if options.since.or(options.until).is_some() => {
            store.inspect(std::slice::from_ref(&known.name))?.now
        }
        _ => StoreTime::NEVER,
    };
    let [since, until] = [options.since, options.until].map(|length| length.map(|length| now - length));
    let last = options.last.map(|last| usize::try_from(last).unwrap_or(usize::MAX));
    let (from, to) = if is_list { (since, until) } else { (None, None) };
    let selection = Selection { since: from, until: to, failed: options.failed, last };
    for known in &mut found {
        // Entries that several requests share stand where the first of them was entered.
        known.entries.sort_by_key(|entry| entry.ended.latest());
        if options.paths.narrow(&known.name) {
            let is_meant = |claim: &Claim| options.paths.include(&claim.resource, &claim.span);
            known.entries.retain(|entry| entry.claims.iter().any(is_meant));
            // They count the requests for all paths.
            known.past.totals = Totals::default();
        }
        selection.apply(&mut known.entries);
    }
    Ok((found, since.unwrap_or_default()..until.unwrap_or(StoreTime::NEVER)))
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
    }
}

fn joined(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}
