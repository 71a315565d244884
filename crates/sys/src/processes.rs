//! Reads /proc: the processes of this pid namespace and the parent of each.
//!
//! rlock reads /proc only when a process was killed, when rlock has to signal processes, and when
//! it looks for the rlocks above it. An undisturbed run that is not nested never reads it.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::fs::{Dir, DirEntry, Mode, OFlags, open};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// The flag of a process that has begun to end, PF_EXITING in include/linux/sched.h.
const EXITING: u64 = 4;

/// Maximum number of times that the parent of a process is read again. A parent that ends meanwhile
/// leaves its children to another process.
const ATTEMPTS: usize = 4;

/// How often, and with which pause, the environment of a process is read that has none because it
/// executes a program.
const EXEC_LOOKS: u32 = 50;
const EXEC_PAUSE: Duration = Duration::from_micros(200);

/// More than the length of the line in /proc/PID/stat, which one read takes as a whole. When many
/// trees end at once, each guardian reads the lines of all processes.
const LINE_MAX: usize = 1024;

/// The identity of a process. Another process may get the same id later, but not the same start
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// The process id in this pid namespace.
    pub pid: Pid,
    /// In ticks since the boot.
    pub started: u64,
}

/// The part of /proc/PID/stat that rlock uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Which process this is.
    pub process: Process,
    /// `None` if the parent is in another pid namespace.
    pub parent: Option<Pid>,
    /// The id of the process group; 0 for a group of another pid namespace.
    pub group: i32,
    /// The id of the session; 0 for a session of another pid namespace.
    pub session: i32,
    /// Whether a signal or a tracer has stopped the process.
    pub stopped: bool,
    /// Whether the process has begun to end. Such a process has no memory any more, but it may
    /// still have children.
    pub ending: bool,
    /// Whether the first thread has begun to end, and others go on.
    pub leaderless: bool,
    /// Whether the process is a zombie.
    pub ended: bool,
}

/// The processes that [`Snapshot::update`] has seen.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The processes in the order in which the updates saw them.
    pub all: Vec<Stat>,
    /// The folders of these processes in /proc, by name and inode: the folder of a later process
    /// with the same id has another inode.
    folders: HashSet<(Pid, u64)>,
}

/// All visible processes, see [`Snapshot::update`].
pub fn all() -> Vec<Stat> {
    let mut snapshot = Snapshot::default();
    snapshot.update();
    snapshot.all
}

impl Snapshot {
    /// Adds the visible processes that have started since the last update. Nothing is added if
    /// /proc is missing. The same is true if /proc shows another pid namespace, where the same
    /// numbers mean other processes.
    pub fn update(&mut self) {
        if !are_visible() {
            return;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open("/proc", flags, Mode::empty());
        // The folder of the standard library ends this process if its close fails.
        let Ok(entries) = folder.and_then(Dir::new) else { return };
        let pid = |entry: &DirEntry| Pid::from_raw(entry.file_name().to_str().ok()?.parse().ok()?);
        let folders = entries.flatten().filter_map(|entry| Some((pid(&entry)?, entry.ino())));
        let first = self.all.len();
        for folder in folders.filter(|folder| !self.folders.contains(folder)).collect::<Vec<_>>() {
            // A process that cannot be read now is read by the next update.
            if let Ok(stat) = stat(folder.0) {
                self.folders.insert(folder);
                self.all.push(stat);
            }
        }
        for _ in 0..ATTEMPTS {
            if !self.refresh_orphans(first) {
                break;
            }
        }
    }

    /// Reads each process from this index on again whose parent ended after the first read. Returns
    /// whether any entry changed.
    fn refresh_orphans(&mut self, first: usize) -> bool {
        let living: HashSet<Pid> = self.all.iter().filter(|stat| !stat.ended).map(|stat| stat.process.pid).collect();
        let mut found = false;
        for entry in self.all[first..].iter_mut().filter(|entry| !entry.ended) {
            if entry.parent.is_some_and(|parent| !living.contains(&parent)) {
                match stat(entry.process.pid) {
                    Ok(new) => found |= std::mem::replace(entry, new) != new,
                    Err(_) => (entry.ended, found) = (true, true),
                }
            }
        }
        found
    }
}

/// Whether /proc shows the processes of this pid namespace.
pub fn are_visible() -> bool {
    let own = getpid().as_raw_nonzero().to_string();
    fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&own))
}

