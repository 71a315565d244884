//! Decides what is said to a server, and when: requests, retries, redirects, reconnects and the
//! release.
//!
//! Pure: no clock and no I/O. `exchange` is one connection at a time with what is in flight on it;
//! `verdict` and `retry` hold its rules. A `question` is one command or script call with its reply.
//! `hold` keeps a request alive: `negotiation` knows what its server says about the lock, and
//! `piecemeal` renews a lease whose slot migrates. `release` ends it.

mod exchange;
mod hold;
mod negotiation;
mod piecemeal;
mod question;
mod release;
mod retry;
#[cfg(test)]
mod testing;
mod verdict;

pub(super) use exchange::Exchange;
pub(super) use hold::HoldConversation;
pub(super) use question::{Answer, Question};
pub(super) use retry::Retry;
