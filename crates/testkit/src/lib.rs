//! The tools of the tests of the real program: a store per test, running `rlock`s that end with the
//! test, and waiting for conditions.
//!
//! Nothing here sleeps for a fixed time: [`wait_until`] polls a condition, and fails at a deadline
//! far beyond what any machine needs.
//!
//! - `needs`: what a test needs of its machine. `share`: how much of a long test is played.
//! - `servers`: servers of Redis, Valkey and PostgreSQL. `serve`: a running `rlock serve`.
//! - `hung_disk`, `late_disk`, `small_disk`: file systems in trouble. `rights`: descriptors whose close blocks.
//! - `histories`: random histories of the lock table. `random`: repeatable random numbers.
//! - `claims`, `rules`: what the fault suite and the simulation check of every history.

#![allow(missing_docs, reason = "what needs no words has none, as in the tests themselves")]
#![allow(
    clippy::new_without_default,
    clippy::should_implement_trait,
    reason = "the tests call these by name, and no code is generic over them"
)]

pub mod claims;
pub mod histories;
pub mod hung_disk;
pub mod late_disk;
pub mod needs;
pub mod random;
pub mod rights;
pub mod rules;
pub mod serve;
pub mod servers;
pub mod share;
pub mod small_disk;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::Value;
use tempfile::TempDir;

use self::servers::postgres::Postgres;
use self::servers::{Kind, Server};

/// The program under test. RLOCK_PROGRAM names another one when the tests are built, such as that
/// of a package.
pub const RLOCK: &str = match option_env!("RLOCK_PROGRAM") {
    Some(program) => program,
    None => env!("RLOCK_BUILT"),
};

/// The limit of every wait. No test asserts that something is quick, so anything that takes longer
/// has failed.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A holder's command prints this when it runs, and so when its claims are held.
const HELD: &str = "held";

/// The variables by which rlock recognises a CI system. The tests may run in one.
const CI_MARKS: [&str; 10] = [
    "CI",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "BUILDKITE",
    "CIRCLECI",
    "TF_BUILD",
    "DRONE",
    "TRAVIS",
    "BITBUCKET_BUILD_NUMBER",
    "JENKINS_URL",
];

/// The variables by which rlock recognises an agent. An agent may run the tests.
const AGENT_MARKS: [&str; 13] = [
    "CLAUDECODE",
    "CODEX_CI",
    "CODEX_THREAD_ID",
    "CODEX_SESSION_ID",
    "QWEN_CODE",
    "GEMINI_CLI",
    "CURSOR_AGENT",
    "COPILOT_CLI",
    "OPENCODE",
    "PI_CODING_AGENT",
    "VIBE_APP_SERVER_BIN",
    "AI_AGENT",
    "AGENT",
];

/// Waits for a condition. `what` completes the sentence "timed out waiting until …".
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_within(DEADLINE, what, condition);
}

/// Like [`wait_until`] with another limit, for a condition that may take longer than [`DEADLINE`].
pub fn wait_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    /// Many tests wait at the same time, and most conditions start an rlock. The pause grows, so
    /// that long waits leave the processor to those that work.
    const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];
    let deadline = Instant::now() + limit;
    let [mut pause, longest] = PAUSES;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(pause);
        pause = longest.min(pause * 5 / 4);
    }
}

/// A store for one test, and a folder that is deleted with it.
pub struct Lab {
    /// The variables that select the store.
    environment: BTreeMap<&'static str, String>,
    folder: TempDir,
    /// The directory of the store, if it is embedded.
    directory: PathBuf,
    /// The shared server that the store is on. The server must not end before the lab.
    server: Option<Arc<Server>>,
    postgres: Option<Arc<Postgres>>,
}

impl Lab {
    /// A new embedded store. rlock creates its files at the first use.
    pub fn new() -> Self {
        let lab = Self::at("");
        let url = format!("file://{}", lab.directory.display());
        Self { environment: BTreeMap::from([("RLOCK_STORE", url)]), ..lab }
    }

