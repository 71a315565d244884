//! `rlock cleanup` and `rlock break`: removes expired and dead sessions and, with `break`, takes
//! live grants away.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use rustix::process::Pid;

use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use crate::arguments::help::notes;
use crate::arguments::mistake::Mistake;
use crate::arguments::options::{StoreOptions, id, keys, option, read_keys, read_store, switch};
use crate::arguments::values;
use crate::environment::{after_all_but, context, say};
use crate::lock::op::HolderListing;
use crate::lock::records::{ClaimRecord, Phase, Session};
use crate::lock::request::SessionId;
use crate::lock::resource::Resource;
use crate::show::failure::Failure;
use crate::show::messages;
use crate::store::Store;
use crate::system::exit;
use crate::words::one_line;

pub(super) const CLEANUP: Subcommand = Subcommand {
    name: "cleanup",
    page: "rlock-cleanup",
    section: 1,
    about: "Remove what is expired or dead",
    texts: &[include_str!("pages/cleanup.txt")],
    define,
    read,
    has_numbers: false,
    runs_command: false,
};

pub(super) const BREAK: Subcommand = Subcommand {
    name: "break",
    page: "rlock-break",
    section: 1,
    about: "Take live locks away, and have their commands stopped",
    texts: &[include_str!("pages/break.txt")],
    define: define_break,
    read: read_break,
    has_numbers: false,
    runs_command: false,
};

/// `rlock cleanup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cleanup {
    /// The store to clean.
    pub(super) store: StoreOptions,
    /// The resources to clean, none twice. If empty, all resources are cleaned; with `break_grants`
    /// it is never empty.
    pub(super) resources: Vec<Resource>,
    /// Only report what would be removed.
    pub(super) dry_run: bool,
    /// Take live grants away too.
    pub(super) break_grants: bool,
    /// Take only the grants of this holder away.
    pub(super) only: Option<Holder>,
}

/// Selects one of several holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The holder with this session.
    Session(SessionId),
    /// The holder with this process, on whatever host.
    Process(Pid),
}

/// The definition of its words.
fn define(command: Command) -> Command {
    command
        .override_usage("rlock cleanup [KEY]... [--dry-run]")
        .after_help(notes(
            "--break KEY... is another name for 'rlock break KEY...'.",
            &["rlock cleanup --dry-run", "rlock cleanup deploy"],
        ))
        .arg(keys("What to clean [default: all]"))
        .arg(dry_run("Only say what would be removed"))
        .arg(switch(id::BREAK, "Take live locks on KEY away, too, as 'rlock break' does"))
        .args(holder().map(|arg| arg.requires(id::BREAK)))
}

/// The definition of its words.
fn define_break(command: Command) -> Command {
    command
        .override_usage("rlock break KEY... [--session ID | --pid PID] [--dry-run]")
        .after_help(notes(
            "Exit: 0, or 1 if nobody holds any KEY.",
            &["rlock break --dry-run deploy", "rlock break backup --pid 4711"],
        ))
        .arg(keys("Whose locks to take away: their commands are stopped").required(true))
        .arg(dry_run("Only say what would be taken away"))
        .args(holder())
}

fn dry_run(help: &'static str) -> Arg {
    switch(id::DRY_RUN, help)
}

/// Selects one holder.
fn holder() -> [Arg; 2] {
    [
        option(id::HOLDER, "ID", values::session, "Break only the lock of this session").conflicts_with(id::PID),
        option(id::PID, "PID", values::pid, "Break only the lock of the rlock with this process id"),
    ]
}

/// Reads the matched words.
fn read(matches: ArgMatches) -> Result<Invocation, Mistake> {
    let break_grants = matches.get_flag(id::BREAK);
    let cleanup = cleaned(matches, break_grants);
    if cleanup.break_grants && cleanup.resources.is_empty() {
        return Err(Mistake::plain("--break needs a KEY: name the locks to take away"));
    }
    Ok(Invocation::Cleanup(cleanup))
}

/// Reads the matched words.
fn read_break(matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Cleanup(cleaned(matches, true)))
}

/// What `cleanup` and `break` share.
fn cleaned(mut matches: ArgMatches, break_grants: bool) -> Cleanup {
    let session = matches.remove_one(id::HOLDER).map(Holder::Session);
    Cleanup {
        resources: read_keys(&mut matches),
        dry_run: matches.get_flag(id::DRY_RUN),
        break_grants,
        only: session.or_else(|| matches.remove_one(id::PID).map(Holder::Process)),
        store: read_store(&mut matches),
    }
}

