//! `rlock shrink` and `rlock downgrade`, run inside the command of a holder.

use serde_json::{Value, json};

use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both};

/// Starts a holder whose command runs each input line as the arguments of an `rlock`, and prints
/// the exit status of each.
fn interactive_holder(lab: &Lab, claims: &[&str]) -> Running {
    let script = "echo held; while read -r line; do eval \"'$RLOCK' $line\"; echo $?; done";
    let mut rlock = lab.rlock(claims);
    rlock.env("RLOCK", RLOCK).args(["--", "sh", "-c", script]);
    let mut running = Running::start(rlock.stdin(std::process::Stdio::piped()));
    running.expect_held();
    running
}

fn run_inside(running: &mut Running, words: &str) -> String {
    running.write(&format!("{words}\n"));
    running.line()
}

fn held(lab: &Lab, resource: &str) -> Value {
    lab.inspect([resource])["resources"][0]["holders"][0].clone()
}

/// A holder gives up part of a span without a gap. The requests that this frees are granted at
/// once.
#[test]
fn shrink_grants_waiters_outside_the_new_span() {
    on_both(|lab| {
        let mut holder = interactive_holder(lab, &["range-write", "k", "0", "10"]);
        let token = held(lab, "k")["token"].clone();
        let mut waiter = lab.wait_by(["range-write", "k", "6", "9"]);
        lab.until_waiting("k", 1);
        assert_eq!(run_inside(&mut holder, "shrink 0 7"), "0");
        lab.run(["range-read", "k", "-nq", "8", "8", "--", "true"]).silently(75);
        assert_eq!(lab.counts("k"), (1, 1), "part of the waiter's span is still held");
        assert_eq!(run_inside(&mut holder, "shrink '[-0,6)'"), "0");
        waiter.expect_held();
        assert_eq!(held(lab, "k")["span"], json!({"lo": "-0", "hi": "6", "lo_open": false, "hi_open": true}));
        assert_eq!(held(lab, "k")["token"], token);
        lab.run(["range-read", "k", "-nq", "1", "2", "--", "true"]).silently(75);
        holder.end().printed("0\n0\n");
    });
}

/// A holder lowers its mode without a gap: from write to prewrite or read, from prewrite to read.
#[test]
fn downgrade_grants_waiters_that_do_not_clash_with_the_new_mode() {
    on_both(|lab| {
        let mut holder = interactive_holder(lab, &["exec", "k"]);
        let mut reader = lab.wait_by(["exec", "--read", "k"]);
        lab.until_waiting("k", 1);
        assert_eq!(run_inside(&mut holder, "downgrade prewrite"), "0");
        reader.expect_held();
        let mut prewriter = lab.wait_by(["exec", "--prewrite", "k"]);
        lab.until_waiting("k", 1);
        assert_eq!(run_inside(&mut holder, "downgrade read"), "0");
        prewriter.expect_held();
        assert_eq!(lab.counts("k"), (3, 0));
        assert_eq!(held(lab, "k")["mode"], "read");
    });
}

/// A grant never grows.
#[test]
fn shrink_or_downgrade_that_would_grow_the_grant_is_refused() {
    let lab = Lab::new();
    let inside = |claims: &[&str], change: &[&str], text: &str| {
        lab.run([claims, &["--", RLOCK], change].concat()).said(65, &format!("refused: {text}"));
    };
    let past = "is not inside what this session holds of 'k': a hold can only shrink, 'rlock inspect' shows it";
    inside(&["range-write", "k", "1", "2"], &["shrink", "0", "2"], &format!("[0,2] {past}"));
    inside(&["range-write", "k", "[1,2)"], &["shrink", "1", "2"], &format!("[1,2] {past}"));
    inside(&["range-write", "k", "1", "2"], &["shrink", "-8", "-7"], &format!("[-8,-7] {past}"));
    inside(
        &["exec", "--read", "k"],
        &["downgrade", "prewrite"],
        "what this session holds of 'k' can't be lowered from read to prewrite: a hold is lowered from write to prewrite \
         or read, or from prewrite to read",
    );
    for held in ["read", "prewrite"] {
        let text = format!("what this session holds of 'k' can't be lowered from {held} to write: ");
        let ran = lab.run(["exec", &format!("--{held}"), "k", "--", RLOCK, "downgrade", "write"]);
        assert!(ran.failed(65).starts_with(&format!("refused: {text}")), "{ran:?}");
    }
    lab.run(["exec", "k", "--", RLOCK, "downgrade", "write"]).silently(0);
    inside(
        &["exec", "--slot", "k=2"],
        &["shrink", "1", "2"],
        "this session holds a slot of 'k', which has no parts to give up",
    );
    inside(
        &["exec", "k"],
        &["downgrade", "read", "--resource", "j"],
        "no rlock around this command holds 'j': 'rlock inspect' shows what is held",
    );
    lab.assert_idle();
}

/// `--resource KEY` names the grant to change if the innermost rlock holds several resources.
#[test]
fn shrink_or_downgrade_needs_the_resource_if_several_are_held() {
    let lab = Lab::new();
    let text = "the innermost rlock holds several resources: name one with --resource, of 'a', 'b'";
    lab.run(["exec", "a", "--write", "b", "--", RLOCK, "downgrade", "read"]).said(64, text);
    let mut holder = interactive_holder(&lab, &["exec", "a", "--write", "b"]);
    assert_eq!(run_inside(&mut holder, "downgrade read --resource b"), "0");
    assert_eq!([&held(&lab, "a")["mode"], &held(&lab, "b")["mode"]], ["write", "read"]);
    // `--resource` can name a resource of an outer rlock.
    assert_eq!(run_inside(&mut holder, "exec c -- \"$RLOCK\" downgrade read --resource a"), "0");
    assert_eq!(held(&lab, "a")["mode"], "read");
}

/// Without --resource, `shrink` and `downgrade` change only the grant of the innermost rlock.
#[test]
fn shrink_or_downgrade_without_resource_changes_the_innermost_grant_only() {
    let lab = Lab::new();
    let mut holder = interactive_holder(&lab, &["range-write", "a", "0", "9"]);
    assert_eq!(run_inside(&mut holder, "range-write b 0 9 -- \"$RLOCK\" shrink 1 2"), "0");
    assert_eq!(held(&lab, "a")["span"]["hi"], "9");
    // Both rlocks hold the same resource.
    assert_eq!(run_inside(&mut holder, "range-write a 2 8 -- \"$RLOCK\" shrink 3 4"), "0");
    assert_eq!(held(&lab, "a")["span"]["hi"], "9");
    assert_eq!(run_inside(&mut holder, "exec b -- \"$RLOCK\" downgrade read"), "0");
    assert_eq!(held(&lab, "a")["mode"], "write");
}

/// `shrink` and `downgrade` outside of a holder's command are usage errors. If the holder's grant
/// is gone, they are refused.
#[test]
fn shrink_and_downgrade_outside_of_a_hold_exit_64() {
    let lab = Lab::new();
    let text = "not inside a hold: RLOCK_SESSION is not set, so run this in the command of 'rlock exec' or 'rlock range-write'";
    lab.run(["shrink", "1", "2"]).said(64, text);
    lab.run(["downgrade", "read"]).said(64, text);
    let over = "refused: the innermost rlock holds nothing any more: change a hold while the command of its rlock runs";
    Ran::of(lab.rlock(["downgrade", "read"]).env("RLOCK_SESSION", "0".repeat(32))).said(65, over);
}
