//! `rlock completions`: prints a completion script.

use anyhow::Context as _;

use crate::cli::completions::{self, Shell};
use crate::cli::stdout;

/// Prints the script for `shell` and returns the exit code.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn run(shell: Shell) -> anyhow::Result<u8> {
    stdout::print(&completions::script(shell)).context("cannot write the completions to standard output")?;
    Ok(0)
}
