//! `exec --pid`: the request ends with another process.

use std::process::{Command, Stdio};

use rlock_testkit::{Lab, Running, on_both, wait_until};

/// A process that ends when its standard input is closed.
fn owner() -> Running {
    Running::start(Command::new("cat").stdin(Stdio::piped()))
}

/// "When that process ends, a waiter leaves, a command gets TERM; 143, outcome cancelled."
#[test]
fn waiter_leaves_the_queue_when_its_process_ends() {
    on_both(|lab| {
        let _holder = lab.hold("k");
        let mut owner = owner();
        let status = lab.folder().join("status");
        let pid = owner.pid().to_string();
        let words = ["exec", "--pid", &pid, "--status-file", status.to_str().unwrap(), "k", "--", "true"];
        let waiter = Running::start(&mut lab.rlock(words));
        lab.until_waiting("k", 1);
        owner.close();
        assert_eq!(waiter.end().code(), Some(143));
        let status = std::fs::read_to_string(status).unwrap();
        assert!(status.contains(r#""outcome":"cancelled""#), "{status}");
        assert_eq!(lab.counts("k"), (1, 0));
    });
}

#[test]
fn command_gets_term_when_its_process_ends_and_decides_the_exit_code() {
    let lab = Lab::new();
    for (trap, code) in [("", 143), ("trap 'exit 5' TERM;", 5)] {
        let mut owner = owner();
        let job = format!("{trap} echo ready; while :; do sleep .01; done");
        let mut holder = Running::start(&mut lab.rlock(["exec", "--pid", &owner.pid().to_string(), "k", "-c", &job]));
        assert_eq!(holder.line(), "ready");
        owner.close();
        assert_eq!(holder.end().code(), Some(code));
        lab.assert_idle();
    }
}

/// The shell is killed, and its rlock goes on as an orphan.
#[test]
fn parent_is_a_process_to_end_with() {
    let lab = Lab::new();
    let mut shell = Command::new("sh");
    lab.settle(&mut shell);
    let program = rlock_testkit::RLOCK;
    let script = format!("{program} exec --pid parent k -c 'echo ready; exec sleep 600'; true");
    let mut shell = Running::start(shell.args(["-c", &script]));
    assert_eq!(shell.line(), "ready");
    shell.signal(rustix::process::Signal::KILL);
    wait_until("the lock is free", || lab.counts("k") == (0, 0));
}

#[test]
fn process_that_is_not_there_is_a_usage_error() {
    let lab = Lab::new();
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let pid = gone.id().to_string();
    let message = format!("--pid: there is no process {pid}: name one that runs");
    lab.run(["exec", "--pid", &pid, "k", "--", "true"]).said(64, &message);
    assert_eq!(lab.run(["exec", "--pid", "x", "k", "--", "true"]).code(), Some(64));
}
