//! Lists the subcommands, each with its definition, its reader and its manual page.
//!
//! rlock must start quickly. So a subcommand's arguments are defined only on demand, and
//! [`command`] omits the other subcommands if the words name one. `cmd` selects the function of a
//! subcommand by the [`Invocation`].

use std::ffi::OsString;

use clap::builder::{PossibleValue, PossibleValuesParser, StyledStr};
use clap::{ArgMatches, Command, ValueHint, value_parser};

use super::args::{self, id};
use super::help::{self, notes};
use super::invocation::Invocation;
use super::pages;
use super::read;
use super::usage::Mistake;
use crate::lock::mode::Mode;

/// One subcommand.
pub(super) struct Subcommand {
    /// The word that selects the subcommand.
    pub(super) name: &'static str,
    /// The name of its manual page.
    pub(super) page: &'static str,
    /// The section of its manual page: 8 for a daemon, 1 for the others.
    pub(super) section: u8,
    /// A summary in one line.
    pub(super) about: &'static str,
    /// The texts of its manual page, in order; none for a subcommand of the page about `range-*`.
    pub(super) texts: &'static [&'static str],
    /// Adds its arguments to the definition.
    define: fn(Command) -> Command,
    /// Converts its matched words.
    read: fn(ArgMatches) -> Result<Invocation, Mistake>,
    /// Whether its words include numbers, which may start with a minus sign.
    pub(super) has_numbers: bool,
    /// Whether a command follows its words after `--`.
    pub(super) runs_command: bool,
}

/// What rlock does, in one line.
pub(super) const ABOUT: &str = "Hold a lock while a command runs";

/// What `--version` prints after the program's name. The first line is that of `-V`.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("RLOCK_COMMIT"),
    "\ntarget: ",
    env!("RLOCK_TARGET"),
    "\nstores: file, redis, rediss, redis+unix, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster"
);

/// Every subcommand, in the order of the help.
pub(super) static SUBCOMMANDS: [Subcommand; 18] = [
    Subcommand {
        name: "exec",
        page: "rlock-exec",
        section: 1,
        about: "Run a command while holding locks on whole resources",
        texts: &[include_str!("pages/exec.txt")],
        define: args::exec,
        read: read::exec,
        has_numbers: false,
        runs_command: true,
    },
    Subcommand {
        name: "range-read",
        page: "rlock-range-read",
        section: 1,
        about: "Run a command while holding a read lock on an interval",
        texts: &[],
        define: args::range,
        read: |matches| read::range(Mode::Read, matches),
        has_numbers: true,
        runs_command: true,
    },
    Subcommand {
        name: "range-prewrite",
        page: "rlock-range-prewrite",
        section: 1,
        about: "Run a command while holding a prewrite lock on an interval",
        texts: &[],
        define: args::range,
        read: |matches| read::range(Mode::Prewrite, matches),
        has_numbers: true,
        runs_command: true,
    },
    Subcommand {
        name: "range-write",
        page: "rlock-range-write",
        section: 1,
        about: "Run a command while holding a write lock on an interval",
        texts: &[],
        define: args::range,
        read: |matches| read::range(Mode::Write, matches),
        has_numbers: true,
        runs_command: true,
    },
    Subcommand {
        name: "acquire",
        page: "rlock-acquire",
        section: 1,
        about: "Acquire a lock that lasts for a time, or as long as a process",
        texts: &[include_str!("pages/acquire.txt")],
        define: args::acquire,
        read: read::acquire,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "renew",
        page: "rlock-renew",
        section: 1,
        about: "Let a lock of rlock acquire last longer",
        texts: &[include_str!("pages/renew.txt")],
        define: args::renew,
        read: read::renew,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "release",
        page: "rlock-release",
        section: 1,
        about: "Give back a lock of rlock acquire",
        texts: &[include_str!("pages/release.txt")],
        define: args::release,
        read: read::release,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "held",
        page: "rlock-held",
        section: 1,
        about: "Tell by the exit status whether this runs below a lock",
        texts: &[include_str!("pages/held.txt")],
        define: args::held,
        read: read::held,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "inspect",
        page: "rlock-inspect",
        section: 1,
        about: "Show who holds what and who waits",
        texts: &[include_str!("pages/inspect.txt")],
        define: args::inspect,
        read: read::inspect,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "doctor",
        page: "rlock-doctor",
        section: 1,
        about: "Check the store, and say what to do",
        texts: &[include_str!("pages/doctor.txt")],
        define: args::doctor,
        read: read::doctor,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "history",
        page: "rlock-history",
        section: 1,
        about: "Show what ran under a lock, when, and how it ended",
        texts: &[include_str!("pages/history.txt")],
        define: args::history_of_keys,
        read: read::history,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "cleanup",
        page: "rlock-cleanup",
        section: 1,
        about: "Remove what is expired or dead",
        texts: &[include_str!("pages/cleanup.txt")],
        define: args::cleanup,
        read: read::cleanup,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "break",
        page: "rlock-break",
        section: 1,
        about: "Take live locks away, and have their commands stopped",
        texts: &[include_str!("pages/break.txt")],
        define: args::break_locks,
        read: read::break_locks,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "shrink",
        page: "rlock-shrink",
        section: 1,
        about: "Inside a hold: give up part of the interval",
        texts: &[include_str!("pages/shrink.txt")],
        define: args::shrink,
        read: read::shrink,
        has_numbers: true,
        runs_command: false,
    },
    Subcommand {
        name: "downgrade",
        page: "rlock-downgrade",
        section: 1,
        about: "Inside a hold: lower its mode",
        texts: &[include_str!("pages/downgrade.txt")],
        define: args::downgrade,
        read: read::downgrade,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "serve",
        page: "rlock-serve",
        section: 8,
        about: "Serve locks to any program that speaks lines",
        texts: &[include_str!("pages/serve.txt")],
        define: args::serve,
        read: read::serve,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "completions",
        page: "rlock-completions",
        section: 1,
        about: "Print a completion script for a shell",
        texts: &[include_str!("pages/completions.txt")],
        define: args::completions,
        read: read::completions,
        has_numbers: false,
        runs_command: false,
    },
    Subcommand {
        name: "man",
        page: "rlock-man",
        section: 1,
        about: "Print a man page, or write them all",
        texts: &[include_str!("pages/man.txt")],
        define: man,
        read: read::man,
        has_numbers: false,
        runs_command: false,
    },
];

