//! The messages of rlock, and the cases in which rlock writes nothing.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both, wait_until};

/// Why a request is busy: the claim that is in the way, from the output of `inspect`.
fn busy_line(what: &str, of: &Value, waiting: &str) -> String {
    let text = |name: &str| of[name].as_str().expect("text").to_owned();
    let words: Vec<_> =
        of["command"].as_array().expect("words").iter().map(|word| word.as_str().expect("text")).collect();
    let (user, host, pid, command) = (text("user"), text("host"), &of["pid"], words.join(" "));
    format!("{what} by {user}@{host}, pid {pid}, '{command}', since {}; {waiting}", text("since"))
}

/// "In a normal run `rlock exec` writes nothing, so cron sends no mail because of it."
#[test]
fn normal_run_writes_nothing_even_after_a_wait() {
    on_both(Lab::assert_quiet);
}

/// One busy line names the resource, its holder (user@host, pid, command), the start of the hold,
/// and the number of waiters, and ends with what has not happened.
#[test]
fn busy_line_names_holder_start_and_number_of_waiters() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let held = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
        assert_eq!(held["pid"], holder.pid());
        let busy = || lab.run(["exec", "-n", "k", "--", "true"]);
        assert_eq!(busy().busy(), busy_line("'k' is held for write", &held, "nobody waits"));
        let _first = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        assert_eq!(busy().busy(), busy_line("'k' is held for write", &held, "1 waits"));
        let _second = lab.wait_by(["exec", "--read", "k"]);
        lab.until_waiting("k", 2);
        assert_eq!(busy().busy(), busy_line("'k' is held for write", &held, "2 wait"));
        // The busy line of a request that waited also tells how long it waited.
        let waited = busy_line("'k' is held for write", &held, "2 wait; waited 10ms");
        assert_eq!(lab.run(["exec", "-w", "10ms", "k", "--", "true"]).busy(), waited);
        let busy = lab.run(["exec", "-n", "free", "--write", "k", "--", "true"]);
        assert_eq!(busy.busy(), busy_line("'k' is held for write", &held, "2 wait"));
    });
}

/// The busy line counts the other holders in the way ("and 2 more"). It counts each holder once
/// over all resources of the request.
#[test]
fn busy_line_counts_the_other_holders() {
    on_both(|lab| {
        let _readers = [lab.hold_by(["exec", "--read", "k"]), lab.hold_by(["exec", "--read", "k", "--write", "j"])];
        let busy = |words: &[&str]| lab.run([&["exec", "-n"], words, &["--", "true"]].concat()).busy().to_owned();
        assert!(busy(&["k"]).ends_with("Z, and 1 more; nobody waits"), "{}", busy(&["k"]));
        assert!(busy(&["--write", "j"]).ends_with("Z; nobody waits"));
        assert!(busy(&["k", "--write", "j"]).ends_with("Z, and 1 more; nobody waits"));
        let _part = lab.hold_by(["range-write", "i", "1", "2"]);
        let _other = lab.hold_by(["range-write", "i", "3", "4"]);
        let said = busy(&["k", "--write", "i"]);
        assert!(said.contains("'k' is held for read by ") && said.ends_with("Z, and 3 more; nobody waits"), "{said}");
        let ran = lab.run(["range-read", "-n", "i", "0", "1", "--", "true"]);
        assert!(ran.busy().ends_with("Z; nobody waits"), "{ran:?}");
    });
}

/// The busy line names the interval that is held, not the interval that was requested.
#[test]
fn busy_line_names_the_interval_that_is_held() {
    let lab = Lab::new();
    let _elsewhere = lab.hold_by(["range-write", "k", "5", "6"]);
    let _holder = lab.hold_by(["range-read", "k", "[1,2)"]);
    let holders = lab.inspect(["k"])["resources"][0]["holders"].clone();
    let held = holders.as_array().expect("a list").iter().find(|holder| holder["mode"] == "read").expect("a reader");
    let said = busy_line("[1,2) of 'k' is held for read", held, "nobody waits");
    assert_eq!(lab.run(["range-write", "k", "1.5", "3", "-n", "--", "true"]).busy(), said);
}

