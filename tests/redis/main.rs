//! The real program on real servers: Redis 6.2, 7 and 8, and Valkey 9. Each test is headed by the
//! sentence or the pitfall that it proves.
//!
//! What the lock model grants is told by the stories, which are played on the same servers; here is
//! what a store on a server adds: leases, connections, passwords, and servers that fail. No test
//! asserts that anything is quick, but for the one thing that has to be: the command is gone before
//! its lease ends.

mod acl;
mod bad_servers;
mod cluster;
mod earlier_state;
mod exec;
mod fakes;
mod floods;
mod foreign_values;
mod forgotten_connections;
mod inspect_cleanup;
mod kinds;
mod leases;
mod pitfalls;
mod sentinel;
mod stalled_files;
#[path = "../support/mod.rs"]
mod support;
mod world;
