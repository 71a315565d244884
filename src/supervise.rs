//! Supervises the command while its request waits and holds, from the first signal to the release.
//!
//! [`machine`] only decides: an [`event::Event`] goes in, [`event::Action`]s come out. [`run`]
//! carries the actions out and decides nothing. The other modules do the work of the loop:
//! [`signals`] receives signals; [`child`] signals and reaps the command, which `spawn` starts;
//! [`guardian`] kills the command's process tree if rlock is killed; `tree` separates the command's
//! processes from all others, and `killing` kills them; [`spare`] runs the spare work; [`terminal`]
//! detects the terminal and writes the status line, and `outbox` keeps text that standard error
//! does not take yet; [`notify`] hears from the command that it is ready.
//!
//! This module accesses the store only through [`crate::store::Handle`], and takes all text from
//! [`crate::show::messages`].

pub(crate) mod child;
pub(crate) mod event;
pub(crate) mod guardian;
mod hint;
pub(crate) mod keeper;
mod killing;
pub(crate) mod machine;
pub(crate) mod notify;
mod outbox;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod signals;
pub(crate) mod spare;
mod spawn;
pub(crate) mod terminal;
mod tree;
