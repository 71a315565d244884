//! Tests of the store's promises when processes die, files disappear and transactions stop
//! half-way.
//!
//! In a test, an open beacon stands for a live process and a dropped beacon for a dead process. The
//! store knows no other difference.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::FlockOperation;
use tempfile::TempDir;

use super::beacon::{Beacon, Identity, Wake};
use super::transaction::View;
use super::*;
use rlock_model::mode::Mode;
use rlock_model::request::{Claim, Job, Process, Request};
use rlock_model::span::Span;
use rlock_store::handle::{AcquireOptions, Handle, Standing};
use rlock_sys::tree_end;
use rlock_testkit::needs;

/// A temporary directory for a store.
struct Lab(TempDir);

/// An open store, closed on drop, because a process may open a table's file only once.
struct Site(Embedded);

impl Lab {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Site {
        Site(Embedded::open(Some(self.0.path().to_owned()), "tests").unwrap())
    }

    /// Makes a request of a process with one session.
    fn handle(&self, request: Request) -> Handle {
        Handle::new(Box::new(self.open().0).sessions(false).unwrap(), request, AcquireOptions::default()).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join("state").join(name)
    }

    /// Holds the lock on the state, as a stopped process does.
    fn stop(&self) -> fs::File {
        let lock = fs::File::open(self.file("lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        lock
    }

    /// Returns the names of the beacons in the folder.
    fn beacons(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path().join("state")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "lock" && name != "table").collect()
    }
}

fn id(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn request(number: u8, mode: Mode, slots: Option<u32>) -> Request {
    let claim = Claim { resource: Resource::new("k").unwrap(), mode, span: Span::Whole, slots };
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

impl Site {
    fn transact<T>(&mut self, work: impl FnMut(&mut Work<'_>) -> Result<T, failure::Error>) -> Result<T, Error> {
        self.0.transact(None::<SessionId>, work)
    }

    /// Makes a request as a separate process does, and returns the standing and the beacon.
    fn ask_for(&mut self, request: Request) -> (Standing, Beacon) {
        let mut beacon = None;
        let view = self.transact(|work| work.enter(request.clone(), None, &mut beacon)).unwrap();
        (view.standing, beacon.unwrap())
    }

    fn ask(&mut self, number: u8) -> (Standing, Beacon) {
        self.ask_for(request(number, Mode::Write, None))
    }

    fn stand(&mut self, number: u8) -> Standing {
        self.transact(|work| work.stand(id(number))).unwrap().standing
    }

    /// Returns the numbers of live holders and waiters.
    fn counts(&mut self) -> (usize, usize) {
        let listings = self.0.inspect(&[]).unwrap().resources;
        listings.first().map_or((0, 0), |listing| (listing.holders.len(), listing.waiters.len()))
    }

    fn failure(&mut self) -> String {
        match self.transact(|work| work.records().sessions()) {
            Err(Error::Unavailable(words)) => words.to_string(),
            other => panic!("the store should be unavailable: {other:?}"),
        }
    }
}

/// How long a transaction takes beside long lists.
mod bounds;
/// The tests of a process with one request.
mod handle;
/// The tests of processes that go on without their session.
mod leaving;
/// The tests of kept holds and of what the store remembers.
mod past;
/// The tests of reports on the sessions in the way.
mod reports;

fn is_granted(standing: &Standing) -> bool {
    matches!(standing, Standing::Granted(_))
}

#[test]
fn transaction_that_fails_before_its_commit_changes_nothing() {
    let lab = Lab::new();
    let mut site = lab.open();
    let failed = site.transact(|work| {
        work.admit(request(1, Mode::Write, None), None)?;
        Err::<(), _>(failure::Error::Full)
    });
    assert!(failed.is_err());
    assert_eq!(site.transact(|work| work.records().sessions()).unwrap(), []);
    assert!(is_granted(&site.ask(2).0));
}

#[test]
fn identity_of_a_beacon_goes_with_its_session() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, beacon) = site.ask(1);
    let found = |site: &mut Site| site.transact(|work| records::beacon(work.records(), id(1))).unwrap();
    assert_eq!(found(&mut site), Some(*beacon.identity()));
    site.transact(|work| work.apply(Op::Release { session: id(1), end: None })).unwrap();
    assert_eq!(found(&mut site), None);
}

#[test]
fn request_reaps_the_dead_sessions_in_its_way() {
    let lab = Lab::new();
    let mut site = lab.open();
    for number in [1, 2, 3] {
        // Each request finds the session before it dead. That session is a holder, because its
        // request was granted.
        let (standing, beacon) = site.ask(number);
        assert!(is_granted(&standing), "{number}");
        drop(beacon);
    }
    assert_eq!(lab.beacons(), [id(3).to_string()]);
    assert_eq!(site.counts(), (0, 0), "inspect leaves out the dead");
    assert_eq!(site.transact(|work| work.records().sessions()).unwrap().len(), 1, "inspect changes nothing");
    assert_eq!(site.0.cleanup(&[], false).unwrap().len(), 1);
    assert_eq!(lab.beacons(), [""; 0]);
}

#[test]
fn dead_waiter_is_skipped() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, holder) = site.ask(1);
    let (waits, first) = site.ask(2);
    let (_, second) = site.ask(3);
    assert_eq!(waits, Standing::Waiting);
    drop(first);
    site.0.transact(Some(id(1)), |work| work.apply(Op::Release { session: id(1), end: None })).unwrap();
    drop(holder);
    assert!(is_granted(&site.stand(3)));
    assert_eq!(site.stand(2), Standing::Lost);
    drop(second);
}

