//! Defines the options of the subcommands that make a request, and reads their values.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Arg, ArgMatches, ValueHint, value_parser};

use super::help::advanced;
use super::mistake::Mistake;
use super::options::{
    StoreOptions, given, heading, history, id, job, max_waiting, option, optional, read_store, switch, ttl, verbose,
};
use super::values::{self, Wait};
use rlock_model::request::Claim;
use rlock_store::Replicas;
use rlock_words as words;

/// The owner and the reason of a request, as text for people. The environment and the CI apply
/// where an option is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whose {
    /// The person or the system that the request is made for.
    pub owner: Option<String>,
    /// The reason for the request.
    pub reason: Option<String>,
}

/// What `exec`, `range-*` and `acquire` say of their request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestOptions {
    /// The store to use.
    pub store: StoreOptions,
    /// The claims to hold, in the order of the command line: never empty, no span of a resource
    /// twice.
    pub claims: Vec<Claim>,
    /// The maximum wait for the grant, zero for no wait (`--no-wait`); `None` for the default.
    pub wait: Option<Wait>,
    /// The exit code when busy.
    pub conflict_exit_code: u8,
    /// The ttl of the lease, at least a second; `None` for the default.
    /// It has no effect in a store where a hold lives as long as its process.
    pub ttl: Option<Duration>,
    /// The time from TERM to KILL when the command must be stopped, and how long before the end of
    /// its lease a hold without a command counts as lost; `None` for the default, which is lowered
    /// if it is too long for `ttl`.
    pub grace: Option<Duration>,
    /// The time that connecting to the store may take; `None` for the default.
    pub connect_timeout: Option<Duration>,
    /// The copies of the grant that a server must have before the grant counts; `None` for the
    /// default.
    pub replicas: Option<Replicas>,
    /// The owner and the reason of the request.
    pub whose: Whose,
    /// The name of the job, which replaces the user and the command.
    pub job: Option<String>,
    /// How many sessions may wait ahead of the request; more make it busy.
    pub max_waiting: Option<u32>,
    /// How long a nested request waits before it looks for a deadlock; zero for never.
    pub deadlock_timeout: Duration,
    /// How many entries the history of each resource keeps; `None` for the default.
    pub history: Option<u32>,
    /// Print nothing when busy or while waiting.
    pub quiet: bool,
    /// Report the start of the wait and the grant.
    pub verbose: bool,
    /// Fail in the default store.
    pub no_default_store: bool,
}

/// The options of [`run_options`] that are needed every day.
const DAILY: [&str; 8] = [
    id::NO_WAIT,
    id::WAIT,
    id::CONFLICT_EXIT_CODE,
    id::QUIET,
    id::VERBOSE,
    id::SHELL_COMMAND,
    id::SKIP_OK,
    id::ONCE_PER,
];

/// The options of every subcommand that runs a command.
pub fn run_options() -> impl Iterator<Item = Arg> {
    let shell = |id, help| {
        let string = OsStringValueParser::new().map(values::shell_command);
        option(id, "STRING", string, help).value_hint(ValueHint::CommandString)
    };
    let waiting = [
        max_waiting(),
        switch(id::SUPERSEDE, "End the waiting requests of the same job, as busy: the newest one wins"),
        option(
            id::DEADLOCK_TIMEOUT,
            "DUR",
            values::duration,
            "Time after which a nested wait looks for a deadlock; 0: never",
        )
        .default_value("1s"),
        option(id::MIN_MEMORY, "SIZE", values::size, "Start COMMAND only when so much memory is free, such as 4G"),
        option(
            id::MAX_LOAD,
            "N",
            values::load,
            "Start COMMAND only when the load, or with N% the pressure, is at most N",
        ),
        shell(id::MEANWHILE, "Run STRING by /bin/sh once: beside the wait, or after the release"),
    ];
    let busy = [
        option(id::CONFLICT_EXIT_CODE, "N", values::exit_code, "Exit with N when busy").short('E').default_value("75"),
        shell(id::ELSE, "Run STRING by /bin/sh when busy; RLOCK_BUSY says why, \"$@\" is COMMAND")
            .conflicts_with(id::CONFLICT_EXIT_CODE),
        optional(id::SKIP_OK, values::duration, "Exit with 0 when busy, for at most DUR in a row")
            .conflicts_with_all([id::CONFLICT_EXIT_CODE, id::ELSE]),
        switch(id::QUIET, "Print nothing when busy").short('q').conflicts_with(id::VERBOSE),
    ];
    let lease = [
        ttl(),
        option(id::GRACE, "DUR", values::duration, "Time from TERM to KILL when the lock is lost [default: 5s]"),
        option(
            id::CONNECT_TIMEOUT,
            "DUR",
            values::connect_timeout,
            "Time in which a server has to be reached [default: 5s]",
        ),
        option(
            id::REPLICAS,
            "N[+disk]",
            values::replicas,
            "Number of replicas [with disks] that must have the lock before COMMAND starts [default: 0]",
        ),
    ];
    let others = [
        shell(id::SHELL_COMMAND, "Run STRING by /bin/sh instead of COMMAND").short('c').conflicts_with(id::COMMAND),
        verbose("Say what is done, and why a run was skipped"),
    ];
    let all = wait_options()
        .into_iter()
        .chain(waiting.map(|arg| arg.help_heading(heading::WAITING)))
        .chain(busy.map(|arg| arg.help_heading(heading::BUSY)))
        .chain(lease.map(|arg| arg.help_heading(heading::LEASE)))
        .chain(cron_options())
        .chain(whose())
        .chain(others);
    all.map(|arg| if DAILY.contains(&arg.get_id().as_str()) { arg } else { advanced(arg) })
}