impl Subcommand {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        SUBCOMMANDS.iter().find(|subcommand| subcommand.name == name)
    }
}

/// The subcommand that the words ask for, if it exists. Its name is the first word that is neither
/// an option nor the value of an option.
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
    Subcommand::named(name.to_str()?)
}

/// The whole definition. With `only`, the definition contains no more than what parses words that
/// ask for this subcommand.
pub(super) fn command(only: Option<&Subcommand>) -> Command {
    let wanted = SUBCOMMANDS.iter().filter(|subcommand| only.is_none_or(|only| only.name == subcommand.name));
    Command::new("rlock")
        .version(env!("CARGO_PKG_VERSION"))
        .long_version(LONG_VERSION)
        .about(ABOUT)
        .override_usage("rlock [OPTIONS] SUBCOMMAND ...\n       rlock exec KEY -- COMMAND [ARG]...")
        // Without a terminal, help has this width, too.
        .max_term_width(help::COLUMNS)
        .after_help(
            "rlock exec backup -- ./backup.sh    runs the script when 'backup' is free.\n\
             'rlock help SUBCOMMAND' says more, and 'rlock man | man -l -' everything.",
        )
        // clap gets only the words after the program's name. Messages show the same name wherever
        // the program is installed.
        .no_binary_name(true)
        .bin_name("rlock")
        .subcommand_required(true)
        .subcommand_value_name("SUBCOMMAND")
        .subcommand_help_heading("Subcommands")
        .args(args::store_options())
        .subcommands(wanted.map(|subcommand| {
            Command::new(subcommand.name).about(subcommand.about).args_override_self(true).defer(subcommand.define)
        }))
}

/// The help of a subcommand, short or in full.
pub(super) fn help(subcommand: &Subcommand, is_short: bool) -> StyledStr {
    let mut root = command(Some(subcommand));
    root.build();
    let found = root.find_subcommand(subcommand.name).expect("the command has the subcommand");
    help::of(found, is_short)
}

/// Converts the words that [`command`] has matched.
pub(super) fn invocation(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let (name, matches) = matches.remove_subcommand().expect("clap requires a subcommand");
    let subcommand = Subcommand::named(&name).expect("clap takes only subcommands of the table");
    (subcommand.read)(matches)
}

fn man(command: Command) -> Command {
    let pages = pages::all().map(|page| PossibleValue::new(page.name).alias(page.word));
    command
        .override_usage("rlock man [PAGE]\n       rlock man --dir DIR")
        .after_help(notes("", &["rlock man exec | man -l -", "rlock man --dir /usr/local/share/man"]))
        .arg(
            args::word(id::PAGE, PossibleValuesParser::new(pages), "The page: rlock, exec, redis and so on")
                .conflicts_with(id::DIR)
                .hide_possible_values(true),
        )
        .arg(
            args::option(
                id::DIR,
                "DIR",
                value_parser!(std::path::PathBuf),
                "Write all pages below DIR, in man1, man7 and man8",
            )
            .value_hint(ValueHint::DirPath),
        )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{SUBCOMMANDS, command, named_in};

    #[test]
    fn definitions_pass_the_assertions_of_clap() {
        command(None).debug_assert();
        for subcommand in &SUBCOMMANDS {
            command(Some(subcommand)).debug_assert();
        }
    }

    #[test]
    fn subcommand_is_found_after_the_store_options() {
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
    fn only_the_requested_subcommand_is_defined() {
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
