//! Stopping and continuing without a terminal.

use rustix::process::{Pid, Signal, kill_process};

use crate::session::{Session, pid, until_state};
use rlock_testkit::Lab;
use rlock_testkit::needs::{self, skip_unless};

/// Acts as a shell with job control without a terminal: gives its job a group of its own and waits
/// for the job. Without such a parent, the kernel lets no SIGTSTP stop a process, since no process
/// could continue it.
const JOB_CONTROL: &str = "\
    my $job = fork // die; if (!$job) { setpgrp; exec @ARGV; die } \
    $| = 1; print qq(job $job\\n); waitpid $job, 0; exit($? & 127 ? 128 + ($? & 127) : $? >> 8)";

fn start_as_job(lab: &Lab, words: &[&str]) -> (Session, Pid) {
    let mut session = Session::start(lab, [&["perl", "-e", JOB_CONTROL, "rlock"], words].concat());
    session.output.expect("job ");
    let rlock = pid(&session.output.line());
    (session, rlock)
}

/// A command that prints its process id and then a line for each USR1, until TERM.
const COMMAND: &str = "trap 'echo usr1' USR1; trap 'exit 3' TERM; sleep 1000 & echo command $$; while :; do wait; done";

#[test]
fn tstp_and_cont_stop_and_continue_rlock_and_command() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    let (mut session, rlock) = start_as_job(&lab, &["exec", "k", "--", "sh", "-c", COMMAND]);
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

/// If no process could continue rlock, TSTP stops the command but not rlock, and CONT reaches the
/// command.
#[test]
fn tstp_does_not_stop_an_rlock_that_no_process_could_continue() {
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

/// SIGSTOP and SIGCONT to the command alone stop and continue the command, not rlock.
#[test]
fn command_can_be_stopped_and_continued_without_rlock() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    let (mut session, rlock) = start_as_job(&lab, &["exec", "k", "--", "sh", "-c", COMMAND]);
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

/// TSTP also stops a waiting rlock. rlock uses a grant that came meanwhile when it continues.
#[test]
fn tstp_and_cont_stop_and_continue_a_waiter() {
    skip_unless!(needs::programs(&["perl"]));
    let lab = Lab::new();
    let holder = lab.hold("k");
    let (mut session, rlock) = start_as_job(&lab, &["exec", "-v", "k", "--", "echo", "granted"]);
    session.errors().expect("waits for");
    kill_process(rlock, Signal::TSTP).unwrap();
    until_state(rlock, "T");
    drop(holder.end());
    kill_process(rlock, Signal::CONT).unwrap();
    session.output.expect("granted\n");
    assert_eq!(session.code(), 0);
    lab.assert_idle();
}
