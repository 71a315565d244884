//! A stopped process holds the lock on the embedded table. Signals and time limits still end every
//! other rlock.

use std::fs::{self, File};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use rlock_testkit::{Lab, Running, wait_until};

/// Locks the table, as a process does that is stopped in a transaction.
fn lock_table(lab: &Lab) -> File {
    let lock = File::open(lab.directory().join("state/lock")).expect("the lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock");
    lock
}

/// Waits until the rlock waits for the lock on the table in a second thread.
fn until_blocked(rlock: &Running) {
    let tasks = format!("/proc/{}/task", rlock.pid());
    wait_until("the request waits for the table", || fs::read_dir(&tasks).is_ok_and(|tasks| tasks.count() == 2));
}

/// Creates a lab with a store, and the text of the error for a locked table.
fn lab() -> (Lab, String) {
    let lab = Lab::new();
    lab.run(["exec", "k", "--", "true"]).silently(0);
    let text = format!(
        "the store in {} can't be used: its lock was not free for 5 seconds: another rlock works on it for \
         long, or is stopped; try again, or look for a stopped rlock and continue or end it",
        lab.directory().display()
    );
    (lab, text)
}

#[test]
fn request_behind_a_stopped_process_ends_by_term_with_143() {
    let (lab, _) = lab();
    let _stopped = lock_table(&lab);
    for signal in [Signal::TERM, Signal::INT] {
        let request = lab.wait_by(["exec", "k"]);
        until_blocked(&request);
        request.signal(signal);
        let ended = request.end();
        let code = 128 + signal.as_raw();
        let by_signal = std::os::unix::process::ExitStatusExt::signal(&ended.status) == Some(signal.as_raw());
        assert!(by_signal || ended.code() == Some(code), "{ended:?}");
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
    }
}

#[test]
fn waiter_behind_a_stopped_process_ends_by_term_with_143() {
    let (lab, _) = lab();
    let holder = lab.hold("k");
    let waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    let stopped = lock_table(&lab);
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.end().code(), Some(143));
    drop(stopped);
    holder.end().silently(0);
    lab.assert_idle();
}

#[test]
fn term_reaches_the_command_while_the_table_is_locked() {
    let (lab, text) = lab();
    let mut holder = Running::start(&mut lab.rlock([
        "exec",
        "k",
        "--",
        "sh",
        "-c",
        "trap 'echo got it; exit 7' TERM; echo runs; while :; do sleep 0.01; done",
    ]));
    assert_eq!(holder.line(), "runs");
    let _stopped = lock_table(&lab);
    holder.signal(Signal::TERM);
    let ended = holder.end();
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(7), "runs\ngot it\n"));
    let warning = format!("rlock: warning: could not release 'k', held until rlock has ended: {text}\n");
    assert_eq!(ended.stderr, warning);
}

/// When rlock ends without a release, its lock is free and the waiter gets it.
#[test]
fn lock_that_could_not_be_released_is_free_when_rlock_has_ended() {
    let (lab, _) = lab();
    let holder = lab.hold("k");
    let mut waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    let stopped = lock_table(&lab);
    assert_eq!(holder.end().code(), Some(0));
    drop(stopped);
    waiter.expect_held();
    waiter.end().silently(0);
    lab.assert_idle();
}

/// Without the table, rlock cannot know whether the resource is held. So the status is 69 and not
/// 75.
#[test]
fn wait_that_ends_while_the_table_is_locked_exits_69() {
    let (lab, text) = lab();
    let stopped = lock_table(&lab);
    for wait in [&["-n"][..], &["-w", "10ms"], &["-n", "--skip-ok=1h"]] {
        lab.run([&["exec", "k"], wait, &["--", "true"]].concat()).said(69, &format!("cannot lock 'k': {text}"));
    }
    drop(stopped);
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    let holder = lab.hold("k");
    let waiter = lab.wait_by(["exec", "k", "-w", "1500ms"]);
    lab.until_waiting("k", 1);
    let stopped = lock_table(&lab);
    waiter.end().said(69, &format!("cannot lock 'k': {text}"));
    drop(stopped);
    holder.end().silently(0);
}

#[test]
fn request_goes_on_when_the_stopped_process_continues() {
    let (lab, _) = lab();
    for wait in [&["exec", "k"][..], &["exec", "-n", "k"]] {
        let stopped = lock_table(&lab);
        let mut request = lab.wait_by(wait);
        until_blocked(&request);
        drop(stopped);
        request.expect_held();
        request.end().silently(0);
    }
    lab.assert_idle();
}

/// "A holder that is stopped keeps the lock."
/// "The busy line and `rlock inspect` say that the process of a holder or waiter is stopped."
#[test]
fn busy_line_and_inspect_show_that_a_holder_or_waiter_is_stopped() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    for session in [&holder, &waiter] {
        session.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", session.pid());
        wait_until("the process is stopped", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
    }
    let table = |state: &str| {
        let shown = lab.run(["inspect"]).stdout;
        assert!(shown.lines().any(|line| line.contains(state)), "{shown}");
    };
    table(" waits 1, stopped  ");
    table(" holds, stopped  ");
    let busy = lab.run(["exec", "-n", "k", "--", "true"]);
    assert!(busy.busy().ends_with(", its process is stopped; 1 waits"), "{busy:?}");
    holder.signal(Signal::CONT);
    waiter.signal(Signal::CONT);
    table(" holds  ");
    holder.end().silently(0);
    waiter.expect_held();
    waiter.end().silently(0);
}
