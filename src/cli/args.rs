//! The definitions of subcommands and options: what clap parses by, and what help, man pages and
//! completions are made from.
//!
//! Starting must be quick, so the arguments of a subcommand are defined only when it is asked for,
//! and [`command`] leaves out the other subcommands where the words name one.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser as _, ValueParser};
use clap::{Arg, ArgAction, Command, ValueHint, value_parser};

use super::values;

/// The names of arguments, by which `read` and `claims` ask for them.
pub(super) mod id {
    pub(crate) const STORE: &str = "store";
    pub(crate) const NAMESPACE: &str = "namespace";
    pub(crate) const KEY: &str = "KEY";
    /// Words after the one bare KEY. They are always a mistake, which `claims` explains better than
    /// clap.
    pub(crate) const STRAY: &str = "WORD";
    pub(crate) const READ: &str = "read";
    pub(crate) const PREWRITE: &str = "prewrite";
    pub(crate) const WRITE: &str = "write";
    pub(crate) const SLOT: &str = "slot";
    pub(crate) const LO: &str = "LO";
    pub(crate) const HI: &str = "HI";
    pub(crate) const COMMAND: &str = "COMMAND";
    pub(crate) const SHELL_COMMAND: &str = "shell";
    pub(crate) const NO_WAIT: &str = "no-wait";
    pub(crate) const WAIT: &str = "wait";
    pub(crate) const CONFLICT_EXIT_CODE: &str = "conflict-exit-code";
    pub(crate) const TTL: &str = "ttl";
    pub(crate) const GRACE: &str = "grace";
    pub(crate) const CONNECT_TIMEOUT: &str = "connect-timeout";
    pub(crate) const REPLICAS: &str = "replicas";
    pub(crate) const QUIET: &str = "quiet";
    pub(crate) const VERBOSE: &str = "verbose";
    pub(crate) const JSON: &str = "json";
    pub(crate) const DRY_RUN: &str = "dry-run";
    pub(crate) const BREAK: &str = "break";
    pub(crate) const MODE: &str = "MODE";
    pub(crate) const RESOURCE: &str = "resource";
    pub(crate) const SHELL: &str = "SHELL";
    pub(crate) const PAGE: &str = "PAGE";
    pub(crate) const DIR: &str = "dir";
}

/// One subcommand, before its arguments are defined.
pub(super) struct Subcommand {
    /// The word that asks for it.
    pub(super) name: &'static str,
    /// The name of its man page.
    pub(super) page: &'static str,
    /// What it does, in one line.
    about: &'static str,
    /// Whether numbers stand among its words, which may start with a minus sign.
    pub(super) has_numbers: bool,
    /// Adds its arguments.
    define: fn(Command) -> Command,
}

impl Subcommand {
    /// Whether a command follows its words, after `--`.
    pub(super) fn runs_command(&self) -> bool {
        self.name == "exec" || self.name.starts_with("range-")
    }
}

/// Every subcommand, in the order of the help.
pub(super) const SUBCOMMANDS: [Subcommand; 10] = [
    Subcommand {
        name: "exec",
        page: "rlock-exec",
        about: "Run a command while holding locks on whole resources",
        has_numbers: false,
        define: exec,
    },
    Subcommand {
        name: "range-read",
        page: "rlock-range-read",
        about: "Run a command while holding a read lock on an interval",
        has_numbers: true,
        define: range,
    },
    Subcommand {
        name: "range-prewrite",
        page: "rlock-range-prewrite",
        about: "Run a command while holding a prewrite lock on an interval",
        has_numbers: true,
        define: range,
    },
    Subcommand {
        name: "range-write",
        page: "rlock-range-write",
        about: "Run a command while holding a write lock on an interval",
        has_numbers: true,
        define: range,
    },
    Subcommand {
        name: "inspect",
        page: "rlock-inspect",
        about: "Show who holds what and who waits",
        has_numbers: false,
        define: inspect,
    },
    Subcommand {
        name: "cleanup",
        page: "rlock-cleanup",
        about: "Remove what is expired or dead, or break locks",
        has_numbers: false,
        define: cleanup,
    },
    Subcommand {
        name: "shrink",
        page: "rlock-shrink",
        about: "Inside a hold: give up part of the interval",
        has_numbers: true,
        define: shrink,
    },
    Subcommand {
        name: "downgrade",
        page: "rlock-downgrade",
        about: "Inside a hold: lower its mode",
        has_numbers: false,
        define: downgrade,
    },
    Subcommand {
        name: "completions",
        page: "rlock-completions",
        about: "Print a completion script for a shell",
        has_numbers: false,
        define: completions,
    },
    Subcommand {
        name: "man",
        page: "rlock-man",
        about: "Print a man page, or write them all",
        has_numbers: false,
        define: man,
    },
];