/// Reads one process.
///
/// # Errors
/// The kernel's if there is no such process.
pub fn stat(pid: Pid) -> io::Result<Stat> {
    let mut line = [0; LINE_MAX];
    let read = fs::File::open(format!("/proc/{}/stat", pid.as_raw_nonzero()))?.read(&mut line)?;
    parse(pid, &line[..read]).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The real user of a process, if there is such a process.
pub fn user(pid: Pid) -> Option<u32> {
    status(pid, "Uid:")?.parse().ok()
}

/// The state of a process as ps(1) shows it, such as `D`, if there is such a process.
pub fn state(pid: Pid) -> Option<String> {
    status(pid, "State:")
}

/// The first word of a line in /proc/PID/status, see proc(5).
fn status(pid: Pid, name: &str) -> Option<String> {
    // The name of a program may be no UTF-8.
    let text = fs::read(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
    Some(str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.to_owned())
}

/// When this process started, in ticks since the boot.
pub fn own_start() -> Option<u64> {
    static KNOWN: OnceLock<Process> = OnceLock::new();
    let pid = getpid();
    // A forked process has what its parent knows.
    if let Some(known) = KNOWN.get().filter(|known| known.pid == pid) {
        return Some(known.started);
    }
    let mut line = [0; LINE_MAX];
    let read = fs::File::open("/proc/self/stat").and_then(|mut file| file.read(&mut line)).ok()?;
    let own = parse(pid, &line[..read])?.process;
    // Only a forked process finds a value here.
    let _ = KNOWN.set(own);
    Some(own.started)
}

/// The children of a process that has only one thread with children, zombies included, in the order
/// in which the process got them.
///
/// While no child is reaped, the list misses none: the kernel appends each new child. If the kernel
/// has no such lists, the children come from a snapshot.
pub fn children(parent: Pid) -> Vec<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", parent.as_raw_nonzero());
    match fs::read_to_string(path) {
        Ok(list) => list.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect(),
        Err(_) => all().iter().filter(|stat| stat.parent == Some(parent)).map(|stat| stat.process.pid).collect(),
    }
}

/// The number of the last process or thread that has begun in this pid namespace, see proc(5) on
/// /proc/loadavg. Numbers rise one by one until they begin anew.
pub fn last_number() -> Option<i32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// The name of a process for ps(1), and its command line. Both are empty if there is no such
/// process.
pub fn names(pid: Pid) -> (Vec<u8>, Vec<u8>) {
    (name(pid), words(pid))
}

/// The command line of a process, a null byte behind each word; empty if there is no such process.
pub fn words(pid: Pid) -> Vec<u8> {
    fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default()
}

/// The name of a process for ps(1), empty if there is no such process.
pub fn name(pid: Pid) -> Vec<u8> {
    let read = fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
    read.trim_ascii_end().to_vec()
}

/// Whether a process has a handler for the signal of this number; `None` if there is no such
/// process.
pub fn catches(pid: Pid, signal: i32) -> Option<bool> {
    has_signal(pid, "SigCgt:", signal)
}

/// Whether a process ignores the signal of this number; `None` if there is no such process.
pub fn ignores(pid: Pid, signal: i32) -> Option<bool> {
    has_signal(pid, "SigIgn:", signal)
}

/// Whether a mask in /proc/PID/status has the signal of this number.
fn has_signal(pid: Pid, mask: &str, signal: i32) -> Option<bool> {
    let mask = u64::from_str_radix(&status(pid, mask)?, 16).ok()?;
    Some(mask & 1 << (signal - 1) != 0)
}

/// Parses /proc/PID/stat, see proc(5): field 3 is the state, 4 the parent, 5 the group, 6 the
/// session, 9 the flags, 20 the number of threads, 22 the start. The name before these fields may
/// contain any characters. State and flags are those of the first thread.
fn parse(pid: Pid, text: &[u8]) -> Option<Stat> {
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = str::from_utf8(&text[name_end + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let (stopped, is_zombie) = (matches!(state, "T" | "t"), matches!(state, "Z" | "X"));
    let parent = Pid::from_raw(fields.next()?.parse().ok()?);
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let is_exiting = fields.nth(2)?.parse::<u64>().ok()? & EXITING != 0;
    let is_alone = fields.nth(10)?.parse::<u64>().ok()? <= 1;
    let started = fields.nth(1)?.parse().ok()?;
    let (ending, leaderless, ended) = (is_exiting && is_alone, is_exiting && !is_alone, is_zombie && is_alone);
    Some(Stat { process: Process { pid, started }, parent, group, session, stopped, ending, leaderless, ended })
}

/// The addresses of this process's command line, which others read.
pub fn own_command_line() -> Option<Range<usize>> {
    let text = fs::read("/proc/self/stat").ok()?;
    let (start, end) = (field(&text, 48)?, field(&text, 49)?);
    (start != 0).then_some(start..end)
}

/// The process group of this process. The result is 0, which rustix cannot express, if the group
/// comes from outside the pid namespace.
pub fn own_group() -> i32 {
    // SAFETY: getpgrp touches no memory.
    unsafe { libc::getpgrp() }
}

/// The session of this process. The result is 0 if the session comes from outside the pid
/// namespace.
pub fn own_session() -> i32 {
    // SAFETY: getsid touches no memory.
    unsafe { libc::getsid(0) }
}

/// The session of another process, with the same meaning of 0, if there is such a process.
pub fn session(pid: Pid) -> Option<i32> {
    // SAFETY: getsid touches no memory.
    Some(unsafe { libc::getsid(pid.as_raw_nonzero().get()) }).filter(|session| *session >= 0)
}

/// Whether the initial environment of a process says that the process belongs to the command or
/// to the spare work of the session.
/// Only root can read the environment of another user's process; an unreadable environment counts
/// as one that does not name the session. The result is `None` for a process that has lost its
/// environment because it has begun to end, or whose exec takes too long to give it one.
pub fn names_session(process: Process, session: &str) -> Option<bool> {
    let folder = PathBuf::from(format!("/proc/{}", process.pid.as_raw_nonzero()));
    for _ in 0..EXEC_LOOKS {
        let mut read = fs::read(folder.join("environ")).ok();
        if read.as_ref().is_none_or(Vec::is_empty) {
            // The kernel shows no environment where the first thread has ended, but one of the
            // others shows the same.
            let threads = fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
            let mut others = threads.filter_map(|thread| fs::read(thread.path().join("environ")).ok());
            read = others.find(|read| !read.is_empty()).or(read);
        }
        if let Some(environment) = read.as_ref().filter(|read| !read.is_empty()) {
            return Some(names_session_in(environment, session));
        }
        let text = fs::read(folder.join("stat")).ok()?;
        let stat = parse(process.pid, &text).filter(|stat| stat.process == process)?;
        if stat.ending || stat.leaderless || stat.ended {
            return None;
        }
        if read.is_none() || has_no_variables(&text) {
            return Some(false);
        }
        thread::sleep(EXEC_PAUSE);
    }
    None
}

/// A process below an rlock, and the environment that it was started with.
#[derive(Debug)]
pub struct Nested {
    process: Process,
    environment: Vec<u8>,
}

/// The processes below any rlock whose environment this process may read, with this process if it
/// is one.
pub fn nested() -> Vec<Nested> {
    let read = |pid: Pid| fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).ok();
    let living = all().into_iter().filter(|stat| !stat.ended).map(|stat| stat.process);
    let all = living.filter_map(|process| Some(Nested { process, environment: read(process.pid)? }));
    all.filter(|process| names_session_in(&process.environment, "")).collect()
}

impl Nested {
    /// Whether this is the calling process.
    pub fn is_this(&self) -> bool {
        self.process.pid == getpid()
    }

    /// Whether the process belongs to the command or to the spare work of the session.
    pub fn is_of(&self, session: &str) -> bool {
        names_session_in(&self.environment, session)
    }

    /// Kills the process. Returns what tells when it has ended, or `None` if it may not be killed
    /// or has ended already.
    pub fn kill(&self) -> Option<OwnedFd> {
        let pidfd = pidfd_open(self.process.pid, PidfdFlags::empty()).ok()?;
        // Another process may have got the number since.
        stat(self.process.pid).ok().filter(|stat| stat.process == self.process)?;
        pidfd_send_signal(&pidfd, Signal::KILL).ok()?;
        Some(pidfd)
    }
}

/// Whether a process has no memory, or a program without variables. Until an exec has given it its
/// variables, they have no end.
fn has_no_variables(stat: &[u8]) -> bool {
    field(stat, 23) == Some(0) || field(stat, 51) > Some(0) && field(stat, 50) == field(stat, 51)
}

/// A number from /proc/PID/stat, see proc(5): field 23 is the size of the memory, 48 to 51 are the
/// starts and ends of the words and of the variables.
fn field(stat: &[u8], number: usize) -> Option<usize> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(number - 3)?.parse().ok()
}

/// Whether the variables of rlock in an environment name the session, or any session for an empty
/// text.
fn names_session_in(environment: &[u8], session: &str) -> bool {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| {
        const OURS: [&[u8]; 3] = [b"RLOCK_SESSION=", b"RLOCK_ANCESTORS=", b"RLOCK_SPARE="];
        let is_ours = OURS.iter().any(|name| variable.starts_with(name));
        is_ours && (session.is_empty() || variable.windows(session.len()).any(|window| window == session.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_start_is_that_in_proc_each_time() {
        let start = Some(stat(getpid()).unwrap().process.started);
        assert_eq!([own_start(), own_start()], [start; 2]);
    }

    #[test]
    fn stat_line_with_any_process_name_is_parsed() {
        let line = "7 (a\u{fc} S 1 (b)) Z 41 5 6 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0\n";
        let read = parse(getpid(), line.as_bytes()).unwrap();
        assert_eq!((read.parent, read.group, read.session), (Pid::from_raw(41), 5, 6));
        assert_eq!((read.process.started, read.ending, read.ended), (12345, false, true));
        assert!(parse(getpid(), line.replace("4194304", "4194308").as_bytes()).unwrap().ending);
        assert!(parse(getpid(), b"7 (a) S").is_none());
        let threads = line.replace("20 0 1 0", "20 0 2 0");
        let leaderless = parse(getpid(), threads.replace("4194304", "4194308").as_bytes()).unwrap();
        assert_eq!((leaderless.ending, leaderless.leaderless, leaderless.ended), (false, true, false));
        let orphan = parse(getpid(), line.replace("Z 41", "S 0").as_bytes()).unwrap();
        assert_eq!((orphan.parent, orphan.stopped, orphan.ended), (None, false, false));
        assert!(parse(getpid(), line.replace("Z 41", "T 41").as_bytes()).unwrap().stopped);
    }

    #[test]
    fn snapshot_has_this_process_and_an_update_adds_a_new_child() {
        let own = stat(getpid()).unwrap();
        assert_eq!((own.parent, own.ended), (rustix::process::getppid(), false));
        assert_eq!(user(getpid()), Some(rustix::process::getuid().as_raw()));
        assert_eq!(Pid::from_raw(own.group), Some(rustix::process::getpgrp()));
        let mut snapshot = Snapshot::default();
        snapshot.update();
        assert!(snapshot.all.iter().any(|stat| stat.process == own.process));
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let before = snapshot.all.len();
        snapshot.update();
        let mut new = snapshot.all[before..].iter().map(|stat| stat.process.pid);
        assert!(new.any(|pid| pid == Pid::from_child(&child)));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn session_is_found_only_in_the_variables_of_rlock() {
        let environment = b"A=ab12\0RLOCK_ANCESTORS=00ff,ab12\0RLOCK_SESSION=cd34\0RLOCK_TOKEN=77\0";
        assert!(names_session_in(environment, "ab12") && names_session_in(environment, "cd34"));
        assert!(names_session_in(b"RLOCK_SPARE=ab12\0", "ab12"));
        assert!(!names_session_in(environment, "77") && !names_session_in(b"A=ab12\0", "ab12"));
    }
}
