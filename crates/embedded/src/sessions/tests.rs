//! Tests of many sessions in one process. A second store in the test stands for another process,
//! and a dropped handle of it for a dead process.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustix::fs::FlockOperation;
use tempfile::TempDir;

use super::batch::BATCH_CLAIMS;
use super::*;
use rlock_model::mode::Mode;
use rlock_model::request::{Claim, Job, Process};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::handle::{AcquireOptions, Grant, Handle, Standing};
use rlock_store::operations::{Breaking, Store};

/// A temporary directory for a store.
struct Lab(TempDir);

/// The sessions of a process, and what was reported about them.
struct Server(EmbeddedSessions);

impl Lab {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Embedded {
        Embedded::open(Some(self.0.path().to_owned()), "tests").unwrap()
    }

    fn server(&self) -> Server {
        Server(EmbeddedSessions::new(Embedded { serves: true, ..self.open() }))
    }

    /// Makes a request of a process with one session.
    fn other(&self, request: Request) -> Handle {
        Handle::new(Box::new(self.open()).sessions(false).unwrap(), request, AcquireOptions::default()).unwrap()
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    /// Returns the number of names of beacons.
    fn beacons(&self) -> usize {
        let names = fs::read_dir(self.state()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name != "lock" && name != "table").count()
    }

    /// Returns the number of transactions that have changed the table.
    fn transactions(&self) -> u64 {
        let lock = fs::File::open(self.state().join("lock")).unwrap();
        super::super::lock_file::Text::read(&lock).unwrap().seal().transaction.unwrap()
    }

    /// Holds the lock on the state, as a stopped process does.
    fn stop(&self) -> fs::File {
        let lock = fs::File::open(self.state().join("lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        lock
    }
}

impl Server {
    /// Polls the descriptors, at most for a second, and returns the next event.
    fn event(&mut self) -> Option<(SessionId, Report)> {
        let end = Instant::now() + Duration::from_secs(1);
        loop {
            self.0.advance();
            let event = self.0.next_report();
            if event.is_some() || Instant::now() >= end {
                return event;
            }
            let descriptors = self.0.descriptors();
            assert!(descriptors.len() <= 3);
            is_ready(&descriptors);
        }
    }

    fn standing(&mut self, session: SessionId) -> Standing {
        match self.event() {
            Some((id, Report::Standing(Ok(standing)))) if id == session => standing,
            other => panic!("expected the standing of {session}, not {other:?}"),
        }
    }

    fn failure(&mut self) -> (SessionId, String) {
        match self.event() {
            Some((id, Report::Standing(Err(error)))) => (id, error.to_string()),
            other => panic!("expected an error, not {other:?}"),
        }
    }

    fn released(&mut self) -> (SessionId, Released) {
        match self.event() {
            Some((id, Report::Released(Ok(released)))) => (id, released),
            other => panic!("expected the result of a release, not {other:?}"),
        }
    }

    fn begin(&mut self, request: Request) {
        self.0.acquire(request, AcquireOptions::default());
    }

    fn let_go(&mut self, session: SessionId) {
        self.0.release(session, Some(End::KEPT), false);
    }

    fn ask(&mut self, number: u32) -> Standing {
        self.begin(request(number, Mode::Write));
        self.standing(id(number))
    }

    fn release(&mut self, number: u32) -> Released {
        self.let_go(id(number));
        let (session, released) = self.released();
        assert_eq!(session, id(number));
        released
    }

    fn is_quiet(&mut self) -> bool {
        self.0.advance();
        self.0.next_report().is_none()
    }

    /// Whether nothing is left of any session.
    fn is_empty(&self) -> bool {
        let EmbeddedSessions { sessions, due, beacon, watches, events, .. } = &self.0;
        sessions.is_empty() && due.is_empty() && beacon.is_none() && watches.len() == 0 && events.is_empty()
    }
}

fn id(number: u32) -> SessionId {
    SessionId((u128::from(number) << 64 | 7).to_be_bytes())
}

fn request(number: u32, mode: Mode) -> Request {
    let claim = Claim { resource: Resource::new("k").unwrap(), mode, span: Span::Whole, slots: None };
    let process = Process::default();
    Request {
        session: id(number),
        ancestors: vec![],
        claims: vec![claim],
        wait: true,
        terms: None,
        job: Job::default(),
        process,
    }
}

fn slot(number: u32, slots: u32) -> Request {
    let mut request = request(number, Mode::Slot);
    request.claims[0].slots = Some(slots);
    request
}

fn is_granted(standing: &Standing) -> bool {
    matches!(standing, Standing::Granted(_))
}

/// Whether a descriptor is ready within a second.
fn is_ready(descriptors: &[(BorrowedFd<'_>, PollFlags)]) -> bool {
    let mut polled: Vec<_> = descriptors.iter().map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
    poll(&mut polled, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap() > 0
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/thread-self/fd").unwrap().count()
}

#[test]
fn sessions_of_a_process_are_granted_in_the_order_of_their_requests() {
    let lab = Lab::new();
    let mut server = lab.server();
    assert!(is_granted(&server.ask(0)));
    for number in 1..1000 {
        assert_eq!(server.ask(number), Standing::Waiting);
    }
    assert_eq!(lab.beacons(), 1000);
    assert!(server.is_quiet());
    let mut last = 0;
    for number in 0..999 {
        assert_eq!(server.release(number), Released::Done);
        match server.standing(id(number + 1)) {
            Standing::Granted(Grant { tokens, deadline: None, .. }) if tokens[0] > last => last = tokens[0],
            other => panic!("session {number} stands {other:?}"),
        }
    }
    assert_eq!(server.release(999), Released::Done);
    assert!(server.is_empty());
    assert_eq!(lab.beacons(), 0);
}

#[test]
fn requests_and_releases_that_are_ready_share_a_transaction_and_keep_their_order() {
    let lab = Lab::new();
    let mut server = lab.server();
    assert!(is_granted(&server.ask(1)));
    let before = lab.transactions();
    (2..9).for_each(|number| server.begin(request(number, Mode::Write)));
    server.let_go(id(1));
    server.begin(request(9, Mode::Write));
    server.0.advance();
    assert_eq!(lab.transactions(), before + 1);
    for number in 2..9 {
        assert_eq!(server.standing(id(number)), Standing::Waiting);
    }
    assert_eq!(server.released(), (id(1), Released::Done));
    assert_eq!(server.standing(id(9)), Standing::Waiting);
    let Standing::Granted(first) = server.standing(id(2)) else { panic!("the first in the queue is granted") };
    // Those that leave after it are granted the lock for an instant.
    (2..9).for_each(|number| server.let_go(id(number)));
    server.0.advance();
    assert_eq!(lab.transactions(), before + 2);
    for number in [3, 4, 5, 6, 7, 8, 2] {
        assert_eq!(server.released(), (id(number), Released::Done));
    }
    let Standing::Granted(last) = server.standing(id(9)) else { panic!("the last in the queue is granted") };
    assert_eq!(server.release(9), Released::Done);
    assert!(first.tokens[0] < last.tokens[0]);
    assert!(server.is_empty());
    assert_eq!(lab.beacons(), 0);
}

#[test]
fn request_that_fails_in_a_transaction_with_others_undoes_none_of_them() {
    let lab = Lab::new();
    let mut server = lab.server();
    assert!(is_granted(&server.ask(1)));
    // The request can't have its beacon where somebody has put a folder.
    fs::create_dir(lab.state().join(id(3).to_string())).unwrap();
    server.begin(request(2, Mode::Write));
    server.begin(request(3, Mode::Write));
    server.let_go(id(1));
    server.begin(request(4, Mode::Write));
    assert_eq!(server.standing(id(2)), Standing::Waiting);
    let (session, text) = server.failure();
    assert!(session == id(3) && text.contains("file exists"), "{text}");
    assert_eq!(server.released(), (id(1), Released::Done));
    assert_eq!(server.standing(id(4)), Standing::Waiting);
    assert!(is_granted(&server.standing(id(2))));
    // The sessions after these share transactions again.
    let before = lab.transactions();
    server.let_go(id(2));
    server.begin(request(5, Mode::Write));
    server.0.advance();
    assert_eq!(lab.transactions(), before + 1);
    assert_eq!(server.released(), (id(2), Released::Done));
    assert_eq!(server.standing(id(5)), Standing::Waiting);
    assert!(is_granted(&server.standing(id(4))));
}

#[test]
fn first_requests_of_a_process_that_fail_leave_no_beacon() {
    let lab = Lab::new();
    let mut server = lab.server();
    assert!(is_granted(&server.ask(1)));
    server.release(1);
    for number in [3, 4] {
        fs::create_dir(lab.state().join(id(number).to_string())).unwrap();
    }
    (2..5).for_each(|number| server.begin(request(number, Mode::Write)));
    assert!(is_granted(&server.standing(id(2))));
    assert_eq!((server.failure().0, server.failure().0), (id(3), id(4)));
    assert_eq!(server.release(2), Released::Done);
    assert!(server.is_empty());
    assert_eq!(lab.beacons(), 2, "the folders");
}

/// "A transaction of `rlock serve` takes in no further request once it has 64 claims."
#[test]
fn other_process_gets_the_lock_between_the_transactions_for_many_requests() {
    let lab = Lab::new();
    let mut server = lab.server();
    let many = u32::try_from(3 * BATCH_CLAIMS).unwrap();
    (1..=many).for_each(|number| server.begin(request(number, Mode::Write)));
    server.0.advance();
    let mut other = lab.other(request(many + 1, Mode::Write));
    assert_eq!(other.check().unwrap(), Standing::Waiting);
    let listings = lab.open().inspect(&[]).unwrap().resources;
    assert_eq!((listings[0].holders.len(), listings[0].waiters.len()), (1, BATCH_CLAIMS));
    for number in 1..=many {
        assert_eq!(is_granted(&server.standing(id(number))), number == 1);
    }
    let listings = lab.open().inspect(&[]).unwrap().resources;
    assert_eq!(listings[0].waiters[BATCH_CLAIMS - 1].session, id(many + 1), "its place is before the others");
}

#[test]
fn request_with_many_claims_ends_a_transaction() {
    let lab = Lab::new();
    let mut server = lab.server();
    let mut wide = request(1, Mode::Write);
    let name = |number: usize| Resource::new(&format!("k{number}")).unwrap();
    wide.claims = (0..BATCH_CLAIMS).map(|number| Claim { resource: name(number), ..wide.claims[0].clone() }).collect();
    server.begin(wide);
    server.begin(request(2, Mode::Write));
    server.0.advance();
    assert!(server.0.next_report().is_some_and(|(session, _)| session == id(1)));
    assert!(server.0.next_report().is_none(), "the next transaction serves the other one");
    assert!(is_granted(&server.standing(id(2))));
}

#[test]
fn lock_goes_from_process_to_process_in_the_order_of_their_requests() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.server(), lab.server());
    assert!(is_granted(&one.ask(1)));
    assert_eq!(two.ask(2), Standing::Waiting);
    let mut other = lab.other(request(3, Mode::Write));
    assert_eq!(other.check().unwrap(), Standing::Waiting);
    assert_eq!(one.ask(4), Standing::Waiting);
    assert_eq!(one.ask(5), Standing::Waiting);
    one.release(1);
    assert!(one.is_quiet());
    assert!(is_granted(&two.standing(id(2))));
    two.release(2);
    assert!(is_granted(&other.check().unwrap()));
    other.release(None).unwrap();
    drop(other);
    assert!(is_granted(&one.standing(id(4))));
    one.release(4);
    assert!(is_granted(&one.standing(id(5))));
    one.release(5);
    assert!(one.is_empty() && two.is_empty());
    assert_eq!(lab.beacons(), 0);
}

#[test]
fn all_waiters_behind_a_process_share_a_descriptor_and_notice_its_death() {
    let lab = Lab::new();
    let mut server = lab.server();
    let mut other = lab.other(request(1, Mode::Write));
    assert!(is_granted(&other.check().unwrap()));
    server.begin(request(2, Mode::Read));
    assert_eq!(server.standing(id(2)), Standing::Waiting);
    let before = open_descriptors();
    for number in 3..200 {
        server.begin(request(number, Mode::Read));
        assert_eq!(server.standing(id(number)), Standing::Waiting);
    }
    assert_eq!(server.0.watches.len(), 1);
    assert!(open_descriptors() < before + 100, "other tests may open some");
    server.let_go(id(199));
    server.released();
    drop(other);
    for number in 2..199 {
        assert!(is_granted(&server.standing(id(number))), "{number}");
    }
    assert_eq!(server.0.watches.len(), 0);
    assert!(server.is_quiet());
}

#[test]
fn death_of_a_waiter_between_two_sessions_is_noticed() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    let other = lab.other(request(2, Mode::Write));
    assert_eq!(server.ask(3), Standing::Waiting);
    drop(other);
    assert!(server.is_quiet());
    assert_eq!(server.0.watches.len(), 0, "the dead waiter is out of the way");
    server.release(1);
    assert!(is_granted(&server.standing(id(3))));
}

#[test]
fn look_that_removes_a_dead_holder_asks_for_no_other_look() {
    let lab = Lab::new();
    let mut server = lab.server();
    let other = lab.other(request(1, Mode::Write));
    assert_eq!(server.ask(2), Standing::Waiting);
    drop(other);
    server.0.call([id(2)]);
    assert!(server.0.serve(Duration::ZERO));
    assert!(!server.0.sessions[&id(2)].is_due);
    assert!(is_granted(&server.standing(id(2))));
}

/// The other waiter watches the process of the first blocker, which goes on.
#[test]
fn waiter_of_another_process_looks_again_when_a_session_is_released_before_it() {
    let lab = Lab::new();
    let mut server = lab.server();
    let holder = lab.other(request(1, Mode::Write));
    assert_eq!(server.ask(2), Standing::Waiting);
    let mut waiter = lab.other(request(3, Mode::Write));
    assert_eq!(waiter.check().unwrap(), Standing::Waiting);
    // Another session keeps the beacon open.
    assert_eq!(server.ask(4), Standing::Waiting);
    server.release(2);
    assert!(is_ready(&waiter.descriptors()), "the release wakes the waiter");
    assert_eq!(waiter.check().unwrap(), Standing::Waiting);
    drop(holder);
    assert!(is_ready(&waiter.descriptors()));
    assert!(is_granted(&waiter.check().unwrap()));
}

#[test]
fn own_waiter_watches_the_next_blocker_when_an_own_session_is_released_before_it() {
    let lab = Lab::new();
    let mut server = lab.server();
    let holder = lab.other(request(1, Mode::Write));
    assert_eq!(server.ask(2), Standing::Waiting);
    assert_eq!(server.ask(3), Standing::Waiting);
    server.release(2);
    drop(holder);
    assert!(is_granted(&server.standing(id(3))));
}

#[test]
fn death_of_the_process_frees_all_its_sessions() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    server.ask(2);
    let mut other = lab.other(request(3, Mode::Write));
    assert_eq!(other.check().unwrap(), Standing::Waiting);
    drop(server);
    assert!(is_granted(&other.check().unwrap()));
    assert_eq!(lab.beacons(), 1);
}

#[test]
fn break_reports_the_loss_to_its_session_only() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    server.ask(2);
    let mut elsewhere = request(3, Mode::Write);
    elsewhere.claims[0].resource = Resource::new("other").unwrap();
    server.begin(elsewhere);
    assert!(is_granted(&server.standing(id(3))));
    lab.open().break_grants(&Resource::new("k").unwrap(), None, Breaking::Now).unwrap();
    let mut standings = [server.event().unwrap(), server.event().unwrap()];
    standings.sort_by_key(|(id, _)| *id);
    assert!(matches!(standings[0], (session, Report::Standing(Ok(Standing::Lost))) if session == id(1)));
    assert!(matches!(standings[1], (session, Report::Standing(Ok(Standing::Granted(_)))) if session == id(2)));
    assert!(server.is_quiet());
    assert_eq!(server.release(1), Released::Done, "a session that was reported as lost is not known");
    assert_eq!(lab.beacons(), 2);
}

#[test]
fn grant_that_was_taken_away_is_lost_for_the_release() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    lab.open().break_grants(&Resource::new("k").unwrap(), None, Breaking::Now).unwrap();
    assert_eq!(server.release(1), Released::Lost);
    assert!(server.is_empty());
}

