//! `rlock exec` and `rlock range-*`: acquires the lock, runs the command, and releases the lock.

pub(super) mod calendar;
mod nested;
mod status;

use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, ValueHint};

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::context::Named;
use crate::environment::request::{self, Prepared};
use crate::environment::room::{self, Limits};
use crate::environment::variables::{self, Form, Held};
use crate::environment::{acquired, agent, names, paths, places, say};
use crate::stores;
use nested::Cover;
use rlock_arguments::claims::{self, RangeClaim};
use rlock_arguments::help::{advanced, notes};
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::heading::{BUSY, CRON, WAITING};
use rlock_arguments::options::{self, KEY, no_blank_before_value};
use rlock_arguments::request::RequestOptions;
use rlock_arguments::values::{self, Period, Wait};
use rlock_model::mode::Mode;
use rlock_model::past::Entry;
use rlock_model::request::{Claim, HISTORY, Job, OncePer, Request, distinct, resources};
use rlock_model::resource::Resource;
use rlock_show::failure::Failure;
use rlock_show::listing::program;
use rlock_show::messages;
use rlock_store::sessions::Sessions;
use rlock_store::{AcquireOptions, Grant, Handle, Store, identity};
use rlock_supervise::above;
use rlock_supervise::gate::Gate;
use rlock_supervise::gate::room::{Load, Needs};
use rlock_supervise::machine::{Settings, Skip};
use rlock_supervise::notify::NotifySocket;
use rlock_supervise::owner::Owner;
use rlock_supervise::place::KeptPlace;
use rlock_supervise::report::{Outcome, RunReport};
use rlock_supervise::run::{self, CommandSpec, Granted, Task};
use rlock_sys::clock::Boottime;
use rlock_sys::exit;
use rlock_sys::streams::StandardStream;
use rlock_words as words;
use status::StatusFile;

pub(super) const EXEC: Subcommand = Subcommand {
    name: "exec",
    page: "rlock-exec",
    section: 1,
    about: "Run a command while holding locks on whole resources",
    texts: &[include_str!("pages/exec.txt")],
    define,
    read,
    has_numbers: false,
};

pub(super) const RANGE_READ: Subcommand = Subcommand {
    name: "range-read",
    page: "rlock-range-read",
    section: 1,
    about: "Run a command while holding a read lock on an interval",
    texts: &[],
    define: define_range,
    read: |matches| read_range(Mode::Read, matches),
    has_numbers: true,
};

pub(super) const RANGE_PREWRITE: Subcommand = Subcommand {
    name: "range-prewrite",
    page: "rlock-range-prewrite",
    about: "Run a command while holding a prewrite lock on an interval",
    read: |matches| read_range(Mode::Prewrite, matches),
    ..RANGE_READ
};

pub(super) const RANGE_WRITE: Subcommand = Subcommand {
    name: "range-write",
    page: "rlock-range-write",
    about: "Run a command while holding a write lock on an interval",
    read: |matches| read_range(Mode::Write, matches),
    ..RANGE_READ
};

