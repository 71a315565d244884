//! A holder, and those who wait for it.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::candidate::Candidate;

/// Whatever takes longer never comes.
const PATIENCE: Duration = Duration::from_secs(100);
/// How often in a row a process is seen asleep before it counts as waiting.
const ASLEEP: u32 = 10;

/// The processes; killed and reaped when this is dropped.
pub(crate) struct Crowd {
    /// The holder is the first.
    processes: Vec<Child>,
    /// The command of the holder reads from there until it is closed.
    gate: Option<OwnedFd>,
    path: PathBuf,
    /// Who they are.
    name: &'static str,
}

impl Crowd {
    /// Somebody who holds until [`Crowd::go`].
    pub(crate) fn behind_a_holder(candidate: &Candidate, folder: &Path) -> Self {
        // sem gives its words to a shell.
        let name = candidate.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
        let path = folder.join(format!("gate-{name}"));
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe can be made");
        let holder = candidate.run(&["cat", path.to_str().expect("paths of a bench are text")]);
        let mut crowd = Self { processes: Vec::new(), gate: None, path, name: candidate.name };
        crowd.start(holder);
        // It can be opened once the holder's command has opened it.
        until(&format!("{} holds", candidate.name), || {
            crowd.gate = open(&crowd.path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok();
            crowd.gate.is_some()
        });
        crowd
    }

    /// Lets so many more queue up for a command.
    pub(crate) fn queue_up(&mut self, candidate: &Candidate, waiters: usize, words: &[&str]) {
        (0..waiters).for_each(|_| self.start(candidate.run(words)));
        until(&format!("all wait for {}", candidate.name), || {
            candidate.waiting().is_none_or(|waiting| waiting == waiters)
        });
        // Where nobody can be asked, those who sleep wait; and where one can, they may have something to do yet.
        let mut awake: Vec<(&Child, u32)> = self.processes.iter().map(|process| (process, 0)).collect();
        until(&format!("all sleep that wait for {}", candidate.name), || {
            awake.iter_mut().for_each(|(process, times)| *times = if sleeps(process) { *times + 1 } else { 0 });
            awake.retain(|&(_, times)| times < ASLEEP);
            awake.is_empty()
        });
    }

    /// The holder and the first waiter.
    pub(crate) fn first_two(&self) -> [u32; 2] {
        [self.processes[0].id(), self.processes[1].id()]
    }

    /// Lets the holder go, and waits until all have had their turn, or says what became of one that had none.
    pub(crate) fn go(&mut self) -> Result<(), String> {
        self.gate = None;
        let patience = Timespec::try_from(PATIENCE).expect("it is not too long");
        for process in &mut self.processes {
            // Not by looking again and again, which would be at the cost of those that are measured.
            let end = pidfd_open(Pid::from_child(process), PidfdFlags::empty()).expect("it was not reaped");
            let ended = poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&patience)).expect("it can be polled");
            if ended == 0 {
                return Err(format!("{}: one of those that waited never had its turn", self.name));
            }
            let status = process.wait().expect("it is a child");
            if !status.success() {
                return Err(format!("{}: one of those that waited ended with {status}", self.name));
            }
        }
        Ok(())
    }

    fn start(&mut self, mut command: Command) {
        self.processes.push(command.spawn().unwrap_or_else(|error| panic!("{command:?} can't be started: {error}")));
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // Fails only where it has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn sleeps(process: &Child) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("it was not reaped");
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came about that {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
