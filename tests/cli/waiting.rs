//! The limit of a wait: `--wait` and `RLOCK_WAIT`. `config` has the limit of /etc/rlock.conf.

use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both, wait_until};

/// An rlock with this value of `RLOCK_WAIT`.
fn with_default(lab: &Lab, wait: &str, words: &[&str]) -> std::process::Command {
    let mut rlock = lab.rlock(words);
    rlock.env("RLOCK_WAIT", wait);
    rlock
}

/// "`RLOCK_WAIT`: the default of `--wait` for exec, range-*, acquire. Option over variable …; `0`
/// is `-n`".
#[test]
fn request_without_an_option_waits_as_long_as_the_variable_says() {
    on_both(|lab| {
        let _holder = lab.hold("k");
        let requests: [&[&str]; 3] = [&["exec", "k"], &["range-read", "k", "1", "2"], &["acquire", "k", "--for", "1h"]];
        for request in requests {
            let command = if request[0] == "acquire" { &[][..] } else { &["--", "true"] };
            let busy = |wait: &str, option: &[&str]| {
                let ran = Ran::of(&mut with_default(lab, wait, &[request, option, command].concat()));
                ran.failed(75).to_owned()
            };
            assert!(busy("20ms", &[]).contains("; nobody waits; waited 20ms; "), "{request:?}");
            assert!(busy("0", &[]).contains("; nobody waits; nothing was acquired") == command.is_empty());
            assert!(!busy("0", &[]).contains("; waited "), "{request:?}");
            assert!(busy("20ms", &["-w", "30ms"]).contains("; waited 30ms; "), "{request:?}");
            assert!(!busy("20ms", &["-n"]).contains("; waited "), "{request:?}");
        }
    });
}

/// "an empty value is 64".
#[test]
fn empty_or_wrong_variable_is_an_error_where_no_option_overrides_it() {
    let lab = Lab::new();
    let with = |wait: &str, option: &[&str]| {
        Ran::of(&mut with_default(&lab, wait, &[&["exec", "k"], option, &["--", "true"]].concat()))
    };
    with("", &[]).said(64, "RLOCK_WAIT is empty: unset RLOCK_WAIT, or set RLOCK_WAIT to 110s, 5m, 0 or ever");
    with("soon", &[]).said(64, "RLOCK_WAIT: 'soon' is not a duration: write it as 90s, 5m, 1h30m or 500ms");
    ["", "soon"].into_iter().for_each(|wait| with(wait, &["-n"]).silently(0));
}

/// "`-w ever` waits without a limit".
#[test]
fn wait_for_ever_overrides_the_variable() {
    on_both(|lab| {
        for (variable, option) in [("0", &["-w", "ever"][..]), ("ever", &[])] {
            let holder = lab.hold("k");
            let words = [&["exec", "k"], option, &["--", "echo", "ran"]].concat();
            let waiter = Running::start(&mut with_default(lab, variable, &words));
            lab.until_waiting("k", 1);
            holder.end().silently(0);
            waiter.end().printed("ran\n");
        }
    });
}

/// "A default never applies to a nested request (RLOCK_SESSION set)".
#[test]
fn nested_request_waits_for_ever_in_spite_of_the_variable() {
    on_both(|lab| {
        let holder = lab.hold("k");
        let words = ["exec", "outer", "--", RLOCK, "exec", "k", "--", "echo", "ran"];
        let outer = Running::start(&mut with_default(lab, "0", &words));
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        outer.end().printed("ran\n");
    });
}

/// "It is no wait in the sense of `--skip-ok` and `--else`", which want an option.
#[test]
fn variable_is_no_limit_for_options_of_busy_requests() {
    let lab = Lab::new();
    for option in ["--skip-ok", "--else=true"] {
        let ran = Ran::of(&mut with_default(&lab, "0", &["exec", "k", option, "--", "true"]));
        assert!(ran.failed(64).contains(" needs -n, -w DUR, --max-waiting N or --supersede: "), "{ran:?}");
    }
}

/// "From three past holds of the KEY on: `about 3m by its last 8 runs`" in the busy line and in the
/// lines of a wait; nothing for several slots, intervals and several KEYs.
#[test]
fn busy_and_waiting_lines_tell_about_when_it_is_the_turn_of_a_request() {
    on_both(|lab| {
        for _ in 0..3 {
            lab.run(["exec", "k", "-c", "sleep 0.1"]).silently(0);
        }
        let told = |words: &[&str]| {
            let ran = lab.run([&["exec", "-n"], words, &["--", "true"]].concat());
            assert_eq!(ran.code(), Some(75));
            ran.stderr
        };
        // A long run, so that the median of the next is an hour away from its end.
        let holder = lab.hold("k");
        let line = told(&["k"]);
        let about = "; about 1s by its last 3 runs; the command was not started\n";
        // The holder may have held for longer than the others by now.
        assert!(line.ends_with(about) || !line.contains("about"), "{line}");
        let waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        // A line does without where the store is too busy to be asked.
        wait_until("the busy line tells", || told(&["k"]).ends_with(about));
        for words in [&["k", "--write", "l"][..], &["--range-write", "k", "[1,2]"], &["--slot", "k=2"]] {
            assert!(!told(words).contains("about"));
        }
        wait_until("the waiting line tells", || {
            let progress =
                lab.rlock(["exec", "k", "-w", "1.2s", "--", "true"]).env("RLOCK_AGENT", "a").output().unwrap();
            let lines = String::from_utf8(progress.stderr).unwrap();
            lines.lines().next().is_some_and(|line| line.ends_with("; about 1s by its last 3 runs"))
        });
        drop((holder.end(), waiter.end()));
    });
}
