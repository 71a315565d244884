//! The log of a server, on standard error.

use rlock_sys::streams;
use rlock_words::one_line;

/// Prints a line on standard error as far as it fits. A write that blocks would keep the loop from
/// its renewals.
pub(super) fn say(text: &str) {
    streams::say_what_fits(&format!("rlock: {}", one_line(text)));
}
