//! Kept holds end by themselves, and the past survives deaths, boots and restarts.

use std::time::Instant;

use rustix::event::{PollFd, Timespec, poll};

use super::*;
use rlock_model::past::{End, Ending, Event, HISTORY_MAX, Past};
use rlock_model::records::Phase;
use rlock_model::request::OncePer;

const SUCCESS: Option<End> = Some(End { ending: Ending::Exit(0), is_success: true });

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn asks(number: u8, job: Job) -> Request {
    Request { job, ..request(number, Mode::Write, None) }
}

fn keeps(number: u8, length: Duration) -> Request {
    asks(number, Job { keep_for: Some(length), is_acquire: true, ..Job::default() })
}

impl Lab {
    fn of_another_boot(&self) {
        fs::write(self.file("lock"), "rlock store, format 4\nboot another\n").unwrap();
    }
}

impl Site {
    fn endings(&mut self) -> Vec<Event> {
        let found = self.0.history(&[], HISTORY_MAX).unwrap();
        found.iter().flat_map(|found| &found.entries).map(|entry| entry.event).collect()
    }

    fn kept(&mut self) -> Vec<bool> {
        let listings = self.0.inspect(&[]).unwrap().resources;
        listings.iter().flat_map(|listing| &listing.holders).map(|holder| holder.kept).collect()
    }
}

/// Polls a handle as a process does, until its request is granted.
fn wait(handle: &mut Handle) {
    let start = Instant::now();
    while !is_granted(&handle.check().unwrap()) {
        assert!(start.elapsed() < Duration::from_secs(10), "the request is not granted");
        let left =
            handle.timeout().expect("a waiter behind a kept hold has a timer") - rlock_sys::clock::Boottime::now();
        let timeout = Timespec::try_from(left).unwrap();
        let descriptors = handle.descriptors();
        let mut polled: Vec<_> = descriptors.iter().map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
        poll(&mut polled, Some(&timeout)).unwrap();
    }
}

#[test]
fn kept_hold_outlives_its_process_and_ends_by_itself() {
    let lab = Lab::new();
    let mut first = lab.handle(keeps(1, ms(400)));
    assert!(is_granted(&first.check().unwrap()));
    assert_eq!(lab.beacons(), [""; 0]);
    drop(first);
    let mut site = lab.open();
    assert_eq!(site.kept(), [true]);
    assert_eq!(site.0.cleanup(&[], false).unwrap(), [], "cleanup leaves kept holds");
    drop(site);
    let mut next = lab.handle(request(2, Mode::Write, None));
    assert_eq!(next.check().unwrap(), Standing::Waiting);
    wait(&mut next);
    next.release(SUCCESS).unwrap();
    drop(next);
    assert_eq!(lab.open().endings(), [Event::Ended(Ending::Kept), Event::Ended(Ending::Exit(0))]);
}

#[test]
fn kept_hold_that_is_over_is_not_shown() {
    let lab = Lab::new();
    drop(lab.handle(keeps(1, ms(50))));
    std::thread::sleep(ms(60));
    let mut site = lab.open();
    assert_eq!(site.kept(), [false; 0]);
    assert_eq!(site.0.session(id(1), &[]).unwrap(), None);
}

#[test]
fn state_of_the_previous_format_is_converted_unless_a_session_lives() {
    let lab = Lab::new();
    drop(lab.handle(keeps(1, Duration::from_secs(60))));
    let mut live = request(2, Mode::Write, None);
    live.claims[0].resource = Resource::new("other").unwrap();
    let (_, beacon) = lab.open().ask_for(live);
    let text = fs::read_to_string(lab.file("lock")).unwrap().replace("format 4", "format 3");
    fs::write(lab.file("lock"), &text).unwrap();
    assert!(lab.open().failure().contains("it has format 3 and this rlock knows format 4"));
    drop(beacon);
    let sessions = lab.open().transact(|work| work.records().sessions()).unwrap();
    assert_eq!(sessions.iter().map(|(id, session)| (*id, session.phase)).collect::<Vec<_>>(), [(id(1), Phase::Kept)]);
    assert!(fs::read_to_string(lab.file("lock")).unwrap().contains("format 4"));
}

#[test]
fn break_takes_a_kept_hold() {
    let lab = Lab::new();
    drop(lab.handle(keeps(1, Duration::from_secs(60))));
    let mut waiter = lab.handle(request(2, Mode::Write, None));
    assert_eq!(waiter.check().unwrap(), Standing::Waiting);
    let broken = lab.open().0.break_grants(&Resource::new("k").unwrap(), None, rlock_store::Breaking::Now).unwrap();
    assert_eq!(broken.iter().map(|(id, session)| (*id, session.phase)).collect::<Vec<_>>(), [(id(1), Phase::Kept)]);
    assert!(is_granted(&waiter.check().unwrap()));
}

