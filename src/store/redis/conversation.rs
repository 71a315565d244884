//! Decides what is said to a server, and when: requests, retries, redirects, reconnects and the
//! release.
//!
//! This module is pure: it has no clock and no I/O.
//!
//! - `exchange`: one connection at a time, with what is in flight on it. `verdict` and `retry`: its
//!   rules.
//! - `question`: one command or script call with its reply.
//! - `hold`: keeps a request alive. `negotiation`: knows what the server says about the lock.
//!   `piecemeal`: renews a lease whose slot migrates. `release`: ends the request.
//!   `replication`: asks which replicas have the lock.
//! - `shared`: keeps the requests of many sessions alive over one connection. `separate`: does so
//!   over a connection for each session.

mod exchange;
mod hold;
mod negotiation;
mod piecemeal;
mod question;
mod release;
mod replication;
mod retry;
mod separate;
mod shared;
#[cfg(test)]
mod testing;
mod verdict;

pub(crate) use exchange::Exchange;
pub(crate) use hold::HoldConversation;
pub(crate) use question::{Answer, Question};
pub(crate) use retry::Retry;
pub(crate) use separate::SeparateConversations;
#[cfg(test)]
pub(crate) use separate::SessionConversation;
pub(crate) use shared::SharedConversation;
