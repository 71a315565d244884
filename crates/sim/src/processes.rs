//! The processes: the rlock of each task, and its command.

use std::collections::VecDeque;
use std::time::Duration;

use super::clocks::Clock;
use super::plan::Plan;
use super::tree::{Part, Tree};
use super::world::{Happening, Key, World};
use rlock_model::request::Request;
use rlock_supervise::event::{Ended, Signal};
use rlock_sys::clock::Boottime;

/// The command of a run, or the work that a client of a lock server does while it holds a lock.
pub(super) struct Process {
    pub(super) task: usize,
    ignores_term: bool,
    /// How long the process takes to die.
    dies_after: Duration,
    /// How long the process lives after its rlock.
    outlives: Duration,
    /// When the process ends. `None` if that is not decided.
    pub(super) end: Option<Key>,
    /// Whether rlock has told the process to end.
    pub(super) is_told: bool,
    /// How the process ends when its inner rlock has ended, for which it waits.
    pub(super) waits: Option<Ended>,
    /// How long a process that this one leaves behind outlives it.
    pub(super) leaves_for: Option<Duration>,
    /// When rlock has killed the process at the latest, if `--max-runtime` limits it.
    pub(super) ends_by: Option<Duration>,
}

impl Process {
    /// A command that starts now, and which the guardian of its rlock kills.
    pub(super) fn command(task: usize, plan: &Plan, now: Duration) -> Self {
        let Plan { ignores_term, dies_after, leaves_for, .. } = *plan;
        let outlives = KILLED_AFTER.min(dies_after);
        let limit = plan.settings.max_runtime.map(|limit| limit + plan.settings.grace + OVERRUN_MAX);
        let ends_by = limit.map(|limit| now + limit);
        Self { ignores_term, outlives, leaves_for, ends_by, ..Self::work(task, dies_after) }
    }

    /// The work of a client, which ends it when the connection ends.
    pub(super) fn work(task: usize, dies_after: Duration) -> Self {
        let (ignores_term, is_told) = (false, false);
        let (end, waits, leaves_for, ends_by) = (None, None, None, None);
        Self { task, ignores_term, dies_after, outlives: dies_after, end, is_told, waits, leaves_for, ends_by }
    }
}

/// What a task waits for.
#[derive(Default)]
pub(super) struct Mailbox {
    wake: Option<Key>,
    pub(super) is_stopped: bool,
    pub(super) signals: VecDeque<Signal>,
    /// The end of the command that the task has not seen.
    pub(super) ended: Option<Ended>,
    /// Whether the command runs an inner rlock.
    pub(super) has_inner: bool,
    pub(super) tree: Tree,
    /// The runs that the task has begun and not finished: one, or those of a lock server's clients.
    pub(super) runs: Vec<usize>,
    /// The connections that the task has opened and not closed.
    pub(super) connections: Vec<usize>,
    pub(super) clock: Clock,
}

impl Mailbox {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }
}

/// By how much a command may outlast its maximum run time and the grace: what its end takes, and
/// what clocks differ.
const OVERRUN_MAX: Duration = Duration::from_millis(50);

/// How long the kernel takes to end a process.
const KILLED_AFTER: Duration = Duration::from_millis(2);

impl World {
    /// Lets a task go on at an instant, unless it goes on earlier anyway.
    pub(super) fn wake(&mut self, task: usize, at: Duration) {
        if self.mailboxes[task].wake.is_some_and(|(earlier, _)| earlier <= at) {
            return;
        }
        let key = self.at(at, Happening::Wake(task));
        if let Some(later) = self.mailboxes[task].wake.replace(key) {
            self.queue.remove(&later);
        }
    }

    /// Takes note that a task goes on; tells whether it can.
    pub(super) fn awake(&mut self, task: usize) -> bool {
        self.mailboxes[task].wake = None;
        !self.mailboxes[task].is_stopped
    }

    pub(super) fn boottime(&self, task: usize) -> Boottime {
        self.mailboxes[task].clock.boottime(self.now)
    }

    /// The process of the only run of a task.
    pub(super) fn command(&mut self, task: usize) -> Option<(usize, &mut Process)> {
        let run = *self.mailboxes[task].runs.first()?;
        self.processes.get_mut(&run).map(|process| (run, process))
    }

    /// Sends a signal to the process of a run.
    pub(super) fn signal_process(&mut self, run: usize, signal: i32) {
        let Some(process) = self.processes.get(&run) else { return };
        let is_kill = signal == rustix::process::Signal::KILL.as_raw();
        if is_kill {
            self.end_process(run, process.outlives, Ended::Signal(signal));
        } else if !process.ignores_term {
            self.end_process(run, process.dies_after, Ended::Signal(signal));
        }
    }

