//! `rlock cleanup`: removes what is expired or dead and, if told to, takes live grants away.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::Context;

use super::{Failure, context, describe};
use crate::cli::invocation::Cleanup;
use crate::cli::stdout;
use crate::lock::records::Session;
use crate::words::one_line;

/// Cleans up, says what was removed, and gives the exit code.
pub(super) fn run(cleanup: &Cleanup) -> anyhow::Result<u8> {
    let mut store = context::open_store(&cleanup.store)?;
    let dry = cleanup.dry_run;
    let dead = store.cleanup(&cleanup.resources, dry).map_err(Failure::from)?;
    tell(if dry { "would remove" } else { "removed" }, dead.iter().map(|(_, session)| session))?;
    // In a dry run the dead are still there, and so is whoever holds several of the resources.
    let mut told: BTreeSet<_> = dead.iter().map(|(id, _)| *id).collect();
    let to_break = if cleanup.break_grants { &cleanup.resources[..] } else { &[] };
    for resource in to_break {
        let broken = store.break_grants(resource, dry).map_err(Failure::from)?;
        let live = broken.iter().filter(|(id, _)| told.insert(*id));
        tell(if dry { "would break" } else { "broke" }, live.map(|(_, session)| session))?;
    }
    Ok(super::after_all_but(&store.take_unusable()))
}

/// Prints a line for each claim: what was done, to what, whose it was. At once, so that nothing is done untold if the next thing fails.
fn tell<'a>(done: &str, sessions: impl Iterator<Item = &'a Session>) -> anyhow::Result<()> {
    let mut report = String::new();
    for session in sessions {
        line(&mut report, done, session);
    }
    stdout::print(report.as_bytes()).context("can't write to standard output")
}

fn line(report: &mut String, done: &str, session: &Session) {
    let what = if session.is_holder() { "the hold" } else { "the place in the queue" };
    for record in &session.claims {
        let (mode, name, span) = (record.claim.mode, &record.claim.resource, &record.claim.span);
        let (who, since) = (describe::process(&session.process), describe::time(session.since));
        let line = format!("{done} {what} for {mode} on '{name}' ({span}) of {who}, since {since}");
        // Writing to a String can't fail.
        let _ = writeln!(report, "{}", one_line(&line));
    }
}
