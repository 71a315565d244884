//! Starts many processes at once, without a pipe or a thread for each.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use rlock_testkit::{Lab, wait_within};

/// The time limit for the end of a crowd, whose hundreds of processes share the processors with
/// the crowds of other tests.
const CROWD_LIMIT: Duration = Duration::from_secs(120);

/// A group of processes that the test kills when it ends.
pub(crate) struct Crowd {
    children: Vec<Child>,
    /// The file that receives standard output and standard error of all processes.
    output: PathBuf,
}

impl Crowd {
    pub(crate) fn new(lab: &Lab) -> Self {
        Self { children: Vec::new(), output: lab.folder().join("output") }
    }

    /// Starts a process in the folder of the lab and returns its process id.
    pub(crate) fn start(&mut self, lab: &Lab, command: &mut Command) -> u32 {
        let output = File::options().create(true).append(true).open(&self.output).expect("the file opens");
        command.current_dir(lab.folder()).stdout(output.try_clone().expect("the file can be shared")).stderr(output);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let pid = child.id();
        self.children.push(child);
        pid
    }

    /// Sends SIGKILL to a process and reaps it.
    pub(crate) fn kill(&mut self, index: usize) {
        let mut child = self.children.remove(index);
        kill_process(Pid::from_child(&child), Signal::KILL).expect("the child is not reaped yet");
        child.wait().expect("the process is a child");
    }

    /// Ends all processes with SIGTERM, so that no guardian searches /proc for what they left.
    pub(crate) fn terminate(&mut self) {
        for child in &self.children {
            kill_process(Pid::from_child(child), Signal::TERM).expect("the child is not reaped yet");
        }
        self.wait();
    }

    /// Waits until all processes have ended.
    pub(crate) fn wait(&mut self) -> Vec<ExitStatus> {
        let mut ended = Vec::new();
        while let Some(child) = self.children.last_mut() {
            let mut status = None;
            wait_within(CROWD_LIMIT, "every process of the crowd ends", || {
                status = child.try_wait().expect("the process is a child");
                status.is_some()
            });
            ended.extend(status);
            self.children.pop();
        }
        ended
    }

    /// Waits for all processes and asserts that each exited with 0 and without output.
    #[track_caller]
    pub(crate) fn expect_success(&mut self) {
        let ended = self.wait();
        let failed: Vec<_> = ended.iter().filter(|status| !status.success()).collect();
        assert!(failed.is_empty(), "{} of {} failed: {failed:?}: {}", failed.len(), ended.len(), self.output());
        assert_eq!(self.output(), "");
    }

    /// The text that the processes have written to standard output and standard error.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both calls fail only if the child has been reaped already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
