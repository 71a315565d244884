//! Moves commands and replies between this process and a server. This module knows neither locks
//! nor sessions.
//!
//! From the bytes upwards:
//!
//! - `rlock_store::network`: a socket, with TLS if the target demands it (`tls`).
//! - `link`: adds the wire protocol and the login.
//! - `locate`: finds the address of a server, in a thread where that may block. `resolve`: resolves
//!   names. `sentinels`: asks them for the master. `waiting`: waits in these threads.
//! - `route`: joins these steps into one connection that a conversation directs.
//!
//! None of these blocks a poll loop; `blocking` waits where there is none.

pub(super) mod blocking;
mod link;
mod locate;
mod resolve;
pub(super) mod route;
mod sentinels;
mod tls;
mod waiting;
