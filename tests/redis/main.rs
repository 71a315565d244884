//! Tests of the real program on real servers: Redis 6.2, 7 and 8, and Valkey 9. Each test starts
//! with the fact that it proves.
//!
//! The stories run on the same servers and test what the lock model grants. These tests cover what
//! a store on a server adds: leases, connections, passwords, and servers that fail. No test asserts
//! that anything is fast, with one exception: the command ends before its lease.

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
mod passwords;
mod pitfalls;
mod previous_format;
mod sentinel;
mod sessions;
mod stalled_files;
mod world;
