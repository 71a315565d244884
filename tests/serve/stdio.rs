//! One client on standard input and output.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use crate::on_both;
use rlock_testkit::{Lab, RLOCK, Ran, Running, wait_until};

fn session(lab: &Lab) -> Running {
    Running::start(lab.rlock(["serve", "--stdio"]).stdin(Stdio::piped()))
}

#[test]
fn coprocess_holds_the_lock_until_its_input_ends() {
    on_both(|lab| {
        let mut client = session(lab);
        client.write("LOCK k\n");
        assert_eq!(client.line(), "ok");
        lab.run(["exec", "-n", "k", "--", "true"]).failed(75);
        client.end().printed("ok\n");
        lab.assert_idle();
    });
}

#[test]
fn killed_coprocess_frees_at_once_in_the_embedded_store() {
    let lab = Lab::new();
    let mut client = session(&lab);
    client.write("LOCK k\n");
    assert_eq!(client.line(), "ok");
    client.kill();
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    lab.assert_idle();
}

#[test]
fn client_that_can_receive_nothing_holds_nothing() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut shell = Command::new("sh");
    lab.settle(&mut shell);
    // The reader of standard output ends at once, and standard input stays open.
    let script = format!("'{RLOCK}' serve --stdio | true");
    let mut client = Running::start(shell.args(["-c", &script]).stdin(Stdio::piped()));
    client.write("LOCK k\n");
    lab.until_waiting("k", 1);
    holder.end().silently(0);
    wait_until("nobody holds", || lab.counts("k") == (0, 0));
    client.end().silently(0);
}

#[test]
fn lines_may_come_from_a_file() {
    on_both(|lab| {
        let path = lab.folder().join("lines");
        fs::write(&path, "PING\nLOCK k\nUNLOCK\nLOCK k\n").expect("a file can be made");
        let mut rlock = lab.rlock(["serve", "--stdio"]);
        let ran = Ran::of(rlock.stdin(File::open(path).expect("the file is there")));
        ran.printed("pong\nok\nok\nok\n");
        lab.run(["serve", "--stdio"]).silently(0);
        lab.assert_idle();
    });
}

#[test]
fn lost_lock_ends_the_server_with_76() {
    on_both(|lab| {
        let mut client = session(lab);
        client.write("LOCK k\n");
        assert_eq!(client.line(), "ok");
        assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
        let line = client.line();
        assert!(line.starts_with("lost 'k' was taken away, "), "{line}");
        assert_eq!(client.end().code(), Some(76));
    });
}

#[test]
fn session_of_an_enclosing_exec_is_ignored() {
    let lab = Lab::new();
    let script = format!("printf 'TRY k\\n' | '{}' serve --stdio", rlock_testkit::RLOCK);
    let ran = lab.run(["exec", "k", "-c", &script]);
    assert!(ran.stdout.starts_with("busy 'k' is held for write by "), "{ran:?}");
}
