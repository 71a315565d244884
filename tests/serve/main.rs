//! `rlock serve` as its clients see it: the lines, what ends a hold, the limits, who may connect,
//! sockets, signals, and the order among clients and `rlock exec`.
//!
//! The decisions about one client are tested in crates/serve/src/client/tests, state by state.

mod deadlock;
mod fuzz;
mod limits;
mod lines;
mod older_protocol;
mod order;
mod questions;
mod security;
mod signals;
mod sockets;
mod stdio;
mod stores;

use rlock_testkit::Lab;
use rlock_testkit::servers::Kind;

/// Runs a test on the embedded store and on a server.
fn on_both(test: impl Fn(&Lab)) {
    test(&Lab::new());
    if Kind::Redis7.is_present() {
        test(&Lab::on(Kind::Redis7));
    }
}

/// No options for the server.
const NONE: [&str; 0] = [];
