//! The words that several subcommands, and the lines of clients of `rlock serve`, have in common:
//! their definitions for clap, their readers and their mistakes.
//!
//! This crate reads words only: no environment, no clock, no files. clap alone asks the terminal
//! for its width, and only to wrap help.
//!
//! - `options`: options of several subcommands. `request`: those of a request. `claims`: the
//!   claims. `narrowing`: the words of `shrink` and `downgrade`.
//! - `values`: converts the text of one word into its type. `numbers`: lets `-3` and `-inf` stand
//!   unquoted.
//! - `lines`: parses the lines of clients of `rlock serve`.
//! - `mistake`: what is wrong with words. `usage`: finds it in the errors of clap; `hints`: answers
//!   the habits of other programs.
//! - `help`: notes and examples at the end of each help.

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod claims;
pub mod help;
pub mod hints;
pub mod lines;
pub mod mistake;
pub mod narrowing;
pub mod numbers;
pub mod options;
pub mod request;
pub mod usage;
pub mod values;
