//! Spare work (`--meanwhile`) and the work of a busy request (`--else`), on both kinds of store.

use std::fs;

use rustix::process::Signal;

use rlock_testkit::{Lab, RLOCK, Ran, Running, needs, on_both, wait_until};

/// What the works have logged so far, one word a line.
fn log(lab: &Lab) -> Vec<String> {
    let text = fs::read_to_string(lab.folder().join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A run of `exec` in the folder of the lab, with these options and this command for the shell.
fn exec(lab: &Lab, options: &[&str], command: &str) -> std::process::Command {
    let mut rlock = lab.rlock(["exec", "k"]);
    rlock.args(options).args(["-c", command]).current_dir(lab.folder());
    rlock
}

fn run(lab: &Lab, options: &[&str], command: &str) -> Ran {
    Ran::of(&mut exec(lab, options, command))
}

fn start(lab: &Lab, options: &[&str], command: &str) -> Running {
    Running::start(&mut exec(lab, options, command))
}

/// Spare work that logs its start, waits until the file `go` exists, and logs its end.
const LONG: &str = "echo begins >> log; until [ -e go ]; do sleep 0.01; done; echo ends >> log";
const COMMAND: &str = "echo command >> log";

fn until_logged(lab: &Lab, word: &str) {
    wait_until(&format!("'{word}' is logged"), || log(lab).iter().any(|logged| logged == word));
}

fn is_free(lab: &Lab) -> bool {
    lab.inspect(["k"])["resources"][0]["holders"].as_array().is_none_or(Vec::is_empty)
}

fn go(lab: &Lab) {
    fs::write(lab.folder().join("go"), "").expect("a file can be made");
}

/// "beside the wait if there is one, otherwise after the release": here there is no wait.
#[test]
fn spare_work_of_a_request_that_is_granted_at_once_runs_after_the_release() {
    on_both(|lab| {
        // The spare work gets the lock without a wait, so it is free. It has no variables of the
        // request, and no input.
        let inner = format!("'{}' exec -n k -c 'echo inner >> log'; ", rlock_testkit::RLOCK);
        let spare = inner + "echo \"$RLOCK_SESSION$RLOCK_TOKEN$RLOCK_RESOURCE\" >> log; cat >> log; echo spare >> log";
        run(lab, &["--meanwhile", &spare], COMMAND).silently(0);
        assert_eq!(log(lab), ["command", "inner", "", "spare"]);
        lab.assert_idle();
    });
}

/// "A grant that comes meanwhile starts COMMAND beside the spare work. rlock then releases the lock
/// first and waits for the spare work afterwards."
#[test]
fn grant_does_not_wait_for_the_spare_work_but_the_exit_does() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let mut waiter = start(lab, &["--meanwhile", LONG], COMMAND);
        until_logged(lab, "begins");
        assert_eq!(lab.counts("k"), (1, 1));
        holder.end().silently(0);
        until_logged(lab, "command");
        wait_until("the lock is free", || is_free(lab));
        assert!(waiter.runs());
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
        go(lab);
        waiter.end().silently(0);
        assert_eq!(log(lab), ["begins", "command", "ends"]);
    });
}

/// The waiter sees the hold begin to be kept, though the process of the hold goes on.
#[test]
fn waiter_is_granted_at_the_end_of_a_minimum_hold_while_spare_work_runs() {
    on_both(|lab| {
        let command = "echo command >> log; until [ -e end ]; do sleep 0.01; done";
        let mut holder = start(lab, &["--hold-at-least", "1s", "--meanwhile", LONG], command);
        until_logged(lab, "command");
        let waiter = start(lab, &[], "echo waiter >> log");
        lab.until_waiting("k", 1);
        fs::write(lab.folder().join("end"), "").expect("a file can be made");
        until_logged(lab, "begins");
        waiter.end().silently(0);
        assert!(holder.runs());
        go(lab);
        holder.end().silently(0);
        assert_eq!(log(lab), ["command", "begins", "waiter", "ends"]);
    });
}

#[test]
fn spare_work_that_ends_during_the_wait_is_not_repeated() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let waiter = start(lab, &["--meanwhile", "echo spare >> log"], COMMAND);
        until_logged(lab, "spare");
        holder.end().silently(0);
        waiter.end().silently(0);
        assert_eq!(log(lab), ["spare", "command"]);
    });
}