/// `rlock exec` and `rlock range-*`.
#[derive(Args, Clone, Debug, PartialEq)]
#[group(skip)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(super) request: RequestOptions,
    /// End the waiting requests of the same job, as busy: the newest one wins.
    #[arg(long, conflicts_with = "place", help_heading = WAITING, hide_short_help = true)]
    pub(super) supersede: bool,
    /// Start COMMAND only when so much memory is free, such as 4G.
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = WAITING, hide_short_help = true)]
    pub(super) min_memory: Option<u64>,
    /// Start COMMAND only when the load, or with N% the pressure, is at most N.
    #[arg(long, value_name = "N", value_parser = values::load, help_heading = WAITING, hide_short_help = true)]
    pub(super) max_load: Option<values::Load>,
    /// Run STRING by /bin/sh once: beside the wait, or after the release.
    #[arg(long, value_name = "STRING", value_parser = values::shell_command(), value_hint = ValueHint::CommandString)]
    #[arg(help_heading = WAITING, hide_short_help = true)]
    pub(super) meanwhile: Option<OsString>,
    /// Run STRING by /bin/sh when busy; RLOCK_BUSY says why, "$@" is COMMAND.
    #[arg(id = "else", long, conflicts_with = "conflict_exit_code")]
    #[arg(value_name = "STRING", value_parser = values::shell_command(), value_hint = ValueHint::CommandString)]
    #[arg(help_heading = BUSY, hide_short_help = true)]
    pub(super) otherwise: Option<OsString>,
    /// Exit with 0 when busy, for at most DUR in a row.
    #[arg(id = "skip-ok", long, conflicts_with_all = ["conflict_exit_code", "else"], help_heading = BUSY)]
    #[arg(value_name = "DUR", value_parser = values::optional(values::duration))]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = values::ABSENT)]
    pub(super) skip_ok: Option<values::Optional>,
    /// Exit with 0 if a run succeeded within DUR, in this hour, day, week, month, year, or ever.
    // The request then has one write claim on a whole resource.
    #[arg(long, value_name = "PERIOD", value_parser = values::once, conflicts_with = "place", help_heading = CRON)]
    pub(super) once_per: Option<Period>,
    /// Count these exit codes as a success, too.
    #[arg(long, value_name = "N,N...", value_parser = values::exit_code, value_delimiter = ',')]
    #[arg(action = ArgAction::Set, help_heading = CRON, hide_short_help = true)]
    pub(super) success_codes: Vec<u8>,
    /// Hold the lock for at least DUR, even if COMMAND ends sooner.
    #[arg(long, value_name = "DUR", value_parser = values::kept, help_heading = CRON, hide_short_help = true)]
    pub(super) hold_at_least: Option<Duration>,
    /// Stop COMMAND after DUR, and exit with 124.
    #[arg(long, value_name = "DUR", value_parser = values::runtime, help_heading = CRON, hide_short_help = true)]
    pub(super) max_runtime: Option<Duration>,
    /// Release the lock once COMMAND says READY=1, as sd_notify does.
    #[arg(long, help_heading = CRON, hide_short_help = true)]
    pub(super) until_ready: bool,
    /// End the wait or COMMAND when PID, 'parent' or 'agent' ends.
    #[arg(long, value_name = "PID", value_parser = values::owner, help_heading = CRON, hide_short_help = true)]
    pub(super) pid: Option<values::Owner>,
    /// Sleep for a random part of DUR before the request.
    #[arg(long, value_name = "DUR", value_parser = values::duration, help_heading = CRON, hide_short_help = true)]
    pub(super) splay: Option<Duration>,
    /// Remember this run and those before for DUR, up to 400d [default: 7d].
    #[arg(long, value_name = "DUR", value_parser = values::period, help_heading = CRON, hide_short_help = true)]
    pub(super) remember: Option<Duration>,
    /// Write to FILE how the request and COMMAND ended, as JSON.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = CRON, hide_short_help = true)]
    pub(super) status_file: Option<PathBuf>,
    /// Run nothing unless a lock around this command covers the claims.
    #[arg(long, help_heading = CRON, hide_short_help = true)]
    pub(super) nested: bool,
    /// Run STRING by /bin/sh instead of COMMAND.
    // The reader makes a command of it.
    #[arg(short = 'c', long, conflicts_with = "COMMAND")]
    #[arg(value_name = "STRING", value_parser = values::shell_command(), value_hint = ValueHint::CommandString)]
    shell: Option<OsString>,
    /// The command and its arguments, run as they are, without a shell.
    // Once it is read, it is never empty.
    #[arg(id = "COMMAND", last = true, action = ArgAction::Set, value_hint = ValueHint::CommandWithArguments)]
    pub(super) command: Vec<OsString>,
}

/// The definition of its words.
fn define(command: Command) -> Command {
    Exec::augment_args(command.args(claims::claims()))
        .override_usage(
            "rlock exec CLAIM... [OPTIONS] -- COMMAND [ARG]...\n       \
             rlock exec CLAIM... [OPTIONS] -c STRING\n       \
             CLAIM: --write KEY | --read KEY | --prewrite KEY | --slot KEY=N |\n              \
             --path P | --path-read P |\n              \
             --range-write KEY INTERVAL | --range-read KEY INTERVAL |\n              \
             --range-prewrite KEY INTERVAL\n       \
             One CLAIM may be a bare KEY, which means --write KEY.",
        )
        .after_help(notes(
            "Several CLAIMs are granted together or not at all. Exit: the command's own code; 75 busy, 64 usage, \
             65 refused, 69 no store, 76 lost, 124 too long, 126 or 127 not run. More: rlock man exec",
            &["rlock exec backup -- ./backup.sh", "rlock exec -n --read db --slot gpu=4 -- ./train.sh"],
        ))
        .mut_arg("job", with_counts)
}

