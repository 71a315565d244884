//! Generates the completion scripts from the definitions that clap parses by.

use clap_complete::{Generator as _, Shell};

use super::table;

/// The shells that rlock has a script for.
pub const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// The script for one shell.
#[must_use]
pub fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut table::command(None), "rlock", &mut script);
    script
}

/// The name of the file in which the shell looks for the script.
#[must_use]
pub fn file_name(shell: Shell) -> String {
    shell.file_name("rlock")
}
