//! Defines the arguments of each subcommand. clap parses by these definitions, and help, man pages
//! and completions are generated from them.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser as _, ValueParser};
use clap::{Arg, ArgAction, ArgGroup, Command, ValueHint, value_parser};

use super::help::{advanced, notes};
use super::values;
use crate::words::Explained;

/// The names of arguments, by which `read` and `claims` look up their values.
pub(super) mod id {
    pub(crate) const STORE: &str = "store";
    pub(crate) const NAMESPACE: &str = "namespace";
    pub(crate) const NO_DEFAULT_STORE: &str = "no-default-store";
    pub(crate) const KEY: &str = "KEY";
    /// Words after the one bare KEY. They are always a mistake, which `claims` explains better than
    /// clap.
    pub(crate) const STRAY: &str = "WORD";
    pub(crate) const READ: &str = "read";
    pub(crate) const PREWRITE: &str = "prewrite";
    pub(crate) const WRITE: &str = "write";
    pub(crate) const SLOT: &str = "slot";
    pub(crate) const RANGE_READ: &str = "range-read";
    pub(crate) const RANGE_PREWRITE: &str = "range-prewrite";
    pub(crate) const RANGE_WRITE: &str = "range-write";
    pub(crate) const LO: &str = "LO";
    pub(crate) const HI: &str = "HI";
    pub(crate) const COMMAND: &str = "COMMAND";
    pub(crate) const SHELL_COMMAND: &str = "shell";
    pub(crate) const NO_WAIT: &str = "no-wait";
    pub(crate) const WAIT: &str = "wait";
    pub(crate) const CONFLICT_EXIT_CODE: &str = "conflict-exit-code";
    pub(crate) const TTL: &str = "ttl";
    pub(crate) const HISTORY: &str = "history";
    pub(crate) const GRACE: &str = "grace";
    pub(crate) const CONNECT_TIMEOUT: &str = "connect-timeout";
    pub(crate) const REPLICAS: &str = "replicas";
    pub(crate) const MEANWHILE: &str = "meanwhile";
    pub(crate) const ELSE: &str = "else";
    pub(crate) const OWNER: &str = "owner";
    pub(crate) const REASON: &str = "reason";
    pub(crate) const JOB: &str = "job";
    pub(crate) const SKIP_OK: &str = "skip-ok";
    pub(crate) const ONCE_PER: &str = "once-per";
    pub(crate) const SUCCESS_CODES: &str = "success-codes";
    pub(crate) const HOLD_AT_LEAST: &str = "hold-at-least";
    pub(crate) const SPLAY: &str = "splay";
    pub(crate) const NESTED: &str = "nested";
    pub(crate) const STATUS_FILE: &str = "status-file";
    pub(crate) const DEADLOCK_TIMEOUT: &str = "deadlock-timeout";
    pub(crate) const MAX_RUNTIME: &str = "max-runtime";
    pub(crate) const UNTIL_READY: &str = "until-ready";
    pub(crate) const QUIET: &str = "quiet";
    pub(crate) const VERBOSE: &str = "verbose";
    pub(crate) const JSON: &str = "json";
    pub(crate) const NAMES: &str = "names";
    pub(crate) const TREE: &str = "tree";
    pub(crate) const DOT: &str = "dot";
    pub(crate) const FORM: &str = "form";
    pub(crate) const WATCH: &str = "watch";
    pub(crate) const COLOR: &str = "color";
    pub(crate) const WIDE: &str = "wide";
    pub(crate) const DRY_RUN: &str = "dry-run";
    pub(crate) const BREAK: &str = "break";
    pub(crate) const MODE: &str = "MODE";
    pub(crate) const RESOURCE: &str = "resource";
    pub(crate) const SHELL: &str = "SHELL";
    pub(crate) const PAGE: &str = "PAGE";
    pub(crate) const DIR: &str = "dir";
    pub(crate) const LISTEN: &str = "listen";
    pub(crate) const STDIO: &str = "stdio";
    pub(crate) const TOKEN_FILE: &str = "token-file";
    pub(crate) const INSECURE: &str = "insecure";
    pub(crate) const MAX_CONNECTIONS: &str = "max-connections";
    pub(crate) const MAX_WAITING: &str = "max-waiting";
    pub(crate) const SUPERSEDE: &str = "supersede";
    pub(crate) const ONLY: &str = "only";
    pub(crate) const FOR: &str = "for";
    pub(crate) const PID: &str = "pid";
    pub(crate) const LOST_SIGNAL: &str = "lost-signal";
    pub(crate) const EXPORT: &str = "export";
    pub(crate) const SESSION: &str = "SESSION";
    pub(crate) const HOLDER: &str = "session";
    pub(crate) const LAST: &str = "last";
    pub(crate) const HELD_LONGER_THAN: &str = "held-longer-than";
    pub(crate) const NO_SUCCESS_FOR: &str = "no-success-for";
    pub(crate) const PROMETHEUS: &str = "prometheus";
    pub(crate) const OUTPUT: &str = "output";
    pub(crate) const SINCE: &str = "since";
    pub(crate) const FAILED: &str = "failed";
    pub(crate) const STATS: &str = "stats";
}

