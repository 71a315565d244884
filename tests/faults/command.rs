//! The command that every rlock of a scenario runs. The command is this test program itself, and
//! takes its plan from its environment.
//!
//! The command logs each of its steps, and a heartbeat every few milliseconds.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use std::{env, process};

use super::claims::{self, Claim, Mode};
use super::log::Log;
use super::plan::{Level, Plan, Step};
use rlock_testkit::RLOCK;
use rlock_testkit::random::Random;

const LOG: &str = "FAULTS_LOG";
const PLAN: &str = "FAULTS_PLAN";
const RUN: &str = "FAULTS_RUN";

/// The name of the test function that acts as the command.
const TEST: &str = "command::command_of_a_run";

/// The time between two heartbeats of a command.
pub(crate) const BEAT: Duration = Duration::from_millis(10);

/// What wraps some commands: timeout(1) puts the command into another process group, setsid(1) into
/// another session, a shell stays above the command, and another shell makes it ignore TERM.
const WRAPPERS: [&[&str]; 4] = [
    &["timeout", "1000"],
    &["setsid", "-w"],
    &["sh", "-c", "\"$@\"; exit $?", "sh"],
    &["sh", "-c", "trap '' TERM; exec \"$@\"", "sh"],
];

/// The program under test or, at random, the one that FAULTS_OTHER names: another build that
/// speaks the same format.
pub(crate) fn program() -> PathBuf {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut random = Random::seeded(CALLS.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(process::id()));
    env::var_os("FAULTS_OTHER").filter(|_| random.once_in(2)).map_or(RLOCK.into(), PathBuf::from)
}

/// Whether a process of this name wraps a command.
pub(crate) fn is_wrapper(name: &str) -> bool {
    WRAPPERS.iter().any(|words| words[0] == name)
}

/// The spare work of some runs. It leaves an orphan behind.
const SPARE: &str = "sleep 0.05 & sleep 0.01";

/// The ttl and the grace of every rlock of a scenario.
pub(crate) const TTL: Duration = Duration::from_secs(2);
pub(crate) const GRACE: Duration = Duration::from_millis(300);

/// Sets the arguments and the environment of an rlock for the outermost level of a plan.
pub(crate) fn configure<'a>(rlock: &'a mut Command, plan: &Plan, id: &str, log: &Log) -> &'a mut Command {
    let program = env::current_exe().expect("a test program has a path");
    rlock.args(plan.levels[0].words());
    // The history of the store shows the run as the owner.
    rlock.args(["--owner", id]);
    rlock.args(["-v", &format!("--ttl={}ms", TTL.as_millis()), &format!("--grace={}ms", GRACE.as_millis())]);
    // Spare work runs beside the request and changes nothing about the lock.
    if id.ends_with(['2', '5']) {
        rlock.args(["--meanwhile", SPARE]);
    }
    rlock.arg("--");
    // A loss, the death of rlock and a passed signal must reach the command there, too.
    let wrapper = ["13", "57", "9", "08"].iter().position(|digits| id.ends_with(|digit| digits.contains(digit)));
    rlock.args(wrapper.map_or(&[][..], |wrapper| WRAPPERS[wrapper]));
    rlock.arg(program).args([TEST, "--exact", "--test-threads=1", "--nocapture"]);
    rlock.env(LOG, log.path()).env(PLAN, plan.to_text()).env(RUN, id);
    rlock.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped())
}

/// Logs the request of an rlock before the rlock starts.
pub(crate) fn log_request(log: &Log, id: &str, level: &Level) {
    let wait_limit = level.wait_limit.map_or("-".to_owned(), |wait_limit| wait_limit.as_millis().to_string());
    log.add(id, &format!("asked {} {wait_limit}", claims::to_text(&level.claims)));
}

/// Reads the messages of an rlock until it ends. Logs that the rlock waits, is late or reports a
/// deadlock, and returns its other messages.
pub(crate) fn read_messages(log: &Log, id: &str, stderr: impl Read) -> Vec<String> {
    let lines = BufReader::new(stderr).lines().map_while(Result::ok);
    lines
        .filter(|line| {
            let waits = line.starts_with("rlock: waits for ");
            if waits {
                log.add(id, "queued");
            }
            if line.starts_with("rlock: refused: deadlock: ") {
                log.add(id, "deadlock");
            }
            if line.contains(": it could not be opened within ") {
                log.add(id, "late");
            }
            let is_news = ["waiting: ", "holds ", "releases ", "ran: ", "ended by "]
                .iter()
                .any(|start| line.starts_with(&format!("rlock: {start}")));
            !waits && !is_news
        })
        .collect()
}

