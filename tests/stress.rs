//! Many processes at once, and processes killed at any instant: the real program on one machine.
//!
//! What must never break: commands whose claims conflict do not overlap; who is alive is served in order; the dead leave nothing behind.
//! What is measured is printed, never asserted.

#[path = "stress/crowd.rs"]
mod crowd;
#[path = "stress/deaths.rs"]
mod deaths;
#[path = "stress/disk.rs"]
mod disk;
#[path = "stress/masses.rs"]
mod masses;
#[path = "stress/storm.rs"]
mod storm;
#[path = "stress/sums.rs"]
mod sums;
mod support;