#[test]
fn waiter_is_granted_when_holder_and_first_waiter_die_together() {
    for holder_first in [false, true] {
        let lab = Lab::new();
        let mut site = lab.open();
        let (_, holder) = site.ask(1);
        let (_, first) = site.ask(2);
        let (standing, _second) = site.ask(3);
        assert_eq!(standing, Standing::Waiting);
        if holder_first {
            drop(holder);
            drop(first);
        } else {
            drop(first);
            drop(holder);
        }
        assert!(is_granted(&site.stand(3)), "holder first: {holder_first}");
    }
}

#[test]
fn dead_holders_take_no_slots() {
    let lab = Lab::new();
    let mut site = lab.open();
    let slot = |number| request(number, Mode::Slot, Some(2));
    let (_, first) = site.ask_for(slot(1));
    let (_, _second) = site.ask_for(slot(2));
    let (standing, _third) = site.ask_for(slot(3));
    assert_eq!(standing, Standing::Waiting);
    drop(first);
    assert!(is_granted(&site.stand(3)));
}

#[test]
fn number_of_slots_ends_with_the_death_of_its_sessions() {
    let lab = Lab::new();
    let mut site = lab.open();
    drop(site.ask_for(request(1, Mode::Slot, Some(2))).1);
    let (standing, _beacon) = site.ask_for(request(2, Mode::Slot, Some(3)));
    assert!(is_granted(&standing));
}

#[test]
fn holder_without_a_beacon_counts_as_alive_and_a_waiter_as_dead() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, _holder) = site.ask(1);
    let (_, _waiter) = site.ask(2);
    fs::remove_file(lab.file(&id(1).to_string())).unwrap();
    fs::remove_file(lab.file(&id(2).to_string())).unwrap();
    assert_eq!(site.ask(3).0, Standing::Waiting);
    assert_eq!(site.counts(), (1, 0));
    assert_eq!(site.stand(2), Standing::Lost);
}

#[test]
fn beacon_without_a_session_is_removed_when_its_process_is_dead() {
    let lab = Lab::new();
    let mut site = lab.open();
    assert_eq!(site.counts(), (0, 0));
    let beacon = Beacon::light(&site.0.directory, id(1)).unwrap();
    site.0.cleanup(&[], false).unwrap();
    assert_eq!(lab.beacons().len(), 1, "its process may be about to make a request");
    drop(beacon);
    site.0.cleanup(&[], true).unwrap();
    assert_eq!(lab.beacons().len(), 1, "a dry run removes nothing");
    site.0.cleanup(&[], false).unwrap();
    assert_eq!(lab.beacons().len(), 0);
}

