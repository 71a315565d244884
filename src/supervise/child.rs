//! The command as a process: starts it, signals it, sees it stop and end, reaps it.
//!
//! It makes no decision. What it guarantees: the command dies when rlock does, and no process id is used after it was reaped.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use rustix::process::{
    Pid, Signal as Kernel, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, setpgid, wait, waitid, waitpid,
};

use super::descendants::Descendants;
use super::event::{Ended, Group, Signal, Stop};
use super::signals::Signals;
use super::spawn::spawn;
use crate::exit;
use crate::words::reason;

/// What to run: the words as they are, no shell.
#[derive(Clone, Debug)]
pub struct CommandSpec {
    /// The program, looked up in PATH unless it has a slash, and its arguments.
    pub argv: Vec<OsString>,
}

/// The command could not be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// 126 or 127, as in the shells.
    pub code: u8,
    /// One line that says what could not be run and why.
    pub text: String,
}

/// What has become of the command since it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was stopped.
    Stopped(Stop),
    /// It has ended. Unless [`Child::reap`] is called its process id, and that of its group, stay its own.
    Ended(Ended),
}

/// The running command.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    /// What the command starts, where it shares rlock's group; elsewhere its own group is all of it.
    sharing: Option<Descendants>,
    /// As far as [`Child::look`] has seen, and nobody has continued it since.
    stopped: Cell<bool>,
    reaped: bool,
}

impl Child {
    /// Starts the command in `group`, with these variables on top of rlock's own.
    ///
    /// # Errors
    /// [`StartError`] when it cannot be executed: nothing is left running then.
    pub fn start(
        command: &CommandSpec,
        environment: Vec<(OsString, OsString)>,
        group: Group,
        signals: &Signals,
    ) -> Result<Self, StartError> {
        let program = command.argv.first().map_or(OsStr::new(""), OsString::as_os_str);
        let sharing = (group == Group::Shared).then(Descendants::expect);
        let pid = start(command, &environment, group, signals).map_err(|error| start_error(program, &error))?;
        Ok(Self { pid, sharing, stopped: Cell::new(false), reaped: false })
    }

    /// The command's process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Looks what has become of the command, without waiting. To be asked after each SIGCHLD.
    ///
    /// It also reaps what rlock inherited: as process 1 from anybody, in a shared group from the command.
    ///
    /// # Errors
    /// The kernel's; none is expected.
    pub fn look(&mut self) -> io::Result<Option<Change>> {
        if self.reaped {
            return Ok(None);
        }
        let this = || WaitId::Pid(self.pid);
        // Seen, not reaped: as long as it is a zombie, signals to its group can't reach a stranger.
        if let Some(status) = waitid(this(), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)? {
            return Ok(Some(Change::Ended(ended(status.exit_status(), status.terminating_signal()))));
        }
        if let Some(number) =
            waitid(this(), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG)?.and_then(|status| status.stopping_signal())
        {
            self.stopped.set(true);
            return Ok(Some(Change::Stopped(Stop::from_number(number))));
        }
        if self.sharing.is_some() || getpid().is_init() { self.reap_others() } else { Ok(None) }
    }

    fn reap_others(&mut self) -> io::Result<Option<Change>> {
        // What is inherited comes to the main thread, which is this one; in the unit tests other threads have children of their own.
        let options = WaitOptions::NOHANG | WaitOptions::from_bits_retain(libc::__WNOTHREAD.cast_unsigned());
        while let Some((pid, status)) = wait(options)? {
            if pid == self.pid {
                self.reaped = true;
                return Ok(Some(Change::Ended(ended(status.exit_status(), status.terminating_signal()))));
            }
        }
        Ok(None)
    }

    /// Sends the signal to the command's process alone; in a shared group a SIGCONT only if it is needed.
    pub fn pass(&self, signal: Signal) {
        if !self.reaped && signal == Signal::Cont && self.sharing.is_some() {
            self.continue_stopped();
        } else if !self.reaped {
            // What can't be signalled has gained rights of its own, or is a zombie: there is nobody to tell.
            let _ = kill_process(self.pid, signal.kernel());
        }
    }

    /// Continues the command if it is still in the stop that was seen. Mostly whoever continued rlock has continued the whole group,
    /// and one more SIGCONT, or one that comes late, would undo a Ctrl-Z that came in between.
    fn continue_stopped(&self) {
        let ask = |what| waitid(WaitId::Pid(self.pid), what | WaitIdOptions::NOHANG).ok().flatten();
        let continued = ask(WaitIdOptions::CONTINUED).is_some();
        let unseen = ask(WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT).and_then(|status| status.stopping_signal());
        let stopped = match unseen.map(Stop::from_number) {
            None => self.stopped.get(),
            // These stop rlock too, before it can have a look at the command.
            Some(Stop::Ttin | Stop::Ttou) => true,
            Some(Stop::Tstp | Stop::Stop) => false,
        };
        self.stopped.set(false);
        if stopped && !continued {
            let _ = kill_process(self.pid, Kernel::CONT);
            // Takes the note of this one, which would be taken for another's the next time.
            ask(WaitIdOptions::CONTINUED);
        }
    }

