//! `rlock inspect`: shows the holders and waiters of each resource, and since when they hold or
//! wait.

mod checks;
mod prometheus;

use std::collections::HashMap;

use anyhow::Context;

use super::context;
use super::look::look;
use super::watch;
use crate::cli::invocation::{Form, Inspect};
use crate::cli::stdout;
use crate::lock::op::ResourceListing;
use crate::lock::past::Remembered;
use crate::lock::request::Process;
use crate::show::Look;
use crate::show::dot::dot;
use crate::show::failure::Failure;
use crate::show::json;
use crate::show::listing::{places as from, table};
use crate::show::messages;
use crate::show::tree::tree;
use crate::store::identity;
use crate::store::{Inspection, Store};
use crate::words::one_line;

/// Prints the listing and returns the exit code.
pub(super) fn run(inspect: &Inspect) -> anyhow::Result<u8> {
    if inspect.prometheus {
        return prometheus::run(inspect);
    }
    if let Some(limit) = inspect.no_success_for {
        return checks::no_success_for(inspect, limit);
    }
    let mut store = context::open_store(&inspect.store)?;
    let look = Look { wide: inspect.wide, ..look(inspect.color, inspect.verbose) };
    if let Some(every) = inspect.watch {
        return watch::run(inspect, store, every, look);
    }
    let mut inspection = store.inspect(&inspect.resources).map_err(Failure::from)?;
    let unusable = store.take_unusable();
    let checked = inspect.held_longer_than.map(|limit| checks::held_longer_than(&mut inspection, limit));
    let is_busy = |listing: &&ResourceListing| !listing.holders.is_empty() || !listing.waiters.is_empty();
    let text = match inspect.form {
        Form::Names => {
            inspection.resources.iter().filter(is_busy).flat_map(|listing| [listing.name.as_str(), "\n"]).collect()
        }
        Form::Dot => dot(&inspection),
        // The listing would say that nobody holds, which is unknown for unusable resources.
        Form::Table | Form::Tree if inspection.resources.is_empty() && !unusable.is_empty() => String::new(),
        // A check is silent if there is nothing to report.
        Form::Table | Form::Tree if checked == Some(0) => String::new(),
        form => {
            let pasts = store.pasts(&inspection).map_err(Failure::from)?;
            match form {
                Form::Json => json::as_text(&store.url(), &inspection, &pasts) + "\n",
                form => {
                    let shown: String =
                        listing(form, &inspection, &look).iter().flat_map(|line| [line, "\n"]).collect();
                    let unknown = unknown(&inspection, &pasts);
                    shown + &skips(&inspection, &pasts) + &places(store.as_ref(), &unknown, &look)
                }
            }
        }
    };
    stdout::print(text.as_bytes()).context("can't write to standard output")?;
    let code = super::after_all_but(&unusable);
    Ok(checked.filter(|checked| *checked > 0).unwrap_or(code))
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
pub(super) fn places(store: &dyn Store, unknown: &[&str], look: &Look) -> String {
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

/// A line below the table for each job that was skipped in a row.
fn skips(inspection: &Inspection, pasts: &[Remembered]) -> String {
    let mut text = String::new();
    for listing in &inspection.resources {
        for (job, streak) in json::streaks(listing, pasts, inspection.now) {
            let line = format!(
                "'{}': job {job}, '{}', was {}",
                listing.name,
                streak.command.join(" "),
                messages::skipped(streak)
            );
            text.extend(["\n", &one_line(&line)]);
        }
    }
    if text.is_empty() { text } else { text + "\n" }
}
