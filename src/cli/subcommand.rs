//! The entry of a subcommand in the table of all.

use clap::{Arg, ArgMatches, Command};

use super::Invocation;
use rlock_arguments::mistake::Mistake;

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
    pub(super) define: fn(Command) -> Command,
    /// Converts its matched words.
    pub(super) read: fn(ArgMatches) -> Result<Invocation, Mistake>,
    /// Whether its words include numbers, which may start with a minus sign.
    pub(super) has_numbers: bool,
}

impl Subcommand {
    /// Whether a command follows its words after `--`.
    pub(super) fn runs_command(&self) -> bool {
        (self.define)(Command::new(self.name)).get_positionals().any(Arg::is_last_set)
    }
}
