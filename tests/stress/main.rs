//! Runs the real program on one machine: many processes at once, and processes killed at any
//! instant.
//!
//! The tests assert three invariants. Commands whose claims conflict do not overlap. Live waiters
//! are granted in queue order. Dead sessions leave nothing behind. Durations are printed, never
//! asserted.

mod crowd;
mod deaths;
mod disk;
mod masses;
mod storm;
mod sums;
