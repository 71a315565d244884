//! A report on the sessions in the way, made while other processes change the table.

use super::*;
use crate::clock::Boottime;

fn names() -> [Resource; 1] {
    [Resource::new("k").unwrap()]
}

/// The sessions that hold the resource, and the number of those that are watched.
fn holders(answer: &Answer) -> (Vec<SessionId>, usize) {
    let holders = answer.listings.iter().flat_map(|listing| &listing.holders);
    (holders.map(|holder| holder.session).collect(), answer.watched.len())
}

/// Without this, a waiting line would name the old holder until the wait ends: nothing wakes its
/// process when the next holder takes over.
#[test]
fn holder_that_is_released_after_the_copy_is_not_reported() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, first) = site.ask(1);
    let (_, _second) = site.ask(2);
    let raw = site.0.copy(None, &names()).unwrap().unwrap();
    site.transact(|work| work.apply(Op::Release { session: id(1), end: None })).unwrap();
    beacon::remove(&site.0.directory, id(1));
    drop(first);
    let found = site.0.listings_of(&raw, &names(), Interest::Holders, &[]).unwrap();
    assert!(matches!(found, Found::Missing(missing) if missing == [id(1)]));
    let answer = site.0.listings(None, &names(), Interest::Holders).unwrap().unwrap();
    assert_eq!(holders(&answer), (vec![id(2)], 1));
}

/// Somebody has removed the beacon of a live holder.
#[test]
fn holder_without_a_beacon_is_reported() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, _first) = site.ask(1);
    beacon::remove(&site.0.directory, id(1));
    let raw = site.0.copy(None, &names()).unwrap().unwrap();
    let found = site.0.listings_of(&raw, &names(), Interest::Holders, &[id(1)]).unwrap();
    assert!(matches!(found, Found::Answer(_)), "the holder had no beacon before the copy either");
    let answer = site.0.listings(None, &names(), Interest::Holders).unwrap().unwrap();
    assert_eq!(holders(&answer), (vec![id(1)], 0));
}

/// A report takes the lock for which a look of the waiter has waited. The look is still due.
#[test]
fn report_does_not_replace_the_look_that_a_message_asks_for() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, _first) = site.ask(1);
    let mut waiter = lab.handle(request(2, Mode::Write, None));
    assert_eq!(waiter.check().unwrap(), Standing::Waiting);
    site.transact(|work| work.apply(Op::Release { session: id(1), end: None })).unwrap();
    let stopped = lab.stop();
    assert_eq!(waiter.check().unwrap(), Standing::Waiting, "the lock on the state is not free");
    drop(stopped);
    assert_eq!(waiter.inspect().unwrap().len(), 1);
    assert!(waiter.timeout().is_some_and(|at| at <= Boottime::now()));
    assert!(is_granted(&waiter.check().unwrap()));

    let stopped = lab.stop();
    let mut newcomer = lab.handle(request(3, Mode::Write, None));
    assert_eq!(newcomer.check().unwrap(), Standing::Asking);
    drop(stopped);
    newcomer.inspect().unwrap();
    assert!(newcomer.timeout().is_some_and(|at| at <= Boottime::now()));
    assert_eq!(newcomer.check().unwrap(), Standing::Waiting);
}

/// A report that does not get the lock ends before the trouble begins, and the handle has a timer
/// for the trouble.
#[test]
fn report_without_the_lock_leaves_a_timer_for_the_trouble() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, _first) = site.ask(1);
    for (number, is_look_due) in [(2, false), (3, true)] {
        let mut waiter = lab.handle(request(number, Mode::Write, None));
        assert_eq!(waiter.check().unwrap(), Standing::Waiting);
        let _stopped = lab.stop();
        if is_look_due {
            assert_eq!(waiter.check().unwrap(), Standing::Waiting);
        }
        assert!(waiter.inspect().is_err());
        assert!(waiter.timeout().is_some_and(|at| at > Boottime::now()));
        assert_eq!(waiter.trouble(), None);
    }
}
