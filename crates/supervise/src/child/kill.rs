//! Kills the command's whole tree, although its processes may start others meanwhile.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal as Kernel, kill_process_group};

use super::super::{guardian, killing};
use super::Child;
use super::send::send;
use rlock_sys::processes::{self, Process, Stat};

/// Maximum number of searches for processes that were started while the others were stopped.
const ROUNDS: usize = 100;
/// Maximum wait for the end of killed processes before the next ones are killed. A process that
/// hangs in the kernel may never end.
const KILLED_LIMIT: Duration = Duration::from_millis(100);
/// Maximum time for a tree that starts processes as fast as rlock kills them.
const CHASE_LIMIT: Duration = Duration::from_secs(5);

impl Child {
    /// Kills the whole tree, including processes that are started meanwhile, and waits briefly
    /// until they have ended. From here on, [`look`](Self::look) kills what has escaped.
    ///
    /// The guardians of inner rlocks go on: each keeps its lock until its tree is gone, and ends.
    pub(crate) fn kill(&mut self) {
        let limit = Instant::now() + KILLED_LIMIT;
        let (all, stopped) = self.stop_all();
        if stopped.is_empty() {
            self.send_tree(Kernel::KILL);
        }
        killing::kill_in_order(&all, &stopped, Some(limit));
        self.kill_chain(&stopped);
        self.go_on_killing();
    }

    /// Kills what has escaped [`stop_all`](Self::stop_all): a process that starts another one and
    /// ends is found by no snapshot. But rlock is the parent of all orphans, so as long as a
    /// process of the tree lives, one is a child of rlock.
    ///
    /// What was `stopped` before its kill has started nothing since, and may take long to end. It
    /// needs the guardian, which is in the group. So the group is killed only where no process was
    /// found, as without /proc.
    fn kill_chain(&mut self, stopped: &[Process]) {
        let begun = Instant::now();
        let mut killed: Vec<Process> = Vec::new();
        // Children that need no other look: killed ones, and those that are not of the tree.
        let mut known: HashSet<Pid> = stopped.iter().map(|process| process.pid).collect();
        if let Some(group) = self.ward.group.filter(|_| stopped.is_empty()) {
            let _ = kill_process_group(group, Kernel::KILL);
        }
        while begun.elapsed() < CHASE_LIMIT {
            let mut has_new = false;
            // The youngest is the one that may start another one at any moment.
            for pid in processes::children(self.family.rlock).into_iter().rev() {
                if known.contains(&pid) {
                    continue;
                }
                match processes::stat(pid) {
                    Ok(child) if !self.family.has_child(&child) || guardian::is_guardian(pid) => {
                        known.insert(pid);
                    }
                    Ok(child) if !child.ended => {
                        send(&[child.process], Kernel::KILL);
                        killed.push(child.process);
                        known.insert(pid);
                        has_new = true;
                    }
                    // It may have started another one before its end.
                    _ => {
                        has_new = true;
                        if !self.reap_orphan(pid) {
                            known.insert(pid);
                        }
                    }
                }
            }
            if !has_new && killed.is_empty() {
                return;
            }
            if !has_new {
                killing::kill(&std::mem::take(&mut killed), Some(Instant::now() + KILLED_LIMIT));
            }
        }
    }

    /// Stops the tree without guardians, so that none of its processes starts another process.
    /// Returns the last snapshot and the stopped processes, parents before their children.
    fn stop_all(&mut self) -> (Vec<Stat>, Vec<Process>) {
        let (mut all, mut stopped): (_, Vec<Process>) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            all = processes::all();
            let mut new = self.family.remember(&all);
            new.retain(|process| !stopped.contains(process) && !guardian::is_guardian(process.pid));
            if new.is_empty() {
                break;
            }
            send(&new, Kernel::STOP);
            stopped.append(&mut new);
        }
        (all, stopped)
    }
}