#[test]
fn state_of_another_boot_is_cleared_unless_a_session_lives() {
    let lab = Lab::new();
    let (_, beacon) = lab.open().ask(1);
    let of_another_boot = || fs::write(lab.file("lock"), "rlock store, format 4\nboot another\n").unwrap();
    of_another_boot();
    assert_eq!(lab.open().counts(), (1, 0), "a container may see another boot id than its host");
    drop(beacon);
    of_another_boot();
    assert_eq!(lab.open().transact(|work| work.records().sessions()).unwrap(), []);
    assert_eq!(lab.beacons(), [""; 0]);
    assert!(!fs::read_to_string(lab.file("lock")).unwrap().contains("another"));
}

/// "A holder whose files in the directory were replaced counts as alive."
#[test]
fn holder_lives_without_its_pipe_in_whatever_boot_the_lock_file_says() {
    let lab = Lab::new();
    let (_, _beacon) = lab.open().ask(1);
    lab.beacons().iter().for_each(|name| fs::remove_file(lab.file(name)).unwrap());
    fs::write(lab.file("lock"), "rlock store, format 4\nboot another\n").unwrap();
    assert_eq!(lab.open().ask(2).0, Standing::Waiting);
}

#[test]
fn holder_without_its_pipe_is_dead_if_its_record_names_no_process() {
    let lab = Lab::new();
    type Change = fn(&mut Identity);
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let cases: [(&str, bool, Change); 7] = [
        ("the process runs", true, |_| ()),
        ("its number is used again", false, |identity| identity.started -= 1),
        ("its start is not known", true, |identity| identity.started = 0),
        ("its start counts in another time namespace", true, |identity| {
            (identity.started, identity.times) = (identity.started - 1, identity.times + 1);
        }),
        ("its pid namespace can't be seen", true, |identity| {
            (identity.started, identity.pids) = (identity.started - 1, identity.pids + 1);
        }),
        ("the machine has booted since", false, |identity| identity.boot += 1),
        ("the boot is not known", true, |identity| identity.boot = 0),
    ];
    for (what, lives, change) in cases {
        let mut site = lab.open();
        let (_, beacon) = site.ask(1);
        lab.beacons().iter().for_each(|name| fs::remove_file(lab.file(name)).unwrap());
        let mut identity = *beacon.identity();
        change(&mut identity);
        site.transact(|work| records::put_beacon(work.records_mut(), id(1), &identity)).unwrap();
        let standing = site.ask(2).0;
        assert_eq!(standing == Standing::Waiting, lives, "{what}: {standing:?}");
        drop(beacon);
        site.transact(|work| work.reap(id(1))).unwrap();
        site.0.cleanup(&[], false).unwrap();
    }
    let gone = Identity { pid: ended.id(), ..*lab.open().ask(1).1.identity() };
    assert!(gone.names_no_process());
}

/// Through another id-mapped mount of the directory, a process sees other owners of its folder and
/// of its pipes. Here the folder gets another owner, and the record one that the pipe does not
/// have.
#[test]
fn beacon_is_known_through_a_mount_that_maps_its_owner() {
    if !needs::root("give a folder away") {
        return;
    }
    for is_mapped in [true, false] {
        let lab = Lab::new();
        let mut site = lab.open();
        let (_, beacon) = site.ask(1);
        let owner = beacon.identity().owner + 1;
        let identity = Identity { owner, ..*beacon.identity() };
        site.transact(|work| records::put_beacon(work.records_mut(), id(1), &identity)).unwrap();
        if is_mapped {
            std::os::unix::fs::chown(lab.0.path().join("state"), Some(owner), None).unwrap();
        }
        drop((site, beacon));
        assert_eq!(is_granted(&lab.open().ask(2).0), is_mapped);
    }
}

