//! The lock follows the work: a command that was ended holds its lock until its tree is gone.
//!
//! The referee is flock(1): the old work and the next command take the same file, and neither
//! waits. A line `overlap` in the log is a failure.

use std::fs;
use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::session::{Session, pid, script};
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, Running, on_both, wait_until};

/// The trees, as the words of commands. `./work` cleans up after a signal, `./plain` dies of it.
const TREES: &[&[&str]] = &[
    &["./work"],
    &["sh", "-c", "./plain; true"],
    &["sh", "-c", "./work"],
    &["sh", "-c", "timeout 60 ./work; true"],
    &["sh", "-c", "sh -c './work; true'; true"],
    &["sh", "-c", "./work & wait"],
    &["bash", "-c", "set -m; ./work; true"],
    &["bash", "-c", "trap 'exit 1' TERM INT; ./plain & wait"],
    &["bash", "-c", "trap 'exit 1' TERM INT; ./work & wait"],
    &["sh", "-c", "setsid -w ./plain; true"],
    &["sh", "-c", "setsid -w ./work; true"],
    &["flock", "file", "./work"],
    &["make", "-s", "-f", "rules"],
    &["python3", "job.py"],
    &["rlock", "exec", "inner", "--", "sh", "-c", "./work; true"],
];

const WORK: &str = "\
    exec 9>referee; flock -n 9 || echo overlap >>log
    trap 'sleep .2; echo cleaned >>log; exit 3' TERM INT
    echo working; while :; do sleep .02; done";
const PLAIN: &str = "exec 9>referee; flock -n 9 || echo overlap >>log; echo working; while :; do sleep .02; done";
const NEXT: &str = "flock -n referee true || echo overlap >>log; echo next >>log";
const JOB: &str = "\
import signal, subprocess, sys
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: sys.exit(5))
subprocess.Popen(['./work'], start_new_session=True).wait()
";

/// Writes the programs of the trees.
fn prepare(lab: &Lab) {
    use std::os::unix::fs::PermissionsExt;
    for (name, text) in [("work", WORK), ("plain", PLAIN)] {
        script(lab, name, &format!("#!/bin/sh\n{text}\n"));
        let path = lab.folder().join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    }
    script(lab, "job.py", JOB);
    script(lab, "rules", "all:\n\t./work\n\ttrue\n");
}

/// A waiter whose command asks the referee.
fn next(lab: &Lab) -> Running {
    let waiter = Running::start(lab.rlock(["exec", "k", "--", "sh", "-c", NEXT]).current_dir(lab.folder()));
    lab.until_waiting("k", 1);
    waiter
}

fn log(lab: &Lab) -> String {
    fs::read_to_string(lab.folder().join("log")).expect("the next command writes to the log")
}

/// Fails unless the next command has run, and only after the tree of the holder.
fn expect_turns(lab: &Lab, tree: &[&str], mut holder: Session, next: Running) {
    assert_eq!(next.end().code(), Some(0), "{tree:?}");
    holder.code();
    assert!(log(lab).ends_with("next\n") && !log(lab).contains("overlap"), "{tree:?}: {}", log(lab));
    fs::remove_file(lab.folder().join("log")).expect("the log is there");
}

fn exec<'w>(tree: &[&'w str]) -> Vec<&'w str> {
    [&["exec", "k", "--"], tree].concat()
}

/// "Then the lock stays until its tree is gone."
#[test]
fn term_to_rlock_frees_the_lock_when_the_last_process_of_the_tree_has_ended() {
    skip_unless!(needs::programs(&["bash", "setsid", "timeout", "flock", "make", "python3"]));
    on_both(|lab| {
        for tree in TREES {
            prepare(lab);
            let mut holder = Session::rlock(lab, exec(tree));
            holder.output.expect("working");
            let next = next(lab);
            holder.signal(Signal::TERM);
            expect_turns(lab, tree, holder, next);
        }
        lab.assert_idle();
    });
}