/// The definition of its words.
fn define_range(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let interval = format!("rlock {name} -w 5m ledger '[2024,2025)' -- ./report.sh");
    let ends = format!("rlock {name} disk.img 0 4095 -- ./check-header.sh");
    let usage = format!(
        "rlock {name} KEY LO HI [OPTIONS] -- COMMAND [ARG]...\n       \
         rlock {name} KEY '[LO,HI)' [OPTIONS] -- COMMAND [ARG]..."
    );
    Exec::augment_args(RangeClaim::augment_args(command))
        .override_usage(usage)
        .after_help(notes(
            "LO and HI are exact: 1.2, -3e-9, 22/7, -inf or inf. LO HI has both its ends; '[LO,HI)', '(LO,HI]' \
             say which they have. Negative numbers need no quotes. Exit codes are those of rlock exec.",
            &[interval.as_str(), ends.as_str()],
        ))
        // It needs a claim on a whole KEY.
        .mut_arg("once_per", advanced)
        .mut_arg("job", with_counts)
}

/// Names the options that count by the job.
fn with_counts(job: Arg) -> Arg {
    job.help("Name of the job for --supersede, --skip-ok=DUR, --once-per [default: user and COMMAND]")
}

/// Whether `exec` has this option, `--name` or `-n`.
pub(super) fn has_option(option: &str) -> bool {
    Exec::augment_args(Command::new("exec")).get_arguments().any(|arg| {
        let is_short =
            arg.get_short().is_some_and(|short| option.strip_prefix('-') == Some(short.to_string().as_str()));
        is_short || option.strip_prefix("--").is_some_and(|name| arg.get_long() == Some(name))
    })
}

/// Reads the matched words.
fn read(matches: ArgMatches) -> Result<Invocation, Mistake> {
    no_blank_before_value(&matches, "skip-ok")?;
    let words = claims::has_paths(&matches).then(|| Box::new(matches.clone()));
    let mut read = read_with(claims::of_exec(&matches, paths::resolved)?, matches)?;
    if let Invocation::Exec(exec) = &mut read {
        exec.request.paths = words;
    }
    Ok(read)
}

/// Reads the matched words.
fn read_range(mode: Mode, matches: ArgMatches) -> Result<Invocation, Mistake> {
    no_blank_before_value(&matches, "skip-ok")?;
    let claim = options::read::<RangeClaim>(&mut matches.clone()).claim(mode)?;
    read_with(vec![claim], matches)
}

/// The part that `exec` and `range-*` share.
fn read_with(claims: Vec<Claim>, mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    // Words after `sh -c STRING` are arguments of the shell, and users would expect the same here.
    if matches.index_of(KEY) > matches.index_of("shell").or(Some(usize::MAX)) {
        let key: &Resource = matches.get_one(KEY).expect("KEY has a place among the words");
        return Err(Mistake::plain(format!(
            "KEY '{key}' stands after -c: put KEY before -c STRING, which takes no arguments"
        )));
    }
    let needs_limit = ["skip-ok", "else"].into_iter().find(|id| matches.contains_id(id));
    let mut exec: Exec = options::read(&mut matches);
    if let Some(string) = exec.shell.take() {
        exec.command = vec!["/bin/sh".into(), "-c".into(), string];
    }
    if exec.command.is_empty() {
        return Err(Mistake::plain("no command: write -- COMMAND, or -c STRING"));
    }
    let is_whole_write = matches!(&claims[..], [claim] if claim.mode == Mode::Write && claim.span.is_whole());
    if exec.once_per.is_some() && !is_whole_write {
        return Err(Mistake::plain(
            "--once-per needs one write claim on one whole KEY: give each job a KEY of its own",
        ));
    }
    if exec.supersede && exec.request.job.is_none() {
        return Err(Mistake::plain(
            "--supersede needs --job NAME: without it './deploy 4f2a' and './deploy 9c01' are two jobs, and neither ends the other",
        ));
    }
    exec.request = exec.request.with(claims)?;
    // The next request of the job with --supersede supersedes this one.
    let has_limit = matches!(exec.request.waiting.wait, Some(Wait::AtMost(_)));
    let may_be_busy = has_limit || exec.request.max_waiting.is_some() || exec.supersede;
    if let Some(option) = needs_limit.filter(|_| !may_be_busy) {
        return Err(Mistake::plain(format!(
            "--{option} needs -n, -w DUR, --max-waiting N or --supersede: without one of them, the request waits for ever"
        )));
    }
    Ok(Invocation::Exec(Box::new(exec)))
}

