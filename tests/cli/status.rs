//! What a command and a script learn of a request: `--status-file`, `RLOCK_LAST`, `RLOCK_SLOT` and
//! `RLOCK_TTL`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::{Value, json};

use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran, Running, system_words, wait_until};

/// The content of the status file.
fn status(lab: &Lab) -> Value {
    let text = fs::read_to_string(lab.folder().join("status")).expect("there is a status");
    serde_json::from_str(&text).expect("the status is JSON")
}

/// Runs `exec` with a status file and these words, and returns its outcome, exit and signal.
fn outcome(lab: &Lab, words: &[&str]) -> Value {
    let _ = fs::remove_file(lab.folder().join("status"));
    Ran::of(lab.rlock([&["exec", "--status-file", "status"], words].concat()).current_dir(lab.folder()));
    let names: Vec<_> =
        fs::read_dir(lab.folder()).expect("the folder exists").flatten().map(|e| e.file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().starts_with('.')), "a file is left: {names:?}");
    let status = status(lab);
    json!([status["outcome"], status["exit"], status["signal"]])
}

/// "outcome (ran, busy, skipped, done, refused, unavailable, lost, timeout), exit, signal"
#[test]
fn status_file_tells_each_outcome_apart() {
    let lab = Lab::new();
    assert_eq!(outcome(&lab, &["k", "-c", "exit 75"]), json!(["ran", 75, null]));
    assert_eq!(outcome(&lab, &["k", "-c", "kill -9 $$"]), json!(["ran", null, 9]));
    assert_eq!(outcome(&lab, &["k", "--", "/nowhere"]), json!(["not-started", 127, null]));
    let long = ["k", "--max-runtime", "1ms", "-c", "trap 'exit 3' TERM; while :; do sleep 0.01; done"];
    let timeout = outcome(&lab, &long);
    assert_eq!(timeout[0], "timeout");
    assert_eq!(outcome(&lab, &["k", "--once-per", "1h", "--", "true"]), json!(["ran", 0, null]));
    assert_eq!(outcome(&lab, &["k", "--once-per", "1h", "--", "true"]), json!(["done", null, null]));
    let inner = [RLOCK, "exec", "--status-file", "status", "--write", "s", "--", "true"];
    let mut refused = lab.rlock([&["exec", "--slot", "s=2", "--"][..], &inner].concat());
    Ran::of(refused.current_dir(lab.folder())).failed(65);
    assert_eq!(status(&lab)["outcome"], "refused");
    assert_eq!(outcome(&lab, &["--nested", "k", "--", "true"]), json!(["lost", null, null]));
    let nowhere = ["--store", "redis://127.0.0.1:1", "k", "--", "true"];
    assert_eq!(outcome(&lab, &nowhere), json!(["unavailable", null, null]));
    let holder = lab.hold("k");
    assert_eq!(outcome(&lab, &["k", "-nq", "--", "true"]), json!(["busy", null, null]));
    assert_eq!(outcome(&lab, &["k", "-n", "-E", "0", "--", "true"]), json!(["busy", null, null]));
    assert_eq!(outcome(&lab, &["k", "-n", "--else", "exit 3", "--", "true"]), json!(["busy", null, null]));
    assert_eq!(outcome(&lab, &["k", "-n", "--skip-ok", "--", "true"]), json!(["skipped", null, null]));
    let mut waiting = lab.rlock(["exec", "--status-file", "status", "k", "--", "true"]);
    let mut waiting = Running::start(waiting.current_dir(lab.folder()));
    lab.until_waiting("k", 1);
    waiting.signal(Signal::TERM);
    wait_until("the waiter ends", || !waiting.runs());
    assert_eq!((&status(&lab)["outcome"], &status(&lab)["signal"]), (&json!("cancelled"), &json!(15)));
    holder.end().silently(0);
    let mut broken = lab.rlock(["exec", "--status-file", "status", "k"]);
    let mut broken = Running::waiter(broken.current_dir(lab.folder()));
    broken.expect_held();
    assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
    assert_eq!(broken.end().code(), Some(76));
    assert_eq!(status(&lab)["outcome"], "broken");
}

/// "waited_ms, ran_ms, token, resources"
#[test]
fn status_file_has_the_times_the_token_and_the_resources() {
    let lab = Lab::new();
    let mut rlock = lab.rlock(["exec", "--status-file", "status", "a", "--read", "b", "-c", "echo \"$RLOCK_TOKEN\""]);
    let token = Ran::of(rlock.current_dir(lab.folder())).stdout;
    let told = status(&lab);
    assert_eq!((told["token"].to_string(), &told["resources"]), (token.trim().to_owned(), &json!(["a", "b"])));
    assert!(told["waited_ms"].is_u64() && told["ran_ms"].is_u64(), "{told}");
    let holder = lab.hold("a");
    outcome(&lab, &["a", "-w", "30ms", "--", "true"]);
    let told = status(&lab);
    assert!(told["waited_ms"].as_u64() >= Some(30), "{told}");
    assert!(told["ran_ms"].is_null() && told["token"].is_null(), "{told}");
    holder.end().silently(0);
}

