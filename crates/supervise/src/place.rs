//! Places in queues that outlive their waiters, for `--place NAME`: notes of this user on this
//! machine.
//!
//! ```text
//!   request ──▶ locks a note, ends the earlier one ──▶ notes its number ──▶ removes it to start
//! ```
//!
//! Every store lets a request return to a number in its queue, so that the place needs no record
//! there, blocks nobody while its waiter is away, and is granted to nobody.
//!
//! A request locks its note by flock(2) until it ends. The lock on the folder guards all other
//! steps, so a request either has its note at the start of its command, or starts none.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use crate::report::Outcome;
use rlock_model::request::SessionId;
use rlock_store::Return;
use rlock_sys::clock::{Boottime, StoreTime};
use rlock_sys::processes;

/// How long a place outlives its first request.
pub const KEPT_FOR: Duration = Duration::from_secs(15 * 60);

/// How long a request waits for the end of an earlier one, which releases its session meanwhile.
const GHOST_LIMIT: Duration = Duration::from_secs(3);
/// The pause between two looks whether it has ended.
const GHOST_LOOK: Duration = Duration::from_millis(10);

/// The maximum size of a note: a name, a store, and the KEYs of a request.
const NOTE_MAX: u64 = 1 << 20;

/// The head of a note. Its line always has the same length, so that one write replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    session: SessionId,
    pid: i32,
    /// When the process started, in ticks since the boot; 0 if /proc does not tell.
    started: u64,
    /// The number of the place; 0 before the request is queued.
    number: u64,
    /// When the first request was made.
    asked: StoreTime,
}

impl Head {
    fn line(&self) -> String {
        let Self { session, pid, started, number, asked } = self;
        format!("{session} {pid:>10} {started:>20} {number:>20} {:>20}\n", asked.as_micros())
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        Some(Self {
            session: words.next()?.parse().ok()?,
            pid: words.next()?.parse().ok()?,
            started: words.next()?.parse().ok()?,
            number: words.next()?.parse().ok()?,
            asked: StoreTime::from_micros(words.next()?.parse().ok()?),
        })
    }

    /// Whether there is a place that a request may return to. A clock that was set back prolongs
    /// its time by as much, and by no more than the time itself.
    fn is_kept(&self, now: StoreTime) -> bool {
        self.number > 0 && now - self.asked < KEPT_FOR && self.asked - now < KEPT_FOR
    }

    /// Sends SIGTERM to the process, if it is certain that no other one has its number now.
    fn end(&self) {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.started != 0) else { return };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        if processes::stat(pid).is_ok_and(|stat| stat.process.started == self.started) {
            // If it has ended meanwhile, nothing is left to do.
            let _ = pidfd_send_signal(&process, Signal::TERM);
        }
    }
}

/// The place of one request.
#[derive(Debug)]
pub struct KeptPlace {
    folder: File,
    note: File,
    path: PathBuf,
    head: Head,
    earlier: Option<SessionId>,
}

