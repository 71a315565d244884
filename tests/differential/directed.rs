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

/// Tests of a function that takes the kind of server: one for each kind.
macro_rules! on_each_server {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            use crate::support::servers::Kind;

            #[test]
            fn on_redis_6() {
                super::$name(Kind::Redis6);
            }

            #[test]
            fn on_redis_7() {
                super::$name(Kind::Redis7);
            }

            #[test]
            fn on_redis_8() {
                super::$name(Kind::Redis8);
            }

            #[test]
            fn on_valkey_9() {
                super::$name(Kind::Valkey9);
            }
        }
    )+};
}

use on_each_server;
