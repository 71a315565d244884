//! The stage of a scenario: a store, its servers, a log, and the rlocks that currently run.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::command;
use super::log::{self, Log};
use super::plan::Plan;
use super::served::Servers;
use super::site::Site;
use rlock_testkit::random::Random;

pub(crate) struct Stage {
    pub(crate) site: Site,
    pub(crate) servers: Servers,
    log: Log,
    /// The runs that the scenario has started, with the process of each rlock. None of these
    /// processes is reaped yet.
    live_runs: Mutex<Vec<(String, Pid)>>,
    run_ended: Condvar,
    runs: AtomicU64,
    over: AtomicBool,
    abandoned: AtomicBool,
    /// The processes that the nemesis has killed.
    killed: Mutex<HashSet<Pid>>,
    /// Some messages of the rlocks and answers to clients, without the common ones about waiting
    /// and being busy.
    messages: Mutex<Vec<String>>,
}

/// The largest number of messages that are kept.
const LINES: usize = 10_000;

impl Stage {
    /// A stage with this number of servers.
    pub(crate) fn new(site: Site, servers: usize) -> Self {
        let log = Log::open(&site.folder().join("log"));
        Self {
            servers: Servers::start(&site, servers),
            site,
            log,
            live_runs: Mutex::default(),
            run_ended: Condvar::new(),
            runs: AtomicU64::new(0),
            over: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            messages: Mutex::default(),
            killed: Mutex::default(),
        }
    }

    /// The complete lines of the log.
    pub(crate) fn text(&self) -> String {
        log::complete_lines(&fs::read_to_string(self.log.path()).expect("the log is read"))
    }

    /// Some messages of the rlocks, each with its run.
    pub(crate) fn messages(&self) -> Vec<String> {
        self.messages.lock().expect("no thread panics with the lock").clone()
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn log_of_run(&self, run: &str, event: &str) {
        self.log.add(run, event);
    }

    /// Logs an injected fault.
    pub(crate) fn log_fault(&self, fault: &str) {
        self.log.add("-", &format!("fault {fault}"));
    }

    /// Whether no more runs may start.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Prevents the start of more runs.
    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether the runs that have not ended yet never will.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// The id of a new run.
    pub(crate) fn next_run(&self) -> String {
        (self.runs.fetch_add(1, Ordering::Relaxed) + 1).to_string()
    }

    /// Waits for the current runs, and kills the runs that have not ended by the deadline.
    pub(crate) fn finish(&self, deadline: Duration) {
        let deadline = Instant::now() + deadline;
        while !self.servers.are_idle() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let mut live_runs = self.live_runs();
        while !(live_runs.is_empty() && self.servers.are_idle()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The killed runs get no exit line, which the checkers report as a violation.
                self.abandoned.store(true, Ordering::Relaxed);
                for (_, pid) in live_runs.iter() {
                    let _ = rustix::process::kill_process(*pid, Signal::KILL);
                }
                return;
            }
            live_runs = self.run_ended.wait_timeout(live_runs, left).expect("no thread panics with the lock").0;
        }
    }

    /// Executes a run from its request to its exit.
    pub(crate) fn execute(&self, plan: &Plan) {
        let id = self.next_run();
        command::log_request(&self.log, &id, &plan.levels[0]);
        let mut rlock: Command = self.site.any_rlock();
        let mut child = command::configure(&mut rlock, plan, &id, &self.log).spawn().expect("rlock starts");
        self.live_runs().push((id.clone(), Pid::from_child(&child)));
        let messages = command::read_messages(&self.log, &id, child.stderr.take().expect("rlock has a pipe"));
        // From here on the rlock may be reaped and its process id reused.
        self.live_runs().retain(|(other, _)| *other != id);
        let status = child.wait().expect("rlock is a child");
        if !self.is_abandoned() {
            command::log_exit(&self.log, &id, status);
        }
        self.run_ended.notify_all();
        self.keep(&id, messages.into_iter().filter(|line| !line.contains("rlock: busy: ")));
    }