#[test]
fn busy_and_refused_requests_leave_nothing() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.begin(slot(1, 2));
    assert!(is_granted(&server.standing(id(1))));
    let mut refused = request(2, Mode::Write);
    refused.ancestors = vec![id(1)];
    server.begin(refused);
    assert!(matches!(server.standing(id(2)), Standing::Refused(_)));
    let mut busy = request(3, Mode::Write);
    busy.wait = false;
    server.begin(busy);
    match server.standing(id(3)) {
        Standing::Busy { obstructions, .. } => assert_eq!(obstructions[0].listing.holders[0].session, id(1)),
        other => panic!("the request should be busy: {other:?}"),
    }
    assert_eq!(lab.beacons(), 1);
    server.release(1);
    assert!(server.is_empty());
    assert_eq!(lab.beacons(), 0);
}

#[test]
fn session_grows_below_another_session_of_the_process() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.begin(request(1, Mode::Prewrite));
    assert!(is_granted(&server.standing(id(1))));
    server.begin(request(2, Mode::Read));
    assert!(is_granted(&server.standing(id(2))));
    server.begin(Request { ancestors: vec![id(1)], ..request(3, Mode::Write) });
    assert_eq!(server.standing(id(3)), Standing::Waiting);
    server.release(2);
    assert!(is_granted(&server.standing(id(3))));
    server.begin(request(4, Mode::Read));
    assert_eq!(server.standing(id(4)), Standing::Waiting);
    server.release(3);
    assert!(is_granted(&server.standing(id(4))));
    server.release(1);
    server.release(4);
    assert!(server.is_empty());
}

