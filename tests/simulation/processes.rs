//! The processes: the rlock of each task, and its command.

use std::collections::VecDeque;
use std::time::Duration;

use super::clocks::Clock;
use super::plan::Plan;
use super::tree::{Part, Tree};
use super::world::{Happening, Key, World};
use crate::clock::Boottime;
use crate::lock::request::Request;
use crate::supervise::event::{Ended, Signal};

/// The command of a session.
pub(super) struct Process {
    pub(super) ignores_term: bool,
    /// How long it takes to die.
    pub(super) dies_after: Duration,
    /// When it ends.
    pub(super) end: Key,
    /// Whether rlock has told it to end.
    pub(super) is_told: bool,
    /// How it ends when its inner rlock has ended, for which it waits.
    pub(super) waits: Option<Ended>,
    pub(super) leaves_for: Option<Duration>,
}

/// What a task waits for.
#[derive(Default)]
pub(super) struct Mailbox {
    wake: Option<Key>,
    pub(super) is_stopped: bool,
    pub(super) signals: VecDeque<Signal>,
    /// The end of the command that the task has not seen.
    pub(super) ended: Option<Ended>,
    pub(super) process: Option<Process>,
    /// Whether the command runs an inner rlock.
    pub(super) has_inner: bool,
    pub(super) tree: Tree,
    pub(super) run: Option<usize>,
    pub(super) clock: Clock,
}

impl Mailbox {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }
}

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

    /// Sends a signal to the command of a task.
    pub(super) fn signal_process(&mut self, task: usize, signal: i32) {
        let Some(process) = &self.mailboxes[task].process else { return };
        let is_kill = signal == rustix::process::Signal::KILL.as_raw();
        if process.ignores_term && !is_kill {
            return;
        }
        let dies_after = if is_kill { KILLED_AFTER.min(process.dies_after) } else { process.dies_after };
        let (at, end) = (self.now + dies_after, process.end);
        if at < end.0 || process.waits.is_some() {
            self.queue.remove(&end);
            let end = self.at(at, Happening::ProcessEnds(task, Part::Command, Ended::Signal(signal)));
            let process = self.mailboxes[task].process.as_mut().expect("the process lives");
            (process.end, process.waits) = (end, None);
        }
    }

    /// A task begins a session; returns its run.
    pub(super) fn begin(&mut self, task: usize, request: &Request) -> usize {
        let run = self.checkers.ask(request, self.now);
        self.note(|| format!("task {task}: run {run} {request:?}"));
        self.clear_tree(task);
        let mailbox = &mut self.mailboxes[task];
        mailbox.run = Some(run);
        mailbox.signals.clear();
        mailbox.ended = None;
        mailbox.has_inner = false;
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

    /// A session ends.
    pub(super) fn finish(&mut self, task: usize, run: usize, code: u8) {
        self.note(|| format!("task {task}: run {run} exits with {code}"));
        self.checkers.exit(run, code, self.now);
        if self.mailboxes[task].process.is_some() {
            self.checkers.violations.push(format!("run {run} exited before its command"));
        }
        self.mailboxes[task].run = None;
        self.close_all(task);
    }

    /// Stops the rlock of a task, but not its command.
    pub(super) fn stop(&mut self, task: usize) {
        self.mailboxes[task].is_stopped = true;
        if let Some(run) = self.mailboxes[task].run {
            self.checkers.runs[run].was_stopped = true;
        }
    }

    /// Kills the rlock of a task. Its guardian kills the command with its tree.
    pub(super) fn kill(&mut self, task: usize) {
        self.mailboxes[task].is_stopped = false;
        self.killed.push(task);
        if let Some(run) = self.mailboxes[task].run {
            self.checkers.vanish(run, self.now);
        }
        self.kill_tree(task);
        self.inner_over(task);
        self.close_all(task);
        self.wake(task, self.now);
    }

    /// The command of a run starts.
    pub(super) fn start(&mut self, task: usize, run: usize, plan: &mut Plan, tokens: &[u64]) {
        self.note(|| format!("task {task}: the command of run {run} starts with {tokens:?}"));
        self.checkers.start(run, tokens, self.now);
        let end = self.at(self.now + plan.runs_for, Happening::ProcessEnds(task, Part::Command, Ended::Code(0)));
        let has_inner = plan.inner.take().is_some_and(|inner| self.start_inner(task, inner));
        let Plan { ignores_term, dies_after, leaves_for, .. } = *plan;
        let process = Process { ignores_term, dies_after, end, is_told: false, waits: None, leaves_for };
        let mailbox = &mut self.mailboxes[task];
        (mailbox.process, mailbox.has_inner) = (Some(process), has_inner);
    }
}
