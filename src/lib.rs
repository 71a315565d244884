//! `rlock` makes a shell command hold a lock while it runs.
//!
//! What it promises: commands whose claims conflict never run at the same time, as long as the
//! store keeps its promise (the embedded one always does on its machine); who waits is served first
//! come, first served, as far as requests conflict; what a command held is free as soon as its
//! rlock is gone, however that ended.
//!
//! The map, in the order of dependency, lowest first:
//!
//! | module | remit |
//! | --- | --- |
//! | [`lock`] | the lock model: pure, total, the same under every store |
//! | [`store`] | where the lock table lives: liveness, wake-ups, time |
//! | [`supervise`] | the command: started, signalled, stopped, reaped; a pure machine decides |
//! | [`cli`] | the command line: parser, help, man pages and completions from one source |
//! | [`cmd`] | the subcommands: options in, wiring, exit code out |
//! | [`exit`] | the exit codes |
//! | [`start`] | what comes before `main` |

// The printing macros panic where nobody can be told anything.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod cli;
pub mod cmd;
pub mod exit;
pub mod lock;
pub mod start;
pub mod store;
pub mod supervise;

mod files;
mod passwd;
mod words;

#[cfg(test)]
#[path = "../tests/support/needs.rs"]
mod needs;