/// "A --status-file that can't be written (said before anything is locked, 64)."
#[test]
fn status_file_that_cannot_be_written_is_a_usage_error() {
    let lab = Lab::new();
    let folder = lab.folder().to_str().expect("a plain name").to_owned();
    for (path, reason) in [
        ("/nowhere/status", "no such file or directory"),
        ("/dev/null", "it is not a regular file"),
        ("/dev/stdout", "it is not a regular file"),
        (folder.as_str(), "it is not a regular file"),
    ] {
        let ran = lab.run(["exec", "--status-file", path, "k", "--", "true"]);
        let start = format!("--status-file: can't write '{path}': {reason}: ");
        assert!(ran.failed(64).starts_with(&start), "{ran:?}");
    }
    let text = "--status-file: '-' is not standard output here: name a file";
    lab.run(["exec", "--status-file", "-", "k", "--", "true"]).said(64, text);
    assert!(!lab.directory().exists(), "nothing was locked");
    // The file behind a link is replaced, and not the link.
    fs::write(lab.folder().join("real"), "").expect("a file can be made");
    symlink("real", lab.folder().join("status")).expect("a link can be made");
    Ran::of(lab.rlock(["exec", "--status-file", "status", "k", "--", "true"]).current_dir(lab.folder())).silently(0);
    assert!(lab.folder().join("status").is_symlink());
    assert_eq!(status(&lab)["outcome"], "ran");
}

/// Another user of the folder may have put links there, which rlock must not follow.
#[test]
fn status_file_is_written_under_a_name_that_is_not_known_before() {
    let lab = Lab::new();
    fs::write(lab.folder().join("victim"), "untouched").unwrap();
    let script = "ln -s victim .status.$$; ln -s victim .rlock-$$; exec \"$0\" exec --status-file status k -- true";
    let mut shell = Command::new("sh");
    lab.settle(&mut shell);
    Ran::of(shell.args(["-c", script, RLOCK]).current_dir(lab.folder())).silently(0);
    assert_eq!(fs::read_to_string(lab.folder().join("victim")).unwrap(), "untouched");
    assert_eq!(status(&lab)["outcome"], "ran");
}

#[test]
fn replaced_status_file_keeps_its_mode_and_owner() {
    let lab = Lab::new();
    let path = lab.folder().join("status");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let owner = if rustix::process::geteuid().is_root() { 65534 } else { rustix::process::geteuid().as_raw() };
    chown(&path, Some(owner), None).unwrap();
    let before = fs::metadata(&path).unwrap();
    Ran::of(lab.rlock(["exec", "--status-file", "status", "k", "--", "true"]).current_dir(lab.folder())).silently(0);
    let after = fs::metadata(&path).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), owner, before.gid()));
    assert!(after.ino() != before.ino() && after.len() > 0);
}

/// The file that the link leads to is made, and the link stays.
#[test]
fn status_file_behind_a_dangling_link_is_made_where_the_link_leads() {
    let lab = Lab::new();
    fs::create_dir(lab.folder().join("below")).unwrap();
    symlink("below/real", lab.folder().join("status")).unwrap();
    Ran::of(lab.rlock(["exec", "--status-file", "status", "k", "--", "true"]).current_dir(lab.folder())).silently(0);
    assert!(lab.folder().join("status").is_symlink());
    assert!(fs::symlink_metadata(lab.folder().join("below/real")).unwrap().is_file());
    symlink("cycle", lab.folder().join("cycle")).unwrap();
    let words = ["exec", "--status-file", "cycle", "k", "--", "true"];
    let ran = Ran::of(lab.rlock(words).current_dir(lab.folder()));
    let said = format!("--status-file: can't write 'cycle': {}", system_words(Errno::LOOP));
    assert!(ran.failed(64).starts_with(&said));
}

#[test]
fn status_file_that_is_a_link_of_another_user_is_refused() {
    skip_unless!(needs::root("make a link of another user"));
    let lab = Lab::new();
    fs::write(lab.folder().join("victim"), "untouched").unwrap();
    symlink("victim", lab.folder().join("status")).unwrap();
    lchown(lab.folder().join("status"), Some(65534), None).unwrap();
    let words = ["exec", "--status-file", "status", "k", "--", "true"];
    let ran = Ran::of(lab.rlock(words).current_dir(lab.folder()));
    assert!(ran.failed(64).starts_with("--status-file: can't write 'status': it is a link of uid 65534: "), "{ran:?}");
    assert_eq!(fs::read_to_string(lab.folder().join("victim")).unwrap(), "untouched");
}

