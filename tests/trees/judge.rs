//! Decides which overlaps the contract permits, by the sentences of docs/design.md and the manual.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rlock_sys::clock::Boottime;

use crate::plan::RUNTIME;

/// What was done to a command, and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) is_on_server: bool,
    pub(crate) is_owner: bool,
    /// How many processes of the tree begin sessions of their own.
    pub(crate) sessions: usize,
    /// The instant before which nothing was done to the command, and rlock ended nothing by itself.
    pub(crate) touched: Option<SystemTime>,
    /// When rlock first got a signal that asks for the end, or said why it ends the command.
    pub(crate) asked: Option<SystemTime>,
    /// When a process of the tree itself was first sent a signal that may end it.
    pub(crate) member_hit: Option<SystemTime>,
    /// When rlock said that the time was over, or that the lock was revoked.
    pub(crate) told: Option<SystemTime>,
    /// When rlock, or the keeper of an owner, was killed.
    pub(crate) rlock_killed: Option<SystemTime>,
    /// When a guardian was last killed. The guardian has other copies.
    pub(crate) guardian_killed: Option<SystemTime>,
}

/// A command has begun while a process of an earlier tree lived.
#[derive(Debug)]
pub(crate) struct Overlap {
    /// The earlier tree.
    pub(crate) with: usize,
    /// Whether all processes that lived may be in sessions of their own.
    pub(crate) by_session: bool,
    /// The living processes, for people.
    pub(crate) living: String,
    pub(crate) at: SystemTime,
}

impl Overlap {
    /// The overlaps that the referee of this tree has seen.
    pub(crate) fn read(tree: &Path) -> Vec<Self> {
        let path = tree.with_extension("overlap");
        let Some(at) = changed(&path) else { return Vec::new() };
        let text = std::fs::read_to_string(&path).expect("the file exists");
        let read = |line: &str| {
            let (words, living) = line.split_once(';').unwrap_or((line, ""));
            let (with, kind) = words.split_once(' ').expect("the referee writes a tree and a kind");
            let with = with.parse().expect("a tree has a number");
            Self { with, by_session: kind.trim() == "ses", living: living.trim().to_owned(), at }
        };
        let mut all: Vec<Self> = text.lines().map(read).collect();
        // The processes in the session of the command have both locks.
        let strict: Vec<usize> = all.iter().filter(|one| !one.by_session).map(|one| one.with).collect();
        all.retain(|one| !one.by_session || !strict.contains(&one.with));
        all
    }
}

/// How exact the times of files are.
const EXACT: Duration = Duration::from_millis(10);

/// How long a busy rlock may take to hear of a signal.
const HEARD: Duration = Duration::from_millis(300);

/// How long after a guardian's death rlock has another one at the latest.
const REPLACED: Duration = Duration::from_secs(1);

impl Facts {
    /// Takes note that rlock ends the command by itself. rlock may say so long after it has looked
    /// at the tree, but it never looks before the run time is over. A break that was meant for one
    /// command may meet the next at any instant of its life.
    pub(crate) fn note_end(&mut self, tree: &Path) {
        let path = tree.with_extension("err");
        if self.told.is_none()
            && let Some(at) = changed(&path)
            && let Ok(said) = std::fs::read_to_string(&path)
            && let Some(begun) = begun(tree)
        {
            let says = |word: &str| said.contains(&format!("rlock: {word}: "));
            let looks_from = says("timeout").then(|| begun + RUNTIME).or(says("revoked").then_some(begun));
            self.told = looks_from.map(|_| at);
            self.asked = self.asked.into_iter().chain(self.told).min();
            self.touched = match looks_from {
                Some(from) if says("timeout") => self.touched.into_iter().chain([from]).min(),
                from => self.touched.or(from),
            };
        }
    }

    /// The sentence of the contract by which a process of this tree may live beside a later
    /// command.
    pub(crate) fn permit(&self, overlap: &Overlap, tree: &Path) -> Option<&'static str> {
        let ended = changed(&tree.with_extension("end"));
        if ended.is_some_and(|end| self.asked.is_none_or(|asked| asked + HEARD > end)) {
            return Some("A command that ends by itself frees the lock at once.");
        }
        let told = std::fs::read_to_string(tree.with_extension("err")).unwrap_or_default();
        if self.is_on_server && told.contains("rlock: lost: ") {
            return Some("Each rlock gets to run before its deadline.");
        }
        if self.is_owner && self.rlock_killed.is_some() {
            return Some("KILL ends the keeper without a word to PID.");
        }
        let both = self.rlock_killed.zip(self.guardian_killed);
        if both.is_some_and(|(rlock, guardian)| apart(rlock, guardian) < REPLACED) {
            return Some("Commands do not overlap, unless somebody kills both rlock and its guardian.");
        }
        if !overlap.by_session {
            return None;
        }
        if self.member_hit.is_some() {
            return Some("If a signal reached the command before rlock could look, … such a process is spared.");
        }
        let path = tree.with_extension("session");
        let is_complete = std::fs::read(&path).is_ok_and(|lines| lines.len() == self.sessions);
        let is_late =
            !is_complete || self.touched.is_some_and(|touched| changed(&path).is_none_or(|at| at + EXACT > touched));
        is_late.then_some("A daemon is a process in its own session whose parent has exited.")
    }
}

fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|error| error.duration())
}

/// When a command was started, which the referee has noted in ticks since the boot.
fn begun(tree: &Path) -> Option<SystemTime> {
    let ticks: u64 = std::fs::read_to_string(tree.with_extension("ref")).ok()?.parse().ok()?;
    let since_boot = Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second());
    Some(SystemTime::now() - (Boottime::now() - Boottime::since_boot(since_boot)))
}

/// When a file was last written, if there is one.
fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|data| data.modified()).ok()
}
