//! The exit status: the status of the command, and rlock's own codes.

use std::fs;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;

use crate::users;
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, Ran, on_both};

/// "The exit status is the command's own"
#[test]
fn exit_status_is_that_of_the_command() {
    on_both(|lab| {
        for code in 0..=255 {
            lab.run(["exec", "k", "-c", &format!("exit {code}")]).silently(code);
        }
        lab.assert_idle();
    });
}

/// "128+n if signal n ended it"
#[test]
fn command_killed_by_signal_n_exits_128_plus_n() {
    let lab = Lab::new();
    // This leaves out the signals that stop a process or do nothing to it.
    let deadly = (1..=31).filter(|signal| ![17, 18, 19, 20, 21, 22, 23, 28].contains(signal)).chain([34, 64]);
    for signal in deadly {
        let kills_itself = format!("ulimit -c 0; kill -{signal} $$");
        let mut rlock = lab.rlock(["exec", "k", "--", "sh", "-c", &kills_itself]);
        Ran::of(rlock.current_dir(lab.folder())).silently(128 + signal);
    }
    lab.assert_idle();
}

/// A busy request exits 75, or with the code of `-E`, and does not start the command.
#[test]
fn busy_request_exits_75_or_the_conflict_exit_code() {
    on_both(|lab| {
        let _holder = lab.hold("k");
        let started = lab.folder().join("started");
        let touch = started.to_str().expect("the folder's name is plain");
        for wait in [&["-n"][..], &["-w", "0"], &["-w0s"], &["--no-wait", "--wait", "0"], &["-w", "20ms"]] {
            for (option, code) in
                [(&[][..], 75), (&["-E", "0"], 0), (&["-E3"], 3), (&["--conflict-exit-code=255"], 255)]
            {
                let words = [&["exec", "k"], wait, option, &["--", "touch", touch]].concat();
                assert!(lab.run(words).failed(code).starts_with("busy: 'k' is held for write by "));
            }
        }
        assert!(!started.exists(), "the command was started");
        assert_eq!(lab.counts("k"), (1, 0));
    });
}

/// "Any other failure of rlock itself." exits 125.
#[test]
fn other_failure_of_rlock_exits_125() {
    let lab = Lab::new();
    let full = "can't write to standard output: no space left on device";
    let text = std::process::Command::new("sh")
        .args(["-c", "exec \"$0\" \"$@\" >/dev/full", rlock_testkit::RLOCK])
        .args(["inspect", "--store", &lab.url()])
        .output()
        .expect("a shell");
    assert_eq!(
        (text.status.code(), String::from_utf8_lossy(&text.stderr)),
        (Some(125), format!("rlock: {full}\n").into())
    );

    let file = lab.folder().join("file");
    File::create(&file).expect("a file");
    let below = file.join("pages").display().to_string();
    lab.run(["man", "--dir", &below]).said(125, &format!("cannot create '{below}/man1': not a directory"));
}

/// rlock exits 126 if the command cannot be executed, and 127 if the command was not found.
#[test]
fn command_not_executable_exits_126_and_not_found_127() {
    let lab = Lab::new();
    let file = |name: &str, text: &str, mode| {
        let path = lab.folder().join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its permissions");
        path.display().to_string()
    };
    let plain = file("plain", "text", 0o644);
    let orphan = file("orphan", "#!/nowhere/interpreter\n", 0o755);
    let folder = lab.folder().display().to_string();
    for (program, code, why) in [
        (plain.as_str(), 126, "permission denied"),
        (&folder, 126, "permission denied"),
        (&orphan, 127, "its interpreter was not found"),
        ("/nowhere/program", 127, "not found"),
        ("no-such-program", 127, "not found"),
        ("echo hi", 127, "not found; a whole command line goes to -c, as in: rlock exec KEY -c 'echo hi'"),
        ("", 127, "not found"),
    ] {
        lab.run(["exec", "k", "--", program]).said(code, &format!("cannot run '{program}': {why}"));
        lab.assert_idle();
    }
}

/// rlock skips a directory in PATH that the user may not enter, as shells do.
#[test]
fn path_search_skips_a_directory_without_permission() {
    skip_unless!(needs::root("become a user whom permissions bind"));
    let lab = users::shared_lab();
    let closed = lab.folder().join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("its permissions");
    fs::create_dir(lab.directory()).expect("a folder");
    fs::set_permissions(lab.directory(), fs::Permissions::from_mode(0o1777)).expect("its permissions");
    let path = format!("{}:{}", closed.display(), "/usr/local/bin:/usr/bin:/bin");
    let run = |program: &str| {
        let mut rlock = users::alone(65534).rlock(&lab, &["exec", "k", "--", program]);
        Ran::of(rlock.env("PATH", &path))
    };
    run("true").silently(0);
    run("no-such-program").said(127, "cannot run 'no-such-program': not found");
}

/// A lost lock exits 76, even if the command ends with 0 after rlock has stopped it.
#[test]
fn lost_lock_exits_76_whatever_the_status_of_the_command() {
    let lab = Lab::new();
    for ends in ["trap 'exit 0' TERM", "trap 'exit 3' TERM", ":"] {
        let script = format!("{ends}; echo held; while :; do read line; done");
        let mut rlock = lab.rlock(["exec", "k", "--grace", "10s", "--", "sh", "-c", &script]);
        let mut holder = rlock_testkit::Running::start(rlock.stdin(std::process::Stdio::piped()));
        holder.expect_held();
        let done = lab.run(["cleanup", "--break", "k"]);
        assert!(done.stdout.starts_with("broke the hold for write on 'k' (whole) of "), "{done:?}");
        let text = "revoked: 'k' was revoked by 'rlock break'; the command is stopped";
        // The command's input stays open, so only the signal can end the command.
        rlock_testkit::wait_until("the holder ends", || !holder.runs());
        holder.end().said(76, text);
        lab.assert_idle();
    }
}
