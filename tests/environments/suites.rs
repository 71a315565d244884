//! Whole suites in the environments.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::{WITHIN, can_play};
use rlock_testkit::Ran;
use rlock_testkit::needs::skip_unless;

/// The suites, and the environments in which they and their servers work, too. Keepers, which many
/// tests of `cli` need, need pidfds.
const SUITES: [(&str, &[&str]); 2] = [
    ("signals", &["docker", "podman", "systemd", "old-kernel", "no-pidfd", "namespaces", "read-only"]),
    ("cli", &["docker", "podman", "systemd"]),
];

/// The test program of a suite.
fn program(suite: &str) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--locked", "--quiet", "--no-run", "--message-format", "json", "--test", suite]);
    let built = Ran::of(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
    assert_eq!(built.code(), Some(0), "{built:?}");
    let artifacts = built.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = artifacts.filter(|artifact| artifact["target"]["name"] == suite);
    let program = programs.find_map(|artifact| artifact["executable"].as_str().map(PathBuf::from));
    program.unwrap_or_else(|| panic!("cargo built no program for {suite}"))
}

/// The tests of what an environment lacks.
fn exceptions(environment: &str) -> &'static [&'static str] {
    match environment {
        // A keeper needs pidfds.
        "old-kernel" | "no-pidfd" => &["neither_guardian_nor_keeper_is_called_rlock"],
        // There is only one user.
        "namespaces" => &["killed_rlock_of_root_takes_a_command_of_another_user_along"],
        _ => &[],
    }
}

/// A test that needs what the environment refuses, such as a namespace, says so and does not run.
#[test]
#[ignore = "takes a quarter of an hour"]
fn suites_pass_in_every_environment() {
    skip_unless!(can_play());
    let mut failed = Vec::new();
    for (suite, environments) in SUITES {
        let program = program(suite);
        for environment in environments {
            let mut within = Command::new(WITHIN);
            within.arg(environment).arg(&program).arg("--quiet").env("RLOCK_TESTS_REQUIRE", "none");
            within.args(exceptions(environment).iter().flat_map(|test| ["--skip", test]));
            let status = within.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("bash is installed");
            eprintln!("{suite} in {environment}: {status}");
            if !status.success() {
                failed.push(format!("{suite} in {environment}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
