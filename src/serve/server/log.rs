//! The log of a server, on standard error.

use crate::system::streams;
use crate::words::one_line;

/// Prints a line on standard error as far as it fits. A write that blocks would keep the loop from
/// its renewals.
pub(super) fn say(text: &str) {
    streams::say_what_fits(&format!("rlock: {}", one_line(text)));
}
