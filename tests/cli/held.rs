//! `held`: whether a process runs below a lock, on both kinds of store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::acquire::{acquire, below};
use rlock_testkit::{Lab, RLOCK, Ran, on_both};

/// The exit codes of `held` with --read, --prewrite, --write, --slot and a bare KEY inside this
/// command.
fn inside(lab: &Lab, words: &[&str]) -> String {
    let ask = ["--read", "--prewrite", "--write", "--slot", ""].map(|mode| format!("'{RLOCK}' held {mode} k; echo $?"));
    let ran = Ran::of(lab.rlock(words).args(["-c", &ask.join("; ")]));
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran.stdout.replace('\n', "")
}

/// "exits 0 if the caller runs below a live hold of KEY in that mode or a stronger one (a bare KEY
/// means write, as in exec), else 1".
#[test]
fn held_in_a_mode_or_a_stronger_one() {
    on_both(|lab| {
        assert_eq!(inside(lab, &["exec", "k"]), "00000");
        assert_eq!(inside(lab, &["exec", "--prewrite", "k"]), "00111");
        assert_eq!(inside(lab, &["exec", "--read", "k"]), "01111");
        assert_eq!(inside(lab, &["exec", "--slot", "k=2"]), "01101");
        assert_eq!(inside(lab, &["exec", "j"]), "11111");
        assert_eq!(inside(lab, &["range-write", "k", "1", "2"]), "11111");
        assert_eq!(inside(lab, &["exec", "--range-write", "k", "(-inf,inf)"]), "00000");
    });
}

/// "the store is asked", not the environment.
#[test]
fn hold_of_another_process_or_one_that_has_ended_is_not_held() {
    on_both(|lab| {
        lab.run(["held", "k"]).silently(1);
        let _holder = lab.hold("other");
        let said = lab.run(["held", "other"]);
        let others = "not below any rlock: RLOCK_SESSION is not set; somebody else holds it: see 'rlock inspect other'";
        assert_eq!((said.code(), said.failed(1)), (Some(1), others));
        let kept = acquire(lab, &["k", "--for", "1h"]);
        let held = |words: &[&str]| Ran::of(&mut below(lab, &kept, words));
        held(&["held", "k"]).silently(0);
        held(&["exec", "j", "--", RLOCK, "held", "k"]).silently(0);
        held(&["release"]).silently(0);
        held(&["held", "k"]).silently(1);
        let _next = lab.hold("k");
        assert!(held(&["held", "k"]).failed(1).contains("; somebody else holds it: "));
    });
}

#[test]
fn killed_holder_is_not_held() {
    on_both(|lab| {
        let holder = lab.hold_by(["exec", "k", "--ttl", "1s"]);
        let session = lab.inspect(["k"])["resources"][0]["holders"][0]["session"].as_str().unwrap().to_owned();
        let held = || lab.rlock(["held", "k"]).env("RLOCK_SESSION", &session).status().unwrap().code();
        assert_eq!(held(), Some(0));
        holder.kill();
        rlock_testkit::wait_until("the hold has ended", || held() == Some(1));
    });
}

#[test]
fn mistake_exits_64_and_a_store_out_of_reach_69() {
    let lab = Lab::new();
    lab.run(["held"]).failed(64);
    lab.run(["held", "--read", "--write", "k"]).said(64, "--read and --write exclude each other: give one of them");
    let ran = Ran::of(lab.rlock(["held", "k"]).env("RLOCK_SESSION", "x"));
    assert!(ran.failed(64).starts_with("RLOCK_SESSION or RLOCK_ANCESTORS is not a list of session ids"));
    let session = "0123456789abcdef0123456789abcdef";
    let ran = Ran::of(lab.rlock(["held", "k", "--store", "file:///dev/null/x"]).env("RLOCK_SESSION", session));
    ran.failed(69);
}

/// The script of the manual that locks itself.
#[test]
fn script_that_locks_itself_runs_once_below_its_lock() {
    let lab = Lab::new();
    let path = lab.folder().join("script");
    let text = format!(
        "#!/bin/sh\nrlock() {{ '{RLOCK}' \"$@\"; }}\n'{RLOCK}' held backup || exec '{RLOCK}' exec backup -- \"$0\" \"$@\"\n\
         rlock exec -n backup -- echo \"runs $1\"\n"
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let mut shell = Command::new("sh");
    lab.settle(&mut shell);
    Ran::of(shell.arg(&path).arg("once")).printed("runs once\n");
    let mut below = lab.rlock(["exec", "backup", "--"]);
    Ran::of(below.arg(&path).arg("nested")).printed("runs nested\n");
}