/// Logs the exit of an rlock.
pub(crate) fn log_exit(log: &Log, id: &str, status: process::ExitStatus) {
    log.add(id, &format!("exit {}", status.code().map_or("signal".to_owned(), |code| code.to_string())));
}

/// This is not a test: it is the command of every rlock that [`configure`] has prepared.
#[test]
fn command_of_a_run() {
    let (Some(log), Ok(plan), Ok(id)) = (env::var_os(LOG), env::var(PLAN), env::var(RUN)) else { return };
    let command = RunningCommand { log: Log::open(&PathBuf::from(log)), plan: Plan::parse(&plan), id };
    command.run();
    process::exit(0);
}

struct RunningCommand {
    log: Log,
    plan: Plan,
    id: String,
}

impl RunningCommand {
    fn run(&self) {
        let (session, token) = (variable("RLOCK_SESSION"), variable("RLOCK_TOKEN"));
        self.log.add(&self.id, &format!("start {session} {token} {}", process::id()));
        let (id, log) = (self.id.clone(), Log::open(self.log.path()));
        thread::spawn(move || {
            loop {
                thread::sleep(BEAT);
                log.add(&id, "beat");
            }
        });
        for step in &self.plan.levels[0].steps {
            match step {
                Step::Work(millis) => work(*millis),
                Step::Count(name, millis) => self.count(name, *millis),
                Step::Register(name) => write_register(&self.log, &self.id, name, &token),
                Step::Shrink(interval) => self.shrink(interval),
                Step::Downgrade(mode) => self.downgrade(*mode),
                Step::Nest => self.nest(),
            }
        }
        self.log.add(&self.id, "end");
    }

    fn claim(&self) -> &Claim {
        &self.plan.levels[0].claims[0]
    }

    fn count(&self, name: &str, millis: u64) {
        let path = file(&self.log, "count", name);
        let number = fs::read_to_string(&path).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) + 1;
        work(millis);
        // A kill cannot split a write of a few bytes.
        let mut file = File::options().create(true).write(true).truncate(false).open(path).expect("the file opens");
        file.write_all(number.to_string().as_bytes()).expect("the file is written");
        self.log.add(&self.id, &format!("counted {name} {number}"));
    }

    fn shrink(&self, interval: &str) {
        let kept = Claim::part(&self.claim().resource, self.claim().mode, interval);
        self.keep(kept, &["shrink", interval]);
    }

    fn downgrade(&self, mode: Mode) {
        let kept = Claim { mode, ..self.claim().clone() };
        self.keep(kept, &["downgrade", mode.name()]);
    }

    /// From now on the command uses only this claim, whether or not the store learns of it.
    fn keep(&self, claim: Claim, words: &[&str]) {
        self.log.add(&self.id, &format!("kept {}", claims::to_text(&[claim])));
        // The call fails if the store is unreachable or the hold is lost. The command goes on
        // either way.
        let _ = Command::new(program()).args(words).stdin(Stdio::null()).stdout(Stdio::null()).status();
    }

    fn nest(&self) {
        let plan = self.plan.inner().expect("the plan has another level");
        let id = format!("{}.1", self.id);
        log_request(&self.log, &id, &plan.levels[0]);
        let mut rlock = Command::new(program());
        let mut child = configure(&mut rlock, &plan, &id, &self.log).spawn().expect("rlock starts");
        let messages = read_messages(&self.log, &id, child.stderr.take().expect("rlock has a pipe"));
        log_exit(&self.log, &id, child.wait().expect("rlock is a child"));
        messages.iter().for_each(|line| eprintln!("{id}: {line}"));
    }
}

/// Writes to a fenced register, which stores the highest token that it has seen and refuses lower
/// ones.
pub(crate) fn write_register(log: &Log, id: &str, name: &str, token: &str) {
    let mut options = File::options();
    options.create(true).read(true).write(true).truncate(false);
    let mut file = options.open(file(log, "register", name)).expect("the register opens");
    file.lock().expect("the register can be locked");
    let mut highest = String::new();
    file.read_to_string(&mut highest).expect("the register is read");
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let accepted = number(token) >= number(&highest);
    if accepted {
        file.rewind().and_then(|()| file.write_all(token.as_bytes())).expect("the register is written");
    }
    // The register is still locked, so the log has the order of the writes.
    log.add(id, &format!("wrote {name} {}", if accepted { "accepted" } else { "refused" }));
}

/// A file that all commands share.
fn file(log: &Log, kind: &str, name: &str) -> PathBuf {
    log.path().with_file_name(format!("{kind}-{name}"))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("rlock has not set {name}"))
}

/// Stands for the work of a command. The sleep does not wait for a condition.
fn work(millis: u64) {
    thread::sleep(Duration::from_millis(millis));
}
