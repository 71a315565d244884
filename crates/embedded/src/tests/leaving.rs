//! A process goes on after its session: it has spare work, for example.

use super::*;
use rlock_model::past::{End, Ending};
use rlock_model::records::Phase;

const LIMIT: Option<Duration> = Some(Duration::from_secs(5));

/// The thread of a request that is over must not get the lock, because nobody would unlock it.
#[test]
fn request_that_is_over_leaves_the_lock_to_others() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, _first) = site.ask(1);
    for (number, is_given_up) in [(2, false), (3, true)] {
        let mut waiter = lab.handle(request(number, Mode::Write, None));
        assert_eq!(waiter.check().unwrap(), Standing::Waiting);
        let stopped = lab.stop();
        let mut newcomer = lab.handle(request(number + 10, Mode::Write, None));
        assert_eq!(newcomer.check().unwrap(), Standing::Asking);
        for handle in [&mut waiter, &mut newcomer] {
            if is_given_up {
                assert!(matches!(handle.give_up().unwrap(), Standing::Busy { .. }));
            } else {
                assert_eq!(handle.release(None).unwrap(), Released::Done);
            }
        }
        drop(stopped);
        // The handles live, and nobody polls them any more. A thread of theirs would need a moment
        // to get the lock.
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(5));
            let free = site.0.transact_within(LIMIT, None, |work| work.records().sessions()).unwrap();
            assert!(free.is_some(), "the lock is not free");
        }
        drop((waiter, newcomer));
    }
}

/// The release fails because another process is stopped with the lock.
#[test]
fn hold_that_could_not_be_released_ends_although_its_process_goes_on() {
    let lab = Lab::new();
    let mut holder = lab.handle(request(1, Mode::Write, None));
    assert!(is_granted(&holder.check().unwrap()));
    let stopped = lab.stop();
    assert!(holder.release(Some(End { ending: Ending::Exit(0), is_success: true })).is_err());
    drop(stopped);
    assert!(is_granted(&lab.open().ask(2).0));
    drop(holder);
}

/// A file system gives the inode of a removed beacon to the next one.
#[test]
fn waiter_with_the_inode_of_a_kept_hold_is_granted_in_its_turn() {
    let lab = Lab::new();
    let keeps = Job { keep_for: Some(Duration::from_millis(200)), is_acquire: true, ..Job::default() };
    drop(lab.handle(Request { job: keeps, ..request(1, Mode::Write, None) }));
    let mut site = lab.open();
    let (_, first) = site.ask(2);
    let (_, _second) = site.ask(3);
    site.transact(|work| records::put_beacon(work.records_mut(), id(1), first.identity())).unwrap();
    std::thread::sleep(Duration::from_millis(250));
    assert_eq!(site.stand(3), Standing::Waiting);
    let phase = site.transact(|work| Ok(work.records().session(id(2))?.map(|session| session.phase))).unwrap();
    assert_eq!(phase, Some(Phase::Granted));
}

/// A stopped process with many sessions is passed over for each of them. Its neighbours hear of it
/// once, whatever the number of sessions.
#[test]
fn waiters_hear_once_of_a_process_that_is_passed_over_many_times() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, _holder) = site.ask(1);
    let mut stopped = None;
    for number in 2..20 {
        site.transact(|work| work.enter(request(number, Mode::Write, None), None, &mut stopped)).unwrap();
    }
    let (_, next) = site.ask(20);
    let (_, last) = site.ask(21);
    site.transact(|work| work.apply(Op::Release { session: id(1), end: None })).unwrap();
    beacon::remove(&site.0.directory, id(1));
    last.messages().unwrap();
    let due = site.transact(|work| work.stand(id(21))).unwrap().look_at.unwrap();
    std::thread::sleep(due - rlock_sys::clock::Boottime::now());
    site.stand(21);
    let phase = site.transact(|work| Ok(work.records().session(id(20))?.map(|session| session.phase))).unwrap();
    assert_eq!(phase, Some(Phase::Granted));
    let mut messages = [0; 1024];
    let bytes = rustix::io::read(&last, &mut messages).unwrap();
    // One for all that have left, and one for the next claim lease.
    assert_eq!(bytes, 2 * 16);
    drop((stopped, next));
}
