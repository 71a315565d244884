//! `rlock cleanup` and `rlock break`: removes expired and dead sessions and, with `break`, revokes
//! live grants.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use clap::{ArgMatches, Args, Command};
use rustix::process::Pid;

use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use crate::environment::{after_all_but, caller, context, paths, say};
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::{self, KEY, PathOptions, StoreOptions};
use rlock_arguments::values::{self, Wait};
use rlock_model::op::HolderListing;
use rlock_model::records::{ClaimRecord, Phase, Session};
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_show::failure::Failure;
use rlock_show::messages;
use rlock_store::{Breaking, Store};
use rlock_sys::exit;
use rlock_words::{self as words, one_line};

mod revoked;

use self::revoked::Revoked;

pub(super) const CLEANUP: Subcommand = Subcommand {
    name: "cleanup",
    page: "rlock-cleanup",
    section: 1,
    about: "Remove what is expired or dead",
    texts: &[include_str!("pages/cleanup.txt")],
    define,
    read,
    has_numbers: false,
};

pub(super) const BREAK: Subcommand = Subcommand {
    name: "break",
    page: "rlock-break",
    section: 1,
    about: "Have the commands of live locks stopped, and their locks freed",
    texts: &[include_str!("pages/break.txt")],
    define: Break::augment_args,
    read: read_break,
    has_numbers: false,
};

/// `rlock cleanup`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(
    override_usage = "rlock cleanup [KEY]... [--path P] [--dry-run]",
    after_help = notes(
        "--break KEY... is another name for 'rlock break KEY...'.",
        &["rlock cleanup --dry-run", "rlock cleanup deploy"],
    )
)]
#[group(skip)]
pub(crate) struct Cleanup {
    /// What to clean [default: all].
    // With `breaks` it is never empty.
    #[arg(id = KEY, value_parser = values::resource)]
    pub(super) resources: Vec<Resource>,
    #[command(flatten)]
    pub(super) paths: PathOptions,
    /// Only say what would be removed.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Break live locks on KEY, too, as 'rlock break' does.
    #[arg(long = "break")]
    pub(super) breaks: bool,
    #[command(flatten)]
    pub(super) how: BreakOptions,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// `rlock break`.
#[derive(Args)]
#[command(
    override_usage = "rlock break KEY...|--path P [-w DUR | --now]\n       \
                      rlock break KEY... --session ID | --pid PID | --all [-w DUR | --now]",
    after_help = notes(
        "Exit: 0 if the locks are free, 1 if nobody holds any KEY, 75 if one is still held after the wait.",
        &["rlock break --dry-run deploy", "rlock break -w 1m backup --pid 4711"],
    )
)]
#[group(skip)]
struct Break {
    /// Whose locks to break: their commands are stopped.
    #[arg(id = KEY, value_parser = values::resource, required_unless_present = "path")]
    resources: Vec<Resource>,
    #[command(flatten)]
    paths: PathOptions,
    /// Only say what would be broken.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    how: BreakOptions,
    #[command(flatten)]
    store: StoreOptions,
}

/// How live grants are broken.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[group(skip)]
pub(crate) struct BreakOptions {
    /// Wait at most DUR until the lock is released [default: the rest of the lease, or 1m].
    #[arg(short, long, value_name = "DUR", value_parser = values::wait)]
    pub(super) wait: Option<Wait>,
    /// Free the lock at once, while its command may still run.
    #[arg(long, conflicts_with = "wait")]
    pub(super) now: bool,
    /// Break only the lock of this session.
    #[arg(long, value_name = "ID", value_parser = values::session, conflicts_with = "pid")]
    pub(super) session: Option<SessionId>,
    /// Break only the lock of the rlock with this process id.
    #[arg(long, value_name = "PID", value_parser = values::pid)]
    pub(super) pid: Option<Pid>,
    /// Break the locks on all paths, where several are held.
    #[arg(long, conflicts_with_all = ["session", "pid"])]
    pub(super) all: bool,
}

/// Selects one of several holders.
#[derive(Clone, Copy)]
enum Holder {
    /// The holder with this session.
    Session(SessionId),
    /// The holder with this process, on whatever host.
    Process(Pid),
}

impl BreakOptions {
    /// The holder whose lock alone is broken.
    fn only(self) -> Option<Holder> {
        self.session.map(Holder::Session).or(self.pid.map(Holder::Process))
    }
}

/// The definition of the words of `cleanup`.
fn define(command: Command) -> Command {
    let how = ["wait", "now", "session", "pid", "all"];
    how.into_iter()
        .fold(Cleanup::augment_args(command), |command, id| command.mut_arg(id, |option| option.requires("breaks")))
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let mut cleanup: Cleanup = options::read(&mut matches);
    cleanup.resources = cleanup.paths.resolve(cleanup.resources, paths::resolved)?;
    if cleanup.breaks && cleanup.resources.is_empty() {
        return Err(Mistake::plain("--break needs a KEY: name the locks to break"));
    }
    Ok(Invocation::Cleanup(cleanup))
}

