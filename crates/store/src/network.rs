//! Moves bytes between this process and servers, and never blocks a poll loop. This module knows
//! neither a protocol nor a store.
//!
//! - `stream`: a socket with or without TLS (`tls`).
//! - `resolve`: resolves names, and connects to one of several addresses.
//! - `lookup`: does in a thread what may block.
//! - `error`: why a server cannot be reached.

mod error;
pub mod lookup;
pub mod resolve;
pub mod stream;
pub mod tls;

pub use error::Spelling;
pub use error::{NetworkError, Stage};
