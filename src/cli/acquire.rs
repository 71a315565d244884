//! `rlock acquire`: acquires a lock that outlives this process, and prints the variables by which
//! other rlocks find the lock.

use std::ffi::OsString;
use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgMatches, Command};
use rustix::process::Pid;

use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use crate::environment::context::Named;
use crate::environment::request::{self, Prepared};
use crate::environment::room::{self, Limits};
use crate::environment::variables::{self, Form, Held};
use crate::environment::{agent, paths};
use rlock_arguments::help::{advanced, notes};
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::{given, id, option, switch};
use rlock_arguments::request::{RequestOptions, read_request, run_options};
use rlock_arguments::values::LostSignal;
use rlock_arguments::{claims, values};
use rlock_model::past::{Ending, Entry, Event, HISTORY_MAX};
use rlock_model::request::{Owner, Request, resources};
use rlock_show::failure::Failure;
use rlock_store::{Grant, Store};
use rlock_supervise::keeper::process::{self, Side};
use rlock_supervise::keeper::{self, Kept, announcement};
use rlock_supervise::owner::Watched;
use rlock_supervise::run;
use rlock_sys::exit;
use rlock_sys::streams::StandardStream;
use rlock_words::reason;

pub(super) const ACQUIRE: Subcommand = Subcommand {
    name: "acquire",
    page: "rlock-acquire",
    section: 1,
    about: "Acquire a lock that lasts for a time, or as long as a process",
    texts: &[include_str!("pages/acquire.txt")],
    define,
    read,
    has_numbers: false,
    runs_command: false,
};

/// `rlock acquire`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Acquire {
    /// The request for the lock.
    pub(super) request: RequestOptions,
    /// When the hold ends.
    pub(super) until: Until,
    /// Print commands for a shell instead of lines for a file.
    pub(super) export: bool,
}

/// When a hold of `rlock acquire` ends, unless it is released or broken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The hold is kept for this long from its grant.
    For(Duration),
    /// The hold ends with a process.
    End {
        /// The process; `None` for that of the coding agent above.
        pid: Option<Pid>,
        /// The signal that tells the process that the hold is lost.
        signal: LostSignal,
        /// The hold ends after this time from its grant, too. Then the store keeps it, and the
        /// process is never told.
        limit: Option<Duration>,
    },
}

/// The definition of its words.
fn define(command: Command) -> Command {
    command
        .override_usage(
            "rlock acquire CLAIM... --for DUR [OPTIONS]\n       \
             rlock acquire CLAIM... --pid PID|agent [--for DUR] [OPTIONS]\n       \
             CLAIM: --write KEY | --read KEY | --prewrite KEY | --slot KEY=N |\n              \
             --path P | --path-read P |\n              \
             --range-write KEY INTERVAL | --range-read KEY INTERVAL |\n              \
             --range-prewrite KEY INTERVAL\n       \
             One CLAIM may be a bare KEY, which means --write KEY.",
        )
        .after_help(notes(
            "Prints the variables by which 'rlock exec', 'rlock renew' and 'rlock release' find the lock.\n\
             Exit: 0 locked; the other codes are those of rlock exec. More: rlock man acquire | man -l -",
            &[
                "lock=$(rlock acquire deploy --for 30m --export) || exit; eval \"$lock\"",
                "rlock acquire deploy --pid $$",
            ],
        ))
        .args(claims::claims())
        .arg(option(id::FOR, "DUR", values::hold, "Hold the lock for DUR, at most 7 days, or for ever"))
        .arg(option(id::PID, "PID", values::keeper, "Hold it until the process PID, or 'agent', ends"))
        .arg(advanced(
            option(id::LOST_SIGNAL, "SIG", values::lost_signal, "Send PID this signal when the lock is lost, or none")
                .default_value("TERM")
                .conflicts_with(id::FOR),
        ))
        .arg(switch(id::EXPORT, "Print commands for eval; on failure (exit N)"))
        .args(run_options().filter(|arg| OF_ACQUIRE.contains(&arg.get_id().as_str())))
        .mut_arg(id::VERBOSE, |arg| arg.help("Say what is done"))
        .mut_arg(id::JOB, |arg| arg.help("Name of the job in the store [default: derived from user and words]"))
        .mut_arg(id::GRACE, |arg| arg.help("Time before the end of a lease at which PID is told [default: 5s]"))
}

