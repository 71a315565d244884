//! `rlock break`: the holder ends its command and gives the lock back, and holds it until then.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::acquire::acquire;
use super::cleanup::broke;
use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both, wait_until};

const REVOKED: &str = "revoked: 'k' was revoked by 'rlock break'; the command is stopped";

/// A holder of `k` whose command ignores TERM and ends when the test lets it.
pub(super) struct Stubborn {
    running: Running,
    end: PathBuf,
}

impl Stubborn {
    pub(super) fn start(lab: &Lab) -> Self {
        let end = lab.folder().join("end");
        let script = "trap '' TERM; echo held; while [ ! -e \"$1\" ]; do sleep 0.02; done";
        let mut rlock = lab.rlock(["exec", "--ttl", "3m", "--grace", "1m", "k", "--", "sh", "-c", script, "sh"]);
        let mut running = Running::start(rlock.arg(&end));
        running.expect_held();
        // From now on the holder hears of a break at once.
        lab.until_subscribed("k", 1);
        Self { running, end }
    }

    pub(super) fn let_end(self) -> Ran {
        fs::write(&self.end, "").expect("a file can be made");
        self.running.end()
    }
}

fn holder(lab: &Lab) -> Value {
    lab.inspect(["k"])["resources"][0]["holders"][0].clone()
}

/// "Until then it holds the lock, and others wait. So no command starts beside the old one."
#[test]
fn waiter_of_a_broken_lock_starts_when_the_old_command_has_ended() {
    on_both(|lab| {
        let old = Stubborn::start(lab);
        let mut waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let mut breaking = Running::start(&mut lab.rlock(["break", "k"]));
        wait_until("the lock is revoked", || holder(lab)["revoked"].is_object());
        lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
        assert_eq!(lab.counts("k"), (1, 1), "the old command still holds");
        assert!(breaking.runs(), "the break waits for the end of the command");
        let ran = old.let_end();
        assert_eq!((ran.code(), ran.stderr), (Some(76), format!("rlock: {REVOKED}\n")));
        waiter.expect_held();
        let (_, fates) = broke(&breaking.end());
        assert!(fates.len() == 1 && fates[0].starts_with("it was released after "), "{fates:?}");
        waiter.end().silently(0);
        lab.assert_idle();
    });
}

/// "If the lock is still held then, a line says who holds it, and the exit status is 75."
#[test]
fn break_of_a_command_that_ignores_term_exits_75_after_its_wait() {
    on_both(|lab| {
        let old = Stubborn::start(lab);
        let pid = old.running.pid();
        for words in [&["break", "-w", "100ms", "k"][..], &["cleanup", "--break", "-w", "0", "k"]] {
            let ran = lab.run(words);
            let line = ran.failed(75);
            assert!(line.starts_with("'k' is revoked and still held for write by "), "{line}");
            assert!(line.contains(&format!(", pid {pid}, ")) && line.contains("by 'rlock break --now k'"), "{line}");
        }
        assert_eq!(lab.counts("k"), (1, 0));
        let (_, fates) = broke(&lab.run(["break", "--now", "k"]));
        assert_eq!(fates, ["its command may run on beside that of the next holder"]);
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
        assert_eq!(old.let_end().code(), Some(76));
        lab.assert_idle();
    });
}

/// "`revoked` is null, or an object with `since`, `host`, `pid`, `user`, `command`, `owner` and
/// `reason`: when somebody ran `rlock break`, and who."
#[test]
fn listings_tell_who_has_revoked_a_lock() {
    on_both(|lab| {
        let old = Stubborn::start(lab);
        assert!(holder(lab)["revoked"].is_null());
        lab.rlock(["break", "-w", "0", "k"]).env("RLOCK_OWNER", "ada").output().expect("rlock starts");
        let shown = holder(lab);
        let revoked = &shown["revoked"];
        let names: Vec<_> = revoked.as_object().expect("an object").keys().collect();
        assert_eq!(names, ["command", "host", "owner", "pid", "reason", "since", "user"]);
        assert_eq!([&revoked["host"], &revoked["user"]], [&shown["host"], &shown["user"]]);
        assert_eq!(revoked["command"].as_array().and_then(|words| words.last()), Some(&Value::from("k")));
        assert!(revoked["since"].as_str() > shown["since"].as_str(), "{shown}");
        let table = lab.run(["inspect", "k"]).stdout;
        assert!(table.lines().any(|line| line.starts_with("k ") && line.contains(" revoked ")), "{table}");
        let of = format!("'k' of pid {} was revoked ", shown["pid"]);
        assert!(table.lines().any(|line| line.starts_with(&of) && line.contains(" ago by ")), "{table}");
        old.let_end();
        let history = lab.run(["history", "k"]).stdout;
        assert!(history.contains(" broken "), "{history}");
    });
}

