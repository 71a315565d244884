//! The embedded store on a small file system, such as that of 5 MiB which Debian mounts at
//! /run/lock.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rlock_model::mode::Mode;
use rlock_model::past::{End, Ending};
use rlock_model::request::{Claim, Job, OncePer, Process, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_store::{AcquireOptions, Handle, Released, Secrets, Standing, Store};

use rlock_testkit::Lab;
use rlock_testkit::small_disk::SmallDisk;

const SUCCESS: End = End { ending: Ending::Exit(0), is_success: true };
const LIMIT: Duration = Duration::from_secs(10);

struct Disk {
    lab: Lab,
    disk: SmallDisk,
    sessions: u128,
}

impl Disk {
    fn new(size: &str) -> Option<Self> {
        let lab = Lab::new();
        let disk = SmallDisk::mount(lab.folder(), size)?;
        Some(Self { lab: Lab::at(format!("file://{}", disk.place().join("store").display())), disk, sessions: 0 })
    }

    fn store(&self) -> Box<dyn Store> {
        rlock::stores::open(Some(&self.lab.url()), self.lab.namespace(), &Secrets::default(), LIMIT)
            .expect("the store opens")
    }

    /// Runs a job under a lock, as `exec` does, and returns how its request stood.
    fn run(&mut self, name: &str, job: Job) -> Result<Standing, rlock_store::Error> {
        let (mut handle, standing) = self.ask([name.to_owned()], job)?;
        if matches!(standing, Standing::Granted(_)) {
            assert_eq!(handle.release(Some(SUCCESS))?, Released::Done);
        }
        Ok(standing)
    }

    /// Makes a request, and returns how it stands once the store has answered.
    fn ask(
        &mut self,
        names: impl IntoIterator<Item = String>,
        job: Job,
    ) -> Result<(Handle, Standing), rlock_store::Error> {
        self.sessions += 1;
        let claim = |name: String| Claim {
            resource: Resource::new(&name).unwrap(),
            mode: Mode::Write,
            span: Span::Whole,
            slots: None,
        };
        let request = Request {
            session: SessionId(self.sessions.to_be_bytes()),
            ancestors: Vec::new(),
            claims: names.into_iter().map(claim).collect(),
            wait: false,
            terms: None,
            job,
            process: Process { host: "host".to_owned(), command: vec!["./backup.sh".to_owned()], ..Process::default() },
        };
        let mut handle = Handle::new(self.store().sessions(false)?, request, AcquireOptions::default())?;
        let mut standing = handle.check()?;
        while standing == Standing::Asking {
            thread::yield_now();
            standing = handle.check()?;
        }
        Ok((handle, standing))
    }
}

fn once() -> Job {
    Job { once_per: Some(OncePer { period: Duration::from_secs(3600), calendar: None }), ..Job::default() }
}

/// Every success is kept for its period, and everybody is served, however full the disk is of
/// history.
#[test]
fn full_disk_keeps_every_success_and_serves_everybody() {
    let Some(mut disk) = Disk::new("5m") else { return };
    for number in 0..300 {
        for _ in 0..8 {
            disk.run(&format!("early-{number}"), Job::default()).expect("a plain request is served");
        }
    }
    let succeeds = |disk: &mut Disk, numbers: Range<u32>| {
        for number in numbers {
            let ran = disk.run(&format!("job-{number}"), once());
            assert!(matches!(ran, Ok(Standing::Granted(_))), "{number}: {ran:?}");
        }
    };
    succeeds(&mut disk, 0..4_000);
    // The names that were idle longest lose their history first.
    disk.run("late", Job::default()).expect("a plain request is served");
    let history = |name: &str| {
        let found = disk.store().history(&[Resource::new(name).unwrap()], 32).expect("the store can be used");
        found.first().map_or(0, |past| past.entries.len())
    };
    assert_eq!([history("early-0"), history("late")], [0, 1]);
    succeeds(&mut disk, 4_000..8_000);
    for number in 0..8_000 {
        let ran = disk.run(&format!("job-{number}"), once());
        assert!(matches!(ran, Ok(Standing::AlreadyDone)), "{number}: {ran:?}");
    }
    // What others write to the disk takes no room from those who hold and release.
    let filler = disk.disk.fill();
    for number in 0..100 {
        let name = format!("beside-{number}");
        let ran = disk.run(&name, Job::default());
        assert!(matches!(ran, Ok(Standing::Granted(_))), "{name}: {ran:?}");
    }
    std::fs::remove_file(filler).expect("the file can be removed");
    // Where no success can be kept any more, no command starts that would need it.
    // A request asks 8,000 names for room at most, so three refusals in a row have asked all.
    let (mut refused, mut text, mut last) = (0, String::new(), String::new());
    for number in 0..30_000 {
        last = format!("more-{number}");
        match disk.run(&last, once()) {
            Ok(_) => refused = 0,
            Err(error) => (refused, text) = (refused + 1, error.to_string()),
        }
        if refused == 3 {
            break;
        }
    }
    assert_eq!(refused, 3, "the disk has no room for 38,000 successes");
    assert!(text.contains("it has no room for this request"), "{text}");
    // The page of another name may have room.
    disk.lab.run(["exec", "--once-per", "1h", &last, "--", "echo", "ran"]).failed(69);
    disk.lab.run(["exec", "plain", "--", "echo", "ran"]).printed("ran\n");
    disk.lab.run(["exec", "--once-per", "1h", "job-77", "--", "echo", "ran"]).silently(0);
    assert_eq!(disk.lab.run(["cleanup"]).code(), Some(0));
}

/// Other processes may get the store right after a request has found it full.
#[test]
fn request_that_finds_a_full_disk_says_so_although_others_use_the_store() {
    let Some(mut disk) = Disk::new("1m") else { return };
    let names = |of: String| (0..200).map(move |number| format!("{of}-{number}-{:0>400}", ""));
    // A hold lasts as long as its handle.
    let held: Vec<_> =
        (0..100).map_while(|number| disk.ask(names(format!("held-{number}")), Job::default()).ok()).collect();
    assert!(held.len() < 100, "the disk has no room for 20,000 names");
    let lock = File::open(disk.disk.place().join("store/state/lock")).expect("the store has been used");
    let is_over = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&is_over);
    let others = thread::spawn(move || {
        while !theirs.load(Ordering::Relaxed) {
            lock.lock().expect("the lock is free at times");
            lock.unlock().expect("it is locked");
        }
    });
    let found: Vec<_> = (0..40).map(|number| disk.ask(names(format!("more-{number}")), Job::default())).collect();
    is_over.store(true, Ordering::Relaxed);
    others.join().expect("the thread ends");
    for ran in found {
        let text = ran.err().expect("the disk is full").to_string();
        assert!(text.contains("it has no room for this request"), "{text}");
    }
}