impl KeptPlace {
    /// Takes the place over from the last request with these words, and ends that request if it
    /// still waits. The words name the store, the place and the KEYs; `hash` is that of the words.
    ///
    /// # Errors
    /// The folder or the note cannot be made.
    pub fn take(folder: &Path, words: &[String], hash: u64, session: SessionId, now: StoreTime) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let lock = Locked::new(open(folder)?)?;
        let path = folder.join(format!("{hash:016x}"));
        remove_old(folder, &path, now)?;
        let earlier = match open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            file => Some(file?),
        };
        let mut found = earlier.and_then(|mut file| Some((read(&mut file)?.0, file)));
        // Until it is complete, the note of the earlier request stays.
        let new = folder.join(format!("{hash:016x}.new"));
        // Whatever is there was left by a request that was killed, or is no file.
        let _ = fs::remove_file(&new);
        let note = File::options().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
        flock(&note, FlockOperation::NonBlockingLockExclusive)?;
        let (pid, started) = (getpid().as_raw_nonzero().get(), processes::own_start().unwrap_or(0));
        let mut head = Head { session, pid, started, number: 0, asked: now };
        let inherit = |head: &mut Head, earlier: &Head| {
            if earlier.is_kept(now) {
                (head.number, head.asked) = (earlier.number, earlier.asked);
            }
        };
        found.iter().for_each(|(earlier, _)| inherit(&mut head, earlier));
        let text = head.line() + &words.join("\n") + "\n";
        let complete = note.write_all_at(text.as_bytes(), 0).and_then(|()| fs::rename(&new, &path));
        // From here on, this note has the place even if this process is killed.
        complete.inspect_err(|_| drop(fs::remove_file(&new)))?;
        if let Some((earlier, file)) = &found
            && !is_free(file)
        {
            earlier.end();
        }
        let folder = lock.unlock()?;
        if let Some((earlier, file)) = &mut found {
            let until = Boottime::now() + GHOST_LIMIT;
            while !is_free(file) && Boottime::now() < until {
                thread::sleep(GHOST_LOOK);
            }
            // It may have been queued meanwhile.
            *earlier = read(file).map_or(*earlier, |(last, _)| last);
            inherit(&mut head, earlier);
            note.write_all_at(head.line().as_bytes(), 0)?;
        }
        Ok(Self { folder, note, path, head, earlier: found.map(|(earlier, _)| earlier.session) })
    }

    /// The session of the last request, of which the store may keep something.
    pub fn earlier(&self) -> Option<SessionId> {
        self.earlier
    }

    /// The place to which the request returns, if there is one.
    pub fn returns(&self) -> Option<Return> {
        let Head { number, asked, .. } = self.head;
        (number > 0).then(|| Return { place: number, waited: StoreTime::of_machine() - asked })
    }

    /// Notes the number of the place. If that fails, the place ends with its waiter.
    pub(crate) fn note(&mut self, number: u64) {
        self.note_head(Head { number, ..self.head });
    }

    /// Notes the session that makes the request from now on.
    pub(crate) fn rename(&mut self, session: SessionId) {
        self.note_head(Head { session, ..self.head });
    }

    fn note_head(&mut self, head: Head) {
        if self.head != head {
            self.head = head;
            let _ = self.note.write_all_at(head.line().as_bytes(), 0);
        }
    }

    /// Uses the place up. Returns whether the request had it still: a later request may have taken
    /// it over, and then this one starts nothing.
    pub(crate) fn use_up(self) -> bool {
        self.remove()
    }

    /// Leaves the place to the next request, unless the outcome uses it up or there is none.
    pub(crate) fn leave(&self, outcome: Outcome) {
        let is_used = matches!(outcome, Outcome::Refused | Outcome::Deadlock | Outcome::Lost | Outcome::Broken);
        if is_used || self.head.number == 0 {
            self.remove();
        }
    }

    fn remove(&self) -> bool {
        let lock = self.folder.try_clone().and_then(Locked::new);
        let is_own = self.note.metadata().is_ok_and(|note| note.nlink() > 0);
        if is_own {
            // A note that stays is taken for that of a dead process.
            let _ = fs::remove_file(&self.path);
        }
        drop(lock.map(Locked::unlock));
        is_own
    }
}

impl Drop for KeptPlace {
    /// A child of this process that has not executed its program yet has the file open as well.
    fn drop(&mut self) {
        let _ = flock(&self.note, FlockOperation::Unlock);
    }
}

/// A place whose waiter is away.
#[derive(Debug, PartialEq, Eq)]
pub struct Absent {
    /// When the first request was made.
    pub asked: StoreTime,
    /// The words of the request, as [`KeptPlace::take`] has them.
    pub words: Vec<String>,
}