#[test]
fn end_that_cannot_be_seen_and_that_no_guardian_noted_is_waited_for_once() {
    let lab = Lab::new();
    // How often a transaction begins that removes a dead holder.
    let begins = |is_near: bool, is_noted: bool| {
        let mut site = lab.open();
        let (_, beacon) = site.ask(1);
        let mut identity = *beacon.identity();
        identity.pids += u64::from(!is_near);
        site.transact(|work| records::put_beacon(work.records_mut(), id(1), &identity)).unwrap();
        if is_noted {
            tree_end::note(&beacon).unwrap();
        }
        drop(beacon);
        let mut count = 0;
        site.transact(|work| {
            count += 1;
            work.reap(id(1))
        })
        .unwrap();
        count
    };
    assert_eq!(begins(false, false), 2, "the kernel may have ended the pid namespace");
    assert_eq!(begins(false, true), 1, "its guardian has seen the end of the tree");
    assert_eq!(begins(true, false), 1, "the process can be seen");
}

#[test]
fn state_of_an_unreleased_format_is_cleared_unless_a_session_lives() {
    for unreleased in ["format 1", "format 2"] {
        let lab = Lab::new();
        let (_, beacon) = lab.open().ask(1);
        let text = fs::read_to_string(lab.file("lock")).unwrap().replace("format 4", unreleased);
        fs::write(lab.file("lock"), &text).unwrap();
        let refused = format!("it has {unreleased} and this rlock knows format 4");
        assert!(lab.open().failure().contains(&refused));
        drop(beacon);
        assert_eq!(lab.open().transact(|work| work.records().sessions()).unwrap(), []);
        assert!(fs::read_to_string(lab.file("lock")).unwrap().contains("format 4"));
    }
}

#[test]
fn damaged_table_is_replaced_unless_a_session_lives() {
    type Damage = fn(&std::path::Path);
    let damages: [(&str, Damage); 5] = [
        ("overwritten", |table| fs::write(table, vec![0xA5; 65536]).unwrap()),
        ("emptied", |table| fs::write(table, "").unwrap()),
        ("cut to a page", |table| fs::File::options().write(true).open(table).unwrap().set_len(4096).unwrap()),
        ("zeroed", |table| fs::write(table, vec![0; 65536]).unwrap()),
        ("removed", |table| fs::remove_file(table).unwrap()),
    ];
    for (what, damage) in damages {
        let lab = Lab::new();
        let (_, beacon) = lab.open().ask(1);
        damage(&lab.file("table"));
        let text = lab.open().failure();
        assert!(text.contains("can't be used: its table") && !text.contains('\n'), "{what}: {text}");
        drop(beacon);
        let mut site = lab.open();
        assert!(is_granted(&site.ask(2).0), "{what}");
        assert_eq!(site.transact(|work| work.records().sessions()).unwrap().len(), 1, "{what}");
    }
}

/// A power failure may leave files of zeros, or empty ones.
#[test]
fn emptied_files_are_repaired_and_an_emptied_table_is_put_aside_with_a_warning() {
    let zeros = [0; 180];
    for (what, lock) in
        [("same", None), ("zeroed", Some(&zeros[..])), ("old", Some(b"rlock store, format 4\nboot x\n"))]
    {
        for is_emptied in [true, false] {
            let lab = Lab::new();
            drop(lab.open().ask(1).1);
            if is_emptied {
                fs::write(lab.file("table"), "").unwrap();
            }
            lock.into_iter().for_each(|text| fs::write(lab.file("lock"), text).unwrap());
            assert!(is_granted(&lab.open().ask(2).0), "{what}");
            assert_eq!(lab.file("table.damaged").exists(), is_emptied, "{what}");
            assert!(fs::read_to_string(lab.file("lock")).unwrap().starts_with("rlock store, format 4\n"), "{what}");
        }
    }
    let lab = Lab::new();
    drop(lab.open().ask(1).1);
    fs::write(lab.file("lock"), [0; 256]).unwrap();
    assert!(lab.open().failure().contains("not rlock's"), "a text of rlock is shorter");
}

#[test]
fn truncated_table_kills_no_process() {
    let lab = Lab::new();
    let (_, beacon) = lab.open().ask(1);
    let cut = || fs::File::options().write(true).open(lab.file("table")).unwrap().set_len(8192).unwrap();
    cut();
    // The remaining pages may suffice or not. In neither case may the store grant a second request
    // beside the holder.
    if let Ok(View { standing, .. }) = lab.open().transact(|work| work.admit(request(2, Mode::Write, None), None)) {
        assert_eq!(standing, Standing::Waiting);
    }
    drop(beacon);
    cut();
    assert!(is_granted(&lab.open().ask(3).0));
}