/// Maximum time to connect to a server again while a grant is held and nobody renews it.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the command under its claims and returns the exit code.
pub(super) fn run(exec: Exec) -> anyhow::Result<u8> {
    let status = exec.status_file.as_deref().map(|path| StatusFile::prepare(path, &exec.request.claims)).transpose()?;
    let result = supervise(exec, status.as_ref());
    if let (Some(status), Err(error)) = (&status, &result)
        && let Some(outcome) = error.downcast_ref().and_then(outcome_of)
        && let Some(warning) = status.write(&RunReport::failed(outcome, Boottime::now()), None)
    {
        say(&format!("warning: {warning}"));
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
    // The process may end at any moment, so it is found before anything else.
    let named = exec.pid.map(|pid| match pid {
        values::Owner::Pid(pid) => Ok(Some(pid)),
        values::Owner::Parent => Ok(None),
        values::Owner::Agent => agent::process("write --pid parent").map(Some),
    });
    let owner = named.map(|pid| pid.and_then(Owner::open)).transpose()?;
    let prepared = request::prepare(&exec.request, &exec.command)?;
    let Prepared { named, mut store, signals, mut request, options, settings, detector, mut messages } = prepared;
    if exec.nested {
        run_below_lasting(store.as_mut(), &mut request)?;
        messages.related = request.chain().into_iter().rev().collect();
    }
    if !request.ancestors.is_empty() && !exec.request.quiet && above::is_job_of_at() {
        warn_of_at(store.as_mut(), &request);
    }
    let ancestors = request.ancestors.clone();
    let notify = exec.until_ready.then(|| NotifySocket::open(&request.session.to_string())).transpose()?;
    let place = named.exported(store.as_ref(), Form::Environment);
    let held_above = request.job.held_above.clone();
    let asked = [
        (names::TTL, exec.request.ttl.map(words::duration)),
        (names::VERBOSE, exec.request.verbose.then(|| "1".to_owned())),
    ];
    let of_notify = notify.as_ref().map(NotifySocket::variable);
    // The variables for the command; before the grant, those that are known by then.
    let variables = move |session, claims: &[Claim], grant: Option<&Grant>| {
        let chain = [&[session], &ancestors[..]].concat();
        let (tokens, slots) = grant.map_or((&[][..], &[][..]), |grant| (&grant.tokens, &grant.slots));
        let held = Held { claims, tokens, slots };
        let variables = variables::of(Form::Environment, &chain, Some(held), &held_above, place.clone());
        let last = (names::LAST, grant.and_then(|grant| last(grant, claims)));
        let options = asked.clone().into_iter().filter(|(_, value)| value.is_some());
        let variables = variables.into_iter().chain(options).chain(Some(last).filter(variables::is_due));
        [variables::environment(variables), of_notify.clone().into_iter().collect()].concat()
    };
    let added = variables(request.session, &request.claims, None);
    if let Some(complaint) = room::complaint(&exec.command, std::env::vars_os(), &added, Limits::of_this_process()) {
        return Err(Failure::usage(format!("the names do not fit into the command's environment: {complaint}")).into());
    }
    let load = exec.max_load.map(|load| match load {
        values::Load::Average(limit) => Load::Average(limit),
        values::Load::Pressure(limit) => Load::Pressure(limit),
    });
    let needs = Needs { memory: exec.min_memory, load };
    let cover = exec.nested.then(|| Cover::find(store.as_mut(), &request.ancestors, &request.claims)).transpose()?;
    request.job = Job {
        is_named: exec.request.job.is_some(),
        once_per: exec.once_per.map(once_per).transpose()?,
        skips: exec.skip_ok.is_some(),
        supersedes: exec.supersede,
        hold_at_least: exec.hold_at_least,
        remember: exec.remember,
        ..request.job
    };
    let command = CommandSpec { argv: exec.command, session: request.session.to_string() };
    let gate = (needs != Needs::default())
        .then(|| Gate::new(needs, request.process.clone(), stores::open_gate))
        .transpose()?;
    let mut anew = request::anew(named, &exec.request, &request, options);
    if exec.nested {
        // The holds above were found for these claims and no others.
        anew.moves_left = 0;
    }
    let mut asks_at = Boottime::now();
    if let Some(splay) = exec.splay.filter(|splay| !splay.is_zero()) {
        asks_at = asks_at + identity::random_part(splay).context("can't get random numbers")?;
    }
    let kept_place = exec.request.place.map(|name| places::take(store.as_mut(), &name, &request)).transpose()?;
    let returns = kept_place.as_ref().and_then(KeptPlace::returns);
    let options = AcquireOptions { from: asks_at, returns, ..options };
    let mut sessions = store.sessions(false).map_err(Failure::from)?;
    if matches!(exec.skip_ok, Some(Some(_))) && !request.job.is_named && !exec.request.quiet {
        warn_of_similar(sessions.as_mut(), &request);
    }
    let handle = Handle::new(sessions, request, options).map_err(Failure::from)?;
    // The handle is not dropped: rlock ends when this function returns, and the kernel frees the
    // table's map and all other memory faster.
    let mut handle = ManuallyDrop::new(handle);
    let settings = Settings {
        max_runtime: exec.max_runtime,
        skip: exec.skip_ok.map_or(Skip::Never, |limit| limit.map_or(Skip::Always, Skip::For)),
        has_spare: exec.meanwhile.is_some(),
        has_else: exec.otherwise.is_some(),
        has_gate: gate.is_some() || exec.request.paths.is_some(),
        ..settings
    };
    let store_options = exec.request.store;
    let start_with = move |Granted { session, claims, grant }: Granted<'_>| {
        let open = || Named::find(&store_options)?.open(Some(LOOK_TIMEOUT));
        cover.map_or(Ok(()), |cover| cover.check(grant, open))?;
        Ok(variables(session, claims, Some(grant)))
    };
    let conclude = |report: &RunReport, grant: Option<&Grant>| status.and_then(|status| status.write(report, grant));
    let (spare, otherwise) = (exec.meanwhile.unwrap_or_default(), exec.otherwise.unwrap_or_default());
    let report = RunReport::new(asks_at, exec.success_codes);
    let place = kept_place;
    let anew = Some(anew);
    let task =
        Task { command, messages, settings, spare, otherwise, report, detector, notify, owner, gate, anew, place };
    run::run(&mut handle, task, start_with, conclude, signals, &mut StandardStream::stderr())
}

