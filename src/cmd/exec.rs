//! `rlock exec` and `rlock range-*`: acquires the lock, runs the command, and releases the lock.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::time::Duration;

use anyhow::Context;

use super::context::Named;
use super::nested::Cover;
use super::room::{self, Limits};
use super::status::StatusFile;
use super::{calendar, caller, ci, context};
use crate::cli::invocation::{Exec, Period};
use crate::clock::Boottime;
use crate::exit;
use crate::failure::Failure;
use crate::identity;
use crate::lock::deadlock::Detector;
use crate::lock::lease::Lease;
use crate::lock::request::{Job, OncePer, Request, SessionId};
use crate::lock::resource::Resource;
use crate::messages::Messages;
use crate::store::{AcquireOptions, Grant};
use crate::streams::StandardStream;
use crate::supervise::machine::{Notice, Settings, Skip};
use crate::supervise::notify::NotifySocket;
use crate::supervise::report::{Outcome, Report};
use crate::supervise::run::{self, CommandSpec, Task};
use crate::supervise::signals::Signals;
use crate::supervise::terminal::group_for_command;
use crate::words;

/// Maximum time to connect to a server again while a grant is held and nobody renews it.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the command under its claims and returns the exit code.
pub(super) fn run(exec: Exec) -> anyhow::Result<u8> {
    let status = exec.status_file.as_deref().map(|path| StatusFile::prepare(path, &exec.claims)).transpose()?;
    let result = supervise(exec, status.as_ref());
    if let (Some(status), Err(error)) = (&status, &result)
        && let Some(outcome) = error.downcast_ref().and_then(outcome_of)
        && let Some(warning) = status.write(&Report::failed(outcome, Boottime::now()), None)
    {
        super::say(&format!("warning: {warning}"));
    }
    result
}

/// The outcome of a request that failed before it was made. A usage error has none.
fn outcome_of(failure: &Failure) -> Option<Outcome> {
    match failure.code {
        exit::REFUSED => Some(Outcome::Refused),
        exit::UNAVAILABLE => Some(Outcome::Unavailable),
        exit::LOST => Some(Outcome::Lost),
        _ => None,
    }
}

fn supervise(exec: Exec, status: Option<&StatusFile>) -> anyhow::Result<u8> {
    // Opening a store reads files. While their file system does not answer, signals end rlock as
    // they end any program.
    let named = Named::find_for_request(&exec.store, exec.no_default_store, exec.quiet)?;
    let mut store = named.open(exec.connect_timeout)?;
    if !exec.quiet {
        context::warn_of_password(&exec.store);
    }
    // The signals are installed before the request is made, so that no signal that cancels it is
    // lost.
    let signals = Signals::install().context("can't receive signals")?;
    let ancestors = context::sessions_above()?;
    let session = identity::new_session().context("can't get random numbers")?;
    let held_above = context::held_above()?;
    let mut variables = inherited(session, (&ancestors, &held_above), &exec);
    variables.extend(named.exported(store.as_ref()));
    let notify = exec.until_ready.then(|| NotifySocket::open(&session.to_string())).transpose()?;
    variables.extend(notify.as_ref().map(NotifySocket::variable));
    if let Some(complaint) = room::complaint(&exec.command, std::env::vars_os(), &variables, Limits::of_this_process())
    {
        return Err(Failure::usage(format!("the names do not fit into the command's environment: {complaint}")).into());
    }
    let has_leases = store.leases();
    let ttl = named.defaults.ttl(exec.ttl)?;
    let grace = named.defaults.grace(exec.grace, ttl, has_leases)?;
    let no_wait = exec.wait.is_some_and(|wait| wait.is_zero()) || exec.max_waiting == Some(0);
    let ci = ci::run();
    let verbose = context::verbose(exec.verbose) && !exec.quiet;
    let process = caller::process(&exec.whose, ci.as_ref(), &exec.command);
    let cover = exec.nested.then(|| Cover::find(store.as_mut(), &ancestors, &exec.claims)).transpose()?;
    let request = Request {
        session,
        ancestors: ancestors.clone(),
        claims: exec.claims.clone(),
        wait: !no_wait,
        terms: has_leases.then(|| Lease::new(ttl).terms()),
        job: Job {
            name: caller::job(exec.job.clone(), &process.user, &exec.command),
            is_named: exec.job.is_some(),
            once_per: exec.once_per.map(once_per).transpose()?,
            skips: exec.skip_ok.is_some(),
            max_waiting: exec.max_waiting,
            hold_at_least: exec.hold_at_least,
            held_above: held_above.clone(),
            history: named.defaults.history(exec.history)?,
            ..Job::default()
        },
        process,
    };
    let mut asks_at = Boottime::now();
    if !exec.splay.is_zero() {
        asks_at = asks_at + identity::random_part(exec.splay).context("can't get random numbers")?;
    }
    let options = AcquireOptions { replicas: named.defaults.replicas(exec.replicas, has_leases), from: asks_at };
    let handle = store.acquire(request, options).map_err(Failure::from)?;
    // The handle is not dropped: rlock ends when this function returns, and the kernel frees the
    // table's map and all other memory faster.
    let mut handle = ManuallyDrop::new(handle);
    let settings = Settings {
        group: group_for_command(),
        grace,
        wait: exec.wait,
        busy_code: exec.conflict_exit_code,
        notice: match io::stderr().is_terminal() {
            _ if exec.quiet => Notice::Never,
            true => Notice::Line,
            false if verbose || ci.is_some() => Notice::Log,
            false => Notice::Never,
        },
        quiet: exec.quiet,
        verbose,
        max_runtime: exec.max_runtime,
        skip: exec.skip_ok.map_or(Skip::Never, |limit| limit.map_or(Skip::Always, Skip::For)),
        has_spare: exec.meanwhile.is_some(),
        has_else: exec.otherwise.is_some(),
        // A request that is not nested is in no circle.
        deadlock_timeout: Some(exec.deadlock_timeout).filter(|timeout| !ancestors.is_empty() && !timeout.is_zero()),
    };
    let names = exec.claims.iter().map(|claim| claim.resource.clone()).chain(held_above);
    let detector = settings.deadlock_timeout.map(|_| Detector::new(session, names));
    let mut related = ancestors;
    related.push(session);
    let is_whole = matches!(&exec.claims[..], [claim] if claim.span.is_whole());
    let store_options = exec.store.clone();
    let start_with = move |grant: &Grant| {
        let open = || Named::find(&store_options)?.open(Some(LOOK_TIMEOUT));
        cover.map_or(Ok(()), |cover| cover.check(grant, open))?;
        variables.extend(of_grant(grant, is_whole));
        Ok(variables)
    };
    let conclude = |report: &Report, grant: Option<&Grant>| status.and_then(|status| status.write(report, grant));
    let messages = Messages { claims: exec.claims, related, has_leases, is_stopped: identity::is_stopped };
    let command = CommandSpec { argv: exec.command, session: session.to_string() };
    let (spare, otherwise) = (exec.meanwhile.unwrap_or_default(), exec.otherwise.unwrap_or_default());
    let report = Report::new(asks_at, exec.success_codes);
    let task = Task { command, messages, settings, spare, otherwise, report, detector, notify };
    run::run(handle.as_mut(), task, start_with, conclude, signals, &mut StandardStream::stderr())
}

