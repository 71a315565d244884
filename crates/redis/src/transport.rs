//! Moves commands and replies between this process and a server. This module knows neither locks
//! nor sessions.
//!
//! From the bytes upwards:
//!
//! - `rlock_store::network`: a socket, with TLS if the target demands it (`tls`).
//! - `link`: adds the wire protocol and the login.
//! - `locate`: finds the address of a server, in a thread where that may block. `sentinels`: asks
//!   them for the master.
//! - `route`: joins these steps into one connection that a conversation directs.
//!
//! None of these blocks a poll loop; `blocking` waits where there is none, and in the threads.

pub(super) mod blocking;
mod link;
mod locate;
pub(super) mod route;
mod sentinels;
mod tls;
