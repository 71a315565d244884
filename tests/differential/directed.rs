//! What only a server can show, on each kind of server.

mod clock;
mod cost;
mod crowd;
mod durability;
mod locale;
mod lost_key;
mod memory;
mod passing_over;
mod rights;

/// Makes a module of tests of each function, one test for each kind of server.
macro_rules! on_each_server {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            crate::support::servers::on_each_kind!(super::$name);
        }
    )+};
}

use on_each_server;
