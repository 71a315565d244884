//! A program as the leader of a session of its own, with or without a terminal, and all processes
//! that it started.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, ioctl_tiocsctty, kill_process, setsid, waitid};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::output::Output;
use rlock_testkit::{DEADLINE, Lab, RLOCK, wait_until};

/// A running session. Dropping it kills all its processes, also if the test fails.
pub(crate) struct Session {
    leader: Child,
    /// Standard output, or the output of the terminal.
    pub(crate) output: Output,
    /// Standard error if there is no terminal.
    errors: Option<Output>,
    /// The master side of the terminal.
    terminal: Option<OwnedFd>,
}

impl Session {
    /// Starts a program without a terminal. Its standard input is a pipe.
    pub(crate) fn start(lab: &Lab, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let mut command = command(lab, words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let prepare = || {
            setsid()?;
            default_signals();
            Ok(())
        };
        // SAFETY: between fork and exec `prepare` makes system calls only.
        unsafe { command.pre_exec(prepare) };
        let mut leader = command.spawn().expect("the program can be started");
        let output = Output::new(leader.stdout.take().expect("the leader has a pipe").into());
        let errors = Output::new(leader.stderr.take().expect("the leader has a pipe").into());
        Self { leader, output, errors: Some(errors), terminal: None }
    }

    /// Starts a program on a terminal of its own.
    pub(crate) fn on_terminal(lab: &Lab, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let (master, slave) = terminal().expect("there are pseudo-terminals");
        let end = || Stdio::from(slave.try_clone().expect("there are descriptors left"));
        let mut command = command(lab, words);
        command.stdin(end()).stdout(end()).stderr(end());
        let controlling = slave.try_clone().expect("there are descriptors left");
        let prepare = move || -> io::Result<()> {
            setsid()?;
            default_signals();
            Ok(ioctl_tiocsctty(&controlling)?)
        };
        // SAFETY: between fork and exec `prepare` makes system calls only.
        unsafe { command.pre_exec(prepare) };
        let leader = command.spawn().expect("the program can be started");
        let output = Output::new(master.try_clone().expect("there are descriptors left"));
        Self { leader, output, errors: None, terminal: Some(master) }
    }

    /// Starts an interactive shell with job control and waits for its prompt.
    pub(crate) fn shell(lab: &Lab) -> Self {
        let mut shell = Self::on_terminal(lab, ["env", "TERM=dumb", "bash", "--norc", "--noprofile", "-i"]);
        shell.output.expect(PROMPT);
        shell
    }

    /// Starts `rlock` with these words, without a terminal.
    pub(crate) fn rlock(lab: &Lab, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let words: Vec<_> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        Self::start(lab, std::iter::once(RLOCK.into()).chain(words))
    }

    /// Starts `rlock` with these words, and waits until it is in the queue.
    pub(crate) fn waiter(lab: &Lab, words: &[&str]) -> Self {
        let mut waiter = Self::rlock(lab, [&["exec", "-v", "k", "--"], words].concat());
        waiter.errors().expect("rlock: waits for 'k'\n");
        waiter
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.leader)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the leader is not reaped yet");
    }

    /// Standard error. A session on a terminal has none of its own.
    pub(crate) fn errors(&mut self) -> &mut Output {
        self.errors.as_mut().expect("the session has no terminal")
    }

    /// Closes the leader's standard input.
    pub(crate) fn close(&mut self) {
        drop(self.leader.stdin.take());
    }

    /// Writes to the leader's standard input.
    pub(crate) fn types_in(&mut self, text: &str) {
        let input = self.leader.stdin.as_mut().expect("the leader has a pipe");
        input.write_all(text.as_bytes()).expect("the leader reads");
    }

    /// Types on the terminal.
    pub(crate) fn types(&self, text: &str) {
        let terminal = self.terminal.as_ref().expect("the session has a terminal");
        assert_eq!(rustix::io::write(terminal, text.as_bytes()), Ok(text.len()));
    }

    /// Hangs up the terminal.
    pub(crate) fn hang_up(&mut self) {
        self.terminal = None;
        // A second descriptor of the terminal would keep the line open.
        let (reader, _) = io::pipe().expect("there are descriptors left");
        self.output = Output::new(reader.into());
    }