#[test]
fn full_beacon_wakes_all_sessions() {
    let lab = Lab::new();
    let mut server = lab.server();
    let mut other = lab.other(request(1, Mode::Write));
    assert!(is_granted(&other.check().unwrap()));
    for number in 2..10 {
        server.begin(request(number, Mode::Read));
        assert_eq!(server.standing(id(number)), Standing::Waiting);
    }
    let path = lab.state().join(id(2).to_string());
    for rubbish in [&[0; 16][..], b"!"] {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        let pipe = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
        while rustix::io::write(&pipe, rubbish).is_ok() {}
        assert!(server.is_quiet());
        assert!(server.is_quiet(), "the rest of a full pipe");
    }
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    let pipe = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    while rustix::io::write(&pipe, &id(2).0).is_ok() {}
    other.release(None).unwrap();
    let mut granted: Vec<_> = (2..10).map(|_| server.event().unwrap().0).collect();
    granted.sort();
    assert_eq!(granted, (2..10).map(id).collect::<Vec<_>>());
}

#[test]
fn taken_lock_delays_requests_and_releases_in_order() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    server.ask(2);
    let stopped = lab.stop();
    let before = Instant::now();
    server.let_go(id(1));
    server.begin(request(3, Mode::Write));
    server.begin(request(4, Mode::Write));
    server.let_go(id(3));
    assert_eq!(server.released(), (id(3), Released::Done), "the table does not contain it");
    server.let_go(id(2));
    assert_eq!(server.released(), (id(2), Released::Done), "nothing is held");
    assert!(server.is_quiet());
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!(server.0.descriptors().len(), 1, "nothing counts but the lock");
    assert!(server.0.timeout().is_some());
    let unlock = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(stopped);
    });
    assert_eq!(server.released(), (id(1), Released::Done));
    assert_eq!(server.standing(id(4)), Standing::Waiting, "its request was made before the second release");
    assert!(is_granted(&server.standing(id(4))));
    unlock.join().unwrap();
    assert!(server.is_quiet());
    assert_eq!(server.0.timeout(), None);
    assert_eq!(server.0.descriptors().len(), 1);
    server.release(4);
    assert!(server.is_empty());
    assert_eq!(lab.beacons(), 0);
}

