//! How holds end: released, lost or given up with the connection.

use super::*;

#[test]
fn release_that_fails_is_not_answered_ok() {
    let mut lab = Lab::holding("LOCK k");
    lab.line("UNLOCK");
    let text =
        "say unavailable the release of 'k' is not confirmed, it may be held until its lease ends: the store is away";
    assert_eq!(lab.on(Event::Report(id(1), Report::Released(Err(error())))), [text]);
    assert_eq!(lab.line("LOCK k"), ["acquire 2: write k whole"]);
}

#[test]
fn lock_that_is_revoked_is_reported_once_and_the_connection_closes() {
    let mut lab = Lab::holding("LOCK k");
    let text = "say lost 'k' was taken away, by 'rlock break', a failover, lost data or a step of the server's clock";
    assert_eq!(lab.stands(1, Standing::Lost), [text, "close", "release 1"]);
    assert!(lab.client.has_lost());
    assert!(lab.stands(1, Standing::Lost).is_empty() && lab.on(Event::End).is_empty());
    lab.released(1, Released::Done);
    assert!(lab.client.is_over());
}

#[test]
fn lease_that_is_not_renewed_is_lost_a_grace_before_its_deadline() {
    let mut lab = Lab::holding("LOCK k");
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + 25 * SECOND));
    assert!(lab.after(10 * SECOND).is_empty());
    // The renewal moves the deadline.
    assert!(lab.granted(1, 7).is_empty());
    assert!(lab.after(24 * SECOND).is_empty());
    let text = "say lost the lease on 'k' was not renewed in time";
    assert_eq!(lab.after(SECOND), [text, "close"]);
}

/// The design says: "a client has the same time to stop" as a command of `rlock exec`.
#[test]
fn lock_of_an_overdue_lease_is_released_at_its_deadline() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    lab.granted(2, 9);
    lab.line("UNLOCK");
    lab.released(2, Released::Done);
    lab.line("UPGRADE");
    let text = "say lost the lease on 'k' was not renewed in time";
    assert_eq!(lab.after(25 * SECOND), [text, "release 3", "close"]);
    // A renewal that comes after all does not revive the lock.
    assert!(lab.granted(1, 7).is_empty() && lab.on(Event::Stop).is_empty());
    assert!(lab.after(4 * SECOND).is_empty() && !lab.client.is_over());
    assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + SECOND));
    assert_eq!(lab.after(SECOND), ["release 1"]);
    lab.released(1, Released::Done);
    lab.released(3, Released::Done);
    assert!(lab.client.is_over());
}

/// A renewal that comes late moves the deadline at the store, so the client gets its whole grace.
#[test]
fn client_has_a_grace_to_stop_even_if_the_server_ran_late() {
    for late in [26 * SECOND, 30 * SECOND, 40 * SECOND] {
        let mut lab = Lab::holding("LOCK k");
        assert_eq!(lab.after(late), ["say lost the lease on 'k' was not renewed in time", "close"]);
        assert_eq!(lab.client.timeout(&lab.rules), Some(lab.now + lab.rules.grace));
        assert!(lab.granted(1, 7).is_empty());
        assert!(lab.after(4 * SECOND).is_empty());
        assert_eq!(lab.after(SECOND), ["release 1"]);
    }
}

#[test]
fn loss_between_the_overdue_lease_and_the_release_is_not_reported_again() {
    let mut lab = Lab::holding("LOCK k");
    lab.after(25 * SECOND);
    assert_eq!(lab.stands(1, Standing::Lost), ["release 1"]);
    assert!(lab.after(5 * SECOND).is_empty());
    lab.released(1, Released::Lost);
    assert!(lab.client.is_over());
}

/// The work of the client needs both locks, and nobody stops this work.
#[test]
fn lock_beside_a_lost_one_is_kept_for_a_grace() {
    for (lost, other) in [(1, 2), (2, 1)] {
        let mut lab = Lab::holding("LOCK --prewrite k");
        lab.line("UPGRADE");
        lab.granted(2, 9);
        let text =
            "say lost 'k' was taken away, by 'rlock break', a failover, lost data or a step of the server's clock";
        let lost_is_released = format!("release {lost}");
        assert_eq!(lab.stands(lost, Standing::Lost), [text, "close", lost_is_released.as_str()]);
        assert!(lab.after(4 * SECOND).is_empty() && lab.on(Event::End).is_empty());
        assert_eq!(lab.after(SECOND), [format!("release {other}")]);
    }
}

