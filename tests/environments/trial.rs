//! A trial: one request after another in an environment, each for a part of the promise.

use std::fmt::Debug;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use crate::WITHIN;
use rlock_testkit::{Lab, RLOCK, Ran, Running, wait_until};

/// What an environment leaves of the promise.
pub(crate) struct Expected {
    /// No command starts: rlock exits with this code and a line with these words.
    pub(crate) refusal: Option<(i32, &'static str)>,
    /// A line with these words says before each command that its processes in other sessions may
    /// outlive it.
    pub(crate) warning: Option<&'static str>,
    /// Whether spare work is done. If not, a line says so.
    pub(crate) spare: bool,
    /// Whether rlock can print anything.
    pub(crate) output: bool,
}

impl Expected {
    /// Whether a request says what it has to say before its command.
    fn fits(&self, said: &str) -> bool {
        // A shell, too, has something to say about some environments.
        let said: Vec<_> = said.lines().filter(|line| line.starts_with("rlock: ")).collect();
        match self.warning {
            Some(words) => said.len() == 1 && said[0].contains(words),
            None => said.is_empty(),
        }
    }
}

/// An environment, and a lab whose commands write into a log.
struct Stage<'l> {
    environment: &'l str,
    lab: &'l Lab,
    /// A copy of the program, since the build directory may be closed to other users.
    program: PathBuf,
    /// The parts of the promise that the environment breaks.
    failures: Vec<String>,
}

impl<'l> Stage<'l> {
    fn new(environment: &'l str, lab: &'l Lab) -> Self {
        // All users share the store, and may write into the folder.
        fs::create_dir(lab.directory()).expect("a folder can be made");
        for (folder, mode) in [(lab.folder(), 0o777), (lab.directory(), 0o1777)] {
            fs::set_permissions(folder, Permissions::from_mode(mode)).expect("the folder belongs to the test");
        }
        // Another process copies the file: a child of another thread could inherit the open copy.
        let program = lab.folder().join("rlock");
        let copied = Command::new("cp").arg(RLOCK).arg(&program).status();
        assert!(copied.is_ok_and(|status| status.success()), "the program can't be copied");
        Self { environment, lab, program, failures: Vec::new() }
    }

    /// An rlock with these words in the environment.
    fn rlock(&self, words: &[&str]) -> Command {
        let mut command = Command::new(WITHIN);
        self.lab.settle(&mut command);
        command.current_dir(self.lab.folder()).arg(self.environment).arg(&self.program).args(words);
        command.env("LAB", self.lab.folder());
        command
    }

    /// An `rlock exec` of a shell command that finds the lab's folder in `$LAB`.
    fn exec(&self, words: &[&str], script: &str) -> Command {
        self.rlock(&[&["exec"], words, &["-c", script]].concat())
    }

    /// What the commands have logged since the last call.
    fn log(&self) -> String {
        let path = self.lab.folder().join("log");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        text
    }

    fn until_logged(&self, line: &str) {
        let path = self.lab.folder().join("log");
        let is_logged = || fs::read_to_string(&path).is_ok_and(|text| text.lines().any(|logged| logged == line));
        wait_until(&format!("'{line}' is logged in {}", self.environment), is_logged);
    }

    fn check(&mut self, part: &str, holds: bool, seen: impl Debug) {
        if !holds {
            self.failures.push(format!("{part}: {seen:?}"));
        }
    }
}

/// Logs that the command runs.
const RUN: &str = r#"echo ran >> "$LAB/log""#;

/// Some processes. Each keeps a file locked as long as it lives.
const TREE: &str = r#"exec flock "$LAB/tree" sh -c 'echo tree >> "$LAB/log"; sleep 1000'"#;
/// The same in two sessions.
const SESSIONS: &str = r#"exec flock "$LAB/tree" setsid -w sh -c 'echo tree >> "$LAB/log"; sleep 1000'"#;

/// Logs that none of these processes lives.
const NO_TREE: &str = r#"flock -n "$LAB/tree" true && echo gone >> "$LAB/log""#;