/// systemd, Jenkins and Slurm signal every process. `./work` cleans up once.
#[test]
fn term_to_every_process_frees_the_lock_when_the_last_one_has_ended() {
    skip_unless!(needs::programs(&["bash", "setsid", "timeout", "flock", "make", "python3"]));
    let lab = Lab::new();
    for tree in TREES.iter().filter(|tree| !tree.concat().contains("setsid") && tree[0] != "python3") {
        prepare(&lab);
        let mut holder = Session::rlock(&lab, exec(tree));
        holder.output.expect("working");
        let next = next(&lab);
        for member in holder.members() {
            let _ = kill_process(member, Signal::TERM);
        }
        expect_turns(&lab, tree, holder, next);
    }
    lab.assert_idle();
}

/// Ctrl-C reaches the foreground group. "A further INT is passed to the rest as TERM", for jobs
/// that a shell lets ignore INT. `timeout`, `setsid` and `set -m` take the work out of that group,
/// and the shell waits for it.
#[test]
fn ctrl_c_frees_the_lock_when_the_last_process_of_the_tree_has_ended() {
    skip_unless!(needs::programs(&["bash", "setsid", "timeout", "flock", "make"]));
    let lab = Lab::new();
    let is_foreground = |tree: &str| !["python3", "set -m", "timeout", "setsid"].iter().any(|word| tree.contains(word));
    for tree in TREES.iter().filter(|tree| is_foreground(&tree.concat())) {
        prepare(&lab);
        let mut holder = Session::on_terminal(&lab, [&["rlock"], &exec(tree)[..]].concat());
        holder.output.expect("working");
        let next = next(&lab);
        holder.types("\x03");
        if tree.concat().contains('&') {
            holder.output.expect("still run");
            holder.types("\x03");
        }
        expect_turns(&lab, tree, holder, next);
    }
    lab.assert_idle();
}

/// "It died of a signal, whoever sent it": rlock says after a second what holds the lock, and sends
/// nothing.
#[test]
fn kill_of_a_script_leaves_the_lock_held_until_what_it_ran_has_ended() {
    on_both(|lab| {
        let job = "echo shell $$; sh -c 'exec 9>referee; flock -n 9; trap \"echo told\" TERM; mkfifo go; echo working
            read -r _ <go'; true";
        let mut holder = Session::rlock(lab, ["exec", "k", "--", "sh", "-c", job]);
        holder.output.expect("shell ");
        let shell = pid(&holder.output.line());
        holder.output.expect("working");
        let next = next(lab);
        kill_process(shell, Signal::KILL).expect("it runs");
        holder.errors().expect(
            "rlock: 'sh' was ended by KILL; 1 of its processes still runs ('sh'), and 'k' is held until it ends: TERM \
             to rlock, or 'rlock break', ends it\n",
        );
        assert_eq!(lab.counts("k"), (1, 1));
        fs::write(lab.folder().join("go"), "\n").expect("it reads");
        assert_eq!(next.end().code(), Some(0));
        assert_eq!(holder.code(), 137);
        assert!(!holder.output.all().contains("told"));
        assert_eq!(log(lab), "next\n");
    });
}

/// "rlock kills nobody for that: a worker that ignores TERM keeps the lock, as with flock."
/// `--max-runtime` and KILL to rlock end the tree as ever.
#[test]
fn rest_that_ignores_term_keeps_the_lock_until_rlock_is_killed() {
    let lab = Lab::new();
    let job = "(trap '' TERM; while :; do sleep .02; done) & echo ready; wait";
    let mut holder = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", job]);
    holder.output.expect("ready");
    holder.signal(Signal::TERM);
    holder.errors().expect(": 'rlock break' ends ");
    assert_eq!(lab.counts("k"), (1, 0));
    holder.signal(Signal::KILL);
    wait_until("the lock is free", || lab.counts("k") == (0, 0));
    holder.until_gone();
}

/// The signals besides TERM, INT, HUP and QUIT that end a command by default and that rlock passes,
/// by their names for sh(1).
const OTHERS: [&str; 6] = ["USR1", "USR2", "ALRM", "ABRT", "PWR", "RTMIN+3"];

