//! Signals for a running command without a terminal.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::session::{FOREGROUND, Session, command_line, until_in_foreground};
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran, Running, wait_until};

const PASSED: [(Signal, &str); 8] = [
    (Signal::TERM, "TERM"),
    (Signal::INT, "INT"),
    (Signal::HUP, "HUP"),
    (Signal::QUIT, "QUIT"),
    (Signal::USR1, "USR1"),
    (Signal::USR2, "USR2"),
    (Signal::WINCH, "WINCH"),
    (Signal::CONT, "CONT"),
];

/// Signals that mean nothing to rlock, by their numbers: SIGABRT, SIGALRM, SIGTTIN, SIGTTOU, SIGPWR
/// and two real-time signals.
const FOREIGN: [i32; 7] = [6, 14, 21, 22, 30, 37, 64];

/// A shell script that prints the name of each signal that it receives until its standard input
/// ends; then it exits with 9.
fn echoing() -> String {
    let traps: String = PASSED.map(|(_, name)| format!("trap 'echo {name}' {name}; ")).concat();
    format!("exec 3<&0; {traps}cat <&3 & echo ready; while kill -0 $! 2>/dev/null; do wait $!; done; exit 9")
}

/// TERM, INT, HUP, QUIT, USR1, USR2, WINCH and CONT are passed on, in the order in which they were
/// sent, and as often. "The command decides" which code it exits with.
#[test]
fn each_signal_reaches_the_command_as_often_as_it_was_sent() {
    let lab = Lab::new();
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", &echoing()]);
    assert_eq!(session.output.line(), "ready");
    let mut expected = "ready\n".to_owned();
    for (signal, name) in PASSED.into_iter().chain(PASSED.into_iter().rev()) {
        session.signal(signal);
        // The kernel may merge two pending signals, or deliver them in another order. So the test
        // waits for each.
        session.output.expect(name);
        expected += &format!("{name}\n");
    }
    session.close();
    assert_eq!(session.output.all(), expected);
    assert_eq!(session.errors().all(), "");
    assert_eq!(session.code(), 9);
    lab.assert_idle();
}

fn kill(session: &Session, number: i32) {
    let words = [format!("-{number}"), session.pid().to_string()];
    assert!(Command::new("kill").args(words).status().expect("kill is there").success());
}

/// "Signals without a meaning for rlock are passed on: ALRM, PWR, ABRT of another process,
/// real-time ones, TTIN and TTOU without a terminal."
#[test]
fn signal_without_a_meaning_for_rlock_is_passed_on_and_ends_a_wait() {
    let lab = Lab::new();
    let traps: String = FOREIGN.map(|number| format!("trap 'echo {number}' {number}; ")).concat();
    let job = format!("exec 3<&0; {traps}cat <&3 & echo ready; while kill -0 $! 2>/dev/null; do wait $!; done; exit 9");
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "bash", "-c", &job]);
    assert_eq!(session.output.line(), "ready");
    for number in FOREIGN {
        kill(&session, number);
        session.output.expect(&format!("{number}\n"));
    }
    session.close();
    assert_eq!(session.code(), 9);
    let _holder = lab.hold("k");
    for number in FOREIGN {
        let mut waiter = Session::waiter(&lab, &["true"]);
        kill(&waiter, number);
        assert_eq!(waiter.code(), 128 + number);
    }
}

/// "The command decides": its trap decides whether the command ends, and with which code.
#[test]
fn command_that_exits_from_its_trap_decides_the_exit_code() {
    let lab = Lab::new();
    for (code, (signal, name)) in (20..).zip(PASSED) {
        let script = format!("trap 'kill $!; exit {code}' {name}; sleep 1000 & echo ready; wait");
        let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", &script]);
        session.output.expect("ready\n");
        session.signal(signal);
        assert_eq!(session.code(), code, "{name}");
    }
    lab.assert_idle();
}

/// "128+n if signal n ended it": then no process of `sh -c 'a; b'` runs on without the lock.
#[test]
fn command_ended_by_a_passed_signal_leaves_no_process_behind() {
    let lab = Lab::new();
    // SIGINT is left out: a shell that alone gets SIGINT first waits for its program.
    for (signal, name) in PASSED[..6].iter().filter(|(signal, _)| *signal != Signal::INT) {
        let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", FOREGROUND]);
        until_in_foreground(&mut session);
        session.signal(*signal);
        assert_eq!(session.code(), 128 + signal.as_raw(), "{name}");
        session.until_gone();
        assert_eq!(session.errors().all(), "", "{name}");
    }
    lab.assert_idle();
}

/// "128+n if signal n ended it", for each signal.
#[test]
fn command_without_traps_dies_of_each_passed_signal() {
    let lab = Lab::new();
    for (signal, name) in &PASSED[..6] {
        let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
        session.output.expect("ready\n");
        session.signal(*signal);
        assert_eq!(session.code(), 128 + signal.as_raw(), "{name}");
    }
    lab.assert_idle();
}

