//! Defines the options that several subcommands have, and reads their values.

use std::time::Duration;

use anstream::ColorChoice;
use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, ValueHint};

use super::mistake::Mistake;
use super::values;
use rlock_model::resource::Resource;
use rlock_words::Explained;

/// The names of arguments, by which the readers look up their values.
#[allow(missing_docs, reason = "each is named as its argument")]
pub mod id {
    pub const STORE: &str = "store";
    pub const NAMESPACE: &str = "namespace";
    pub const NO_DEFAULT_STORE: &str = "no-default-store";
    pub const KEY: &str = "KEY";
    /// Words after the one bare KEY. They are always a mistake, which `claims` explains better than
    /// clap.
    pub const STRAY: &str = "WORD";
    pub const READ: &str = "read";
    pub const PREWRITE: &str = "prewrite";
    pub const WRITE: &str = "write";
    pub const SLOT: &str = "slot";
    pub const PATH: &str = "path";
    pub(crate) const PATH_READ: &str = "path-read";
    pub const RANGE_READ: &str = "range-read";
    pub const RANGE_PREWRITE: &str = "range-prewrite";
    pub const RANGE_WRITE: &str = "range-write";
    pub const LO: &str = "LO";
    pub const HI: &str = "HI";
    pub const COMMAND: &str = "COMMAND";
    pub const SHELL_COMMAND: &str = "shell";
    pub const NO_WAIT: &str = "no-wait";
    pub const WAIT: &str = "wait";
    pub const CONFLICT_EXIT_CODE: &str = "conflict-exit-code";
    pub const TTL: &str = "ttl";
    pub const HISTORY: &str = "history";
    pub const GRACE: &str = "grace";
    pub const CONNECT_TIMEOUT: &str = "connect-timeout";
    pub const REPLICAS: &str = "replicas";
    pub const MEANWHILE: &str = "meanwhile";
    pub const ELSE: &str = "else";
    pub const OWNER: &str = "owner";
    pub const REASON: &str = "reason";
    pub const JOB: &str = "job";
    pub const SKIP_OK: &str = "skip-ok";
    pub const ONCE_PER: &str = "once-per";
    pub const REMEMBER: &str = "remember";
    pub const SUCCESS_CODES: &str = "success-codes";
    pub const HOLD_AT_LEAST: &str = "hold-at-least";
    pub const SPLAY: &str = "splay";
    pub const NESTED: &str = "nested";
    pub const STATUS_FILE: &str = "status-file";
    pub const DEADLOCK_TIMEOUT: &str = "deadlock-timeout";
    pub const MAX_RUNTIME: &str = "max-runtime";
    pub const UNTIL_READY: &str = "until-ready";
    pub const QUIET: &str = "quiet";
    pub const VERBOSE: &str = "verbose";
    pub const JSON: &str = "json";
    pub const NAMES: &str = "names";
    pub const TREE: &str = "tree";
    pub const DOT: &str = "dot";
    pub const FORM: &str = "form";
    pub const WATCH: &str = "watch";
    pub(crate) const COLOR: &str = "color";
    pub const WIDE: &str = "wide";
    pub const DRY_RUN: &str = "dry-run";
    pub const BREAK: &str = "break";
    pub const NOW: &str = "now";
    pub const MODE: &str = "MODE";
    pub const RESOURCE: &str = "resource";
    pub const SHELL: &str = "SHELL";
    pub const PAGE: &str = "PAGE";
    pub const DIR: &str = "dir";
    pub const LISTEN: &str = "listen";
    pub const STDIO: &str = "stdio";
    pub const TOKEN_FILE: &str = "token-file";
    pub const INSECURE: &str = "insecure";
    pub const MAX_CONNECTIONS: &str = "max-connections";
    pub const MAX_WAITING: &str = "max-waiting";
    pub const SUPERSEDE: &str = "supersede";
    pub const MIN_MEMORY: &str = "min-memory";
    pub const MAX_LOAD: &str = "max-load";
    pub const ONLY: &str = "only";
    pub const FOR: &str = "for";
    pub const PID: &str = "pid";
    pub const LOST_SIGNAL: &str = "lost-signal";
    pub const EXPORT: &str = "export";
    pub const SESSION: &str = "SESSION";
    pub const HOLDER: &str = "session";
    pub const LAST: &str = "last";
    pub const HELD_LONGER_THAN: &str = "held-longer-than";
    pub const WAITING_LONGER_THAN: &str = "waiting-longer-than";
    pub const NO_SUCCESS_FOR: &str = "no-success-for";
    pub const PROMETHEUS: &str = "prometheus";
    pub const OUTPUT: &str = "output";
    pub const SINCE: &str = "since";
    pub const FAILED: &str = "failed";
    pub const STATS: &str = "stats";
    pub const UNTIL: &str = "until";
    pub const BLAME: &str = "blame";
    pub const TIMELINE: &str = "timeline";
    pub const TRACE: &str = "trace";
}

