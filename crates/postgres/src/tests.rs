//! Tests of transactions on a real server, and of conversations with one in memory.

mod bounds;
mod cuts;
mod differential;
mod silence;
mod simulation;
