//! Moves bytes between this process and servers, and never blocks a poll loop. This module knows
//! neither a protocol nor a store.
//!
//! - `stream`: a socket with or without TLS (`tls`).
//! - `resolve`: resolves names. `race`: connects to one of several addresses, in the `order` that
//!   experience suggests.
//! - `lookup`: does in a thread of a `pool` what may block.
//! - `error`: why a server cannot be reached.

mod error;
pub(super) mod lookup;
pub(super) mod order;
pub(super) mod pool;
pub(super) mod race;
pub(super) mod resolve;
pub(super) mod stream;
pub(super) mod tls;

pub(in crate::store) use error::Spelling;
pub(crate) use error::{NetworkError, Stage};
