//! Tests of transactions on a real server.

mod bounds;
mod cuts;
mod differential;
