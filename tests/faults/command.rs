//! The command that every rlock of a scenario runs: this test program itself, told by its
//! environment what to do.
//!
//! It writes down what it does in the log of the scenario, and every few milliseconds that it still
//! runs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use std::{env, process};

use super::claims::{self, Claim, Mode};
use super::log::Log;
use super::plan::{Level, Plan, Step};
use super::support::RLOCK;

const LOG: &str = "FAULTS_LOG";
const PLAN: &str = "FAULTS_PLAN";
const RUN: &str = "FAULTS_RUN";

/// The name of the test that is the command.
const TEST: &str = "command::the_command_of_a_run";

/// The times at which a command shows that it runs.
const BEAT: Duration = Duration::from_millis(10);

/// The program that some commands are run by: timeout(1).
pub(crate) const WRAPPER: &str = "timeout";

/// A lease, and what is left of it for the command to end by itself once it is lost.
pub(crate) const TTL: Duration = Duration::from_secs(2);
pub(crate) const GRACE: Duration = Duration::from_millis(300);

/// Gives an rlock the words of a plan's outermost level, and to its command what it needs.
pub(crate) fn assign<'a>(rlock: &'a mut Command, plan: &Plan, id: &str, log: &Log) -> &'a mut Command {
    let program = env::current_exe().expect("a test program has a path");
    rlock.args(plan.levels[0].words());
    rlock.args(["-v", &format!("--ttl={}ms", TTL.as_millis()), &format!("--grace={}ms", GRACE.as_millis())]);
    rlock.arg("--");
    // A program that puts the command into another process group, from which a lost lock and the
    // end of rlock have to reach it too.
    if id.ends_with(['1', '3', '5', '7', '9']) {
        rlock.args([WRAPPER, "1000"]);
    }
    rlock.arg(program).args([TEST, "--exact", "--test-threads=1", "--nocapture"]);
    rlock.env(LOG, log.path()).env(PLAN, plan.written()).env(RUN, id);
    rlock.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped())
}

/// Writes down that an rlock is asked for, before it is started.
pub(crate) fn announce(log: &Log, id: &str, level: &Level) {
    let patience = level.patience.map_or("-".to_owned(), |patience| patience.as_millis().to_string());
    log.add(id, &format!("asked {} {patience}", claims::written(&level.claims)));
}

/// Follows what an rlock says, up to its end: writes down that it waits once it says so, and gives
/// all else.
pub(crate) fn follow(log: &Log, id: &str, stderr: impl Read) -> Vec<String> {
    let lines = BufReader::new(stderr).lines().map_while(Result::ok);
    lines
        .filter(|line| {
            let waits = line.starts_with("rlock: waits for ");
            if waits {
                log.add(id, "queued");
            }
            if line.contains(": it could not be opened within ") {
                log.add(id, "late");
            }
            !waits && !line.starts_with("rlock: holds ")
        })
        .collect()
}

/// Writes down how an rlock ended.
pub(crate) fn conclude(log: &Log, id: &str, status: process::ExitStatus) {
    log.add(id, &format!("left {}", status.code().map_or("signal".to_owned(), |code| code.to_string())));
}

/// No test of its own: what an rlock that was given words by [`assign`] runs.
#[test]
fn the_command_of_a_run() {
    let (Some(log), Ok(plan), Ok(id)) = (env::var_os(LOG), env::var(PLAN), env::var(RUN)) else { return };
    let command = TheCommand { log: Log::open(&PathBuf::from(log)), plan: Plan::read(&plan), id };
    command.run();
    process::exit(0);
}

struct TheCommand {
    log: Log,
    plan: Plan,
    id: String,
}

impl TheCommand {
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
                Step::Register(name) => self.write_register(name, &token),
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

    fn file(&self, kind: &str, name: &str) -> PathBuf {
        self.log.path().with_file_name(format!("{kind}-{name}"))
    }

    fn count(&self, name: &str, millis: u64) {
        let path = self.file("count", name);
        let number = fs::read_to_string(&path).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) + 1;
        work(millis);
        // A write of a few bytes is done or not done, whenever the process is killed.
        let mut file = File::options().create(true).write(true).truncate(false).open(path).expect("it can be opened");
        file.write_all(number.to_string().as_bytes()).expect("it can be written");
        self.log.add(&self.id, &format!("counted {name} {number}"));
    }

    /// What a system would do that is reached from many machines: it keeps the highest token that
    /// it has seen, and one who comes with a lower one is too late.
    fn write_register(&self, name: &str, token: &str) {
        let mut options = File::options();
        options.create(true).read(true).write(true).truncate(false);
        let mut file = options.open(self.file("register", name)).expect("it can be opened");
        file.lock().expect("it can be locked");
        let mut highest = String::new();
        file.read_to_string(&mut highest).expect("it can be read");
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        let accepted = number(token) >= number(&highest);
        if accepted {
            file.rewind().and_then(|()| file.write_all(token.as_bytes())).expect("it can be written");
        }
        // Before the register takes from the next, so that the log has its order.
        self.log.add(&self.id, &format!("wrote {name} {}", if accepted { "accepted" } else { "refused" }));
    }

    fn shrink(&self, interval: &str) {
        let kept = Claim::part(&self.claim().resource, self.claim().mode, interval);
        self.keep(kept, &["shrink", interval]);
    }

    fn downgrade(&self, mode: Mode) {
        let kept = Claim { mode, ..self.claim().clone() };
        self.keep(kept, &["downgrade", mode.name()]);
    }

    /// From now on this command works on less, whether the others hear of it or not.
    fn keep(&self, claim: Claim, words: &[&str]) {
        self.log.add(&self.id, &format!("kept {}", claims::written(&[claim])));
        // Where the store can't be reached or the hold is lost there is nothing more to be done
        // about it here.
        let _ = Command::new(RLOCK).args(words).stdin(Stdio::null()).stdout(Stdio::null()).status();
    }

    fn nest(&self) {
        let plan = self.plan.inner().expect("the plan has a level more");
        let id = format!("{}.1", self.id);
        announce(&self.log, &id, &plan.levels[0]);
        let mut rlock = Command::new(RLOCK);
        let mut child = assign(&mut rlock, &plan, &id, &self.log).spawn().expect("rlock can be started");
        let said = follow(&self.log, &id, child.stderr.take().expect("it has a pipe"));
        conclude(&self.log, &id, child.wait().expect("it is a child"));
        said.iter().for_each(|line| eprintln!("{line}"));
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("rlock has not set {name}"))
}

/// A command that works for a time; no condition is waited for.
fn work(millis: u64) {
    thread::sleep(Duration::from_millis(millis));
}
