//! The log of a scenario, which is the only input of the checkers. Each event is one line, and each
//! line is appended in a single write. A kill in the middle of a write at the end of a page leaves
//! a truncated line, which [`complete_lines`] skips.
//!
//! A line is `INSTANT RUN EVENT …`. The instant is in nanoseconds of CLOCK_BOOTTIME, which all
//! processes share. The scenario started run `7`, and the command of `7` started run `7.1`. The
//! events:
//!
//! | event | written by | when |
//! | --- | --- | --- |
//! | `asked CLAIMS WAIT_MS` | the parent of the rlock | before rlock starts; WAIT_MS may be `-` |
//! | `queued` | the parent of the rlock | after rlock printed that it waits |
//! | `deadlock` | the parent of the rlock | after rlock reported a deadlock |
//! | `late` | the parent of the rlock | after rlock printed that it gave up the start |
//! | `start SESSION TOKEN PID` | the command | at its start |
//! | `beat` | the command | every few milliseconds while it runs |
//! | `kept CLAIMS` | the command | before it gives up all other claims |
//! | `counted NAME N` | the command | after it wrote N to a file, one more than it had read |
//! | `wrote NAME accepted`, `wrote NAME refused` | the command | after a fenced write |
//! | `end` | the command | at its end |
//! | `faulted FAULT` | the nemesis | before it kills or stops the run's rlock, command or client |
//! | `freed` | the nemesis | before it kills the server of the run's client |
//! | `exit CODE`, `exit signal` | the parent of the rlock | after rlock has ended |
//!
//! A client of a server writes the lines of the rlock and the command.
//!
//! A line without a run, `INSTANT - fault NAME`, counts an injected fault.

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

/// An open log, to which lines are appended.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    pub(crate) fn open(path: &Path) -> Self {
        let file = File::options().create(true).append(true).open(path).expect("the log opens");
        Self { file, path: path.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn add(&self, run: &str, event: &str) {
        // The leading line break separates the line from a truncated one. The mark at the end shows
        // that the line is complete.
        let line = format!("\n{} {run} {event}{COMPLETE}", now());
        (&self.file).write_all(line.as_bytes()).expect("the log is written");
    }
}

/// The mark at the end of a complete line.
const COMPLETE: &str = " .";

/// The complete lines of a log file, without their marks.
pub(crate) fn complete_lines(file: &str) -> String {
    let complete = file.lines().filter_map(|line| line.strip_suffix(COMPLETE));
    complete.map(|line| format!("{line}\n")).collect()
}

/// One rlock and its command, as the log shows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// The number of the run, after the ids of the runs that enclose it: `7.1`.
    pub(crate) id: String,
    pub(crate) claims: Vec<Claim>,
    pub(crate) asked: Instant,
    /// The `--wait` of the request; none without a limit.
    pub(crate) wait_limit: Option<Duration>,
    /// The latest instant at which the request entered the queue.
    pub(crate) queued: Option<Instant>,
    /// When the request reported that it was in a deadlock.
    pub(crate) deadlock: Option<Instant>,
    /// The lease left too little time to open the command.
    pub(crate) late: bool,
    pub(crate) start: Option<Instant>,
    pub(crate) session: String,
    pub(crate) token: u64,
    /// The claims that were left after each shrink or downgrade, with the instant.
    pub(crate) kept: Vec<(Instant, Vec<Claim>)>,
    pub(crate) counted: Vec<(Instant, String, u64)>,
    pub(crate) wrote: Vec<(Instant, String, bool)>,
    /// The last instant at which the command certainly ran.
    pub(crate) last_seen: Instant,
    /// The longest time from one line of the command to its next heartbeat.
    pub(crate) gap: Duration,
    /// Whether the command came to its end, so that `last_seen` is more than its last heartbeat.
    pub(crate) ended: bool,
    /// Whether the nemesis killed or stopped the command or its rlock.
    pub(crate) faulted: bool,
    /// When the nemesis killed the rlock or the client.
    pub(crate) killed: Option<Instant>,
    /// When the server of the client was killed, so that its hold ended.
    pub(crate) freed: Option<Instant>,
    pub(crate) exit: Option<Exit>,
}