#[test]
fn kept_hold_is_extended_and_released_by_another_process() {
    let lab = Lab::new();
    drop(lab.handle(keeps(1, ms(200))));
    let mut site = lab.open();
    assert_eq!(
        site.0.change(id(1), &[], &Change::Extend { by: Some(Duration::from_secs(60)) }).unwrap(),
        Changed::Done
    );
    std::thread::sleep(ms(250));
    assert_eq!(site.kept(), [true]);
    drop(site);
    let mut waiter = lab.handle(request(2, Mode::Write, None));
    assert_eq!(waiter.check().unwrap(), Standing::Waiting);
    let mut site = lab.open();
    let session = site.0.session(id(1), &[]).unwrap().unwrap();
    assert_eq!(Store::release(&mut site.0, id(1), &session, None).unwrap(), Released::Done);
    assert_eq!(Store::release(&mut site.0, id(1), &session, None).unwrap(), Released::Lost);
    assert_eq!(site.0.change(id(1), &[], &Change::Extend { by: None }).unwrap(), Changed::Lost);
    drop(site);
    assert!(is_granted(&waiter.check().unwrap()));
}

/// The waiter watches the holder's process, which ends without giving the resource free.
#[test]
fn waiter_behind_a_minimum_hold_is_granted_at_its_end() {
    let lab = Lab::new();
    let mut holder = lab.handle(asks(1, Job { hold_at_least: Some(ms(500)), ..Job::default() }));
    assert!(is_granted(&holder.check().unwrap()));
    let mut waiter = lab.handle(request(2, Mode::Write, None));
    assert_eq!(waiter.check().unwrap(), Standing::Waiting);
    assert_eq!(holder.release(SUCCESS).unwrap(), Released::Kept);
    assert_eq!(waiter.check().unwrap(), Standing::Waiting);
    assert_eq!(lab.open().kept(), [true]);
    wait(&mut waiter);
    drop(waiter);
    assert_eq!(lab.open().endings(), [Event::Ended(Ending::Exit(0))], "the run is recorded once");
}

#[test]
fn death_of_a_holder_is_remembered_and_that_of_a_waiter_is_not() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, holder) = site.ask(1);
    let (_, waiter) = site.ask(2);
    drop(waiter);
    drop(holder);
    let (standing, _beacon) = site.ask(3);
    let Standing::Granted(grant) = standing else { panic!("the third request stands {standing:?}") };
    assert_eq!(grant.last, Some(Ending::Expired));
    assert_eq!(site.endings(), [Event::Ended(Ending::Expired)]);
}

#[test]
fn dead_holder_is_removed_before_a_busy_request_is_counted() {
    let lab = Lab::new();
    let mut site = lab.open();
    drop(site.ask(1).1);
    let no_wait = |number| {
        let job = Job { skips: true, ..Job::default() };
        Request { wait: false, ..asks(number, job) }
    };
    let (standing, _beacon) = site.ask_for(no_wait(2));
    assert!(is_granted(&standing));
    for count in 1..3 {
        let Standing::Busy { streak, .. } = site.ask_for(no_wait(2 + count)).0 else { panic!("not busy") };
        assert_eq!(streak.unwrap().count, u32::from(count));
    }
    let found = site.0.history(&[], HISTORY_MAX).unwrap();
    assert_eq!((found[0].past.totals.busy, found[0].past.totals.ended), (2, 1));
}

#[test]
fn waiter_that_gives_up_is_busy_and_leaves_the_queue() {
    let lab = Lab::new();
    let mut holder = lab.handle(request(1, Mode::Write, None));
    let mut waiter = lab.handle(asks(2, Job { skips: true, ..Job::default() }));
    assert_eq!(waiter.check().unwrap(), Standing::Waiting);
    let Standing::Busy { streak, .. } = waiter.give_up().unwrap() else { panic!("not busy") };
    assert_eq!(streak.unwrap().count, 1);
    assert_eq!(lab.open().counts(), (1, 0));
    let mut late = lab.handle(request(3, Mode::Write, None));
    assert_eq!(late.check().unwrap(), Standing::Waiting);
    holder.release(SUCCESS).unwrap();
    assert!(is_granted(&late.give_up().unwrap()), "the request was granted in the meantime");
}