/// What has a man page and is no subcommand.
pub(super) struct Topic {
    /// The word that asks for the page.
    pub(super) name: &'static str,
    /// The name of the page.
    pub(super) page: &'static str,
    /// What it is about, in one line.
    pub(super) about: &'static str,
}

/// Every topic.
pub(super) const TOPICS: [Topic; 1] =
    [Topic { name: "redis", page: "rlock-redis", about: "Locks across machines, on Redis and Valkey servers" }];

/// The subcommand that the words ask for, if it is one of ours: the first word that is neither an
/// option nor the value of one.
pub(super) fn named_in(words: &[OsString]) -> Option<&'static Subcommand> {
    let mut words = words.iter();
    let name = loop {
        let word = words.next()?;
        if word == "--store" || word == "--namespace" {
            words.next()?;
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            break word;
        }
    };
    SUBCOMMANDS.iter().find(|subcommand| name == subcommand.name)
}

/// The whole definition, or what is enough to parse words that ask for `only` this subcommand.
pub(super) fn command(only: Option<&Subcommand>) -> Command {
    let wanted = SUBCOMMANDS.iter().filter(|subcommand| only.is_none_or(|only| only.name == subcommand.name));
    Command::new("rlock")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Hold a lock while a command runs")
        .override_usage("rlock [OPTIONS] SUBCOMMAND ...\n       rlock exec KEY -- COMMAND [ARG]...")
        .after_help(
            "rlock exec backup -- ./backup.sh    runs the script when nobody else holds 'backup'.\n\
             'rlock help SUBCOMMAND' says more, and 'rlock man | man -l -' everything.",
        )
        // The words that follow are all that is parsed; messages name the program the same wherever
        // it is installed.
        .no_binary_name(true)
        .bin_name("rlock")
        .subcommand_required(true)
        .subcommand_value_name("SUBCOMMAND")
        .subcommand_help_heading("Subcommands")
        .args(store_options())
        .subcommands(wanted.map(|subcommand| {
            Command::new(subcommand.name).about(subcommand.about).args_override_self(true).defer(subcommand.define)
        }))
}

/// An option with one value.
fn option(id: &'static str, value_name: &'static str, parser: impl Into<ValueParser>, help: &'static str) -> Arg {
    Arg::new(id).long(id).value_name(value_name).value_parser(parser.into()).help(help)
}

/// An option without a value.
fn switch(id: &'static str, help: &'static str) -> Arg {
    Arg::new(id).long(id).action(ArgAction::SetTrue).help(help)
}

/// A word without an option.
fn word(id: &'static str, parser: impl Into<ValueParser>, help: &'static str) -> Arg {
    Arg::new(id).value_parser(parser.into()).help(help)
}

/// Where the lock table lives: accepted before and after the subcommand.
fn store_options() -> [Arg; 2] {
    let store = "The store: redis://HOST, file:///DIR [default: RLOCK_STORE or embedded]";
    let namespace = "Keep apart those who share a store [default: RLOCK_NAMESPACE, else rlock]";
    [
        option(id::STORE, "URL", values::plain, store).value_hint(ValueHint::Url).display_order(100),
        option(id::NAMESPACE, "NAME", values::plain, namespace).value_hint(ValueHint::Other).display_order(101),
    ]
    .map(|arg| arg.global(true).help_heading("Store options"))
}

