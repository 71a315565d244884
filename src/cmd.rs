//! Runs the subcommands, one in each file: takes the options, connects the parts, and returns the
//! exit code.
//!
//! `context` reads the environment that the subcommands share, and `config` the configuration file;
//! `defaults` has the settings that both may give.
//! `request` prepares the requests of `exec` and `acquire`. `caller` describes the person and the
//! process that make a request, with the help of `ci`. `calendar` has the day of `--once-per day`.
//! `variables` builds the variables by which an rlock finds the lock that it runs below, and `room`
//! checks whether they fit into the command's environment. `nested` and `status` belong to `exec`.
//! `acquired` finds the locks of `rlock acquire`. `look` asks the terminal how listings may look,
//! and `watch` is `rlock inspect --watch`. `replaced` writes a file that the user names.

mod acquire;
mod acquired;
mod calendar;
mod caller;
mod ci;
mod cleanup;
mod completions;
mod config;
mod context;
mod defaults;
mod doctor;
mod downgrade;
mod exec;
mod held;
mod history;
mod inspect;
mod look;
mod man;
mod nested;
mod release;
mod renew;
mod replaced;
mod request;
mod room;
mod serve;
mod shrink;
pub(crate) mod start;
mod status;
mod variables;
mod watch;

use std::ffi::OsString;
use std::io;

use crate::cli::{self, Invocation, Usage};
use crate::show::failure::Failure;
use crate::store::Unusable;
use crate::system::exit;
use crate::system::streams;
use crate::words::{one_line, reason};

/// Runs a command line and returns the exit code. All messages have been printed when it returns.
pub(crate) fn main(words: &[OsString]) -> u8 {
    let caller = std::process::id();
    let code = answer(words);
    // `eval` of nothing succeeds, so a failure must print a command that fails. A keeper that has
    // failed leaves that to its caller.
    if code != 0 && cli::is_for_eval(words) && std::process::id() == caller {
        // If standard output cannot be written, the caller still gets the exit code.
        let _ = cli::stdout::print_whole(variables::failed(code).as_bytes());
    }
    code
}

fn answer(words: &[OsString]) -> u8 {
    let invocation = match cli::parse(words.iter().cloned()) {
        Ok(invocation) => invocation,
        Err(Usage::Information(text)) => {
            let text = look::styled(&text, &io::stdout());
            return cli::stdout::print(text.as_bytes()).map_or_else(
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

/// Prints one line on standard error.
fn say(text: &str) {
    streams::say(&format!("rlock: {}", one_line(text)));
}

/// Reports what a store had to skip, and returns the exit code of the work on the rest.
fn after_all_but(unusable: &[Unusable]) -> u8 {
    unusable.iter().for_each(|found| say(&found.words.to_string()));
    if unusable.is_empty() { 0 } else { exit::UNAVAILABLE }
}

fn run(invocation: Invocation, words: &[OsString]) -> anyhow::Result<u8> {
    match invocation {
        Invocation::Exec(exec) => exec::run(*exec),
        Invocation::Acquire(acquire) => acquire::run(&acquire, words),
        Invocation::Renew(renew) => renew::run(&renew),
        Invocation::Release(release) => release::run(&release),
        Invocation::Held(held) => held::run(&held),
        Invocation::Inspect(inspect) => inspect::run(&inspect),
        Invocation::Doctor(doctor) => doctor::run(&doctor),
        Invocation::History(history) => history::run(&history),
        Invocation::Cleanup(cleanup) => cleanup::run(&cleanup),
        Invocation::Shrink(shrink) => shrink::run(shrink),
        Invocation::Downgrade(downgrade) => downgrade::run(&downgrade),
        Invocation::Serve(serve) => serve::run(&serve),
        Invocation::Completions(shell) => completions::run(shell),
        Invocation::Man(man) => man::run(&man),
    }
}
