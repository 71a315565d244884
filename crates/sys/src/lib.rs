//! What rlock needs of the machine: clocks, waits, signals, files, processes and standard streams.
//!
//! Each file is a thin layer over calls of the kernel or the C library. Nothing here knows locks.
//!
//! - `clock`: the instants of two clocks, the machine's and the store's. `exit`: the exit codes.
//! - `alarm`: waits for descriptors until an instant. `timers`: keeps many instants.
//! - `signals`: receives signals in a poll loop. `background`: starts threads beside it.
//! - `files`, `streams`: read files, write to standard streams.
//! - `processes`, `passwd`: read /proc and the user database.
//! - `rights`: keeps a loop from the descriptors that others send.
//! - `tree_end`: the note of a guardian that a tree has ended.

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod alarm;
pub mod background;
pub mod clock;
pub mod exit;
pub mod files;
pub mod passwd;
pub mod processes;
pub mod rights;
pub mod signals;
pub mod streams;
pub mod timers;
pub mod tree_end;
