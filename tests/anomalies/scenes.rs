//! The scenes in which one system call fails, or a process dies.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::judge::assert_plain;
use super::stage::{OWN_CODE, Stage};
use super::trace::{Process, Trace};
use rlock_testkit::{Running, wait_until};

/// How long the tree of an ended command may take to hear the signal.
const TOLD_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Scene {
    pub(crate) name: &'static str,
    /// The processes in which faults strike.
    pub(crate) processes: &'static [Process],
    /// Whether nobody has used the store before.
    pub(crate) is_first_use: bool,
    /// Plays the scene and checks it. Returns what the tracer has seen.
    pub(crate) play: fn(&Stage<'_>) -> Trace,
}

use Process::{Command as Started, Forked, Rlock};

pub(crate) const SCENES: &[Scene] = &[
    Scene { name: "first-use", processes: &[Rlock], is_first_use: true, play: free_lock },
    Scene { name: "free-lock", processes: &[Rlock, Forked, Started], is_first_use: false, play: free_lock },
    Scene { name: "holder", processes: &[Rlock, Forked, Started], is_first_use: false, play: holder },
    Scene { name: "ended", processes: &[Rlock, Forked], is_first_use: false, play: ended },
    Scene { name: "revoked", processes: &[Rlock, Forked], is_first_use: false, play: revoked },
    Scene { name: "waiter", processes: &[Rlock], is_first_use: false, play: waiter },
    Scene { name: "break", processes: &[Rlock], is_first_use: false, play: break_lock },
    Scene { name: "meanwhile", processes: &[Rlock, Forked, Started], is_first_use: false, play: meanwhile },
    Scene { name: "else", processes: &[Rlock], is_first_use: false, play: otherwise },
    Scene { name: "status-file", processes: &[Rlock], is_first_use: false, play: status_file },
    Scene { name: "acquire", processes: &[Rlock], is_first_use: false, play: acquire },
    Scene { name: "renew", processes: &[Rlock], is_first_use: false, play: renew },
    Scene { name: "release", processes: &[Rlock], is_first_use: false, play: release },
    Scene { name: "keeper", processes: &[Rlock, Forked], is_first_use: false, play: keeper },
    Scene { name: "serve", processes: &[Rlock], is_first_use: false, play: serve },
];

/// A lock that nobody else wants.
fn free_lock(stage: &Stage<'_>) -> Trace {
    let ended = stage.traced(&stage.exec(&[], "main")).end();
    stage.judge_command(&ended, "main");
    ended.1
}

/// The holder meets the fault. A waiter behind it is served. A signal to the command lets rlock
/// make calls while the tree of the command runs.
fn holder(stage: &Stage<'_>) -> Trace {
    let traced = stage.traced(&stage.exec_hold(&[], "main"));
    wait_until("the command runs", || stage.has("start main") || !traced.runs());
    let mut waiter = stage.start(&stage.exec(&[], "behind"));
    wait_until("the waiter waits", || !waiter.runs() || !traced.runs() || stage.lab.counts(&stage.key).1 > 0);
    traced.signal(Signal::WINCH);
    let ended = traced.end();
    stage.judge_command(&ended, "main");
    expect_served(waiter);
    ended.1
}

/// A holder whose command is a shell gets SIGTERM. The shell dies, and the lock is held until what
/// it has run is gone. The waiter behind it is served after that. An rlock that cannot see the tree
/// says so before the start of the command, and what it does not see goes on.
fn ended(stage: &Stage<'_>) -> Trace {
    let traced = stage.traced(&stage.exec_below_a_shell("main"));
    wait_until("the command runs", || stage.has("start main") || !traced.runs());
    let mut waiter = stage.start(&stage.exec(&[], "behind"));
    wait_until("the waiter waits", || !waiter.runs() || !traced.runs() || stage.lab.counts(&stage.key).1 > 0);
    traced.signal(Signal::TERM);
    // A fault may keep the signal from the tree, which then runs until its standard input ends.
    let until = Instant::now() + TOLD_LIMIT;
    while traced.runs() && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    let ended = traced.end();
    match ended.0.code() {
        Some(143 | 0) => assert_plain(&ended.0.stderr),
        _ => stage.judge_command(&ended, "main"),
    }
    expect_served(waiter);
    if ended.0.stderr.contains("if the command is killed") {
        stage.forgive();
    }
    ended.1
}

/// A holder whose lock is revoked meets the fault. The waiter behind it is served when the command
/// is gone. A holder that a fault keeps from hearing of the break goes on until its command ends.
fn revoked(stage: &Stage<'_>) -> Trace {
    let traced = stage.traced(&stage.exec_hold(&[], "main"));
    wait_until("the command runs", || stage.has("start main") || !traced.runs());
    let broke = stage.lab.run(["break", "-w", "0", &stage.key]);
    assert!([Some(0), Some(1), Some(75)].contains(&broke.code()), "{broke:?}");
    let waiter = stage.start(&stage.exec(&[], "behind"));
    let ended = traced.end();
    match ended.0.code() {
        Some(76) => assert_plain(&ended.0.stderr),
        _ => stage.judge_command(&ended, "main"),
    }
    expect_served(waiter);
    ended.1
}

/// A waiter meets the fault. The waiter behind it is served.
fn waiter(stage: &Stage<'_>) -> Trace {
    let holder = stage.hold("holder");
    let traced = stage.traced(&stage.exec(&[], "main"));
    stage.until_waiting(1, &traced);
    let behind = stage.start(&stage.exec(&[], "behind"));
    stage.until_waiting(2, &traced);
    expect_served(holder);
    let ended = traced.end();
    stage.judge_command(&ended, "main");
    expect_served(behind);
    ended.1
}

/// `rlock break` meets the fault. If it reports success, the holder ends.
fn break_lock(stage: &Stage<'_>) -> Trace {
    let mut holder = stage.hold("holder");
    let ended = stage.traced(&["break", &stage.key]).end();
    if stage.judge_other(&ended, stage.or_lost_answer(&[69, 125], &[1, 69, 125])) {
        wait_until("the holder whose lock is broken ends", || !holder.runs());
        assert_eq!(holder.end().code(), Some(76));
    } else {
        let ran = holder.end();
        assert!([Some(OWN_CODE), Some(76)].contains(&ran.code()), "{ran:?}");
    }
    ended.1
}

/// Spare work runs once beside the wait.
fn meanwhile(stage: &Stage<'_>) -> Trace {
    let holder = stage.hold("holder");
    let spare = format!("echo spare >>'{}'", stage.path("spare").display());
    let traced = stage.traced(&stage.exec(&["--meanwhile", &spare], "main"));
    stage.until_waiting(1, &traced);
    expect_served(holder);
    let ended = traced.end();
    stage.judge_command(&ended, "main");
    let lines = std::fs::read_to_string(stage.path("spare")).unwrap_or_default().lines().count();
    assert!(lines <= 1, "the spare work ran {lines} times");
    ended.1
}

/// The work of `--else` runs in place of a busy request.
fn otherwise(stage: &Stage<'_>) -> Trace {
    let holder = stage.hold("holder");
    let path = stage.path("else");
    let work = format!("echo \"$RLOCK_BUSY\" >>'{}'; exit 9", path.display());
    let (ran, trace) = stage.traced(&stage.exec(&["-n", "--else", &work], "main")).end();
    let lines = std::fs::read_to_string(path).unwrap_or_default();
    assert!(!stage.has("start main"), "a busy request runs no command");
    match (lines.lines().count(), ran.code()) {
        (_, None) if stage.is_killed(&trace) => {}
        (1, Some(9)) => assert_plain(&ran.stderr),
        (0, Some(69 | 125 | 126)) => stage.judge_message(&ran.stderr),
        _ => panic!("the exit code is not true: {lines:?} {ran:?}"),
    }
    expect_served(holder);
    trace
}

/// The status file agrees with the exit code.
fn status_file(stage: &Stage<'_>) -> Trace {
    let path = stage.path("status");
    let file = path.display().to_string();
    let ended = stage.traced(&stage.exec(&["--status-file", &file], "main")).end();
    // A file that cannot be written is a usage error before anything is locked.
    if ended.0.code() == Some(64) {
        assert!(!stage.has("start main"), "the command ran: {:?}", ended.0);
        stage.judge_message(&ended.0.stderr);
    } else {
        stage.judge_command(&ended, "main");
    }
    if let Ok(text) = std::fs::read_to_string(&path).map(|text| text.trim().to_owned())
        && !text.is_empty()
    {
        let status: serde_json::Value = serde_json::from_str(&text).expect("the status file is JSON or empty");
        let has_run = status["outcome"] == "ran";
        assert_eq!(has_run, stage.has("end main"), "{status} {:?}", ended.0);
    }
    ended.1
}

/// How long a kept hold lasts that nobody releases.
const KEPT: &str = "2s";

/// The session in the output of `rlock acquire`.
fn session(stdout: &str) -> Option<String> {
    stdout.lines().find_map(|line| line.strip_prefix("RLOCK_SESSION=")).map(str::to_owned)
}

fn acquired(stage: &Stage<'_>) -> String {
    let ran = stage.run(&["acquire", &stage.key, "--for", KEPT]);
    session(&ran.stdout).unwrap_or_else(|| panic!("the lock is free: {ran:?}"))
}

fn acquire(stage: &Stage<'_>) -> Trace {
    let ended = stage.traced(&["acquire", &stage.key, "--for", KEPT]).end();
    if stage.judge_other(&ended, &[69, 125]) {
        let session = session(&ended.0.stdout).expect("a lock that is held has a session");
        assert_eq!(stage.run(&["release", &session]).code(), Some(0), "the lock was held");
    }
    ended.1
}

/// The lock lasts longer if `rlock renew` says so.
fn renew(stage: &Stage<'_>) -> Trace {
    let session = acquired(stage);
    let until = || stage.lab.inspect([&stage.key])["resources"][0]["holders"][0]["kept_until"].to_string();
    let before = until();
    let ended = stage.traced(&["renew", "--for", "1m", &session]).end();
    if stage.judge_other(&ended, &[69, 125]) {
        assert!(until() > before, "the lock is renewed");
    }
    // It may be renewed whatever the exit code says.
    stage.run(&["release", &session]);
    ended.1
}

fn release(stage: &Stage<'_>) -> Trace {
    let session = acquired(stage);
    let ended = stage.traced(&["release", &session]).end();
    if stage.judge_other(&ended, stage.or_lost_answer(&[69, 125], &[69, 76, 125])) {
        assert_eq!(stage.run(&stage.exec(&["-n"], "at-once")).code(), Some(OWN_CODE), "the lock is released");
    }
    ended.1
}

/// A keeper holds the lock until the process ends that it is kept for.
fn keeper(stage: &Stage<'_>) -> Trace {
    let mut kept_for = Sleep::start();
    let traced = stage.traced(&["acquire", &stage.key, "--pid", &kept_for.0.id().to_string()]);
    wait_until("the keeper detaches", || traced.has_closed_output());
    kept_for.end();
    let ended = traced.end();
    let code = ended.0.code();
    // The caller tells by its code how its keeper has died. A process that it may not signal is a
    // usage error.
    if code != Some(137) {
        stage.judge_other(&ended, &[64, 69, 125]);
    }
    ended.1
}

/// A process that ends with the test.
struct Sleep(Child);

impl Sleep {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("sleep can be started"))
    }

    fn end(&mut self) {
        // Both calls fail only if the process was reaped already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.end();
    }
}