#[test]
fn lock_that_stays_taken_fails_requests_and_releases_but_not_waiters() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    server.ask(2);
    let stopped = lab.stop();
    server.let_go(id(1));
    server.begin(request(3, Mode::Write));
    let before = Instant::now();
    let mut failures = Vec::new();
    while failures.len() < 2 && before.elapsed() < Duration::from_secs(10) {
        failures.extend(server.event());
    }
    assert!(before.elapsed() >= Duration::from_millis(4_500));
    failures.sort_by_key(|(id, _)| *id);
    for (number, (session, event)) in [1, 3].into_iter().zip(failures) {
        assert_eq!(session, id(number));
        match event {
            Report::Released(Err(error)) | Report::Standing(Err(error)) => {
                assert!(error.to_string().contains("its lock was not free"), "{error}");
            }
            other => panic!("the lock should be stuck: {other:?}"),
        }
    }
    assert_eq!(server.0.timeout(), None);
    server.begin(request(4, Mode::Write));
    assert_eq!(server.failure().0, id(4), "the trouble is known already");
    drop(stopped);
    assert!(is_granted(&server.standing(id(2))), "the release stays due");
    server.release(2);
    assert!(server.is_empty());
    assert_eq!(lab.beacons(), 0);
}

#[test]
fn lock_that_comes_too_late_is_given_back() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    let stopped = lab.stop();
    server.begin(request(2, Mode::Write));
    server.let_go(id(2));
    server.released();
    drop(stopped);
    while server.0.descriptors().len() > 1 {
        assert!(server.is_quiet());
    }
    let mut other = lab.other(request(3, Mode::Write));
    assert_eq!(other.check().unwrap(), Standing::Waiting);
}