fn exec(command: Command) -> Command {
    let claim = |id, short_name, help| {
        option(id, short_name, values::resource, help).action(ArgAction::Append).value_hint(ValueHint::Other)
    };
    command
        .override_usage(
            "rlock exec CLAIM... [OPTIONS] -- COMMAND [ARG]...\n       \
             rlock exec CLAIM... [OPTIONS] -c STRING\n       \
             CLAIM: --write KEY | --read KEY | --prewrite KEY | --slot KEY=N\n       \
             One CLAIM may be a bare KEY, which means --write KEY.",
        )
        .after_help(
            "Several CLAIMs are granted together or not at all. Exit: the command's own code; 75 busy, 64 usage,\n\
             65 refused, 69 no store, 76 lost, 126 or 127 not run. More: rlock man exec | man -l -",
        )
        .arg(word(id::KEY, values::resource, "What to lock for writing").value_hint(ValueHint::Other))
        .arg(stray_words())
        .arg(claim(id::READ, "KEY", "Lock KEY for reading: beside other readers"))
        .arg(claim(id::PREWRITE, "KEY", "Lock KEY for reading now and writing later: beside readers only"))
        .arg(claim(id::WRITE, "KEY", "Lock KEY for writing: alone, as a bare KEY does"))
        .arg(
            option(id::SLOT, "KEY=N", values::slot, "Take one of the N slots of KEY")
                .action(ArgAction::Append)
                .value_hint(ValueHint::Other),
        )
        .args(run_options())
        .arg(command_words())
}

/// Words after KEY. As they never parse, zsh is only asked for them behind `--`, where they are the
/// command's.
fn stray_words() -> Arg {
    word(id::STRAY, values::plain, "The command and its arguments")
        .action(ArgAction::Append)
        .num_args(1..)
        .hide(true)
        .value_hint(ValueHint::CommandName)
}

fn range(command: Command) -> Command {
    let name = command.get_name();
    let usage = format!(
        "rlock {name} KEY LO HI [OPTIONS] -- COMMAND [ARG]...\n       \
         rlock {name} KEY '[LO,HI)' [OPTIONS] -- COMMAND [ARG]..."
    );
    command
        .override_usage(usage)
        .after_help(
            "LO and HI are exact: 1.2, -3e-9, 22/7, -inf or inf. LO HI has both its ends; '[LO,HI)', '(LO,HI]'\n\
             say which they have. Negative numbers need no quotes. Exit codes are those of rlock exec.",
        )
        .arg(word(id::KEY, values::resource, "What to lock a part of").value_hint(ValueHint::Other))
        .arg(
            word(id::LO, values::plain, "The lower end, or the whole interval: '[1.2,1.8)'")
                .value_hint(ValueHint::Other),
        )
        .arg(word(id::HI, values::plain, "The upper end").value_hint(ValueHint::Other))
        .args(run_options())
        .arg(command_words())
}

/// The options of everything that runs a command.
fn run_options() -> [Arg; 10] {
    let shell_command = OsStringValueParser::new().map(values::shell_command);
    [
        switch(id::NO_WAIT, "Don't wait: exit with 75 when busy").short('n'),
        option(id::WAIT, "DUR", values::duration, "Wait no longer: 90s, 5m, 1h30m; 0 as -n [default: for ever]")
            .short('w'),
        option(id::CONFLICT_EXIT_CODE, "N", values::exit_code, "Exit with N when busy").short('E').default_value("75"),
        option(id::TTL, "DUR", values::ttl, "The lease at a server; the embedded store needs none")
            .default_value("30s"),
        option(id::GRACE, "DUR", values::duration, "When the lock is lost: from TERM to KILL").default_value("5s"),
        option(id::CONNECT_TIMEOUT, "DUR", values::connect_timeout, "How long reaching a server may take")
            .default_value("5s"),
        option(id::REPLICAS, "N", values::replicas, "Replicas of a server that must know of the lock first")
            .default_value("0"),
        switch(id::QUIET, "Say nothing when busy").short('q').conflicts_with(id::VERBOSE),
        switch(id::VERBOSE, "Say what is being done").short('v'),
        option(id::SHELL_COMMAND, "STRING", shell_command, "Run STRING by /bin/sh, in place of COMMAND")
            .short('c')
            .conflicts_with(id::COMMAND)
            .value_hint(ValueHint::CommandString),
    ]
}

/// The command to run: everything after `--`, of whatever bytes.
fn command_words() -> Arg {
    Arg::new(id::COMMAND)
        .value_parser(ValueParser::os_string())
        .num_args(1..)
        .last(true)
        .value_hint(ValueHint::CommandWithArguments)
        .help("The command and its arguments, run as they are, without a shell")
}

