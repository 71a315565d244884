//! Tests real commands and guardians, which the tests start, signal and kill.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::{Signal as Kernel, kill_process};

use super::super::event::{Ended, Event, Signal, Stop};
use super::super::signals::one_test_at_a_time;
use super::*;
use rlock_sys::alarm::Alarm;

const LIMIT: Duration = Duration::from_secs(60);

fn spec(words: &[&str]) -> CommandSpec {
    CommandSpec { argv: words.iter().map(OsString::from).collect(), session: "5e55".to_owned() }
}

fn start(words: &[&str], variables: &[(OsString, OsString)], group: Group, signals: &Signals) -> Child {
    Child::start(&spec(words), variables, group, signals, &[], LIMIT, |warning| panic!("{warning}")).unwrap()
}

fn next(child: &mut Child, signals: &mut Signals) -> Event {
    loop {
        if let Some(change) = child.look(signals).unwrap() {
            return change;
        }
        signals.wait(&Alarm::default(), &mut Vec::new(), None).unwrap();
        while signals.next_arrival().is_some() {}
    }
}

/// Starts a command, calls `meanwhile` at each stop, and waits for the end of the command.
fn run(words: &[&str], group: Group, mut meanwhile: impl FnMut(&mut Child, Stop)) -> Ended {
    let mut signals = Signals::install(Group::Own).unwrap();
    let mut child = start(words, &[], group, &signals);
    let ended = loop {
        match next(&mut child, &mut signals) {
            Event::Ended(ended) => break ended,
            Event::CommandStopped(stop) => meanwhile(&mut child, stop),
            change => panic!("{change:?}"),
        }
    };
    child.reap().unwrap();
    child.dismiss_guardian();
    child.reap_guardian().unwrap();
    assert_eq!(child.look(&signals).unwrap(), None);
    ended
}

fn failure(words: &[&str]) -> (u8, String) {
    let signals = Signals::install(Group::Own).unwrap();
    let started = Child::start(&spec(words), &[], Group::Own, &signals, &[], LIMIT, |warning| panic!("{warning}"));
    let error = started.expect_err("it must not start");
    (error.code, error.to_string())
}

fn nothing(_: &mut Child, stop: Stop) {
    panic!("stopped by {stop:?}");
}

/// Kills the guardian and waits until another guardian has replaced it.
fn kill_guardian(child: &mut Child, signals: &mut Signals) {
    let first = child.family.guardian.unwrap();
    kill_process(first, Kernel::KILL).unwrap();
    while child.family.guardian == Some(first) {
        signals.wait(&Alarm::default(), &mut Vec::new(), None).unwrap();
        while signals.next_arrival().is_some() {}
        assert_eq!(child.look(signals).unwrap(), None);
    }
}

/// Whether the process is gone or a zombie.
fn has_ended(pid: Pid) -> bool {
    processes::stat(pid).map_or(true, |stat| stat.ended)
}

#[test]
fn exit_code_and_signal_are_those_of_the_command() {
    let _one = one_test_at_a_time();
    assert_eq!(run(&["sh", "-c", "exit 0"], Group::Own, nothing), Ended::Code(0));
    assert_eq!(run(&["sh", "-c", "exit 255"], Group::Shared, nothing), Ended::Code(255));
    assert_eq!(run(&["sh", "-c", "kill -KILL $$"], Group::Own, nothing), Ended::Signal(9));
}