/// Reads the matched words.
fn read_break(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let Break { resources, mut paths, dry_run, how, store } = options::read(&mut matches);
    let resources = paths.resolve(resources, paths::resolved)?;
    Ok(Invocation::Cleanup(Cleanup { resources, paths, dry_run, breaks: true, how, store }))
}

/// Cleans up, prints the removed claims, and returns the exit code.
pub(super) fn run(cleanup: &Cleanup) -> anyhow::Result<u8> {
    let mut store = context::open_store(&cleanup.store)?;
    let dry = cleanup.dry_run;
    let mut dead = store.cleanup(&cleanup.resources, dry).map_err(Failure::from)?;
    let is_meant = |record: &ClaimRecord| {
        let claim = &record.claim;
        cleanup.resources.is_empty()
            || cleanup.resources.contains(&claim.resource) && cleanup.paths.include(&claim.resource, &claim.span)
    };
    dead.retain(|(_, session)| session.claims.iter().any(is_meant));
    let removed = if dry { "would remove" } else { "removed" };
    let removed = Done { to_hold: removed, to_unclaimed: removed };
    tell(removed, dead.iter().map(|(_, session)| session), None, |_| String::new())?;
    if !cleanup.breaks {
        let unusable = store.take_unusable();
        if !dry {
            report_live(store.as_mut(), cleanup);
        }
        return Ok(after_all_but(&unusable));
    }
    let by = caller::of_subcommand();
    let (how, broke) = match cleanup.how.now {
        _ if dry => (Breaking::DryRun, Done { to_hold: "would break", to_unclaimed: "would take back" }),
        true => (Breaking::Now, BROKE),
        false => (Breaking::Revoke(&by), BROKE),
    };
    // No command runs under a grant that its rlock has not claimed, so the rlock is not told of a
    // loss: it asks again.
    let then = |session: &Session| match (session.phase, how) {
        (Phase::Granted, Breaking::DryRun) => "; its request would wait again".to_owned(),
        (Phase::Granted, _) => "; its request waits again".to_owned(),
        (Phase::Held, Breaking::Now) => "; its command may run on beside that of the next holder".to_owned(),
        _ => String::new(),
    };
    let mut revoked = Vec::new();
    // A dry run removes nothing, so the store still lists the dead sessions. It also lists a
    // session again that holds several of the resources.
    let mut told: BTreeSet<_> = dead.iter().map(|(id, _)| *id).collect();
    let mut held: BTreeSet<_> = dead.iter().flat_map(|(_, session)| context::held_by(session)).collect();
    // A mistake breaks nothing.
    let chosen = cleanup.resources.iter().map(|name| Ok((name, chosen(store.as_mut(), name, cleanup)?)));
    for (resource, only) in chosen.collect::<anyhow::Result<Vec<_>>>()? {
        let ids: Vec<_> = only.map_or_else(|| vec![None], |ids| ids.into_iter().map(Some).collect());
        let mut broken = Vec::new();
        for id in ids {
            broken.extend(store.break_grants(resource, id, how).map_err(Failure::from)?);
        }
        held.extend(broken.iter().flat_map(|(_, session)| context::held_by(session)));
        let live = broken.into_iter().filter(|(id, _)| told.insert(*id));
        let stays = |session: &Session| session.phase == Phase::Held && matches!(how, Breaking::Revoke(_));
        let (staying, gone): (Vec<_>, Vec<_>) = live.partition(|(_, session)| stays(session));
        tell(broke, gone.iter().map(|(_, session)| session), Some((resource, &cleanup.resources)), then)?;
        revoked.extend(staying.into_iter().map(|(id, session)| Revoked { id, session, resource: resource.clone() }));
    }
    let unusable = store.take_unusable();
    let left = revoked::wait(store.as_mut(), revoked, cleanup.how.wait, |done, after| {
        let after = format!("; it was released after {}", words::duration(after));
        tell(BROKE, [&done.session].into_iter(), Some((&done.resource, &cleanup.resources)), |_| after.clone())
    })?;
    let free: Vec<_> = cleanup.resources.iter().filter(|resource| !held.contains(resource)).collect();
    // `after_all_but` reports the unusable resources below; their holders are unknown.
    let is_usable = |name: &Resource| !unusable.iter().any(|found| found.resource.as_ref() == Some(name));
    for resource in free.iter().filter(|name| is_usable(name)) {
        let who = match cleanup.how.only() {
            None => "nobody holds".to_owned(),
            Some(Holder::Session(id)) => format!("session {id} does not hold"),
            Some(Holder::Process(pid)) => format!("process {} does not hold", pid.as_raw_nonzero()),
        };
        let parts = cleanup.paths.spans.iter().map(|span| messages::part(resource.as_str(), span));
        let what = match cleanup.paths.narrow(resource) {
            true => parts.collect::<Vec<_>>().join(", "),
            false => format!("'{resource}'"),
        };
        let is_file = resource.as_str() != Resource::PATHS && Path::new(resource.as_str()).exists();
        let or_path = if is_file { "; --path names a file or folder" } else { "" };
        say(&format!("{who} {what}: nothing to break; 'rlock inspect' shows what is held{or_path}"));
    }
    let still_held = revoked::report(&left);
    let not_held = (free.len() == cleanup.resources.len()).then_some(exit::NOT_HELD);
    match after_all_but(&unusable) {
        0 => Ok(still_held.or(not_held).unwrap_or_default()),
        code => Ok(code),
    }
}

