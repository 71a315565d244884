//! Decides what is said to a server, and when: requests, retries, redirects, reconnects and the
//! release.
//!
//! This module is pure: it has no clock and no I/O.
//!
//! - `exchange`: one connection at a time, with what is in flight on it. `verdict`: its rules.
//! - `question`: one command or script call with its reply.
//! - `requester`: the request of one session; `rlock_store::lease_client` decides what it says.
//!   `replication`: asks which replicas have the grant. `release`: gives it back.
//! - `hold`: keeps a session alive over a connection of its own. `piecemeal`: renews a lease whose
//!   slot migrates.
//! - `shared`: keeps many sessions alive over one connection. `separate`: keeps many sessions
//!   alive, each by `hold`.
//!
//! What a session sends and what a reply means for it is the same in `hold` and in `shared`. They
//! differ in what a session may do to its connection:
//!
//! | | `hold`: nobody else uses it | `shared`: others have commands in flight |
//! | --- | --- | --- |
//! | error reply to a command | a new connection, perhaps elsewhere | another try after a pause |
//! | redirect, slot that migrates | the connection moves to the other node | not in a Cluster |
//! | silence | no reply to a command of its own | no reply to any command |
//! | request that fails | the connection stays open for the release | the connection is replaced |
//! | release behind an open request | leaves at once; that reply is ignored | follows the reply |
//! | release without an answer | a second connection beside the first | the next connection |
//! | release at a master that has lost a replica | waits for the Sentinels | goes there |
//! | copies of a grant | `WAIT` holds up what is behind it | not asked for |

mod exchange;
mod hold;
mod piecemeal;
mod question;
mod release;
mod replication;
mod requester;
mod separate;
mod shared;
#[cfg(test)]
mod testing;
mod verdict;

pub use exchange::Exchange;
pub use hold::HoldConversation;
pub use question::{Question, QuestionReply};
pub use release::Release;
pub use separate::{Part, SeparateConversations};
pub use shared::SharedConversation;

pub use rlock_store::lease_client::Retry;
