//! Many processes started at once, without pipes and threads for each of them.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::support::{Lab, wait_within};

/// Hundreds of processes share the processors with the crowds of the other tests.
const CROWD_LIMIT: Duration = Duration::from_secs(60);

/// Processes that end with the test.
pub(crate) struct Crowd {
    children: Vec<Child>,
    /// What all of them say on standard error.
    errors: PathBuf,
}

impl Crowd {
    pub(crate) fn new(lab: &Lab) -> Self {
        Self { children: Vec::new(), errors: lab.folder().join("errors") }
    }

    /// Starts one more, in the folder of the lab, and gives its process id.
    pub(crate) fn start(&mut self, lab: &Lab, command: &mut Command) -> u32 {
        let errors = File::options().create(true).append(true).open(&self.errors).expect("a file can be made");
        command.current_dir(lab.folder()).stdout(errors.try_clone().expect("it can be shared")).stderr(errors);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} can't be started: {error}"));
        let pid = child.id();
        self.children.push(child);
        pid
    }

    /// Kills one of them, as `kill -9` does, and reaps it.
    pub(crate) fn kill(&mut self, index: usize) {
        let mut child = self.children.remove(index);
        kill_process(Pid::from_child(&child), Signal::KILL).expect("it has not been reaped");
        child.wait().expect("it is a child");
    }

    /// Waits until all have ended.
    pub(crate) fn end(&mut self) -> Vec<ExitStatus> {
        let mut ended = Vec::new();
        while let Some(child) = self.children.last_mut() {
            let mut status = None;
            wait_within(CROWD_LIMIT, "everybody in the crowd ends", || {
                status = child.try_wait().expect("it is a child");
                status.is_some()
            });
            ended.extend(status);
            self.children.pop();
        }
        ended
    }

    /// Waits until all have ended with 0, none of which said anything.
    #[track_caller]
    pub(crate) fn succeed(&mut self) {
        let ended = self.end();
        let failed: Vec<_> = ended.iter().filter(|status| !status.success()).collect();
        assert!(failed.is_empty(), "{} of {} failed: {failed:?}: {}", failed.len(), ended.len(), self.said());
        assert_eq!(self.said(), "");
    }

    /// What was said on standard output and standard error.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both fail only where it was reaped already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
