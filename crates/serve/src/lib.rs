//! `rlock serve`: serves locks to any program that speaks lines, over any store.
//!
//! - `line`: what a line asks for; `input`: splits bytes into lines.
//! - `client`: decides everything about one client, by the `rules` of the server, without a clock,
//!   a socket or randomness; `event`: its vocabulary.
//! - `listen`: the listening sockets; `peer`: describes the client of a connection; `token`: the
//!   token that clients must send.
//! - `connection`: the bytes of one connection; `listing`: what clients have not read yet.
//! - `worker`: asks the store the questions that may take long, in a thread of its own;
//!   `questions`: which is next.
//! - `server`: the clients, their connections and their sessions; `run`: the poll loop.
//!
//! One thread serves all clients. The requests of all clients go through one
//! [`Sessions`](rlock_store::sessions::Sessions), so they share its connection or beacon.

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod client;
mod connection;
pub mod event;
mod input;
pub mod line;
mod listen;
mod listing;
mod peer;
mod questions;
pub mod rules;
pub mod run;
mod server;
pub mod token;
mod worker;