/// The places whose waiters are away. Nothing is known of a folder that cannot be read.
pub fn absent(folder: &Path, now: StoreTime) -> Vec<Absent> {
    let Ok(lock) = open(folder).and_then(Locked::new) else { return Vec::new() };
    let files = notes(folder).unwrap_or_default().into_iter().filter_map(|path| open(&path).ok());
    let away = files.filter(is_free).filter_map(|mut file| read(&mut file));
    let kept = away.filter(|(head, _)| head.is_kept(now));
    let mut found: Vec<_> = kept.map(|(head, words)| Absent { asked: head.asked, words }).collect();
    found.sort_by(|one, other| (one.asked, &one.words).cmp(&(other.asked, &other.words)));
    drop(lock.unlock());
    found
}

/// The lock on the folder.
struct Locked(File);

impl Locked {
    /// Waits for the lock. A process that has it keeps it for an instant, unless it is stopped.
    fn new(folder: File) -> io::Result<Self> {
        let until = Boottime::now() + GHOST_LIMIT;
        while let Err(error) = flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || Boottime::now() >= until {
                return Err(error.into());
            }
            thread::sleep(GHOST_LOOK);
        }
        Ok(Self(folder))
    }

    fn unlock(self) -> io::Result<File> {
        flock(&self.0, FlockOperation::Unlock)?;
        Ok(self.0)
    }
}

