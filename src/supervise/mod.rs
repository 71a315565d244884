//! Runs the command while its request waits and holds, from the first signal to the release.
//!
//! [`machine`] decides and does nothing else: an [`event::Event`] goes in, [`event::Action`]s come
//! out. [`run`] carries these out and decides nothing. The other modules do the work of the loop:
//! [`signals`] receives, [`child`] signals and reaps the command, which `spawn` starts,
//! [`guardian`] ends the command's process tree if rlock is killed, `processes` reads /proc, `tree`
//! tells the command's processes from all others, [`terminal`] asks and tells the terminal.
//!
//! How a request is made, granted or lost is no business of this module: it sees the store through
//! [`run::Hold`] only.

pub mod child;
pub mod event;
pub mod guardian;
mod hint;
pub mod machine;
mod processes;
pub mod run;
pub mod signals;
mod spawn;
pub mod terminal;
mod tree;
