//! `rlock exec` and `rlock range-*`: acquires the lock, runs the command, and releases the lock.

use std::mem::ManuallyDrop;
use std::time::Duration;

use anyhow::Context;

use super::calendar;
use super::context::{self, Named};
use super::nested::Cover;
use super::request::{self, Prepared};
use super::room::{self, Limits};
use super::status::StatusFile;
use super::variables::{self, Form, Held};
use crate::cli::invocation::{Exec, Period};
use crate::lock::request::{Claim, Job, OncePer, distinct};
use crate::show::failure::Failure;
use crate::store::identity;
use crate::store::{AcquireOptions, Grant};
use crate::supervise::machine::{Settings, Skip};
use crate::supervise::notify::NotifySocket;
use crate::supervise::report::{Outcome, Report};
use crate::supervise::run::{self, CommandSpec, Task};
use crate::system::clock::Boottime;
use crate::system::exit;
use crate::system::streams::StandardStream;
use crate::words;

/// Maximum time to connect to a server again while a grant is held and nobody renews it.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the command under its claims and returns the exit code.
pub(super) fn run(exec: Exec) -> anyhow::Result<u8> {
    let status = exec.status_file.as_deref().map(|path| StatusFile::prepare(path, &exec.request.claims)).transpose()?;
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
    let prepared = request::prepare(&exec.request, &exec.command)?;
    let Prepared { named, mut store, signals, mut request, options, settings, detector, messages } = prepared;
    let (chain, session) = (request.chain(), request.session);
    let notify = exec.until_ready.then(|| NotifySocket::open(&session.to_string())).transpose()?;
    let place = named.exported(store.as_ref(), Form::Environment);
    let (claims, held_above) = (exec.request.claims, request.job.held_above.clone());
    let asked = [
        (context::TTL, exec.request.ttl.map(words::duration)),
        (context::VERBOSE, exec.request.verbose.then(|| "1".to_owned())),
    ];
    let of_notify = notify.as_ref().map(NotifySocket::variable);
    // The variables for the command; before the grant, those that are known by then.
    let variables = move |grant: Option<&Grant>| {
        let (tokens, slots) = grant.map_or((&[][..], &[][..]), |grant| (&grant.tokens, &grant.slots));
        let held = Held { claims: &claims, tokens, slots };
        let variables = variables::of(Form::Environment, &chain, Some(held), &held_above, place.clone());
        let last = (context::LAST, grant.and_then(|grant| last(grant, &claims)));
        let options = asked.clone().into_iter().filter(|(_, value)| value.is_some());
        let variables = variables.into_iter().chain(options).chain(Some(last).filter(variables::is_due));
        [variables::environment(variables), of_notify.clone().into_iter().collect()].concat()
    };
    let added = variables(None);
    if let Some(complaint) = room::complaint(&exec.command, std::env::vars_os(), &added, Limits::of_this_process()) {
        return Err(Failure::usage(format!("the names do not fit into the command's environment: {complaint}")).into());
    }
    let cover = exec.nested.then(|| Cover::find(store.as_mut(), &request.ancestors, &request.claims)).transpose()?;
    request.job = Job {
        is_named: exec.request.job.is_some(),
        once_per: exec.once_per.map(once_per).transpose()?,
        skips: exec.skip_ok.is_some(),
        supersedes: exec.supersede,
        hold_at_least: exec.hold_at_least,
        ..request.job
    };
    let mut asks_at = Boottime::now();
    if !exec.splay.is_zero() {
        asks_at = asks_at + identity::random_part(exec.splay).context("can't get random numbers")?;
    }
    let options = AcquireOptions { from: asks_at, ..options };
    let handle = store.acquire(request, options).map_err(Failure::from)?;
    // The handle is not dropped: rlock ends when this function returns, and the kernel frees the
    // table's map and all other memory faster.
    let mut handle = ManuallyDrop::new(handle);
    let settings = Settings {
        max_runtime: exec.max_runtime,
        skip: exec.skip_ok.map_or(Skip::Never, |limit| limit.map_or(Skip::Always, Skip::For)),
        has_spare: exec.meanwhile.is_some(),
        has_else: exec.otherwise.is_some(),
        ..settings
    };
    let store_options = exec.request.store;
    let start_with = move |grant: &Grant| {
        let open = || Named::find(&store_options)?.open(Some(LOOK_TIMEOUT));
        cover.map_or(Ok(()), |cover| cover.check(grant, open))?;
        Ok(variables(Some(grant)))
    };
    let conclude = |report: &Report, grant: Option<&Grant>| status.and_then(|status| status.write(report, grant));
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

/// How the last hold of the resource ended, if the request is for one whole resource.
fn last(grant: &Grant, claims: &[Claim]) -> Option<String> {
    let mut claims = distinct(claims);
    let is_whole = claims.next().is_some_and(|claim| claim.span.is_whole()) && claims.next().is_none();
    is_whole.then(|| grant.last.map_or_else(|| "none".to_owned(), |last| last.to_string()))
}