/// If rlock was started with a signal ignored, rlock and the command keep ignoring it. So nohup
/// works, and so do the background jobs of a script.
#[test]
fn ignored_signals_stay_ignored() {
    let lab = Lab::new();
    let command = "trap 'echo usr1; exit 4' USR1; sleep 1000 & echo ready; wait";
    let ignoring = r#"trap "" HUP INT QUIT; exec rlock exec k -- sh -c "$0""#;
    let mut session = Session::start(&lab, ["sh", "-c", ignoring, command]);
    session.output.expect("ready\n");
    let ignored = [Signal::HUP, Signal::INT, Signal::QUIT];
    ignored.into_iter().for_each(|signal| session.signal(signal));
    // USR1 comes after the other signals and has a higher number. If rlock passed those on, they
    // would have arrived by now.
    session.signal(Signal::USR1);
    assert_eq!(session.output.expect("usr1\n"), "usr1\n");
    assert_eq!(session.code(), 4);
}

/// While rlock waits, an ignored signal cancels nothing.
#[test]
fn ignored_signals_do_not_cancel_a_wait() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let ignoring = r#"trap "" HUP INT QUIT; exec rlock exec -v k -- true"#;
    let mut session = Session::start(&lab, ["sh", "-c", ignoring]);
    session.errors().expect("waits for");
    [Signal::HUP, Signal::INT, Signal::QUIT].into_iter().for_each(|signal| session.signal(signal));
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 128 + 15);
}

/// `nohup rlock exec` survives HUP, and its command still gets TERM.
#[test]
fn nohup_keeps_the_command_alive_after_hup() {
    let lab = Lab::new();
    let command = "trap 'exit 5' TERM; sleep 1000 & echo ready; wait";
    let mut session = Session::start(&lab, ["nohup", "rlock", "exec", "k", "--", "sh", "-c", command]);
    session.output.expect("ready\n");
    session.signal(Signal::HUP);
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 5);
}

/// A signal that was blocked when rlock was started stays blocked for the command. But rlock
/// receives the signal, and notices the end of the command.
#[test]
fn blocked_signal_stays_blocked_for_the_command_but_reaches_rlock() {
    let lab = Lab::new();
    let blocking = |words: &[&str]| {
        let mut command = Command::new("env");
        lab.settle(&mut command);
        command.arg("--block-signal").args(words);
        command
    };
    let ask = ["grep", "SigBlk", "/proc/self/status"];
    let blocked = Ran::of(&mut blocking(&ask)).stdout;
    assert!(!blocked.contains("0000000000000000"), "{blocked}");
    Ran::of(&mut blocking(&[&[RLOCK, "exec", "k", "--"], &ask[..]].concat())).printed(&blocked);
    let holder = lab.hold("k");
    let waiter = Running::start(&mut blocking(&[RLOCK, "exec", "k", "--", "true"]));
    lab.until_waiting("k", 1);
    waiter.signal(Signal::TERM);
    waiter.end().silently(128 + 15);
    holder.end().silently(0);
}

/// "A signal that a sender gives to every process reaches the command once. A signal to rlock alone
/// reaches it always." The sender begins with rlock or ends with it.
#[test]
fn signal_to_every_process_reaches_the_command_once() {
    let lab = Lab::new();
    let names = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "CONT"];
    for starts_with_rlock in [true, false] {
        let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", &echoing()]);
        assert_eq!(session.output.line(), "ready");
        // Before the shell's child has become `cat`, it looks like the shell and would be told,
        // too.
        wait_until("cat runs", || session.members().iter().any(|pid| command_line(*pid).starts_with("cat")));
        let mut members = session.members();
        members.sort_by_key(|pid| (*pid == session.pid()) != starts_with_rlock);
        let mut expected = String::new();
        for (signal, name) in PASSED.into_iter().filter(|(_, name)| names.contains(name)) {
            // `cat` keeps the script alive.
            let is_told = |pid: &&Pid| !command_line(**pid).starts_with("cat");
            members.iter().filter(is_told).for_each(|pid| kill_process(*pid, signal).expect("it runs"));
            session.output.expect(name);
            // A second copy would come before this signal, which is for rlock alone.
            let (last, last_name) = if name == "USR1" { PASSED[0] } else { PASSED[4] };
            session.signal(last);
            session.output.expect(last_name);
            expected += &format!("{name}\n{last_name}\n");
        }
        session.close();
        assert_eq!(session.output.all(), format!("ready\n{expected}"));
        assert_eq!(session.code(), 9);
    }
}

/// "A signal that pairs with a note of the same sender": what a command sends to its own group does
/// not swallow the next signal of that number to rlock.
#[test]
fn signal_after_one_of_the_command_to_its_own_group_reaches_the_command() {
    skip_unless!(needs::programs(&["python3"]));
    let lab = Lab::new();
    let job = "\
import os, signal, sys
def got(*_):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.killpg(0, signal.SIGHUP)
    signal.signal(signal.SIGHUP, got)
    print('heard', flush=True)
signal.signal(signal.SIGHUP, got)
print('ready', flush=True)
for _ in sys.stdin: pass
";
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "python3", "-c", job]);
    session.output.expect("ready\n");
    for _ in 0..3 {
        session.signal(Signal::HUP);
        session.output.expect("heard\n");
    }
    session.close();
    assert_eq!(session.code(), 0);
}
