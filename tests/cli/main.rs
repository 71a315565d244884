//! Tests of the real program on the embedded store: exit codes, the exact text on standard error,
//! what the command inherits, and who may share a directory. Each test starts with the fact that it
//! proves.
//!
//! Signals, terminals and crowds of processes have suites of their own.

mod acquire;
mod agents;
mod breaking;
mod cleanup;
mod command;
mod completions;
mod config;
mod cron;
mod crowd;
mod daemons;
mod damage;
mod default_directory;
mod directory;
mod doctor;
mod environment;
mod exit_codes;
mod fleet;
mod held;
mod history;
mod holds;
mod inside;
mod inspect;
mod intervals;
mod keeper;
mod messages;
mod metrics;
mod namespaces;
mod nested;
mod network;
mod owner;
mod owner_process;
mod paths;
mod place;
mod printed;
mod refusals;
mod room;
mod runner;
mod small_disk;
mod spare;
mod standins;
mod status;
mod stuck;
mod supersede;
mod usage;
mod users;
mod waiting;
mod watch;
