//! Offers the operations of a store to the subcommands, and chooses a store by its URL.
//!
//! A store keeps a [`crate::lock::table::LockTable`] in a place that many processes reach. The
//! store adds what the model leaves out: it finds dead sessions, wakes waiters and tells the time.
//!
//! - `operations`: the trait of a store; `handle`: the trait of one request in a store; `sessions`:
//!   the trait of many requests; `error`: why a store fails.
//! - `lease_client`: the client of a store with leases, which decides what a request says.
//! - `embedded`, `redis`: the stores; `url`: opens the one that a URL names.
//! - `records`: the table's records as keys and values.
//! - `facts`: what a store tells `rlock doctor`; `identity`: describes processes and sessions;
//!   `percent`: encodes text for URLs and keys.
//!
//! These modules import from each other and never from this one, so that no import leads back to
//! where it began.

pub mod embedded;
mod error;
pub mod facts;
mod handle;
pub(crate) mod identity;
mod lease_client;
mod operations;
pub(crate) mod percent;
mod records;
pub mod redis;
pub mod sessions;
mod url;

pub(crate) use embedded::default_place;
pub use error::Error;
pub use handle::{AcquireOptions, Grant, Handle, Obstruction, Released, Replicas, Standing};
pub use operations::{Breaking, Changed, Elsewhere, Inspection, Notices, Store, Unusable};
pub use redis::Secrets;
pub use url::{DEFAULT_NAMESPACE, NAMESPACE_BYTES_MAX, are_same_servers, has_password, open};
