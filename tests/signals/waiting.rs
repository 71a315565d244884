//! Signals for a waiting rlock.

use std::hint::spin_loop;

use rustix::process::Signal;

use crate::session::{Session, until_state};
use rlock_testkit::Lab;

/// While rlock waits, a signal cancels the place in the queue. rlock exits with 128+n and starts
/// nothing.
#[test]
fn signal_while_waiting_cancels_the_request() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let beacons = lab.files();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
        let mut waiter = Session::waiter(&lab, &["echo", "started"]);
        assert_eq!(lab.counts("k"), (1, 1));
        waiter.signal(signal);
        assert_eq!(waiter.code(), 128 + signal.as_raw());
        assert_eq!(waiter.output.all(), "");
        assert_eq!(lab.counts("k"), (1, 0), "{signal:?}");
        assert_eq!(lab.files(), beacons, "{signal:?}");
    }
    drop(holder.end());
    lab.assert_idle();
}

/// By default WINCH and CONT end no process, so they cancel nothing.
#[test]
fn winch_and_cont_do_not_cancel_a_wait() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut waiter = Session::waiter(&lab, &["echo", "started"]);
    waiter.signal(Signal::WINCH);
    waiter.signal(Signal::CONT);
    drop(holder.end());
    assert_eq!(waiter.output.all(), "started\n");
    assert_eq!(waiter.code(), 0);
}

/// If the order of a signal and a grant is unknown, the signal cancels. The command is not started,
/// and the next waiter is granted the lock.
#[test]
fn signal_together_with_the_grant_cancels_the_grant() {
    let lab = Lab::new();
    for signal in [Signal::TERM, Signal::INT, Signal::USR1] {
        let holder = lab.hold("k");
        let mut waiter = Session::waiter(&lab, &["echo", "started"]);
        let mut next = Session::waiter(&lab, &["echo", "next"]);
        // Both arrive while the waiter is stopped.
        waiter.signal(Signal::STOP);
        until_state(waiter.pid(), "T");
        drop(holder.end());
        waiter.signal(signal);
        waiter.signal(Signal::CONT);
        assert_eq!(waiter.code(), 128 + signal.as_raw());
        assert_eq!(waiter.output.all(), "");
        assert_eq!(next.output.all(), "next\n");
        assert_eq!(next.code(), 0);
    }
    lab.assert_idle();
}

/// The signal comes later in each round: before, during and after the grant. The command is never
/// started, or it gets the signal. No lock is lost and no session hangs.
#[test]
fn signal_around_the_grant_is_never_lost() {
    const COMMAND: &str = "sleep 1000 & trap 'kill $!; echo term; exit 7' TERM; echo started; while :; do wait; done";
    let lab = Lab::new();
    let (mut cancelled, mut passed) = (0, 0);
    for round in 0..200 {
        let holder = lab.hold("k");
        let mut waiter = Session::waiter(&lab, &["sh", "-c", COMMAND]);
        // The test does not wait for the holder's rlock, which releases during the loop below.
        let end = std::thread::spawn(move || holder.end());
        (0..round * 3_000).for_each(|_| spin_loop());
        waiter.signal(Signal::TERM);
        let code = waiter.code();
        match (code, waiter.output.all()) {
            (143, "") => cancelled += 1,
            (7, "started\nterm\n" | "term\n") => passed += 1,
            (143, "started\n") => panic!("the signal killed a command that had set its trap"),
            other => panic!("{other:?} in round {round}"),
        }
        assert_eq!(end.join().expect("the holder ends").code(), Some(0));
        lab.assert_idle();
    }
    println!("{cancelled} cancelled or killed before the trap was set, {passed} passed on");
}