/// `-q` suppresses the busy line.
#[test]
fn quiet_busy_request_writes_nothing() {
    on_both(|lab| {
        let _holder = lab.hold("k");
        for words in [["-q", "-n"], ["--quiet", "-w1ms"], ["-nq", "-w0"]] {
            let ran = lab.run(["exec", words[0], words[1], "-E", "9", "k", "--", "true"]);
            ran.silently(9);
        }
    });
}

/// "A `--no-wait` request obeys the same rule: it is busy, too, when an earlier waiter conflicts
/// with it."
#[test]
fn no_wait_request_is_busy_behind_a_conflicting_waiter() {
    let lab = Lab::new();
    let _reader = lab.hold_by(["exec", "--read", "k"]);
    lab.run(["exec", "-n", "--read", "k", "--", "true"]).silently(0);
    let writer = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    let waits = lab.inspect(["k"])["resources"][0]["waiters"][0].clone();
    let said = busy_line("'k' is waited for in mode write", &waits, "1 waits");
    for wait in ["-n", "-w0"] {
        assert_eq!(lab.run(["exec", wait, "--read", "k", "--", "true"]).busy(), said);
    }
    writer.kill();
    lab.run(["exec", "-n", "--read", "k", "--", "true"]).silently(0);
}

/// `--wait DUR`: a request that gets the lock within DUR is granted. Any other request ends no
/// sooner than DUR and leaves the queue.
#[test]
fn wait_ends_no_sooner_than_its_duration() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let started = Instant::now();
    assert!(lab.run(["exec", "-w", "150ms", "k", "--", "true"]).busy().ends_with("; nobody waits; waited 150ms"));
    assert!(started.elapsed() >= Duration::from_millis(150));
    assert_eq!(lab.counts("k"), (1, 0));
    let waiter = lab.wait_by(["exec", "-w", "10m", "k"]);
    lab.until_waiting("k", 1);
    holder.end().silently(0);
    waiter.end().printed("held\n");
}

/// `-v` reports the grant and the release in the words of the busy line.
#[test]
fn verbose_request_reports_the_grant_and_the_release() {
    let lab = Lab::new();
    let ran = lab.run(["exec", "-v", "k", "--range-read", "t", "[1.2,1.8]", "--slot", "s=2", "--", "true"]);
    let claims = "'k' for write, [1.2,1.8] of 't' for read, a slot of 's'";
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(0), ""));
    assert_eq!(ran.stderr, format!("rlock: holds {claims}\nrlock: releases {claims}\n"));
    let ran = lab.run(["exec", "-v", "--slot", "s=5:2", "--slot", "t=2", "--", "true"]);
    let claims = "'s' for 2 slots of 5, a slot of 't'";
    assert_eq!(ran.stderr, format!("rlock: holds {claims}\nrlock: releases {claims}\n"));
}

/// "With -v exec says in the words of the busy line what it holds, shrinks, downgrades and releases
/// (`holds [1.2,1.8] of 'tree' for write`)."
#[test]
fn verbose_request_reports_the_changes_of_its_hold() {
    on_both(|lab| {
        let changes = "rlock shrink --resource t 1.2 1.8 && rlock shrink --resource u 1/4 1/2\n\
            rlock downgrade --resource t read && rlock exec j -- rlock downgrade --resource u prewrite";
        let words = ["exec", "-v", "--range-write", "t", "[1,2]", "--range-read", "t", "[3,4]"];
        let mut rlock = lab.rlock(words);
        let folder = Path::new(RLOCK).parent().expect("rlock is in a folder").display().to_string();
        rlock.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap_or_default()));
        let ran = Ran::of(rlock.args(["--range-write", "u", "(0,1)", "-c", changes]));
        let lines = [
            "holds [1,2] of 't' for write, [3,4] of 't' for read, (0,1) of 'u' for write",
            "shrinks [1,2] of 't' for write to [1.2,1.8]",
            "shrinks (0,1) of 'u' for write to [1/4,1/2]",
            "downgrades [1.2,1.8] of 't' for write, [3,4] of 't' for read to read",
            // RLOCK_VERBOSE is for every rlock in the command.
            "holds 'j' for write",
            "downgrades [1/4,1/2] of 'u' for write to prewrite",
            "releases 'j' for write",
            "releases [1.2,1.8] of 't' for read, [3,4] of 't' for read, [1/4,1/2] of 'u' for prewrite",
        ];
        assert_eq!((ran.code(), ran.stderr), (Some(0), lines.map(|line| format!("rlock: {line}\n")).concat()));
        let ran = lab.run(["range-write", "-v", "t", "1", "2", "--", RLOCK, "shrink", "5", "6"]);
        assert!(ran.code() == Some(65) && !ran.stderr.contains("shrinks"), "{ran:?}");
    });
}