/// "Room for releases is reserved", also where a file system writes to new blocks.
#[test]
fn release_and_success_are_kept_on_a_full_copy_on_write_file_system() {
    let lab = Lab::new();
    let Some(disk) = SmallDisk::copy_on_write(lab.folder()) else { return };
    let lab = Lab::at(format!("file://{}", disk.place().join("store").display()));
    lab.run(["exec", "k", "--", "true"]).silently(0);
    // The blocks of a file are taken when the file is written back.
    let fill =
        "for size in 64k 512; do dd if=/dev/zero of=\"$0/fill$size\" bs=$size; sync; done 2>&1 | grep -q 'No space'";
    let once = ["exec", "--once-per", "day", "k", "--"];
    let folder = disk.place().to_str().expect("the path is UTF-8");
    lab.run(once.into_iter().chain(["sh", "-c", fill, folder])).silently(0);
    std::fs::remove_file(disk.place().join("fill64k")).expect("the file is there");
    let ran = lab.run(once.into_iter().chain(["echo", "again"]));
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
}

/// A tmpfs of size 0 has no limit, and states no blocks.
#[test]
fn file_system_without_a_limit_has_room() {
    let lab = Lab::new();
    let Some(disk) = SmallDisk::mount(lab.folder(), "0") else { return };
    let lab = Lab::at(format!("file://{}", disk.place().join("store").display()));
    lab.run(["exec", "k", "--", "true"]).silently(0);
    let room = "unknown room         the file system states no free space: see what df(1) tells of the directory\n";
    let ran = lab.run(["doctor"]);
    assert!(ran.code() == Some(0) && ran.stdout.contains(room), "{ran:?}");
}