/// What a request for one run in a period asks for.
fn once_per(period: Period) -> Result<OncePer, Failure> {
    let (period, calendar) = match period {
        Period::Within(length) => (length, None),
        Period::Calendar(unit) => (unit.upper_bound(), Some(calendar::now(unit)?)),
    };
    Ok(OncePer { period, calendar })
}

/// The variables that tell of the grant. `is_whole` says that the request is for one whole
/// resource.
fn of_grant(grant: &Grant, is_whole: bool) -> Vec<(OsString, OsString)> {
    let highest = grant.tokens.iter().max().copied().unwrap_or_default();
    let slots: Vec<_> = grant.slots.iter().map(u32::to_string).collect();
    let last = is_whole.then(|| grant.last.map_or_else(|| "none".to_owned(), |last| last.to_string()));
    let of_this_request = [(context::SLOT, slots.join("\n")), (context::LAST, last.unwrap_or_default())];
    // A value from outside would tell of another request.
    let is_due = |(name, value): &(&str, String)| !value.is_empty() || std::env::var_os(name).is_some();
    let variables = of_this_request.into_iter().filter(is_due);
    let token = (context::TOKEN, highest.to_string());
    variables.chain([token]).map(|(name, value)| (name.into(), value.into())).collect()
}

/// The variables for the command that tell of the request, as far as they are known before the
/// grant.
fn inherited(
    session: SessionId,
    (ancestors, held_above): (&[SessionId], &[Resource]),
    exec: &Exec,
) -> Vec<(OsString, OsString)> {
    let lines = |texts: Vec<&str>| texts.join("\n");
    let mut variables = vec![
        (context::SESSION.into(), session.to_string().into()),
        (context::RESOURCE.into(), lines(exec.claims.iter().map(|claim| claim.resource.as_str()).collect()).into()),
        (context::MODE.into(), lines(exec.claims.iter().map(|claim| claim.mode.as_str()).collect()).into()),
    ];
    variables.extend(exec.ttl.map(|ttl| (context::TTL.into(), words::duration(ttl).into())));
    if exec.verbose {
        variables.push((context::VERBOSE.into(), "1".into()));
    }
    // A stale variable from outside would make strangers the ancestors of this session's
    // descendants.
    if !ancestors.is_empty() || std::env::var_os(context::ANCESTORS).is_some() {
        let ids: Vec<_> = ancestors.iter().map(SessionId::to_string).collect();
        variables.push((context::ANCESTORS.into(), ids.join(",").into()));
        variables.push((context::HELD.into(), context::as_held(held_above).into()));
    }
    variables
}
