//! The checks of `rlock inspect`, which tell their result by the exit code: 1 if there is something
//! to report.

use std::time::Duration;

use anyhow::Context;

use super::Inspect;
use crate::cli::stdout;
use crate::environment::{after_all_but, context};
use rlock_model::past::{Past, RETENTION};
use rlock_show::failure::Failure;
use rlock_show::messages;
use rlock_store::Inspection;
use rlock_sys::clock::StoreTime;
use rlock_words::{self as words, one_line};

/// The exit code of a check that has something to report.
const FOUND: u8 = 1;

/// Removes all but the sessions that have held, or waited, for longer than this. Returns the exit
/// code.
pub(super) fn longer_than(inspection: &mut Inspection, held: Option<Duration>, waiting: Option<Duration>) -> u8 {
    let now = inspection.now;
    let is_longer = |since: StoreTime, limit: Option<Duration>| limit.is_some_and(|limit| now - since > limit);
    for listing in &mut inspection.resources {
        listing.holders.retain(|holder| !holder.is_over(now) && is_longer(holder.since, held));
        listing.waiters.retain(|waiter| is_longer(waiter.since, waiting));
    }
    inspection.resources.retain(|listing| !listing.holders.is_empty() || !listing.waiters.is_empty());
    if inspection.resources.is_empty() { 0 } else { FOUND }
}

/// Prints a line for each KEY without a successful run in this time, and returns the exit code.
pub(super) fn no_success_for(inspect: &Inspect, limit: Duration) -> anyhow::Result<u8> {
    let mut store = context::open_store(&inspect.store)?;
    let found = store.history(&inspect.resources, 0).map_err(Failure::from)?;
    let now = store.inspect(&inspect.resources).map_err(Failure::from)?.now;
    let unusable = store.take_unusable();
    let of_job = inspect.job.as_ref().map(|job| format!(" of job '{job}'")).unwrap_or_default();
    let last_of = |past: &Past| match &inspect.job {
        None => past.last_success,
        Some(job) => past.jobs.get(job).and_then(|job| job.ended),
    };
    let asked = inspect.resources.iter().map(|name| {
        let past = found.iter().find(|known| known.name == *name).map(|known| &known.past);
        (format!("'{name}'"), past.and_then(last_of), past.is_some_and(|past| now < past.bound))
    });
    let mut checked: Vec<_> = asked.collect();
    if checked.is_empty() {
        let last = found.iter().filter_map(|known| last_of(&known.past)).max();
        checked.push(("the store".to_owned(), last, false));
    }
    // A KEY that forgets after a week does not tell what was before.
    let mut unknown = checked.iter().filter(|(_, last, is_remembered)| last.is_none() && !is_remembered);
    if let Some((name, ..)) = unknown.next().filter(|_| limit > RETENTION) {
        return Err(not_remembered(name, &of_job, limit).into());
    }
    let mut text = String::new();
    for (name, last, _) in checked.into_iter().filter(|(_, last, _)| last.is_none_or(|last| last + limit <= now)) {
        text.push_str(&one_line(&format!("{name} {}", without_success(limit, &of_job, last))));
        text.push('\n');
    }
    stdout::print(text.as_bytes()).context("can't write to standard output")?;
    let code = after_all_but(&unusable);
    Ok(if text.is_empty() { code } else { FOUND })
}

fn not_remembered(name: &str, of_job: &str, limit: Duration) -> Failure {
    let days = limit.as_secs().div_ceil(24 * 3600);
    Failure::usage(format!(
        "--no-success-for: no successful run{of_job} of {name} is known, and those of more than 7 days ago may be \
         forgotten: run it with 'rlock exec --remember {days}d'"
    ))
}

fn without_success(limit: Duration, of_job: &str, last: Option<StoreTime>) -> String {
    let last =
        last.map_or_else(|| "none is known".to_owned(), |last| format!("the last ended at {}", messages::time(last)));
    format!("had no successful run{of_job} for {}: {last}", words::duration(limit))
}
