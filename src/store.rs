//! Offers the operations of a store to the subcommands, and chooses a store by its URL.
//!
//! A store keeps a [`crate::lock::table::LockTable`] in a place that many processes reach. The
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

mod address;
mod credentials;
pub mod embedded;
pub(crate) mod engine;
mod error;
pub mod facts;
mod handle;
pub(crate) mod identity;
mod lease_client;
pub(crate) mod network;
pub(crate) mod node;
mod operations;
pub(crate) mod percent;
pub(crate) mod postgres;
mod records;
pub mod redis;
mod secrets;
pub mod sessions;
mod url;

pub(crate) use embedded::default_place;
pub use error::Error;
pub use handle::{AcquireOptions, Grant, Handle, Obstruction, Released, Replicas, Standing};
pub use operations::{Breaking, Changed, Elsewhere, Inspection, Notices, Store, Unusable};
pub use secrets::{Libpq, Secrets};
pub use url::{DEFAULT_NAMESPACE, NAMESPACE_BYTES_MAX, are_same_servers, has_password, open};
