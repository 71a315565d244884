//! Many processes at once, and processes killed at any instant: the real program on one machine.
//!
//! What must never break: commands whose claims conflict do not overlap; who is alive is served in order; the dead leave nothing behind.
//! What is measured is printed, never asserted.

mod crowd;
mod deaths;
mod disk;
mod masses;
mod storm;
mod sums;
#[path = "../support/mod.rs"]
mod support;
