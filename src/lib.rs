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
//! | [`clock`] | the instants of two clocks: the machine's and the store's |
//! | [`exit`] | the exit codes |
//! | `alarm`, `timers` | wait for descriptors until an instant, keep many instants |
//! | `signals`, `background` | receive signals in a poll loop, start threads beside it |
//! | `files`, `streams` | read files, write to standard streams |
//! | `processes`, `passwd` | read /proc and the user database |
//! | [`lock`] | the lock model: pure, total, the same for every store |
//! | `words` | formats and sanitises text |
//! | `tree_end` | the note of a guardian that a tree has ended |
//! | `identity` | describes processes, makes the ids of sessions |
//! | [`store`] | where the lock table lives: liveness, wake-ups, time |
//! | `failure`, `messages` | the text that users see, and its exit code |
//! | `view` | listings and histories as text, JSON and pictures |
//! | [`cli`] | the command line: parser, help, man pages and completions from one source |
//! | `supervise` | runs the command: starts, signals, stops and reaps it; a pure machine decides |
//! | `keeper` | the process that `acquire --pid` leaves behind: a poll loop and a pure machine |
//! | `serve` | the lock server: one poll loop, a pure machine for each client |
//! | `doctor` | the questions of `rlock doctor` |
//! | `cmd` | the subcommands: options in, wiring, exit code out |
//! | `start` | what comes before the subcommand |

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod cli;
pub mod clock;
pub mod exit;
pub mod lock;
pub mod store;

mod alarm;
mod background;
mod cmd;
mod doctor;
mod failure;
mod files;
mod identity;
mod keeper;
mod messages;
mod passwd;
mod processes;
mod serve;
mod signals;
mod start;
mod streams;
mod supervise;
mod tables;
mod timers;
mod tree_end;
mod view;
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
    start::prepare();
    cmd::main(&words)
}
