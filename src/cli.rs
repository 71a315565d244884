//! Parses the command line into an [`Invocation`], and generates help, man pages and completions
//! from the same definitions.
//!
//! This module reads words only: no environment, no clock, no files. clap alone asks the terminal
//! for its width, and only to wrap help. The subcommands apply variables such as `RLOCK_STORE`, and
//! check whether a store supports the request.
//!
//! The modules:
//! - [`invocation`]: the typed result, plain data.
//! - `table`: one entry for each subcommand.
//! - `args`: the arguments that clap parses by and that all generated text is made from.
//! - `numbers`: lets `-3` and `-inf` stand unquoted.
//! - `values`: converts the text of one word into its type. `claims` and `read`: convert matched
//!   words into an [`Invocation`].
//! - `lines`: parses the lines of clients of `rlock serve`.
//! - `usage`: reports each mistake in one line; `hints`: answers the habits of other programs.
//! - `help`: notes and examples at the end of each help.
//! - [`completions`] and [`pages`]: the generated reference. [`stdout`]: prints it.

mod args;
mod claims;
pub mod completions;
mod help;
mod hints;
pub mod invocation;
pub(crate) mod lines;
mod numbers;
pub mod pages;
mod read;
pub mod stdout;
mod table;
mod usage;
mod values;

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::ErrorKind;
pub use invocation::Invocation;
pub use usage::Usage;
pub(crate) use values::{
    connect_timeout as parse_connect_timeout, duration as parse_duration, history as parse_history,
    replicas as parse_replicas, ttl as parse_ttl,
};

/// Parses the words of a command line as the C library gives them: the first word is the
/// program's own name.
///
/// # Errors
/// The words are not an invocation: they ask for help or the version, or have a mistake (see
/// [`Usage`]).
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Invocation, Usage> {
    let mut words: Vec<OsString> = args.skip(1).collect();
    if words.is_empty() {
        return Err(Usage::Bare(table::command(None).render_help()));
    }
    let subcommand = table::named_in(&words);
    if subcommand.is_some_and(|subcommand| subcommand.has_numbers) {
        numbers::mark(&mut words);
    }
    let page = subcommand.map_or_else(|| "rlock".to_owned(), |subcommand| format!("rlock {}", subcommand.name));
    let is_complete = words.iter().any(|word| ["--", "-c", "--shell"].iter().any(|end| word == end));
    let matches = table::command(subcommand).try_get_matches_from(&words).map_err(|error| {
        let wants_command = !is_complete && subcommand.is_some_and(|subcommand| subcommand.runs_command);
        let is_of_exec = is_complete && subcommand.is_none() && parse(with_exec(&words)).is_ok();
        match asked_help(&error, subcommand, &words) {
            Some(help) => Usage::Information(help),
            None => Usage::of(&error, &page, wants_command, is_of_exec.then_some(&words[..])),
        }
    })?;
    table::invocation(matches).map_err(|mistake| mistake.on(&page))
}

/// The help of the subcommand that the words ask for, by an option or by `rlock help`.
fn asked_help(error: &clap::Error, subcommand: Option<&table::Subcommand>, words: &[OsString]) -> Option<StyledStr> {
    if error.kind() != ErrorKind::DisplayHelp {
        return None;
    }
    let after_help = || table::named_in(words.get(1..).filter(|_| words[0] == "help")?);
    Some(table::help(subcommand.or_else(after_help)?, help::is_short(words)))
}

/// The words of a command line that may lack the subcommand `exec`, for [`parse`].
fn with_exec(words: &[OsString]) -> impl Iterator<Item = OsString> {
    ["rlock", "exec"].into_iter().map(OsString::from).chain(words.iter().cloned())
}

/// Whether a shell evaluates what these words print, even if they have a mistake. The words are
/// those of [`parse`].
#[must_use]
pub fn is_for_eval(words: &[OsString]) -> bool {
    let is_export = |word: &OsString| word == "--export" || word.as_encoded_bytes().starts_with(b"--export=");
    words.iter().take_while(|word| *word != "--").any(is_export)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ffi::OsString;

    use super::{Invocation, Usage, parse};

    /// Parses words that are separated by spaces. `_` stands for a space within a word.
    pub(crate) fn parsed(line: &str) -> Result<Invocation, Usage> {
        parse(["rlock"].into_iter().chain(line.split_whitespace()).map(|word| OsString::from(word.replace('_', " "))))
    }

    /// The one-line message for a command line with a mistake.
    pub(crate) fn mistake(line: &str) -> String {
        match parsed(line) {
            Err(Usage::Mistake(text)) => text,
            other => panic!("'{line}' should be a mistake, not {other:?}"),
        }
    }

    #[test]
    fn nothing_at_all_gets_the_short_help() {
        let Err(Usage::Bare(help)) = parsed("") else { panic!("no words should give the short help") };
        let help = help.to_string();
        assert!(help.contains("Usage: rlock") && help.contains("range-prewrite"), "{help}");
    }

    #[test]
    fn help_and_version_are_not_mistakes() {
        for line in
            ["--help", "-h", "help", "help exec", "exec --help", "range-read -h", "help shrink", "--version", "-V"]
        {
            let Err(Usage::Information(text)) = parsed(line) else { panic!("'{line}' should print something") };
            let text = text.to_string();
            assert!(text.contains("rlock") && text.ends_with('\n'), "{line}: {text}");
        }
        assert_eq!(parsed("-V").unwrap_err().to_string(), concat!("rlock ", env!("CARGO_PKG_VERSION"), "\n"));
    }

    #[test]
    fn help_is_the_same_text_whichever_way_it_is_asked_for() {
        for name in super::table::SUBCOMMANDS.iter().map(|subcommand| subcommand.name) {
            let texts =
                [format!("{name} --help"), format!("help {name}")].map(|line| parsed(&line).unwrap_err().to_string());
            assert_eq!(texts[0], texts[1], "{name}");
        }
    }

    #[test]
    fn help_fits_a_terminal() {
        let subcommands = super::table::SUBCOMMANDS.iter().map(|subcommand| subcommand.name);
        for name in subcommands.chain([""]) {
            let text = parsed(&format!("{name} --help")).unwrap_err().to_string();
            let wide = text.lines().find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "help of {name}");
        }
    }
}