/// Says which of the resources live sessions hold. Users who name one expect it to be free then.
fn report_live(store: &mut dyn Store, cleanup: &Cleanup) {
    if cleanup.resources.is_empty() {
        return;
    }
    // The cleanup is done, whether or not this user may also look.
    let Ok(seen) = store.inspect(&cleanup.resources) else { return };
    // The caller has reported the unusable resources.
    store.take_unusable();
    for listing in seen.resources {
        let is_live =
            |holder: &&HolderListing| !holder.is_over(seen.now) && cleanup.paths.include(&listing.name, &holder.span);
        let Some(holder) = listing.holders.iter().find(is_live) else { continue };
        let what = messages::held(&listing.name, &holder.span, holder.mode, holder.slots, holder.count);
        let line = format!("{what} is a live lock: 'rlock break' takes it away, 'rlock inspect' shows who holds it");
        say(&line);
    }
}

/// Maximum number of holders that a message lists.
const LISTED_MAX: usize = 8;

/// The sessions of a resource to break: all of them, or those that the paths and options choose.
fn chosen(
    store: &mut dyn Store,
    resource: &Resource,
    cleanup: &Cleanup,
) -> anyhow::Result<Option<BTreeSet<SessionId>>> {
    let only = cleanup.how.only();
    let wants_choice = resource.as_str() == Resource::PATHS && !cleanup.how.all;
    if only.is_none() && !wants_choice && !cleanup.paths.narrow(resource) {
        return Ok(None);
    }
    let seen = store.inspect(std::slice::from_ref(resource)).map_err(Failure::from)?;
    let mut holders: Vec<_> = seen.resources.iter().flat_map(|listing| &listing.holders).collect();
    holders.retain(|holder| {
        let is_it = match only {
            None => true,
            Some(Holder::Session(id)) => holder.session == id,
            Some(Holder::Process(pid)) => i64::from(holder.process.pid) == i64::from(pid.as_raw_nonzero().get()),
        };
        is_it && !holder.is_over(seen.now) && cleanup.paths.include(resource, &holder.span)
    });
    let found: BTreeSet<_> = holders.iter().map(|holder| holder.session).collect();
    match only {
        Some(_) if found.len() > 1 => Err(Failure::usage(format!(
            "several processes with this id hold '{resource}': name one with --session; see 'rlock inspect -v'"
        ))
        .into()),
        None if found.len() > 1 && wants_choice && !cleanup.paths.narrow(resource) && !cleanup.dry_run => {
            let one = |holder: &&HolderListing| {
                let (what, process) = (messages::part(resource.as_str(), &holder.span), &holder.process);
                format!("{what} by {}, pid {}", messages::who(process), process.pid)
            };
            let shown: Vec<_> = holders.iter().take(LISTED_MAX).map(one).collect();
            let more = if holders.len() > LISTED_MAX { "; and more, see 'rlock inspect /'" } else { "" };
            Err(Failure::usage(format!(
                "'{resource}' has {} holders: {}{more}: name one by --path P, --pid PID or --session ID, or all by --all",
                found.len(),
                shown.join("; ")
            ))
            .into())
        }
        _ => Ok(Some(found)),
    }
}

/// The words for what was done.
#[derive(Clone, Copy)]
struct Done {
    /// To a hold or to a place in the queue.
    to_hold: &'static str,
    /// To a grant from the queue that the session has not claimed.
    to_unclaimed: &'static str,
}

const BROKE: Done = Done { to_hold: "broke", to_unclaimed: "took back" };

/// Prints a line for each claim: what was done, to which claim, of which session. Each call prints
/// at once, so that a later failure leaves no change unreported.
///
/// `broken` is the resource that was broken, and all resources to break. A claim on any other
/// resource was removed with its session. `then` says what follows for the session.
fn tell<'a>(
    done: Done,
    sessions: impl Iterator<Item = &'a Session>,
    broken: Option<(&Resource, &[Resource])>,
    then: impl Fn(&Session) -> String,
) -> anyhow::Result<()> {
    let mut report = String::new();
    for session in sessions {
        let is_named = |record: &ClaimRecord| broken.is_none_or(|(_, named)| named.contains(&record.claim.resource));
        let (named, others): (Vec<_>, Vec<_>) = session.claims.iter().partition(|record| is_named(record));
        for record in named.into_iter().chain(others) {
            let line = line(done, session, record);
            let with = broken.filter(|_| !is_named(record));
            let with = with.map(|(resource, _)| format!(", held together with '{resource}'")).unwrap_or_default();
            // Writing to a String cannot fail.
            let _ = writeln!(report, "{}", one_line(&(line + &with + &then(session))));
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
