//! Each test kills or stops a process at a critical moment.

use rustix::process::Signal;

use rlock_testkit::{Lab, RLOCK, Running, wait_until};

/// The process id of the holder of `k`.
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

/// Waits until the waiter is granted, then ends its command.
fn expect_served(mut waiter: Running) {
    waiter.expect_held();
    assert_eq!(waiter.end().code(), Some(0));
}

/// Serves waiters in whatever order they are granted.
fn expect_all_served(waiters: Vec<Running>) {
    std::thread::scope(|scope| {
        for waiter in waiters {
            scope.spawn(|| expect_served(waiter));
        }
    });
}

/// "When the turn of a stopped waiter comes, the waiter has 3 seconds to continue."
#[test]
fn waiter_that_continues_in_time_keeps_its_grant() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut waiters = queue_up(&lab, 2).into_iter();
    let (stopped, next) = (waiters.next().unwrap(), waiters.next().unwrap());
    stopped.signal(Signal::STOP);
    assert_eq!(holder.end().code(), Some(0));
    wait_until("the stopped waiter is granted", || holder_pid(&lab) == Some(u64::from(stopped.pid())));
    assert_eq!(lab.counts("k"), (1, 1));
    stopped.signal(Signal::CONT);
    expect_served(stopped);
    expect_served(next);
    lab.assert_idle();
}

/// "Then the next waiter is granted the lock, and the stopped waiter keeps its place."
#[test]
fn stopped_waiter_is_passed_over_and_keeps_its_place() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut waiters = queue_up(&lab, 3).into_iter();
    let (stopped, mut next, last) = (waiters.next().unwrap(), waiters.next().unwrap(), waiters.next().unwrap());
    stopped.signal(Signal::STOP);
    assert_eq!(holder.end().code(), Some(0));
    next.expect_held();
    assert_eq!(lab.counts("k"), (1, 1), "the stopped waiter is in nobody's way");
    stopped.signal(Signal::CONT);
    wait_until("the waiter has its place again", || lab.counts("k") == (1, 2));
    assert_eq!(next.end().code(), Some(0));
    expect_served(stopped);
    expect_served(last);
    lab.assert_idle();
}

/// Each waiter that is passed over costs the claim lease, and none holds up the others for longer.
#[test]
fn several_stopped_waiters_in_a_row_are_passed_over() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut waiters = queue_up(&lab, 5);
    let live = waiters.split_off(3).into_iter();
    waiters.iter().for_each(|waiter| waiter.signal(Signal::STOP));
    assert_eq!(holder.end().code(), Some(0));
    live.for_each(expect_served);
    waiters.iter().for_each(|waiter| waiter.signal(Signal::CONT));
    expect_all_served(waiters);
    lab.assert_idle();
}

/// The only live waiter stands among stopped ones.
#[test]
fn live_waiter_among_stopped_ones_is_served() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut stopped = queue_up(&lab, 5);
    let live = stopped.remove(2);
    stopped.iter().for_each(|waiter| waiter.signal(Signal::STOP));
    assert_eq!(holder.end().code(), Some(0));
    expect_served(live);
    stopped.iter().for_each(|waiter| waiter.signal(Signal::CONT));
    expect_all_served(stopped);
    lab.assert_idle();
}

/// Waiters that watched the passed-over waiter watch the next holder from then on.
#[test]
fn death_of_the_holder_is_noticed_after_a_waiter_was_passed_over() {
    let lab = Lab::new();
    let join = |lo: &str, place| {
        let waiter = lab.wait_by(["range-write", "k", lo, "9"]);
        lab.until_waiting("k", place);
        waiter
    };
    let holder = lab.hold("k");
    let (stopped, mut next, last) = (join("5", 1), join("0", 2), join("0", 3));
    stopped.signal(Signal::STOP);
    assert_eq!(holder.end().code(), Some(0));
    next.expect_held();
    next.kill();
    expect_served(last);
    stopped.signal(Signal::CONT);
    expect_served(stopped);
    lab.assert_idle();
}

