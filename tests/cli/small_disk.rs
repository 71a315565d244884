//! The embedded store on a file system of 5 MiB, as Debian mounts at /run/lock.

use std::ops::Range;
use std::time::Duration;

use rlock::lock::mode::Mode;
use rlock::lock::past::{End, Ending};
use rlock::lock::request::{Claim, Job, OncePer, Process, Request, SessionId};
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;
use rlock::store::{self, AcquireOptions, Released, Secrets, Standing, Store};

use crate::support::Lab;
use crate::support::small_disk::SmallDisk;

const SUCCESS: End = End { ending: Ending::Exit(0), is_success: true };
const LIMIT: Duration = Duration::from_secs(10);

struct Disk {
    lab: Lab,
    disk: SmallDisk,
    sessions: u128,
}

impl Disk {
    fn new() -> Option<Self> {
        let lab = Lab::new();
        let disk = SmallDisk::mount(lab.folder(), "5m")?;
        Some(Self { lab: Lab::at(format!("file://{}", disk.place().join("store").display())), disk, sessions: 0 })
    }

    fn store(&self) -> Box<dyn Store> {
        store::open(Some(&self.lab.url()), self.lab.namespace(), &Secrets::default(), LIMIT).expect("the store opens")
    }

    /// Runs a job under a lock, as `exec` does, and returns how its request stood.
    fn run(&mut self, name: &str, job: Job) -> Result<Standing, store::Error> {
        self.sessions += 1;
        let claim = Claim { resource: Resource::new(name).unwrap(), mode: Mode::Write, span: Span::Whole, slots: None };
        let request = Request {
            session: SessionId(self.sessions.to_be_bytes()),
            ancestors: Vec::new(),
            claims: vec![claim],
            wait: false,
            terms: None,
            job,
            process: Process { host: "host".to_owned(), command: vec!["./backup.sh".to_owned()], ..Process::default() },
        };
        let mut handle = self.store().acquire(request, AcquireOptions::default())?;
        let standing = handle.check()?;
        if matches!(standing, Standing::Granted(_)) {
            assert_eq!(handle.release(Some(SUCCESS))?, Released::Done);
        }
        Ok(standing)
    }
}

fn once() -> Job {
    Job { once_per: Some(OncePer { period: Duration::from_secs(3600), calendar: None }), ..Job::default() }
}

/// Every success is kept for its period, and everybody is served, however full the disk is of
/// history.
#[test]
fn full_disk_keeps_every_success_and_serves_everybody() {
    let Some(mut disk) = Disk::new() else { return };
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
    succeeds(&mut disk, 4_000..10_000);
    for number in 0..10_000 {
        let ran = disk.run(&format!("job-{number}"), once());
        assert!(matches!(ran, Ok(Standing::AlreadyDone)), "{number}: {ran:?}");
    }
    // What others write to the disk takes no room from those who hold and release.
    let filler = disk.disk.fill();
    for number in 0..100 {
        let name = format!("beside-{number}");
        assert!(matches!(disk.run(&name, Job::default()), Ok(Standing::Granted(_))), "{name}");
    }
    std::fs::remove_file(filler).expect("the file can be removed");
    // Where no success can be kept any more, no command starts that would need it.
    let full = (0..20_000).find_map(|number| disk.run(&format!("more-{number}"), once()).err());
    let text = full.expect("the disk has no room for 30,000 successes").to_string();
    assert!(text.contains("it has no room for this request"), "{text}");
    disk.lab.run(["exec", "--once-per", "1h", "one-more", "--", "echo", "ran"]).failed(69);
    disk.lab.run(["exec", "plain", "--", "echo", "ran"]).printed("ran\n");
    disk.lab.run(["exec", "--once-per", "1h", "job-77", "--", "echo", "ran"]).silently(0);
    assert_eq!(disk.lab.run(["cleanup"]).code(), Some(0));
}
