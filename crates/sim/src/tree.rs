//! What belongs to a command besides its own process: the rlock that it runs, the processes that it
//! leaves behind, and the spare work of its rlock.
//!
//! The task of an inner rlock stands `clients` further down the list of tasks than the task of the
//! outer one.

use std::time::Duration;

use super::plan::{DEPTH, Inner, Program};
use super::processes::Mailbox;
use super::world::{Happening, Key, World};
use rlock_supervise::event::{Ended, Signal};

/// The processes around the command of a task.
#[derive(Default)]
pub(super) struct Tree {
    /// The run whose command left processes behind, and when they end.
    rest: Option<(usize, Key)>,
    /// Whether rlock waits for their end.
    awaits_rest: bool,
    /// How long the kernel takes to end a process of the tree that was killed, if that takes long.
    hangs_for: Option<Duration>,
    /// When the spare work ends.
    spare: Option<Key>,
    /// Whether the rlock has started spare work.
    has_spared: bool,
    /// The end of the spare work that the task has not seen.
    pub(super) spare_ended: Option<Ended>,
    /// For the task of an inner rlock: what it runs next, and when.
    job: Option<(Duration, Program)>,
    /// Whether the inner rlock runs.
    is_busy: bool,
    /// Whether nobody starts an inner rlock here any more.
    is_over: bool,
}

/// What ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// The command of a run.
    Command(usize),
    /// What the command of a run has left behind.
    Rest(usize),
    Spare,
}

/// What an inner task does next.
pub(super) enum Job {
    Run(Program),
    Wait,
    Over,
}

/// How long the spare work takes to end after a signal.
const SPARE_ENDS_AFTER: Duration = Duration::from_millis(20);

impl World {
    pub(super) fn clients(&self) -> usize {
        self.mailboxes.len() / DEPTH
    }

    /// The task of the rlock that the command of a task may run.
    fn inner_of(&self, task: usize) -> Option<usize> {
        Some(task + self.clients()).filter(|inner| *inner < self.mailboxes.len())
    }

    /// The command of a task starts another rlock later. Returns whether it does: an orphan may
    /// still use the place of the inner rlock.
    pub(super) fn start_inner(&mut self, task: usize, Inner { after, program }: Inner) -> bool {
        let at = self.now + after;
        let free = self.inner_of(task).filter(|inner| !self.is_alive(*inner));
        let Some(inner) = free else { return false };
        self.mailboxes[inner].tree.job = Some((at, program));
        self.wake(inner, at);
        true
    }

    pub(super) fn next_job(&mut self, task: usize) -> Job {
        let now = self.now;
        let tree = &mut self.mailboxes[task].tree;
        match tree.job.take_if(|(at, _)| *at <= now) {
            Some((_, program)) => {
                tree.is_busy = true;
                Job::Run(program)
            }
            None if tree.is_over => Job::Over,
            None => {
                if let Some((at, _)) = tree.job {
                    self.wake(task, at);
                }
                Job::Wait
            }
        }
    }

    /// Whether the rlock of an inner task runs, or is about to.
    fn is_alive(&self, task: usize) -> bool {
        let tree = &self.mailboxes[task].tree;
        tree.is_busy || tree.job.is_some()
    }

    /// The inner rlock that the command of a task runs.
    fn inner_alive(&self, task: usize) -> Option<usize> {
        let has_inner = self.mailboxes[task].has_inner;
        self.inner_of(task).filter(|inner| has_inner && self.is_alive(*inner))
    }

    /// An inner rlock has ended, so that the command around it goes on.
    pub(super) fn inner_over(&mut self, inner: usize) {
        let tree = &mut self.mailboxes[inner].tree;
        (tree.is_busy, tree.job) = (false, None);
        let Some(task) = inner.checked_sub(self.clients()) else { return };
        if let Some((run, ended)) = self.command(task).and_then(|(run, process)| Some((run, process.waits?))) {
            self.end_process(run, Duration::ZERO, ended);
        }
        self.wake(task, self.now);
    }

    /// The task begins no session any more.
    pub(super) fn lane_over(&mut self, task: usize) {
        if let Some(inner) = self.inner_of(task) {
            self.mailboxes[inner].tree.is_over = true;
            self.wake(inner, self.now);
        }
    }

    /// A part of what a task runs ends.
    pub(super) fn part_ends(&mut self, task: usize, part: Part, ended: Ended) {
        self.note(|| format!("task {task}: {part:?} ends: {ended:?}"));
        match part {
            Part::Command(run) => self.command_ends(task, run, ended),
            Part::Rest(run) => {
                // A later session of the task may have left something else.
                self.mailboxes[task].tree.rest.take_if(|(other, _)| *other == run);
                self.checkers.end(run);
                // The rlocks around this one may wait for it, too.
                let around =
                    std::iter::successors(task.checked_sub(self.clients()), |outer| outer.checked_sub(self.clients()));
                around.collect::<Vec<_>>().into_iter().for_each(|outer| self.wake(outer, self.now));
            }
            Part::Spare => {
                let tree = &mut self.mailboxes[task].tree;
                (tree.spare, tree.spare_ended) = (None, Some(ended));
            }
        }
        self.wake(task, self.now);
    }

