//! What only some may do: other users, mounts and namespaces.

use std::process::{Command, Stdio};

use rustix::process::geteuid;

/// Whether this is root, whom some tests need. Who isn't is told so; in continuous integration nothing may be left out.
pub(crate) fn is_root(what: &str) -> bool {
    geteuid().is_root() || left_out(what, "it needs root")
}

/// Whether new namespaces of these kinds may be made, and the words of unshare(1) for it. `None` is told as above.
pub(crate) fn namespaces(what: &str, kinds: &[&str]) -> Option<Command> {
    let mut unshare = unshare(kinds);
    let probe = unshare.arg("true").stderr(Stdio::null()).status();
    if probe.is_ok_and(|status| status.success()) {
        Some(self::unshare(kinds))
    } else {
        left_out(what, "unshare(1) may not make namespaces here");
        None
    }
}

fn unshare(kinds: &[&str]) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(kinds);
    if !geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare
}

fn left_out(what: &str, why: &str) -> bool {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{what}: {why}");
    eprintln!("left out: {what}: {why}");
    false
}
