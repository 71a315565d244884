//! `rlock` makes a shell command hold a lock while it runs.
//!
//! This library is the program and not an interface for other programs. A module is public only
//! because a test or a benchmark outside of the crate uses it.
//!
//! docs/design.md explains the lock model, the stores and the supervision. docs/protocol.md
//! describes what processes share.
//!
//! `cli` has a file for each subcommand, `environment` what a run takes from variables, the
//! configuration file and the locks around it, and `stores` opens the store that a URL names. All
//! else is in `crates`; CONTRIBUTING.md has the map.

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod cli;

mod environment;
pub mod stores;

use std::ffi::OsString;

/// Runs the program with these words, of which the first is its name, and returns the exit code.
pub fn main(words: Vec<OsString>) -> u8 {
    if let Some(name) = words.first() {
        rlock_supervise::guardian::program::run_if_called(name);
    }
    cli::start::prepare();
    if let Some(code) = cli::start::refuse_small_stack() {
        return code;
    }
    cli::main(&words)
}