    fn command_ends(&mut self, task: usize, run: usize, ended: Ended) {
        let inner = self.inner_alive(task).filter(|_| self.mailboxes[task].runs.contains(&run));
        let Some(process) = self.processes.get_mut(&run) else { return };
        let is_late = process.ends_by.is_some_and(|by| by < self.now);
        if is_late && !self.checkers.runs[run].was_stopped {
            self.checkers.violations.push(format!("the command of run {run} outlasts --max-runtime"));
        }
        if let (Some(_), Ended::Code(_)) = (inner, ended) {
            (process.waits, process.end) = (Some(ended), None);
            return;
        }
        let (leaves_for, is_told) = (process.leaves_for, process.is_told);
        self.processes.remove(&run);
        if let Some(inner) = inner {
            // A shell that dies starts nothing more.
            self.mailboxes[inner].tree.job = None;
        }
        // What a command leaves behind counts only if the command was ended.
        match leaves_for.filter(|_| is_told || matches!(ended, Ended::Signal(_))) {
            Some(time) => {
                let key = self.at(self.now + time, Happening::ProcessEnds(task, Part::Rest(run), ended));
                self.mailboxes[task].tree.rest = Some((run, key));
            }
            None => self.checkers.end(run),
        }
        let mailbox = &mut self.mailboxes[task];
        if mailbox.runs.contains(&run) {
            mailbox.ended = Some(ended);
        }
    }

    /// rlock sends TERM to the whole tree.
    pub(super) fn terminate_tree(&mut self, task: usize) {
        if let Some((_, process)) = self.command(task) {
            process.is_told = true;
        }
        self.signal_tree(task);
    }

    fn signal_tree(&mut self, task: usize) {
        if let Some((run, _)) = self.command(task) {
            self.signal_process(run, rustix::process::Signal::TERM.as_raw());
        }
        if let Some(inner) = self.inner_alive(task) {
            self.signal_rlock(inner, Signal::Term);
            self.signal_tree(inner);
        }
    }

    /// The command of a task starts. A process of its tree that was killed may live on for a time.
    pub(super) fn hang(&mut self, task: usize, hangs_for: Option<Duration>) {
        self.mailboxes[task].tree.hangs_for = hangs_for;
    }

    /// The promise does not cover what hangs under a lock that is lost, or whose rlock is killed.
    pub(super) fn stop_covering_what_hangs(&mut self, task: usize) {
        if self.mailboxes[task].tree.hangs_for.is_some() {
            self.stop_covering(task);
        }
    }

    /// rlock sends KILL to the whole tree, until nothing is left but what hangs.
    pub(super) fn kill_tree(&mut self, task: usize) {
        let hangs_for = self.mailboxes[task].tree.hangs_for;
        if let Some((run, process)) = self.command(task) {
            process.leaves_for = hangs_for;
            self.signal_process(run, rustix::process::Signal::KILL.as_raw());
        }
        if let Some(inner) = self.inner_alive(task) {
            self.kill(inner);
        }
        let at = self.now + hangs_for.unwrap_or_default();
        if let Some((run, rest)) = self.mailboxes[task].tree.rest.take_if(|(_, rest)| at < rest.0) {
            self.queue.remove(&rest);
            let killed = Ended::Signal(rustix::process::Signal::KILL.as_raw());
            let key = self.at(at, Happening::ProcessEnds(task, Part::Rest(run), killed));
            self.mailboxes[task].tree.rest = Some((run, key));
        }
    }

    /// Sends a signal to what a command has left: to its inner rlock. The rest takes its time.
    pub(super) fn signal_group(&mut self, task: usize, signal: Signal) {
        if let Some(inner) = self.inner_alive(task) {
            self.signal_rlock(inner, signal);
        }
    }

    pub(super) fn signal_rlock(&mut self, task: usize, signal: Signal) {
        self.mailboxes[task].signals.push_back(signal);
        self.wake(task, self.now);
    }

    pub(super) fn await_rest(&mut self, task: usize) {
        self.mailboxes[task].tree.awaits_rest = true;
        self.wake(task, self.now);
    }

    /// Whether rlock waits for the rest of the tree, and nothing of it is left.
    pub(super) fn is_rest_over(&self, task: usize) -> bool {
        self.mailboxes[task].tree.awaits_rest && !self.has_rest(task)
    }

    fn has_rest(&self, task: usize) -> bool {
        let Mailbox { tree, has_inner, .. } = &self.mailboxes[task];
        let inner = self.inner_of(task).filter(|_| *has_inner);
        tree.rest.is_some() || inner.is_some_and(|inner| self.is_alive(inner) || self.has_rest(inner))
    }

    /// Takes note that rlock has seen the end of the rest of the tree.
    pub(super) fn take_rest_over(&mut self, task: usize) -> bool {
        let is_over = self.is_rest_over(task);
        self.mailboxes[task].tree.awaits_rest &= !is_over;
        is_over
    }

    pub(super) fn start_spare(&mut self, task: usize, runs_for: Duration) {
        let key = self.at(self.now + runs_for, Happening::ProcessEnds(task, Part::Spare, Ended::Code(0)));
        let tree = &mut self.mailboxes[task].tree;
        tree.spare = Some(key);
        if std::mem::replace(&mut tree.has_spared, true) {
            self.checkers.violations.push(format!("task {task} starts its spare work twice"));
        }
    }

    /// Sends a signal to the spare work, which ends soon.
    pub(super) fn signal_spare(&mut self, task: usize, signal: i32) {
        let at = self.now + SPARE_ENDS_AFTER;
        let Some(key) = self.mailboxes[task].tree.spare.filter(|key| at < key.0) else { return };
        self.queue.remove(&key);
        let key = self.at(at, Happening::ProcessEnds(task, Part::Spare, Ended::Signal(signal)));
        self.mailboxes[task].tree.spare = Some(key);
    }

    /// Forgets what an earlier session of the task has left.
    pub(super) fn clear_tree(&mut self, task: usize) {
        let tree = &mut self.mailboxes[task].tree;
        (tree.awaits_rest, tree.has_spared) = (false, false);
        tree.spare_ended = None;
        // What still hangs ends by itself.
        tree.rest = None;
        tree.spare.take().map(|key| self.queue.remove(&key));
    }
}
