//! `rlock exec` under real signals, with and without a terminal: each test is headed by the
//! sentence that it proves.
//!
//! Every program runs as the leader of a session of its own, see [`session`]: whatever the test
//! runner was started from, its terminal and its signals are none of theirs, and nothing of them
//! outlives the test. No test waits for a time to pass.

#[path = "signals/break_grant.rs"]
mod break_grant;
#[path = "signals/death.rs"]
mod death;
#[path = "signals/descendants.rs"]
mod descendants;
#[path = "signals/job_control.rs"]
mod job_control;
#[path = "signals/output.rs"]
mod output;
#[path = "signals/passing.rs"]
mod passing;
#[path = "signals/release.rs"]
mod release;
#[path = "signals/session.rs"]
mod session;
#[path = "signals/stopping.rs"]
mod stopping;
mod support;
#[path = "signals/terminal.rs"]
mod terminal;
#[path = "signals/tree.rs"]
mod tree;
#[path = "signals/waiting.rs"]
mod waiting;
#[path = "signals/waiting_line.rs"]
mod waiting_line;
