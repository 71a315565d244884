//! The terminal's own signals, without a shell between the terminal and rlock.

use std::ffi::OsStr;

use std::fs;

use rustix::process::Signal;

use crate::session::{FOREGROUND, IDLE, Session, script, until_in_foreground};
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, wait_until};

const CTRL_C: &str = "\x03";
const CTRL_BACKSLASH: &str = "\x1c";

/// rlock does not pass on a signal that the terminal already sent to the command's group.
#[test]
fn ctrl_c_reaches_the_command_once() {
    let lab = Lab::new();
    let command = format!("trap 'echo caught' INT; trap 'echo over; kill $!; exit 130' USR1; {IDLE}");
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "sh", "-c", &command]);
    session.output.expect("<ready>");
    for _ in 0..5 {
        session.types(CTRL_C);
        session.output.expect("caught");
    }
    // rlock passes signals on in order, so a duplicate of the last signal would have arrived before
    // this one.
    session.signal(Signal::USR1);
    session.output.expect("over");
    assert_eq!(session.output.all().matches("caught").count(), 5);
    assert_eq!(session.code(), 130);
}

/// Ctrl-C and Ctrl-\ end a command that does not handle them, and rlock exits with 128+n.
#[test]
fn ctrl_c_and_ctrl_backslash_end_the_command() {
    for (key, code) in [(CTRL_C, 130), (CTRL_BACKSLASH, 131)] {
        let lab = Lab::new();
        let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "sh", "-c", FOREGROUND]);
        until_in_foreground(&mut session);
        session.types(key);
        assert_eq!(session.code(), code);
        session.until_gone();
        lab.assert_idle();
    }
}

#[test]
fn ctrl_c_cancels_a_wait() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "-v", "k", "--", "echo", "it runs"]);
    session.output.expect("waits for");
    session.types(CTRL_C);
    session.output.expect("rlock: ended by INT after ");
    session.output.expect("s in the queue; the command was not started\r\n");
    assert_eq!(session.code(), 130);
    assert!(!session.output.all().contains("it runs"));
    assert_eq!(lab.counts("k"), (1, 0));
}

/// In a container that others enter, as by `docker exec`, the session comes from outside and has no
/// number.
#[test]
fn ctrl_c_cancels_a_wait_in_a_session_from_outside_the_container() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let Some(unshare) = needs::namespaces(&["--pid", "--fork", "--mount-proc", "--kill-child"]) else { return };
    let unshare = std::iter::once(unshare.get_program()).chain(unshare.get_args());
    let script = ["sh", "-c", "trap : INT; rlock exec -v k -- true; echo code $?"];
    let mut session = Session::on_terminal(&lab, unshare.chain(script.iter().map(OsStr::new)));
    session.output.expect("waits for");
    session.types(CTRL_C);
    session.output.expect("code 130");
}

/// In a script on a terminal, Ctrl-C ends the script and the command in every shell, also while
/// rlock waits.
#[test]
fn ctrl_c_ends_a_script_and_its_command() {
    skip_unless!(needs::programs(&["bash"]));
    for shell in ["sh", "bash"] {
        let lab = Lab::new();
        script(&lab, "script", "rlock exec k -- sh -c 'echo ready; exec sleep 1000'; echo after");
        let mut session = Session::on_terminal(&lab, [shell, "script"]);
        session.output.expect("ready");
        session.types(CTRL_C);
        assert_eq!(session.code(), 130, "{shell}");
        session.until_gone();
        assert!(!session.output.all().contains("after"), "{shell}");

        let _holder = lab.hold("k");
        script(&lab, "script", "rlock exec -v k -- echo it runs; echo next");
        let mut session = Session::on_terminal(&lab, [shell, "script"]);
        session.output.expect("waits for");
        session.types(CTRL_C);
        assert_eq!(session.code(), 130, "{shell}");
        session.until_gone();
        let shown = session.output.all();
        assert!(!shown.contains("next") && !shown.contains("it runs"), "{shell}");
    }
}

/// If the command handles Ctrl-C and goes on, the script goes on too.
#[test]
fn script_continues_when_its_command_handles_ctrl_c() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    script(&lab, "job", &format!("trap 'kill $!; exit 4' INT; {IDLE}"));
    script(&lab, "script", "rlock exec k -- sh job; echo after $?");
    let mut session = Session::on_terminal(&lab, ["bash", "script"]);
    session.output.expect("<ready>");
    session.types(CTRL_C);
    session.output.expect("after 4");
    assert_eq!(session.code(), 0);
}

/// A signal from a process of the group other than the command counts as sent to rlock alone. An
/// example is `rlock … & kill $!` in a script.
#[test]
fn script_on_a_terminal_can_signal_its_background_job() {
    let lab = Lab::new();
    let text = "\
        mkfifo ready
        rlock exec k -- sh -c 'trap \"echo got it; exit 3\" TERM; sleep 1000 & echo > ready; wait' &
        read -r _ < ready
        kill $!
        wait $!
        echo code $?";
    script(&lab, "script", text);
    let mut session = Session::on_terminal(&lab, ["sh", "script"]);
    session.output.expect("code 3");
    assert_eq!(session.output.so_far().matches("got it").count(), 1);
}

/// The hang-up of the terminal ends the command. The kernel reports the hang-up only to the leader
/// of the session.
#[test]
fn hang_up_sends_hup_to_the_command() {
    let lab = Lab::new();
    let command = format!("trap 'echo hup > told; exit 5' HUP; {IDLE}");
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "sh", "-c", &command]);
    session.output.expect("<ready>");
    session.hang_up();
    assert_eq!(session.code(), 5);
    assert_eq!(fs::read_to_string(lab.folder().join("told")).unwrap(), "hup\n");
    lab.assert_idle();
}

/// The command has no handler. rlock runs as leader, below a shell with job control, and below a
/// shell without it.
#[test]
fn hang_up_ends_a_command_without_a_handler() {
    skip_unless!(needs::programs(&["bash"]));
    for words in
        [&["rlock"][..], &["sh", "-c", "rlock \"$@\"; true", "sh"], &["bash", "-ic", "rlock \"$@\"; true", "bash"]]
    {
        let lab = Lab::new();
        let tail = ["exec", "k", "--", "sh", "-c", FOREGROUND];
        let mut session = Session::on_terminal(&lab, [words, &tail].concat());
        until_in_foreground(&mut session);
        session.hang_up();
        session.until_gone();
        wait_until("the lock is free", || lab.counts("k").0 == 0);
    }
}

/// stdin, stdout and stderr are the command's own and unchanged. With a terminal they are that
/// terminal, with its settings.
#[test]
fn command_gets_the_terminal_with_its_settings_unchanged() {
    let lab = Lab::new();
    let command = "stty -g; rlock exec k -- sh -c 'test -t 0 && test -t 1 && test -t 2 && stty -g && tty'; tty";
    let mut session = Session::on_terminal(&lab, ["sh", "-c", command]);
    assert_eq!(session.code(), 0);
    let shown: Vec<_> = session.output.all().lines().map(str::to_owned).collect();
    assert_eq!(shown.len(), 4, "{shown:?}");
    assert_eq!((&shown[0], &shown[2]), (&shown[1], &shown[3]));
}
