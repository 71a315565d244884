//! Moves commands and replies between this process and a server. Knows neither locks nor sessions.
//!
//! From the bytes upwards: `stream` is a socket with or without TLS (`tls`), `link` adds the wire
//! protocol and the login, `locate` finds the address of a server, and `route` joins these steps
//! into one connection that a conversation directs. None of these blocks; `blocking` waits.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub(super) mod blocking;
mod link;
mod locate;
pub(super) mod route;
mod stream;
mod tls;

/// The time since the machine started, suspend included.
pub(super) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}
