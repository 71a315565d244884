//! The table is damaged while rlock uses it. rlock then writes one line and exits 69, or works as
//! usual. It neither dies by a signal nor hangs.

use std::fs::{self, File, FileTimes};
use std::path::PathBuf;

use crate::support::random::Random;
use crate::support::{Lab, Ran, Running};

/// A store whose table has pages of every kind: branches, leaves, long records, and a list of free
/// pages.
struct Used {
    lab: Lab,
    _users: Vec<Running>,
    table: PathBuf,
    sound: Vec<u8>,
}

impl Used {
    fn new() -> Self {
        let lab = Lab::new();
        let mut users = Vec::new();
        for number in 0..4 {
            // These names are so long that the record of the request takes several pages.
            let names = (0..80).map(|name| format!("read-{name}-{number}-{}", "x".repeat(60)));
            let words = names.flat_map(|name| ["--read".to_owned(), name]);
            users.push(lab.hold_by(["exec".to_owned()].into_iter().chain(words)));
        }
        // These requests are so many that their tree has branch nodes.
        for number in 0..60 {
            users.push(lab.hold_by(["range-read", "spans", &number.to_string(), &format!("{number}.5")]));
        }
        users.push(lab.hold("k"));
        users.push(lab.hold_by(["exec", "--slot", "slots=3"]));
        users.push(lab.wait_by(["exec", "k"]));
        lab.until_waiting("k", 1);
        for _ in 0..20 {
            lab.run(["exec", "--write", "other", "--", "true"]).silently(0);
        }
        let table = lab.directory().join("state/table");
        let sound = fs::read(&table).expect("the table");
        Self { lab, _users: users, table, sound }
    }

    /// Writes a damaged table, runs commands that read and write, and restores the sound table.
    #[track_caller]
    fn survives(&self, what: &str, bytes: &[u8], is_seal_forged: bool) -> bool {
        let times = fs::metadata(&self.table).expect("the table");
        fs::write(&self.table, bytes).expect("the file can be written");
        if is_seal_forged {
            let times = FileTimes::new().set_modified(times.modified().expect("a time"));
            File::options()
                .write(true)
                .open(&self.table)
                .and_then(|file| file.set_times(times))
                .expect("the test owns the table");
        }
        let mut refused = 0;
        for words in [&["inspect"][..], &["exec", "-n", "k", "--", "true"], &["exec", "other", "--", "true"]] {
            let ran = Ran::of(&mut self.lab.rlock(words));
            let lines = ran.stderr.lines().count();
            match ran.code() {
                Some(0) => assert_eq!(lines, 0, "{what}: {ran:?}"),
                Some(69) => {
                    refused += 1;
                    assert!(ran.stderr.contains("damaged: end the rlock processes that use it"), "{what}: {ran:?}");
                    assert_eq!(lines, 1, "{what}: {ran:?}");
                }
                Some(75) => assert_eq!(lines, 1, "{what}: {ran:?}"),
                _ => panic!("{what}: {ran:?}"),
            }
        }
        fs::write(&self.table, &self.sound).expect("the file can be written");
        // rlock checks the whole table before it uses any part. So either all of these commands are
        // refused, or none is.
        assert!(is_seal_forged || refused == 0 || refused == 3, "{what}: {refused} of 3 are refused");
        refused > 0
    }
}

