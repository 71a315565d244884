//! Generates the completion scripts from the definitions that clap parses by.

pub use clap_complete::Shell;
use clap_complete::{Generator as _, generate};

use super::table;

/// The shells that rlock has completions for.
pub const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// The script for one shell.
#[must_use]
pub fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut table::command(None), "rlock", &mut script);
    script
}

/// The name of the file in which the shell looks for the script.
#[must_use]
pub fn file_name(shell: Shell) -> String {
    shell.file_name("rlock")
}
