//! A report on the sessions in the way, made while other processes change the table.

use rustix::event::{PollFd, Timespec, poll};

use super::*;
use crate::store::Found;
use rlock_sys::clock::Boottime;

fn names() -> [Resource; 1] {
    [Resource::new("k").unwrap()]
}

/// The sessions that hold the resource, and the number of those that are watched.
fn holders(answer: &Seen) -> (Vec<SessionId>, usize) {
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
    let copied = site.0.copy(None, &names()).unwrap().unwrap();
    site.transact(|work| work.apply(Op::Release { session: id(1), end: None })).unwrap();
    beacon::remove(&site.0.directory, id(1));
    drop(first);
    let found = site.0.listings_of(copied, &names(), Interest::Holders, &[]).unwrap();
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
    let copied = site.0.copy(None, &names()).unwrap().unwrap();
    let found = site.0.listings_of(copied, &names(), Interest::Holders, &[id(1)]).unwrap();
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

/// Whether any of the descriptors is ready.
fn is_ready(handle: &Handle) -> bool {
    let descriptors = handle.descriptors();
    let polled = descriptors.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags));
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled.collect::<Vec<_>>(), Some(&at_once)).unwrap() > 0
}

/// Makes a request of a server, and reports nothing of it.
fn ask(server: &mut dyn Sessions, request: Request) {
    server.acquire(request, AcquireOptions::default());
    server.advance();
}

/// The waiting line names the holder, and nothing else tells a waiter far behind of the release:
/// the process of the session goes on, and the waiters ahead block this one.
#[test]
fn release_of_a_session_whose_process_goes_on_is_news_for_each_waiter_with_a_line() {
    let lab = Lab::new();
    let mut server = Box::new(lab.open().0).sessions(true).unwrap();
    let elsewhere = |number| {
        let mut elsewhere = request(number, Mode::Write, None);
        elsewhere.claims[0].resource = Resource::new("elsewhere").unwrap();
        elsewhere
    };
    ask(&mut *server, request(1, Mode::Write, None));
    ask(&mut *server, elsewhere(20));
    let mut waiters: Vec<_> = (2..=9).map(|number| lab.handle(request(number, Mode::Write, None))).collect();
    let fifth = &mut waiters[5];
    let names = |fifth: &mut Handle| {
        let seen = fifth.inspect().unwrap();
        seen[0].listing.holders.iter().map(|holder| holder.session).collect::<Vec<_>>()
    };
    assert_eq!(fifth.check().unwrap(), Standing::Waiting);
    assert_eq!(names(fifth), [id(1)]);
    assert!(!is_ready(fifth));

    ask(&mut *server, elsewhere(21));
    assert_eq!((is_ready(fifth), fifth.check().unwrap()), (true, Standing::Asking), "another session is no news");
    assert!(!is_ready(fifth));

    server.release(id(1), Some(End::KEPT), false);
    server.advance();
    assert!(is_ready(fifth));
    assert_eq!(fifth.check().unwrap(), Standing::Waiting);
    assert_eq!(names(fifth), [id(2)]);
}