/// "A lock that is broken leaves no such hold behind", of `--hold-at-least`.
#[test]
fn broken_lock_leaves_no_minimum_hold() {
    on_both(|lab| {
        let mut holder = lab.hold_by(["exec", "--hold-at-least", "1h", "k"]);
        lab.until_subscribed("k", 1);
        broke(&lab.run(["break", "k"]));
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
        wait_until("the holder ends", || !holder.runs());
        holder.end().said(76, REVOKED);
        lab.assert_idle();
    });
}

/// "No command belongs to it, and it is free at once", of a lock of `rlock acquire --for`.
#[test]
fn kept_hold_is_broken_at_once() {
    on_both(|lab| {
        acquire(lab, &["k", "--for", "1h"]);
        assert_eq!(broke(&lab.run(["break", "k"])).1, [""]);
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
        lab.assert_idle();
    });
}

/// "The rlock around it stops the command like any other, and `rlock break` with it."
#[test]
fn break_from_inside_the_command_ends_the_command() {
    on_both(|lab| {
        let script = "echo held; \"$0\" break k >&2; sleep 1000; echo survived";
        let ran = lab.run(["exec", "--ttl", "3s", "--grace", "500ms", "k", "--", "sh", "-c", script, RLOCK]);
        assert_eq!((ran.code(), ran.stdout.as_str()), (Some(76), "held\n"), "{ran:?}");
        assert!(ran.stderr.contains(REVOKED), "{ran:?}");
        lab.assert_idle();
    });
}

/// "On the embedded store, `rlock break` continues it, so that it can end its command. On a server
/// its lease ends."
#[test]
fn lock_of_a_stopped_rlock_is_free_after_a_break() {
    on_both(|lab| {
        let mut holder = lab.hold_by(["exec", "--ttl", "2s", "--grace", "500ms", "k"]);
        lab.until_subscribed("k", 1);
        holder.signal(Signal::STOP);
        broke(&lab.run(["break", "k"]));
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
        holder.signal(Signal::CONT);
        wait_until("the holder ends", || !holder.runs());
        assert_eq!(holder.end().code(), Some(76));
        lab.assert_idle();
    });
}

/// "PID gets the signal of `--lost-signal`, and the lock is free when PID has ended. With
/// `--lost-signal none` it is free at once."
#[test]
fn keeper_holds_a_broken_lock_until_its_process_has_ended() {
    on_both(|lab| {
        let heard = lab.folder().join("heard");
        let script = "trap 'echo >\"$1\"' TERM; echo ready; while :; do sleep 0.02; done";
        let mut process = Running::start(Command::new("sh").args(["-c", script, "sh"]).arg(&heard));
        process.line();
        acquire(lab, &["k", "--ttl", "3m", "--pid", &process.pid().to_string()]);
        lab.until_subscribed("k", 1);
        lab.run(["break", "-w", "100ms", "k"]).failed(75);
        wait_until("the process hears of the break", || heard.exists());
        assert_eq!(lab.counts("k"), (1, 0));
        process.kill();
        wait_until("the lock is free", || lab.counts("k") == (0, 0));
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);

        let mut process = Running::start(Command::new("sleep").arg("1000"));
        acquire(lab, &["k", "--pid", &process.pid().to_string(), "--lost-signal", "none"]);
        broke(&lab.run(["break", "k"]));
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
        assert!(process.runs());
    });
}