    /// Sends the signal to the command's group, or to the command and its descendants where the group is not its own.
    pub fn pass_group(&self, signal: Signal) {
        self.send_group(signal.kernel());
    }

    /// Asks the command and all in its group that is its own to end.
    pub fn terminate(&self) {
        self.send_group(Kernel::TERM);
    }

    /// Stops the command and all in its group that is its own.
    pub fn freeze(&self) {
        self.send_group(Kernel::STOP);
    }

    /// Ends the command and all in its group that is its own.
    pub fn kill(&self) {
        match &self.sharing {
            Some(descendants) => descendants.kill(self.command()),
            None => self.send_group(Kernel::KILL),
        }
    }

    fn send_group(&self, signal: Kernel) {
        match (&self.sharing, self.command()) {
            (Some(descendants), command) => descendants.signal(command, signal),
            (None, Some(group)) => drop(kill_process_group(group, signal)),
            (None, None) => {}
        }
    }

    /// The command's process, while its id is its own.
    fn command(&self) -> Option<Pid> {
        (!self.reaped).then_some(self.pid)
    }

    /// Collects the ended command.
    ///
    /// # Errors
    /// The kernel's; none is expected.
    pub fn reap(&mut self) -> io::Result<()> {
        if !self.reaped {
            self.reaped = true;
            waitpid(Some(self.pid), WaitOptions::empty())?;
        }
        Ok(())
    }
}

/// Reaps, as process 1, what rlock inherited while it has no command. Elsewhere there is nothing of the kind.
pub fn reap_inherited() {
    // When there is nobody left it fails, which is as well.
    while getpid().is_init() && wait(WaitOptions::NOHANG).is_ok_and(|reaped| reaped.is_some()) {}
}

fn ended(code: Option<i32>, signal: Option<i32>) -> Ended {
    match signal {
        Some(number) => Ended::Signal(number),
        // The kernel keeps eight bits of an exit code.
        None => Ended::Code(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILURE)),
    }
}

fn start(
    command: &CommandSpec,
    environment: &[(OsString, OsString)],
    group: Group,
    signals: &Signals,
) -> io::Result<Pid> {
    let _held_back = signals.hold_back()?;
    let undo = signals.undo_in_child();
    let parent = getpid();
    spawn(&command.argv, environment, &|| {
        if group == Group::Own {
            setpgid(None, None)?;
        }
        set_parent_process_death_signal(Some(Kernel::KILL))?;
        // A parent that died before the line above sends nothing any more.
        if getppid() != Some(parent) {
            signal_hook::low_level::exit(i32::from(exit::FAILURE));
        }
        undo()
    })
}

/// Says why the program can't be run, with the exit code that a shell would give.
fn start_error(program: &OsStr, error: &io::Error) -> StartError {
    let name = program.display();
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound if find(program) => (exit::NOT_FOUND, "its interpreter was not found".to_owned()),
        io::ErrorKind::NotFound => (exit::NOT_FOUND, "not found".to_owned()),
        // A directory in PATH that this user may not enter hides nothing that he could have meant.
        io::ErrorKind::PermissionDenied if !program.as_encoded_bytes().contains(&b'/') && !find(program) => {
            (exit::NOT_FOUND, "not found".to_owned())
        }
        _ => (exit::NOT_EXECUTABLE, reason(error)),
    };
    StartError { code, text: format!("cannot run '{name}': {why}") }
}

