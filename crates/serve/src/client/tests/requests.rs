//! How requests and questions end: granted, busy, refused or too late.

use std::sync::Arc;

use super::*;
use rlock_model::op::{Refusal, ResourceListing};

#[test]
fn busy_refused_and_failed_requests_are_answered_and_the_connection_goes_on() {
    let key = Resource::new("k").unwrap();
    let listing = ResourceListing { name: key.clone(), holders: Vec::new(), waiters: Vec::new() };
    for (standing, text) in [
        (Ok(Standing::Busy { obstructions: vec![listing.into()], streak: None }), "say busy 'k' was held a moment ago"),
        (
            Ok(Standing::Refused(Refusal::TooFewSlots { resource: key, held: 2 })),
            "say refused an enclosing rlock holds 2 of the slots of 'k', and this asks for more: claim as many there, \
             or no more than that here",
        ),
        (Err(error()), "say unavailable cannot lock 'k': the store is away"),
        (Err(store::Error::Refused("no".into())), "say refused no"),
        (Err(store::Error::Usage("what".into())), "say error what"),
    ] {
        let mut lab = Lab::new(rules());
        assert_eq!(lab.line("TRY k"), ["acquire 1: write k whole no-wait"]);
        assert_eq!(lab.on(Event::Report(id(1), Report::Standing(standing))), [text]);
        assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
    }
}

#[test]
fn request_whose_wait_is_over_leaves_the_queue_and_reports_who_is_in_the_way() {
    let mut lab = Lab::new(rules());
    assert_eq!(lab.line("LOCK -w 2s k"), ["acquire 1: write k whole"]);
    lab.stands(1, Standing::Waiting);
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + 2 * SECOND));
    assert!(lab.after(SECOND).is_empty());
    assert_eq!(lab.after(SECOND), ["release 1"]);
    // A grant that crosses the release is released by it.
    assert!(lab.granted(1, 7).is_empty());
    assert_eq!(lab.released(1, Released::Done), ["obstructions"]);
    let answer = Event::Answer(Answer::Obstructions(Arc::default()));
    assert_eq!(lab.on(answer), ["say busy 'k' was held a moment ago; waited 2s"]);
    assert!(lab.client.takes_lines());
}

#[test]
fn wait_is_limited_from_the_place_in_the_queue() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK -w 2s k");
    assert!(lab.after(3 * SECOND).is_empty());
    lab.stands(1, Standing::Waiting);
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + 2 * SECOND));
    assert!(lab.after(SECOND).is_empty());
    // The store is out of reach for a moment, and the request is still queued.
    lab.stands(1, Standing::Waiting);
    assert_eq!(lab.after(SECOND), ["release 1"]);
}

#[test]
fn request_that_is_not_queued_in_time_is_unavailable() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK -w 2s k");
    assert!(lab.after(2 * SECOND).is_empty());
    let text = "say unavailable cannot lock 'k': the store did not answer in time";
    assert_eq!(lab.after(5 * SECOND), ["release 1", text]);
    // A late answer does not matter any more.
    assert!(lab.granted(1, 7).is_empty());
    assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
    assert!(lab.released(1, Released::Done).is_empty());
}

#[test]
fn request_beyond_the_limit_of_waiting_requests_does_not_wait() {
    let mut lab = Lab::new(rules());
    lab.may_wait = false;
    assert_eq!(lab.line("LOCK k"), ["acquire 1: write k whole no-wait"]);
    let text = "say busy 'k' was held a moment ago; no more requests may wait";
    assert_eq!(lab.stands(1, Standing::Busy { obstructions: Vec::new(), streak: None }), [text]);
}

/// Several requests may be on their way to the store before one of them waits.
#[test]
fn request_that_is_queued_beyond_the_limit_leaves_and_is_busy() {
    for line in ["LOCK k", "LOCK -w 2s k"] {
        let mut lab = Lab::new(rules());
        lab.line(line);
        assert!(!lab.client.is_queued());
        lab.may_wait = false;
        assert_eq!(lab.stands(1, Standing::Waiting), ["release 1"]);
        assert!(!lab.client.is_queued());
        assert_eq!(lab.released(1, Released::Done), ["obstructions"]);
        let text = "say busy 'k' was held a moment ago; no more requests may wait";
        assert_eq!(lab.on(Event::Answer(Answer::Obstructions(Arc::default()))), [text], "{line}");
    }
    // A request that waits already stays.
    let mut lab = Lab::new(rules());
    lab.line("LOCK k");
    lab.stands(1, Standing::Waiting);
    lab.may_wait = false;
    assert!(lab.stands(1, Standing::Waiting).is_empty() && lab.client.is_queued());
}

#[test]
fn busy_request_waits_a_second_for_the_names_of_who_is_in_the_way() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK -w 2s k");
    lab.stands(1, Standing::Waiting);
    lab.after(2 * SECOND);
    lab.released(1, Released::Done);
    assert!(lab.client.asks());
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + SECOND));
    assert_eq!(lab.after(SECOND), ["say busy 'k' was held a moment ago; waited 2s"]);
    assert!(!lab.client.asks() && lab.client.takes_lines());
}

