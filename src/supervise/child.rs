//! Starts the command and its guardian, sends signals to the command's processes, sees their stops
//! and ends, and reaps them.
//!
//! This module makes no decisions. It guarantees that the command's process tree dies when rlock
//! does, and that no process id is used after its process was reaped.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal as Kernel, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpid, getppid, kill_process,
    kill_process_group, set_child_subreaper, set_parent_process_death_signal, setpgid, waitid, waitpid,
};

use super::event::{Ended, Event, Group, Signal, Stop};
use super::guardian::{self, Ward};
use super::hint;
use super::killing;
use super::signals::Signals;
use super::spare::SpareIds;
use super::spawn::spawn;
use super::tree::Family;
use crate::show::failure::Failure;
use crate::show::messages;
use crate::system::exit;
use crate::system::processes::{self, Process, Stat, own_group, own_session};
use crate::words::reason;

/// Maximum number of searches for processes that were started while the others were stopped.
const ROUNDS: usize = 100;
/// Maximum wait for the end of killed processes. A process that hangs in the kernel may never end.
const KILLED_LIMIT: Duration = Duration::from_millis(100);
/// Maximum time for a tree that starts processes as fast as rlock kills them.
const CHASE_LIMIT: Duration = Duration::from_secs(5);
/// Number of guardians that may die before rlock goes on without a guardian.
const GUARDIANS_MAX: u32 = 8;

/// The command to run, without a shell.
#[derive(Clone, Debug)]
pub(crate) struct CommandSpec {
    /// The program and its arguments. The program is looked up in PATH unless it has a slash.
    pub(crate) argv: Vec<OsString>,
    /// The session id in the environment of the command, by which rlock recognises the command's
    /// processes.
    pub(crate) session: String,
}

#[derive(Debug)]
pub(crate) struct Child {
    group: Group,
    /// The descriptors that the guardian keeps open.
    kept: Vec<OwnedFd>,
    ward: Ward,
    /// Number of guardians that may still die before rlock goes on without one.
    guardians_left: u32,
    family: Family,
    /// Whether [`Child::look`] has seen a stop after which rlock has not continued the command.
    stopped: bool,
    awaits_rest: bool,
    /// The shell of the spare work, which this type does not reap.
    spare: Option<Pid>,
}

impl Child {
    /// Starts the command with `environment` on top of rlock's own variables, if the kernel opens
    /// the program within `limit`. The descriptors in `kept` stay open until the command's tree is
    /// gone, even if rlock is killed.
    ///
    /// Before that, `warn` gets a line if the kernel keeps rlock from finding the tree.
    ///
    /// # Errors
    /// The command cannot be executed. The failure has the exit code 126 or 127, as in the shells.
    /// Nothing is left running then.
    pub(crate) fn start(
        command: &CommandSpec,
        environment: &[(OsString, OsString)],
        group: Group,
        signals: &Signals,
        kept: &[BorrowedFd<'_>],
        limit: Duration,
        warn: impl FnOnce(&str),
    ) -> Result<Self, Failure> {
        let session = command.session.clone();
        let ward = Ward { rlock: getpid(), session, outer: own_group(), group: None, is_first: true };
        let started = || -> io::Result<Self> {
            let owned = kept.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
            let mut family = expect_orphans(warn);
            let _blocked = signals.hold_back()?;
            let guardian = guardian::start(&ward, kept)?;
            let leader = (group == Group::Own).then_some(guardian);
            let pid = match spawn(&command.argv, environment, &prepare(signals, leader), limit) {
                Ok(pid) => pid,
                Err(error) => {
                    guardian::end(guardian)?;
                    return Err(error);
                }
            };
            (family.guardian, family.command) = (Some(guardian), Some(pid));
            Ok(Self {
                group,
                kept: owned,
                ward: Ward { group: leader, is_first: false, ..ward.clone() },
                guardians_left: GUARDIANS_MAX,
                family,
                stopped: false,
                awaits_rest: false,
                spare: None,
            })
        };
        let program = command.argv.first().map_or(OsStr::new(""), OsString::as_os_str);
        started().map_err(|error| start_error(program, &error, limit))
    }

    /// The command's process id, until the command is reaped.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.family.command
    }

