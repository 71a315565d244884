//! Tests what this suite shares with the simulation.

mod claims;
mod rules;