/// "`-v`, and RLOCK_VERBOSE=1 for every subcommand, says why a run was skipped".
#[test]
fn verbose_request_says_why_its_run_is_skipped() {
    on_both(|lab| {
        let verbose = |words: &[&str]| Ran::of(lab.rlock(words).env("RLOCK_VERBOSE", "1"));
        let holder = lab.hold("k");
        let skip = ["exec", "-n", "--skip-ok", "k", "--", "true"];
        lab.run(skip).silently(0);
        let start = "rlock: skipped: 'k' is held for write by ";
        let said = [verbose(&skip), lab.run(["exec", "-v", "-n", "--skip-ok", "k", "--", "true"])];
        for ran in said {
            assert!(ran.code() == Some(0) && ran.stderr.starts_with(start), "{ran:?}");
            assert!(ran.stderr.contains(" times since "), "{ran:?}");
        }
        Ran::of(lab.rlock(["exec", "-q", "-n", "--skip-ok", "k", "--", "true"]).env("RLOCK_VERBOSE", "1")).silently(0);
        holder.end().silently(0);
        let once = ["exec", "--once-per", "1h", "k", "--", "true"];
        lab.run(once).silently(0);
        lab.run(once).silently(0);
        let text = "skipped: 'k' had a successful run within --once-per; see 'rlock history'";
        verbose(&once).said(0, text);
        let history = lab.run(["history", "k"]).stdout;
        assert!(history.contains(" skipped 4 times ") && history.contains(" already done 2 times "), "{history}");
    });
}

/// `-v` says in words what changed, or what the exit status tells.
#[test]
fn every_change_of_a_hold_is_told_with_verbose() {
    let lab = Lab::new();
    let kept = lab.run(["acquire", "k", "--for", "1h"]).stdout;
    let variables: Vec<_> = kept.lines().filter_map(|line| line.split_once('=')).collect();
    let below = |words: &[&str]| Ran::of(lab.rlock(words).envs(variables.iter().copied()));
    below(&["held", "-v", "k"]).said(0, "below a live lock of 'k' that allows write");
    below(&["renew", "-v"]).said(0, "renews 'k' for write for at least 1h");
    below(&["release", "-v"]).said(0, "releases 'k' for write");
    below(&["held", "-v", "k"]).said(1, "below no live lock of 'k' that allows write");
    lab.run(["held", "-v", "k"]).said(1, "not below any rlock: RLOCK_SESSION is not set");
}