/// The spare work is no part of the request: it queues behind its own request and gets the lock
/// after it.
#[test]
fn spare_work_may_lock_the_same_key() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let inner = format!("'{}' exec k -c 'echo inner >> log'", rlock_testkit::RLOCK);
        let waiter = start(lab, &["--meanwhile", &inner], COMMAND);
        lab.until_waiting("k", 2);
        holder.end().silently(0);
        waiter.end().silently(0);
        assert_eq!(log(lab), ["command", "inner"]);
    });
}

/// "The spare work also runs if the request is busy". The request leaves the queue first.
#[test]
fn busy_request_runs_its_spare_work_and_exits_75() {
    on_both(|lab| {
        let holder = lab.hold("k");
        for options in [["-n", "-q"], ["-w1s", "-q"]] {
            let _ = fs::remove_file(lab.folder().join("go"));
            let waiter = start(lab, &[&options[..], &["--meanwhile", LONG]].concat(), COMMAND);
            until_logged(lab, "begins");
            wait_until("the request has left the queue", || lab.counts("k") == (1, 0));
            go(lab);
            waiter.end().silently(75);
            assert_eq!(log(lab), ["begins", "ends"]);
            fs::remove_file(lab.folder().join("log")).expect("the log exists");
        }
        holder.end().silently(0);
    });
}

/// "Its failure is reported in one line and changes no exit status."
#[test]
fn failed_spare_work_is_one_line_and_changes_no_exit_code() {
    on_both(|lab| {
        let ran = run(lab, &["--meanwhile", "exit 7"], "exit 5");
        ran.said(5, "the work of --meanwhile exited with 7");
        let ran = run(lab, &["--meanwhile", "kill -9 $$"], "true");
        ran.said(0, "the work of --meanwhile was ended by signal 9");
        let ran = run(lab, &["--meanwhile", "echo spare >> log"], "exec /nowhere");
        assert_eq!((ran.code(), log(lab)), (Some(127), vec!["spare".to_owned()]));
        let ran = lab.run(["exec", "k", "--meanwhile", "echo spare", "--", "/nowhere"]);
        assert_eq!((ran.code(), ran.stdout.as_str()), (Some(127), "spare\n"));
    });
}

/// "but not if the request is refused or does not reach the store"
#[test]
fn spare_work_of_a_refused_or_unreachable_request_is_not_run() {
    on_both(|lab| {
        let inner = [RLOCK, "exec", "--write", "s", "--meanwhile", "echo spare", "--", "true"];
        lab.run([&["exec", "--slot", "s=2", "--"][..], &inner].concat()).failed(65);
    });
    let ran = Lab::at("redis://127.0.0.1:1").run(["exec", "k", "--meanwhile", "echo spare", "--", "true"]);
    ran.failed(69);
}

/// "After TERM, INT, HUP or QUIT rlock does not start the spare work any more. Spare work that runs
/// gets the signal, and KILL after `--grace`."
#[test]
fn signal_ends_the_spare_work_or_keeps_it_from_being_started() {
    on_both(|lab| {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
            let number = signal.as_raw();
            let mut holder =
                Running::waiter(lab.rlock(["exec", "k", "--meanwhile", "echo spare"]).current_dir(lab.folder()));
            holder.expect_held();
            let mut waiter = start(lab, &["--meanwhile", LONG], COMMAND);
            until_logged(lab, "begins");
            waiter.signal(signal);
            wait_until("the waiter ends", || !waiter.runs());
            let ran = waiter.end();
            assert_eq!(ran.code(), Some(128 + number), "{ran:?}");
            assert_eq!(ran.stderr, format!("rlock: the work of --meanwhile was ended by signal {number}\n"));
            holder.signal(signal);
            wait_until("the holder ends", || !holder.runs());
            assert_eq!(holder.end().stdout, "", "the spare work was started after {signal:?}");
            fs::remove_file(lab.folder().join("log")).expect("the log exists");
        }
        let stubborn = format!("trap '' TERM; {LONG}");
        let mut busy = start(lab, &["--grace", "100ms", "--meanwhile", &stubborn], "exit 3");
        until_logged(lab, "begins");
        busy.signal(Signal::TERM);
        wait_until("the spare work is killed", || !busy.runs());
        let ran = busy.end();
        ran.said(3, "the work of --meanwhile was ended by signal 9");
    });
}