    /// A new namespace on the server at this URL.
    pub fn at(url: impl Into<String>) -> Self {
        static NAMESPACES: AtomicU32 = AtomicU32::new(1);
        let namespace = format!("lab-{}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
        let environment = BTreeMap::from([("RLOCK_STORE", url.into()), ("RLOCK_NAMESPACE", namespace)]);
        let folder = tempfile::tempdir().expect("a folder can be made");
        let directory = folder.path().join("store");
        Self { environment, folder, directory, server: None, postgres: None }
    }

    /// A new namespace on the shared server of this kind.
    pub fn on(kind: Kind) -> Self {
        let server = Server::shared(kind);
        Self { server: Some(Arc::clone(&server)), ..Self::at(server.url()) }
    }

    /// A new namespace on the shared PostgreSQL server, if this machine has one.
    pub fn on_postgres() -> Option<Self> {
        let server = Postgres::is_present().then(Postgres::shared)?;
        Some(Self { postgres: Some(Arc::clone(&server)), ..Self::at(server.url()) })
    }

    /// The same store with one more variable in the environment of each rlock, such as
    /// `RLOCK_PASSWORD`.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.insert(name, value.into());
        self
    }

    /// A folder for the test's own files, deleted with the lab.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The directory of the store, if it is embedded.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The URL of the store.
    pub fn url(&self) -> String {
        self.environment["RLOCK_STORE"].clone()
    }

    /// Whether the store is on a server, where a grant is a lease.
    pub fn is_on_server(&self) -> bool {
        !self.url().starts_with("file:")
    }

    /// The namespace, if the store is on a server.
    pub fn namespace(&self) -> &str {
        &self.environment["RLOCK_NAMESPACE"]
    }

    /// The program with these words, on this store, without input and without the variables of an
    /// rlock around the test.
    pub fn rlock(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(RLOCK);
        self.settle(&mut command);
        command.args(words);
        command
    }

    /// Gives a program the environment of [`Lab::rlock`], if the program starts `rlock` itself.
    pub fn settle(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RLOCK_")) {
            command.env_remove(name);
        }
        for name in CI_MARKS.into_iter().chain(AGENT_MARKS) {
            command.env_remove(name);
        }
        // The configuration of the host must not matter.
        command.env("RLOCK_CONFIG", "").envs(&self.environment).stdin(Stdio::null());
    }

    /// Runs the program with these words and waits for its end.
    pub fn run(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Ran {
        Ran::of(&mut self.rlock(words))
    }

    /// Holds a resource for writing until the holder is told to end or dropped.
    pub fn hold(&self, resource: &str) -> Running {
        self.hold_by(["exec", "--write", resource])
    }

    /// Like [`Lab::hold`] with any words before the `--`, such as `["range-read", "k", "1", "2"]`.
    pub fn hold_by(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Running {
        let mut holder = self.wait_by(words);
        holder.expect_held();
        holder
    }

    /// Like [`Lab::hold_by`] for a holder that has to wait. The call does not wait for the grant,
    /// see [`Running::expect_held`].
    pub fn wait_by(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Running {
        Running::waiter(&mut self.rlock(words))
    }

    /// The output of `rlock inspect --json` with these KEYs.
    pub fn inspect(&self, keys: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Value {
        let ran = Ran::of(self.rlock(["inspect", "--json"]).args(keys));
        assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "inspect fails");
        serde_json::from_str(&ran.stdout).expect("inspect --json prints JSON")
    }

    /// The numbers of holders and waiters of a resource.
    pub fn counts(&self, resource: &str) -> (usize, usize) {
        let found = &self.inspect([resource])["resources"][0];
        let count = |list: &str| found[list].as_array().expect("lists of holders and waiters").len();
        (count("holders"), count("waiters"))
    }

    /// Waits until a resource has this number of waiters.
    pub fn until_waiting(&self, resource: &str, waiters: usize) {
        wait_until(&format!("{waiters} wait for '{resource}'"), || self.counts(resource).1 == waiters);
    }

    /// On a shared server, waits until this many sessions of a resource are subscribed to their
    /// wake-up channels. A waiter subscribes in the call after the one that queues its request. A
    /// holder subscribes about a second after its grant.
    pub fn until_subscribed(&self, resource: &str, sessions: usize) {
        if let Some(server) = &self.postgres {
            let statement = format!(
                "select count(*) from rlock.records where namespace = '{}' and pid is not null",
                self.namespace()
            );
            let what = format!("{sessions} listen for '{resource}'");
            return wait_until(&what, || server.ask(&statement) == sessions.to_string());
        }
        let Some(server) = &self.server else { return };
        let pattern = format!("{}:{{{resource}}}:w:*", self.namespace());
        wait_until(&format!("{sessions} are subscribed for '{resource}'"), || {
            server.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", &pattern]).len() == sessions
        });
    }

    /// The sorted names of the files in the folder of the store's state. Without a session they are
    /// `lock` and `table`.
    pub fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.directory.join("state")) else { return Vec::new() };
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.expect("the folder can be read").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }

    /// The name of the user of this process, as a listing shows it.
    pub fn inspect_user(&self) -> Value {
        let _holder = self.hold("user");
        self.inspect(["user"])["resources"][0]["holders"][0]["user"].clone()
    }

    /// Fails if rlock prints a message of its own in a normal run, with or without a wait.
    pub fn assert_quiet(&self) {
        self.run(["exec", "k", "--", "true"]).silently(0);
        self.run(["exec", "k", "--read", "{k}j", "--slot", "{k}s=2", "--", "echo", "out"]).printed("out\n");
        let holder = self.hold("k");
        let waiter = self.wait_by(["exec", "k"]);
        self.until_waiting("k", 1);
        holder.end().silently(0);
        waiter.end().printed("held\n");
        self.assert_idle();
    }

    /// Fails unless there are no holders, no waiters and no leftover session files.
    pub fn assert_idle(&self) {
        let files = self.files();
        assert!(files.is_empty() || files == ["lock", "table"], "files were left behind: {files:?}");
        // Inspecting an unused embedded store would create it.
        if !files.is_empty() || !self.url().starts_with("file:") {
            assert_eq!(self.inspect([""; 0])["resources"], serde_json::json!([]), "something is still held");
        }
    }
}