/// Removes the notes that no request has and that keep no place any more, but for the one that
/// tells of a session to release.
fn remove_old(folder: &Path, own: &Path, now: StoreTime) -> io::Result<()> {
    for path in notes(folder)?.into_iter().filter(|path| path != own) {
        // A note that cannot be opened stays, and is in nobody's way.
        let Ok(mut file) = open(&path) else { continue };
        if is_free(&file) && !read(&mut file).is_some_and(|(head, _)| head.is_kept(now)) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Opens the folder or a note. A named pipe in its place blocks nobody, and is no note.
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// The files of the folder; whatever else somebody has put there is no note.
fn notes(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let files = entries.into_iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    Ok(files.map(|entry| entry.path()).collect())
}

/// Whether the request of a note has ended.
fn is_free(note: &File) -> bool {
    // The lock that this takes goes with the lock on the folder, or with the file.
    let is_free = flock(note, FlockOperation::NonBlockingLockShared).is_ok();
    is_free && flock(note, FlockOperation::Unlock).is_ok()
}

fn read(note: &mut File) -> Option<(Head, Vec<String>)> {
    let mut text = String::new();
    note.seek(SeekFrom::Start(0)).ok()?;
    note.take(NOTE_MAX).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    Some((Head::parse(lines.next()?)?, lines.map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::test_runner::Config;

    use super::*;
    use rlock_model::mode::Mode;
    use rlock_model::op::{Op, Reply};
    use rlock_model::records::Records;
    use rlock_model::request::{Claim, Job, Place, Process, Request};
    use rlock_model::resource::Resource;
    use rlock_model::span::Span;
    use rlock_model::table::LockTable;

    const START: StoreTime = StoreTime::from_micros(1_000_000_000_000);

    fn take(folder: &Path, session: u8, after: Duration) -> KeptPlace {
        KeptPlace::take(folder, &["s".into(), "n".into(), "k".into()], 7, SessionId([session; 16]), START + after)
            .unwrap()
    }

    fn minutes(number: u64) -> Duration {
        Duration::from_secs(60 * number)
    }

    /// "For 15 minutes from the first request; a return does not prolong them."
    #[test]
    fn place_lasts_15_minutes_from_the_first_request_however_often_it_returns() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("places");
        take(&folder, 1, minutes(0)).note(42);
        for minute in [0, 7, 14] {
            let place = take(&folder, 2, minutes(minute));
            assert_eq!((place.head.number, place.head.asked), (42, START), "minute {minute}");
            assert!(absent(&folder, START + minutes(minute)).is_empty(), "its waiter is there");
        }
        assert_eq!(absent(&folder, START + minutes(14)).len(), 1);
        assert!(absent(&folder, START + minutes(15)).is_empty());
        let place = take(&folder, 3, minutes(15));
        assert_eq!((place.head.number, place.head.asked), (0, START + minutes(15)));
        assert_eq!(place.earlier(), Some(SessionId([2; 16])));
    }

    #[test]
    fn place_that_was_used_up_or_never_queued_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("places");
        for outcome in [None, Some(Outcome::Refused), Some(Outcome::Lost), Some(Outcome::Broken)] {
            let mut place = take(&folder, 1, minutes(0));
            assert_eq!(place.head.number, 0, "before {outcome:?}");
            place.note(3);
            match outcome {
                None => assert!(place.use_up()),
                Some(outcome) => place.leave(outcome),
            }
        }
        let mut place = take(&folder, 1, minutes(0));
        place.leave(Outcome::Busy);
        assert!(notes(&folder).unwrap().is_empty(), "there is no place to keep");
        place = take(&folder, 1, minutes(0));
        place.note(5);
        place.leave(Outcome::Cancelled);
        drop(place);
        assert_eq!(take(&folder, 2, minutes(1)).head.number, 5);
    }

    /// As after a crash of the machine, or on a full disk.
    #[test]
    fn note_that_is_not_complete_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("places");
        let path = folder.join("0000000000000007");
        fs::create_dir(&folder).unwrap();
        fs::write(&path, "").unwrap();
        take(&folder, 1, minutes(0)).note(42);
        // A request was killed just before its note took the place of this one.
        fs::copy(&path, path.with_extension("new")).unwrap();
        assert_eq!(take(&folder, 2, minutes(1)).head.number, 42);
        assert!(notes(&folder).unwrap().iter().eq([&path]));
    }

    #[test]
    fn folder_among_the_notes_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("places");
        fs::create_dir_all(folder.join("backup")).unwrap();
        take(&folder, 1, minutes(0)).note(42);
        assert_eq!(take(&folder, 2, minutes(1)).head.number, 42);
        assert!(folder.join("backup").exists());
    }

    #[test]
    fn named_pipe_in_the_place_of_a_note_is_replaced_without_a_wait() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("places");
        let path = folder.join("0000000000000007");
        fs::create_dir(&folder).unwrap();
        for pipe in [path.clone(), path.with_extension("new")] {
            rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        }
        take(&folder, 1, minutes(0)).note(42);
        assert_eq!(take(&folder, 2, minutes(1)).head.number, 42);
        assert!(notes(&folder).unwrap().iter().eq([&path]));
    }

    /// The process of this test has no start that is known, so that it gets no SIGTERM.
    #[test]
    fn request_whose_place_was_taken_over_starts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("places");
        let mut ghost = take(&folder, 1, minutes(0));
        ghost.head.started = 0;
        ghost.note(9);
        let later = take(&folder, 2, minutes(1));
        assert_eq!(later.head.number, 9);
        assert!(!ghost.use_up());
        assert!(later.use_up(), "the earlier request has not removed the note of the later one");
    }

    #[test]
    fn notes_of_absent_requests_are_removed_when_they_expire() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("places");
        for hash in 0..5 {
            let mut place = KeptPlace::take(&folder, &[], hash, SessionId([1; 16]), START).unwrap();
            place.note(hash + 1);
        }
        assert_eq!(notes(&folder).unwrap().len(), 5);
        drop(take(&folder, 1, minutes(16)));
        assert_eq!(notes(&folder).unwrap().len(), 1);
    }

    /// Requests with and without a NAME, killed and granted at random instants, on the real table.
    struct World {
        folder: PathBuf,
        table: LockTable,
        now: StoreTime,
        sessions: u8,
        /// By NAME: the living request, and the instant of the first one while the place is kept.
        names: [(Option<KeptPlace>, Option<StoreTime>); 3],
    }

    impl World {
        fn apply(&mut self, op: Op) -> Reply {
            let Ok(outcome) = self.table.apply(self.now, op);
            for session in outcome.granted {
                let Ok(_) = self.table.apply(self.now, Op::Renew(session));
                self.start(session);
            }
            outcome.reply
        }

        /// Uses the place of a granted request up.
        fn start(&mut self, session: SessionId) {
            let is_granted = |(place, _): &&mut (Option<KeptPlace>, _)| {
                place.as_ref().is_some_and(|place| place.head.session == session)
            };
            if let Some((place, first)) = self.names.iter_mut().find(is_granted) {
                *first = None;
                assert!(place.take().unwrap().use_up());
            }
        }

        fn ask(&mut self, name: Option<usize>) {
            self.sessions += 1;
            let session = SessionId([self.sessions; 16]);
            let claim =
                Claim { resource: Resource::new("k").unwrap(), mode: Mode::Write, span: Span::Whole, slots: None };
            let (process, job) = (Process::default(), Job::default());
            let request =
                Request { session, ancestors: vec![], claims: vec![claim], wait: true, terms: None, job, process };
            let mut place = None;
            let mut asked = self.now;
            if let Some(name) = name {
                if let Some(killed) = self.names[name].0.take() {
                    self.apply(Op::Release { session: killed.head.session, end: None });
                }
                let taken = KeptPlace::take(&self.folder, &[], name as u64, session, self.now).unwrap();
                let head = taken.head;
                let first = self.names[name].1.filter(|first| self.now - *first < KEPT_FOR);
                asked = first.unwrap_or(self.now);
                assert_eq!((head.asked, head.number > 0), (asked, first.is_some()));
                place = (head.number > 0).then_some(Place { number: head.number, asked });
                self.names[name] = (Some(taken), Some(asked));
            }
            match self.apply(Op::Acquire { request, place }) {
                Reply::Waiting => {
                    let Ok(found) = self.table.records().session(session);
                    let found = found.unwrap();
                    assert_eq!(found.asked, asked);
                    name.iter().for_each(|name| self.names[*name].0.as_mut().unwrap().note(found.place()));
                }
                reply => {
                    assert!(matches!(reply, Reply::Granted { .. }), "{reply:?}");
                    self.start(session);
                }
            }
        }

        fn check(&mut self) {
            let Reply::Listing(listings) = self.apply(Op::Inspect(vec![Resource::new("k").unwrap()])) else { panic!() };
            let (holders, waiters) = (&listings[0].holders, &listings[0].waiters);
            assert!(!holders.is_empty() || waiters.is_empty(), "an absent place blocks somebody");
            assert!(waiters.is_sorted_by_key(|waiter| waiter.since), "{waiters:?}");
        }
    }

    /// "The next request with NAME takes up the number and the instant of the first", for an hour
    /// in virtual time.
    #[test]
    fn requests_of_random_histories_are_queued_in_the_order_of_their_first_requests() {
        let step = (0..9_usize, 0..240_u64);
        let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
        proptest!(config, |(steps in vec(step, 1..60))| {
            let dir = tempfile::tempdir().unwrap();
            let (folder, names) = (dir.path().join("places"), Default::default());
            let mut world = World { folder, table: LockTable::default(), now: START, sessions: 0, names };
            for (action, seconds) in steps {
                world.now += Duration::from_secs(seconds);
                match action {
                    0..3 => world.ask(Some(action)),
                    3 => world.ask(None),
                    4..7 => {
                        // Killed: the store removes the session, and the note stays.
                        if let Some(killed) = world.names[action - 4].0.take() {
                            world.apply(Op::Release { session: killed.head.session, end: None });
                        }
                    }
                    _ => {
                        let names = vec![Resource::new("k").unwrap()];
                        let Reply::Listing(found) = world.apply(Op::Inspect(names)) else { panic!() };
                        if let Some(holder) = found[0].holders.first() {
                            world.apply(Op::Release { session: holder.session, end: None });
                        }
                    }
                }
                world.check();
            }
        });
    }
}
