//! Hundreds and thousands of sessions on one resource.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;

use super::crowd::Crowd;
use rlock_testkit::{Lab, wait_until};

/// The crowds come one after another: each has the processors that its time limits expect.
fn alone() -> MutexGuard<'static, ()> {
    static CROWD: Mutex<()> = Mutex::new(());
    CROWD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sessions that wait for `k`, in the order of the queue.
fn queue(lab: &Lab) -> Vec<String> {
    let found = lab.inspect(["k"]);
    let waiters = found["resources"][0]["waiters"].as_array().expect("the listing has waiters");
    let position = |waiter: &Value| waiter["position"].as_u64().expect("a waiter has a position");
    assert!(waiters.iter().map(position).eq(1..=waiters.len() as u64), "positions count from 1");
    waiters.iter().map(|waiter| waiter["session"].as_str().expect("a waiter has a session").to_owned()).collect()
}

/// "A request is granted when it conflicts with no holder and with no earlier waiter." Hence
/// writers are granted first come, first served.
#[test]
fn five_hundred_waiters_are_granted_in_queue_order() {
    let _turn = alone();
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut crowd = Crowd::new(&lab);
    for _ in 0..500 {
        crowd.start(&lab, &mut lab.rlock(["exec", "k", "--", "sh", "-c", "echo $RLOCK_SESSION >> order"]));
    }
    lab.until_waiting("k", 500);
    let expected = queue(&lab);
    assert_eq!(holder.end().code(), Some(0));
    crowd.expect_success();
    let order = fs::read_to_string(lab.folder().join("order")).expect("the commands have written the file");
    assert_eq!(order.lines().collect::<Vec<_>>(), expected);
    lab.assert_idle();
}

#[test]
fn two_thousand_waiters_are_all_served() {
    let _turn = alone();
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut crowd = Crowd::new(&lab);
    let started = Instant::now();
    for _ in 0..2000 {
        crowd.start(&lab, &mut lab.rlock(["exec", "k", "--", "true"]));
    }
    lab.until_waiting("k", 2000);
    let queued = started.elapsed();
    let released = Instant::now();
    assert_eq!(holder.end().code(), Some(0));
    crowd.expect_success();
    eprintln!("2000 processes: queued in {queued:.1?}, served in {:.1?}", released.elapsed());
    lab.assert_idle();
}

/// The usual limit of 1,024 descriptors is enough to watch 300 holders of slots. The waiter notices
/// the death of any of them.
#[test]
fn waiter_notices_the_death_of_any_of_300_slot_holders() {
    let _turn = alone();
    let lab = Lab::new();
    let mut crowd = Crowd::new(&lab);
    for _ in 0..300 {
        crowd.start(&lab, &mut lab.rlock(["exec", "--slot", "k=300", "--", "sleep", "1000"]));
    }
    wait_until("300 slots are held", || lab.counts("k").0 == 300);
    for victim in [0, 150, 297] {
        let limited = format!("ulimit -n 1024; exec '{}' exec --slot k=300 -- sleep 1000", rlock_testkit::RLOCK);
        let mut command = std::process::Command::new("sh");
        lab.settle(&mut command);
        crowd.start(&lab, command.args(["-c", &limited]));
        lab.until_waiting("k", 1);
        crowd.kill(victim);
        wait_until("the waiter is granted the slot of the dead holder", || lab.counts("k") == (300, 0));
    }
    assert_eq!(crowd.output(), "");
    crowd.terminate();
}
