//! `rlock exec` under real signals, with and without a terminal: each test is headed by the
//! sentence that it proves.
//!
//! Every program runs as the leader of a session of its own, see [`session`]: whatever the test
//! runner was started from, its terminal and its signals are none of theirs, and nothing of them
//! outlives the test. No test waits for a time to pass.

mod break_grant;
mod death;
mod descendants;
mod job_control;
mod output;
mod passing;
mod release;
mod session;
mod stopping;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod tree;
mod waiting;
mod waiting_line;
