//! The log of a scenario: one line for each thing that happened, appended in one write by whoever saw it. It is all that the checkers
//! read. Who is killed in the middle of a write at the end of a page leaves a part of a line, which [`whole_lines`] leaves out.
//!
//! A line is `INSTANT RUN WHAT …`: nanoseconds of CLOCK_BOOTTIME, which all processes share; the run (`7` was started by the scenario,
//! `7.1` by the command of `7`); and what:
//!
//! | what | written by | when |
//! | --- | --- | --- |
//! | `asked CLAIMS WAIT_MS` | who starts an rlock | before it is started; WAIT_MS `-` without limit |
//! | `queued` | the same | rlock has said that it waits |
//! | `late` | the same | rlock has said that the lease left too little time to open the command |
//! | `start SESSION TOKEN PID` | the command | first of all |
//! | `beat` | the command | every few milliseconds: it still runs |
//! | `kept CLAIMS` | the command | before it gives up all but these |
//! | `counted NAME N` | the command | it wrote N, one more than it had read, to a file |
//! | `wrote NAME accepted`, `wrote NAME refused` | the command | so said a register that knows the highest token |
//! | `end` | the command | last of all |
//! | `touched FAULT` | who breaks things | before the run's rlock or command is killed or stopped |
//! | `left CODE`, `left signal` | who started the rlock | it has ended |
//!
//! A line without a run, `INSTANT - fault NAME`, counts what was broken.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::claims::{self, Claim};

/// Nanoseconds of CLOCK_BOOTTIME.
pub(crate) type Instant = u64;

pub(crate) fn now() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The end of a log, where lines are added.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    pub(crate) fn open(path: &Path) -> Self {
        let file = File::options().create(true).append(true).open(path).expect("the log can be opened");
        Self { file, path: path.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn add(&self, run: &str, what: &str) {
        // A part that was left is kept apart by what comes before, and known by the lack of what comes after.
        let line = format!("\n{} {run} {what}{WHOLE}", now());
        (&self.file).write_all(line.as_bytes()).expect("the log can be written");
    }
}

/// The end of a line that was written to its end.
const WHOLE: &str = " .";

/// The lines of a log's file that were written to their ends.
pub(crate) fn whole_lines(file: &str) -> String {
    let whole = file.lines().filter_map(|line| line.strip_suffix(WHOLE));
    whole.map(|line| format!("{line}\n")).collect()
}

/// One rlock and its command, as the log tells of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// The numbers of the runs around it and its own.
    pub(crate) id: String,
    pub(crate) claims: Vec<Claim>,
    pub(crate) asked: Instant,
    /// The longest time that it was to wait; none without limit.
    pub(crate) patience: Option<Duration>,
    /// It was in the queue by then at the latest.
    pub(crate) queued: Option<Instant>,
    /// The lease left too little time to open the command.
    pub(crate) late: bool,
    pub(crate) start: Option<Instant>,
    pub(crate) session: String,
    pub(crate) token: u64,
    /// What it kept, each from an instant on.
    pub(crate) kept: Vec<(Instant, Vec<Claim>)>,
    pub(crate) counted: Vec<(Instant, String, u64)>,
    pub(crate) wrote: Vec<(Instant, String, bool)>,
    /// The command certainly ran until then.
    pub(crate) last: Instant,
    /// The longest time between two signs of its life.
    pub(crate) gap: Duration,
    /// Whether that was its end, and not only the last sign of its life.
    pub(crate) ended: bool,
    /// It, or the rlock of it, was killed or stopped.
    pub(crate) touched: bool,
    pub(crate) left: Option<Left>,
}

/// How an rlock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) at: Instant,
    /// None where a signal ended it.
    pub(crate) code: Option<i32>,
}

impl Run {
    /// The run whose command started it.
    pub(crate) fn parent(&self) -> Option<&str> {
        self.id.rsplit_once('.').map(|(parent, _)| parent)
    }

    /// The run that the scenario started, if this is below that one.
    pub(crate) fn root(&self) -> &str {
        self.id.split('.').next().unwrap_or(&self.id)
    }

    /// Whether one is below the other: what they hold does not conflict.
    pub(crate) fn is_related_to(&self, other: &Self) -> bool {
        let below = |id: &str, above: &str| id.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'));
        self.id == other.id || below(&self.id, &other.id) || below(&other.id, &self.id)
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.left.and_then(|left| left.code)
    }

    fn take_in(&mut self, at: Instant, what: &str, words: &[&str]) {
        match what {
            "asked" => {
                (self.asked, self.claims) = (at, claims::read(words[0]));
                self.patience = words[1].parse().ok().map(Duration::from_millis);
                return;
            }
            "queued" => self.queued = Some(at),
            "late" => self.late = true,
            "touched" => self.touched = true,
            "left" => self.left = Some(Left { at, code: words[0].parse().ok() }),
            "start" => {
                self.start = Some(at);
                (self.session, self.token) = (words[0].to_owned(), words[1].parse().expect("a token"));
            }
            "kept" => self.kept.push((at, claims::read(words[0]))),
            "counted" => self.counted.push((at, words[0].to_owned(), words[1].parse().expect("a number"))),
            "wrote" => self.wrote.push((at, words[0].to_owned(), words[1] == "accepted")),
            "end" => self.ended = true,
            "beat" => {}
            _ => panic!("a log has no line '{what}'"),
        }
        if !matches!(what, "queued" | "late" | "touched" | "left") {
            if what == "beat" {
                self.gap = self.gap.max(Duration::from_nanos(at.saturating_sub(self.last)));
            }
            self.last = self.last.max(at);
        }
    }
}