#[test]
fn replaced_files_end_all_sessions_and_the_next_request_uses_the_new_files() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    server.ask(2);
    fs::rename(lab.state(), lab.0.path().join("aside")).unwrap();
    let mut other = lab.other(request(3, Mode::Write));
    assert!(is_granted(&other.check().unwrap()));
    server.begin(request(4, Mode::Write));
    let mut events: Vec<_> = (0..3).map(|_| server.event().unwrap()).collect();
    events.sort_by_key(|(id, _)| *id);
    assert!(matches!(events[0], (session, Report::Standing(Ok(Standing::Lost))) if session == id(1)));
    for (event, number) in events[1..].iter().zip([2, 4]) {
        let (session, Report::Standing(Err(Error::Unavailable(text)))) = event else { panic!("{event:?}") };
        assert!(*session == id(number) && text.what.contains("removed or replaced its files"), "{text}");
    }
    assert!(server.is_empty());
    assert_eq!(server.release(1), Released::Done);
    assert_eq!(server.ask(5), Standing::Waiting);
    drop(other);
    assert!(is_granted(&server.standing(id(5))));
}

#[test]
fn release_after_the_files_were_replaced_is_a_loss() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    fs::remove_dir_all(lab.state()).unwrap();
    assert_eq!(server.release(1), Released::Lost);
    assert!(server.is_empty());
}

