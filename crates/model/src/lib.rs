//! The lock model: pure, total, and the same for every store.
//!
//! This crate uses no clock, environment, files, sockets, processes, threads or randomness; the
//! time is an argument. The modules, from the bottom up:
//!
//! | module | contents |
//! | --- | --- |
//! | [`tables`] | the constants and tables that the model and the scripts of a server share |
//! | [`text`] | characters that a terminal obeys or hides, which no name may contain |
//! | [`resource`], [`endpoint`], [`span`], [`mode`] | the parts of a claim |
//! | [`request`] | claims, session ids, requests and the process of a session |
//! | [`lease`] | how long a holder may rely on its grant, and when it renews the grant |
//! | [`index`] | the claims on a resource, ordered by where they begin |
//! | [`records`] | the state of the table |
//! | [`op`] | the operations and their replies |
//! | [`past`], `remember` | what a resource remembers of ended sessions; keeps and forgets it |
//! | [`kept`] | how long a hold lasts, with or without a process |
//! | `conflict`, `overtaking` | the one rule, and its exception |
//! | `nesting`, `listing` | holds of ancestors; holders and waiters |
//! | `slots` | the numbers of slots |
//! | `behind` | the waiters that a session may have blocked |
//! | [`table`] | the lock table |
//! | [`deadlock`] | the requests that wait for each other in a cycle |
//! | `samples` | values for the tests of these modules |

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod deadlock;
pub mod endpoint;
pub mod index;
pub mod kept;
pub mod lease;
pub mod mode;
pub mod op;
mod overtaking;
pub mod past;
pub mod records;
pub mod request;
pub mod resource;
pub mod span;
pub mod table;
pub mod tables;
pub mod text;

mod behind;
pub mod conflict;
mod listing;
mod nesting;
pub mod remember;
mod slots;

#[cfg(test)]
mod samples;
