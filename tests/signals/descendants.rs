//! The command's descendants on a terminal, where the command shares rlock's group with other
//! processes.

use rustix::process::{Signal, kill_process};

use crate::session::{FOREGROUND, IDLE, Session, pid, script, until_in_foreground, until_state};
use rlock_testkit::{Lab, wait_until};

fn break_grant(lab: &Lab) {
    assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
}

/// Starts rlock with this shell script as its command, below a shell that outlives rlock. The end
/// of a session's leader would hang up the terminal, and that would end the processes that rlock
/// has left.
fn below_a_shell(lab: &Lab, job: &str) -> Session {
    script(lab, "job", job);
    script(lab, "outer", "rlock exec k -- sh job; echo code $?; read -r _");
    Session::on_terminal(lab, ["sh", "outer"])
}

fn until_only_the_shell_runs(session: &Session) {
    wait_until("only the shell runs", || session.members() == [session.pid()]);
}

/// After a loss, all processes that `sh -c 'a; b'` has started get TERM, a grace, and KILL.
#[test]
fn lost_command_on_a_terminal_leaves_no_process_behind() {
    let lab = Lab::new();
    let mut session = below_a_shell(&lab, FOREGROUND);
    until_in_foreground(&mut session);
    break_grant(&lab);
    session.output.expect("code 76");
    until_only_the_shell_runs(&session);
    lab.assert_idle();
}

/// The command exits with 0. The orphan ignores TERM, and in the second case has a child of its
/// own.
#[test]
fn lost_command_leaves_no_orphan_that_ignores_term() {
    for orphan in ["exec sleep 1000", "sleep 1000; true"] {
        let lab = Lab::new();
        let job = format!("(trap '' TERM; sh -c '{orphan}' &); trap 'exit 0' TERM; {IDLE}");
        let mut session = below_a_shell(&lab, &job);
        session.output.expect("<ready>");
        break_grant(&lab);
        session.output.expect("code 76");
        until_only_the_shell_runs(&session);
        lab.assert_idle();
    }
}

/// "128+n if signal n ended it": then no process of `sh -c 'a; b'` runs on without the lock.
#[test]
fn command_ended_by_a_passed_signal_leaves_no_process_behind() {
    for signal in [Signal::TERM, Signal::HUP, Signal::USR1] {
        let lab = Lab::new();
        let mut session = below_a_shell(&lab, &format!("echo rlock $PPID; {FOREGROUND}"));
        session.output.expect("rlock ");
        let rlock = pid(&session.output.line());
        until_in_foreground(&mut session);
        kill_process(rlock, signal).expect("it runs");
        session.output.expect(&format!("code {}", 128 + signal.as_raw()));
        until_only_the_shell_runs(&session);
        lab.assert_idle();
    }
}

/// The script and its neighbours in a pipeline share the group, but the command has not started
/// them. They get no signal.
#[test]
fn script_and_pipeline_neighbours_survive_a_lost_command() {
    let lab = Lab::new();
    script(&lab, "job", FOREGROUND);
    let text = "\
        sleep 1000 & neighbour=$!
        rlock exec k -- sh job | { trap 'echo told' TERM; cat; echo \"cat $?\"; }
        kill -0 $neighbour && echo alive
        rlock exec k -- sh job
        echo code $?
        kill -0 $neighbour && echo alive too";
    script(&lab, "script", text);
    let mut session = Session::on_terminal(&lab, ["sh", "script"]);
    for end in ["cat 0", "code 76"] {
        until_in_foreground(&mut session);
        break_grant(&lab);
        session.output.expect(end);
    }
    session.output.expect("alive too");
    assert_eq!(session.code(), 0);
    let shown = session.output.so_far();
    assert!(!shown.contains("told") && shown.matches("alive").count() == 2, "{shown:?}");
}

/// The neighbour is a child of rlock, because the shell that started the neighbour became rlock.
#[test]
fn child_started_before_the_shell_became_rlock_survives_a_loss() {
    let lab = Lab::new();
    script(&lab, "job", FOREGROUND);
    script(&lab, "script", "sleep 1000 & echo neighbour $!; exec rlock exec k -- sh job");
    // A shell surrounds the script, because the end of a session's leader hangs up the terminal.
    script(&lab, "outer", "sh script; echo code $?; read -r _");
    let mut session = Session::on_terminal(&lab, ["sh", "outer"]);
    session.output.expect("neighbour ");
    let neighbour = pid(&session.output.line());
    until_in_foreground(&mut session);
    break_grant(&lab);
    session.output.expect("code 76");
    until_state(neighbour, "S");
}

/// After a normal end, rlock neither waits for background processes nor signals them.
#[test]
fn background_process_outlives_a_normal_end() {
    let lab = Lab::new();
    let job = "sleep 1000 & echo background $!; (sleep 1000 & echo orphan $!); exit 5";
    let mut session = below_a_shell(&lab, job);
    session.output.expect("background ");
    let background = pid(&session.output.line());
    session.output.expect("orphan ");
    let orphan = pid(&session.output.line());
    session.output.expect("code 5");
    lab.assert_idle();
    until_state(background, "S");
    until_state(orphan, "S");
}

/// rlock reaps the orphans that it inherits. The end of an orphan is not the end of the command.
#[test]
fn inherited_orphans_are_reaped_while_the_command_runs() {
    let lab = Lab::new();
    let command = "for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.01 & :); done; echo ready; read -r _; exit 9";
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "sh", "-c", command]);
    session.output.expect("ready");
    // Only rlock, its guardian and the command are left.
    wait_until("all orphans are reaped", || session.processes().len() == 3);
    session.types("\n");
    assert_eq!(session.code(), 9);
    lab.assert_idle();
}