/// "A recognised agent, any CI and -v have a wait write lines to standard error: after a second,
/// when the first in the way changes, …, and at the grant" with how long it took.
#[test]
fn long_wait_tells_of_itself_to_agents_in_a_ci_and_with_verbose() {
    let lab = Lab::new();
    let log = lab.folder().join("log");
    let lines = || -> Vec<String> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter(|line| !line.starts_with("rlock: waits for ")).map(str::to_owned).collect()
    };
    for caller in ["CIRCLECI=true", "CI=true", "AGENT=goose", ""] {
        let first = lab.hold("k");
        let mut second = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let mut rlock = std::process::Command::new("sh");
        lab.settle(&mut rlock);
        rlock.args(["-c", "exec \"$0\" exec k \"$@\" 2>log", RLOCK]).current_dir(lab.folder());
        match caller.split_once('=') {
            Some((name, value)) => rlock.env(name, value),
            None => rlock.arg("-v"),
        };
        let waiter = Running::waiter(&mut rlock);
        lab.until_waiting("k", 2);
        let told = |line: usize, pid: u32| {
            wait_until("the wait tells of itself", || lines().len() > line);
            let text = lines().swap_remove(line);
            let [start, middle] = match (caller, line) {
                ("", _) => ["rlock: waiting: 'k' is held for write by ", ""],
                (_, 0) => ["rlock: waiting for 'k', 2 of 2, ", "s: held for write by "],
                _ => ["rlock: waiting for 'k', 1 of 1, ", "s: held for write by "],
            };
            assert!(text.starts_with(start) && text.contains(middle), "{text}");
            assert!(text.contains(&format!(", pid {pid}, ")), "{text}");
        };
        told(0, first.pid());
        first.end().silently(0);
        second.expect_held();
        told(1, second.pid());
        second.end().silently(0);
        waiter.end().printed("held\n");
        let lines = lines();
        assert!(lines[2].starts_with("rlock: holds 'k' for write; waited "), "{lines:?}");
        let rest: &[&str] = match caller {
            "AGENT=goose" => &["rlock: ran: exit 0 after "],
            "" => &["rlock: releases 'k' for write", "rlock: ran: exit 0 after "],
            _ => &[],
        };
        assert_eq!(lines.len(), 3 + rest.len(), "{lines:?}");
        assert!(rest.iter().zip(&lines[3..]).all(|(start, line)| line.starts_with(start)), "{lines:?}");
        std::fs::remove_file(&log).expect("the log exists");
    }
    let quiet = lab.rlock(["exec", "-q", "k", "--", "true"]).env("CIRCLECI", "true").output().expect("rlock starts");
    assert!(quiet.stderr.is_empty());
}

/// Names and command lines are external text. rlock prints such text as one line without control
/// characters.
#[test]
fn control_characters_of_a_command_line_never_reach_the_terminal() {
    let lab = Lab::new();
    let mut rlock =
        lab.rlock(["exec", "k", "--", "sh", "-c", "echo held; exec cat >/dev/null", "\u{1b}[2J\nrlock: fake"]);
    let mut holder = rlock_testkit::Running::start(rlock.stdin(std::process::Stdio::piped()));
    holder.expect_held();
    assert!(lab.run(["exec", "-n", "k", "--", "true"]).failed(75).contains(">/dev/null ?[2J?rlock: fake'"));
    let table = lab.run(["inspect"]).stdout;
    assert_eq!(table.lines().take_while(|line| !line.starts_with("in ")).count(), 2, "{table}");
    assert!(!table.replace('\n', "").contains(char::is_control), "{table:?}");
    assert!(table.contains(r"$'\x1b[2J\nrlock: fake'"), "a shell reads the same word: {table}");
    wait_until("the holder still runs", || holder.runs());
}

/// A standard error that takes no output changes no exit status.
#[test]
fn unwritable_standard_error_changes_no_exit_code() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    for (words, code) in [
        (&["exec", "-n", "k", "--", "true"][..], 75),
        (&["exec"], 64),
        (&[], 64),
        (&["exec", "-v", "o", "--", "sh", "-c", "exit 7"], 7),
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        let status = lab.rlock(words).stderr(full).status().expect("the program can be started");
        assert_eq!(status.code(), Some(code), "{words:?}");
    }
    drop(holder);
}

/// No message and no output of `inspect` shows a password of a URL, not even a URL among the words
/// of the command.
#[test]
fn password_in_the_command_line_is_masked() {
    let lab = Lab::new();
    let words = ["exec", "k", "--", "sh", "-c", "echo runs; exec cat", "sh", "redis://:secret@h"];
    let mut holder = Running::start(lab.rlock(words).stdin(Stdio::piped()));
    assert_eq!(holder.line(), "runs");
    let shown = lab.inspect(["k"]).to_string();
    assert!(shown.contains("redis://:***@h") && !shown.contains("secret"), "{shown}");
    let busy = lab.run(["exec", "-n", "k", "--", "true"]);
    assert!(busy.failed(75).contains("sh redis://:***@h'"), "{busy:?}");
    holder.end();
}