/// The headings of the options of subcommands that lock.
pub(crate) mod heading {
    pub(crate) const CLAIMS: &str = "Claims";
    pub(crate) const INTERVALS: &str = "Claims on intervals";
    pub(crate) const WAITING: &str = "Waiting";
    pub(crate) const BUSY: &str = "When busy";
    pub(crate) const LEASE: &str = "Lease";
    pub(crate) const CRON: &str = "Cron and CI";
}

/// An option with one value. A shell completes the value only where another hint replaces this one.
pub fn option(id: &'static str, value_name: &'static str, parser: impl Into<ValueParser>, help: &'static str) -> Arg {
    Arg::new(id).long(id).value_name(value_name).value_parser(parser.into()).value_hint(ValueHint::Other).help(help)
}

/// An option whose value may be absent, in which case its value is `None`. The value stands behind
/// an `=`.
pub fn optional(id: &'static str, parse: fn(&str) -> Result<Duration, Explained>, help: &'static str) -> Arg {
    let parser = move |word: &str| if word == ABSENT { Ok(None) } else { parse(word).map(Some) };
    // clap counts the place of an option only if the option has a value.
    option(id, "DUR", parser, help).num_args(0..=1).require_equals(true).default_missing_value(ABSENT)
}

/// What stands for the absent value of an option. No user can mean it.
const ABSENT: &str = "\u{1}";

/// An option without a value.
pub fn switch(id: &'static str, help: &'static str) -> Arg {
    Arg::new(id).long(id).action(ArgAction::SetTrue).help(help)
}

/// A positional argument.
pub fn word(id: &'static str, parser: impl Into<ValueParser>, help: &'static str) -> Arg {
    Arg::new(id).value_parser(parser.into()).value_hint(ValueHint::Other).help(help)
}

/// The store options of the command line. The environment and the defaults apply where an option is
/// absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// `--store URL`.
    pub store: Option<String>,
    /// `--namespace NAME`.
    pub namespace: Option<String>,
}

/// The options that select the store, accepted before and after the subcommand.
pub fn store_options() -> [Arg; 2] {
    let store = "The store: redis://HOST, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]";
    let namespace = "Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]";
    [
        option(id::STORE, "URL", values::plain, store).value_hint(ValueHint::Url).display_order(100),
        option(id::NAMESPACE, "NAME", values::plain, namespace).display_order(101),
    ]
    .map(|arg| arg.global(true).help_heading("Store options"))
}

/// The options of the store.
pub fn read_store(matches: &mut ArgMatches) -> StoreOptions {
    StoreOptions { store: matches.remove_one(id::STORE), namespace: matches.remove_one(id::NAMESPACE) }
}

/// The operands KEY: one or more of them, each a name.
pub fn keys(help: &'static str) -> Arg {
    word(id::KEY, values::resource, help).action(ArgAction::Append).num_args(1..)
}