/// Runs a test on a new embedded store and on a server of each family.
pub fn on_both(test: impl Fn(&Lab)) {
    test(&Lab::new());
    if Kind::Redis7.is_present() {
        test(&Lab::on(Kind::Redis7));
    }
    if let Some(lab) = Lab::on_postgres() {
        test(&lab);
    }
}

/// The beginning of the program's path, which a message about its command line has, however long
/// the path is.
pub fn program_in_message() -> &'static str {
    RLOCK.get(..30).unwrap_or(RLOCK)
}

/// The words of the C library about an error, as a message has them.
pub fn system_words(error: Errno) -> String {
    let words = std::io::Error::from(error).to_string();
    words.split(" (os error").next().expect("a split has a first part").to_lowercase()
}

/// The result of a program: its exit status and its output.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Runs a program and waits for its end.
    pub fn of(command: &mut Command) -> Self {
        Running::start(command).end()
    }

    /// The exit code; `None` if a signal ended the program.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Fails unless the program exited with 0, printed exactly this, and wrote nothing to standard
    /// error.
    #[track_caller]
    pub fn printed(&self, stdout: &str) {
        assert_eq!((self.code(), self.stdout.as_str(), self.stderr.as_str()), (Some(0), stdout, ""), "{self:?}");
    }

    /// Fails unless the program exited with `code` and wrote nothing to either output.
    #[track_caller]
    pub fn silently(&self, code: i32) {
        assert_eq!((self.code(), self.stdout.as_str(), self.stderr.as_str()), (Some(code), "", ""), "{self:?}");
    }

    /// Fails unless the program exited with `code` and printed one line in the form of all errors.
    /// Returns the text after `rlock: `.
    #[track_caller]
    pub fn failed(&self, code: i32) -> &str {
        assert_eq!((self.code(), self.stdout.as_str()), (Some(code), ""), "{self:?}");
        one_line(&self.stderr)
    }

    /// Fails unless the program exited with `code` and printed exactly this text after `rlock: `.
    #[track_caller]
    pub fn said(&self, code: i32, text: &str) {
        assert_eq!(self.failed(code), text, "{self:?}");
    }

    /// Fails unless the program ended busy and said so of a command. Returns the busy line up to
    /// its end, without the age of the hold, which the load of the machine decides.
    #[track_caller]
    pub fn busy(&self) -> String {
        let line = self.failed(75);
        let why = line.strip_prefix("busy: ").and_then(|line| line.strip_suffix("; the command was not started"));
        let why = why.unwrap_or_else(|| panic!("it is no busy line: {line:?}"));
        let age = why.split_once("Z (").and_then(|(_, rest)| rest.split_once(')')).map(|(age, _)| format!("Z ({age})"));
        age.map_or_else(|| why.to_owned(), |age| why.replacen(&age, "Z", 1))
    }
}