/// The headings of the options of subcommands that lock.
mod heading {
    pub(super) const CLAIMS: &str = "Claims";
    pub(super) const INTERVALS: &str = "Claims on intervals";
    pub(super) const WAITING: &str = "Waiting";
    pub(super) const BUSY: &str = "When busy";
    pub(super) const LEASE: &str = "Lease";
    pub(super) const CRON: &str = "Cron and CI";
}

/// An option with one value. A shell completes the value only where another hint replaces this one.
pub(super) fn option(
    id: &'static str,
    value_name: &'static str,
    parser: impl Into<ValueParser>,
    help: &'static str,
) -> Arg {
    Arg::new(id).long(id).value_name(value_name).value_parser(parser.into()).value_hint(ValueHint::Other).help(help)
}

/// An option whose value may be absent, in which case its value is `None`. The value stands behind
/// an `=`.
fn optional(id: &'static str, parse: fn(&str) -> Result<Duration, Explained>, help: &'static str) -> Arg {
    let parser = move |word: &str| if word == ABSENT { Ok(None) } else { parse(word).map(Some) };
    // clap counts the place of an option only if the option has a value.
    option(id, "DUR", parser, help).num_args(0..=1).require_equals(true).default_missing_value(ABSENT)
}

/// What stands for the absent value of an option. No user can mean it.
const ABSENT: &str = "\u{1}";

/// An option without a value.
fn switch(id: &'static str, help: &'static str) -> Arg {
    Arg::new(id).long(id).action(ArgAction::SetTrue).help(help)
}

/// A positional argument.
pub(super) fn word(id: &'static str, parser: impl Into<ValueParser>, help: &'static str) -> Arg {
    Arg::new(id).value_parser(parser.into()).value_hint(ValueHint::Other).help(help)
}

/// The options that select the store, accepted before and after the subcommand.
pub(super) fn store_options() -> [Arg; 2] {
    let store = "The store: redis://HOST, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]";
    let namespace = "Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]";
    [
        option(id::STORE, "URL", values::plain, store).value_hint(ValueHint::Url).display_order(100),
        option(id::NAMESPACE, "NAME", values::plain, namespace).display_order(101),
    ]
    .map(|arg| arg.global(true).help_heading("Store options"))
}

pub(super) fn exec(command: Command) -> Command {
    command
        .override_usage(
            "rlock exec CLAIM... [OPTIONS] -- COMMAND [ARG]...\n       \
             rlock exec CLAIM... [OPTIONS] -c STRING\n       \
             CLAIM: --write KEY | --read KEY | --prewrite KEY | --slot KEY=N |\n              \
             --range-write KEY INTERVAL | --range-read KEY INTERVAL |\n              \
             --range-prewrite KEY INTERVAL\n       \
             One CLAIM may be a bare KEY, which means --write KEY.",
        )
        .after_help(notes(
            "Several CLAIMs are granted together or not at all. Exit: the command's own code; 75 busy, 64 usage, \
             65 refused, 69 no store, 76 lost, 124 too long, 126 or 127 not run. More: rlock man exec | man -l -",
            &["rlock exec backup -- ./backup.sh", "rlock exec -n --read db --slot gpu=4 -- ./train.sh"],
        ))
        .args(claims())
        .args(run_options())
        .arg(command_words())
}

