//! Processes that are killed or stopped at the worst of places, one story each.

use rustix::process::Signal;

use super::support::{Lab, RLOCK, Running, wait_until};

/// The process that holds `k`.
fn holder_pid(lab: &Lab) -> Option<u64> {
    lab.inspect(["k"])["resources"][0]["holders"][0]["pid"].as_u64()
}

fn queue_up(lab: &Lab, places: usize) -> Vec<Running> {
    let join = |place| {
        let waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", place);
        waiter
    };
    (1..=places).map(join).collect()
}

/// Ends a holder that must have got its grant by now or get it soon.
fn served(mut waiter: Running) {
    waiter.expect_held();
    assert_eq!(waiter.end().code(), Some(0));
}

/// "a suspended machine keeps it": so does a suspended process, even where it was granted while it slept.
#[test]
fn a_stopped_waiter_keeps_its_place_and_its_grant() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut waiters = queue_up(&lab, 2).into_iter();
    let (mut stopped, next) = (waiters.next().unwrap(), waiters.next().unwrap());
    stopped.signal(Signal::STOP);
    assert_eq!(holder.end().code(), Some(0));
    wait_until("the stopped waiter holds", || holder_pid(&lab) == Some(u64::from(stopped.pid())));
    assert_eq!(lab.counts("k"), (1, 1));
    stopped.signal(Signal::CONT);
    stopped.expect_held();
    assert_eq!(stopped.end().code(), Some(0));
    served(next);
    lab.assert_idle();
}

#[test]
fn a_waiter_that_is_killed_blocks_nobody() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut waiters = queue_up(&lab, 3);
    waiters.remove(0).kill();
    assert_eq!(holder.end().code(), Some(0));
    waiters.into_iter().for_each(served);
    lab.assert_idle();
}

/// `kill -9` of a holder frees the lock at once, and those who come next come together.
#[test]
fn all_readers_get_what_a_killed_writer_held() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut readers: Vec<_> = (1..=4)
        .map(|place| {
            let reader = lab.wait_by(["exec", "--read", "k"]);
            lab.until_waiting("k", place);
            reader
        })
        .collect();
    let writer = lab.wait_by(["exec", "--write", "k"]);
    lab.until_waiting("k", 5);
    holder.kill();
    readers.iter_mut().for_each(Running::expect_held);
    assert_eq!(lab.counts("k"), (4, 1));
    // Some are killed and some end.
    readers.pop().unwrap().kill();
    readers.remove(0).kill();
    for reader in readers {
        assert_eq!(reader.end().code(), Some(0));
    }
    served(writer);
    lab.assert_idle();
}

#[test]
fn slots_of_the_killed_are_free() {
    let lab = Lab::new();
    let slot = ["exec", "--slot", "k=3"];
    let mut holders: Vec<_> = (0..3).map(|_| lab.hold_by(slot)).collect();
    let mut waiters: Vec<_> = (1..=3)
        .map(|place| {
            let waiter = lab.wait_by(slot);
            lab.until_waiting("k", place);
            waiter
        })
        .collect();
    holders.remove(1).kill();
    waiters[0].expect_held();
    assert_eq!(lab.counts("k"), (3, 2));
    // Who was the second in the queue has to watch them all now.
    waiters.remove(0).kill();
    waiters[0].expect_held();
    holders.pop().unwrap().kill();
    waiters[1].expect_held();
    assert_eq!(lab.counts("k"), (3, 0));
}

#[test]
fn several_claims_outlive_those_in_their_way_one_by_one() {
    let lab = Lab::new();
    let mut holders: Vec<_> = ["a", "b", "c"].map(|name| lab.hold(name)).into();
    let mut waiter = lab.wait_by(["exec", "--write", "c", "--write", "a", "--write", "b"]);
    lab.until_waiting("b", 1);
    for left in [2, 1] {
        holders.remove(left - 1).kill();
        // It has found the dead and looked for the next in its way before anybody else is let in.
        assert_eq!(lab.run(["exec", "-n", "a", "--", "true"]).code(), Some(75));
        assert!(waiter.runs());
        assert_eq!(lab.counts("a").1, 1);
    }
    holders.remove(0).kill();
    served(waiter);
    lab.assert_idle();
}

/// If rlock is SIGKILLed, the tree dies: nested rlocks die as well, and their holds end.
#[test]
fn nested_hold_ends_with_a_killed_ancestor() {
    let lab = Lab::new();
    let inner = format!("'{RLOCK}' exec --read k -- sh -c 'echo held; exec cat > /dev/null'; true");
    let mut command = lab.rlock(["exec", "--write", "k", "--", "sh", "-c", &inner]);
    let mut outer = Running::start(command.stdin(std::process::Stdio::piped()));
    outer.expect_held();
    let writer = lab.wait_by(["exec", "--write", "k"]);
    lab.until_waiting("k", 1);
    outer.signal(Signal::KILL);
    served(writer);
    lab.assert_idle();
}

/// Who waits watches the one in his way; here that one and the one in that one's way go together.
#[test]
fn the_holder_and_the_first_waiter_may_be_killed_together() {
    for order in [[0, 1], [1, 0]] {
        let lab = Lab::new();
        let mut doomed = vec![lab.hold("k")];
        let mut waiters = queue_up(&lab, 3);
        doomed.push(waiters.remove(0));
        for index in order {
            doomed[index].signal(Signal::KILL);
        }
        waiters.into_iter().for_each(served);
        for killed in doomed {
            killed.end();
        }
        lab.assert_idle();
    }
}

/// Nobody has seen it die, and nobody is in the queue: whoever comes next finds out.
#[test]
fn the_next_to_come_finds_the_killed_holder() {
    let lab = Lab::new();
    for _ in 0..3 {
        lab.hold("k").kill();
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    }
    lab.hold_by(["exec", "--slot", "s=2"]).kill();
    lab.run(["exec", "-n", "--slot", "s=3", "--", "true"]).silently(0);
    lab.assert_idle();
}

/// A release wakes any number of those whom it grants something, however few descriptors a process may have.
#[test]
fn few_descriptors_wake_many() {
    let lab = Lab::new();
    let few = |words: &str| {
        let mut shell = std::process::Command::new("sh");
        lab.settle(&mut shell);
        shell.args(["-c", &format!("ulimit -n 24; exec \"$0\" {words} \"$@\""), RLOCK]);
        shell
    };
    let mut writer = Running::waiter(&mut few("exec k"));
    writer.expect_held();
    let readers: Vec<_> = (1..=40)
        .map(|place| {
            let reader = Running::waiter(&mut few("exec --read k"));
            lab.until_waiting("k", place);
            reader
        })
        .collect();
    assert_eq!(writer.end().code(), Some(0));
    readers.into_iter().for_each(served);
}