#[test]
fn idle_process_follows_a_replaced_table() {
    let lab = Lab::new();
    let mut server = lab.server();
    for number in 1..4 {
        assert!(is_granted(&server.ask(number)));
        server.release(number);
        assert_eq!(lab.beacons(), 0);
        match number {
            1 => fs::remove_file(lab.state().join("table")).unwrap(),
            2 => fs::remove_dir_all(lab.state()).unwrap(),
            _ => fs::write(lab.state().join("table"), vec![0xA5; 65536]).unwrap(),
        }
    }
    assert!(is_granted(&server.ask(4)));
}

#[test]
fn damaged_table_fails_each_session_that_uses_it() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    fs::remove_file(lab.state().join("table")).unwrap();
    server.begin(request(2, Mode::Write));
    let (session, text) = server.failure();
    assert!(session == id(2) && text.contains("damaged"), "{text}");
    server.let_go(id(1));
    assert!(matches!(server.event(), Some((session, Report::Released(Err(_)))) if session == id(1)));
    assert!(server.is_empty());
    assert!(is_granted(&server.ask(3)), "nobody uses the damaged table any more");
}

#[test]
fn sessions_that_come_and_go_leave_no_descriptor() {
    let lab = Lab::new();
    let mut server = lab.server();
    server.ask(1);
    server.release(1);
    for round in 0..50 {
        let first = 2 + round * 10;
        let other = lab.other(request(first, Mode::Write));
        for number in first + 1..first + 10 {
            assert_eq!(server.ask(number), Standing::Waiting);
        }
        drop(other);
        for number in first + 1..first + 10 {
            assert!(is_granted(&server.standing(id(number))));
            server.release(number);
        }
        assert!(server.is_empty());
    }
    assert_eq!(lab.beacons(), 0);
    let own = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let own: Vec<_> = own.filter(|file| file.starts_with(lab.0.path())).collect();
    assert!(own.len() <= 6, "{own:?}");
}