/// Whether a file of that name is where the kernel would look for it.
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
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::super::signals::one_test_at_a_time;
    use super::*;

    fn spec(words: &[&str]) -> CommandSpec {
        CommandSpec { argv: words.iter().map(OsString::from).collect() }
    }

    /// Starts a command, lets `meanwhile` act when it has changed first, and waits for its end.
    fn run(words: &[&str], group: Group, mut meanwhile: impl FnMut(&Child, Stop)) -> Ended {
        let mut signals = Signals::install().unwrap();
        let mut child = Child::start(&spec(words), vec![], group, &signals).unwrap();
        loop {
            match child.look().unwrap() {
                Some(Change::Ended(ended)) => {
                    child.reap().unwrap();
                    assert_eq!(child.look().unwrap(), None);
                    return ended;
                }
                Some(Change::Stopped(stop)) => meanwhile(&child, stop),
                None => {
                    let _ = poll(&mut [PollFd::from_borrowed_fd(signals.descriptor(), PollFlags::IN)], None);
                    while signals.next().is_some() {}
                }
            }
        }
    }

    fn failure(words: &[&str]) -> (u8, String) {
        let signals = Signals::install().unwrap();
        let error = Child::start(&spec(words), vec![], Group::Own, &signals).expect_err("it must not start");
        (error.code, error.text)
    }

    fn nothing(_: &Child, stop: Stop) {
        panic!("stopped by {stop:?}");
    }

    #[test]
    fn the_exit_code_and_the_signal_are_the_commands_own() {
        let _one = one_test_at_a_time();
        assert_eq!(run(&["sh", "-c", "exit 0"], Group::Own, nothing), Ended::Code(0));
        assert_eq!(run(&["sh", "-c", "exit 255"], Group::Shared, nothing), Ended::Code(255));
        assert_eq!(run(&["sh", "-c", "kill -KILL $$"], Group::Own, nothing), Ended::Signal(9));
    }

    #[test]
    fn arguments_and_variables_arrive_as_they_are() {
        let _one = one_test_at_a_time();
        let signals = Signals::install().unwrap();
        let words = ["sh", "-c", r#"[ "$1" = "a  b" ] && [ "$RLOCK_TOKEN" = 7 ]"#, "sh", "a  b"];
        let variables = vec![(OsString::from("RLOCK_TOKEN"), OsString::from("7"))];
        let child = Child::start(&spec(&words), variables, Group::Own, &signals).unwrap();
        let (_, status) = waitpid(Some(child.pid), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }

    #[test]
    fn a_stop_is_seen_and_a_continue_ends_it() {
        let _one = one_test_at_a_time();
        let mut stops = Vec::new();
        let ended = run(&["sh", "-c", "kill -STOP $$; kill -TSTP $$; exit 4"], Group::Own, |child, stop| {
            stops.push(stop);
            child.pass(Signal::Cont);
        });
        assert_eq!(ended, Ended::Code(4));
        assert_eq!(stops, [Stop::Stop, Stop::Tstp]);
    }

    #[test]
    fn the_command_is_signalled_alone_and_with_its_group() {
        let _one = one_test_at_a_time();
        // Stopping tells that the command has got so far.
        let two = ["sh", "-c", "sleep 1000 & kill -STOP $$; wait"];
        let ended = run(&two, Group::Own, |child, _| {
            child.terminate();
            child.pass(Signal::Cont);
        });
        assert_eq!(ended, Ended::Signal(15));
        let trap = ["sh", "-c", "trap 'exit 9' USR1; kill -STOP $$; while :; do :; done"];
        let ended = run(&trap, Group::Shared, |child, _| {
            child.pass(Signal::Usr1);
            child.pass(Signal::Cont);
        });
        assert_eq!(ended, Ended::Code(9));
        let stubborn = ["sh", "-c", "trap '' TERM; kill -STOP $$; while :; do :; done"];
        assert_eq!(run(&stubborn, Group::Own, |child, _| child.kill()), Ended::Signal(9));
    }

    #[test]
    fn an_own_group_is_one_and_a_shared_group_is_ours() {
        let _one = one_test_at_a_time();
        let ask = ["sh", "-c", r#"set -- $(cat /proc/$$/stat); [ "$5" = "$$" ]"#];
        assert_eq!(run(&ask, Group::Own, nothing), Ended::Code(0));
        assert_eq!(run(&ask, Group::Shared, nothing), Ended::Code(1));
    }

    /// "It starts with the dispositions and the mask that rlock was started with": no handler, nothing blocked or ignored.
    #[test]
    fn the_command_inherits_nothing_of_our_signals() {
        let _one = one_test_at_a_time();
        let ask = "grep -q '^SigBlk:.0*$' /proc/self/status && grep -q '^SigIgn:.0*$' /proc/self/status";
        let without = Command::new("sh").args(["-c", ask]).status().unwrap().code().unwrap();
        assert_eq!(run(&["sh", "-c", ask], Group::Own, nothing), Ended::Code(u8::try_from(without).unwrap()));
    }

    #[test]
    fn the_command_is_to_die_with_its_parent() {
        let _one = one_test_at_a_time();
        let signals = Signals::install().unwrap();
        let parent = std::thread::spawn(move || Child::start(&spec(&["sleep", "1000"]), vec![], Group::Own, &signals));
        // To the kernel the parent is the thread that forked, and that is gone now.
        let child = parent.join().unwrap().unwrap();
        let (_, status) = waitpid(Some(child.pid), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.terminating_signal(), Some(9));
    }

    #[test]
    fn what_cannot_run_is_told_as_a_shell_would() {
        let _one = one_test_at_a_time();
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        assert_eq!(
            failure(&["rlock-no-such-program"]),
            (127, "cannot run 'rlock-no-such-program': not found".to_owned())
        );
        assert_eq!(failure(&[""]), (127, "cannot run '': not found".to_owned()));
        assert_eq!(failure(&[]), (127, "cannot run '': not found".to_owned()));
        let lost = file("lost", "#!/no/such/interpreter\n", 0o755);
        assert_eq!(failure(&[&lost]), (127, format!("cannot run '{lost}': its interpreter was not found")));
        let plain = file("plain", "true\n", 0o644);
        assert_eq!(failure(&[&plain]), (126, format!("cannot run '{plain}': permission denied")));
        let folder = dir.path().to_str().unwrap();
        assert_eq!(failure(&[folder]), (126, format!("cannot run '{folder}': permission denied")));
    }
}
