//! `rlock cleanup`: removes what is expired or dead and, if told to, takes live grants away.

use std::fmt::Write;

use anyhow::Context;

use super::{Failure, context, describe};
use crate::cli::invocation::Cleanup;
use crate::cli::stdout;
use crate::lock::records::Session;
use crate::supervise::terminal::one_line;

/// Cleans up, says what was removed, and gives the exit code.
pub(super) fn run(cleanup: &Cleanup) -> anyhow::Result<u8> {
    let mut store = context::open_store(&cleanup.store)?;
    let dry = cleanup.dry_run;
    let mut report = String::new();
    let dead = store.cleanup(&cleanup.resources, dry).map_err(Failure::from)?;
    for (id, session) in &dead {
        tell(&mut report, if dry { "would remove" } else { "removed" }, session);
        debug_assert!(!session.claims.is_empty(), "session {id} has no claim");
    }
    if cleanup.break_grants {
        for resource in &cleanup.resources {
            let broken = store.break_grants(resource, dry).map_err(Failure::from)?;
            let dead = |id| dead.iter().any(|(other, _)| *other == id);
            for (_, session) in broken.iter().filter(|(id, _)| !dead(*id)) {
                tell(&mut report, if dry { "would break" } else { "broke" }, session);
            }
        }
    }
    stdout::print(report.as_bytes()).context("can't write to standard output")?;
    Ok(0)
}

/// One line for each claim: what was done, to what, whose it was.
fn tell(report: &mut String, done: &str, session: &Session) {
    let what = if session.is_holder() { "the hold" } else { "the place in the queue" };
    for record in &session.claims {
        let (mode, name, span) = (record.claim.mode, &record.claim.resource, &record.claim.span);
        let (who, since) = (describe::process(&session.process), describe::time(session.since));
        let line = format!("{done} {what} for {mode} on '{name}' ({span}) of {who}, since {since}");
        // Writing to a String can't fail.
        let _ = writeln!(report, "{}", one_line(&line));
    }
}