    /// Lets the process of a run end after a time, unless it ends earlier anyway.
    pub(super) fn end_process(&mut self, run: usize, after: Duration, ended: Ended) {
        let Some(process) = self.processes.get_mut(&run) else { return };
        let at = self.now + after;
        if process.end.is_some_and(|(earlier, _)| earlier <= at) {
            return;
        }
        process.waits = None;
        let (task, end) = (process.task, process.end);
        end.map(|end| self.queue.remove(&end));
        let end = self.at(at, Happening::ProcessEnds(task, Part::Command(run), ended));
        self.processes.get_mut(&run).expect("the process lives").end = Some(end);
    }

    /// A process begins in a task.
    pub(super) fn enter(&mut self, task: usize) {
        self.clear_tree(task);
        let mailbox = &mut self.mailboxes[task];
        mailbox.signals.clear();
        mailbox.ended = None;
        mailbox.has_inner = false;
    }

    /// A task begins a session; returns its run.
    pub(super) fn begin(&mut self, task: usize, request: &Request) -> usize {
        let run = self.checkers.ask(request, self.now);
        self.note(|| format!("task {task}: run {run} {request:?}"));
        self.mailboxes[task].runs.push(run);
        run
    }

    pub(super) fn granted(&mut self, task: usize, run: usize, tokens: &[u64], deadline: Boottime) {
        let deadline = self.mailboxes[task].clock.when_boottime(deadline);
        let ends = self.lease_ends(run, tokens);
        self.checkers.believe(run, tokens, deadline, ends, self.now);
    }

    /// A session stops to wait.
    pub(super) fn stop_asking(&mut self, run: usize) {
        self.checkers.stop_asking(run, self.now);
    }

    /// A session ends. There is no `code` if nobody learns what became of its lock.
    pub(super) fn leave(&mut self, task: usize, run: usize, code: Option<u8>) {
        self.note(|| format!("task {task}: run {run} exits with {code:?}"));
        match code {
            Some(code) => self.checkers.exit(run, code, self.now),
            None => self.checkers.vanish(run, self.now),
        }
        self.mailboxes[task].runs.retain(|other| *other != run);
    }

    /// The rlock of a command ends.
    pub(super) fn finish(&mut self, task: usize, run: usize, code: u8) {
        self.leave(task, run, Some(code));
        if self.processes.contains_key(&run) {
            self.checkers.violations.push(format!("run {run} exited before its command"));
        }
        let session = self.checkers.runs[run].session;
        let is_left = self.nodes[self.primary].server.session(session).is_some_and(|session| !session.is_kept());
        if self.checkers.is_mild && is_left {
            self.checkers.violations.push(format!("run {run} exited, and the server keeps its session"));
        }
        self.close_all(task);
    }

    /// The lock of `rlock acquire` belongs to its caller from now on.
    pub(super) fn hand_over(&mut self, task: usize, run: usize, tokens: &[u64]) {
        self.checkers.start(run, tokens, self.now);
        self.checkers.end(run);
        self.leave(task, run, None);
        self.close_all(task);
    }

    /// Stops the rlock of a task, but not its command.
    pub(super) fn stop(&mut self, task: usize) {
        self.mailboxes[task].is_stopped = true;
        self.stop_covering(task);
    }

    /// The promise does not cover the present runs of a task any more.
    pub(super) fn stop_covering(&mut self, task: usize) {
        for run in &self.mailboxes[task].runs {
            self.checkers.runs[*run].was_stopped = true;
        }
    }

    /// The rlock of a task ends without a word. The clients of a lock server see the end of their
    /// connections.
    pub(super) fn end(&mut self, task: usize) {
        for run in std::mem::take(&mut self.mailboxes[task].runs) {
            self.checkers.vanish(run, self.now);
            self.signal_process(run, rustix::process::Signal::KILL.as_raw());
        }
        self.close_all(task);
    }

    /// Kills the rlock of a task. Its guardian kills the command with its tree.
    pub(super) fn kill(&mut self, task: usize) {
        self.mailboxes[task].is_stopped = false;
        self.checkers.abandon(self.now);
        self.killed.push(task);
        self.stop_covering_what_hangs(task);
        self.kill_tree(task);
        self.end(task);
        self.inner_over(task);
        self.wake(task, self.now);
    }

    /// The command of a run starts.
    pub(super) fn start(&mut self, run: usize, tokens: &[u64], process: Process) {
        let task = process.task;
        self.note(|| format!("task {task}: the command of run {run} starts with {tokens:?}"));
        self.checkers.start(run, tokens, self.now);
        self.processes.insert(run, process);
    }
}
