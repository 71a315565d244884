//! The subcommands, one file each: options in, wiring, exit code out.
//!
//! `context` has what they share of the environment, `describe` the words for who holds and who
//! waits. `room` says what fits into the command's environment.

mod cleanup;
mod completions;
mod context;
mod describe;
mod downgrade;
mod exec;
mod inspect;
mod man;
mod room;
mod shrink;

use std::ffi::OsString;
use std::io::Write;
use std::{fmt, io};

use crate::cli::{self, Invocation, Usage};
use crate::exit;
use crate::store;
use crate::words::{one_line, reason};

/// Why a subcommand ends without its result: one line for the user, and the exit code that says
/// what kind of failure it is. An error of any other type is a failure of rlock itself.
#[derive(Debug)]
struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    fn usage(text: impl Into<String>) -> Self {
        Self { code: exit::USAGE, text: text.into() }
    }

    fn refused(reason: &dyn fmt::Display) -> Self {
        Self { code: exit::REFUSED, text: format!("refused: {reason}") }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Usage(text) => Self::usage(text),
            store::Error::Refused(text) => Self::refused(&text),
            store::Error::Unavailable(text) => Self { code: exit::UNAVAILABLE, text },
        }
    }
}

/// Runs a command line and gives the exit code; whatever there was to say has been said by then.
pub fn main(args: impl Iterator<Item = OsString>) -> u8 {
    let invocation = match cli::parse(args) {
        Ok(invocation) => invocation,
        Err(Usage::Information(text)) => {
            return cli::stdout::print(text.as_bytes()).map_or_else(
                |error| {
                    say(&format!("can't write to standard output: {}", reason(&error)));
                    exit::FAILURE
                },
                |()| 0,
            );
        }
        Err(Usage::Bare(help)) => {
            // Whoever can't be told anything still gets the exit code; so below.
            let _ = io::stderr().write_all(help.as_bytes());
            return exit::USAGE;
        }
        Err(Usage::Mistake(text)) => {
            say(&text);
            return exit::USAGE;
        }
    };
    run(invocation).unwrap_or_else(|error| {
        if let Some(failure) = error.downcast_ref::<Failure>() {
            say(&failure.text);
            return failure.code;
        }
        say(&reason(&format_args!("{error:#}")));
        exit::FAILURE
    })
}

/// Says one line on standard error.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "rlock: {}", one_line(text));
}

/// Says which resources a store had to pass over, and gives the exit code of what was done for the
/// others.
fn after_all_but(unusable: &[String]) -> u8 {
    unusable.iter().for_each(|line| say(line));
    if unusable.is_empty() { 0 } else { exit::UNAVAILABLE }
}

fn run(invocation: Invocation) -> anyhow::Result<u8> {
    match invocation {
        Invocation::Exec(exec) => exec::run(exec),
        Invocation::Inspect(inspect) => inspect::run(&inspect),
        Invocation::Cleanup(cleanup) => cleanup::run(&cleanup),
        Invocation::Shrink(shrink) => shrink::run(shrink),
        Invocation::Downgrade(downgrade) => downgrade::run(&downgrade),
        Invocation::Completions(shell) => completions::run(shell),
        Invocation::Man(man) => man::run(&man),
    }
}