/// "The spare work dies with rlock", with the processes of its group.
#[test]
fn spare_work_dies_with_its_rlock() {
    on_both(|lab| {
        let _holder = lab.hold("k");
        // The whole tree of the spare work keeps the pipe open.
        let spare = "echo begins >> log; sh -c 'cat <&3; echo survived >> log' 3<fifo & cat 3>fifo";
        let made = std::process::Command::new("mkfifo").arg(lab.folder().join("fifo")).status();
        assert!(made.expect("mkfifo can be run").success());
        let waiter = start(lab, &["--meanwhile", spare], COMMAND);
        until_logged(lab, "begins");
        waiter.kill();
        wait_until("no process of the spare work is left", || {
            use std::os::unix::fs::OpenOptionsExt;
            // Opening a FIFO for writing fails if no process reads it.
            let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
            let opened = fs::OpenOptions::new().write(true).custom_flags(flags).open(lab.folder().join("fifo"));
            opened.is_err()
        });
    });
}

/// A lost lock ends the command's tree, and leaves the spare work and its orphans alone.
#[test]
fn lost_lock_ends_the_command_and_not_the_spare_work() {
    on_both(|lab| {
        let holder = lab.hold("k");
        // Once the command runs, the spare work leaves an orphan to rlock.
        let await_command = "echo waits >> log; until grep -q command log; do sleep 0.01; done";
        let spare = format!("{await_command}; ({{ {LONG}; }} &); {LONG}");
        let waiter = start(lab, &["--meanwhile", &spare], "echo command >> log; sleep 1000; true");
        until_logged(lab, "waits");
        holder.end().silently(0);
        let count = |word: &str| log(lab).iter().filter(|logged| *logged == word).count();
        wait_until("both parts of the spare work begin", || count("begins") == 2);
        assert_eq!(lab.run(["cleanup", "--break", "k"]).code(), Some(0));
        wait_until("the lock is free", || is_free(lab));
        go(lab);
        assert_eq!(waiter.end().code(), Some(76));
        wait_until("both parts of the spare work end", || count("ends") == 2);
    });
}

/// "the exit status is that of STRING. The busy line is not printed, but in the variable
/// `RLOCK_BUSY`."
#[test]
fn busy_request_with_else_ends_as_that_work_does() {
    on_both(|lab| {
        run(lab, &["-n", "--else", "echo else >> log"], "exit 4").silently(4);
        let holder = lab.hold("k");
        for options in [["-n", "--else"], ["-w1s", "--else"]] {
            let ran = run(lab, &[&options[..], &["echo \"$RLOCK_BUSY\"; exit 9"]].concat(), COMMAND);
            assert_eq!((ran.code(), ran.stderr.as_str()), (Some(9), ""), "{ran:?}");
            assert!(ran.stdout.starts_with("busy: 'k' is held for write by "), "{ran:?}");
            assert!(!ran.stdout.contains("not started"), "what follows is up to the work: {ran:?}");
            assert_eq!(lab.counts("k"), (1, 0));
        }
        let both = ["-n", "--meanwhile", "echo spare >> log", "--else", "echo else >> log; kill -TERM $$"];
        let ran = run(lab, &both, COMMAND);
        assert_eq!((ran.status.code(), log(lab)), (None, vec!["spare".to_owned(), "else".to_owned()]));
        holder.end().silently(0);
    });
    let ran = Lab::at("redis://127.0.0.1:1").run(["exec", "-n", "k", "--else", "echo else", "--", "true"]);
    ran.failed(69);
    let ran = Lab::new().run(["exec", "-n", "k", "-E", "0", "--else", "true", "--", "true"]);
    assert_eq!(ran.code(), Some(64));
}

/// "COMMAND and its arguments are the arguments of STRING".
#[test]
fn work_of_else_gets_the_words_of_the_command() {
    on_both(|lab| {
        let _holder = lab.hold("k");
        let words = ["--", "printf", "<%s>", "a b", "", "c'd"];
        for (work, command, printed) in [
            ("exec \"$@\"", &words[..], "<a b><><c'd>"),
            ("echo $0 $# $1", &words, "/bin/sh 5 printf\n"),
            ("exec \"$@\"", &["-c", "echo $0"], "/bin/sh\n"),
        ] {
            lab.run([&["exec", "-n", "--else", work, "k"], command].concat()).printed(printed);
        }
    });
}

/// As process 1, rlock reaps what it inherits, and still learns how the spare work ended.
#[test]
fn process_1_waits_for_its_spare_work() {
    let lab = Lab::new();
    let Some(mut unshare) = needs::namespaces(&["--pid", "--fork", "--kill-child", "--mount-proc"]) else { return };
    lab.settle(&mut unshare);
    let words = ["exec", "k", "--meanwhile", "sleep 0.1 & (sleep 0.01 &); exit 6", "-c", "(sleep 0.05 &) ; exit 2"];
    let ran = Ran::of(unshare.arg(rlock_testkit::RLOCK).args(words));
    ran.said(2, "the work of --meanwhile exited with 6");
}
