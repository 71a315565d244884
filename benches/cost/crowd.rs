//! A holder and its waiters.

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

/// A process that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(100);
/// How many consecutive times a process must be seen asleep before it counts as waiting.
const ASLEEP: u32 = 10;

/// The holder and the waiters. They are killed and reaped when the crowd is dropped.
pub(crate) struct Crowd {
    /// All processes, the holder first.
    processes: Vec<Child>,
    /// The holder's command reads from this pipe until the pipe is closed.
    gate: Option<OwnedFd>,
    path: PathBuf,
    /// The name of the candidate.
    name: &'static str,
}

impl Crowd {
    /// Starts a holder that holds until [`Crowd::go`].
    pub(crate) fn behind_a_holder(candidate: &Candidate, folder: &Path) -> Self {
        // sem passes its words to a shell, so the path must be plain.
        let name = candidate.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
        let path = folder.join(format!("gate-{name}"));
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe can be made");
        let holder = candidate.run(&["cat", path.to_str().expect("paths of a bench are text")]);
        let mut crowd = Self { processes: Vec::new(), gate: None, path, name: candidate.name };
        crowd.start(holder);
        // The pipe can be opened as soon as the holder's command has opened it.
        until(&format!("{} holds", candidate.name), || {
            crowd.gate = open(&crowd.path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok();
            crowd.gate.is_some()
        });
        crowd
    }

    /// Starts `waiters` processes that wait to run a command.
    pub(crate) fn queue_up(&mut self, candidate: &Candidate, waiters: usize, words: &[&str]) {
        (0..waiters).for_each(|_| self.start(candidate.run(words)));
        until(&format!("all wait for {}", candidate.name), || {
            candidate.waiting().is_none_or(|waiting| waiting == waiters)
        });
        // If the candidate cannot list its waiters, the processes that sleep count as waiters.
        // Listed waiters must sleep as well, since they may still have work to do.
        let mut awake: Vec<(&Child, u32)> = self.processes.iter().map(|process| (process, 0)).collect();
        until(&format!("all sleep that wait for {}", candidate.name), || {
            awake.iter_mut().for_each(|(process, times)| *times = if sleeps(process) { *times + 1 } else { 0 });
            awake.retain(|&(_, times)| times < ASLEEP);
            awake.is_empty()
        });
    }

    /// Returns the process ids of the holder and of the first waiter.
    pub(crate) fn first_two(&self) -> [u32; 2] {
        [self.processes[0].id(), self.processes[1].id()]
    }

    /// Lets the holder go, and waits until each waiter has had its turn. Otherwise returns what
    /// happened to a waiter.
    pub(crate) fn go(&mut self) -> Result<(), String> {
        self.gate = None;
        let patience = Timespec::try_from(PATIENCE).expect("the timeout is valid");
        for process in &mut self.processes {
            // Polling in a loop would cost the measured processes time.
            let end = pidfd_open(Pid::from_child(process), PidfdFlags::empty()).expect("the process was not reaped");
            let ended =
                poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&patience)).expect("the descriptor can be polled");
            if ended == 0 {
                return Err(format!("{}: one of those that waited never had its turn", self.name));
            }
            let status = process.wait().expect("the process is a child");
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
            // This fails only if the process has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn sleeps(process: &Child) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("the process was not reaped");
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
