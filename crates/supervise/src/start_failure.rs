//! Explains why a program could not be started.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::hint;
use rlock_show::failure::Failure;
use rlock_sys::exit;
use rlock_words::reason;

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
    let is_function = || std::env::var_os(hint::function_variable(program)).is_some();
    // With a slash, the name is a path already.
    let is_here = || !program.as_encoded_bytes().contains(&b'/') && Path::new(program).is_file();
    let hint = (code == exit::NOT_FOUND).then(|| hint::hint(program, is_function(), is_here())).flatten();
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
