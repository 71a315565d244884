//! The living processes of a round, found by a variable in their environment.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use rlock_sys::processes::Process;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::scripts::STOPS;

/// The variable with the path of the tree.
pub(crate) const MARK: &str = "TREES";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The rlock of a command, or the keeper of an owner.
    Rlock,
    Guardian,
    /// The copy to which a guardian leaves the work.
    Copy,
    /// A process of the tree.
    Member,
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) process: Process,
    pub(crate) class: Class,
    pub(crate) tree: usize,
    pub(crate) parent: i32,
    pub(crate) is_stopped: bool,
    /// Whether the process stops itself.
    pub(crate) stops: bool,
    /// The processor time that it has used, in ticks.
    pub(crate) used: u64,
    /// For people.
    pub(crate) line: String,
}

/// A line of /proc/PID/stat.
struct Stat {
    process: Process,
    name: String,
    state: u8,
    parent: i32,
    used: u64,
    line: String,
}

/// What is known of processes from earlier looks.
pub(crate) struct Census {
    mark: String,
    /// The guardians and copies. Their environment does not tell their tree, and their parents end.
    guardians: HashMap<Process, (Class, usize)>,
    strangers: HashSet<Process>,
}

/// The age in ticks from which on a process keeps its environment: a younger one may be about to
/// execute its program.
const SETTLED: u64 = 100;

impl Census {
    pub(crate) fn new(folder: &Path) -> Self {
        let mark = format!("{MARK}={}/", folder.display());
        Self { mark, guardians: HashMap::new(), strangers: HashSet::new() }
    }

    /// The living processes of the round. `rlocks` are those of the commands, or the owners.
    pub(crate) fn take(&mut self, rlocks: &[Pid]) -> Vec<Seen> {
        let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let all: Vec<Stat> = pids.filter_map(Stat::read).collect();
        let youngest = all.iter().map(|stat| stat.process.started).max().unwrap_or_default();
        self.find_guardians(&all, rlocks);
        let mut seen = Vec::new();
        for stat in all {
            let process = stat.process;
            let (class, tree, stops) = if let Some((class, tree)) = self.guardians.get(&process) {
                (*class, *tree, false)
            } else if self.strangers.contains(&process) {
                continue;
            } else if let Some((tree, stops)) = self.tree(process) {
                let is_rlock = rlocks.contains(&process.pid) && stat.name != "perl" || stat.name == "lock-keeper";
                // What rlock has just cloned is a guardian, or becomes the command.
                if stat.name == "rlock" && rlocks.iter().any(|rlock| number(*rlock) == stat.parent) {
                    continue;
                }
                (if is_rlock { Class::Rlock } else { Class::Member }, tree, stops)
            } else {
                if process.started + SETTLED < youngest {
                    self.strangers.insert(process);
                }
                continue;
            };
            let is_stopped = stat.state == b'T';
            let Stat { parent, used, line, .. } = stat;
            seen.push(Seen { process, class, tree, parent, is_stopped, stops, used, line });
        }
        seen
    }

    /// Takes note of new guardians: the children of rlocks and guardians that have their name.
    fn find_guardians(&mut self, all: &[Stat], rlocks: &[Pid]) {
        let is_one = |stat: &&Stat| ["lock-guardian", "exe"].contains(&stat.name.as_str());
        let by_pid: HashMap<i32, &Stat> = all.iter().map(|stat| (number(stat.process.pid), stat)).collect();
        // A copy may come before its guardian.
        for _ in 0..2 {
            for stat in all.iter().filter(is_one) {
                let Some(parent) = by_pid.get(&stat.parent) else { continue };
                if self.guardians.contains_key(&stat.process) {
                    continue;
                }
                let found = match self.guardians.get(&parent.process) {
                    Some((_, tree)) => Some((Class::Copy, *tree)),
                    None if parent.name == "rlock" || rlocks.contains(&parent.process.pid) => {
                        self.tree(parent.process).map(|(tree, _)| (Class::Guardian, tree))
                    }
                    None => None,
                };
                self.guardians.extend(found.map(|found| (stat.process, found)));
            }
        }
    }

    /// The tree of a process, and whether the process stops itself, by its environment.
    fn tree(&self, process: Process) -> Option<(usize, bool)> {
        let folder = format!("/proc/{}", number(process.pid));
        let mut environment = fs::read(format!("{folder}/environ")).unwrap_or_default();
        if environment.is_empty() {
            // The first thread may have ended.
            let threads = fs::read_dir(format!("{folder}/task")).into_iter().flatten().flatten();
            let mut others = threads.filter_map(|thread| fs::read(thread.path().join("environ")).ok());
            environment = others.find(|other| !other.is_empty())?;
        }
        let environment = String::from_utf8_lossy(&environment);
        let tree = environment.split('\0').find_map(|variable| variable.strip_prefix(&self.mark))?;
        let stops = environment.split('\0').any(|variable| variable.split('=').next() == Some(STOPS));
        Some((tree.parse().ok()?, stops))
    }
}

impl Stat {
    /// Reads a process that lives.
    fn read(pid: i32) -> Option<Self> {
        let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (start, rest) = line.rsplit_once(')')?;
        let name = start.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let state = *fields.first()?.as_bytes().first()?;
        let threads = field(17)?;
        if state == b'X' || state == b'Z' && threads <= 1 {
            return None;
        }
        Some(Self {
            process: Process { pid: Pid::from_raw(pid)?, started: field(19)? },
            state,
            parent: fields.get(1)?.parse().ok()?,
            used: field(11)? + field(12)?,
            line: format!("{pid} ({name}) {}", fields[..4].join(" ")),
            name,
        })
    }
}

/// Sends a signal to a process, unless it has ended.
pub(crate) fn send(process: Process, signal: Signal) {
    let Ok(pidfd) = pidfd_open(process.pid, PidfdFlags::empty()) else { return };
    if Stat::read(number(process.pid)).is_some_and(|stat| stat.process == process) {
        let _ = pidfd_send_signal(&pidfd, signal);
    }
}

pub(crate) fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}
