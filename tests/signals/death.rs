//! SIGKILL of rlock, and rlock as the first process of a pid namespace.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::session::{Session, pid, until_dead};
use rlock_testkit::{Lab, needs, wait_until};

/// If rlock is SIGKILLed, the command dies too, and the lock is free at once.
#[test]
fn killed_rlock_takes_its_command_along_and_frees_the_lock() {
    let lab = Lab::new();
    for _ in 0..20 {
        let mut holder = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", "trap '' TERM HUP; echo $$; sleep 1000"]);
        let command = pid(&holder.output.line());
        holder.signal(Signal::KILL);
        assert_eq!(holder.code(), 128 + 9);
        lab.run(["exec", "k", "--", "true"]).silently(0);
        until_dead(command);
    }
    lab.assert_idle();
}

/// The output of a killed rlock ends when its tree is gone and the lock is free.
#[test]
fn end_of_the_output_of_a_killed_rlock_shows_that_the_lock_is_free() {
    let lab = Lab::new();
    for _ in 0..20 {
        lab.hold("k").kill();
        assert_eq!(lab.counts("k"), (0, 0));
    }
}

/// When a holder dies, the waiters that it blocked are granted at once, much faster than by any
/// polling.
#[test]
fn waiter_is_granted_at_once_when_the_holder_is_killed() {
    let lab = Lab::new();
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let mut holder = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", "echo held; exec sleep 1000"]);
        holder.output.expect("held\n");
        let mut waiter = Session::waiter(&lab, &["echo", "granted"]);
        let killed = Instant::now();
        holder.signal(Signal::KILL);
        waiter.output.expect("granted\n");
        slowest = slowest.max(killed.elapsed());
        assert_eq!(waiter.code(), 0);
    }
    println!("slowest of 10: the waiter's command ran {slowest:?} after the holder's death");
    lab.assert_idle();
}

/// When a waiter dies, the waiters behind it can be granted.
#[test]
fn killed_waiter_is_passed_over() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let waiter = Session::waiter(&lab, &["echo", "never"]);
    let mut next = Session::waiter(&lab, &["echo", "granted"]);
    waiter.signal(Signal::KILL);
    drop(holder.end());
    assert_eq!(next.output.all(), "granted\n");
    assert_eq!(next.code(), 0);
}

/// Starts a program as the first process of a new pid namespace, if this machine allows it.
fn first_process(lab: &Lab, words: &[&str]) -> Option<Session> {
    let unshare = needs::namespaces(&["--pid", "--fork", "--mount-proc", "--kill-child"])?;
    let unshare = std::iter::once(unshare.get_program()).chain(unshare.get_args());
    Some(Session::start(lab, unshare.chain(words.iter().map(OsStr::new))))
}

/// As process 1, rlock reaps the processes that it inherits, and exits with the command's own code.
#[test]
fn rlock_as_process_1_reaps_inherited_processes() {
    let lab = Lab::new();
    // Each subshell leaves a child behind. Process 1 inherits the child, which then ends by itself.
    // The script ends when the last of these children is gone from /proc, where a zombie would
    // stay.
    let script = "\
        [ $PPID = 1 ] || exit 1
        for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.01 & :); done
        while grep -qs '^Name:.sleep' /proc/[0-9]*/status; do :; done
        exit 9";
    let Some(mut session) = first_process(&lab, &["rlock", "exec", "k", "--", "sh", "-c", script]) else { return };
    assert_eq!(session.code(), 9);
    assert_eq!(session.errors().all(), "");
    lab.assert_idle();
}

/// A waiting rlock reaps inherited processes that end.
#[test]
fn rlock_as_process_1_reaps_inherited_processes_while_it_waits() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let script = "for i in 1 2 3; do read -r _ & done; exec rlock exec -v k -- true";
    let Some(mut session) = first_process(&lab, &["sh", "-c", script]) else { return };
    session.errors().expect("waits for");
    // Only unshare and rlock are left.
    wait_until("all inherited processes are reaped", || session.processes().len() == 2);
    drop(holder.end());
    assert_eq!(session.code(), 0);
}

#[test]
fn rlock_as_process_1_passes_signals_on() {
    let lab = Lab::new();
    // No child: one that has not executed its program yet would lose the signal to a handler of sh.
    let script = "trap 'exit 6' TERM; kill -TERM 1; while :; do :; done";
    let Some(mut session) = first_process(&lab, &["rlock", "exec", "k", "--", "sh", "-c", script]) else { return };
    assert_eq!(session.code(), 6);
}
