//! Runs the command while its request waits and holds, from the first signal to the release.
//!
//! [`machine`] decides and does nothing else: an [`event::Event`] goes in, [`event::Action`]s come
//! out. [`run`] carries these out and decides nothing. The other modules do the work of the loop:
//! [`signals`] receives, [`child`] signals and reaps the command, which `spawn` starts,
//! [`guardian`] ends the command's process tree if rlock is killed, `processes` reads /proc, `tree`
//! tells the command's processes from all others, [`terminal`] asks and tells the terminal.
//!
//! This module sees the store through [`crate::store::Handle`] only, and it takes all text from
//! [`crate::messages`].

pub(crate) mod child;
pub(crate) mod event;
pub(crate) mod guardian;
mod hint;
pub(crate) mod machine;
mod processes;
pub(crate) mod run;
pub(crate) mod signals;
mod spawn;
pub(crate) mod terminal;
mod tree;
