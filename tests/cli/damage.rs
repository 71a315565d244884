//! The table is damaged while rlock uses it. rlock then writes one line and exits 69, or works as
//! usual. It neither dies by a signal nor hangs.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rlock_testkit::random::Random;
use rlock_testkit::{Lab, Ran, Running};

/// The offset of the number of the transaction in a meta page of LMDB with 64-bit numbers.
const META_TRANSACTION: usize = 144;

/// A store whose table has pages of every kind: branches, leaves, long records, and a list of free
/// pages.
struct Used {
    lab: Lab,
    _users: Vec<Running>,
    table: PathBuf,
    sound: Vec<u8>,
    /// The lock file's path and its text with the seal of the sound table.
    lock: PathBuf,
    seal: Vec<u8>,
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
        let (table, lock) = (lab.directory().join("state/table"), lab.directory().join("state/lock"));
        let (sound, seal) = (fs::read(&table).expect("the table"), fs::read(&lock).expect("the lock file"));
        Self { lab, _users: users, table, sound, lock, seal }
    }

    /// Writes a damaged table, runs commands that read and write, and restores the sound table with
    /// its seal.
    #[track_caller]
    fn survives(&self, what: &str, bytes: &[u8], is_seal_forged: bool) -> bool {
        let modified = modified(&self.table);
        if is_seal_forged {
            write_under_the_seal(&self.table, bytes);
        } else {
            fs::write(&self.table, bytes).expect("the file can be written");
        }
        let mut refused = 0;
        for words in [&["inspect"][..], &["exec", "-n", "k", "--", "true"], &["exec", "other", "--", "true"]] {
            let ran = Ran::of(&mut self.lab.rlock(words));
            let lines = ran.stderr.lines().count();
            match ran.code() {
                // LMDB may have overwritten the record of the grant.
                Some(69 | 76) if is_seal_forged && ran.stderr.starts_with("rlock: lost: ") => {
                    assert_eq!(lines, 1, "{what}")
                }
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
        set_modified(&self.table, modified);
        fs::write(&self.lock, &self.seal).expect("the file can be written");
        // rlock checks the whole table before it uses any part. So either all of these commands are
        // refused, or none is.
        assert!(is_seal_forged || refused == 0 || refused == 3, "{what}: {refused} of 3 are refused");
        refused > 0
    }
}

#[test]
fn damaged_table_in_use_exits_69_in_one_line() {
    let used = Used::new();
    // The end of the file is reserved.
    let last = used.sound.iter().rposition(|byte| *byte != 0).expect("a table");
    let len = (last + 1).next_multiple_of(4096);
    assert!(len > 40_000, "the table is too small to say much: {len} bytes");
    for cut in [0, 1, 100, 4096, 8192, 12_288, len / 2, len - 4096] {
        assert!(used.survives(&format!("cut to {cut}"), &used.sound[..cut], false) || cut > len / 2);
    }
    assert!(used.survives("zeros", &vec![0; len], false));
    assert!(used.survives("another file", "text\n".repeat(5000).as_bytes(), false));
    // LMDB then takes the other meta page, of the table before the last transaction. That table is
    // sound, but it may lack the last grant.
    let transaction = |page: usize| {
        let at = page + META_TRANSACTION;
        u64::from_ne_bytes(used.sound[at..at + 8].try_into().expect("eight bytes"))
    };
    let newer = if transaction(0) > transaction(4096) { 0 } else { 4096 };
    let mut bytes = used.sound.clone();
    bytes[newer + META_TRANSACTION..][..8].copy_from_slice(&(transaction(newer) - 2).to_ne_bytes());
    assert!(used.survives("without its last transaction", &bytes, false));
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
    assert!(!used.survives("sound", &used.sound, true));
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

/// Overwrites a text in the records, so that they cannot be decoded, as if another build of rlock
/// had written them. The seal still fits, so rlock meets the damage only when it reads these
/// records.
fn spoil(lab: &Lab, text: &str) -> Vec<u8> {
    let table = lab.directory().join("state/table");
    let mut bytes = fs::read(&table).expect("the table");
    let places: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text.as_bytes())).collect();
    assert!(!places.is_empty(), "no record has the text");
    places.iter().for_each(|at| bytes[*at..at + text.len()].fill(0xFF));
    write_under_the_seal(&table, &bytes);
    bytes
}

fn write_under_the_seal(table: &Path, bytes: &[u8]) {
    let modified = modified(table);
    fs::write(table, bytes).expect("the file can be written");
    set_modified(table, modified);
}

fn modified(table: &Path) -> SystemTime {
    fs::metadata(table).and_then(|found| found.modified()).expect("a time")
}