    /// Checks the state of the command without waiting. The caller must call it after each SIGCHLD.
    ///
    /// The function also reaps the processes that rlock inherited, and replaces a guardian that has
    /// died.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn look(&mut self, signals: &Signals) -> io::Result<Option<Event>> {
        if let Some(pid) = self.pid() {
            // The command is not reaped here: while it is a zombie, its ids are reserved, so a
            // signal to its group cannot reach other processes. Both are asked at once: the kernel
            // answers ECHILD to a question about stops alone if the command has just ended.
            let change = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
            match seen(pid, change)? {
                Some(status) if status.stopping_signal().is_some() => {
                    // Consumes the stop. If the command has gone on meanwhile, another SIGCHLD
                    // comes.
                    let stop = seen(pid, WaitIdOptions::STOPPED).ok().flatten();
                    if let Some(number) = stop.and_then(|status| status.stopping_signal()) {
                        self.stopped = true;
                        return Ok(Some(Event::CommandStopped(Stop::from_number(number))));
                    }
                }
                Some(status) => return Ok(Some(Event::Ended(ended(&status)))),
                None => {}
            }
        }
        self.reap_others(signals)?;
        let over = self.awaits_rest && self.members().is_empty() && self.has_no_child();
        Ok(over.then_some(Event::RestEnded))
    }

    /// Whether no child of rlock is of the tree. While a process of the tree lives, one is a child
    /// of rlock, even if it starts another one and ends before any snapshot shows it.
    fn has_no_child(&self) -> bool {
        loop {
            let mut has_reaped = false;
            for pid in processes::children(self.family.rlock).into_iter().rev() {
                match processes::stat(pid) {
                    Ok(child) if !self.family.has_child(&child) => {}
                    Ok(child) if !child.ended => return false,
                    _ => has_reaped |= self.reap_orphan(pid),
                }
            }
            if !has_reaped {
                return true;
            }
        }
    }

    /// Leaves the processes of the spare work alone.
    pub(crate) fn set_apart(&mut self, spare: SpareIds) {
        self.spare = Some(spare.shell);
        self.family.foreign_group = Some(spare.group);
    }

    /// Forgets the reaped shell of the spare work. Another child may get its number.
    pub(crate) fn forget_spare(&mut self) {
        self.spare = None;
    }

    /// Reaps all ended children except the command and the spare work, and replaces a guardian that
    /// has died.
    fn reap_others(&mut self, signals: &Signals) -> io::Result<()> {
        while let Some(ended) = next_ended()? {
            if Some(ended) == self.pid() || Some(ended) == self.spare {
                // The process has ended just now. The command's SIGCHLD, or the end of the spare
                // work, brings another look.
                return Ok(());
            }
            waitpid(Some(ended), WaitOptions::empty())?;
            if Some(ended) == self.family.guardian {
                self.family.guardian = None;
                if self.guardians_left > 0 && self.pid().is_some() {
                    self.guardians_left -= 1;
                    let _blocked = signals.hold_back()?;
                    let kept: Vec<_> = self.kept.iter().map(AsFd::as_fd).collect();
                    // If the system has no memory or processes left, the command goes on unguarded,
                    // as it does after too many guardians have died.
                    self.family.guardian = guardian::start(&self.ward, &kept).ok();
                }
            }
        }
        Ok(())
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
        let members = self.family.members(&all);
        let group = match self.group {
            Group::Own => self.ward.group.map(|group| group.as_raw_nonzero().get()),
            Group::Shared => Some(own_group()),
        };
        let is_in_group = |stat: &&Stat| Some(stat.group) == group && members.contains(&stat.process);
        let found: Vec<Process> = all.iter().filter(is_in_group).map(|stat| stat.process).collect();
        self.send(&found, signal.kernel());
    }

    /// Sends SIGTERM to the whole tree.
    pub(crate) fn terminate(&mut self) {
        self.send_tree(Kernel::TERM);
    }

    /// Stops the whole tree.
    pub(crate) fn freeze(&mut self) {
        self.send_tree(Kernel::STOP);
    }

    pub(crate) fn thaw(&mut self) {
        self.send_tree(Kernel::CONT);
    }

    /// Kills the whole tree, including processes that are started meanwhile, and waits briefly
    /// until they have ended.
    pub(crate) fn kill(&mut self) {
        let limit = Instant::now() + KILLED_LIMIT;
        let (all, stopped) = self.stop_all();
        if stopped.is_empty() {
            self.send_tree(Kernel::KILL);
        }
        killing::kill_in_order(&all, &stopped, Some(limit));
        self.kill_chain();
    }

    /// Kills what has escaped [`stop_all`](Self::stop_all): a process that starts another one and
    /// ends is found by no snapshot. But rlock is the parent of all orphans, so as long as a
    /// process of the tree lives, one is a child of rlock.
    fn kill_chain(&mut self) {
        let begun = Instant::now();
        let mut killed: Vec<Process> = Vec::new();
        // Children that need no other look: killed ones, and those that are not of the tree.
        let mut known: HashSet<Pid> = HashSet::new();
        while begun.elapsed() < CHASE_LIMIT {
            // One call kills the whole group. The guardian, which is in the group, is not needed
            // any more.
            if let Some(group) = self.ward.group {
                let _ = kill_process_group(group, Kernel::KILL);
            }
            let mut has_new = false;
            // The youngest is the one that may start another one at any moment.
            for pid in processes::children(self.family.rlock).into_iter().rev() {
                if known.contains(&pid) {
                    continue;
                }
                match processes::stat(pid) {
                    Ok(child) if !self.family.has_child(&child) => {
                        known.insert(pid);
                    }
                    Ok(child) if !child.ended => {
                        self.send(&[child.process], Kernel::KILL);
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

    /// Reaps an ended child that nothing else reaps. Returns whether it is reaped.
    fn reap_orphan(&self, child: Pid) -> bool {
        let is_other = ![self.pid(), self.spare, self.family.guardian].contains(&Some(child));
        is_other && waitpid(Some(child), WaitOptions::NOHANG).is_ok_and(|reaped| reaped.is_some())
    }

    /// Stops the tree, so that none of its processes starts another process. Returns the last
    /// snapshot and the processes of the tree, parents before their children.
    fn stop_all(&mut self) -> (Vec<Stat>, Vec<Process>) {
        let (mut all, mut stopped): (_, Vec<Process>) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            all = processes::all();
            let mut new = self.family.members(&all);
            new.retain(|process| !stopped.contains(process));
            if new.is_empty() {
                break;
            }
            // A guardian starts no process of the tree, and would stay stopped if rlock were
            // killed.
            let others: Vec<_> = new.iter().copied().filter(|it| !guardian::is_guardian(it.pid)).collect();
            self.send(&others, Kernel::STOP);
            stopped.append(&mut new);
        }
        (all, stopped)
    }

    /// From here on, [`look`](Self::look) reports when no process of the tree is left.
    pub(crate) fn await_rest(&mut self) {
        self.awaits_rest = true;
    }

    /// Replaces the guardian by one that keeps no descriptor: the lock is about to be given back,
    /// and the command goes on.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn guard_without_lock(&mut self, signals: &Signals) -> io::Result<()> {
        let _blocked = signals.hold_back()?;
        self.kept.clear();
        let former = self.family.guardian.take();
        self.family.guardian = guardian::start(&self.ward, &[]).ok();
        former.map_or(Ok(()), guardian::end)
    }

    /// Tells the guardian to end, because no process needs a guardian any more. No other guardian
    /// follows, so the descriptors for it are closed. Otherwise the release would not show: rlock
    /// may have spare work left.
    pub(crate) fn dismiss_guardian(&mut self) {
        self.guardians_left = 0;
        self.kept.clear();
        self.family.guardian = self.family.guardian.filter(|guardian| guardian::dismiss(*guardian));
    }

    /// Waits for the end of the dismissed guardian. If process 1 reaps nothing, as in many
    /// containers, the guardian would stay a zombie for ever.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn reap_guardian(&mut self) -> io::Result<()> {
        if let Some(pid) = self.family.guardian.take() {
            waitpid(Some(pid), WaitOptions::empty())?;
        }
        Ok(())
    }

    /// The living processes of the tree.
    fn members(&mut self) -> Vec<Process> {
        self.family.members(&processes::all())
    }

    fn send_tree(&mut self, signal: Kernel) {
        let members = self.members();
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
        self.send(&members, signal);
    }

    fn send(&self, processes: &[Process], signal: Kernel) {
        for process in processes {
            // A process that cannot be signalled has gained privileges, or has ended.
            let _ = kill_process(process.pid, signal);
        }
    }

    /// Reaps the ended command.
    ///
    /// # Errors
    /// An error of the kernel; none is expected.
    pub(crate) fn reap(&mut self) -> io::Result<()> {
        if let Some(pid) = self.family.command.take() {
            waitpid(Some(pid), WaitOptions::empty())?;
        }
        Ok(())
    }
}

/// Prepares the command between clone and exec. The command dies with rlock, joins the group that
/// the guardian leads, if any, and gets back the signal state that rlock was started with.
pub(super) fn prepare(signals: &Signals, leader: Option<Pid>) -> impl Fn() -> io::Result<()> {
    let undo = signals.undo_in_child();
    let rlock = getpid();
    move || {
        if leader.is_some() {
            setpgid(None, leader)?;
        }
        set_parent_process_death_signal(Some(Kernel::KILL))?;
        // If rlock ended before the line above, the kernel sends no signal any more.
        if getppid() != Some(rlock) {
            signal_hook::low_level::exit(i32::from(exit::FAILURE));
        }
        undo()
    }
}

/// Makes rlock the parent of all processes that the command orphans, and records the children that
/// rlock has already. `warn` gets a line if a part of the tree will not be found.
fn expect_orphans(warn: impl FnOnce(&str)) -> Family {
    // Without /proc there is only the group to kill. If the kernel refuses to be asked for them,
    // the orphans go to another process.
    if !processes::are_visible() {
        warn(messages::NO_PROCESSES);
    } else if let Err(error) = set_child_subreaper(Some(getpid())) {
        warn(&messages::no_orphans(&error));
    }
    let mut family = Family {
        rlock: getpid(),
        guardian: None,
        command: None,
        strangers: Vec::new(),
        foreign_group: None,
        sessions: [own_session()].into(),
    };
    let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // Mostly rlock has no child yet, and waitid(2) is cheaper than reading /proc.
    if !matches!(waitid(WaitId::All, any), Err(Errno::CHILD)) {
        let all = processes::all();
        let children = all.iter().filter(|stat| stat.parent == Some(family.rlock));
        family.strangers = children.map(|stat| stat.process).collect();
    }
    family
}

/// The status of a child, if the child has made one of the changes in `what`.
fn seen(pid: Pid, what: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
    Ok(waitid(WaitId::Pid(pid), what | WaitIdOptions::NOHANG)?)
}

/// A child that has ended and is not reaped. rustix does not report the child's id.
fn next_ended() -> io::Result<Option<Pid>> {
    // The kernel hands orphans to the main thread, which this thread is. In the unit tests, other
    // threads have children of their own.
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD;
    // SAFETY: all zeros are a valid, empty siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` has room for the data that the kernel writes.
    if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(None) } else { Err(error) };
    }
    // SAFETY: waitid filled in the fields for a child, or left the zeros.
    Ok(Pid::from_raw(unsafe { info.si_pid() }))
}