/// "rlock looks at the tree before it passes on a signal that may end the command": a process in a
/// session of its own is no daemon then.
#[test]
fn each_signal_that_ends_the_command_leaves_the_lock_held_for_a_session_below_it() {
    skip_unless!(needs::programs(&["bash", "setsid", "flock"]));
    let lab = Lab::new();
    for signal in OTHERS {
        prepare(&lab);
        let work = WORK.replace("TERM INT", signal);
        let job = format!("setsid bash -c '{}' & wait", work.replace('\'', "'\\''"));
        let mut holder = Session::rlock(&lab, ["exec", "k", "--", "bash", "-c", &job]);
        holder.output.expect("working");
        let next = next(&lab);
        let rlock = holder.pid().as_raw_nonzero().to_string();
        assert!(Command::new("bash").args(["-c", &format!("kill -{signal} {rlock}")]).status().unwrap().success());
        expect_turns(&lab, &[signal], holder, next);
    }
    lab.assert_idle();
}

/// "SIGCONT follows", so a stopped process hears the signal that asks it to end.
#[test]
fn stopped_process_of_an_ended_command_hears_term_and_ends() {
    let lab = Lab::new();
    let job = "sleep 600 & kill -STOP $!; echo ready; wait";
    let mut holder = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", job]);
    holder.output.expect("ready");
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    lab.assert_idle();
    let mut broken =
        Session::rlock(&lab, ["exec", "--grace", "10m", "k", "--", "sh", "-c", "echo ready; kill -STOP $$"]);
    broken.output.expect("ready");
    assert_eq!(lab.run(["break", "k"]).code(), Some(0));
    assert_eq!(broken.code(), 76);
}

/// "A process that is left and ends by itself, with an exit code, leaves daemons as a command
/// does": a build client ends, and its server lives on.
#[test]
fn daemon_of_a_process_that_outlives_a_killed_command_holds_nothing() {
    skip_unless!(needs::programs(&["setsid"]));
    on_both(|lab| {
        let client = "mkfifo go; setsid sh -c 'echo server $$; exec sleep 600' & read -r _ <go";
        script(lab, "client", client);
        let mut holder = Session::rlock(lab, ["exec", "k", "--", "sh", "-c", "echo shell $$; sh client; true"]);
        holder.output.expect("shell ");
        let shell = pid(&holder.output.line());
        holder.output.expect("server ");
        let server = pid(&holder.output.line());
        kill_process(shell, Signal::KILL).expect("it runs");
        holder.errors().expect("2 of its processes still run");
        fs::write(lab.folder().join("go"), "\n").expect("it reads");
        assert_eq!(holder.code(), 137);
        lab.assert_idle();
        kill_process(server, Signal::KILL).expect("it lives");
    });
}

/// "Daemons (a session of their own, parent gone) are spared and hold nothing."
#[test]
fn daemon_of_an_ended_command_holds_nothing_and_lives_on() {
    skip_unless!(needs::programs(&["setsid"]));
    let lab = Lab::new();
    let job = "sh -c 'setsid sh -c \"echo \\$\\$ >daemon.new; mv daemon.new daemon; exec sleep 600\" &'
        until [ -e daemon ]; do sleep .01; done; echo ready; while :; do sleep .02; done";
    let mut holder = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", job]);
    holder.output.expect("ready");
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    lab.assert_idle();
    let daemon = pid(&fs::read_to_string(lab.folder().join("daemon")).expect("it is written"));
    kill_process(daemon, Signal::KILL).expect("it lives");
}

/// "A command that ends by itself frees the lock at once; what it left in the background holds
/// nothing and lives on."
#[test]
fn background_job_of_a_command_that_ends_by_itself_holds_nothing() {
    let lab = Lab::new();
    let mut holder = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", "sleep 600 & echo $!"]);
    let job = pid(&holder.output.line());
    assert_eq!(holder.code(), 0);
    lab.assert_idle();
    kill_process(job, Signal::KILL).expect("it lives");
}
