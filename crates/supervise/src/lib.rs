//! Supervises the command while its request waits and holds, from the first signal to the release.
//!
//! [`machine`] only decides: an [`event::Event`] goes in, [`event::Action`]s come out. [`run`]
//! carries the actions out and decides nothing. The other modules do the work of the loop:
//! [`signals`] receives signals; `child` signals and reaps the command; `spare` runs the spare
//! work; [`guardian`] starts both, each by `spawn` below a guardian, which kills the process tree
//! if rlock is killed; `start_failure` explains why a start failed; `canary` decides which signals
//! every process has received; `tree` separates the command's processes from all others, and
//! `killing` kills them; [`terminal`] detects the terminal and writes the status line, and `outbox`
//! keeps text that standard error does not take yet; [`notify`] hears from the command that it is
//! ready;
//! [`report`] sums up how all of it went. [`above`] finds the rlocks around this process. [`gate`]
//! stands before a command that needs room on its machine. [`keeper`] holds the lock for another
//! process, and [`owner`] watches such a process. [`place`] keeps places in queues.
//!
//! This crate accesses the store only through [`rlock_store::Handle`], and takes all text from
//! [`rlock_show::messages`].

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod above;
mod canary;
mod child;
pub mod event;
pub mod gate;
pub mod guardian;
pub mod keeper;
mod killing;
pub mod machine;
pub mod notify;
mod outbox;
pub mod owner;
pub mod place;
pub mod report;
pub mod run;
pub mod signals;
mod spare;
mod spawn;
mod start_failure;
pub mod terminal;
mod tree;