/// How an rlock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) at: Instant,
    /// None if a signal ended the rlock.
    pub(crate) code: Option<i32>,
}

impl Run {
    /// The run whose command started this run.
    pub(crate) fn parent(&self) -> Option<&str> {
        self.id.rsplit_once('.').map(|(parent, _)| parent)
    }

    /// The outermost run around this run, or this run itself.
    pub(crate) fn root(&self) -> &str {
        self.id.split('.').next().unwrap_or(&self.id)
    }

    /// Whether the other run encloses this run.
    pub(crate) fn is_below(&self, other: &Self) -> bool {
        self.id.strip_prefix(&other.id).is_some_and(|rest| rest.starts_with('.'))
    }

    /// Whether one run is an ancestor of the other, so that their claims do not conflict.
    pub(crate) fn is_related_to(&self, other: &Self) -> bool {
        self.id == other.id || self.is_below(other) || other.is_below(self)
    }

    /// Whether a client of a server made the request. The session of a client is its address.
    pub(crate) fn is_client(&self) -> bool {
        self.start.is_some() && self.session.len() != 32
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.exit.and_then(|exit| exit.code)
    }

    /// The run without what its client believed after its server was killed.
    fn until_freed(mut self) -> Self {
        if let Some(freed) = self.freed {
            self.start = self.start.filter(|start| *start < freed);
            self.kept.retain(|(at, _)| *at < freed);
            self.last_seen = self.last_seen.min(freed);
        }
        self
    }

    fn apply(&mut self, at: Instant, event: &str, words: &[&str]) {
        match event {
            "asked" => {
                (self.asked, self.claims) = (at, claims::parse(words[0]));
                self.wait_limit = words[1].parse().ok().map(Duration::from_millis);
                return;
            }
            "queued" => self.queued = Some(at),
            "deadlock" => self.deadlock = Some(at),
            "late" => self.late = true,
            "faulted" => {
                self.faulted = true;
                self.killed = self.killed.or((words[0] == "killed").then_some(at));
            }
            "freed" => (self.freed, self.faulted) = (Some(at), true),
            "exit" => self.exit = Some(Exit { at, code: words[0].parse().ok() }),
            "start" => {
                self.start = Some(at);
                (self.session, self.token) = (words[0].to_owned(), words[1].parse().expect("the token is a number"));
            }
            "kept" => self.kept.push((at, claims::parse(words[0]))),
            "counted" => self.counted.push((at, words[0].to_owned(), words[1].parse().expect("the count is a number"))),
            "wrote" => self.wrote.push((at, words[0].to_owned(), words[1] == "accepted")),
            "end" => self.ended = true,
            "beat" => {}
            _ => panic!("the log has an unknown event '{event}'"),
        }
        if !matches!(event, "queued" | "deadlock" | "late" | "faulted" | "freed" | "exit") {
            if event == "beat" {
                self.gap = self.gap.max(Duration::from_nanos(at.saturating_sub(self.last_seen)));
            }
            self.last_seen = self.last_seen.max(at);
        }
    }
}

/// The contents of a log.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The runs in the order of their requests.
    pub(crate) runs: Vec<Run>,
    /// The number of injections of each fault.
    pub(crate) faults: BTreeMap<String, usize>,
    /// How long the machine took at most for a process that does nothing.
    pub(crate) process_time: Duration,
}