#[test]
fn client_that_lost_all_of_its_locks_keeps_none_for_a_grace() {
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    lab.granted(2, 9);
    lab.stands(1, Standing::Lost);
    assert_eq!(lab.stands(2, Standing::Lost), ["release 2"]);
    lab.released(1, Released::Done);
    lab.released(2, Released::Done);
    assert!(lab.client.is_over());
}

#[test]
fn unlock_in_time_is_not_lost_while_the_store_is_slow() {
    let mut lab = Lab::holding("LOCK k");
    assert!(lab.after(24 * SECOND).is_empty());
    lab.line("UNLOCK");
    assert_eq!(lab.client.timeout(&lab.rules), None);
    assert!(lab.after(10 * SECOND).is_empty());
    assert_eq!(lab.released(1, Released::Done), ["say ok"]);
    // The lock below the one that is released still has to be renewed.
    let mut lab = Lab::holding("LOCK --prewrite k");
    lab.line("UPGRADE");
    lab.granted(2, 9);
    lab.line("UNLOCK");
    let text = "say lost the lease on 'k' was not renewed in time";
    assert_eq!(lab.after(25 * SECOND), [text, "close"]);
}

#[test]
fn unlock_after_the_deadline_is_lost() {
    let mut lab = Lab::holding("LOCK k");
    lab.now = lab.now + 30 * SECOND;
    assert_eq!(lab.line("UNLOCK"), ["say lost the lease on 'k' was not renewed in time", "close"]);
    assert!(lab.client.has_lost());
}

#[test]
fn upgrade_is_released_before_the_lock_below_it() {
    let mut lab = Lab::holding("LOCK --prewrite a");
    lab.line("UPGRADE");
    assert_eq!(lab.on(Event::End), ["release 2", "release 1", "close"]);
    let mut lab = Lab::holding("LOCK --prewrite a");
    lab.line("UPGRADE");
    lab.granted(2, 9);
    assert_eq!(lab.on(Event::End), ["release 2", "release 1", "close"]);
    lab.released(1, Released::Done);
    assert!(!lab.client.is_over());
    lab.released(2, Released::Done);
    assert!(lab.client.is_over());
}

#[test]
fn drain_closes_all_clients_but_holders_and_those_after_their_unlock() {
    assert_eq!(Lab::new(rules()).on(Event::Drain), ["close"]);
    let mut waiter = Lab::new(rules());
    waiter.line("LOCK k");
    waiter.stands(1, Standing::Waiting);
    assert_eq!(waiter.on(Event::Drain), ["release 1", "close"]);
    let mut holder = Lab::holding("LOCK k");
    assert!(holder.on(Event::Drain).is_empty());
    holder.line("UNLOCK");
    assert_eq!(holder.released(1, Released::Done), ["say ok", "close"]);
    let mut holder = Lab::holding("LOCK k");
    holder.on(Event::Drain);
    let text = "say lost the server ends and gives the lock back";
    assert_eq!(holder.on(Event::Stop), [text, "release 1", "close"]);
    let mut leaving = Lab::holding("LOCK k");
    leaving.line("UNLOCK");
    assert!(leaving.on(Event::Drain).is_empty());
    assert_eq!(leaving.released(1, Released::Done), ["say ok", "close"]);
}

#[test]
fn release_that_no_client_hears_of_is_logged_as_the_store_confirms_it() {
    let mut lab = Lab::holding("LOCK k");
    lab.on(Event::Stop);
    let warning = "warn the release of 'k' is not confirmed, it may be held until its lease ends: the store is away";
    assert_eq!(lab.on(Event::Report(id(1), Report::Released(Err(error())))), [warning]);
    assert!(lab.client.is_over());
}
