//! The real program on real servers: Redis 6.2, 7 and 8, and Valkey 9. Each test is headed by the
//! sentence or the pitfall that it proves.
//!
//! What the lock model grants is told by the stories, which are played on the same servers; here is
//! what a store on a server adds: leases, connections, passwords, and servers that fail. No test
//! asserts that anything is quick, but for the one thing that has to be: the command is gone before
//! its lease ends.

#[path = "redis/acl.rs"]
mod acl;
#[path = "redis/bad_servers.rs"]
mod bad_servers;
#[path = "redis/cluster.rs"]
mod cluster;
#[path = "redis/earlier_state.rs"]
mod earlier_state;
#[path = "redis/exec.rs"]
mod exec;
#[path = "redis/fakes.rs"]
mod fakes;
#[path = "redis/floods.rs"]
mod floods;
#[path = "redis/foreign_values.rs"]
mod foreign_values;
#[path = "redis/forgotten_connections.rs"]
mod forgotten_connections;
#[path = "redis/inspect_cleanup.rs"]
mod inspect_cleanup;
#[path = "redis/kinds.rs"]
mod kinds;
#[path = "redis/leases.rs"]
mod leases;
#[path = "redis/pitfalls.rs"]
mod pitfalls;
#[path = "redis/sentinel.rs"]
mod sentinel;
#[path = "redis/stalled_files.rs"]
mod stalled_files;
mod support;
#[path = "redis/world.rs"]
mod world;
