//! Reads /proc: the processes of this pid namespace and the parent of each.
//!
//! rlock reads /proc only when it has to signal processes, never in a run without disturbance.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use rustix::process::{Pid, getpid};

/// The flag of a process that has begun to end, PF_EXITING in include/linux/sched.h.
const EXITING: u64 = 4;

/// Maximum number of times that the parent of a process is read again. A parent that ends meanwhile
/// leaves its children to another process.
const ATTEMPTS: usize = 4;

/// The identity of a process. Another process may get the same id later, but not the same start
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) pid: Pid,
    /// In ticks since the boot.
    pub(super) started: u64,
}

/// The part of /proc/PID/stat that rlock uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) process: Process,
    /// `None` if the parent is in another pid namespace.
    pub(super) parent: Option<Pid>,
    pub(super) group: i32,
    pub(super) session: i32,
    /// Whether the process has begun to end. Such a process has no memory any more, but it may
    /// still have children.
    pub(super) ending: bool,
    /// Whether the process is a zombie.
    pub(super) ended: bool,
}

/// All visible processes. The list is empty if /proc is missing. It is also empty if /proc shows
/// another pid namespace, where the same numbers mean other processes.
pub(super) fn all() -> Vec<Stat> {
    let own = getpid().as_raw_nonzero().to_string();
    if fs::read_link("/proc/self").ok().as_deref() != Some(Path::new(&own)) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let mut all: Vec<Stat> = pids.filter_map(|pid| stat(pid).ok()).collect();
    for _ in 0..ATTEMPTS {
        if !refresh_orphans(&mut all) {
            break;
        }
    }
    all
}

/// Reads each process again whose parent ended after the first read. Returns whether any entry
/// changed.
fn refresh_orphans(all: &mut [Stat]) -> bool {
    let living: std::collections::HashSet<Pid> =
        all.iter().filter(|stat| !stat.ended).map(|stat| stat.process.pid).collect();
    let mut found = false;
    for entry in all.iter_mut().filter(|entry| !entry.ended) {
        if entry.parent.is_some_and(|parent| !living.contains(&parent)) {
            match stat(entry.process.pid) {
                Ok(new) => found |= std::mem::replace(entry, new) != new,
                Err(_) => entry.ended = true,
            }
        }
    }
    found
}

pub(super) fn stat(pid: Pid) -> io::Result<Stat> {
    let text = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    parse(pid, &String::from_utf8_lossy(&text)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Parses /proc/PID/stat, see proc(5): field 3 is the state, 4 the parent, 5 the group, 6 the
/// session, 9 the flags, 22 the start. The name before these fields may contain any characters.
fn parse(pid: Pid, text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(") ")?.1.split_ascii_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let parent = Pid::from_raw(fields.next()?.parse().ok()?);
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let ending = fields.nth(2)?.parse::<u64>().ok()? & EXITING != 0;
    let started = fields.nth(12)?.parse().ok()?;
    Some(Stat { process: Process { pid, started }, parent, group, session, ending, ended })
}

/// The process group of this process. The result is 0, which rustix cannot express, if the group
/// comes from outside the pid namespace.
pub(super) fn own_group() -> i32 {
    // SAFETY: getpgrp touches no memory.
    unsafe { libc::getpgrp() }
}

/// The session of this process. The result is 0 if the session comes from outside the pid
/// namespace.
pub(super) fn own_session() -> i32 {
    // SAFETY: getsid touches no memory.
    unsafe { libc::getsid(0) }
}

/// Whether the initial environment of a process has a variable `RLOCK_…` that names the session.
/// Only root can read the environment of another user's process; an unreadable environment counts
/// as one that does not name the session. The result is `None` for a process that has lost its
/// environment because it has begun to end.
pub(super) fn names_session(process: Process, session: &str) -> Option<bool> {
    let mut environment = Vec::new();
    let read = fs::File::open(format!("/proc/{}/environ", process.pid.as_raw_nonzero()))
        .and_then(|mut file| file.read_to_end(&mut environment));
    if read.is_ok() && !environment.is_empty() {
        return Some(names(&environment, session));
    }
    let lives = stat(process.pid).is_ok_and(|stat| stat.process == process && !stat.ending && !stat.ended);
    lives.then_some(false)
}

fn names(environment: &[u8], session: &str) -> bool {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| {
        let is_ours = variable.starts_with(b"RLOCK_SESSION=") || variable.starts_with(b"RLOCK_ANCESTORS=");
        is_ours && variable.windows(session.len()).any(|window| window == session.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_line_is_parsed_whatever_the_name() {
        let line = "7 (a) S 1 (b)) Z 41 5 6 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0\n";
        let read = parse(getpid(), line).unwrap();
        assert_eq!((read.parent, read.group, read.session), (Pid::from_raw(41), 5, 6));
        assert_eq!((read.process.started, read.ending, read.ended), (12345, false, true));
        assert!(parse(getpid(), &line.replace("4194304", "4194308")).unwrap().ending);
        assert!(parse(getpid(), "7 (a) S").is_none());
        let orphan = parse(getpid(), &line.replace("Z 41", "S 0")).unwrap();
        assert_eq!((orphan.parent, orphan.ended), (None, false));
    }

    #[test]
    fn this_process_is_among_all() {
        let own = stat(getpid()).unwrap();
        assert_eq!((own.parent, own.ended), (rustix::process::getppid(), false));
        assert_eq!(Pid::from_raw(own.group), Some(rustix::process::getpgrp()));
        assert!(all().iter().any(|stat| stat.process == own.process));
    }

    #[test]
    fn session_is_found_in_the_variables_of_rlock_alone() {
        let environment = b"A=ab12\0RLOCK_ANCESTORS=00ff,ab12\0RLOCK_SESSION=cd34\0RLOCK_TOKEN=77\0";
        assert!(names(environment, "ab12") && names(environment, "cd34"));
        assert!(!names(environment, "77") && !names(b"A=ab12\0", "ab12"));
    }
}