/// A break of the outer lock ends what runs below it, with its locks.
#[test]
fn break_of_an_outer_lock_frees_the_locks_below_it() {
    on_both(|lab| {
        let script = "exec \"$0\" exec --write k --write j -- sh -c 'echo held; sleep 1000'";
        let mut outer = Running::start(&mut lab.rlock(["exec", "k", "--", "sh", "-c", script, RLOCK]));
        outer.expect_held();
        broke(&lab.run(["break", "k"]));
        assert_eq!(lab.run(["exec", "-n", "--write", "k", "--write", "j", "--", "true"]).code(), Some(0));
        wait_until("the outer rlock ends", || !outer.runs());
        assert_eq!(outer.end().code(), Some(76));
        lab.assert_idle();
    });
}

/// "A request that holds several resources loses all of them together."
#[test]
fn break_of_one_of_several_resources_frees_all_of_them_at_its_end() {
    on_both(|lab| {
        let end = lab.folder().join("end");
        let script = "trap '' TERM; echo held; while [ ! -e \"$1\" ]; do sleep 0.02; done";
        let words = ["exec", "--ttl", "3m", "--grace", "1m", "--write", "k", "--write", "j"];
        let mut holder = Running::start(lab.rlock(words).args(["--", "sh", "-c", script, "sh"]).arg(&end));
        holder.expect_held();
        lab.until_subscribed("k", 1);
        let mut waiter = lab.wait_by(["exec", "j"]);
        lab.until_waiting("j", 1);
        lab.run(["break", "-w", "100ms", "k"]).failed(75);
        assert_eq!((lab.counts("k"), lab.counts("j")), ((1, 0), (1, 1)));
        let json = lab.inspect(["j"]);
        assert!(json["resources"][0]["holders"][0]["revoked"].is_object(), "{json}");
        fs::write(&end, "").expect("a file can be made");
        waiter.expect_held();
        assert_eq!(holder.end().code(), Some(76));
        waiter.end().silently(0);
        lab.assert_idle();
    });
}

/// "0 if the locks are free; 1 if nobody holds any of the KEYs".
#[test]
fn break_of_free_keys_exits_1_with_any_wait() {
    on_both(|lab| {
        for words in [&["break", "k"][..], &["break", "--now", "k"], &["break", "-w", "1h", "k"]] {
            lab.run(words).said(1, "nobody holds 'k': nothing to break; 'rlock inspect' shows what is held");
        }
        lab.run(["break", "-w", "1s", "--now", "k"]).failed(64);
    });
}

/// "The state of a machine is converted when no rlock of it lives: kept holds, successes and
/// histories stay."
#[test]
fn store_of_the_previous_format_is_converted_when_nobody_uses_it() {
    let lab = Lab::new();
    let lock = lab.directory().join("state/lock");
    let text = || fs::read_to_string(&lock).expect("the lock file");
    acquire(&lab, &["kept", "--for", "1h"]);
    lab.run(["exec", "--once-per", "1h", "job", "--", "true"]).silently(0);
    let holder = lab.hold("k");
    fs::write(&lock, text().replace("format 4\n", "format 3\n")).expect("the file can be written");
    let refused = lab.run(["exec", "-n", "j", "--", "true"]);
    let reason = "it has format 3 and this rlock knows format 4: use one version of rlock on a machine";
    assert!(refused.failed(69).ends_with(reason), "{refused:?}");
    holder.kill();
    wait_until("nobody uses the store", || lab.run(["exec", "-n", "j", "--", "true"]).code() == Some(0));
    assert!(text().starts_with("rlock store, format 4\n"), "{}", text());
    lab.run(["exec", "-nq", "kept", "--", "true"]).silently(75);
    lab.run(["exec", "--once-per", "1h", "job", "--", "echo", "again"]).silently(0);
    assert!(lab.run(["history", "k"]).stdout.contains(" expired "), "the killed holder left its entry");
    lab.run(["exec", "-w", "1m", "k", "--", "true"]).silently(0);
}

/// A break that is interrupted stays in force.
#[test]
fn interrupted_break_leaves_the_lock_revoked() {
    on_both(|lab| {
        let old = Stubborn::start(lab);
        let mut breaking = Running::start(&mut lab.rlock(["break", "-w", "1h", "k"]));
        wait_until("the lock is revoked", || holder(lab)["revoked"].is_object());
        breaking.signal(Signal::TERM);
        wait_until("the break ends", || !breaking.runs());
        assert!(holder(lab)["revoked"].is_object());
        assert_eq!(old.let_end().code(), Some(76));
        lab.assert_idle();
    });
}