#[test]
fn unknown_session_counts_as_released() {
    let lab = Lab::new();
    let mut server = lab.server();
    assert_eq!(server.release(1), Released::Done);
    server.begin(request(2, Mode::Write));
    server.let_go(id(2));
    assert_eq!(server.released(), (id(2), Released::Done), "the grant is not reported any more");
    assert!(server.is_empty());
}

/// The other process looks at the table only at the end of the test, as a stopped process does.
#[test]
fn stopped_waiter_of_another_process_is_passed_over_and_returns_to_its_place() {
    let lab = Lab::new();
    let mut server = lab.server();
    assert!(is_granted(&server.ask(1)));
    let mut stopped = lab.other(request(2, Mode::Write));
    assert_eq!(stopped.check().unwrap(), Standing::Waiting);
    assert_eq!(server.ask(3), Standing::Waiting);
    assert_eq!(server.ask(4), Standing::Waiting);
    server.let_go(id(1));
    assert_eq!(server.released(), (id(1), Released::Done));
    let granted = std::iter::repeat_with(|| server.event()).find_map(|event| event);
    assert!(
        matches!(granted, Some((session, Report::Standing(Ok(Standing::Granted(_))))) if session == id(3)),
        "{granted:?}"
    );
    assert_eq!(stopped.check().unwrap(), Standing::Waiting);
    server.let_go(id(3));
    assert_eq!(server.released(), (id(3), Released::Done));
    assert!(is_granted(&stopped.check().unwrap()), "it has its place before session 4");
    assert_eq!(stopped.release(None).unwrap(), Released::Done);
    assert!(is_granted(&server.standing(id(4))));
}

/// A process that was stopped has sessions that were passed over meanwhile.
#[test]
fn sessions_of_a_stopped_process_return_to_their_places() {
    let lab = Lab::new();
    let mut holder = lab.other(request(1, Mode::Write));
    assert!(is_granted(&holder.check().unwrap()));
    let mut server = lab.server();
    assert_eq!(server.ask(2), Standing::Waiting);
    let mut other = lab.other(request(3, Mode::Write));
    assert_eq!(other.check().unwrap(), Standing::Waiting);
    assert_eq!(server.ask(4), Standing::Waiting);
    assert_eq!(holder.release(None).unwrap(), Released::Done);
    // The server does not look while the claim lease of its first session ends.
    let granted = || match other.check().unwrap() {
        Standing::Granted(_) => Some(()),
        _ => {
            let left = other.timeout().map_or(Duration::from_millis(100), |at| at - Boottime::now());
            let descriptors = other.descriptors();
            let mut polled: Vec<_> =
                descriptors.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
            poll(&mut polled, Timespec::try_from(left).ok().as_ref()).unwrap();
            None
        }
    };
    assert!(std::iter::repeat_with(granted).take(1000).any(|granted| granted.is_some()));
    assert!(server.event().is_none(), "session 2 waits again, which is no news");
    assert_eq!(other.release(None).unwrap(), Released::Done);
    assert!(is_granted(&server.standing(id(2))));
    server.let_go(id(2));
    assert_eq!(server.released(), (id(2), Released::Done));
    assert!(is_granted(&server.standing(id(4))));
}
