//! `rlock exec` under real signals, with and without a terminal. The comment on each test states
//! the behaviour that the test proves.
//!
//! Every program runs as the leader of a session of its own, see [`session`]. So the terminal and
//! the signals of the test runner do not reach the programs, and no program outlives its test. No
//! test sleeps for a fixed time.

mod agents;
mod blocked;
mod break_grant;
mod death;
mod descendants;
mod job_control;
mod killed;
mod output;
mod passing;
mod ready;
mod refusals;
mod release;
mod rest;
mod session;
mod stopping;
mod surroundings;
mod terminal;
mod tree;
mod waiting;
mod waiting_line;
mod watch;