/// The text after the `rlock: ` of an error. Fails unless the error is one line in the form of all
/// errors.
#[track_caller]
fn one_line(stderr: &str) -> &str {
    let text =
        stderr.strip_prefix("rlock: ").unwrap_or_else(|| panic!("the line lacks the program's name: {stderr:?}"));
    let text = text.strip_suffix('\n').unwrap_or_else(|| panic!("the line has no line feed at its end: {stderr:?}"));
    assert!(
        !text.contains(|c: char| c.is_control() || "\u{200b}\u{200d}\u{202e}\u{2066}".contains(c)),
        "the error is not one plain line: {stderr:?}"
    );
    // The sentence may start with a name such as KEY or RLOCK_STORE.
    let sentence = text.starts_with(char::is_uppercase) && text.chars().nth(1).is_some_and(char::is_lowercase);
    assert!(!sentence, "the error starts in upper case: {stderr:?}");
    assert!(!text.ends_with('.'), "the error ends with a full stop: {stderr:?}");
    for debug in ["Err(", "Some(", "None", "Error {", "os error"] {
        assert!(!text.contains(debug), "the error shows {debug}: {stderr:?}");
    }
    text
}

/// A running program. Dropping it kills and reaps the program, also if the test fails.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<thread::JoinHandle<String>>,
    /// The bytes read from standard output.
    printed: Vec<u8>,
}

impl Running {
    /// Starts a program and captures its output.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} can't be started: {error}"));
        let mut errors = child.stderr.take().expect("the program has a pipe");
        let stderr = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = errors.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Self { child, stdin, stdout, stderr: Some(stderr), printed: Vec::new() }
    }

    /// Starts a program with the command of a holder; its words end before the `--`. The call does
    /// not wait for the grant.
    pub fn waiter(rlock: &mut Command) -> Self {
        rlock.args(["--", "sh", "-c", &format!("echo {HELD}; exec cat >/dev/null")]);
        Self::start(rlock.stdin(Stdio::piped()))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the program has not ended yet.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("the process is a child").is_none()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the process was not reaped");
    }

    /// Writes to the program's standard input, which stays open.
    pub fn write(&mut self, text: &str) {
        let input = self.stdin.as_mut().expect("the program was started with a pipe, which is open");
        input.write_all(text.as_bytes()).expect("the program reads its input");
    }

    /// Closes the program's standard input, which ends a holder.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Waits for the next line of the program's standard output.
    pub fn line(&mut self) -> String {
        let from = self.printed.len();
        while self.printed[from..].last() != Some(&b'\n') {
            let mut byte = [0];
            match self.read(&mut byte) {
                0 => panic!("the program ended after {:?}", String::from_utf8_lossy(&self.printed[from..])),
                _ => self.printed.push(byte[0]),
            }
        }
        String::from_utf8_lossy(&self.printed[from..]).trim_end().to_owned()
    }

    /// Waits until a holder holds its claims.
    pub fn expect_held(&mut self) {
        let line = self.line();
        assert_eq!(line, HELD);
        self.printed.clear();
    }

    /// Closes the program's standard input and waits for its end.
    pub fn end(mut self) -> Ran {
        self.close();
        let mut buffer = [0; 4096];
        loop {
            match self.read(&mut buffer) {
                0 => break,
                read => self.printed.extend(&buffer[..read]),
            }
        }
        wait_until("the program ends", || !self.runs());
        let status = self.child.wait().expect("the process is a child");
        let stderr = self.stderr.take().expect("the program ends once").join().expect("the reader doesn't panic");
        Ran { status, stdout: String::from_utf8_lossy(&self.printed).into_owned(), stderr }
    }

    /// Kills the program with SIGKILL and waits for its end.
    pub fn kill(self) -> Ran {
        self.signal(rustix::process::Signal::KILL);
        let ran = self.end();
        assert_eq!(ran.status.signal(), Some(9));
        ran
    }

    /// Reads from the program's standard output; returns 0 at its end.
    fn read(&mut self, buffer: &mut [u8]) -> usize {
        let output = self.stdout.as_mut().expect("the program has a pipe");
        let timeout = Timespec::try_from(DEADLINE).expect("a minute is not too long");
        let ready = poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&timeout)).expect("a pipe can be polled");
        assert!(ready > 0, "the program neither prints nor ends; so far {:?}", String::from_utf8_lossy(&self.printed));
        output.read(buffer).expect("a pipe can be read")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The command dies with its rlock. Both calls fail only if the child was reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