/// "The store decides in the step that grants, and again when a waiter's turn comes."
#[test]
fn waiters_whose_job_is_done_are_woken_and_find_out() {
    let lab = Lab::new();
    let once_per = Some(OncePer { period: Duration::from_secs(60), calendar: None });
    let job = || Job { name: "nightly".to_owned(), is_named: true, once_per, ..Job::default() };
    let mut first = lab.handle(asks(1, job()));
    assert!(is_granted(&first.check().unwrap()));
    let mut waiters: Vec<_> = (2..5).map(|number| lab.handle(asks(number, job()))).collect();
    let mut other = lab.handle(request(9, Mode::Write, None));
    for waiter in waiters.iter_mut().chain([&mut other]) {
        assert_eq!(waiter.check().unwrap(), Standing::Waiting);
    }
    first.release(SUCCESS).unwrap();
    let mut tired = waiters.pop().unwrap();
    assert_eq!(tired.give_up().unwrap(), Standing::AlreadyDone, "the end of a wait finds out as well");
    for waiter in &mut waiters {
        assert_eq!(waiter.check().unwrap(), Standing::AlreadyDone);
    }
    assert!(is_granted(&other.check().unwrap()));
    let mut late = lab.handle(asks(10, job()));
    assert_eq!(late.check().unwrap(), Standing::AlreadyDone, "even while somebody holds the resource");
}

#[test]
fn boot_removes_sessions_with_a_process_and_nothing_else() {
    let lab = Lab::new();
    drop(lab.handle(keeps(1, Duration::from_secs(60))));
    let mut site = lab.open();
    let on = |name: &str, mut request: Request| {
        request.claims[0].resource = Resource::new(name).unwrap();
        request
    };
    let (_, holder) = site.ask_for(on("other", request(2, Mode::Read, None)));
    // The first waiter alone keeps the second from the holder's side.
    let (_, waiter) = site.ask_for(on("other", request(3, Mode::Write, None)));
    let (_, behind) = site.ask_for(on("other", request(4, Mode::Read, None)));
    let (_, queued) = site.ask(5);
    drop((holder, waiter, behind, queued, site));
    lab.of_another_boot();
    let mut site = lab.open();
    let left = site.transact(|work| work.records().sessions()).unwrap();
    assert_eq!(left.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(1)]);
    assert_eq!(site.endings(), [Event::Ended(Ending::Expired)], "no waiter ran");
    drop(site);
    assert!(!fs::read_to_string(lab.file("lock")).unwrap().contains("another"));
    assert_eq!(lab.open().kept(), [true]);
}

/// The number of the last transaction that changed the table.
fn transaction(lab: &Lab) -> u64 {
    let lock = fs::read_to_string(lab.file("lock")).unwrap();
    lock.lines().find_map(|line| line.strip_prefix("transaction ")).unwrap().parse().unwrap()
}

#[test]
fn crowd_of_due_sessions_is_ended_in_portions_by_the_next_operations() {
    let lab = Lab::new();
    // All holds are due at one instant, by which even a slow machine has made the requests.
    let due = Instant::now() + ms(8000);
    for number in 0..250 {
        let mut request = keeps(1, due - Instant::now());
        request.session.0[..4].copy_from_slice(&(number + 1_000_u32).to_be_bytes());
        request.claims[0].mode = Mode::Read;
        drop(lab.handle(request));
    }
    let before = transaction(&lab);
    // A hold begins a moment after its length was computed.
    std::thread::sleep(due - Instant::now() + ms(500));
    let mut site = lab.open();
    let no_wait = Request { wait: false, ..request(2, Mode::Write, None) };
    let standing = site.ask_for(no_wait).0;
    assert!(is_granted(&standing), "nothing is left of what is due: {standing:?}");
    assert!(transaction(&lab) >= before + 3, "a transaction ends at most 100 sessions");
}

#[test]
fn sessions_with_many_names_are_ended_in_smaller_portions() {
    let lab = Lab::new();
    for number in 0..8_u8 {
        let mut request = keeps(number + 10, ms(2000));
        request.claims = (0..250)
            .map(|name| Claim {
                resource: Resource::new(&format!("{number}-{name}")).unwrap(),
                ..request.claims[0].clone()
            })
            .collect();
        drop(lab.handle(request));
    }
    let before = transaction(&lab);
    std::thread::sleep(ms(2001));
    lab.open().0.cleanup(&[], false).unwrap();
    assert!(transaction(&lab) >= before + 2, "a transaction ends no further session after 1,000 claims");
    assert!(lab.open().kept().is_empty());
}

