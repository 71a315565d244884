//! Hundreds and thousands in one queue.

use std::fs;
use std::time::Instant;

use serde_json::Value;

use super::crowd::Crowd;
use super::support::{Lab, wait_until};

/// The sessions that wait for `k`, in the order of the queue.
fn queue(lab: &Lab) -> Vec<String> {
    let found = lab.inspect(["k"]);
    let waiters = found["resources"][0]["waiters"].as_array().expect("a list of waiters");
    let position = |waiter: &Value| waiter["position"].as_u64().expect("a place in the queue");
    assert!(waiters.iter().map(position).eq(1..=waiters.len() as u64), "the places are counted from 1");
    waiters.iter().map(|waiter| waiter["session"].as_str().expect("a session").to_owned()).collect()
}

/// "a request is granted when it conflicts with no holder and with no earlier waiter": so first come, first served.
#[test]
fn five_hundred_are_served_in_the_order_of_the_queue() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut crowd = Crowd::new(&lab);
    for _ in 0..500 {
        crowd.start(&lab, &mut lab.rlock(["exec", "k", "--", "sh", "-c", "echo $RLOCK_SESSION >> order"]));
    }
    lab.until_waiting("k", 500);
    let expected = queue(&lab);
    assert_eq!(holder.end().code(), Some(0));
    crowd.succeed();
    let order = fs::read_to_string(lab.folder().join("order")).expect("they have written it");
    assert_eq!(order.lines().collect::<Vec<_>>(), expected);
    lab.assert_idle();
}

#[test]
fn two_thousand_wait_and_all_are_served() {
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
    crowd.succeed();
    eprintln!("2000 processes: queued in {queued:.1?}, served in {:.1?}", released.elapsed());
    lab.assert_idle();
}

/// The limit of 1,024 descriptors, which most systems start with, is enough to wait for 300 holders of slots; and the death of any of
/// them is noticed.
#[test]
fn all_of_three_hundred_slots_are_watched() {
    let lab = Lab::new();
    let mut crowd = Crowd::new(&lab);
    for _ in 0..300 {
        crowd.start(&lab, &mut lab.rlock(["exec", "--slot", "k=300", "--", "sleep", "1000"]));
    }
    wait_until("300 slots are held", || lab.counts("k").0 == 300);
    for victim in [0, 150, 297] {
        let limited = format!("ulimit -n 1024; exec '{}' exec --slot k=300 -- sleep 1000", super::support::RLOCK);
        let mut command = std::process::Command::new("sh");
        lab.settle(&mut command);
        crowd.start(&lab, command.args(["-c", &limited]));
        lab.until_waiting("k", 1);
        crowd.kill(victim);
        wait_until("the slot of the dead is taken", || lab.counts("k") == (300, 0));
    }
    assert_eq!(crowd.said(), "");
}