fn set_modified(table: &Path, modified: SystemTime) {
    let file = File::options().write(true).open(table).expect("the table");
    file.set_times(FileTimes::new().set_modified(modified)).expect("the test owns the table");
}

/// A kept hold has no process, so nobody uses its table.
#[test]
fn undecodable_table_that_nobody_uses_is_kept_aside_by_the_process_that_finds_it() {
    for words in
        [&["exec", "k", "-c", "echo $RLOCK_TOKEN"][..], &["acquire", "k", "--for", "1s"], &["inspect"], &["cleanup"]]
    {
        let lab = Lab::new();
        let before = lab.run(["exec", "k", "-c", "echo $RLOCK_TOKEN"]).stdout;
        lab.run(["acquire", "k", "--for", "1h", "--reason", "spoil-me"]).code();
        let spoilt = spoil(&lab, "spoil-me");
        let ran = lab.run(words);
        let aside = lab.directory().join("state/table.damaged");
        let warning = format!(
            "rlock: warning: the table of the store in {} was damaged, and nobody used it: it is kept as {}, and a new one \
             is started, without kept holds and history\n",
            lab.directory().display(),
            aside.display()
        );
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), warning.as_str()), "{words:?}: {ran:?}");
        assert_eq!(fs::read(&aside).expect("the damaged table was kept"), spoilt, "{words:?}");
        let token = |text: &str| text.trim().parse::<u64>().expect("a token");
        if words[0] == "exec" {
            assert!(token(&ran.stdout) > token(&before), "tokens rise although the table is new");
        }
        let after = lab.run(["exec", "k", "-c", "echo $RLOCK_TOKEN"]);
        assert_eq!(after.stderr, "", "{words:?}");
        assert!(token(&after.stdout) > token(&before), "{words:?}");
    }
}

#[test]
fn undecodable_table_in_use_exits_69_until_its_users_have_ended() {
    let lab = Lab::new();
    lab.run(["acquire", "k", "--for", "1h", "--reason", "spoil-me"]).code();
    let user = lab.hold("other");
    let spoilt = spoil(&lab, "spoil-me");
    let text = format!(
        "the store in {} can't be used: its table is damaged: end the rlock processes that use it, then the next one starts \
         with a new table",
        lab.directory().display()
    );
    lab.run(["exec", "k", "--", "true"]).said(69, &text);
    lab.run(["inspect"]).said(69, &text);
    // Once the damage is known, no process uses a sound part of the table.
    lab.run(["exec", "third", "--", "true"]).said(69, &text);
    assert_eq!(fs::read(lab.directory().join("state/table")).expect("the table stays"), spoilt);
    user.end().said(0, &format!("warning: could not release 'other', held until rlock has ended: {text}"));
    let fresh = lab.run(["exec", "k", "--", "true"]);
    assert_eq!((fresh.code(), fresh.stderr.lines().count()), (Some(0), 1), "{fresh:?}");
    assert_eq!(lab.files(), ["lock", "table", "table.damaged"]);
}

/// LMDB meets this damage itself, in the middle of a transaction. The process that finds it ends;
/// the next one reads the whole table first.
#[test]
fn fault_in_an_unused_table_lets_the_next_rlock_start_a_new_one() {
    let mut faults = 0;
    for offset in [10, 40, 200] {
        let lab = Lab::new();
        lab.run(["acquire", "k", "--for", "1h"]).code();
        let table = lab.directory().join("state/table");
        let mut bytes = fs::read(&table).expect("the table");
        bytes.chunks_mut(4096).skip(2).for_each(|page| page[offset..].fill(0xFF));
        write_under_the_seal(&table, &bytes);
        let first = lab.run(["exec", "k", "--", "true"]);
        if first.code() == Some(69) {
            faults += 1;
            assert!(first.stderr.contains("damaged: end the rlock processes that use it"), "{first:?}");
            let second = lab.run(["exec", "k", "--", "true"]);
            assert_eq!((second.code(), second.stderr.lines().count()), (Some(0), 1), "{offset}: {second:?}");
        } else {
            assert_eq!((first.code(), first.stderr.lines().count()), (Some(0), 1), "{offset}: {first:?}");
        }
        assert_eq!(lab.files(), ["lock", "table", "table.damaged"]);
    }
    assert!(faults > 0, "no damage led to a fault");
}

/// RLIMIT_FSIZE must not change the status: neither rlock nor its command dies of a SIGXFSZ that a
/// write by rlock caused.
#[test]
fn file_size_limit_does_not_change_the_status_of_the_command() {
    let lab = Lab::new();
    let run = |limit: &str, command: &str| {
        let script = format!("ulimit -f {limit}; exec '{}' exec k -c '{command}'", rlock_testkit::RLOCK);
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
