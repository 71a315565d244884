//! Offers the operations of a store to the subcommands, and chooses a store by its URL.
//!
//! A store keeps a [`rlock_model::table::LockTable`] in a place that many processes reach. The
//! store adds what the model leaves out: it finds dead sessions, wakes waiters and tells the time.
//!
//! - `operations`: the trait of a store; `handle`: the trait of one request in a store; `sessions`:
//!   the trait of many requests; `error`: why a store fails.
//! - `lease_client`: the client of a store with leases, which decides what a request says.
//! - `embedded`, `redis`, `postgres`: the stores; `url`: opens the one that a URL names.
//! - `engine`: runs an operation on the table of a store that keeps its records itself; `records`:
//!   these records as keys and values.
//! - `network`: sockets, TLS and names; `node`: where a server listens; `address`: the parts of a
//!   URL; `secrets`, `credentials`: the password, and what becomes of one that is refused.
//! - `facts`: what a store tells `rlock doctor`; `identity`: describes processes and sessions;
//!   `percent`: encodes text for URLs and keys.
//!
//! These modules import from each other and never from this one, so that no import leads back to
//! where it began.

pub mod address;
pub mod credentials;
pub mod engine;
pub mod error;
pub mod facts;
pub mod handle;
pub mod identity;
pub mod lease_client;
pub mod network;
pub mod node;
pub mod operations;
pub mod percent;
pub mod records;
pub mod secrets;
pub mod sessions;

pub use error::Error;
pub use handle::{AcquireOptions, Grant, Handle, Obstruction, Released, Replicas, Standing};
pub use operations::{Breaking, Changed, Elsewhere, Inspection, Notices, Store, Unusable};
pub use secrets::{Libpq, Secrets};
