//! Lists the subcommands. Each has its entry in its own file, with its definition, its reader and
//! its manual page.
//!
//! rlock must start quickly. So a subcommand's arguments are defined only on demand, and
//! [`command`] omits the other subcommands if the words name one.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::{ArgMatches, Command};

use super::subcommand::Subcommand;
use super::{
    Invocation, acquire, cleanup, completions, doctor, downgrade, exec, held, history, inspect, man, release, renew,
    serve, shrink,
};
use rlock_arguments::mistake::Mistake;
use rlock_arguments::{help, options};

/// What rlock does, in one line.
pub(super) const ABOUT: &str = "Hold a lock while a command runs";

/// What `--version` prints after the program's name. The first line is that of `-V`.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("RLOCK_COMMIT"),
    "\ntarget: ",
    env!("RLOCK_TARGET"),
    "\nstores: file, redis, rediss, redis+unix, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster, \
     postgres, postgresql"
);

/// Every subcommand, in the order of the help.
pub(super) static SUBCOMMANDS: [Subcommand; 18] = [
    exec::EXEC,
    exec::RANGE_READ,
    exec::RANGE_PREWRITE,
    exec::RANGE_WRITE,
    acquire::ACQUIRE,
    renew::RENEW,
    release::RELEASE,
    held::HELD,
    inspect::INSPECT,
    doctor::DOCTOR,
    history::HISTORY,
    cleanup::CLEANUP,
    cleanup::BREAK,
    shrink::SHRINK,
    downgrade::DOWNGRADE,
    serve::SERVE,
    completions::COMPLETIONS,
    man::MAN,
];

/// The subcommand of this name.
pub(super) fn named(name: &str) -> Option<&'static Subcommand> {
    SUBCOMMANDS.iter().find(|subcommand| subcommand.name == name)
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
    named(name.to_str()?)
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
             'rlock help SUBCOMMAND' says more, and 'rlock man' everything. 'rlock help TOPIC'\n\
             is one screen about agents, config, cron, ci, exit-codes or stuck.",
        )
        // clap gets only the words after the program's name. Messages show the same name wherever
        // the program is installed.
        .no_binary_name(true)
        .bin_name("rlock")
        .subcommand_required(true)
        .subcommand_value_name("SUBCOMMAND")
        .subcommand_help_heading("Subcommands")
        .args(options::store_options())
        .subcommands(wanted.map(|subcommand| {
            Command::new(subcommand.name).about(subcommand.about).args_override_self(true).defer(define)
        }))
}

/// Defines the arguments of a subcommand, for which clap calls this on demand.
fn define(command: Command) -> Command {
    let subcommand = named(command.get_name()).expect("clap has only subcommands of the table");
    // A derived definition takes the comment of its struct for the summary.
    (subcommand.define)(command).about(subcommand.about).long_about(None)
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
    let subcommand = named(&name).expect("clap takes only subcommands of the table");
    (subcommand.read)(matches)
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
