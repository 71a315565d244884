//! Generates the completion scripts from the definitions that clap parses by.

use super::invocation::Shell;
use super::table;

/// The script for one shell.
#[must_use]
pub fn script(shell: Shell) -> Vec<u8> {
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut table::command(None), "rlock", &mut script);
    script
}

/// The name of the file in which the shell looks for the script.
#[must_use]
pub fn file_name(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => "rlock.bash",
        Shell::Zsh => "_rlock",
        Shell::Fish => "rlock.fish",
    }
}