/// The claims on whole resources and on intervals.
fn claims() -> [Arg; 9] {
    let claim =
        |id, help| option(id, "KEY", values::resource, help).action(ArgAction::Append).help_heading(heading::CLAIMS);
    // The two values have different types, so `claims` parses them.
    let range = |id, help| {
        option(id, "KEY", values::plain, help)
            .value_names(["KEY", "INTERVAL"])
            .num_args(2)
            .action(ArgAction::Append)
            .help_heading(heading::INTERVALS)
    };
    [
        word(id::KEY, values::resource, "What to lock for writing"),
        stray_words(),
        claim(id::READ, "Lock KEY for reading, beside other readers"),
        advanced(claim(id::PREWRITE, "Lock KEY for reading now and writing later, beside readers only")),
        advanced(claim(id::WRITE, "Lock KEY for writing, alone, as a bare KEY does")),
        option(id::SLOT, "KEY=N", values::slot, "Take one of the N slots of KEY; W with KEY=N:W")
            .action(ArgAction::Append)
            .help_heading(heading::CLAIMS),
        advanced(range(id::RANGE_READ, "Lock an interval of KEY, such as '[1.2,1.8)', for reading")),
        advanced(range(id::RANGE_PREWRITE, "Lock an interval of KEY for reading now and writing later")),
        advanced(range(id::RANGE_WRITE, "Lock an interval of KEY for writing")),
    ]
}

/// Words after KEY.
fn stray_words() -> Arg {
    word(id::STRAY, values::plain, "The command and its arguments").action(ArgAction::Append).num_args(1..).hide(true)
}

pub(super) fn range(command: Command) -> Command {
    let name = command.get_name();
    let interval = format!("rlock {name} -w 5m ledger '[2024,2025)' -- ./report.sh");
    let ends = format!("rlock {name} disk.img 0 4095 -- ./check-header.sh");
    let usage = format!(
        "rlock {name} KEY LO HI [OPTIONS] -- COMMAND [ARG]...\n       \
         rlock {name} KEY '[LO,HI)' [OPTIONS] -- COMMAND [ARG]..."
    );
    command
        .override_usage(usage)
        .after_help(notes(
            "LO and HI are exact: 1.2, -3e-9, 22/7, -inf or inf. LO HI has both its ends; '[LO,HI)', '(LO,HI]' \
             say which they have. Negative numbers need no quotes. Exit codes are those of rlock exec.",
            &[interval.as_str(), ends.as_str()],
        ))
        .args(range_claim())
        .args(run_options())
        // It needs a claim on a whole KEY.
        .mut_arg(id::ONCE_PER, advanced)
        .arg(command_words())
}

/// The claim on an interval.
fn range_claim() -> [Arg; 3] {
    [
        word(id::KEY, values::resource, "What to lock a part of"),
        word(id::LO, values::plain, "The lower end, or the whole interval: '[1.2,1.8)'"),
        word(id::HI, values::plain, "The upper end"),
    ]
}

/// The options that limit the wait.
fn wait_options() -> [Arg; 2] {
    [
        switch(id::NO_WAIT, "Exit with 75 at once if the lock is busy").short('n'),
        option(id::WAIT, "DUR", values::duration, "Wait at most DUR, as in 5m [default: for ever]").short('w'),
    ]
    .map(|arg| arg.help_heading(heading::WAITING))
}

/// The line LOCK of a client of `rlock serve`.
pub(super) fn lock_line(command: Command) -> Command {
    command.args(claims()).args(wait_options())
}

/// The lines RANGE-READ, RANGE-PREWRITE and RANGE-WRITE of a client of `rlock serve`.
pub(super) fn range_line(command: Command) -> Command {
    command.args(range_claim()).args(wait_options())
}

