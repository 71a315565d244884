//! What all stores have in common: the operations that they offer to the subcommands, and the parts
//! that several of them use.
//!
//! A store keeps a [`rlock_model::table::LockTable`] in a place that many processes reach. The
//! store adds what the model leaves out: it finds dead sessions, wakes waiters and tells the time.
//!
//! - `operations`: the trait of a store; `sessions`: the trait of the requests of a process;
//!   `handle`: one request over them; `error`: why a store fails; `failure`: the errors of servers
//!   as a table.
//! - `lease`: what the requests of a process say to a server with leases, and when.
//! - `engine`: runs an operation on the table of a store that keeps its records itself; `records`:
//!   these records as keys and values.
//! - `network`: sockets, TLS and names; `node`: where a server listens; `address`: the parts of a
//!   URL; `secrets`, `credentials`: the password, and what becomes of one that is refused.
//! - `check`: a check of `rlock doctor`; `identity`: describes processes and sessions; `percent`:
//!   encodes text for URLs and keys.
//!
//! The stores are crates of their own: `rlock-embedded`, `rlock-redis` and `rlock-postgres`. None
//! of them uses another. The module `stores` of the program opens the one that a URL names.

// The printing macros panic if standard error is closed.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod address;
pub mod check;
pub mod credentials;
pub mod engine;
pub mod error;
mod failure;
pub mod handle;
pub mod identity;
pub mod lease;
pub mod network;
pub mod node;
pub mod operations;
pub mod percent;
pub mod records;
pub mod secrets;
pub mod sessions;

pub use error::Error;
pub use handle::{AcquireOptions, Grant, Handle, Obstruction, Released, Replicas, Return, Standing};
pub use operations::{Breaking, Changed, Elsewhere, Inspection, Notices, Store, Unusable};
pub use secrets::{Libpq, Secrets};
