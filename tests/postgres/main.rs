//! Tests of the real program on a real PostgreSQL, alone and behind pgbouncer. Each test starts
//! with the fact that it proves.
//!
//! The stories and the tests of all stores run on the same server. These tests cover what this
//! store adds: transactions that stop half-way, poolers, passwords, roles, standbys and servers
//! that fail.

mod databases;
mod hostile;
mod logins;
mod poolers;
mod roles;
mod serving;
mod standbys;
mod transactions;