/// The options of `exec` that `acquire` has, too. The others are about a command.
const OF_ACQUIRE: [&str; 16] = [
    id::NO_WAIT,
    id::WAIT,
    id::OWNER,
    id::REASON,
    id::CONFLICT_EXIT_CODE,
    id::TTL,
    id::GRACE,
    id::CONNECT_TIMEOUT,
    id::REPLICAS,
    id::DEADLOCK_TIMEOUT,
    id::QUIET,
    id::VERBOSE,
    id::MAX_WAITING,
    id::JOB,
    id::HISTORY,
    id::NO_DEFAULT_STORE,
];

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let claims = claims::of_acquire(&matches, paths::resolved)?;
    let until = match (matches.remove_one(id::FOR), matches.remove_one(id::PID)) {
        (Some(length), None) => Until::For(length),
        (limit, Some(pid)) => Until::End { pid, signal: given(&mut matches, id::LOST_SIGNAL), limit },
        (None, None) => {
            let text = "no end: write --for DUR for a lock that ends by itself, or --pid PID for one with a process";
            return Err(Mistake::plain(text));
        }
    };
    Ok(Invocation::Acquire(Acquire {
        until,
        export: matches.get_flag(id::EXPORT),
        request: read_request(claims, &mut matches)?,
    }))
}

/// Acquires the lock and returns the exit code. `words` is the command line.
pub(super) fn run(acquire: &Acquire, words: &[OsString]) -> anyhow::Result<u8> {
    match acquire.until {
        Until::For(length) => lock(acquire, words, Some(length), None, None, print).map(|(code, _)| code),
        Until::End { pid, signal: LostSignal(signal), limit } => {
            let pid = pid.map_or_else(agent::process, Ok)?;
            let signal = signal.filter(|_| limit.is_none());
            keep(acquire, words, pid, signal, limit)
        }
    }
}

/// Leaves a keeper behind that holds the lock until the process ends.
fn keep(
    acquire: &Acquire,
    words: &[OsString],
    pid: Pid,
    signal: Option<i32>,
    limit: Option<Duration>,
) -> anyhow::Result<u8> {
    let inherited = process::inherited();
    let process = Watched::open(pid, signal)?;
    let keeper = match process::split(inherited).context("cannot start the keeper")? {
        Side::Caller(caller) => return caller.wait(),
        Side::Keeper(keeper) => keeper,
    };
    announcement::expect().context("cannot start the keeper")?;
    let mut is_detached = false;
    let detach = |text: &str| {
        let failed = |error: io::Error| {
            let text = format!("cannot leave the keeper behind, so the lock is released again: {}", reason(&error));
            Failure::new(exit::FAILURE, text)
        };
        keeper.outlive_caller().map_err(failed)?;
        print(text)?;
        keeper.detach().map_err(failed)?;
        is_detached = true;
        Ok(())
    };
    // The keeper asks this store how its grant ended if no release has announced the end, or
    // whether a hold with a limit has ended. It is opened now, because the keeper gives up the
    // descriptors and the folder that the user's words may mean.
    let mut store = Named::find(&acquire.request.store)?.open(acquire.request.connect_timeout)?;
    let keeper: Option<(&Watched, &mut dyn Store)> = match limit {
        None => Some((&process, store.as_mut())),
        Some(_) => None,
    };
    let (code, request) = lock(acquire, words, limit, process.identity(), keeper, detach)?;
    if is_detached && limit.is_some() {
        let names: Vec<_> = resources(&request.claims).into_iter().cloned().collect();
        keeper::watch(store.as_mut(), &process, request.session, &names).context("cannot wait")?;
    }
    Ok(code)
}