fn inspect(command: Command) -> Command {
    command
        .override_usage("rlock inspect [KEY]... [OPTIONS]")
        .arg(keys("What to show [default: all that is held or waited for]"))
        .arg(switch(id::JSON, "Print JSON"))
}

fn cleanup(command: Command) -> Command {
    command
        .override_usage("rlock cleanup [KEY]... [--dry-run]\n       rlock cleanup --break KEY... [--dry-run]")
        .arg(keys("What to clean [default: all]"))
        .arg(switch(id::DRY_RUN, "Only say what would be removed"))
        .arg(switch(id::BREAK, "Take live locks on KEY away, too: their commands are stopped"))
}

/// Any number of resources.
fn keys(help: &'static str) -> Arg {
    word(id::KEY, values::resource, help).action(ArgAction::Append).num_args(1..).value_hint(ValueHint::Other)
}

fn shrink(command: Command) -> Command {
    command
        .override_usage("rlock shrink LO HI [--resource KEY]\n       rlock shrink '[LO,HI)' [--resource KEY]")
        .arg(
            word(id::LO, values::plain, "The new lower end, or the whole interval: '[1.2,1.8)'")
                .required(true)
                .value_hint(ValueHint::Other),
        )
        .arg(word(id::HI, values::plain, "The new upper end").value_hint(ValueHint::Other))
        .arg(which())
}

fn downgrade(command: Command) -> Command {
    command
        .override_usage("rlock downgrade MODE [--resource KEY]")
        .arg(word(id::MODE, PossibleValuesParser::new(["read", "prewrite"]), "The new mode").required(true))
        .arg(which())
}

/// Which of several holds is meant.
fn which() -> Arg {
    option(id::RESOURCE, "KEY", values::resource, "Which lock, where the command holds several")
        .value_hint(ValueHint::Other)
}

fn completions(command: Command) -> Command {
    command
        .override_usage("rlock completions SHELL")
        .arg(word(id::SHELL, PossibleValuesParser::new(["bash", "zsh", "fish"]), "The shell").required(true))
}

fn man(command: Command) -> Command {
    let subcommands = SUBCOMMANDS.iter().map(|subcommand| (subcommand.page, subcommand.name));
    let topics = TOPICS.iter().map(|topic| (topic.page, topic.name));
    let pages = subcommands.chain(topics).map(|(page, word)| PossibleValue::new(page).alias(word));
    let pages = PossibleValuesParser::new([PossibleValue::new("rlock")].into_iter().chain(pages));
    command
        .override_usage("rlock man [PAGE]\n       rlock man --dir DIR")
        .arg(
            word(id::PAGE, pages, "The page: rlock, exec, redis and so on")
                .conflicts_with(id::DIR)
                .hide_possible_values(true),
        )
        .arg(
            option(id::DIR, "DIR", value_parser!(std::path::PathBuf), "Write all pages below DIR, in man1 and man7")
                .value_hint(ValueHint::DirPath),
        )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{SUBCOMMANDS, command, named_in};

    #[test]
    fn the_definitions_are_sound() {
        command(None).debug_assert();
        for subcommand in &SUBCOMMANDS {
            command(Some(subcommand)).debug_assert();
        }
    }

    #[test]
    fn a_subcommand_is_found_behind_the_options_of_the_store() {
        for (line, name) in [
            ("exec k -- inspect", Some("exec")),
            ("--store exec inspect", Some("inspect")),
            ("--store=exec --namespace man shrink 1 2", Some("shrink")),
            ("-x exec", Some("exec")),
            ("help exec", None),
            ("k exec", None),
            ("--store", None),
            ("--help", None),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(named_in(&words).map(|subcommand| subcommand.name), name, "{line}");
        }
    }

    #[test]
    fn only_what_is_asked_for_is_defined() {
        let exec = named_in(&["exec".into()]).expect("there is an exec");
        let command = command(Some(exec));
        let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(names, ["exec"]);
        assert_eq!(
            command.get_subcommands().flat_map(clap::Command::get_arguments).count(),
            0,
            "not before it is needed"
        );
    }
}
