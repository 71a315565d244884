//! Finds what the command has started where it shares rlock's process group: the descendants of rlock in that group.
//!
//! The group itself must not be signalled, for the neighbours of a pipeline and the script that called rlock are in it. Only /proc
//! tells whose child is whose, and it is read when somebody is to be signalled, never in a run that nothing disturbs. Where it is
//! not mounted, or not that of rlock's own pid namespace, nobody is found.

use std::path::Path;
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_child_subreaper, waitid};

/// How often a way up to rlock is begun anew, since a parent on it has ended and left its children to another.
const ATTEMPTS: usize = 4;
/// How often it is looked for what was started while the rest was killed: who has SIGKILL to come starts nothing any more.
const ROUNDS: usize = 100;

/// Tells the descendants of the command from all others.
#[derive(Debug)]
pub(super) struct Descendants {
    /// What this process had started before it became rlock: `exec > >(tee log); exec rlock …`.
    strangers: Vec<Process>,
}

/// A process, and not another that has its id later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    /// In ticks since the start of the machine.
    started: u64,
}

/// What /proc/PID/stat says, as far as it is of use here.
#[derive(Clone, Copy)]
struct Stat {
    process: Process,
    /// `None` where the parent is in another pid namespace.
    parent: Option<Pid>,
    ended: bool,
}

impl Descendants {
    /// To be called before the command is started: what it orphans comes to rlock from here on, and is found.
    pub(super) fn expect() -> Self {
        // A kernel that refuses leaves the orphans to others; the rest is found all the same.
        let _ = set_child_subreaper(Some(getpid()));
        let mut nobody = Self { strangers: Vec::new() };
        let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Mostly there is no child at all, and to ask for one is cheaper than to read /proc.
        if !matches!(waitid(WaitId::All, any), Err(Errno::CHILD)) {
            nobody.strangers = nobody.find();
        }
        nobody
    }

    /// Has `command`, unless it was reaped, and all others signalled at a stroke, parents before their children.
    pub(super) fn signal(&self, command: Option<Pid>, signal: Signal) {
        let found = self.find();
        let rest = found.iter().map(|process| process.pid).filter(|pid| Some(*pid) != command);
        for pid in command.into_iter().chain(rest) {
            // What can't be signalled has gained rights of its own, or has ended: there is nobody to tell.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills `command`, unless it was reaped, and all others, with what they start meanwhile.
    pub(super) fn kill(&self, command: Option<Pid>) {
        if let Some(command) = command {
            let _ = kill_process(command, Signal::KILL);
        }
        let mut killed = Vec::new();
        for _ in 0..ROUNDS {
            let mut new = self.find();
            new.retain(|process| !killed.contains(process));
            if new.is_empty() {
                return;
            }
            for process in &new {
                let _ = kill_process(process.pid, Signal::KILL);
            }
            killed.append(&mut new);
        }
    }

    /// The descendants that have not ended, parents before their children.
    fn find(&self) -> Vec<Process> {
        let (this, group) = (getpid(), group(0));
        let own = this.as_raw_nonzero().to_string();
        // In the /proc of another namespace the numbers mean others.
        if fs::read_link("/proc/self").ok().as_deref() != Some(Path::new(&own)) {
            return Vec::new();
        }
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        // The group is asked for first: that is quick, and few are in it.
        let members = pids.filter(|pid| *pid != this && self::group(pid.as_raw_nonzero().get()) == group);
        let mut found: Vec<_> =
            members.filter_map(|pid| (0..ATTEMPTS).find_map(|_| self.climb(pid, this).ok())?).collect();
        found.sort_by_key(|(depth, _)| *depth);
        found.into_iter().map(|(_, process)| process).collect()
    }

    /// Goes up from a process to rlock; gives how far it is, or nothing if rlock is not on the way or the process has ended.
    fn climb(&self, pid: Pid, this: Pid) -> io::Result<Option<(usize, Process)>> {
        let first = stat(pid)?;
        let (mut at, mut depth) = (first, 1);
        if first.ended {
            return Ok(None);
        }
        while !self.strangers.contains(&at.process) {
            match at.parent {
                Some(parent) if parent == this => return Ok(Some((depth, first.process))),
                Some(parent) if !parent.is_init() => at = stat(parent)?,
                _ => break,
            }
            depth += 1;
        }
        Ok(None)
    }
}

/// The group of a process, of this one if it is 0. rustix can't be asked: it takes 0 for impossible, which is that of a kernel thread, and
/// of a group from outside of the pid namespace.
pub(super) fn group(pid: libc::pid_t) -> libc::pid_t {
    // SAFETY: it touches no memory.
    unsafe { libc::getpgid(pid) }
}

fn stat(pid: Pid) -> io::Result<Stat> {
    let text = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    parse(pid, &String::from_utf8_lossy(&text)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// See proc(5): field 3 is the state, 4 the parent, 22 the start. The name before them may have any characters in it.
fn parse(pid: Pid, text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let ended = matches!(fields.next()?, "Z" | "X");
    let parent = Pid::from_raw(fields.next()?.parse().ok()?);
    let started = fields.nth(17)?.trim().parse().ok()?;
    Some(Stat { process: Process { pid, started }, parent, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name() {
        let line = "7 (a) S 1 (b)) Z 41 5 5 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0\n";
        let read = parse(getpid(), line).unwrap();
        assert_eq!((read.parent, read.process.started, read.ended), (Pid::from_raw(41), 12345, true));
        assert!(parse(getpid(), "7 (a) S").is_none());
        let orphan = parse(getpid(), &line.replace("Z 41", "S 0")).unwrap();
        assert_eq!((orphan.parent, orphan.ended), (None, false));
    }

    #[test]
    fn this_process_reads_its_own() {
        let read = stat(getpid()).unwrap();
        assert_eq!((read.parent, read.ended), (rustix::process::getppid(), false));
    }
}