#[test]
fn killed_waiter_does_not_block_the_queue() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut waiters = queue_up(&lab, 3);
    waiters.remove(0).kill();
    assert_eq!(holder.end().code(), Some(0));
    waiters.into_iter().for_each(expect_served);
    lab.assert_idle();
}

/// "`kill -9` frees the hold at once": all readers at the head of the queue are granted together.
#[test]
fn readers_are_granted_together_when_the_writer_is_killed() {
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
    // Two readers are killed, the other two end by themselves.
    readers.pop().unwrap().kill();
    readers.remove(0).kill();
    for reader in readers {
        assert_eq!(reader.end().code(), Some(0));
    }
    expect_served(writer);
    lab.assert_idle();
}

#[test]
fn slot_of_a_killed_holder_is_granted_to_the_next_waiter() {
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
    // The second waiter moves to the head of the queue and now watches all holders.
    waiters.remove(0).kill();
    waiters[0].expect_held();
    holders.pop().unwrap().kill();
    waiters[1].expect_held();
    assert_eq!(lab.counts("k"), (3, 0));
}

#[test]
fn request_with_several_claims_waits_until_every_blocker_is_dead() {
    let lab = Lab::new();
    let mut holders: Vec<_> = ["a", "b", "c"].map(|name| lab.hold(name)).into();
    let mut waiter = lab.wait_by(["exec", "--write", "c", "--write", "a", "--write", "b"]);
    lab.until_waiting("b", 1);
    for left in [2, 1] {
        holders.remove(left - 1).kill();
        // A new request for `a` is busy: its holder lives, or the waiter is ahead of the request.
        assert_eq!(lab.run(["exec", "-n", "a", "--", "true"]).code(), Some(75));
        assert!(waiter.runs());
        assert_eq!(lab.counts("a").1, 1);
    }
    holders.remove(0).kill();
    expect_served(waiter);
    lab.assert_idle();
}

/// If rlock gets SIGKILL, its process tree dies. Nested rlocks die with it, and their holds end.
#[test]
fn nested_hold_ends_when_its_ancestor_is_killed() {
    let lab = Lab::new();
    let inner = format!("'{RLOCK}' exec --read k -- sh -c 'echo held; exec cat > /dev/null'; true");
    let mut command = lab.rlock(["exec", "--write", "k", "--", "sh", "-c", &inner]);
    let mut outer = Running::start(command.stdin(std::process::Stdio::piped()));
    outer.expect_held();
    let writer = lab.wait_by(["exec", "--write", "k"]);
    lab.until_waiting("k", 1);
    outer.signal(Signal::KILL);
    expect_served(writer);
    lab.assert_idle();
}

/// Each waiter watches a session that blocks it. Here the watched session and the session that
/// blocks the watched one die together.
#[test]
fn queue_moves_on_when_holder_and_first_waiter_are_killed_together() {
    for order in [[0, 1], [1, 0]] {
        let lab = Lab::new();
        let mut doomed = vec![lab.hold("k")];
        let mut waiters = queue_up(&lab, 3);
        doomed.push(waiters.remove(0));
        for index in order {
            doomed[index].signal(Signal::KILL);
        }
        waiters.into_iter().for_each(expect_served);
        for killed in doomed {
            killed.end();
        }
        lab.assert_idle();
    }
}

/// The queue is empty, so no waiter sees the holder die. The next request reaps the dead holder.
#[test]
fn new_request_is_granted_when_the_only_holder_was_killed() {
    let lab = Lab::new();
    for _ in 0..3 {
        lab.hold("k").kill();
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    }
    lab.hold_by(["exec", "--slot", "s=1"]).kill();
    lab.run(["exec", "-n", "--slot", "s=3", "--", "true"]).silently(0);
    lab.assert_idle();
}

/// A release wakes every waiter that it granted, even if these are more than the process may have
/// open descriptors.
#[test]
fn release_with_24_descriptors_wakes_40_waiters() {
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
    readers.into_iter().for_each(expect_served);
}
