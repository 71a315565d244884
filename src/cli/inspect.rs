//! `rlock inspect`: shows the holders and waiters of each resource, and since when they hold or
//! wait.

mod checks;
mod prometheus;
mod watch;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgMatches, Args, ValueHint};

use super::look::look;
use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use crate::environment::{after_all_but, context, paths, places};
use crate::stores;
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::{self, KEY, LookOptions, PathOptions, StoreOptions, no_blank_before_value};
use rlock_arguments::values;
use rlock_model::op::ResourceListing;
use rlock_model::past::Remembered;
use rlock_model::request::Process;
use rlock_model::resource::Resource;
use rlock_show::dot::dot;
use rlock_show::failure::Failure;
use rlock_show::listing::{places as from, table};
use rlock_show::tree::tree;
use rlock_show::{Look, json, messages};
use rlock_store::{Inspection, Store, identity};
use rlock_supervise::gate;
use rlock_words::one_line;

pub(super) const INSPECT: Subcommand = Subcommand {
    name: "inspect",
    page: "rlock-inspect",
    section: 1,
    about: "Show who holds what and who waits",
    texts: &[include_str!("pages/inspect.txt")],
    define: Inspect::augment_args,
    read,
    has_numbers: false,
};

/// `rlock inspect`.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(
    override_usage = "rlock inspect [KEY]... [--path P] [--json]\n       \
                      rlock inspect [KEY]... --held-longer-than DUR | --waiting-longer-than DUR\n       \
                      rlock inspect [KEY]... --watch | --tree | --dot | --names\n       \
                      rlock inspect --no-success-for DUR KEY... | --job NAME\n       \
                      rlock inspect [KEY]... --prometheus [-o FILE]",
    after_help = notes(
        "On a terminal, --watch redraws the table until q or Ctrl-C.",
        &["rlock inspect --watch", "rlock inspect --no-success-for 25h backup"],
    )
)]
#[group(skip)]
pub(crate) struct Inspect {
    /// What to show [default: all that is held or waited for].
    #[arg(id = KEY, value_parser = values::resource)]
    pub(super) resources: Vec<Resource>,
    #[command(flatten)]
    pub(super) paths: PathOptions,
    /// Print JSON.
    #[arg(long, group = "form")]
    pub(super) json: bool,
    /// Print the names alone.
    #[arg(long, group = "form", conflicts_with = "watch")]
    pub(super) names: bool,
    /// Show as a tree who holds, what runs below, and who waits for what.
    #[arg(long, group = "form")]
    pub(super) tree: bool,
    /// Print a graph for Graphviz, as in: rlock inspect --dot | dot -Tsvg.
    #[arg(long, group = "form", conflicts_with = "watch")]
    pub(super) dot: bool,
    // rustdoc would take `[1s]` for a link.
    #[arg(help = "Go on with each change; a server is asked each DUR [1s]")]
    #[arg(long, value_name = "DUR", value_parser = values::optional(values::interval))]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = values::ABSENT)]
    #[arg(conflicts_with_all = ["held_longer_than", "waiting_longer_than", "no_success_for", "prometheus"])]
    pub(super) watch: Option<values::Optional>,
    /// Show times of day instead of ages, and session ids.
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Cut nothing, even beyond the width of the terminal.
    #[arg(long, conflicts_with = "watch")]
    pub(super) wide: bool,
    #[command(flatten)]
    pub(super) look: LookOptions,
    /// Only what is held for longer; exit 1 if there is any.
    #[arg(long, value_name = "DUR", value_parser = values::duration, conflicts_with = "no_success_for")]
    pub(super) held_longer_than: Option<Duration>,
    /// Only who waits for longer; exit 1 if there is any.
    #[arg(long, value_name = "DUR", value_parser = values::duration, conflicts_with = "no_success_for")]
    pub(super) waiting_longer_than: Option<Duration>,
    /// Exit 1 and name each KEY without a successful run in DUR.
    #[arg(long, value_name = "DUR", value_parser = values::period)]
    #[arg(conflicts_with_all = ["form", "path"])]
    pub(super) no_success_for: Option<Duration>,
    /// Only successful runs with this --job count.
    #[arg(long, value_name = "NAME", value_parser = values::job, requires = "no_success_for")]
    pub(super) job: Option<String>,
    /// Print metrics for Prometheus.
    #[arg(long, conflicts_with_all = ["form", "held_longer_than", "waiting_longer_than", "no_success_for", "path"])]
    pub(super) prometheus: bool,
    /// Write the metrics to FILE.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "prometheus")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// What `rlock inspect` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A table for people.
    Table,
    /// One JSON object.
    Json,
    /// The names alone.
    Names,
    /// A tree of sessions below resources.
    Tree,
    /// A graph in the language of Graphviz.
    Dot,
}

impl Inspect {
    pub(super) fn form(&self) -> Form {
        match [self.json, self.names, self.tree, self.dot] {
            [true, ..] => Form::Json,
            [_, true, ..] => Form::Names,
            [.., true, _] => Form::Tree,
            [.., true] => Form::Dot,
            _ => Form::Table,
        }
    }

    /// Removes what the paths do not mean.
    pub(super) fn narrow(&self, inspection: &mut Inspection) {
        for ResourceListing { name, holders, waiters } in &mut inspection.resources {
            holders.retain(|holder| self.paths.include(name, &holder.span));
            waiters.retain(|waiter| self.paths.include(name, &waiter.span));
        }
        // A table would show the resource as free, while other paths are held.
        let is_free = |listing: &ResourceListing| listing.holders.is_empty() && listing.waiters.is_empty();
        let is_shown = |listing: &ResourceListing| self.json || !self.paths.narrow(&listing.name) || !is_free(listing);
        inspection.resources.retain(is_shown);
    }
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    no_blank_before_value(&matches, "watch")?;
    let mut inspect: Inspect = options::read(&mut matches);
    inspect.resources = inspect.paths.resolve(inspect.resources, paths::resolved)?;
    if inspect.no_success_for.is_some() && inspect.resources.is_empty() && inspect.job.is_none() {
        return Err(Mistake::plain("--no-success-for needs a KEY: name what has to run"));
    }
    Ok(Invocation::Inspect(inspect))
}