    /// Keeps messages about a run, as long as there is room.
    pub(crate) fn keep(&self, id: &str, messages: impl IntoIterator<Item = String>) {
        let mut lines = self.messages.lock().expect("no thread panics with the lock");
        let room = LINES.saturating_sub(lines.len());
        lines.extend(messages.into_iter().map(|line| format!("{id}: {line}")).take(room));
    }

    /// A random process of this kind. Returns none if no such process runs, or if the process is
    /// about to end.
    pub(crate) fn victim(&self, target: Target, random: &mut Random) -> Option<Victim> {
        let live_runs = self.live_runs();
        if live_runs.is_empty() {
            return None;
        }
        let (id, rlock) = random.pick(&live_runs).clone();
        // The rlock that the scenario started, its command, the nested rlock of that command, and
        // so on.
        let mut chain = vec![rlock];
        while let Some(child) = child_of(chain[chain.len() - 1]) {
            chain.push(child);
        }
        let first = usize::from(target == Target::Command);
        let found: Vec<usize> = (first..chain.len()).step_by(2).collect();
        let depth = *found.get(random.below(found.len().max(1) as u64) as usize)?;
        let run = id + &".1".repeat(depth / 2);
        let guardian = guardian_of(chain[depth]);
        let runs_command = chain.len() > depth + 1;
        if target != Target::Command && runs_command && !self.are_unharmed(&[Some(chain[depth]), guardian]) {
            return None;
        }
        if target == Target::Guardian {
            let pid = guardian?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            return (guardian_of(chain[depth]) == guardian).then_some(Victim { run, pid, pidfd });
        }
        let pidfd = pidfd_open(chain[depth], PidfdFlags::empty()).ok()?;
        // The process is still a child of its parent, so its id was not reused and the pidfd refers
        // to the chosen process.
        if depth > 0 && child_of(chain[depth - 1]) != Some(chain[depth]) {
            return None;
        }
        Some(Victim { run, pid: chain[depth], pidfd })
    }

    /// Whether these processes exist and the nemesis killed none of them. The promise does not
    /// cover an rlock and a guardian that are killed at once.
    fn are_unharmed(&self, processes: &[Option<Pid>]) -> bool {
        let killed = self.killed.lock().expect("no thread panics with the lock");
        processes.iter().all(|process| process.is_some_and(|pid| !killed.contains(&pid)))
    }

    /// Sends a signal to a victim.
    pub(crate) fn signal(&self, victim: &Victim, signal: Signal, fault: &str) {
        self.log.add(&victim.run, &format!("faulted {}", fault.replace(' ', "-")));
        if signal == Signal::KILL {
            self.killed.lock().expect("no thread panics with the lock").insert(victim.pid);
        }
        // The process may have ended by now.
        let _ = pidfd_send_signal(&victim.pidfd, signal);
    }

    fn live_runs(&self) -> MutexGuard<'_, Vec<(String, Pid)>> {
        self.live_runs.lock().expect("no thread panics with the lock")
    }
}

/// The kind of process that a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Rlock,
    Command,
    Guardian,
}

/// The process that a fault kills or stops.
pub(crate) struct Victim {
    pub(crate) run: String,
    pid: Pid,
    pidfd: OwnedFd,
}

/// The command of an rlock, or the nested rlock of a command. Each has at most one such child that
/// lasts.
fn child_of(process: Pid) -> Option<Pid> {
    let child = children_of(process).find(|child| !GUARDIAN.contains(&name_of(*child).as_str()))?;
    if command::is_wrapper(&name_of(child)) { children_of(child).next() } else { Some(child) }
}

/// The process that ends the command's process tree if the rlock is killed.
fn guardian_of(rlock: Pid) -> Option<Pid> {
    children_of(rlock).find(|child| GUARDIAN.contains(&name_of(*child).as_str()))
}

/// The names of a guardian. Right after its exec, a guardian has the name of the file that it
/// executed: /proc/self/exe.
const GUARDIAN: [&str; 2] = ["lock-guardian", "exe"];

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
