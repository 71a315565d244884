//! SIGKILL of rlock, and rlock as the first process of a pid namespace.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::session::{Session, pid, until_dead};
use crate::support::{Lab, needs, wait_until};

/// If rlock is SIGKILLed, the command dies too, and the lock is free at once.
#[test]
fn the_command_and_the_hold_die_with_rlock() {
    let lab = Lab::new();
    for _ in 0..20 {
        let mut holder = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", "trap '' TERM HUP; echo $$; sleep 1000"]);
        let command = pid(&holder.output.line());
        holder.signal(Signal::KILL);
        assert_eq!(holder.code(), 128 + 9);
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
        until_dead(command);
    }
    lab.assert_idle();
}

/// When a holder dies, the waiters that it blocked are granted at once, much faster than by any
/// polling.
#[test]
fn a_waiter_is_granted_what_a_killed_holder_held() {
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
    println!("a waiter runs {slowest:?} after the death of the holder, at the slowest of 10");
    lab.assert_idle();
}

/// When a waiter dies, the waiters behind it can be granted.
#[test]
fn a_killed_waiter_is_passed_over() {
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
fn as_the_first_process_it_reaps_what_it_inherits() {
    let lab = Lab::new();
    // Each subshell leaves a child behind, which process 1 inherits and which then ends by itself.
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

/// The same while rlock waits: the processes that it inherited end meanwhile.
#[test]
fn as_the_first_process_it_reaps_while_it_waits() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let script = "for i in 1 2 3; do read -r _ & done; exec rlock exec -v k -- true";
    let Some(mut session) = first_process(&lab, &["sh", "-c", script]) else { return };
    session.errors().expect("waits for");
    // Only unshare and rlock are left.
    wait_until("all that it inherited is reaped", || session.processes().len() == 2);
    drop(holder.end());
    assert_eq!(session.code(), 0);
}

/// As process 1, too, rlock passes signals on.
#[test]
fn as_the_first_process_it_passes_signals_on() {
    let lab = Lab::new();
    let script = "trap 'exit 6' TERM; sleep 1000 & kill -TERM 1; wait";
    let Some(mut session) = first_process(&lab, &["rlock", "exec", "k", "--", "sh", "-c", script]) else { return };
    assert_eq!(session.code(), 6);
}
