//! The command line: one file for each subcommand, with its options, its reader and its run. Help,
//! man pages and completions are generated from the same definitions.
//!
//! The modules beside the subcommands:
//! - `table`: all subcommands. `subcommand`: what the table says of each.
//! - `look`: asks the terminal how listings and help may look. `stdout`: prints them.
//! - `replaced`: writes a file that the user names.
//! - `start`: what has to be done before anything else.
//! - [`pages`]: the man pages.

mod acquire;
mod cleanup;
pub mod completions;
mod doctor;
mod downgrade;
mod exec;
mod held;
mod history;
mod inspect;
mod look;
mod man;
pub mod pages;
mod release;
mod renew;
mod replaced;
mod serve;
mod shrink;
pub(crate) mod start;
mod stdout;
mod subcommand;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::ffi::OsString;
use std::io;

use clap::builder::StyledStr;
use clap::error::ErrorKind;

use self::subcommand::Subcommand;
use crate::environment::{say, variables};
use rlock_arguments::mistake::{Mistake, Usage};
use rlock_arguments::{help, numbers, usage};
use rlock_model::request::Claim;
use rlock_model::span::Span;
use rlock_show::failure::Failure;
use rlock_sys::{exit, streams};
use rlock_words::reason;

/// The topics of `rlock help`, each with its summary and its text of one screen.
const TOPICS: [(&str, &str, &str); 6] = [
    ("agents", "For coding agents that share a machine", include_str!("cli/topics/agents.txt")),
    ("config", "Where rlock locks, and /etc/rlock.conf", include_str!("cli/topics/config.txt")),
    ("cron", "Jobs of cron", include_str!("cli/topics/cron.txt")),
    ("ci", "Jobs of a CI", include_str!("cli/topics/ci.txt")),
    ("exit-codes", "What an exit status tells", include_str!("cli/topics/exit-codes.txt")),
    ("stuck", "What to do if a lock seems stuck", include_str!("cli/topics/stuck.txt")),
];

/// A parsed command line. Each subcommand has one variant, except that `exec` and the `range-*`
/// share one: they differ only in their claims.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Invocation {
    /// Run a command while claims are held.
    Exec(Box<exec::Exec>),
    /// Acquire a lock that outlives the subcommand.
    Acquire(acquire::Acquire),
    /// Let a kept hold last longer.
    Renew(renew::Renew),
    /// Give back what `acquire` has locked.
    Release(release::Release),
    /// Tell whether this process runs below a hold.
    Held(held::HeldBy, Claim),
    /// Show holders and waiters.
    Inspect(inspect::Inspect),
    /// Check the store.
    Doctor(doctor::Doctor),
    /// Show ended requests.
    History(history::History),
    /// Remove expired and dead sessions, or break grants.
    Cleanup(cleanup::Cleanup),
    /// Give up a part of a held span.
    Shrink(shrink::Shrink, Span),
    /// Lower the mode of a hold.
    Downgrade(downgrade::Downgrade),
    /// Serve locks to clients that speak lines.
    Serve(serve::Serve),
    /// Print a completion script.
    Completions(completions::Completions),
    /// Print a man page, or write all of them.
    Man(man::Man),
}

/// Runs a command line and returns the exit code. All messages have been printed when it returns.
pub(crate) fn main(words: &[OsString]) -> u8 {
    let caller = std::process::id();
    let code = answer(words);
    // `eval` of nothing succeeds, so a failure must print a command that fails. A keeper that has
    // failed leaves that to its caller.
    if code != 0 && is_for_eval(words) && std::process::id() == caller {
        // If standard output cannot be written, the caller still gets the exit code.
        let _ = stdout::print_whole(variables::failed(code).as_bytes());
    }
    code
}

fn answer(words: &[OsString]) -> u8 {
    let invocation = match parse(words.iter().cloned()) {
        Ok(invocation) => invocation,
        Err(Usage::Information(text)) => {
            let text = look::styled(&text, &io::stdout());
            return stdout::print(text.as_bytes()).map_or_else(
                |error| {
                    say(&format!("can't write to standard output: {}", reason(&error)));
                    exit::FAILURE
                },
                |()| 0,
            );
        }
        Err(Usage::Bare(help)) => {
            // If standard error cannot be written, the caller still gets the exit code. This holds
            // for the writes below too.
            let help = look::styled(&help, &io::stderr());
            streams::say(help.trim_end_matches('\n'));
            return exit::USAGE;
        }
        Err(Usage::Mistake(text)) => {
            say(&text);
            return exit::USAGE;
        }
    };
    run(invocation, words).unwrap_or_else(|error| {
        if let Some(failure) = error.downcast_ref::<Failure>() {
            say(&failure.to_string());
            return failure.code;
        }
        let causes: Vec<_> = error.chain().map(reason).collect();
        say(&causes.join(": "));
        exit::FAILURE
    })
}

