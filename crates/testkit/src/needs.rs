//! Decides whether this machine has what a test needs beyond Rust and a C compiler.
//!
//! If something is missing, the test prints one line that gives the reason, does not run, and
//! passes. With RLOCK_TESTS_REQUIRE=all, which tests/run sets, the test fails instead.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

/// Ends a test that this machine cannot run. The condition is a function of this module, or another
/// function that calls [`left_out`].
#[macro_export]
macro_rules! skip_unless {
    ($condition:expr) => {
        if !$condition {
            return;
        }
    };
}
pub use skip_unless;

/// Whether the tests run as root, which a test needs for `purpose`.
pub fn root(purpose: &str) -> bool {
    geteuid().is_root() || left_out(&format!("only root can {purpose}"))
}

/// An unshare(1) command that makes new namespaces of these kinds, such as `--pid`, if this machine
/// allows it.
pub fn namespaces(kinds: &[&str]) -> Option<Command> {
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(kinds);
        unshare
    };
    let probe = unshare().arg("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let permitted = probe.is_ok_and(|status| status.success());
    (permitted || left_out(&format!("unshare(1) may not make namespaces here: {}", kinds.join(" ")))).then(unshare)
}

/// Like [`namespaces`] for a mount namespace in which the program is root, even if the tests run as
/// another user.
pub fn mount_namespace_as_root() -> Option<Command> {
    if geteuid().is_root() { namespaces(&["--mount"]) } else { namespaces(&["--mount", "--user", "--map-root-user"]) }
}

/// Whether these programs are in PATH.
pub fn programs(names: &[&str]) -> bool {
    are_in(&std::env::var_os("PATH").unwrap_or_default(), names)
}

/// A PATH with these daemons and their tools: those that tests/run has fetched without installing
/// them, and otherwise those of the machine.
pub fn daemons(names: &[&str]) -> Option<OsString> {
    let fetched = std::env::var_os("RLOCK_DAEMONS").map(PathBuf::from);
    let folders = fetched.iter().flat_map(|root| ["usr/sbin", "usr/bin", "bin"].map(|folder| root.join(folder)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).expect("no folder has a colon");
    are_in(&path, names).then_some(path)
}

fn are_in(path: &OsStr, names: &[&str]) -> bool {
    let is_missing = |name: &&str| !std::env::split_paths(path).any(|folder| folder.join(name).is_file());
    let missing: Vec<_> = names.iter().copied().filter(is_missing).collect();
    missing.is_empty() || left_out(&format!("not installed: {}", missing.join(", ")))
}

/// Prints why a test does not run, and returns false.
///
/// # Panics
/// If RLOCK_TESTS_REQUIRE is `all`.
pub fn left_out(reason: &str) -> bool {
    let required = std::env::var_os("RLOCK_TESTS_REQUIRE").is_some_and(|required| required == "all");
    assert!(!required, "{reason}; RLOCK_TESTS_REQUIRE=all lets no test be left out");
    say(reason)
}

/// Prints why a test does not run, and returns false. It is for needs that no machine of this kind
/// can meet.
pub fn excused(reason: &str) -> bool {
    say(reason)
}

fn say(reason: &str) -> bool {
    let thread = std::thread::current();
    // The test harness hides the output of eprintln! in a test that passes.
    let _ = writeln!(std::io::stderr(), "not run: {}: {reason}", thread.name().unwrap_or("a test"));
    false
}
