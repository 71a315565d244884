//! Explains why a program could not be started, and suggests a fix if only a shell could have run
//! it.
//!
//! Users forget that rlock starts a program and no shell. A whole command line in one word, a
//! builtin and a shell function are not programs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::Duration;

use rlock_show::failure::Failure;
use rlock_sys::exit;
use rlock_words::{reason, shell_quoted};

/// The failure of a program that cannot be run, with the exit code that a shell would give.
pub(super) fn start_failure(program: &OsStr, error: &io::Error, limit: Duration) -> Failure {
    let name = program.display();
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound if find(program) => (exit::NOT_FOUND, "its interpreter was not found".to_owned()),
        io::ErrorKind::NotFound => (exit::NOT_FOUND, "not found".to_owned()),
        // EACCES during the PATH search counts as not found: a directory that this user may not
        // enter holds no program that the user could have meant.
        io::ErrorKind::PermissionDenied if !program.as_encoded_bytes().contains(&b'/') && !find(program) => {
            (exit::NOT_FOUND, "not found".to_owned())
        }
        io::ErrorKind::TimedOut => (
            exit::NOT_EXECUTABLE,
            format!("it could not be opened within {:.1} s; see whether its file system answers", limit.as_secs_f64()),
        ),
        _ => (exit::NOT_EXECUTABLE, reason(error)),
    };
    let is_function = || std::env::var_os(function_variable(program)).is_some();
    // With a slash, the name is a path already.
    let is_here = || !program.as_encoded_bytes().contains(&b'/') && Path::new(program).is_file();
    let hint = (code == exit::NOT_FOUND).then(|| hint(program, is_function(), is_here())).flatten();
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    Failure::new(code, format!("cannot run '{name}': {why}{hint}"))
}

/// Whether the kernel's search would find a file of this name.
fn find(program: &OsStr) -> bool {
    if program.is_empty() {
        return false;
    }
    if program.as_encoded_bytes().contains(&b'/') {
        return Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// The environment variable in which bash exports the function `program`.
fn function_variable(program: &OsStr) -> OsString {
    let mut name = OsString::from("BASH_FUNC_");
    name.push(program);
    name.push("%%");
    name
}

/// A suggestion for a program that was not found. The caller appends it after `; ` to the line that
/// reports the error. `is_function` tells whether the environment has a bash function of this name,
/// see [`function_variable`], and `is_here` whether the current folder has a file of this name.
fn hint(program: &OsStr, is_function: bool, is_here: bool) -> Option<String> {
    // A name that is not UTF-8 was hardly typed, and a hint could not quote it.
    let program = program.to_str()?;
    if is_function {
        return Some(format!(
            "a shell function needs its shell, as in: rlock exec KEY -- bash -c {}",
            shell_quoted(program)
        ));
    }
    if is_here {
        // `sh nightly.sh` gives the script a `$0` without a slash.
        return Some(format!(
            "it is a file of this folder: write ./{}, or sh \"$0\" in a script that starts itself",
            shell_quoted(program)
        ));
    }
    if program.contains(|c: char| c.is_whitespace() || "|&;<>()$`\"'".contains(c)) {
        let line = if program.chars().count() > SHOWN_CHARS { "STRING".to_owned() } else { shell_quoted(program) };
        return Some(format!("a whole command line goes to -c, as in: rlock exec KEY -c {line}"));
    }
    if IN_THE_SHELL.contains(&program) {
        return Some(format!(
            "'{program}' is part of the shell and needs -c, as in: rlock exec KEY -c '{program} ...'"
        ));
    }
    None
}

/// A hint does not quote a longer command line.
const SHOWN_CHARS: usize = 60;

/// The builtins and reserved words of POSIX shells and bash. Some of them exist as programs as
/// well; the caller asks for a hint only if the program was not found.
const IN_THE_SHELL: [&str; 64] = [
    "!", ".", ":", "[", "[[", "{", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command",
    "compgen", "complete", "continue", "declare", "dirs", "disown", "echo", "enable", "eval", "exec", "exit", "export",
    "fc", "fg", "for", "function", "getopts", "hash", "help", "history", "if", "jobs", "let", "local", "logout",
    "mapfile", "popd", "printf", "pushd", "pwd", "read", "readonly", "return", "select", "set", "shift", "shopt",
    "source", "test", "time", "times", "trap", "type", "typeset", "ulimit", "umask", "unset", "wait", "while",
];

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    fn hint_for(program: &str) -> Option<String> {
        hint(OsStr::new(program), false, false)
    }

    #[test]
    fn command_line_in_one_word_gets_a_hint_to_use_c() {
        let text = |line: &str| Some(format!("a whole command line goes to -c, as in: rlock exec KEY -c {line}"));
        assert_eq!(hint_for("echo hi"), text("'echo hi'"));
        assert_eq!(hint_for("./build.sh --fast"), text("'./build.sh --fast'"));
        assert_eq!(hint_for("a&&b"), text("'a&&b'"));
        assert_eq!(hint_for("echo 'it'"), text(r"'echo '\''it'\'''"));
        assert_eq!(hint_for(&"x ".repeat(40)), text("STRING"));
    }

    #[test]
    fn shell_builtin_gets_a_hint_to_use_c() {
        let text = "'cd' is part of the shell and needs -c, as in: rlock exec KEY -c 'cd ...'";
        assert_eq!(hint_for("cd").as_deref(), Some(text));
        assert!(IN_THE_SHELL.iter().all(|word| hint_for(word).is_some()));
    }

    #[test]
    fn exported_function_gets_a_hint_to_use_its_shell() {
        let text = "a shell function needs its shell, as in: rlock exec KEY -- bash -c deploy";
        assert_eq!(hint(OsStr::new("deploy"), true, false).as_deref(), Some(text));
        assert_eq!(function_variable(OsStr::new("deploy")), "BASH_FUNC_deploy%%");
    }

    #[test]
    fn file_of_the_folder_gets_a_hint_to_name_its_path() {
        let text = "it is a file of this folder: write ./nightly.sh, or sh \"$0\" in a script that starts itself";
        assert_eq!(hint(OsStr::new("nightly.sh"), false, true).as_deref(), Some(text));
    }

    #[test]
    fn plain_program_gets_no_hint() {
        for program in ["", "mkae", "/no/such", "./cd", "cd/", "g++", "7z", "sauvegarde-été"] {
            assert_eq!(hint_for(program), None, "{program}");
        }
        assert_eq!(hint(OsStr::from_bytes(b"\xff echo"), false, false), None);
    }
}
