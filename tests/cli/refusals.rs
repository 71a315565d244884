//! Requests that can never be granted exit 65 at once; the message gives the reason and the remedy.

use rlock_testkit::{Lab, RLOCK, on_both};

/// Runs the second request inside the first, and expects a refusal with this text.
#[track_caller]
fn refused(outer: &[&str], inner: &[&str], text: &str) {
    let lab = Lab::new();
    let words = [outer, &["--", RLOCK], inner, &["--", "echo", "started"]].concat();
    lab.run(words).said(65, &format!("refused: {text}"));
    lab.assert_idle();
}

/// "rlock refuses it at once, with exit status 65 and the reason."
#[test]
fn write_or_prewrite_below_a_read_is_refused() {
    let text = |mode: &str, advice: &str| {
        format!(
            "an enclosing rlock holds 'k' for read, which can't become {mode} without risk of deadlock: \
             claim --{advice} there instead"
        )
    };
    refused(&["exec", "--read", "k"], &["exec", "k"], &text("write", "prewrite or --write"));
    refused(&["exec", "--read", "k"], &["exec", "--prewrite", "k"], &text("prewrite", "prewrite"));
    refused(&["range-read", "k", "1", "9"], &["range-write", "k", "2", "3"], &text("write", "prewrite or --write"));
}

/// "a claim that reaches past the ancestor's span is refused"
#[test]
fn claim_past_the_span_of_the_ancestor_is_refused() {
    let text = |held: &str, asked: &str| {
        format!(
            "an enclosing rlock holds {held} of 'k', and {asked} reaches past that: claim all of it there, \
             or no more than that here"
        )
    };
    let outer = ["range-write", "k", "1", "2"];
    refused(&outer, &["range-write", "k", "1.5", "3"], &text("[1,2]", "[1.5,3]"));
    refused(&outer, &["exec", "--read", "k"], &text("[1,2]", "the whole of it"));
    refused(&["range-prewrite", "k", "[1,2)"], &["range-write", "k", "1", "2"], &text("[1,2)", "[1,2]"));
}

/// "the smallest counts among the request itself, those that hold a slot and those that wait ahead"
#[test]
fn other_number_of_slots_is_not_refused_and_the_smallest_counts() {
    on_both(|lab| {
        let holder = lab.hold_by(["exec", "--slot", "k=2"]);
        let busy = |slot: &str| lab.run(["exec", "-nq", "--slot", slot, "--", "true"]).silently(75);
        let granted = |slot: &str| lab.run(["exec", "-nq", "--slot", slot, "--", "true"]).silently(0);
        ["k=1", "k=2:2", "k=3:2"].into_iter().for_each(busy);
        ["k=2", "k=3", "k=1000000"].into_iter().for_each(granted);
        holder.end().silently(0);
        ["k=3:3", "k=1"].into_iter().for_each(granted);
        lab.assert_idle();
    });
}
