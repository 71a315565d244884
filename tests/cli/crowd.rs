//! The limit of waiters, `--max-waiting`.

use rlock_testkit::Lab;

/// "A request that would have to wait is busy at once if N wait already on one of its KEYs."
#[test]
fn request_that_finds_enough_waiters_is_busy_at_once() {
    let lab = Lab::new();
    let limited = |max: &'static str, key: &'static str| ["exec", "--max-waiting", max, "--write", "free", key];
    let holder = lab.hold("k");
    lab.run(["exec", "--max-waiting", "0", "free", "--", "true"]).silently(0);
    let busy = lab.run([&limited("0", "k")[..], &["--", "true"]].concat());
    assert!(busy.busy().ends_with("; nobody waits"), "{busy:?}");
    let first = lab.wait_by(limited("1", "k"));
    lab.until_waiting("k", 1);
    let busy = lab.run([&limited("1", "k")[..], &["--", "true"]].concat());
    assert!(busy.busy().ends_with("; 1 waits"), "{busy:?}");
    let second = lab.wait_by(limited("2", "k"));
    lab.until_waiting("k", 2);
    // A dead waiter does not count.
    first.kill();
    let third = lab.wait_by(limited("2", "k"));
    lab.until_waiting("k", 2);
    holder.end().silently(0);
    second.end().printed("held\n");
    third.end().printed("held\n");
    lab.assert_idle();
}

#[test]
fn limit_of_waiters_is_a_number() {
    let text = "--max-waiting: 'x' is not a number of waiters: give 0, 1, 2 and so on";
    Lab::new().run(["exec", "k", "--max-waiting", "x", "--", "true"]).said(64, text);
}
