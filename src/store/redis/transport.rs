//! Moves commands and replies between this process and a server. This module knows neither locks
//! nor sessions.
//!
//! From the bytes upwards:
//!
//! - `stream`: a socket with or without TLS (`tls`).
//! - `link`: adds the wire protocol and the login.
//! - `locate`: finds the address of a server, in the threads of a `pool` where that may block.
//!   `resolve`: resolves names. `race`: connects to one of several addresses. `sentinels`: asks
//!   them for the master. `waiting`: waits in these threads.
//! - `route`: joins these steps into one connection that a conversation directs.
//!
//! None of these blocks a poll loop; `blocking` waits where there is none.

pub(super) mod blocking;
mod link;
mod locate;
mod pool;
mod race;
mod resolve;
pub(super) mod route;
mod sentinels;
mod stream;
mod tls;
mod waiting;
