//! `rlock exec` and `rlock range-*`: acquires the lock, runs the command, and releases the lock.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;

use anyhow::Context;

use super::room::{self, Limits};
use super::{caller, ci, context};
use crate::cli::invocation::Exec;
use crate::clock::Boottime;
use crate::failure::Failure;
use crate::identity;
use crate::lock::lease::Lease;
use crate::lock::request::{Job, OncePer, Request, SessionId};
use crate::messages::Messages;
use crate::store::{AcquireOptions, Store};
use crate::supervise::machine::{Settings, Skip};
use crate::supervise::report::Report;
use crate::supervise::run::{self, CommandSpec, Task};
use crate::supervise::signals::Signals;
use crate::supervise::terminal::group_for_command;

/// Runs the command under its claims and returns the exit code.
pub(super) fn run(exec: Exec) -> anyhow::Result<u8> {
    // Opening a store reads files. While their file system does not answer, signals end rlock as
    // they end any program.
    let store = context::open_store_within(&exec.store, exec.connect_timeout)?;
    if !exec.quiet {
        context::warn_of_password(&exec.store);
    }
    // The signals are installed before the request is made, so that no signal that cancels it is
    // lost.
    let signals = Signals::install().context("can't receive signals")?;
    let ancestors = context::sessions_above()?;
    let session = identity::new_session().context("can't get random numbers")?;
    let mut variables = inherited(store.as_ref(), session, &ancestors, &exec)?;
    if let Some(complaint) = room::complaint(&exec.command, std::env::vars_os(), &variables, Limits::of_this_process())
    {
        return Err(Failure::usage(format!("the names do not fit into the command's environment: {complaint}")).into());
    }
    let has_leases = store.leases();
    let grace = context::grace(exec.ttl, exec.grace, exec.grace_yields, has_leases)?;
    let no_wait = exec.wait.is_some_and(|wait| wait.is_zero()) || exec.max_waiting == Some(0);
    let process = caller::process(&exec.whose, ci::run().as_ref(), &exec.command)?;
    let request = Request {
        session,
        ancestors: ancestors.clone(),
        claims: exec.claims.clone(),
        wait: !no_wait,
        terms: has_leases.then(|| Lease::new(exec.ttl).terms()),
        job: Job {
            name: caller::job(exec.job.clone(), &process.user, &exec.command),
            once_per: exec.once_per.map(|period| OncePer { period, same_job: exec.job.is_some() }),
            skips: exec.skip_ok.is_some(),
            max_waiting: exec.max_waiting,
            hold_at_least: exec.hold_at_least,
            ..Job::default()
        },
        process,
    };
    let mut related = ancestors;
    related.push(session);
    let handle = store.acquire(request, AcquireOptions { replicas: exec.replicas }).map_err(Failure::from)?;
    // The handle is not dropped: rlock ends when this function returns, and the kernel frees the
    // table's map and all other memory faster.
    let mut handle = ManuallyDrop::new(handle);
    let settings = Settings {
        group: group_for_command(),
        grace,
        wait: exec.wait,
        busy_code: exec.conflict_exit_code,
        notice: !exec.quiet && io::stderr().is_terminal(),
        quiet: exec.quiet,
        verbose: exec.verbose,
        max_runtime: exec.max_runtime,
        skip: exec.skip_ok.map_or(Skip::Never, |limit| limit.map_or(Skip::Always, Skip::For)),
        has_spare: exec.meanwhile.is_some(),
        has_else: exec.otherwise.is_some(),
    };
    let start_with = move |tokens: &[u64]| {
        let highest = tokens.iter().max().copied().unwrap_or_default();
        variables.push((context::TOKEN.into(), highest.to_string().into()));
        variables
    };
    let messages = Messages { claims: exec.claims, related, has_leases };
    let command = CommandSpec { argv: exec.command, session: session.to_string() };
    let (spare, otherwise) = (exec.meanwhile.unwrap_or_default(), exec.otherwise.unwrap_or_default());
    let report = Report::new(Boottime::now(), exec.success_codes);
    let task = Task { command, messages, settings, spare, otherwise, report };
    run::run(handle.as_mut(), task, start_with, signals, &mut io::stderr())
}

/// The variables for the command, except for the token, which is not known yet.
fn inherited(
    store: &dyn Store,
    session: SessionId,
    ancestors: &[SessionId],
    exec: &Exec,
) -> Result<Vec<(OsString, OsString)>, Failure> {
    let lines = |texts: Vec<&str>| texts.join("\n");
    let mut variables = vec![
        (context::SESSION.into(), session.to_string().into()),
        (context::RESOURCE.into(), lines(exec.claims.iter().map(|claim| claim.resource.as_str()).collect()).into()),
        (context::MODE.into(), lines(exec.claims.iter().map(|claim| claim.mode.as_str()).collect()).into()),
    ];
    variables.extend(context::exported(&exec.store, store)?);
    // A stale variable from outside would make strangers the ancestors of this session's
    // descendants.
    if !ancestors.is_empty() || std::env::var_os(context::ANCESTORS).is_some() {
        let ids: Vec<_> = ancestors.iter().map(SessionId::to_string).collect();
        variables.push((context::ANCESTORS.into(), ids.join(",").into()));
    }
    Ok(variables)
}
