//! Processes of other pid and user namespaces, such as those of containers, share the directory.

use crate::support::{Lab, RLOCK, Running, needs};

/// An rlock that is process 1 of a pid namespace of its own, and dies with what is returned.
fn first_process(lab: &Lab, words: &[&str]) -> Option<Running> {
    let mut unshare = needs::namespaces(&["--pid", "--fork", "--kill-child"])?;
    lab.settle(&mut unshare);
    Some(Running::waiter(unshare.arg(RLOCK).args(words)))
}

/// Equal pids are no equal processes: each waits for the other, and is told of its death.
#[test]
fn equal_pids_in_two_namespaces_are_told_apart() {
    let lab = Lab::new();
    let Some(mut holder) = first_process(&lab, &["exec", "k"]) else { return };
    holder.expect_held();
    let mut waiter = first_process(&lab, &["exec", "k"]).expect("the first was permitted");
    lab.until_waiting("k", 1);
    let shown = lab.inspect(["k"])["resources"][0].clone();
    assert_eq!([&shown["holders"][0]["pid"], &shown["waiters"][0]["pid"]], [1, 1]);

    // Alive, whoever asks: out here, where process 1 is another, and in a third namespace.
    lab.run(["cleanup"]).printed("");
    lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
    let third = first_process(&lab, &["exec", "-nq", "k"]).expect("the first was permitted");
    third.end().silently(75);
    assert_eq!(lab.counts("k"), (1, 1));

    holder.kill();
    waiter.expect_held();
    assert_eq!(lab.counts("k"), (1, 0));

    // Dead, though there is a process 1 here.
    waiter.kill();
    lab.run(["exec", "-nq", "k", "--", "true"]).silently(0);
    lab.assert_idle();
}

/// The same with a namespace that looks for the dead of another.
#[test]
fn the_dead_of_one_namespace_are_reaped_from_another() {
    let lab = Lab::new();
    let Some(mut holder) = first_process(&lab, &["exec", "k"]) else { return };
    holder.expect_held();
    holder.kill();
    let mut next = first_process(&lab, &["exec", "-n", "k"]).expect("the first was permitted");
    next.expect_held();
    next.end().silently(0);
    lab.assert_idle();
}

/// A user has another number in a user namespace, as in a rootless container.
#[test]
fn waiters_and_holders_in_another_user_namespace_are_served() {
    let lab = Lab::new();
    let inside = |words: &[&str]| {
        let mut unshare = needs::namespaces(&["--user", "--map-user=7"])?;
        lab.settle(&mut unshare);
        Some(Running::waiter(unshare.arg(RLOCK).args(words)))
    };
    let holder = lab.hold("k");
    let Some(mut waiter) = inside(&["exec", "k"]) else { return };
    lab.until_waiting("k", 1);
    let mut next = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 2);
    holder.end().silently(0);
    waiter.expect_held();
    assert_eq!(lab.counts("k"), (1, 1));
    waiter.kill();
    next.expect_held();
    next.end().silently(0);
    lab.assert_idle();
}