/// "`exit N`, `signal N`, `lost`, `expired`, `broken`, `timeout` or `none`"
#[test]
fn command_learns_how_the_last_hold_ended() {
    let lab = Lab::new();
    let last = |command: &str| {
        let ran = lab.run(["exec", "k", "-c", &format!("echo \"$RLOCK_LAST\"; {command}")]);
        ran.stdout.trim().to_owned()
    };
    assert_eq!(last("exit 3"), "none");
    assert_eq!(last("kill -9 $$"), "exit 3");
    assert_eq!(last("true"), "signal 9");
    lab.hold("k").kill();
    assert_eq!(last("true"), "expired");
    let mut broken = lab.hold("k");
    assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
    wait_until("the holder ends", || !broken.runs());
    assert_eq!(last("true"), "broken");
    lab.run(["exec", "--max-runtime", "1ms", "k", "--", "sleep", "1000"]);
    assert_eq!(last("true"), "timeout");
    // Several claims, or a part, have no last hold. A value from outside does not stay.
    for claims in [&["k", "--write", "j"][..], &["--range-write", "k", "[1,2]"]] {
        let mut rlock = lab.rlock([&["exec"], claims, &["-c", "echo \"<$RLOCK_LAST>\""]].concat());
        Ran::of(rlock.env("RLOCK_LAST", "lost")).printed("<>\n");
    }
}

/// "`RLOCK_SLOT`: the number of the slot, 0 to N−1, the smallest free."
#[test]
fn command_learns_the_number_of_its_slot() {
    let lab = Lab::new();
    let show = ["-c", "echo \"$RLOCK_SLOT\""];
    let slot = |claims: &[&str]| lab.run([&["exec"], claims, &show].concat()).stdout;
    let first = lab.hold_by(["exec", "--slot", "s=3"]);
    assert_eq!(slot(&["--slot", "s=3"]), "1\n");
    assert_eq!(slot(&["--slot", "t=1", "--read", "r", "--slot", "s=3"]), "0\n1\n");
    let second = lab.hold_by(["exec", "--slot", "s=3"]);
    first.end().silently(0);
    assert_eq!(slot(&["--slot", "s=3"]), "0\n");
    second.end().silently(0);
    let share = [&["exec", "--slot", "s=3", "--", RLOCK, "exec", "--slot", "s=3"], &show[..]].concat();
    lab.run(share).printed("0\n");
    lab.run([&["exec", "--slot", "s=3", "--", RLOCK, "exec", "k"], &show[..]].concat()).printed("\n");
}

/// "`RLOCK_TTL` sets --ttl, and is handed to nested rlocks."
#[test]
fn ttl_comes_from_the_environment_and_reaches_nested_rlocks() {
    let lab = Lab::new();
    let show = |words: &[&str]| {
        let mut rlock = lab.rlock([&["exec", "k"], words, &["-c", "echo \"$RLOCK_TTL\""]].concat());
        Ran::of(rlock.env("RLOCK_TTL", "45s")).stdout
    };
    assert_eq!(show(&[]), "45s\n");
    assert_eq!(show(&["--ttl", "90"]), "1m30s\n");
    lab.run(["exec", "k", "-c", "echo \"<$RLOCK_TTL>\""]).printed("<>\n");
    let wrong = Ran::of(lab.rlock(["exec", "k", "--", "true"]).env("RLOCK_TTL", "soon"));
    wrong.said(64, "RLOCK_TTL: 'soon' is not a duration: write it as 90s, 5m, 1h30m or 500ms");
    Ran::of(lab.rlock(["exec", "k", "--", "true"]).env("RLOCK_TTL", "")).silently(0);
}

/// "`--splay DUR`: sleeps a uniform random part of DUR before the request; not counted in -w."
#[test]
fn splay_comes_before_the_request_and_ends_with_a_signal() {
    let lab = Lab::new();
    let begun = Instant::now();
    for _ in 0..8 {
        lab.run(["exec", "--splay", "100ms", "-w", "0", "k", "--", "true"]).silently(0);
    }
    // The chance that all 8 sleep for less than 1 ms is 10⁻¹⁶.
    assert!(begun.elapsed() > Duration::from_millis(1));
    let mut sleeping = Running::start(&mut lab.rlock(["exec", "--splay", "10000d", "k", "--", "true"]));
    let installed = format!("/proc/{}/status", sleeping.pid());
    wait_until("rlock handles TERM", || {
        let status = fs::read_to_string(&installed).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap_or("0");
        u64::from_str_radix(caught, 16).is_ok_and(|caught| caught >> 14 & 1 == 1)
    });
    sleeping.signal(Signal::TERM);
    wait_until("rlock ends", || !sleeping.runs());
    sleeping.end().silently(128 + 15);
    lab.assert_idle();
    let holder = lab.hold("k");
    let busy = lab.run(["exec", "--splay", "1ms", "-n", "k", "--", "true"]);
    assert!(busy.busy().ends_with("; nobody waits"), "{busy:?}");
    holder.end().silently(0);
}