/// The options that limit the wait.
pub(crate) fn wait_options() -> [Arg; 2] {
    [
        switch(id::NO_WAIT, "Exit with 75 at once if the lock is busy").short('n'),
        option(id::WAIT, "DUR", values::wait, "Wait at most DUR [default: RLOCK_WAIT or ever]").short('w'),
    ]
    .map(|arg| arg.help_heading(heading::WAITING))
}

/// The options for the owner and the reason of a request.
fn whose() -> [Arg; 2] {
    let owner = "The person or system that this is for [default: RLOCK_OWNER]";
    let reason = "The reason for this, for others to read [default: RLOCK_REASON]";
    [option(id::OWNER, "TEXT", values::plain, owner), option(id::REASON, "TEXT", values::plain, reason)]
}

/// The options that jobs of cron and CI need.
fn cron_options() -> impl Iterator<Item = Arg> {
    let options = [
        option(
            id::ONCE_PER,
            "PERIOD",
            values::once,
            "Exit with 0 if a run succeeded within DUR, or in this hour, day, week or month",
        ),
        option(id::SUCCESS_CODES, "N,N...", values::exit_code, "Count these exit codes as a success, too")
            .value_delimiter(','),
        option(id::HOLD_AT_LEAST, "DUR", values::kept, "Hold the lock for at least DUR, even if COMMAND ends sooner"),
        option(id::MAX_RUNTIME, "DUR", values::runtime, "Stop COMMAND after DUR, and exit with 124"),
        switch(id::UNTIL_READY, "Release the lock once COMMAND says READY=1, as sd_notify does"),
        option(id::PID, "PID", values::owner, "End the wait or COMMAND when the process PID, or the parent, ends"),
        option(id::SPLAY, "DUR", values::duration, "Sleep for a random part of DUR before the request"),
        job(),
        history(),
        option(
            id::REMEMBER,
            "DUR",
            values::period,
            "Remember this run and those before for DUR, up to 400d [default: 7d]",
        ),
        option(
            id::STATUS_FILE,
            "FILE",
            value_parser!(PathBuf),
            "Write to FILE how the request and COMMAND ended, as JSON",
        )
        .value_hint(ValueHint::FilePath),
        switch(id::NESTED, "Run nothing unless a lock around this command covers the claims"),
        switch(id::NO_DEFAULT_STORE, "Fail unless --store, RLOCK_STORE or /etc/rlock.conf names the store"),
    ];
    options.into_iter().map(|arg| arg.help_heading(heading::CRON))
}

/// Whether `exec` has this option, `--name` or `-n`.
pub fn is_of_exec(option: &str) -> bool {
    run_options().any(|arg| {
        let is_short =
            arg.get_short().is_some_and(|short| option.strip_prefix('-') == Some(short.to_string().as_str()));
        is_short || option.strip_prefix("--").is_some_and(|name| arg.get_long() == Some(name))
    })
}

/// The part that everything shares that makes a request.
pub fn read_request(claims: Vec<Claim>, matches: &mut ArgMatches) -> Result<RequestOptions, Mistake> {
    Ok(RequestOptions {
        claims,
        wait: read_wait(matches)?,
        conflict_exit_code: given(matches, id::CONFLICT_EXIT_CODE),
        ttl: matches.remove_one(id::TTL),
        grace: matches.remove_one(id::GRACE),
        connect_timeout: matches.remove_one(id::CONNECT_TIMEOUT),
        replicas: matches.remove_one(id::REPLICAS),
        whose: Whose { owner: matches.remove_one(id::OWNER), reason: matches.remove_one(id::REASON) },
        job: matches.remove_one(id::JOB),
        max_waiting: matches.remove_one(id::MAX_WAITING),
        deadlock_timeout: given(matches, id::DEADLOCK_TIMEOUT),
        history: matches.remove_one(id::HISTORY),
        quiet: matches.get_flag(id::QUIET),
        verbose: matches.get_flag(id::VERBOSE),
        no_default_store: matches.get_flag(id::NO_DEFAULT_STORE),
        store: read_store(matches),
    })
}

/// The maximum wait. `-n` means `-w 0`, so the two may stand together only if they agree.
pub(crate) fn read_wait(matches: &ArgMatches) -> Result<Option<Wait>, Mistake> {
    const NONE: Wait = Wait::AtMost(Duration::ZERO);
    let wait = matches.get_one::<Wait>(id::WAIT).copied();
    match (matches.get_flag(id::NO_WAIT), wait) {
        (true, Some(wait)) if wait != NONE => {
            let wait = wait.limit().map_or_else(|| "ever".to_owned(), words::duration);
            Err(Mistake::plain(format!("--no-wait and --wait {wait} exclude each other: give one of them")))
        }
        (true, _) => Ok(Some(NONE)),
        (false, wait) => Ok(wait),
    }
}