#[test]
fn damaged_table_in_use_exits_69_in_one_line() {
    let used = Used::new();
    let len = used.sound.len();
    assert!(len > 40_000, "the table is too small to say much: {len} bytes");
    for cut in [0, 1, 100, 4096, 8192, 12_288, len / 2, len - 4096] {
        assert!(used.survives(&format!("cut to {cut}"), &used.sound[..cut], false) || cut > len / 2);
    }
    assert!(used.survives("zeros", &vec![0; len], false));
    assert!(used.survives("another file", "text\n".repeat(5000).as_bytes(), false));
    let mut random = Random::new();
    let mut refused = 0;
    for turn in 0..100 {
        let mut bytes = used.sound.clone();
        let page = random.below((len / 4096) as u64) as usize * 4096;
        let what = match turn % 5 {
            0 => {
                bytes[page..page + 4096].fill(0);
                format!("page at {page} zeroed")
            }
            1 => {
                bytes[page..page + 4096].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
                format!("page at {page} random")
            }
            2 => {
                let other = random.below((len / 4096) as u64) as usize * 4096;
                bytes.copy_within(other..other + 4096, page);
                format!("page at {page} copied from {other}")
            }
            // Damage in the headers of pages and nodes is the most dangerous.
            3 => {
                let at = page + random.below(64) as usize;
                bytes[at] ^= 1 << random.below(8);
                format!("bit flipped at {at}")
            }
            _ => {
                let at = random.below(len as u64) as usize;
                bytes[at] = random.below(256) as u8;
                format!("byte changed at {at}")
            }
        };
        refused += usize::from(used.survives(&what, &bytes, false));
    }
    assert!(refused > 30, "only {refused} of 100 damages were found");
}

/// The seal shows that another program changed the table, but it can be forged. rlock turns the
/// signals that then end LMDB into one line and exit status 69.
#[test]
fn damaged_table_with_a_forged_seal_ends_no_rlock_by_a_signal() {
    let used = Used::new();
    let len = used.sound.len();
    // From here on the table has the modification time of the sound table, which forges the seal.
    used.survives("sound", &used.sound, false);
    for page in (2 * 4096..len).step_by(4096) {
        let mut bytes = used.sound.clone();
        bytes[page + 16..page + 4096].fill(0xFF);
        used.survives(&format!("page at {page} overwritten"), &bytes, true);
    }
}

/// A holder warns and keeps the status of its command; a waiter writes one line and exits 69.
#[test]
fn holder_in_a_damaged_table_keeps_the_status_of_its_command() {
    let lab = Lab::new();
    let (holder, waiter) = (lab.hold("k"), lab.wait_by(["exec", "k"]));
    lab.until_waiting("k", 1);
    fs::write(lab.directory().join("state/table"), [0x55; 40_000]).expect("the file can be written");
    let text = format!(
        "the store in {} can't be used: its table is damaged: end the rlock processes that use it, then the next one starts \
         with a new table",
        lab.directory().display()
    );
    holder.end().said(0, &format!("warning: could not release 'k', held until rlock has ended: {text}"));
    waiter.end().said(69, &format!("cannot lock 'k': {text}"));
    let fresh = lab.run(["exec", "k", "--", "true"]);
    assert_eq!(fresh.code(), Some(0), "{fresh:?}");
    assert!(fresh.stderr.contains("table.damaged") && fresh.stderr.lines().count() == 1, "{fresh:?}");
}

/// RLIMIT_FSIZE must not change the status: neither rlock nor its command dies of a SIGXFSZ that a
/// write by rlock caused.
#[test]
fn file_size_limit_does_not_change_the_status_of_the_command() {
    let lab = Lab::new();
    let run = |limit: &str, command: &str| {
        let script = format!("ulimit -f {limit}; exec '{}' exec k -c '{command}'", crate::support::RLOCK);
        let mut shell = std::process::Command::new("sh");
        lab.settle(&mut shell);
        Ran::of(shell.args(["-c", &script]).current_dir(lab.folder()))
    };
    let refused = run("0", "exit 3");
    assert!(refused.failed(69).contains("can't be used: file too large"), "{refused:?}");
    let ran = run("unlimited", "prlimit --pid $PPID --fsize=0:0; exit 3");
    assert_eq!(ran.code(), Some(3), "{ran:?}");
    // The command has the SIGXFSZ disposition that rlock was started with, so its own large file
    // ends it.
    let died = run("unlimited", "ulimit -f 0; exec head -c 1 /dev/zero > file");
    assert_eq!(died.code(), Some(128 + 25), "{died:?}");
    let ignored = run("unlimited", "grep SigIgn /proc/self/status");
    let set = ignored.stdout.split_whitespace().nth(1).and_then(|set| u64::from_str_radix(set, 16).ok());
    assert_eq!(set.map(|set| set >> 24 & 1), Some(0), "{ignored:?}");
}
