//! Tests of the packages that packaging/build has made, and of what runs rlock in a CI.
//!
//! The tests of packages are ignored in a normal run, because the packages need an optimised
//! build. `.ci/run packages` builds the packages and runs these tests.

mod action;
mod hooks;
mod kernel;
mod packages;
mod upgrade;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rlock_testkit::{Lab, RLOCK, Ran};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The package whose file name ends so.
///
/// # Panics
/// If packaging/build has not made exactly one.
fn package(ending: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let folder = target.join("packages");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("run packaging/build first: {error}"));
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    let mut found: Vec<_> = paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    assert_eq!(found.len(), 1, "packages that end in {ending}: {found:?}");
    found.remove(0)
}

/// Runs a script of sh with these arguments, and returns what it printed. A package manager may
/// take long on a busy machine, so there is no limit.
///
/// # Panics
/// If the script fails.
fn sh(script: &str, arguments: &[&Path]) -> String {
    let output = Command::new("sh").args(["-euc", script, "sh"]).args(arguments).output().expect("sh can be started");
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A PATH with the folder of this program before the own PATH.
fn path_with(program: &Path) -> String {
    let folder = program.parent().expect("the program is in a folder").display();
    format!("{folder}:{}", std::env::var("PATH").unwrap_or_default())
}
