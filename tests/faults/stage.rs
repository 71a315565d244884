//! Where a scenario is played: a store, a log, and the rlocks that live at the moment.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::command;
use super::log::{self, Log};
use super::plan::Plan;
use super::site::Site;
use super::support::random::Random;

pub(crate) struct Stage {
    pub(crate) site: Site,
    log: Log,
    /// The runs that the scenario has started, with the process of each rlock; none of them has
    /// been waited for.
    living: Mutex<Vec<(String, Pid)>>,
    one_left: Condvar,
    runs: AtomicU64,
    over: AtomicBool,
    abandoned: AtomicBool,
    /// The processes that were killed.
    killed: Mutex<HashSet<Pid>>,
    /// Some of what rlocks said that were not simply waiting or busy.
    said: Mutex<Vec<String>>,
}

/// How many lines of what was said are kept.
const LINES: usize = 40;

impl Stage {
    pub(crate) fn new(site: Site) -> Self {
        let log = Log::open(&site.folder().join("log"));
        Self {
            site,
            log,
            living: Mutex::default(),
            one_left: Condvar::new(),
            runs: AtomicU64::new(0),
            over: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            said: Mutex::default(),
            killed: Mutex::default(),
        }
    }

    /// All that was logged.
    pub(crate) fn text(&self) -> String {
        log::whole_lines(&fs::read_to_string(self.log.path()).expect("the log can be read"))
    }

    /// What the rlocks had to say, each line with its run.
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().expect("nobody panics with it").clone()
    }

    /// Counts a fault.
    pub(crate) fn note(&self, fault: &str) {
        self.log.add("-", &format!("fault {fault}"));
    }

    /// Whether no more runs are to be started.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Lets no more runs be started.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Lets the runs that live come to their end, and kills those that don't.
    pub(crate) fn close(&self, deadline: Duration) {
        let deadline = Instant::now() + deadline;
        let mut living = self.living();
        while !living.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // They have no end in the log.
                self.abandoned.store(true, Ordering::Relaxed);
                for (_, pid) in living.iter() {
                    let _ = rustix::process::kill_process(*pid, Signal::KILL);
                }
                return;
            }
            living = self.one_left.wait_timeout(living, left).expect("nobody panics with it").0;
        }
    }

    /// One run from beginning to end.
    pub(crate) fn perform(&self, plan: &Plan) {
        let id = (self.runs.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        command::announce(&self.log, &id, &plan.levels[0]);
        let mut rlock: Command = self.site.rlock();
        let mut child = command::assign(&mut rlock, plan, &id, &self.log).spawn().expect("rlock can be started");
        self.living().push((id.clone(), Pid::from_child(&child)));
        let said = command::follow(&self.log, &id, child.stderr.take().expect("it has a pipe"));
        // From here on its process id may go to another.
        self.living().retain(|(other, _)| *other != id);
        let status = child.wait().expect("it is a child");
        if !self.abandoned.load(Ordering::Relaxed) {
            command::conclude(&self.log, &id, status);
        }
        self.one_left.notify_all();
        let mut lines = self.said.lock().expect("nobody panics with it");
        let worth = said.into_iter().filter(|line| !line.starts_with("rlock: busy: "));
        let room = LINES.saturating_sub(lines.len());
        lines.extend(worth.map(|line| format!("{id}: {line}")).take(room));
    }

    /// A process of some run: an rlock, or else a command; none if nobody lives, or only those that
    /// are about to go.
    pub(crate) fn victim(&self, wanted: Wanted, random: &mut Random) -> Option<Victim> {
        let living = self.living();
        if living.is_empty() {
            return None;
        }
        let (id, rlock) = random.pick(&living).clone();
        // The rlock that the scenario started, its command, the rlock inside that, ….
        let mut line = vec![rlock];
        while let Some(child) = child_of(line[line.len() - 1]) {
            line.push(child);
        }
        let first = usize::from(wanted == Wanted::Command);
        let found: Vec<usize> = (first..line.len()).step_by(2).collect();
        let depth = *found.get(random.below(found.len().max(1) as u64) as usize)?;
        let run = id + &".1".repeat(depth / 2);
        let guardian = guardian_of(line[depth]);
        let runs_command = line.len() > depth + 1;
        if wanted != Wanted::Command && runs_command && !self.are_unharmed(&[Some(line[depth]), guardian]) {
            return None;
        }
        if wanted == Wanted::Guardian {
            let pid = guardian?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            return (guardian_of(line[depth]) == guardian).then_some(Victim { run, pid, pidfd });
        }
        let pidfd = pidfd_open(line[depth], PidfdFlags::empty()).ok()?;
        // The parent has not waited for it, or it would not be there any more: the descriptor is
        // for the one that was meant.
        if depth > 0 && child_of(line[depth - 1]) != Some(line[depth]) {
            return None;
        }
        Some(Victim { run, pid: line[depth], pidfd })
    }

    /// Whether these processes exist and none was killed here. The promise does not cover an rlock
    /// and its guardian that are killed at once.
    fn are_unharmed(&self, processes: &[Option<Pid>]) -> bool {
        let killed = self.killed.lock().expect("no thread panics with it");
        processes.iter().all(|process| process.is_some_and(|pid| !killed.contains(&pid)))
    }

    /// Sends a signal to a victim.
    pub(crate) fn signal(&self, victim: &Victim, signal: Signal, fault: &str) {
        self.log.add(&victim.run, &format!("touched {}", fault.replace(' ', "-")));
        if signal == Signal::KILL {
            self.killed.lock().expect("no thread panics with it").insert(victim.pid);
        }
        // It may have ended by now.
        let _ = pidfd_send_signal(&victim.pidfd, signal);
    }

    fn living(&self) -> MutexGuard<'_, Vec<(String, Pid)>> {
        self.living.lock().expect("nobody panics with it")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Rlock,
    Command,
    Guardian,
}

/// A process that something is done to.
pub(crate) struct Victim {
    run: String,
    pid: Pid,
    pidfd: OwnedFd,
}

/// The command that an rlock runs, or the rlock that a command runs. Neither has more than one that
/// lasts.
fn child_of(process: Pid) -> Option<Pid> {
    let child = children_of(process).find(|child| !GUARDIAN.contains(&name_of(*child).as_str()))?;
    if name_of(child) == command::WRAPPER { children_of(child).next() } else { Some(child) }
}

/// The process that ends the command's process tree if the rlock is killed.
fn guardian_of(rlock: Pid) -> Option<Pid> {
    children_of(rlock).find(|child| GUARDIAN.contains(&name_of(*child).as_str()))
}

/// The names of a guardian; the second one is that of the file /proc/self/exe, which the guardian has just
/// executed.
const GUARDIAN: [&str; 2] = ["rlock-guardian", "exe"];

fn children_of(process: Pid) -> impl Iterator<Item = Pid> {
    let pid = process.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let pids: Vec<_> = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect();
    pids.into_iter()
}

fn name_of(process: Pid) -> String {
    let name = fs::read_to_string(format!("/proc/{}/comm", process.as_raw_nonzero())).unwrap_or_default();
    name.trim_end().to_owned()
}
