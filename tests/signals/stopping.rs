//! Stopping and continuing, where there is no terminal.

use rustix::process::{Pid, Signal, kill_process};

use crate::session::{Session, pid, until_state};
use crate::support::Lab;
use crate::support::needs::{self, skip_unless};

/// Does for its job what a shell does, without a terminal: gives it a group of its own and waits for it. Without such a one the kernel
/// lets no SIGTSTP stop a process, since nobody could continue it.
const KEEPER: &str = "\
    my $job = fork // die; if (!$job) { setpgrp; exec @ARGV; die } \
    $| = 1; print qq(job $job\\n); waitpid $job, 0; exit($? & 127 ? 128 + ($? & 127) : $? >> 8)";

fn keep(lab: &Lab, words: &[&str]) -> (Session, Pid) {
    let mut session = Session::start(lab, [&["perl", "-e", KEEPER, "rlock"], words].concat());
    session.output.expect("job ");
    let rlock = pid(&session.output.line());
    (session, rlock)
}

/// A command that says its process id and then each USR1, until TERM.
const COMMAND: &str = "trap 'echo usr1' USR1; trap 'exit 3' TERM; sleep 1000 & echo command $$; while :; do wait; done";

/// TSTP stops command and rlock, CONT continues both, time and again.
#[test]
fn tstp_stops_both_and_cont_continues_both() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    let (mut session, rlock) = keep(&lab, &["exec", "k", "--", "sh", "-c", COMMAND]);
    session.output.expect("command ");
    let command = pid(&session.output.line());
    for _ in 0..20 {
        kill_process(rlock, Signal::TSTP).unwrap();
        until_state(command, "T");
        until_state(rlock, "T");
        kill_process(rlock, Signal::CONT).unwrap();
        kill_process(rlock, Signal::USR1).unwrap();
        session.output.expect("usr1\n");
    }
    kill_process(rlock, Signal::TERM).unwrap();
    assert_eq!(session.code(), 3);
    lab.assert_idle();
}

/// An rlock that nobody could continue is not stopped, the command is all the same, and CONT reaches it.
#[test]
fn without_anybody_to_continue_it_rlock_goes_on() {
    let lab = Lab::new();
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", COMMAND]);
    session.output.expect("command ");
    let command = pid(&session.output.line());
    session.signal(Signal::TSTP);
    until_state(command, "T");
    session.signal(Signal::CONT);
    session.signal(Signal::USR1);
    session.output.expect("usr1\n");
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 3);
}

/// Who stops the command alone, by SIGSTOP, stops nothing else, and can continue it alone.
#[test]
fn the_command_can_be_stopped_and_continued_alone() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    let (mut session, rlock) = keep(&lab, &["exec", "k", "--", "sh", "-c", COMMAND]);
    session.output.expect("command ");
    let command = pid(&session.output.line());
    kill_process(command, Signal::STOP).unwrap();
    until_state(command, "T");
    kill_process(rlock, Signal::USR1).unwrap();
    until_state(rlock, "S");
    kill_process(command, Signal::CONT).unwrap();
    session.output.expect("usr1\n");
    kill_process(rlock, Signal::TERM).unwrap();
    assert_eq!(session.code(), 3);
}

/// One that waits stops too; a grant that comes meanwhile is taken up when it goes on.
#[test]
fn a_waiter_stops_and_goes_on() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    let holder = lab.hold("k");
    let (mut session, rlock) = keep(&lab, &["exec", "-v", "k", "--", "echo", "granted"]);
    session.errors().expect("waits for");
    kill_process(rlock, Signal::TSTP).unwrap();
    until_state(rlock, "T");
    drop(holder.end());
    kill_process(rlock, Signal::CONT).unwrap();
    session.output.expect("granted\n");
    assert_eq!(session.code(), 0);
    lab.assert_idle();
}