/// How often `--watch` asks a server, unless it is told.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Prints the listing and returns the exit code.
pub(super) fn run(inspect: &Inspect) -> anyhow::Result<u8> {
    if inspect.prometheus {
        return prometheus::run(inspect);
    }
    if let Some(limit) = inspect.no_success_for {
        return checks::no_success_for(inspect, limit);
    }
    let mut store = context::open_store(&inspect.store)?;
    let look = Look { wide: inspect.wide, ..look(inspect.look.color, inspect.verbose) };
    if let Some(every) = inspect.watch {
        return watch::run(inspect, store, every.unwrap_or(WATCH_EVERY), look);
    }
    let mut inspection = store.inspect(&inspect.resources).map_err(Failure::from)?;
    let unusable = store.take_unusable();
    inspect.narrow(&mut inspection);
    note_gates(&mut inspection);
    let (held, waiting) = (inspect.held_longer_than, inspect.waiting_longer_than);
    let checked = held.or(waiting).map(|_| checks::longer_than(&mut inspection, held, waiting));
    let is_busy = |listing: &&ResourceListing| !listing.holders.is_empty() || !listing.waiters.is_empty();
    let text = match inspect.form() {
        Form::Names => {
            inspection.resources.iter().filter(is_busy).flat_map(|listing| [listing.name.as_str(), "\n"]).collect()
        }
        Form::Dot => dot(&inspection),
        // The listing would say that nobody holds, which is unknown for unusable resources.
        Form::Table | Form::Tree if inspection.resources.is_empty() && !unusable.is_empty() => String::new(),
        // A check is silent if there is nothing to report.
        Form::Table | Form::Tree if checked == Some(0) => String::new(),
        form => {
            let absent = places::absent(store.as_ref(), &inspect.resources);
            let pasts = store.pasts(&inspection).map_err(Failure::from)?;
            match form {
                Form::Json => json::as_text(&store.url(), &inspection, &pasts, &absent) + "\n",
                form => {
                    let shown: String =
                        listing(form, &inspection, &look).iter().flat_map(|line| [line, "\n"]).collect();
                    let unknown = unknown(&inspection, &pasts);
                    shown
                        + &skips(&inspection, &pasts, inspect.verbose)
                        + &places::lines(&absent)
                        + &sources(store.as_ref(), &unknown, &look)
                }
            }
        }
    };
    stdout::print(text.as_bytes()).context("can't write to standard output")?;
    let code = after_all_but(&unusable);
    Ok(checked.filter(|checked| *checked > 0).unwrap_or(code))
}

/// Notes which holders wait for room on this machine.
fn note_gates(inspection: &mut Inspection) {
    let holders = inspection.resources.iter_mut().flat_map(|listing| &mut listing.holders);
    let mut here: Vec<_> =
        holders.filter(|holder| !holder.kept && identity::is_of_this_host(&holder.process)).collect();
    if here.is_empty() {
        return;
    }
    let Some(mut store) = stores::has_gate().then(stores::open_gate).and_then(Result::ok) else { return };
    let waiting = gate::waiting(store.as_mut());
    for holder in &mut here {
        holder.gate = waiting.get(&(holder.process.host.clone(), holder.process.pid)).cloned();
    }
}

/// The lines of the tree or of the table.
pub(super) fn listing(form: Form, inspection: &Inspection, look: &Look) -> Vec<String> {
    if inspection.resources.is_empty() {
        return vec!["nobody holds or waits".to_owned()];
    }
    let mut known = HashMap::new();
    let mut is_stopped = |process: &Process| {
        *known.entry((process.host.clone(), process.pid)).or_insert_with(|| identity::is_stopped(process))
    };
    match form {
        Form::Tree => tree(inspection, look, &mut is_stopped),
        _ => table(&inspection.resources, inspection.now, look, &mut is_stopped),
    }
}

/// The lines that tell where the listing comes from, and that nothing is known of these names
/// there.
pub(super) fn sources(store: &dyn Store, unknown: &[&str], look: &Look) -> String {
    let (dim, text) = (look.palette.dim, from(&store.url(), store.namespace(), unknown, &store.elsewhere()));
    format!("{dim}{text}{dim:#}\n")
}

/// The listed names of which the store knows nothing. They may have typing errors, or be names of
/// another store.
fn unknown<'i>(inspection: &'i Inspection, pasts: &[Remembered]) -> Vec<&'i str> {
    let is_unknown = |listing: &&ResourceListing| {
        let is_free = listing.holders.is_empty() && listing.waiters.is_empty();
        is_free && pasts.iter().all(|past| past.name != listing.name)
    };
    inspection.resources.iter().filter(is_unknown).map(|listing| listing.name.as_str()).collect()
}

/// The lines below the table about the jobs that were skipped in a row.
fn skips(inspection: &Inspection, pasts: &[Remembered], names_all: bool) -> String {
    let of = |listing: &ResourceListing| {
        messages::skips(&listing.name, &json::streaks(listing, pasts, inspection.now), names_all)
    };
    let lines = inspection.resources.iter().flat_map(of);
    let text: String = lines.map(|line| format!("\n{}", one_line(&line))).collect();
    if text.is_empty() { text } else { text + "\n" }
}
