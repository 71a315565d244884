//! What a run takes from its surroundings: the environment, the configuration file, the CI system,
//! the coding agent and the sessions above it.
//!
//! - `context`: what the subcommands share: the selected store, and the sessions above.
//! - `names`: the names of the variables.
//! - `config`: the configuration file. `defaults`: the settings that it and the environment may
//!   give.
//! - `caller`: describes the person and the process that make a request, with the help of `ci` and
//!   `agent`.
//! - `request`: prepares the requests of `exec` and `acquire`.
//! - `variables`: builds the variables by which an rlock finds the lock that it runs below. `room`
//!   checks whether they fit into the command's environment.
//! - `paths`: resolves the paths of files and folders to lock.
//! - `acquired`: finds the locks of `rlock acquire`.

pub(crate) mod acquired;
pub(crate) mod agent;
pub(crate) mod caller;
mod ci;
mod config;
pub(crate) mod context;
pub(crate) mod defaults;
pub(crate) mod names;
pub(crate) mod paths;
pub(crate) mod places;
pub(crate) mod request;
pub(crate) mod room;
pub(crate) mod variables;

use rlock_store::Unusable;
use rlock_sys::{exit, streams};
use rlock_words::one_line;

/// Prints one line on standard error.
pub(crate) fn say(text: &str) {
    streams::say(&format!("rlock: {}", one_line(text)));
}

/// Reports what a store had to skip, and returns the exit code of the work on the rest.
pub(crate) fn after_all_but(unusable: &[Unusable]) -> u8 {
    unusable.iter().for_each(|found| say(&found.words.to_string()));
    if unusable.is_empty() { 0 } else { exit::UNAVAILABLE }
}