fn run(invocation: Invocation, words: &[OsString]) -> anyhow::Result<u8> {
    match invocation {
        Invocation::Exec(exec) => exec::run(*exec),
        Invocation::Acquire(acquire) => acquire::run(&acquire, words),
        Invocation::Renew(renew) => renew::run(&renew),
        Invocation::Release(release) => release::run(&release),
        Invocation::Held(held, claim) => held::run(&held, &claim),
        Invocation::Inspect(inspect) => inspect::run(&inspect),
        Invocation::Doctor(doctor) => doctor::run(&doctor),
        Invocation::History(history) => history::run(&history),
        Invocation::Cleanup(cleanup) => cleanup::run(&cleanup),
        Invocation::Shrink(shrink, span) => shrink::run(&shrink, span),
        Invocation::Downgrade(downgrade) => downgrade::run(&downgrade),
        Invocation::Serve(serve) => serve::run(&serve),
        Invocation::Completions(completions) => completions::run(completions),
        Invocation::Man(man) => man::run(&man),
    }
}

/// Parses the words of a command line as the C library gives them: the first word is the
/// program's own name.
///
/// # Errors
/// The words are not an invocation: they ask for help or the version, or have a mistake (see
/// [`Usage`]).
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Invocation, Usage> {
    let mut words: Vec<OsString> = args.skip(1).collect();
    if let [help, topic] = &words[..]
        && help == "help"
        && !topic.as_encoded_bytes().starts_with(b"-")
        && table::named(&topic.to_string_lossy()).is_none()
    {
        return Err(about(&topic.to_string_lossy()));
    }
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
        if let Some(option) = usage::unknown_option(&error).filter(|_| page == "rlock acquire")
            && exec::has_option(option)
        {
            let text = format!("{option} is for the command of 'rlock exec': 'rlock acquire' runs none");
            return Mistake::plain(text).on(&page);
        }
        let before = words.iter().take_while(|word| subcommand.is_none_or(|known| *word != known.name));
        if let Some(option) = usage::unknown_option(&error).filter(|option| exec::has_option(option))
            && before.take_while(|word| word.as_encoded_bytes().starts_with(b"-")).any(|word| word == option)
        {
            let text = format!("unexpected argument '{option}': write it behind the subcommand: rlock exec {option} …");
            return Mistake::plain(text).on(&page);
        }
        let wants_command = !is_complete && subcommand.is_some_and(Subcommand::runs_command);
        let is_of_exec = is_complete && subcommand.is_none() && parse(with_exec(&words)).is_ok();
        match asked_help(&error, subcommand, &words) {
            Some(help) => Usage::Information(help),
            None => Usage::of(&error, &page, wants_command, is_of_exec.then_some(&words[..])),
        }
    })?;
    table::invocation(matches).map_err(|mistake| mistake.on(&page))
}

/// The text of a topic of `rlock help`, or which words there are.
fn about(word: &str) -> Usage {
    if let Some((.., text)) = TOPICS.iter().find(|(name, ..)| *name == word) {
        return Usage::Information((*text).into());
    }
    let topics = TOPICS.map(|(name, ..)| name);
    let names = topics.into_iter().chain(table::SUBCOMMANDS.iter().map(|subcommand| subcommand.name));
    let what = format!("no such topic or subcommand '{word}'");
    let mistake = match names.into_iter().find(|name| usage::are_alike(word, name)) {
        Some(name) => Mistake::plain(format!("{what}: did you mean 'rlock help {name}'?")),
        None => Mistake::plain(format!("{what}: the topics are {}", topics.join(", "))),
    };
    mistake.on("rlock help")
}

/// The help of the subcommand that the words ask for, by an option or by `rlock help`.
fn asked_help(error: &clap::Error, subcommand: Option<&Subcommand>, words: &[OsString]) -> Option<StyledStr> {
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
fn is_for_eval(words: &[OsString]) -> bool {
    let is_export = |word: &OsString| word == "--export" || word.as_encoded_bytes().starts_with(b"--export=");
    words.iter().take_while(|word| *word != "--").any(is_export)
}
