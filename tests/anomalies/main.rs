//! Anomalies: each scene is repeated once for each system call of a process, and that one call
//! fails, or the process dies there.
//!
//! [`trace`] counts the calls and changes one of them, [`calls`] knows the errors of each call,
//! [`scenes`] has the scenes, and [`judge`] and [`stage`] check what a fault has left behind. An
//! ordinary run plays the same share every time, and another one with RLOCK_SEED. A failure prints
//! the command that replays it. docs/reliability.md describes what is checked.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]

#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(target_arch = "x86_64")]
mod case;
#[cfg(target_arch = "x86_64")]
mod judge;
#[cfg(target_arch = "x86_64")]
mod run;
#[cfg(target_arch = "x86_64")]
mod scenes;
#[cfg(target_arch = "x86_64")]
mod stage;
#[cfg(target_arch = "x86_64")]
mod trace;
#[cfg(target_arch = "x86_64")]
mod traced;

#[cfg(not(target_arch = "x86_64"))]
#[test]
fn no_system_call_fails() {
    rlock_testkit::needs::excused("the tracer knows the registers of x86-64 only");
}
