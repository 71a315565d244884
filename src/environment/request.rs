//! Prepares a request of `exec` or `acquire`: opens the store, and joins what the options, the
//! environment and the configuration file say.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use super::context::{self, Named};
use super::defaults::Chosen;
use super::names::SESSION;
use super::{acquired, agent, caller, ci, paths, say};
use rlock_arguments::claims;
use rlock_arguments::request::RequestOptions;
use rlock_model::deadlock::Detector;
use rlock_model::request::{Claim, Job, Request};
use rlock_show::failure::Failure;
use rlock_show::messages::Messages;
use rlock_store::{AcquireOptions, Handle, Store, identity};
use rlock_supervise::above;
use rlock_supervise::machine::{Notice, Settings, Skip};
use rlock_supervise::run::{Anew, MOVES_MAX, Resolve};
use rlock_supervise::signals::Signals;
use rlock_supervise::terminal::group_for_command;
use rlock_sys::clock::StoreTime;
use rlock_sys::exit;

/// A request that nobody has made yet, and what its supervision needs.
pub(crate) struct Prepared {
    pub(crate) named: Named,
    pub(crate) store: Box<dyn Store>,
    pub(crate) signals: Signals,
    pub(crate) request: Request,
    pub(crate) options: AcquireOptions,
    pub(crate) settings: Settings,
    pub(crate) detector: Option<Detector>,
    pub(crate) messages: Messages,
}

/// Prepares the request of a process with this command.
pub(crate) fn prepare(options: &RequestOptions, command: &[OsString]) -> anyhow::Result<Prepared> {
    // Opening a store reads files. While their file system does not answer, signals end rlock as
    // they end any program.
    let named = Named::find_for_request(&options.store, options.no_default_store, options.quiet)?;
    let mut store = named.open(options.connect_timeout)?;
    if !options.quiet {
        context::warn_of_password(&options.store);
        // People list folders so, and the command would run without the lock on the second one.
        let beside = options.paths.as_deref().and_then(claims::key_beside_paths);
        if let Some((key, id, words)) = beside.filter(|(key, ..)| Path::new(key.as_str()).exists()) {
            say(&format!("warning: '{key}' beside --{id} is a KEY and not a folder: write {words}"));
        }
    }
    // The signals are installed before the request is made, so that no signal that cancels it is
    // lost.
    let group = group_for_command();
    let signals = Signals::install(group).context("can't receive signals")?;
    let ancestors = context::sessions_above(store.as_mut())?;
    if !options.quiet && ancestors.len() < context::named_above()?.len() {
        let why = context::why_not_below()?;
        say(&format!("not nested: {why}, so the request waits like any other; start the daemon by 'env -u {SESSION}'"));
    }
    let session = identity::new_session().context("can't get random numbers")?;
    let held_above = if ancestors.is_empty() { Vec::new() } else { context::held_above()? };
    let wait = named.defaults.wait(options.waiting.wait, !ancestors.is_empty())?;
    // "`--max-waiting 0` is the same as `-n`", also at the gate.
    let wait = if options.max_waiting == Some(0) { Some(Duration::ZERO) } else { wait };
    let has_leases = store.leases();
    let Chosen { terms, grace, history } =
        named.defaults.choose(options.ttl, options.grace, options.history, has_leases)?;
    let (ci, agent) = (ci::run(), agent::caller());
    let verbose = context::verbose(options.verbose) && !options.quiet;
    let settings = Settings {
        group,
        grace,
        wait,
        conflict_exit_code: options.conflict_exit_code,
        notice: notice(options.quiet, verbose, agent.is_some(), ci.is_some() || ci::is_named()),
        quiet: options.quiet,
        verbose,
        sums_up: verbose || agent.is_some() && !options.quiet,
        max_runtime: None,
        skip: Skip::Never,
        has_spare: false,
        has_else: false,
        has_gate: false,
        deadlock_timeout: Some(options.deadlock_timeout).filter(|timeout| !timeout.is_zero()),
    };
    let names = options.claims.iter().map(|claim| &claim.resource).chain(&held_above).cloned();
    let detector = settings.deadlock_timeout.map(|_| Detector::new(session, wait, names));
    let process = caller::process(&options.whose, ci.as_ref(), agent.as_deref(), command);
    let related = ancestors.iter().copied().chain([session]).collect();
    let messages = Messages {
        claims: options.claims.clone(),
        related,
        has_leases,
        is_stopped: identity::is_stopped,
        is_above: above::is_above,
        owner_above: acquired::owner,
        is_beside: above::is_beside,
        runs: None,
        own: process.clone(),
        // Without an id, the name may be that of several sessions.
        agent: agent.filter(|agent| agent.contains(' ') && process.owner.as_ref() == Some(agent)),
        run: ci.and_then(|run| run.url).filter(|url| process.reason.as_ref() == Some(url)),
        now: StoreTime::of_machine,
    };
    let request = Request {
        session,
        ancestors,
        claims: options.claims.clone(),
        wait: !wait.is_some_and(|wait| wait.is_zero()),
        terms,
        job: Job {
            name: caller::job(options.job.clone(), &process.user, command),
            max_waiting: options.max_waiting,
            held_above,
            history,
            ..Job::default()
        },
        process,
    };
    let replicas = named.defaults.replicas(options.replicas, has_leases);
    let options = AcquireOptions { replicas, ..AcquireOptions::default() };
    Ok(Prepared { named, store, signals, request, options, settings, detector, messages })
}

/// Makes a request again that was granted and given back.
pub(crate) fn anew(named: Named, options: &RequestOptions, request: &Request, acquire: AcquireOptions) -> Anew {
    let (again, timeout) = (Request { wait: true, ..request.clone() }, options.connect_timeout);
    let ask = move |session, claims: &[Claim]| {
        let request = Request { session, claims: claims.to_vec(), ..again.clone() };
        Ok(Handle::new(named.open(timeout)?.sessions(false)?, request, acquire)?)
    };
    let resolve = options.paths.clone().map(|words| {
        let claims = move || {
            claims::again(&words, paths::resolved).map_err(|mistake| Failure::new(exit::REFUSED, mistake.on_line()))
        };
        Box::new(claims) as Resolve
    });
    Anew { ask: Box::new(ask), resolve, moves_left: MOVES_MAX }
}

/// How a long wait is shown. A line that is drawn again and again is for people at a terminal that
/// can erase it.
fn notice(quiet: bool, verbose: bool, has_agent: bool, is_in_ci: bool) -> Notice {
    let (is_terminal, is_dumb) = (io::stderr().is_terminal(), env::var_os("TERM").is_some_and(|term| term == "dumb"));
    match () {
        () if quiet => Notice::Never,
        () if has_agent || is_in_ci || is_terminal && is_dumb => Notice::Progress,
        () if is_terminal => Notice::Line,
        () if verbose => Notice::Log,
        () => Notice::Never,
    }
}
