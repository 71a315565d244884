//! `rlock` makes a shell command hold a lock while it runs.
//!
//! This library is the program and not an interface for other programs. A module is public only
//! because a test or a benchmark outside of the crate uses it.
//!
//! docs/design.md explains the lock model, the stores and the supervision. docs/protocol.md
//! describes what processes share.
//!
//! The map, in the order of dependency, lowest first:
//!
//! | module | purpose |
//! | --- | --- |
//! | `tables` | the constants and tables that the model and the scripts share |
//! | [`system`] | what rlock needs of the machine: clocks, signals, files, processes, streams |
//! | [`lock`] | the lock model: pure, total, the same for every store |
//! | `words` | formats and sanitises text |
//! | [`store`] | where the lock table lives: liveness, wake-ups, time |
//! | `show` | what people read: messages, listings, histories, pictures, `rlock doctor` |
//! | `arguments` | the words that subcommands and the lines of serve's clients have in common |
//! | `supervise` | runs the command, and keeps a grant for `acquire`; pure machines decide |
//! | `serve` | the lock server: one poll loop, a pure machine for each client |
//! | `environment` | what a run takes from variables, the configuration file and the locks above |
//! | [`cli`] | the subcommands: options, reader and run of each; help, man pages and completions |
//! | `simulation` | the whole system in virtual time; only the tests have it |

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod cli;
pub mod lock;
pub mod store;
pub mod system;

mod arguments;
mod environment;
mod serve;
mod show;
#[cfg(test)]
mod simulation;
mod supervise;
mod tables;
mod words;

/// Makes the simulation faster.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What tests of the program and unit tests share names this crate.
#[cfg(test)]
extern crate self as rlock;

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

use std::ffi::OsString;

#[cfg(test)]
use support::needs;

/// Runs the program with these words, of which the first is its name, and returns the exit code.
pub fn main(words: Vec<OsString>) -> u8 {
    if let Some(name) = words.first() {
        supervise::guardian::program::run_if_called(name);
    }
    cli::start::prepare();
    if let Some(code) = cli::start::refuse_small_stack() {
        return code;
    }
    cli::main(&words)
}