/// Runs requests in the environment. Returns a line for each part of the promise that is broken.
pub(crate) fn trial(environment: &str, lab: &Lab, expected: &Expected) -> Vec<String> {
    let mut stage = Stage::new(environment, lab);
    let ran = Ran::of(&mut stage.exec(&["k"], RUN));
    let log = stage.log();
    if let Some((code, words)) = expected.refusal {
        let says = ran.stderr.lines().count() == 1 && ran.stderr.contains(words);
        stage.check("a refusal", (ran.code(), &*log, says) == (Some(code), "", true), (&ran, &log));
        return stage.failures;
    }
    let holds = (ran.code(), &*log, expected.fits(&ran.stderr)) == (Some(0), "ran\n", true);
    stage.check("a free lock", holds, (&ran, &log));
    if holds {
        requests_behind_a_holder(&mut stage, expected);
        ends_of_a_tree(&mut stage, expected);
        kept_hold(&mut stage, expected);
    }
    stage.failures
}

fn requests_behind_a_holder(stage: &mut Stage<'_>, expected: &Expected) {
    let holder = stage.lab.hold("k");
    let ran = Ran::of(&mut stage.exec(&["k", "-n"], RUN));
    let log = stage.log();
    stage.check("-n", (ran.code(), &*log) == (Some(75), ""), (&ran, &log));
    let ran = Ran::of(&mut stage.exec(&["k", "-n", "--else", r#"echo else >> "$LAB/log""#], RUN));
    let log = stage.log();
    stage.check("--else", (ran.code(), &*log) == (Some(0), "else\n"), (&ran, &log));

    let waiter = Running::start(&mut stage.exec(&["k", "--meanwhile", r#"echo spare >> "$LAB/log""#], RUN));
    if expected.spare {
        stage.until_logged("spare");
    }
    stage.lab.until_waiting("k", 1);
    holder.end().silently(0);
    let (ran, log) = (waiter.end(), stage.log());
    let (logged, says) = match expected.spare {
        true => ("spare\nran\n", expected.fits(&ran.stderr)),
        false => ("ran\n", ran.stderr.lines().count() == 1 && ran.stderr.contains("--meanwhile")),
    };
    stage.check("a hand-over", (ran.code(), &*log, says) == (Some(0), logged, true), (&ran, &log));
}

fn ends_of_a_tree(stage: &mut Stage<'_>, expected: &Expected) {
    let tree = if expected.warning.is_some() { TREE } else { SESSIONS };
    let ran = Ran::of(&mut stage.exec(&["k", "--max-runtime", "300ms"], tree));
    stage.log();
    stage.check("--max-runtime", ran.code() == Some(124), &ran);
    let ran = Ran::of(&mut stage.exec(&["k"], NO_TREE));
    let log = stage.log();
    stage.check("the tree after --max-runtime", (ran.code(), &*log) == (Some(0), "gone\n"), (&ran, &log));

    let holder = Running::start(&mut stage.exec(&["k"], tree));
    stage.until_logged("tree");
    let waiter = Running::start(&mut stage.exec(&["k"], NO_TREE));
    stage.lab.until_waiting("k", 1);
    stage.log();
    holder.signal(Signal::KILL);
    let (ran, log) = (waiter.end(), stage.log());
    stage.check("the tree of a killed rlock", (ran.code(), &*log) == (Some(0), "gone\n"), (&ran, &log));
}

fn kept_hold(stage: &mut Stage<'_>, expected: &Expected) {
    let ran = Ran::of(&mut stage.rlock(&["acquire", "k", "--for", "1h"]));
    if expected.output {
        stage.check("acquire", ran.code() == Some(0), &ran);
        let session = ran.stdout.lines().find_map(|line| line.strip_prefix("RLOCK_SESSION=")).unwrap_or_default();
        let ran = Ran::of(&mut stage.exec(&["k", "-n"], RUN));
        stage.check("a kept hold", ran.code() == Some(75), &ran);
        let ran = Ran::of(stage.rlock(&["release"]).env("RLOCK_SESSION", session));
        stage.check("release", ran.code() == Some(0), &ran);
    } else {
        // Nobody would know the session.
        stage.check("acquire", ran.code() != Some(0), &ran);
    }
    let ran = Ran::of(&mut stage.exec(&["k", "-n"], RUN));
    stage.check("the lock afterwards", ran.code() == Some(0), &ran);
}
