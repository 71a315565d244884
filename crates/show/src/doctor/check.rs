//! One check of `rlock doctor`, and how it ended.

use rustix::io::Errno;

use rlock_words::{Explained, one_line};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is nothing to do.
    Ok,
    /// rlock works, and something may go wrong.
    Warn,
    /// rlock cannot be used.
    Fail,
    /// The fact cannot be read, which is no fault.
    Unknown,
}

impl Verdict {
    /// The word for the verdict in the text and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do, unless there is nothing to do.
    pub remedy: Option<String>,
}

impl Check {
    /// A check that found nothing wrong. `found` is made one line.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: one_line(&found.into()), remedy: None }
    }

    pub(super) fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, remedy: Some(remedy.into()), ..Self::ok(name, found) }
    }

    pub(super) fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, found, remedy) }
    }

    pub(super) fn unknown(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Unknown, ..Self::warn(name, found, remedy) }
    }
}

/// The errors of the system by which something is used up, and what to do.
pub(super) const USED_UP: [(Errno, &str); 5] = [
    (Errno::NOSPC, "delete files on the file system, where df -h and df -i show what is used up"),
    (Errno::DQUOT, "delete files, or raise the quota"),
    (Errno::MFILE, "raise the limit: ulimit -n 1024"),
    (Errno::NFILE, "end processes, or raise the limit: sysctl fs.file-max"),
    (Errno::NOMEM, "end processes, or raise the limit: ulimit -v unlimited"),
];

/// The check that has met an error.
pub fn failed(name: &'static str, words: &Explained) -> Check {
    let used_up = USED_UP.iter().find(|(errno, _)| words.errno == Some(*errno)).map(|(_, remedy)| *remedy);
    let remedy = words.remedy.as_deref().or(used_up).unwrap_or("see STORES in rlock(1)");
    Check::fail(name, words.what.as_str(), remedy)
}

/// A number of bytes for people.
pub(super) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or_else(|| format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}
