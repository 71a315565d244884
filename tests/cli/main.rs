//! The real program on the embedded store, as a user meets it: exit codes, the exact words on
//! standard error, what the command gets, and who may share a directory. Each test is headed by the
//! sentence that it proves.
//!
//! Not here: signals and terminals, and many processes at a time.

#[path = "../support/mod.rs"]
mod support;

mod cleanup;
mod command;
mod damage;
mod default_directory;
mod directory;
mod environment;
mod exit_codes;
mod inside;
mod inspect;
mod intervals;
mod messages;
mod namespaces;
mod network;
mod printed;
mod refusals;
mod stuck;
mod usage;
mod users;