pub(super) fn acquire(command: Command) -> Command {
    command
        .override_usage(
            "rlock acquire CLAIM... --for DUR [OPTIONS]\n       \
             rlock acquire CLAIM... --pid PID [OPTIONS]\n       \
             CLAIM: --write KEY | --read KEY | --prewrite KEY | --slot KEY=N |\n              \
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
        .args(claims())
        .arg(option(id::FOR, "DUR", values::hold, "Hold the lock for DUR, at most 7 days, or for ever"))
        .arg(option(id::PID, "PID", values::pid, "Hold the lock until the process PID ends").conflicts_with(id::FOR))
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

/// Whether `exec` has this option, `--name` or `-n`.
pub(super) fn is_of_exec(option: &str) -> bool {
    run_options().any(|arg| {
        let is_short =
            arg.get_short().is_some_and(|short| option.strip_prefix('-') == Some(short.to_string().as_str()));
        is_short || option.strip_prefix("--").is_some_and(|name| arg.get_long() == Some(name))
    })
}

pub(super) fn renew(command: Command) -> Command {
    command
        .override_usage("rlock renew [--for DUR] [SESSION] [--export]")
        .after_help(notes(
            "Exit: 0 renewed; 76 not held any more; 64 not a lock of 'rlock acquire --for'.",
            &["rlock renew --for 1h"],
        ))
        .arg(word(id::SESSION, values::session, "The session [default: the innermost of rlock acquire around]"))
        .arg(option(
            id::FOR,
            "DUR",
            values::hold,
            "Hold for DUR from now, or 'ever' [default: as acquire]; never shorter",
        ))
        .arg(switch(id::EXPORT, "Print nothing, or on failure (exit N), for a shell's eval"))
        .arg(verbose("Say what was renewed"))
}

pub(super) fn release(command: Command) -> Command {
    command
        .override_usage("rlock release [SESSION]... [--export]")
        .after_help(notes(
            "Exit: 0 given back; 76 not held any more; 64 not a lock of 'rlock acquire'.",
            &["eval \"$(rlock release --export)\""],
        ))
        .arg(
            word(id::SESSION, values::session, "The sessions [default: the innermost of rlock acquire around]")
                .action(ArgAction::Append)
                .num_args(1..),
        )
        .arg(switch(id::EXPORT, "Print the variables of the session around, for a shell's eval; on failure (exit N)"))
        .arg(verbose("Say what was released"))
}

pub(super) fn held(command: Command) -> Command {
    let mode = |id, help| switch(id, help).group(id::MODE);
    command
        .override_usage("rlock held [--read|--prewrite|--write|--slot] KEY")
        .after_help(notes(
            "Exit: 0 held; 1 not held; 69 no store.",
            &["rlock held backup || echo 'start this by rlock exec backup'"],
        ))
        .group(ArgGroup::new(id::MODE))
        .arg(word(id::KEY, values::resource, "What has to be held").required(true))
        .arg(mode(id::READ, "For reading, or in any stronger mode"))
        .arg(mode(id::PREWRITE, "For reading now and writing later, or for writing"))
        .arg(mode(id::WRITE, "For writing, as without an option"))
        .arg(mode(id::SLOT, "One of its slots, or for writing"))
        .arg(verbose("Say in words what the exit status tells"))
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
fn run_options() -> impl Iterator<Item = Arg> {
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
        shell(id::MEANWHILE, "Run STRING by /bin/sh once: beside the wait, or after the release"),
    ];
    let busy = [
        option(id::CONFLICT_EXIT_CODE, "N", values::exit_code, "Exit with N when busy").short('E').default_value("75"),
        shell(id::ELSE, "Run STRING by /bin/sh when busy; RLOCK_BUSY says why").conflicts_with(id::CONFLICT_EXIT_CODE),
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
        option(id::SPLAY, "DUR", values::duration, "Sleep for a random part of DUR before the request"),
        job(),
        history(),
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

fn max_waiting() -> Arg {
    option(id::MAX_WAITING, "N", values::waiters, "Exit with 75 at once if N requests already wait; 0 as -n")
}

fn job() -> Arg {
    option(id::JOB, "NAME", values::job, "Name of the job in the store [default: derived from user and COMMAND]")
}

fn history() -> Arg {
    option(
        id::HISTORY,
        "N",
        values::history,
        "Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32]",
    )
}

fn ttl() -> Arg {
    option(id::TTL, "DUR", values::ttl, "Length of the lease at a server [default: RLOCK_TTL, else 30s]")
}

fn verbose(help: &'static str) -> Arg {
    switch(id::VERBOSE, help).short('v')
}

pub(super) fn serve(command: Command) -> Command {
    command
        .override_usage(
            "rlock serve [--listen HOST:PORT|unix:/PATH]... [OPTIONS]\n       rlock serve --stdio [OPTIONS]",
        )
        .after_help(notes(
            "A client sends LOCK KEY, reads ok, and holds the lock until its connection ends.\n\
             Default: the sockets that systemd passes, else 127.0.0.1:1006. More: rlock man serve | man -l -",
            &["rlock serve --listen unix:/run/rlock.sock", "rlock serve --only 'build/*'"],
        ))
        .arg(
            option(id::LISTEN, "ADDRESS", values::listen, "Where to listen: HOST:PORT or unix:/PATH")
                .action(ArgAction::Append)
                .conflicts_with(id::STDIO),
        )
        .arg(switch(id::STDIO, "Serve one client on standard input and output"))
        .arg(
            option(id::TOKEN_FILE, "FILE", value_parser!(PathBuf), "Clients must send AUTH with the token in FILE")
                .value_hint(ValueHint::FilePath),
        )
        .arg(switch(id::INSECURE, "Listen beyond this machine without a token").conflicts_with(id::TOKEN_FILE))
        .arg(
            option(id::MAX_CONNECTIONS, "N", values::connections, "How many clients may be connected")
                .default_value("1024"),
        )
        .arg(
            option(id::MAX_WAITING, "N", values::count, "How many requests may wait; more are busy at once")
                .default_value("1000"),
        )
        .arg(
            option(id::ONLY, "GLOB", values::glob, "Serve only KEYs that match one of these patterns")
                .action(ArgAction::Append),
        )
        .arg(ttl())
        .arg(history())
        .arg(option(id::GRACE, "DUR", values::duration, "How long holders go on after TERM [default: 5s]"))
        .arg(verbose("Log each connection, lock and unlock"))
}

/// The command to run: all words after `--`, with any bytes.
fn command_words() -> Arg {
    Arg::new(id::COMMAND)
        .value_parser(ValueParser::os_string())
        .num_args(1..)
        .last(true)
        .value_hint(ValueHint::CommandWithArguments)
        .help("The command and its arguments, run as they are, without a shell")
}

pub(super) fn inspect(command: Command) -> Command {
    let form = |id, help| switch(id, help).group(id::FORM);
    command
        .override_usage(
            "rlock inspect [KEY]... [--json] [--held-longer-than DUR]\n       \
             rlock inspect [KEY]... --watch | --tree | --dot | --names\n       \
             rlock inspect --no-success-for DUR KEY... | --job NAME\n       \
             rlock inspect [KEY]... --prometheus [-o FILE]",
        )
        .after_help(notes(
            "On a terminal, --watch redraws the table until q or Ctrl-C.",
            &["rlock inspect --watch", "rlock inspect --no-success-for 25h backup"],
        ))
        .arg(keys("What to show [default: all that is held or waited for]"))
        .group(ArgGroup::new(id::FORM))
        .arg(form(id::JSON, "Print JSON"))
        .arg(form(id::NAMES, "Print the names alone").conflicts_with(id::WATCH))
        .arg(form(id::TREE, "Show as a tree who holds, what runs below, and who waits for what"))
        .arg(
            form(id::DOT, "Print a graph for Graphviz, as in: rlock inspect --dot | dot -Tsvg")
                .conflicts_with(id::WATCH),
        )
        .arg(
            optional(id::WATCH, values::interval, "Go on with each change; a server is asked each DUR [1s]")
                .conflicts_with_all([id::HELD_LONGER_THAN, id::NO_SUCCESS_FOR, id::PROMETHEUS]),
        )
        .arg(verbose("Show times of day instead of ages, and session ids"))
        .arg(switch(id::WIDE, "Cut nothing, even beyond the width of the terminal").conflicts_with(id::WATCH))
        .arg(color())
        .args(checks())
        .arg(switch(id::PROMETHEUS, "Print metrics for Prometheus").conflicts_with_all([
            id::FORM,
            id::HELD_LONGER_THAN,
            id::NO_SUCCESS_FOR,
        ]))
        .arg(
            option(id::OUTPUT, "FILE", value_parser!(PathBuf), "Write the metrics to FILE")
                .short('o')
                .requires(id::PROMETHEUS)
                .value_hint(ValueHint::FilePath),
        )
}

/// The options of `inspect` that check something, and tell the result by the exit code.
fn checks() -> [Arg; 3] {
    [
        option(id::HELD_LONGER_THAN, "DUR", values::duration, "Only what is held for longer; exit 1 if there is any")
            .conflicts_with(id::NO_SUCCESS_FOR),
        option(id::NO_SUCCESS_FOR, "DUR", values::period, "Exit 1 and name each KEY without a successful run in DUR")
            .conflicts_with(id::FORM),
        option(id::JOB, "NAME", values::job, "Only successful runs with this --job count").requires(id::NO_SUCCESS_FOR),
    ]
}

pub(super) fn history_of_keys(command: Command) -> Command {
    command
        .override_usage("rlock history [KEY]... [-n N] [--since DUR] [--failed] [--stats] [--json]")
        .after_help(notes("", &["rlock history --failed --since 1d", "rlock history -n 5 backup"]))
        .arg(keys("What to show [default: all that is remembered]"))
        .arg(option(id::LAST, "N", values::entries, "Only the last N entries of each KEY").short('n').long("last"))
        .arg(option(id::SINCE, "DUR", values::duration, "Only what ended less than DUR ago"))
        .arg(switch(id::FAILED, "Only what failed: not exit 0, a skip, or the end of rlock acquire"))
        .arg(switch(id::STATS, "Sum up: waits, holds, failures, busy requests, queues"))
        .arg(switch(id::JSON, "Print JSON"))
        .arg(color())
}

pub(super) fn doctor(command: Command) -> Command {
    command
        .override_usage("rlock doctor [OPTIONS]")
        .after_help(notes(
            "Exit: 0, or 69 if something makes rlock unusable.",
            &["rlock doctor --store redis://locks.example"],
        ))
        .arg(switch(id::JSON, "Print JSON"))
        .arg(ttl())
        .arg(color())
}

/// When to use colours.
fn color() -> Arg {
    option(
        id::COLOR,
        "WHEN",
        PossibleValuesParser::new(["auto", "always", "never"]),
        "Use colours: always, never, or auto: on a terminal",
    )
    .default_value("auto")
    .hide_possible_values(true)
}

pub(super) fn cleanup(command: Command) -> Command {
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

pub(super) fn break_locks(command: Command) -> Command {
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

fn keys(help: &'static str) -> Arg {
    word(id::KEY, values::resource, help).action(ArgAction::Append).num_args(1..)
}

pub(super) fn shrink(command: Command) -> Command {
    command
        .override_usage("rlock shrink LO HI [--resource KEY]\n       rlock shrink '[LO,HI)' [--resource KEY]")
        .after_help(notes("", &["rlock shrink 1/4 1/2"]))
        .arg(word(id::LO, values::plain, "The new lower end, or the whole interval: '[1.2,1.8)'").required(true))
        .arg(word(id::HI, values::plain, "The new upper end"))
        .arg(which())
        .arg(verbose("Say what was shrunk"))
}

pub(super) fn downgrade(command: Command) -> Command {
    // The store judges `write` as it judges a prewrite for a read. Being an alias keeps the word out
    // of help and completions, and the parser passes on what the user has typed.
    let modes = [PossibleValue::new("read"), PossibleValue::new("prewrite").alias("write")];
    command
        .override_usage("rlock downgrade MODE [--resource KEY]")
        .after_help(notes("", &["rlock downgrade read"]))
        .arg(word(id::MODE, PossibleValuesParser::new(modes), "The new mode").required(true))
        .arg(which())
        .arg(verbose("Say what was lowered"))
}

/// Selects one of several holds.
fn which() -> Arg {
    option(id::RESOURCE, "KEY", values::resource, "Which lock, where the command holds several")
}

pub(super) fn completions(command: Command) -> Command {
    command
        .override_usage("rlock completions SHELL")
        .after_help(notes("", &["rlock completions bash > /etc/bash_completion.d/rlock"]))
        .arg(word(id::SHELL, PossibleValuesParser::new(["bash", "zsh", "fish"]), "The shell").required(true))
}