/// Whether the history shows that the grant of a request ended by a release, such as one on another
/// machine, which cannot announce it. A history that shows nothing proves nothing.
fn was_released(store: &mut dyn Store, request: &Request, grant: &Grant) -> bool {
    let name = &request.claims[0].resource;
    let own = request.claims.iter().zip(&grant.tokens).filter(|(claim, _)| claim.resource == *name);
    let token = own.map(|(_, token)| *token).max();
    let is_own = |entry: &&Entry| {
        entry.token == token && entry.process.pid == request.process.pid && entry.process.host == request.process.host
    };
    let remembered = store.history(std::slice::from_ref(name), HISTORY_MAX).unwrap_or_default();
    let entry = remembered.iter().flat_map(|found| &found.entries).rfind(is_own);
    entry.is_some_and(|entry| entry.event == Event::Ended(Ending::Kept))
}

/// Requests the lock, and gives the text to print to `hand_over` once the lock is granted. Returns
/// the exit code and the request. With `keep_for`, the lock is a kept hold. `owner` is the process
/// with which it ends. With `keeper`, this process keeps the lock for that process, and asks the
/// store how a grant that is gone has ended.
fn lock(
    acquire: &Acquire,
    words: &[OsString],
    keep_for: Option<Duration>,
    owner: Option<Owner>,
    keeper: Option<(&Watched, &mut dyn Store)>,
    hand_over: impl FnOnce(&str) -> Result<(), Failure>,
) -> anyhow::Result<(u8, Request)> {
    let prepared = request::prepare(&acquire.request, words)?;
    let Prepared { named, store, signals, mut request, options, mut settings, detector, messages } = prepared;
    request.job.is_acquire = true;
    request.job.keep_for = keep_for;
    request.process.lasts_for = owner;
    if keep_for.is_some() {
        // Nobody is told before the end of a kept hold.
        settings.grace = Duration::ZERO;
    }
    let form = if acquire.export { Form::Shell } else { Form::File };
    let place = named.exported(store.as_ref(), form);
    let held = Held { claims: &request.claims, tokens: &[], slots: &[] };
    let lines = variables::of(form, &request.chain(), Some(held), &request.job.held_above, place.clone());
    let added = variables::environment(lines);
    if let Some(complaint) = room::complaint(&[], std::env::vars_os(), &added, Limits::of_this_process()) {
        return Err(Failure::usage(format!("the names do not fit into an environment: {complaint}")).into());
    }
    let handle = store.acquire(request.clone(), options).map_err(Failure::from)?;
    // The handle is not dropped, for the reason that `exec` has.
    let mut handle = ManuallyDrop::new(handle);
    let hand_over = |grant: &Grant| {
        let held = Held { claims: &request.claims, tokens: &grant.tokens, slots: &grant.slots };
        let lines = variables::of(form, &request.chain(), Some(held), &request.job.held_above, place);
        hand_over(&variables::text(form, &lines))
    };
    let kept = keeper.map(|(process, store)| {
        let ended = |grant: &Grant| announcement::is_there(request.session) || was_released(store, &request, grant);
        Kept { process, was_released: Box::new(ended) }
    });
    let code = run::acquire(
        handle.as_mut(),
        (messages, settings, detector),
        hand_over,
        kept,
        signals,
        &mut StandardStream::stderr(),
    )?;
    Ok((code, request))
}

fn print(text: &str) -> Result<(), Failure> {
    stdout::print_whole(text.as_bytes()).map_err(|error| {
        let text = format!("can't write to standard output, so the lock is released again: {}", reason(&error));
        Failure::new(exit::FAILURE, text)
    })
}
