//! `rlock acquire`: acquires a lock that outlives this process, and prints the variables by which
//! other rlocks find the lock.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgMatches, Args, Command};
use rustix::process::Pid;

use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use crate::environment::context::Named;
use crate::environment::request::{self, Prepared};
use crate::environment::room::{self, Limits};
use crate::environment::variables::{self, Form, Held};
use crate::environment::{agent, paths, places};
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::request::RequestOptions;
use rlock_arguments::values::LostSignal;
use rlock_arguments::{claims, options, values};
use rlock_model::past::{Ending, Entry, Event, HISTORY_MAX};
use rlock_model::request::{Owner, Request, resources};
use rlock_show::failure::Failure;
use rlock_store::{AcquireOptions, Grant, Handle, Store};
use rlock_supervise::keeper::process::{self, Side};
use rlock_supervise::keeper::{self, Kept, announcement};
use rlock_supervise::owner::Watched;
use rlock_supervise::place::KeptPlace;
use rlock_supervise::run::{self, Granted};
use rlock_sys::exit;
use rlock_sys::streams::StandardStream;
use rlock_words::{duration, reason};

pub(super) const ACQUIRE: Subcommand = Subcommand {
    name: "acquire",
    page: "rlock-acquire",
    section: 1,
    about: "Acquire a lock that lasts for a time, or as long as a process",
    texts: &[include_str!("pages/acquire.txt")],
    define,
    read,
    has_numbers: false,
};

/// `rlock acquire`. It has a length, a process, or both.
#[derive(Args, Clone, Debug, PartialEq)]
#[group(skip)]
pub(crate) struct Acquire {
    /// Hold the lock for DUR, at most 7 days, or for ever.
    // With a process, the store keeps the hold, and the process is never told of its end.
    #[arg(long = "for", value_name = "DUR", value_parser = values::hold)]
    pub(super) length: Option<Duration>,
    /// Hold it until the process PID, or 'agent', ends.
    #[arg(long, value_name = "PID", value_parser = values::keeper)]
    pub(super) pid: Option<values::Owner>,
    /// Send PID this signal when the lock is lost, or none.
    #[arg(long, value_name = "SIG", value_parser = values::lost_signal, default_value = "TERM")]
    #[arg(conflicts_with = "length", hide_short_help = true)]
    pub(super) lost_signal: LostSignal,
    /// Print commands for eval; on failure (exit N).
    #[arg(long)]
    pub(super) export: bool,
    #[command(flatten)]
    pub(super) request: RequestOptions,
}

/// The definition of its words.
fn define(command: Command) -> Command {
    Acquire::augment_args(command.args(claims::claims()))
        .mut_arg("verbose", |arg| arg.help("Say what is done"))
        .mut_arg("job", |arg| arg.help("Name of the job in the store [default: derived from user and words]"))
        .mut_arg("grace", |arg| arg.help("Time before the end of a lease at which PID is told [default: 5s]"))
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
             Exit: 0 locked; the other codes are those of rlock exec. More: rlock man acquire",
            &[
                "lock=$(rlock acquire deploy --for 30m --export) || exit; eval \"$lock\"",
                "rlock acquire deploy --pid $$",
            ],
        ))
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let claims = claims::of_acquire(&matches, paths::resolved)?;
    let words = claims::has_paths(&matches).then(|| Box::new(matches.clone()));
    let acquire: Acquire = options::read(&mut matches);
    if acquire.length.is_none() && acquire.pid.is_none() {
        let text = "how long? write --for DUR, or --pid PID for as long as a process";
        return Err(Mistake::plain(text));
    }
    let request = RequestOptions { paths: words, ..acquire.request.with(claims)? };
    Ok(Invocation::Acquire(Acquire { request, ..acquire }))
}

/// Acquires the lock and returns the exit code. `words` is the command line.
pub(super) fn run(acquire: &Acquire, words: &[OsString]) -> anyhow::Result<u8> {
    let limit = acquire.length;
    let pid = match acquire.pid {
        Some(values::Owner::Pid(pid)) => pid,
        Some(_) => agent::process("write --for DUR")?,
        None => return lock(acquire, words, limit, None, None, print).map(|(code, _)| code),
    };
    let LostSignal(signal) = acquire.lost_signal;
    keep(acquire, words, pid, signal.filter(|_| limit.is_none()), limit)
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
    let is_own = |entry: &&Entry| {
        let has_token = entry.token.is_some_and(|token| grant.tokens.contains(&token));
        has_token && entry.process.pid == request.process.pid && entry.process.host == request.process.host
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
    let Prepared { named, mut store, signals, mut request, options, mut settings, detector, messages } = prepared;
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
    let name = acquire.request.place.as_ref();
    let kept_place = name.map(|name| places::take(store.as_mut(), name, &request)).transpose()?;
    let options = AcquireOptions { returns: kept_place.as_ref().and_then(KeptPlace::returns), ..options };
    let sessions = store.sessions(false).map_err(Failure::from)?;
    let handle = Handle::new(sessions, request.clone(), options).map_err(Failure::from)?;
    // The handle is not dropped, for the reason that `exec` has.
    let mut handle = ManuallyDrop::new(handle);
    settings.has_gate = acquire.request.paths.is_some();
    let anew = request::anew(named, &acquire.request, &request, options);
    let (session, names) = (Cell::new(request.session), messages.names());
    let hand_over = |Granted { session: own, claims, grant }: Granted<'_>| {
        session.set(own);
        let held = Held { claims, tokens: &grant.tokens, slots: &grant.slots };
        let chain = [&[own], &request.ancestors[..]].concat();
        let lines = variables::of(form, &chain, Some(held), &request.job.held_above, place);
        // The calls of an agent find the lock by its KEY and need no variables.
        hand_over(&match (acquire.pid, owner) {
            (Some(values::Owner::Agent), Some(Owner { pid, .. })) if !acquire.export => {
                let limit = acquire.length.map(|length| format!(", at most for {}", duration(length)));
                format!("holds {names} until process {pid} ends{}; session {own}\n", limit.unwrap_or_default())
            }
            _ => variables::text(form, &lines),
        })
    };
    let kept = keeper.map(|(process, store)| {
        let ended = |grant: &Grant| announcement::is_there(session.get()) || was_released(store, &request, grant);
        Kept { process, was_released: Box::new(ended) }
    });
    let code = run::acquire(
        &mut handle,
        (messages, settings, detector, anew),
        hand_over,
        kept,
        kept_place,
        signals,
        &mut StandardStream::stderr(),
    )?;
    let session = session.get();
    Ok((code, Request { session, ..request }))
}

fn print(text: &str) -> Result<(), Failure> {
    stdout::print_whole(text.as_bytes()).map_err(|error| {
        let text = format!("can't write to standard output, so the lock is released again: {}", reason(&error));
        Failure::new(exit::FAILURE, text)
    })
}