#[test]
fn command_gets_arguments_and_variables_unchanged() {
    let _one = one_test_at_a_time();
    let mut signals = Signals::install(Group::Own).unwrap();
    let words = ["sh", "-c", r#"[ "$1" = "a  b" ] && [ "$RLOCK_TOKEN" = 7 ]"#, "sh", "a  b"];
    let variables = vec![(OsString::from("RLOCK_TOKEN"), OsString::from("7"))];
    let mut child = start(&words, &variables, Group::Own, &signals);
    assert_eq!(next(&mut child, &mut signals), Event::Ended(Ended::Code(0)));
    child.reap().unwrap();
}

/// A process that has ended can't be asked about stops any more.
#[test]
fn end_of_the_command_is_seen_whenever_it_comes() {
    let _one = one_test_at_a_time();
    let signals = Signals::install(Group::Own).unwrap();
    for _ in 0..50 {
        let mut child = start(&["true"], &[], Group::Own, &signals);
        let change = loop {
            if let Some(change) = child.look(&signals).unwrap() {
                break change;
            }
        };
        assert_eq!(change, Event::Ended(Ended::Code(0)));
        child.reap().unwrap();
        child.dismiss_guardian();
        child.reap_guardian().unwrap();
    }
}

#[test]
fn stop_is_reported_and_a_continue_ends_it() {
    let _one = one_test_at_a_time();
    let mut stops = Vec::new();
    let ended = run(&["sh", "-c", "kill -STOP $$; kill -TSTP $$; exit 4"], Group::Own, |child, stop| {
        stops.push(stop);
        child.pass(Signal::Cont);
    });
    assert_eq!(ended, Ended::Code(4));
    assert_eq!(stops, [Stop::Unconditional, Stop::Tstp]);
}

#[test]
fn signals_reach_the_command_alone_or_with_its_group() {
    let _one = one_test_at_a_time();
    // The stop shows that the command has got here.
    let two = ["sh", "-c", "sleep 1000 & kill -STOP $$; wait"];
    let ended = run(&two, Group::Own, |child, _| {
        child.terminate();
        child.pass(Signal::Cont);
    });
    assert_eq!(ended, Ended::Signal(15));
    let trap = ["sh", "-c", "trap 'exit 9' USR1; kill -STOP $$; while :; do :; done"];
    let ended = run(&trap, Group::Shared, |child, _| {
        child.pass(Signal::Usr1);
        child.pass(Signal::Cont);
    });
    assert_eq!(ended, Ended::Code(9));
    let stubborn = ["sh", "-c", "trap '' TERM; kill -STOP $$; while :; do :; done"];
    assert_eq!(run(&stubborn, Group::Own, |child, _| child.kill()), Ended::Signal(9));
}

/// The command leads no process group, so setsid(1) and setsid(2) work as without rlock.
#[test]
fn command_never_leads_a_group_and_joins_that_of_rlock_if_shared() {
    let _one = one_test_at_a_time();
    let ask = |what: &str| format!("set -- $(cat /proc/$$/stat); [ $5 {what} ]");
    assert_eq!(run(&["sh", "-c", &ask("!= $$")], Group::Own, nothing), Ended::Code(0));
    assert_eq!(run(&["setsid", "sh", "-c", &ask("= $$")], Group::Own, nothing), Ended::Code(0));
    let group = rustix::process::getpgrp().as_raw_nonzero();
    assert_eq!(run(&["sh", "-c", &ask(&format!("!= {group}"))], Group::Own, nothing), Ended::Code(0));
    assert_eq!(run(&["sh", "-c", &ask(&format!("= {group}"))], Group::Shared, nothing), Ended::Code(0));
}

#[test]
fn killed_guardian_is_replaced_and_the_command_goes_on() {
    let _one = one_test_at_a_time();
    let mut signals = Signals::install(Group::Own).unwrap();
    let mut child = start(&["sh", "-c", "kill -STOP $$; exit 3"], &[], Group::Own, &signals);
    assert_eq!(next(&mut child, &mut signals), Event::CommandStopped(Stop::Unconditional));
    for _ in 0..3 {
        kill_guardian(&mut child, &mut signals);
    }
    child.pass(Signal::Cont);
    assert_eq!(next(&mut child, &mut signals), Event::Ended(Ended::Code(3)));
    child.reap().unwrap();
    child.dismiss_guardian();
    child.reap_guardian().unwrap();
}

/// Another process acts as rlock, because the real rlock would be the process of these tests.
#[test]
fn guardian_ends_the_tree_in_all_groups_and_sessions_when_rlock_is_gone() {
    let _one = one_test_at_a_time();
    // Each guardian looks for its tree a while longer, so each tree has a session of its own.
    for (group, has_own_memory, session) in
        [(Group::Own, false, "5e55"), (Group::Shared, false, "5e56"), (Group::Own, true, "5e57")]
    {
        let mut signals = Signals::install(Group::Own).unwrap();
        let job = "trap '' TERM HUP; setsid sleep 1000 & timeout 1000 sleep 1000 & sleep 1000 & kill -STOP $$; wait";
        let variables = vec![(OsString::from("RLOCK_SESSION"), OsString::from(session))];
        let mut child = start(&["sh", "-c", job], &variables, group, &signals);
        assert_eq!(next(&mut child, &mut signals), Event::CommandStopped(Stop::Unconditional));
        let mut rlock = Command::new("sleep").arg("1000").spawn().unwrap();
        child.ward.rlock = Pid::from_child(&rlock);
        session.clone_into(&mut child.ward.session);
        kill_guardian(&mut child, &mut signals);
        let line = format!("/proc/{}/cmdline", child.family.guardian.unwrap().as_raw_nonzero());
        while has_own_memory && !fs::read(&line).unwrap().starts_with(b"lock-guardian") {
            std::thread::yield_now();
        }
        let mut tree = child.remember();
        tree.retain(|process| process.pid != child.ward.rlock);
        assert!(tree.len() >= 4, "{tree:?}");
        rlock.kill().unwrap();
        rlock.wait().unwrap();
        assert_eq!(next(&mut child, &mut signals), Event::Ended(Ended::Signal(9)));
        for process in tree {
            while !has_ended(process.pid) {
                std::thread::yield_now();
            }
        }
        child.reap().unwrap();
        child.dismiss_guardian();
        child.reap_guardian().unwrap();
    }
}

/// A member of the tree stays a member although it has its own session and its parent has ended.
#[test]
fn rest_of_the_tree_is_awaited_until_all_processes_have_ended() {
    let _one = one_test_at_a_time();
    let mut signals = Signals::install(Group::Own).unwrap();
    let job =
        "(trap '' TERM; exec setsid sleep 1000) & while [ $(cat /proc/$!/comm) != sleep ]; do :; done; kill -STOP $$";
    let mut child = start(&["sh", "-c", job], &[], Group::Own, &signals);
    assert_eq!(next(&mut child, &mut signals), Event::CommandStopped(Stop::Unconditional));
    child.terminate();
    child.pass(Signal::Cont);
    assert_eq!(next(&mut child, &mut signals), Event::Ended(Ended::Signal(15)));
    child.reap().unwrap();
    child.await_rest();
    assert_eq!(child.look(&signals).unwrap(), None, "the job ignores SIGTERM");
    child.kill();
    assert_eq!(next(&mut child, &mut signals), Event::RestEnded);
    child.dismiss_guardian();
    child.reap_guardian().unwrap();
}

#[test]
fn shell_of_the_spare_work_is_left_alone_until_it_is_forgotten() {
    let _one = one_test_at_a_time();
    let mut signals = Signals::install(Group::Own).unwrap();
    let mut child = start(&["sh", "-c", "kill -STOP $$"], &[], Group::Own, &signals);
    let shell = Pid::from_child(&Command::new("true").spawn().unwrap());
    child.set_apart(SpareIds { shell, group: 0 });
    assert!(matches!(next(&mut child, &mut signals), Event::CommandStopped(_)));
    waitid(WaitId::Pid(shell), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    assert_eq!(child.look(&signals).unwrap(), None);
    assert!(has_ended(shell));
    child.forget_spare();
    assert_eq!(child.look(&signals).unwrap(), None);
    let reaped = waitid(WaitId::Pid(shell), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    assert_eq!(reaped.err(), Some(Errno::CHILD));
    child.pass(Signal::Cont);
    assert_eq!(next(&mut child, &mut signals), Event::Ended(Ended::Code(0)));
    child.reap().unwrap();
    child.dismiss_guardian();
    child.reap_guardian().unwrap();
}

/// The command starts with the dispositions and the mask that rlock was started with: no handler,
/// and no signal blocked or ignored.
#[test]
fn command_inherits_no_signal_setting_of_rlock() {
    let _one = one_test_at_a_time();
    let ask = "grep -q '^SigBlk:.0*$' /proc/self/status && grep -q '^SigIgn:.0*$' /proc/self/status";
    let without = Command::new("sh").args(["-c", ask]).status().unwrap().code().unwrap();
    assert_eq!(run(&["sh", "-c", ask], Group::Own, nothing), Ended::Code(u8::try_from(without).unwrap()));
}

#[test]
fn command_that_cannot_run_is_reported_with_126_or_127() {
    let _one = one_test_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    assert_eq!(failure(&["rlock-no-such-program"]), (127, "cannot run 'rlock-no-such-program': not found".to_owned()));
    assert_eq!(failure(&[""]), (127, "cannot run '': not found".to_owned()));
    assert_eq!(failure(&[]), (127, "cannot run '': not found".to_owned()));
    let lost = file("lost", "#!/no/such/interpreter\n", 0o755);
    assert_eq!(failure(&[&lost]), (127, format!("cannot run '{lost}': its interpreter was not found")));
    let plain = file("plain", "true\n", 0o644);
    assert_eq!(failure(&[&plain]), (126, format!("cannot run '{plain}': permission denied")));
    let folder = dir.path().to_str().unwrap();
    assert_eq!(failure(&[folder]), (126, format!("cannot run '{folder}': permission denied")));
}