/// Adds the holds of the claimed resources that `acquire --pid` has made for a process above to the
/// ancestors of the request, as the variables of these holds would.
fn run_below_lasting(store: &mut dyn Store, request: &mut Request) -> Result<(), Failure> {
    let names: Vec<_> = resources(&request.claims).into_iter().cloned().collect();
    for id in acquired::lasting_for_parents(&store.inspect(&names)?) {
        let Some(hold) = store.session(id, &names)? else { continue };
        for id in std::iter::once(id).chain(hold.ancestors.iter().copied()) {
            if !request.ancestors.contains(&id) {
                request.ancestors.push(id);
            }
        }
        for name in hold.resources() {
            if !request.job.held_above.contains(name) {
                request.job.held_above.push(name.clone());
            }
        }
    }
    Ok(())
}

/// Tells that a job of at(1) is nested below the command that has submitted it, if that command's
/// rlock still holds something. The job does not wait for that lock.
fn warn_of_at(store: &mut dyn Store, request: &Request) {
    let Some(outer) = request.ancestors.first() else { return };
    let holds = store.session(*outer, &request.job.held_above).ok().flatten().is_some_and(|outer| outer.is_holder());
    if holds {
        let session = names::SESSION;
        say(&format!(
            "warning: this job of at(1) does not wait for the lock around the command that submitted it, because at(1) \
             keeps {session}: submit it by 'env -u {session} at'"
        ));
    }
}

/// Tells of a command line that comes for the first time that the store counts its skips apart from
/// those of another one with the same program. A store that does not answer at once is left alone.
fn warn_of_similar(sessions: &mut dyn Sessions, request: &Request) {
    let (job, process, name) = (&request.job.name, &request.process, &request.claims[0].resource);
    let Ok(found) = sessions.history(name, HISTORY) else { return };
    let Some(known) = found.first() else { return };
    let is_similar = |entry: &&Entry| {
        let claims = request.claims.iter().filter(|claim| claim.resource == *name);
        let is_of_program = program(&entry.process.command) == program(&process.command);
        !entry.origin.is_named && is_of_program && entry.process.user == process.user && entry.claims.iter().eq(claims)
    };
    let Some(similar) = known.entries.iter().rfind(is_similar) else { return };
    if known.entries.iter().all(|entry| entry.origin.job != *job) {
        say(&messages::counted_apart(&similar.process.command, &process.command));
    }
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