/// A lock server meets the fault while a client locks and unlocks. The server then serves another
/// client, unless it has ended with a message.
fn serve(stage: &Stage<'_>) -> Trace {
    let path = stage.path("sock");
    let traced = stage.traced(&["serve", "--listen", &format!("unix:{}", path.display())]);
    let mut first = None;
    wait_until("the server listens", || {
        first = Talk::start(&path);
        first.is_some() || !traced.runs()
    });
    let answer = first.as_mut().and_then(|talk| talk.ask(&format!("LOCK {}", stage.key)));
    if let (Some(mut talk), Some(answer)) = (first, answer) {
        assert!(is_answer(&answer), "the client reads {answer:?}");
        if answer == "ok" {
            let busy = stage.run(&stage.exec(&["-n"], "beside"));
            assert!(busy.code() == Some(75) || !traced.runs() || talk.is_told(), "the client holds the lock: {busy:?}");
            let released = talk.ask("UNLOCK");
            let is_true = released.as_deref().is_none_or(is_answer);
            assert!(is_true, "the client reads {released:?}");
        }
    }
    wait_until("the server serves a second client, or ends", || {
        let second = Talk::start(&path).and_then(|mut talk| talk.ask(&format!("LOCK {} -w 20", stage.key)));
        second.is_some_and(|answer| answer.starts_with("ok")) || !traced.runs()
    });
    traced.signal(Signal::TERM);
    let (ran, trace) = traced.end();
    match ran.code() {
        None if stage.is_killed(&trace) => {}
        Some(0 | 143) => assert_plain(&ran.stderr),
        Some(69 | 125) => stage.judge_message(&ran.stderr),
        _ => panic!("the exit code is not true: {ran:?}"),
    }
    trace
}

fn is_answer(line: &str) -> bool {
    ["ok", "unavailable", "lost"].contains(&line.split(' ').next().unwrap_or(""))
}

/// A client of the lock server.
struct Talk(BufReader<UnixStream>);

impl Talk {
    fn start(path: &Path) -> Option<Self> {
        let socket = UnixStream::connect(path).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(40))).expect("the timeout is not zero");
        Some(Self(BufReader::new(socket)))
    }

    /// The answer to a line. `None` if the server closes the connection.
    ///
    /// # Panics
    /// If no answer comes.
    fn ask(&mut self, line: &str) -> Option<String> {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).ok()?;
        self.read()
    }

    fn read(&mut self) -> Option<String> {
        let mut answer = String::new();
        match self.0.read_line(&mut answer) {
            Ok(0) => None,
            Ok(_) => Some(answer.trim_end().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the server does not answer"),
            Err(_) => None,
        }
    }

    /// Whether the server has told that the lock is lost, or has closed the connection.
    fn is_told(&mut self) -> bool {
        self.read().is_none_or(|line| line.starts_with("lost"))
    }
}

fn expect_served(waiter: Running) {
    let ran = waiter.end();
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(OWN_CODE), ""), "{ran:?}");
}
