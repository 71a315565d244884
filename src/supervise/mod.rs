//! Runs the command while its request waits and holds, from the first signal to the release.
//!
//! [`machine`] decides and does nothing else: what happens goes in as an [`event::Event`], what is to be done comes out as
//! [`event::Action`]s. [`run`] carries them out and decides nothing. The rest are the loop's hands: [`signals`] receives,
//! [`child`] starts, signals and reaps the command, `descendants` finds what that has started, [`terminal`] asks and tells the terminal.
//!
//! How a request is made, granted or lost is no business of this module: it sees the store through [`run::Hold`] only.

pub mod child;
mod descendants;
pub mod event;
#[allow(dead_code, reason = "the start of the command will ask for the hint")]
mod hint;
pub mod machine;
pub mod run;
pub mod signals;
mod spawn;
pub mod terminal;