#[test]
fn crowd_of_dead_sessions_is_removed_in_portions() {
    let lab = Lab::new();
    let mut site = lab.open();
    for number in 0..250 {
        let mut dead = request(1, Mode::Read, None);
        dead.session.0[..4].copy_from_slice(&(number + 1_000_u32).to_be_bytes());
        drop(site.ask_for(dead).1);
    }
    let before = transaction(&lab);
    let no_wait = Request { wait: false, ..request(2, Mode::Write, None) };
    assert!(is_granted(&site.ask_for(no_wait).0));
    assert!(transaction(&lab) >= before + 3, "a transaction removes at most 100 sessions");
}

/// The file of a machine that crashed may have old and new pages.
#[test]
fn table_of_an_earlier_boot_is_read_whole_even_if_its_seal_fits() {
    let lab = Lab::new();
    drop(lab.handle(keeps(1, Duration::from_secs(60))));
    let lock = fs::read_to_string(lab.file("lock")).unwrap();
    let seal = lock.lines().skip(2).collect::<Vec<_>>().join("\n");
    let table = fs::read(lab.file("table")).unwrap();
    let times = fs::metadata(lab.file("table")).unwrap().modified().unwrap();
    let file = fs::File::options().write(true).open(lab.file("table")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xA5; table.len() - 8192], 8192).unwrap();
    file.set_modified(times).unwrap();
    fs::write(lab.file("lock"), format!("rlock store, format 4\nboot another\n{seal}\n")).unwrap();
    assert!(is_granted(&lab.open().ask(2).0));
}

#[test]
fn past_that_contradicts_itself_is_damage() {
    let lab = Lab::new();
    let mut site = lab.open();
    let name = Resource::new("k").unwrap();
    type Change = fn(&mut records::Transaction<'_>, &Resource, Past) -> Result<(), failure::Error>;
    let changes: [(&str, Change); 4] = [
        ("an entry beyond the ring", |records, name, past| {
            let entry = records.entry(name, past.ring.start)?.unwrap();
            records.put_entry(name, past.ring.end, entry)
        }),
        ("a ring without its entry", |records, name, past| records.remove_entry(name, past.ring.start)),
        ("a past that is never checked", |records, name, past| {
            records.remove_past(name, past.check_at)?;
            records.put_past(name, past.clone(), Some(past.check_at))
        }),
        ("a past that is checked twice", |records, name, past| {
            let check_at = past.check_at + Duration::from_secs(1);
            records.put_past(name, Past { check_at, ..past }, None)
        }),
    ];
    for (what, change) in changes {
        drop(site.ask(1).1);
        site.0.cleanup(&[], false).unwrap();
        assert_eq!(site.endings().len(), 1, "{what}");
        site.transact(|work| {
            let past = work.records().past(&name)?.unwrap();
            change(work.records_mut(), &name, past)
        })
        .unwrap();
        drop(site);
        // Without a seal, the next process reads the whole table.
        let lock = fs::read_to_string(lab.file("lock")).unwrap();
        fs::write(lab.file("lock"), lock.lines().take(2).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        site = lab.open();
        assert_eq!(site.endings(), [], "{what} is damage, so the table is put aside");
    }
}

/// A process may die between the grant and the removal of its beacon's name.
#[test]
fn kept_hold_stays_if_the_name_of_its_beacon_stays() {
    let lab = Lab::new();
    let mut site = lab.open();
    drop(site.ask_for(keeps(1, Duration::from_secs(60))).1);
    assert_eq!(lab.beacons(), [id(1).to_string()]);
    let (standing, _beacon) = site.ask(2);
    assert_eq!(standing, Standing::Waiting);
    assert_eq!(site.0.cleanup(&[], false).unwrap(), []);
    assert_eq!(site.kept(), [true]);
}

#[test]
fn holds_end_without_history_where_there_is_no_room() {
    let lab = Lab::new();
    let mut site = lab.open();
    site.0.forgets = true;
    let (_, _holder) = site.ask_for(asks(1, Job { hold_at_least: Some(Duration::from_secs(60)), ..Job::default() }));
    let no_wait = Request { wait: false, ..asks(2, Job { skips: true, ..Job::default() }) };
    assert!(matches!(site.ask_for(no_wait).0, Standing::Busy { streak: None, .. }));
    let session = site.0.session(id(1), &[]).unwrap().unwrap();
    assert_eq!(Store::release(&mut site.0, id(1), &session, SUCCESS).unwrap(), Released::Done);
    assert_eq!(site.kept(), [true], "the hold itself needs no history");
    assert_eq!(site.0.history(&[], HISTORY_MAX).unwrap(), []);
}