    /// Waits for the end of the leader and returns its exit code as a shell does. The code is 128+n
    /// if signal n ended the leader.
    ///
    /// The leader is not reaped yet, so its id stays the id of its session.
    #[track_caller]
    pub(crate) fn code(&mut self) -> i32 {
        let pid = self.pid();
        let mut code = None;
        wait_until("the leader of the session ends", || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let status = waitid(WaitId::Pid(pid), options).expect("the leader is not reaped yet");
            code = status.and_then(|end| end.exit_status().or(end.terminating_signal().map(|signal| 128 + signal)));
            code.is_some()
        });
        code.expect("the leader has ended")
    }

    /// The processes of the session, zombies included.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let session = self.leader.id().to_string();
        let entries = fs::read_dir("/proc").expect("there is a /proc").filter_map(Result::ok);
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
        pids.filter(|pid| stat(*pid).is_some_and(|stat| stat[3] == session)).collect()
    }

    /// The processes of the session that still run.
    pub(crate) fn members(&self) -> Vec<Pid> {
        self.processes().into_iter().filter(|pid| runs(*pid)).collect()
    }

    /// Waits until no process of the session runs.
    #[track_caller]
    pub(crate) fn until_gone(&self) {
        let mut left = Vec::new();
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            left = self.members();
            if left.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!(
            "processes still run: {:?}",
            left.into_iter().map(|pid| (pid, stat(pid), command_line(pid))).collect::<Vec<_>>()
        );
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A process that starts another one meanwhile is caught in the next round. The number of
        // rounds is limited in case a process cannot be killed.
        for _ in 0..1_000 {
            let members = self.members();
            if members.is_empty() {
                break;
            }
            for pid in members {
                // The process may have ended by itself meanwhile.
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::yield_now();
        }
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

/// The prompt of the interactive shells in these tests.
pub(crate) const PROMPT: &str = "prompt> ";

/// Writes a shell script into the folder of the lab, in which all sessions run.
pub(crate) fn script(lab: &Lab, name: &str, text: &str) {
    fs::write(lab.folder().join(name), text).expect("a script can be written");
}

/// A shell that idles until a trap ends it. It starts no second program: dash drops signals that
/// arrive while it forks, and a Ctrl-Z there stops it for good.
pub(crate) const IDLE: &str = "sleep 1000 & echo '<ready>'; while :; do wait; done";

/// A shell that waits for a program in the foreground, see [`until_in_foreground`].
pub(crate) const FOREGROUND: &str = "echo shell $$; sh -c 'echo ready; exec sleep 1000'; true";

/// Waits until [`FOREGROUND`] runs its program and the shell sleeps: dash drops a SIGINT that
/// arrives while it forks.
#[track_caller]
pub(crate) fn until_in_foreground(session: &mut Session) {
    session.output.expect("shell ");
    let shell = pid(&session.output.line());
    session.output.expect("ready");
    until_state(shell, "S");
}

/// Waits until the process is in this state, as `ps` writes it: `T` is stopped.
#[track_caller]
pub(crate) fn until_state(pid: Pid, state: &str) {
    wait_until(&format!("process {} is in state {state}", pid.as_raw_nonzero()), || {
        stat(pid).is_some_and(|stat| stat[0] == state)
    });
}

/// Waits until the process does not run any more. Its new parent may not have reaped it yet.
#[track_caller]
pub(crate) fn until_dead(pid: Pid) {
    wait_until(&format!("process {} is dead", pid.as_raw_nonzero()), || !runs(pid));
}

fn runs(pid: Pid) -> bool {
    stat(pid).is_some_and(|stat| !["Z", "X"].contains(&&*stat[0]))
}

/// A process id that a program has printed.
#[track_caller]
pub(crate) fn pid(text: &str) -> Pid {
    text.trim().parse().ok().and_then(Pid::from_raw).unwrap_or_else(|| panic!("{text:?} is not a process id"))
}

/// The children of a process that runs, zombies included.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let list = fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.as_raw_nonzero()));
    list.expect("the process runs").split_whitespace().map(pid).collect()
}

/// The state, parent, group and session of a process, if the process exists.
fn stat(pid: Pid) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name before these fields may contain any characters.
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split(' ').take(4).map(str::to_owned).collect())
}

/// Restores the default signals. A test runner in the background of a script ignores some signals,
/// another test ignores SIGIO,
/// and the programs of these tests must not inherit that.
fn default_signals() {
    for signal in [Signal::INT, Signal::QUIT, Signal::HUP, Signal::IO] {
        // SAFETY: the default disposition is valid for each signal.
        unsafe { libc::signal(signal.as_raw(), libc::SIG_DFL) };
    }
}

pub(crate) fn command_line(pid: Pid) -> String {
    let words = fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    words.replace('\0', " ")
}

fn command(lab: &Lab, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().expect("there is a program"));
    lab.settle(&mut command);
    let folder = Path::new(RLOCK).parent().expect("rlock is in a folder").as_os_str().to_owned();
    let path = [folder, std::env::var_os("PATH").unwrap_or_default()].join(OsStr::new(":"));
    command.args(words).current_dir(lab.folder()).env("PATH", path);
    command
        .env("TERM", "xterm")
        .env("PS1", PROMPT)
        .env("INPUTRC", "/dev/null")
        .env("LC_ALL", "C")
        .env_remove("HISTFILE");
    command
}

/// Opens a new terminal and returns its master and its slave side.
fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 })?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, slave))
}