/// The KEYs, each once, in the order of the command line.
pub fn read_keys(matches: &mut ArgMatches) -> Vec<Resource> {
    each_once(matches, id::KEY)
}

/// The values of an argument, each once, in the order of the command line.
pub fn each_once<T: Clone + PartialEq + Send + Sync + 'static>(matches: &mut ArgMatches, id: &str) -> Vec<T> {
    let mut values = Vec::new();
    for value in matches.remove_many(id).into_iter().flatten() {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// The values of an argument, each with its position among the words.
pub(crate) fn with_places<'a, T>(matches: &'a ArgMatches, id: &str) -> impl Iterator<Item = (usize, &'a T)>
where
    T: Clone + Send + Sync + 'static,
{
    let places = matches.indices_of(id).into_iter().flatten();
    places.zip(matches.get_many::<T>(id).into_iter().flatten())
}

/// The value of an option that has a default.
pub fn given<T: Clone + Send + Sync + 'static>(matches: &mut ArgMatches, id: &str) -> T {
    matches.remove_one(id).expect("the option has a default")
}

/// Refuses a bare KEY that reads as a duration, directly after an option whose value may be absent.
/// It is nearly always the value, behind a blank in place of the `=`.
pub fn no_blank_before_value(matches: &ArgMatches, option: &str) -> Result<(), Mistake> {
    let is_absent = matches.get_one::<Option<Duration>>(option).is_some_and(Option::is_none);
    let Some(at) = matches.index_of(option).filter(|_| is_absent) else { return Ok(()) };
    let keys = with_places::<Resource>(matches, id::KEY).map(|(place, key)| (place, key.as_str()));
    let strays = matches.try_contains_id(id::STRAY).is_ok().then(|| with_places::<String>(matches, id::STRAY));
    let strays = strays.into_iter().flatten().map(|(place, stray)| (place, stray.as_str()));
    let mut next = keys.chain(strays).filter(|(place, _)| *place == at + 1).map(|(_, word)| word);
    match next.find(|word| values::duration(word).is_ok()) {
        None => Ok(()),
        Some(word) => Err(Mistake::plain(format!(
            "'{word}' after --{option} is a KEY and not its DUR: write --{option}={word}, or put the KEY '{word}' first"
        ))),
    }
}

/// When to use colours.
pub fn color() -> Arg {
    option(
        id::COLOR,
        "WHEN",
        PossibleValuesParser::new(["auto", "always", "never"]),
        "Use colours: always, never, or auto: on a terminal",
    )
    .default_value("auto")
    .hide_possible_values(true)
}

/// When to use colours. Without the option, a terminal decides.
pub fn read_color(matches: &mut ArgMatches) -> ColorChoice {
    match matches.remove_one::<String>(id::COLOR).as_deref() {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

/// `--max-waiting`: how many requests may wait already.
pub(crate) fn max_waiting() -> Arg {
    option(id::MAX_WAITING, "N", values::waiters, "Exit with 75 at once if N requests already wait; 0 as -n")
}

/// `--job`: the name under which the store remembers the runs of a request.
pub(crate) fn job() -> Arg {
    option(id::JOB, "NAME", values::job, "Name of the job in the store [default: derived from user and COMMAND]")
}

/// `--history`: the number of ended requests that a resource remembers.
pub fn history() -> Arg {
    option(
        id::HISTORY,
        "N",
        values::history,
        "Number of finished runs to keep in the history of KEY [default: RLOCK_HISTORY, else 32]",
    )
}

/// `--ttl`: how long a grant at a server outlives its last renewal.
pub fn ttl() -> Arg {
    option(id::TTL, "DUR", values::ttl, "Length of the lease at a server [default: RLOCK_TTL, else 30s]")
}

/// `-v` and `--verbose`. Each subcommand says in `help` what it tells then.
pub fn verbose(help: &'static str) -> Arg {
    switch(id::VERBOSE, help).short('v')
}
