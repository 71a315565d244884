//! Plays a case: starts what is in the way, runs rlock, sends the signal, and looks what is left.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::case::{Case, Form, Sent, Way};
use rlock_testkit::servers::Kind;
use rlock_testkit::{Lab, Ran, Running, wait_until};

/// What was seen of a case.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The exit code, or 128 and the number of the signal that ended rlock.
    pub(crate) code: i32,
    pub(crate) died: bool,
    pub(crate) took: Duration,
    /// The lines that the commands have logged, such as `start`, `else` and `spare`.
    pub(crate) log: Vec<String>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) status: Option<Value>,
    /// The processes of the command or the spare work that live when rlock has ended.
    pub(crate) left: Vec<i32>,
    /// What the next request for the same claim exits with, at once.
    pub(crate) next: Option<i32>,
    /// The sessions that wait afterwards.
    pub(crate) waiters: usize,
}

pub(crate) struct Stage(Lab);

impl Stage {
    pub(crate) fn new(kind: Option<Kind>) -> Self {
        Self(kind.map_or_else(Lab::new, Lab::on))
    }

    pub(crate) fn play(&self, case: &Case) -> Seen {
        let lab = &self.0;
        let key = if case.form == Form::Range { "k" } else { first_key(case) };
        let holder = match case.way {
            Way::Free => None,
            Way::Succeeded => {
                lab.run(["exec", "--once-per", "1h", "--job", "nightly", key, "--", "true"]).silently(0);
                None
            }
            Way::HeldFor(_) | Way::Held => Some(lab.hold(key)),
        };
        let started = Instant::now();
        let mut rlock = self.rlock(case);
        let mut child = rlock.spawn().expect("rlock starts");
        let pid = Pid::from_child(&child);
        let (ended, status) = thread::scope(|scope| {
            if let (Some(holder), Way::HeldFor(time)) = (holder.as_ref().map(Running::pid), case.way) {
                let holder = Pid::from_raw(holder.cast_signed()).expect("a process has an id");
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(time));
                    // The holder may have ended with a test that failed.
                    let _ = kill_process(holder, Signal::TERM);
                });
            }
            if let Some((sent, after)) = case.signal {
                // The process is reaped by `wait` below, after which its number may be another's.
                let alive = lab.folder().join("ended");
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(after));
                    let send = |signal| {
                        if !alive.exists() {
                            let _ = kill_process(pid, signal);
                        }
                    };
                    match sent {
                        Sent::Term => send(Signal::TERM),
                        Sent::Int => send(Signal::INT),
                        Sent::Hup => send(Signal::HUP),
                        Sent::Winch => send(Signal::WINCH),
                        Sent::Pause => {
                            send(Signal::STOP);
                            thread::sleep(Duration::from_millis(100));
                            send(Signal::CONT);
                        }
                    }
                });
            }
            let mut status = None;
            wait_until(&format!("rlock {} ends", case.words().join(" ")), || {
                status = child.try_wait().expect("the process is a child");
                status.is_some()
            });
            fs::write(lab.folder().join("ended"), "").expect("a file can be made");
            (Instant::now(), status.expect("the process has ended"))
        });
        // A holder that outlives the case goes on while the rest is looked at.
        let _holder = match holder {
            Some(holder) if case.way != Way::Held => {
                holder.end();
                None
            }
            holder => holder,
        };
        self.look(case, key, status, ended - started)
    }

    fn rlock(&self, case: &Case) -> Command {
        let lab = &self.0;
        let file = |name: &str| fs::File::create(lab.folder().join(name)).expect("a file can be made");
        let mut rlock = lab.rlock(case.words());
        rlock.envs(case.default_wait.map(|wait| ("RLOCK_WAIT", format!("{wait}ms"))));
        rlock.env("LAB", lab.folder()).current_dir(lab.folder()).stdin(Stdio::null());
        rlock.stdout(file("stdout")).stderr(file("stderr"));
        rlock
    }

    fn look(&self, case: &Case, key: &str, status: ExitStatus, took: Duration) -> Seen {
        let lab = &self.0;
        let left = left(lab);
        let read = |name: &str| fs::read_to_string(lab.folder().join(name)).unwrap_or_default();
        let (stdout, stderr) = (read("stdout"), read("stderr"));
        let (code, died) = match status.code() {
            Some(code) => (code, false),
            None => (128 + status.signal().unwrap_or_default(), true),
        };
        if let Some(session) = stdout.lines().find_map(|line| line.strip_prefix("RLOCK_SESSION=")) {
            lab.run(["release", session]).silently(0);
        }
        let next = (case.way != Way::Held).then(|| Ran::of(&mut lab.rlock(["exec", "-nq", key, "--", "true"])));
        let next = next.and_then(|next| next.code());
        let found = lab.inspect([key]);
        let waiters = found["resources"][0]["waiters"].as_array().map_or(0, Vec::len);
        let log = read("log").lines().map(str::to_owned).collect();
        let status = fs::read(lab.folder().join("status")).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Seen { code, died, took, log, stdout, stderr, status, left, next, waiters }
    }
}

/// The KEY of the first claim.
fn first_key(case: &Case) -> &'static str {
    match case.claims[0] {
        crate::case::Claim::Bare => "k",
        crate::case::Claim::Write(key) | crate::case::Claim::Prewrite(key) | crate::case::Claim::Read(key) => key,
        crate::case::Claim::Slot | crate::case::Claim::Slots => "{k}s",
        crate::case::Claim::Interval => "{k}t",
    }
}

/// The processes that have the folder of the lab in `$LAB`, without those of rlock itself.
fn left(lab: &Lab) -> Vec<i32> {
    let mark = [b"LAB=", lab.folder().as_os_str().as_encoded_bytes(), b"\0"].concat();
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_left = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let ends = fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
        !ends && environment.windows(mark.len()).any(|window| window == mark)
    };
    pids.filter(is_left).collect()
}
