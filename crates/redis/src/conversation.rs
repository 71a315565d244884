//! Decides what is said to a server, and when: requests, retries, redirects, reconnects and the
//! release.
//!
//! This module is pure: it has no clock and no I/O.
//!
//! - `exchange`: one connection at a time, with what is in flight on it. `verdict`: its rules.
//! - `question`: one command or script call with its reply.
//! - `sessions`: what is sent for each session, which `rlock_store::lease` decides.
//!   `replication`: asks which replicas have the grant. `piecemeal`: renews a lease whose slot
//!   migrates.

mod exchange;
mod piecemeal;
mod question;
mod replication;
mod sessions;
#[cfg(test)]
mod testing;
mod verdict;

pub use exchange::Exchange;
pub use question::{Question, QuestionReply};
pub use sessions::SessionsConversation;

pub use rlock_store::lease::Retry;