#[test]
fn table_removed_in_use_is_an_error() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, _holder) = site.ask(1);
    fs::write(lab.file("table"), "").unwrap();
    assert!(site.failure().contains("damaged"));
    fs::remove_file(lab.file("table")).unwrap();
    assert!(site.failure().contains("damaged"));
}

#[test]
fn directory_removed_before_its_first_use_is_created_again() {
    let lab = Lab::new();
    let mut site = lab.open();
    fs::remove_dir_all(lab.0.path()).unwrap();
    assert!(is_granted(&site.ask(1).0));
    assert_eq!(lab.beacons(), [id(1).to_string()]);
}

#[test]
fn command_inherits_no_descriptor_of_the_store() {
    let lab = Lab::new();
    let (mut site, mut found) = (lab.open(), 0);
    let _beacon = site.ask(1);
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        if !fs::read_link(&path).is_ok_and(|file| file.starts_with(lab.0.path())) {
            continue;
        }
        let info = fs::read_to_string(path.to_str().unwrap().replace("/fd/", "/fdinfo/")).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        // In fdinfo, O_CLOEXEC is 02000000.
        assert!(u32::from_str_radix(flags, 8).unwrap() & 0o2_000_000 != 0, "{path:?}: {info}");
        found += 1;
    }
    assert!(found >= 4, "the folder, the lock, the table, LMDB's own and the beacon, not {found}");
}

#[test]
fn full_table_is_reported() {
    let text = failure::Error::Full.to_string();
    assert_eq!(
        text,
        "it has no room for this request: its table may have 256 MiB, as far as the disk has room; make room on the disk, \
         end holders and waiters that 'rlock inspect' shows, or run 'rlock cleanup'"
    );
}

#[test]
fn long_queue_of_dead_waiters_is_skipped() {
    let lab = Lab::new();
    let mut site = lab.open();
    let (_, holder) = site.ask(1);
    // A recursive reap of so many sessions would overflow the stack.
    for number in 0..3_000_u32 {
        let mut dead = request(0, Mode::Write, None);
        dead.session.0[..4].copy_from_slice(&(number + 1_000_000).to_be_bytes());
        drop(site.ask_for(dead).1);
    }
    let (standing, _last) = site.ask(2);
    assert_eq!(standing, Standing::Waiting);
    site.transact(|work| work.apply(Op::Release { session: id(1), end: None })).unwrap();
    drop(holder);
    assert!(is_granted(&site.stand(2)));
    assert_eq!(site.counts(), (1, 0));
}

#[test]
fn failed_cleanup_keeps_the_beacon_of_the_dead_session() {
    let lab = Lab::new();
    let mut site = lab.open();
    drop(site.ask(1).1);
    let failed = site.transact(|work| {
        work.reap(id(1))?;
        Err::<(), _>(failure::Error::Full)
    });
    assert!(failed.is_err());
    assert_eq!(lab.beacons(), [id(1).to_string()], "without the beacon the holder would count as alive");
    assert!(is_granted(&site.ask(2).0));
}

#[test]
fn waiter_looks_again_when_a_grant_of_several_resources_is_broken() {
    let lab = Lab::new();
    let mut site = lab.open();
    let claim = |name: &str, mode| {
        let resource = Resource::new(name).unwrap();
        Claim { resource, mode, span: Span::Whole, slots: None }
    };
    let (_, _reader) = site.ask_for(request(1, Mode::Read, None));
    let mut both = request(2, Mode::Read, None);
    both.claims.push(claim("s", Mode::Write));
    let (_, _both) = site.ask_for(both);
    let (standing, waiter) = site.ask(3);
    assert_eq!(standing, Standing::Waiting);
    site.0.break_grants(&Resource::new("s").unwrap(), None, rlock_store::Breaking::Now).unwrap();
    let mut woken = [0; 8];
    assert!(
        rustix::io::read(&waiter, &mut woken).is_ok_and(|read| read > 0),
        "it may have watched the one that was broken"
    );
    assert_eq!(site.stand(3), Standing::Waiting);
}