impl History {
    pub(crate) fn parse(log: &str) -> Self {
        let mut runs: BTreeMap<&str, Run> = BTreeMap::new();
        let mut faults = BTreeMap::new();
        for line in log.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [at, id, event, rest @ ..] = words.as_slice() else { panic!("'{line}' is not a line of a log") };
            if *id == "-" {
                *faults.entry(rest.join(" ")).or_default() += 1;
                continue;
            }
            let run = runs.entry(*id).or_insert_with(|| Run { id: (*id).to_owned(), ..Run::default() });
            run.apply(at.parse().expect("the instant is a number"), event, rest);
        }
        let mut runs: Vec<_> = runs.into_values().map(Run::until_freed).collect();
        runs.sort_by_key(|run| run.asked);
        Self { runs, faults, process_time: Duration::ZERO }
    }

    /// What the machine could do at worst: the longest delay of a heartbeat of a command without a
    /// fault, or the longest time for a process. While no command runs, only the latter is known.
    pub(crate) fn scheduling_delay(&self) -> Duration {
        let gaps = self.runs.iter().filter(|run| !run.faulted).map(|run| run.gap);
        gaps.chain([self.process_time]).max().unwrap_or_default()
    }

    /// The number of commands that started.
    pub(crate) fn commands(&self) -> usize {
        self.runs.iter().filter(|run| run.start.is_some()).count()
    }
}

/// The lines of these runs, with only the last of consecutive heartbeats.
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
        136 1 faulted killed\n\
        140 1 kept k:read\n\
        150 1 counted n 4\n\
        155 1 wrote k refused\n\
        160 1 end\n\
        170 1 exit 76\n\
        175 10 asked k:slot:2 -\n\
        180 10 exit signal\n";

    #[test]
    fn log_is_parsed_into_runs() {
        let history = History::parse(LOG);
        let [run, nested, other] = history.runs.as_slice() else { panic!("{history:?}") };
        assert_eq!((run.id.as_str(), run.asked, run.wait_limit), ("1", 100, Some(Duration::from_millis(2500))));
        assert_eq!(
            (run.queued, run.start, run.last_seen, run.ended, run.faulted),
            (Some(110), Some(120), 160, true, true)
        );
        assert_eq!((run.token, run.session.as_str(), run.code()), (77, "abc", Some(76)));
        assert_eq!(run.kept, [(140, claims::parse("k:read"))]);
        assert_eq!(run.counted, [(150, "n".to_owned(), 4)]);
        assert_eq!(run.wrote, [(155, "k".to_owned(), false)]);
        assert_eq!((nested.parent(), nested.root(), nested.last_seen, nested.ended), (Some("1"), "1", 133, false));
        assert_eq!((nested.gap.as_nanos(), history.scheduling_delay()), (2, nested.gap));
        assert_eq!((nested.wait_limit, nested.exit), (None, None));
        assert_eq!(other.exit, Some(Exit { at: 180, code: None }));
        assert!(run.is_related_to(nested) && nested.is_related_to(run) && !run.is_related_to(other));
        assert_eq!((history.commands(), history.faults["server stopped"]), (2, 1));
    }

    #[test]
    fn hold_of_a_client_ends_when_its_server_is_killed() {
        let lines = "0 1 asked k:write -\n{} 1 start s 1 1\n4 1 beat\n6 1 freed\n8 1 beat\n9 1 exit signal";
        let run = |start: &str| History::parse(&lines.replace("{}", start)).runs.remove(0);
        assert_eq!((run("3").start, run("3").last_seen), (Some(3), 6));
        assert_eq!(run("7").start, None);
    }

    #[test]
    fn excerpt_shows_only_the_last_of_consecutive_heartbeats() {
        let lines = excerpt(LOG, &["1.1".to_owned()]);
        let numbers: Vec<_> = lines.lines().map(|line| line.trim().split(' ').next().unwrap()).collect();
        assert_eq!(numbers, ["125", "130", "133"]);
    }

    #[test]
    fn truncated_line_is_skipped() {
        let folder = tempfile::tempdir().expect("the folder is made");
        let path = folder.path().join("log");
        let before = now();
        Log::open(&path).add("1", "asked k:read -");
        Log::open(&path).file.write_all(b"\n123 1 counted n 1").expect("the log is written");
        Log::open(&path).add("-", "fault x");
        let history = History::parse(&complete_lines(&std::fs::read_to_string(path).expect("the log exists")));
        assert!(history.runs[0].asked >= before && history.runs[0].asked <= now());
        assert_eq!((history.faults.len(), history.runs[0].counted.len()), (1, 0));
    }
}