/// Cleans up, prints the removed claims, and returns the exit code.
pub(super) fn run(cleanup: &Cleanup) -> anyhow::Result<u8> {
    let mut store = context::open_store(&cleanup.store)?;
    let dry = cleanup.dry_run;
    let dead = store.cleanup(&cleanup.resources, dry).map_err(Failure::from)?;
    let removed = if dry { "would remove" } else { "removed" };
    let removed = Done { to_hold: removed, to_unclaimed: removed, then: "" };
    tell(removed, dead.iter().map(|(_, session)| session), None)?;
    if !cleanup.break_grants {
        let unusable = store.take_unusable();
        if !dry {
            report_live(store.as_mut(), &cleanup.resources);
        }
        return Ok(after_all_but(&unusable));
    }
    // No command runs under a grant that its rlock has not claimed, so the rlock is not told of a
    // loss: it asks again.
    let broke = if dry {
        let then = "; its request would wait again";
        Done { to_hold: "would break", to_unclaimed: "would take back", then }
    } else {
        Done { to_hold: "broke", to_unclaimed: "took back", then: "; its request waits again" }
    };
    // A dry run removes nothing, so the store still lists the dead sessions. It also lists a
    // session again that holds several of the resources.
    let mut told: BTreeSet<_> = dead.iter().map(|(id, _)| *id).collect();
    let mut held: BTreeSet<_> = dead.iter().flat_map(|(_, session)| context::held_by(session)).collect();
    for resource in &cleanup.resources {
        let only = cleanup.only.map(|only| find(store.as_mut(), resource, only)).transpose()?;
        if only == Some(None) {
            continue;
        }
        let broken = store.break_grants(resource, only.flatten(), dry).map_err(Failure::from)?;
        held.extend(broken.iter().flat_map(|(_, session)| context::held_by(session)));
        let live = broken.iter().filter(|(id, _)| told.insert(*id)).map(|(_, session)| session);
        tell(broke, live, Some((resource, &cleanup.resources)))?;
    }
    let free: Vec<_> = cleanup.resources.iter().filter(|resource| !held.contains(resource)).collect();
    let unusable = store.take_unusable();
    // `after_all_but` reports the unusable resources below; their holders are unknown.
    let is_usable = |name: &Resource| !unusable.iter().any(|found| found.resource.as_ref() == Some(name));
    for resource in free.iter().filter(|name| is_usable(name)) {
        let who = match cleanup.only {
            None => "nobody holds".to_owned(),
            Some(Holder::Session(id)) => format!("session {id} does not hold"),
            Some(Holder::Process(pid)) => format!("process {} does not hold", pid.as_raw_nonzero()),
        };
        say(&format!("{who} '{resource}': nothing to break; 'rlock inspect' shows what is held"));
    }
    match after_all_but(&unusable) {
        0 if free.len() == cleanup.resources.len() => Ok(exit::NOT_HELD),
        code => Ok(code),
    }
}

/// Says which of the resources live sessions hold. Users who name one expect it to be free then.
fn report_live(store: &mut dyn Store, resources: &[Resource]) {
    if resources.is_empty() {
        return;
    }
    // The cleanup is done, whether or not this user may also look.
    let Ok(seen) = store.inspect(resources) else { return };
    // The caller has reported the unusable resources.
    store.take_unusable();
    for listing in seen.resources {
        let Some(holder) = listing.holders.iter().find(|holder| !holder.is_over(seen.now)) else { continue };
        let what = messages::held(&listing.name, &holder.span, holder.mode, holder.slots, holder.count);
        let line = format!("{what} is a live lock: 'rlock break' takes it away, 'rlock inspect' shows who holds it");
        say(&line);
    }
}

/// The session of one holder of a resource, if there is one.
fn find(store: &mut dyn Store, resource: &Resource, only: Holder) -> anyhow::Result<Option<SessionId>> {
    let seen = store.inspect(std::slice::from_ref(resource)).map_err(Failure::from)?;
    let holders = seen.resources.iter().flat_map(|listing| &listing.holders);
    let is_it = |holder: &&HolderListing| match only {
        Holder::Session(id) => holder.session == id,
        Holder::Process(pid) => i64::from(holder.process.pid) == i64::from(pid.as_raw_nonzero().get()),
    };
    let found: BTreeSet<_> = holders.filter(is_it).map(|holder| holder.session).collect();
    if found.len() > 1 {
        let text = format!(
            "several processes with this id hold '{resource}': name one with --session; see 'rlock inspect -v'"
        );
        return Err(Failure::usage(text).into());
    }
    Ok(found.into_iter().next())
}

/// The words for what was done.
#[derive(Clone, Copy)]
struct Done {
    /// To a hold or to a place in the queue.
    to_hold: &'static str,
    /// To a grant from the queue that the session has not claimed.
    to_unclaimed: &'static str,
    /// What happens to the request of such a grant.
    then: &'static str,
}

/// Prints a line for each claim: what was done, to which claim, of which session. Each call prints
/// at once, so that a later failure leaves no change unreported.
///
/// `broken` is the resource that was broken, and all resources to break. A claim on any other
/// resource was removed with its session.
fn tell<'a>(
    done: Done,
    sessions: impl Iterator<Item = &'a Session>,
    broken: Option<(&Resource, &[Resource])>,
) -> anyhow::Result<()> {
    let mut report = String::new();
    for session in sessions {
        let is_named = |record: &ClaimRecord| broken.is_none_or(|(_, named)| named.contains(&record.claim.resource));
        let (named, others): (Vec<_>, Vec<_>) = session.claims.iter().partition(|record| is_named(record));
        for record in named.into_iter().chain(others) {
            let line = line(done, session, record);
            let with = broken.filter(|_| !is_named(record));
            let with = with.map(|(resource, _)| format!(", held together with '{resource}'")).unwrap_or_default();
            let then = if session.phase == Phase::Granted { done.then } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(report, "{}", one_line(&(line + &with + then)));
        }
    }
    stdout::print(report.as_bytes()).context("can't write to standard output")
}

fn line(done: Done, session: &Session, record: &ClaimRecord) -> String {
    let (done, what, since) = match session.phase {
        Phase::Waiting => (done.to_hold, "the place in the queue", session.asked),
        Phase::Granted => (done.to_unclaimed, "the unclaimed grant", session.since),
        Phase::Held | Phase::Kept => (done.to_hold, "the hold", session.since),
    };
    let (mode, name, span) = (record.claim.mode, &record.claim.resource, &record.claim.span);
    let (who, since) = (messages::process(&session.process), messages::time(since));
    format!("{done} {what} for {mode} on '{name}' ({span}) of {who}, since {since}")
}
