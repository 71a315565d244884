//! A server that lives as long as the bench.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A server that is not ready after this time has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server. It is killed when it is dropped, and by the kernel if the bench is killed.
pub(crate) struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts a program in a folder of its own and waits until it is ready. Otherwise returns the
    /// reason.
    pub(crate) fn start(words: &[String], folder: &Path, ready: impl Fn() -> bool) -> Result<Self, String> {
        let log = File::create(folder.join("log")).expect("the folder can be written");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(words).current_dir(folder).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("the log is open")).stderr(log);
        let child = command.spawn().map_err(|error| format!("setpriv can't be started: {error}"))?;
        let mut daemon = Self { child };
        let deadline = Instant::now() + PATIENCE;
        while !ready() {
            let ended = daemon.child.try_wait().expect("the process is a child").is_some();
            if ended || Instant::now() > deadline {
                return Err(format!("{} does not come up", words[0]));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(daemon)
    }

    /// The process id of the server: setpriv(1) executes it in its own place.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // This fails only if the server has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