/// What a log tells.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// In the order in which they were asked for.
    pub(crate) runs: Vec<Run>,
    /// How often each fault was injected.
    pub(crate) faults: BTreeMap<String, usize>,
}

impl History {
    pub(crate) fn read(log: &str) -> Self {
        let mut runs: BTreeMap<&str, Run> = BTreeMap::new();
        let mut faults = BTreeMap::new();
        for line in log.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [at, id, what, rest @ ..] = words.as_slice() else { panic!("'{line}' is no line of a log") };
            if *id == "-" {
                *faults.entry(rest.join(" ")).or_default() += 1;
                continue;
            }
            let run = runs.entry(*id).or_insert_with(|| Run { id: (*id).to_owned(), ..Run::default() });
            run.take_in(at.parse().expect("an instant"), what, rest);
        }
        let mut runs: Vec<_> = runs.into_values().collect();
        runs.sort_by_key(|run| run.asked);
        Self { runs, faults }
    }

    /// How long the machine has let a command wait that had something to do every few milliseconds, and that nobody stopped.
    pub(crate) fn sluggishness(&self) -> Duration {
        self.runs.iter().filter(|run| !run.touched).map(|run| run.gap).max().unwrap_or_default()
    }

    /// How many commands ran.
    pub(crate) fn commands(&self) -> usize {
        self.runs.iter().filter(|run| run.start.is_some()).count()
    }
}

/// The lines about these runs, but for the beats in between.
pub(crate) fn excerpt(log: &str, runs: &[String]) -> String {
    let is_theirs = |line: &&str| {
        let mut words = line.split(' ').skip(1);
        words.next().is_some_and(|id| runs.iter().any(|run| run == id))
    };
    let lines: Vec<_> = log.lines().filter(is_theirs).collect();
    let is_beat = |line: &str| line.ends_with(" beat");
    let shown = |index: &usize| !is_beat(lines[*index]) || lines.get(index + 1).is_none_or(|next| !is_beat(next));
    (0..lines.len()).filter(shown).map(|index| format!("    {}\n", lines[index])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
        100 1 asked k:write 2500\n\
        110 1 queued\n\
        120 1 start abc 77 4711\n\
        125 1.1 asked k:read -\n\
        130 1.1 start def 77 4712\n\
        131 1.1 beat\n\
        133 1.1 beat\n\
        135 - fault server stopped\n\
        136 1 touched kill\n\
        140 1 kept k:read\n\
        150 1 counted n 4\n\
        155 1 wrote k refused\n\
        160 1 end\n\
        170 1 left 76\n\
        175 10 asked k:slot:2 -\n\
        180 10 left signal\n";

    #[test]
    fn what_is_written_is_read() {
        let history = History::read(LOG);
        let [run, nested, other] = history.runs.as_slice() else { panic!("{history:?}") };
        assert_eq!((run.id.as_str(), run.asked, run.patience), ("1", 100, Some(Duration::from_millis(2500))));
        assert_eq!((run.queued, run.start, run.last, run.ended, run.touched), (Some(110), Some(120), 160, true, true));
        assert_eq!((run.token, run.session.as_str(), run.code()), (77, "abc", Some(76)));
        assert_eq!(run.kept, [(140, claims::read("k:read"))]);
        assert_eq!(run.counted, [(150, "n".to_owned(), 4)]);
        assert_eq!(run.wrote, [(155, "k".to_owned(), false)]);
        assert_eq!((nested.parent(), nested.root(), nested.last, nested.ended), (Some("1"), "1", 133, false));
        assert_eq!((nested.gap.as_nanos(), history.sluggishness()), (2, nested.gap));
        assert_eq!((nested.patience, nested.left), (None, None));
        assert_eq!(other.left, Some(Left { at: 180, code: None }));
        assert!(run.is_related_to(nested) && nested.is_related_to(run) && !run.is_related_to(other));
        assert_eq!((history.commands(), history.faults["server stopped"]), (2, 1));
    }

    #[test]
    fn an_excerpt_shows_the_last_of_many_beats() {
        let lines = excerpt(LOG, &["1.1".to_owned()]);
        let numbers: Vec<_> = lines.lines().map(|line| line.trim().split(' ').next().unwrap()).collect();
        assert_eq!(numbers, ["125", "130", "133"]);
    }

    #[test]
    fn what_is_added_is_read_but_for_what_was_cut_off() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("log");
        let before = now();
        Log::open(&path).add("1", "asked k:read -");
        Log::open(&path).file.write_all(b"\n123 1 counted n 1").expect("it can be written");
        Log::open(&path).add("-", "fault x");
        let history = History::read(&whole_lines(&std::fs::read_to_string(path).expect("it is there")));
        assert!(history.runs[0].asked >= before && history.runs[0].asked <= now());
        assert_eq!((history.faults.len(), history.runs[0].counted.len()), (1, 0));
    }
}