/// The answer to the release may be late, and the place in the queue is released all the same.
#[test]
fn busy_request_waits_a_second_for_its_place_to_be_given_back() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK -w 2s k");
    lab.stands(1, Standing::Waiting);
    assert_eq!(lab.after(2 * SECOND), ["release 1"]);
    assert_eq!(lab.after(SECOND), ["say busy 'k' was held a moment ago; waited 2s"]);
    assert!(lab.client.takes_lines());
    assert!(lab.granted(1, 7).is_empty() && !lab.client.holds());
    assert_eq!(lab.line("LOCK j"), ["acquire 2: write j whole"]);
    assert!(lab.released(1, Released::Done).is_empty());
}

#[test]
fn listing_that_takes_too_long_is_unavailable_and_a_change_is_awaited() {
    let mut lab = Lab::holding("LOCK k");
    lab.rules.has_leases = false;
    lab.granted_until(1, 7, lab.now + 90 * SECOND);
    assert_eq!(lab.line("INSPECT"), ["inspect "]);
    assert!(lab.after(29 * SECOND).is_empty() && lab.client.asks());
    assert_eq!(lab.after(SECOND), ["say unavailable the store did not answer in time: try again"]);
    assert!(!lab.client.asks());
    lab.line("DOWNGRADE read");
    assert!(lab.after(20 * SECOND).is_empty() && lab.client.asks());
}

/// The answer to a renewal may arrive after the server stood still past the deadline.
#[test]
fn grant_with_no_more_than_a_grace_left_is_given_back_unannounced() {
    let text = "say unavailable cannot lock 'k': the store did not answer in time";
    let grace = rules().grace;
    for line in ["LOCK k", "TRY k", "LOCK --write k"] {
        for deadline in [Duration::ZERO, 99 * SECOND, 100 * SECOND, 100 * SECOND + grace] {
            let mut lab = Lab::new(rules());
            lab.line(line);
            let deadline = Boottime::since_boot(deadline);
            assert_eq!(lab.granted_until(1, 7, deadline), ["release 1", text], "{line} {deadline:?}");
            assert!(!lab.client.holds() && !lab.client.has_lost());
            // What the store still reports about the session does not matter.
            assert!(lab.granted(1, 7).is_empty() && lab.after(SECOND).is_empty());
            assert!(lab.released(1, Released::Lost).is_empty());
            assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
            let late = lab.now + grace + Duration::from_nanos(1);
            assert_eq!(lab.granted_until(2, 8, late), ["say ok"]);
        }
    }
}

#[test]
fn late_grant_of_an_upgrade_leaves_the_prewrite_lock() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    let text = "say unavailable cannot lock 'k': the store did not answer in time";
    assert_eq!(lab.granted_until(2, 9, lab.now + SECOND), ["release 2", text]);
    lab.released(2, Released::Done);
    assert_eq!(lab.line("UPGRADE"), ["acquire 3 below 1: write k whole"]);
    assert_eq!(lab.granted(3, 10), ["say ok 10"]);
}

#[test]
fn upgrade_below_an_overdue_prewrite_lock_is_not_announced() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    lab.now = lab.now + 25 * SECOND;
    let text = "say unavailable cannot lock 'k': the store did not answer in time";
    assert_eq!(lab.granted(2, 9), ["release 2", text]);
    // The renewal of the prewrite lock came in the same turn.
    lab.granted(1, 7);
    assert!(lab.after(Duration::ZERO).is_empty());
}

#[test]
fn grant_while_draining_is_announced_to_holders_only() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK --prewrite k");
    lab.granted(1, 7);
    lab.line("UPGRADE");
    assert!(lab.on(Event::Drain).is_empty());
    assert_eq!(lab.granted(2, 9), ["say ok 9"], "a holder may go on");
    let mut waiter = Lab::new(rules());
    waiter.line("LOCK k");
    assert_eq!(waiter.on(Event::Drain), ["release 1", "close"]);
    assert!(waiter.granted(1, 7).is_empty(), "the grant is on its way back");
}

#[test]
fn grant_after_the_end_of_the_connection_is_given_back_in_silence() {
    let mut lab = Lab::new(rules());
    lab.line("LOCK k");
    assert_eq!(lab.on(Event::End), ["release 1", "close"]);
    assert!(lab.granted(1, 7).is_empty() && lab.stands(1, Standing::Lost).is_empty());
    assert_eq!(lab.client.timeout(&lab.rules), None);
    assert!(!lab.client.is_over() && !lab.client.holds());
    lab.released(1, Released::Done);
    assert!(lab.client.is_over());
}

#[test]
fn upgrade_whose_place_is_revoked_leaves_the_prewrite_lock() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    let text =
        "say unavailable 'k' was taken away, by 'rlock break', a failover, lost data or a step of the server's clock";
    assert_eq!(lab.stands(2, Standing::Lost), [text]);
    assert!(lab.client.holds() && !lab.client.has_lost());
    assert_eq!(lab.line("UNLOCK"), ["release 1"]);
}
