//! Sends signals to the command, to its group or to its whole tree.

use std::collections::HashSet;

use rustix::process::{Pid, Signal as Kernel, WaitIdOptions, kill_process, kill_process_group};

use super::super::event::{Group, Signal, Stop};
use super::super::guardian::is_guardian;
use super::Child;
use super::reap::seen;
use rlock_sys::processes::{self, Process, Stat, own_group};

/// A signal for what the ended command has left, and the processes that have received it.
#[derive(Debug)]
pub(super) struct Telling {
    signal: Kernel,
    /// Whether SIGCONT follows the signal.
    continues: bool,
    told: HashSet<Process>,
}

impl Child {
    /// Sends the signal once to the topmost processes of the tree, which are children of rlock, and
    /// at each [`look`](Self::look) to those that these have left. Mostly a process passes a signal
    /// on to what runs below it. With `spares_group`, rlock's own group has received the signal.
    ///
    /// A stopped process hears a signal that asks for the end when it goes on, so it is continued.
    pub(crate) fn tell_rest(&mut self, signal: Signal, spares_group: bool) {
        self.survey();
        let own = spares_group.then(own_group);
        let told = self.topmost().filter(|stat| Some(stat.group) == own).map(|stat| stat.process).collect();
        self.telling = Some(Telling { signal: signal.kernel(), continues: signal.asks_to_end(), told });
        self.tell_topmost();
    }

    /// Kills at each [`look`](Self::look) what has escaped [`kill`](Self::kill).
    pub(super) fn go_on_killing(&mut self) {
        self.telling = Some(Telling { signal: Kernel::KILL, continues: false, told: HashSet::new() });
    }

    /// Sends the signal of [`tell_rest`](Self::tell_rest) to the topmost processes that have not
    /// received it.
    pub(super) fn tell_topmost(&mut self) {
        let Some(mut telling) = self.telling.take() else { return };
        let new: Vec<Process> =
            self.topmost().map(|stat| stat.process).filter(|process| telling.told.insert(*process)).collect();
        send(&new, telling.signal);
        if telling.continues {
            send(&new, Kernel::CONT);
        }
        self.telling = Some(telling);
    }

    /// The living processes of the tree that are children of rlock, without guardians: the guardian
    /// of an inner rlock keeps the inner lock until the inner tree is gone.
    fn topmost(&self) -> impl Iterator<Item = Stat> {
        let children = processes::children(self.family.rlock).into_iter().filter_map(|pid| processes::stat(pid).ok());
        children.filter(|child| !child.ended && self.family.has_child(child) && !is_guardian(child.process.pid))
    }

    /// Sends the signal to the command's process alone. In a shared group, a SIGCONT is sent only
    /// if the command needs it.
    pub(crate) fn pass(&mut self, signal: Signal) {
        let Some(pid) = self.pid() else { return };
        if signal == Signal::Cont && self.group == Group::Shared {
            self.continue_stopped(pid);
        } else {
            // A process that cannot be signalled has gained privileges, or is a zombie.
            let _ = kill_process(pid, signal.kernel());
        }
    }

    /// Sends the signal to the command's process unless the command catches it, or /proc does not
    /// tell.
    pub(crate) fn pass_uncaught(&mut self, signal: Signal) {
        let catches = |pid| processes::catches(pid, signal.kernel().as_raw()).unwrap_or(true);
        if self.pid().is_some_and(|pid| !catches(pid)) {
            self.pass(signal);
        }
    }

    /// Continues the command if the command is still in the stop that rlock has seen. Mostly the
    /// process that continued rlock has continued the whole group. A second or late SIGCONT would
    /// then undo a Ctrl-Z that came in between.
    fn continue_stopped(&mut self, pid: Pid) {
        let ask = |what| seen(pid, what).ok().flatten();
        let continued = ask(WaitIdOptions::CONTINUED).is_some();
        let unseen = ask(WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT).and_then(|status| status.stopping_signal());
        let stopped = match unseen.map(Stop::from_number) {
            None => self.stopped,
            // These signals stop rlock too, before it can look at the command.
            Some(Stop::Ttin | Stop::Ttou) => true,
            Some(Stop::Tstp | Stop::Unconditional) => false,
        };
        self.stopped = false;
        if stopped && !continued {
            let _ = kill_process(pid, Kernel::CONT);
            // Consumes the kernel's note of this SIGCONT. The next call would take the note for
            // another process's SIGCONT.
            ask(WaitIdOptions::CONTINUED);
        }
    }

    /// Sends the signal to the remaining processes of the command's process group. If the group is
    /// rlock's, only its members that the command has started receive the signal.
    pub(crate) fn pass_group(&mut self, signal: Signal) {
        let all = processes::all();
        let members = self.family.remember(&all);
        let group = match self.group {
            Group::Own => self.ward.group.map(|group| group.as_raw_nonzero().get()),
            Group::Shared => Some(own_group()),
        };
        let is_in_group = |stat: &&Stat| Some(stat.group) == group && members.contains(&stat.process);
        let found: Vec<Process> = all.iter().filter(is_in_group).map(|stat| stat.process).collect();
        send(&found, signal.kernel());
    }

    /// Sends SIGTERM to the whole tree, and continues what is stopped.
    pub(crate) fn terminate(&mut self) {
        self.send_tree(Kernel::TERM);
        self.thaw();
    }

    /// Stops the whole tree.
    pub(crate) fn freeze(&mut self) {
        self.send_tree(Kernel::STOP);
    }

    pub(crate) fn thaw(&mut self) {
        self.send_tree(Kernel::CONT);
    }

    pub(super) fn send_tree(&mut self, signal: Kernel) {
        let members = self.remember();
        if members.is_empty() {
            // Either /proc shows nothing, or the command is a zombie.
            match (self.pid(), self.group) {
                (Some(_), Group::Own) if processes::all().is_empty() => {
                    let _ = self.ward.group.map(|group| kill_process_group(group, signal));
                }
                (Some(pid), _) => drop(kill_process(pid, signal)),
                (None, _) => {}
            }
        }
        send(&members, signal);
    }
}

pub(super) fn send(processes: &[Process], signal: Kernel) {
    for process in processes {
        // A process that cannot be signalled has gained privileges, or has ended.
        let _ = kill_process(process.pid, signal);
    }
}