/// As process 1, reaps the processes that rlock inherited while it has no command, but not the
/// spare work. In any other process the function does nothing.
pub(crate) fn reap_inherited(spare: Option<SpareIds>) {
    let shell = spare.map(|spare| spare.shell);
    while getpid().is_init()
        && let Ok(Some(ended)) = next_ended()
        && Some(ended) != shell
    {
        let _ = waitpid(Some(ended), WaitOptions::empty());
    }
}

pub(super) fn ended(status: &WaitIdStatus) -> Ended {
    match status.terminating_signal() {
        Some(number) => Ended::Signal(number),
        // The kernel keeps eight bits of an exit code.
        None => {
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            Ended::Code(code.unwrap_or(exit::FAILURE))
        }
    }
}

/// The error for a program that cannot be run, with the exit code that a shell would give.
pub(super) fn start_error(program: &OsStr, error: &io::Error, limit: Duration) -> Failure {
    let name = program.display();
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound if find(program) => (exit::NOT_FOUND, "its interpreter was not found".to_owned()),
        io::ErrorKind::NotFound => (exit::NOT_FOUND, "not found".to_owned()),
        // EACCES during the PATH search counts as not found: a directory that this user may not
        // enter holds no program that the user could have meant.
        io::ErrorKind::PermissionDenied if !program.as_encoded_bytes().contains(&b'/') && !find(program) => {
            (exit::NOT_FOUND, "not found".to_owned())
        }
        io::ErrorKind::TimedOut => (
            exit::NOT_EXECUTABLE,
            format!("it could not be opened within {:.1} s; see whether its file system answers", limit.as_secs_f64()),
        ),
        _ => (exit::NOT_EXECUTABLE, reason(error)),
    };
    let is_function = || std::env::var_os(hint::function_variable(program)).is_some();
    let hint = (code == exit::NOT_FOUND).then(|| hint::hint(program, is_function())).flatten();
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    Failure::new(code, format!("cannot run '{name}': {why}{hint}"))
}

/// Whether the kernel's search would find a file of this name.
fn find(program: &OsStr) -> bool {
    if program.is_empty() {
        return false;
    }
    if program.as_encoded_bytes().contains(&b'/') {
        return Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests;
