//! `rlock inspect`: shows the holders and waiters of each resource, and since when they hold or
//! wait.

mod checks;
mod prometheus;

use std::collections::HashMap;

use anyhow::Context;

use super::context;
use crate::cli::invocation::Inspect;
use crate::cli::stdout;
use crate::clock::StoreTime;
use crate::failure::Failure;
use crate::inspection;
use crate::lock::mode::Mode;
use crate::lock::op::ResourceListing;
use crate::lock::past::Remembered;
use crate::lock::request::Process;
use crate::messages;
use crate::store::Inspection;
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
    let mut inspection = store.inspect(&inspect.resources).map_err(Failure::from)?;
    let unusable = store.take_unusable();
    let checked = inspect.held_longer_than.map(|limit| checks::held_longer_than(&mut inspection, limit));
    let pasts = inspection::pasts(store.as_mut(), &inspection).map_err(Failure::from)?;
    let text = match inspect.json {
        true => format!("{}\n", inspection::as_json(&store.url(), &inspection, &pasts)),
        // The table would say that nobody holds, which is unknown for unusable resources.
        false if inspection.resources.is_empty() && !unusable.is_empty() => String::new(),
        // A check is silent if there is nothing to report.
        false if checked == Some(0) => String::new(),
        false => as_table(&inspection.resources, inspection.now) + &skips(&inspection, &pasts),
    };
    stdout::print(text.as_bytes()).context("can't write to standard output")?;
    let code = super::after_all_but(&unusable);
    Ok(checked.filter(|checked| *checked > 0).unwrap_or(code))
}

const HEADINGS: [&str; 9] = ["RESOURCE", "STATE", "MODE", "SPAN", "WHO", "PID", "FOR", "LEASE", "COMMAND"];

fn as_table(listings: &[ResourceListing], now: StoreTime) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    let mut known = HashMap::new();
    let mut state = |of: &Process, doing: String| {
        let stopped = *known.entry((of.host.clone(), of.pid)).or_insert_with(|| messages::is_stopped(of));
        if stopped { format!("{doing}, stopped") } else { doing }
    };
    for listing in listings {
        let mut name = Some(one_line(listing.name.as_str()));
        for holder in &listing.holders {
            let lease = holder.expiry.map(|expiry| messages::duration(expiry - now));
            let columns = [mode(holder.mode, holder.slots), holder.span.to_string()];
            let since = messages::duration(now - holder.since);
            let state = match holder.kept {
                // The process is gone, and another one may have its number.
                true => "kept".to_owned(),
                false => state(&holder.process, "holds".to_owned()),
            };
            rows.push(row(&mut name, state, columns, &holder.process, since, lease));
        }
        for waiter in &listing.waiters {
            let columns = [mode(waiter.mode, waiter.slots), waiter.span.to_string()];
            let since = messages::duration(now - waiter.since);
            let state = state(&waiter.process, format!("waits {}", waiter.position));
            rows.push(row(&mut name, state, columns, &waiter.process, since, None));
        }
        if let Some(name) = name {
            let mut free = [const { String::new() }; HEADINGS.len()];
            free[0] = name;
            "free".clone_into(&mut free[1]);
            rows.push(free);
        }
    }
    if rows.len() == 1 {
        return "nobody holds or waits\n".to_owned();
    }
    aligned(&rows)
}

/// A line below the table for each job that was skipped in a row.
fn skips(inspection: &Inspection, pasts: &[Remembered]) -> String {
    let mut text = String::new();
    for listing in &inspection.resources {
        for (job, streak) in inspection::streaks(listing, pasts, inspection.now) {
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

fn mode(mode: Mode, slots: Option<u32>) -> String {
    slots.map_or_else(|| mode.to_string(), |slots| format!("{mode} of {slots}"))
}

fn row(
    name: &mut Option<String>,
    state: String,
    [mode, span]: [String; 2],
    process: &Process,
    since: String,
    lease: Option<String>,
) -> [String; HEADINGS.len()] {
    let who = one_line(&format!("{}{}@{}", messages::owner_and_reason(process), process.user, process.host));
    let command = one_line(&process.command.join(" "));
    let lease = lease.unwrap_or_else(|| "-".to_owned());
    [name.take().unwrap_or_default(), state, mode, span, who, process.pid.to_string(), since, lease, command]
}

/// Aligns the columns: each is as wide as its widest cell.
fn aligned(rows: &[[String; HEADINGS.len()]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<_> = (0..HEADINGS.len()).map(width).collect();
    let mut table = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let gap = width.saturating_sub(cell.chars().count()) + 2;
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', gap));
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}
