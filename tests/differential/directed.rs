//! Tests of behaviour that only a server has, on each kind of server.

mod clock;
mod cost;
mod crowd;
mod durability;
mod fast_path;
mod formats;
mod history;
mod kept;
mod locale;
mod lost_key;
mod memory;
mod migration;
mod parts;
mod passing_over;
mod rights;

/// Defines a module for each function, with one test for each kind of server.
macro_rules! on_each_server {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            rlock_testkit::servers::on_each_kind!(super::$name);
        }
    )+};
}

use on_each_server;
