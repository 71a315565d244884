//! Usage errors: bad input gets one clear line and exit status 64.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rlock_testkit::needs::{programs, skip_unless};
use rlock_testkit::{Lab, RLOCK, Ran};

/// Runs each line of words and expects its message. Spaces separate the words; `_` stands for a
/// space and `%` for an empty word.
#[track_caller]
fn assert_usage_errors(cases: &[(&str, &str)]) {
    let lab = Lab::new();
    for (line, text) in cases {
        let words = line.split_whitespace().map(|word| word.replace('_', " ").replace('%', ""));
        lab.run(words).said(64, text);
    }
    assert!(!lab.directory().exists(), "a usage error created a store");
}

/// Names that are empty, too long, or contain control, bidi or other format characters are usage
/// errors.
#[test]
fn invalid_resource_name_exits_64() {
    let lab = Lab::new();
    let long = "ä".repeat(256) + "b";
    for (name, text) in [
        ("", "a resource name must not be empty"),
        (long.as_str(), "a resource name may have 512 bytes, this one has 513"),
        ("a\nb", "the resource name 'a?b' has the control character U+000A: leave out control and format characters"),
        (
            "\u{1b}[2J",
            "the resource name '?[2J' has the control character U+001B: leave out control and format characters",
        ),
        ("\u{9b}x", "the resource name '?x' has the control character U+009B: leave out control and format characters"),
        (
            "a\u{202e}b",
            "the resource name 'a?b' has the format character U+202E: leave out control and format characters",
        ),
        (
            "a\u{200d}b",
            "the resource name 'a?b' has the format character U+200D: leave out control and format characters",
        ),
    ] {
        for (words, label) in [
            (vec!["exec", name, "--", "true"], "KEY"),
            (vec!["exec", "--write", name, "--", "true"], "--write"),
            (vec!["exec", "--read", name, "--", "true"], "--read"),
            (vec!["exec", "--prewrite", name, "--", "true"], "--prewrite"),
            (vec!["range-read", name, "1", "2", "--", "true"], "KEY"),
            (vec!["inspect", name], "KEY"),
            (vec!["cleanup", "--break", name], "KEY"),
            (vec!["shrink", "1", "2", "--resource", name], "--resource"),
        ] {
            lab.run(words).said(64, &format!("{label}: {text}"));
        }
        lab.run(["exec", "--slot", &format!("{name}=2"), "--", "true"]).said(64, &format!("--slot: {text}"));
    }
    assert!(!lab.directory().exists(), "a usage error created a store");
    lab.run(["exec", &long[..512], "--", "true"]).silently(0);
}

/// An unknown option, subcommand or value is a usage error, and the message names it.
#[test]
fn unknown_option_exits_64_and_is_named() {
    assert_usage_errors(&[
        ("exec --bogus k -- true", "unexpected argument '--bogus'; see 'rlock exec --help'"),
        ("exec -y k -- true", "unexpected argument '-y'; see 'rlock exec --help'"),
        ("exec --no-wiat k -- true", "unexpected argument '--no-wiat': did you mean '--no-wait'?"),
        ("inspect --break", "unexpected argument '--break'; see 'rlock inspect --help'"),
        ("exce k -- true", "no such subcommand 'exce': did you mean 'exec'?"),
        ("zzz k -- true", "no such subcommand 'zzz'; see 'rlock --help'"),
        ("downgrade slot", "MODE must be read or prewrite, not 'slot'"),
        ("completions tcsh", "SHELL must be bash, zsh or fish, not 'tcsh'"),
    ]);
}

/// Malformed numbers, a LO above HI and empty intervals are usage errors.
#[test]
fn invalid_interval_exits_64() {
    let number = |word: &str| format!("'{word}' is not a number: write it as 1.2, -3e-9, 22/7, -inf or inf");
    let interval =
        |word: &str| format!("'{word}' is not an interval: write it as [1.2,1.8], [1.2,1.8), (1.2,1.8] or (1.2,1.8)");
    let cases = [
        ("2 1", "the interval [2,1] ends before it starts".to_owned()),
        ("-1 -2", "the interval [-1,-2] ends before it starts".to_owned()),
        ("inf -inf", "the interval [inf,-inf] ends before it starts".to_owned()),
        ("[2,1)", "the interval [2,1) ends before it starts".to_owned()),
        ("[1,1)", "the interval [1,1) is empty".to_owned()),
        ("(1,1]", "the interval (1,1] is empty".to_owned()),
        ("(1.0,10e-1)", "the interval (1.0,10e-1) is empty".to_owned()),
        ("inf inf", "the interval [inf,inf] is empty".to_owned()),
        ("one 2", number("one")),
        ("1 2x", number("2x")),
        ("1 1..2", number("1..2")),
        ("0x10 20", number("0x10")),
        ("nan 2", number("nan")),
        ("1, 2", number("1,")),
        ("[1,2", interval("[1,2")),
        ("[1;2]", interval("[1;2]")),
        ("[1,2,3]", interval("[1,2,3]")),
        ("1/0 2", "'1/0' divides by zero: write inf or -inf for an interval without end".to_owned()),
        ("[1,2] 3", "unexpected '3' after the interval '[1,2]': put the command after --".to_owned()),
        ("1", "the interval from '1' lacks its end: write LO HI or '[LO,HI)'".to_owned()),
    ];
    for start in ["range-read k", "range-prewrite k", "range-write k"] {
        for (words, text) in &cases {
            assert_usage_errors(&[(&format!("{start} {words} -- true"), text)]);
        }
    }
    assert_usage_errors(&[("range-read k -- true", "no interval: write LO HI or '[LO,HI)' after the KEY")]);
    assert_usage_errors(&[("range-read -- true", "nothing to lock: name a KEY and its interval, LO HI or '[LO,HI)'")]);
    assert_usage_errors(&[("shrink", "LO is missing; see 'rlock shrink --help'")]);
}

/// A missing command and a missing KEY are usage errors.
#[test]
fn missing_command_or_key_exits_64() {
    let none = "no command: write -- COMMAND, or -c STRING";
    let nothing = "nothing to lock: name a KEY, or use --read, --prewrite, --write, --slot or --range-write";
    assert_usage_errors(&[
        ("exec k", none),
        ("exec k --", none),
        ("range-write k 1 2", none),
        ("exec k -c true -- true", "--shell and COMMAND exclude each other: give one of them"),
        ("range-read k 1 2 -c true -- true", "--shell and COMMAND exclude each other: give one of them"),
        ("exec k -c", "--shell needs a value; see 'rlock exec --help'"),
        ("exec", nothing),
        ("exec -- true", nothing),
        ("exec -n -c true", nothing),
    ]);
}

/// Only one bare KEY is allowed. So after a forgotten `--`, rlock neither locks the words of the
/// command nor runs the rest of the line.
#[test]
fn second_bare_key_exits_64_and_runs_nothing() {
    let lab = Lab::new();
    let touched = lab.folder().join("touched");
    let ran = lab.run(["exec", "deploy", "ssh", "db1", "--", "touch", touched.to_str().expect("a path in UTF-8")]);
    let text = "unexpected second KEY 'ssh': did you forget -- before the command, or did poetry or hatch take it away? for two locks write \
                --write deploy --write ssh";
    ran.said(64, text);
    assert!(!touched.exists() && lab.files().is_empty());
    assert_usage_errors(&[
        (
            "exec k true",
            "unexpected second KEY 'true': did you forget -- before the command, or did poetry or hatch take it away? for two locks write --write k --write true",
        ),
        ("exec k ls -l", "unexpected argument '-l': did you forget -- before the command?"),
        ("range-read k 1 2 ls", "unexpected argument 'ls': did you forget -- before the command?"),
        (
            "exec k -c true j",
            "unexpected 'j' beside KEY 'k': -c takes one STRING and no arguments; for two locks write --write k --write j",
        ),
        ("range-read k 1 2 -c true ls", "unexpected argument 'ls'; see 'rlock range-read --help'"),
        ("exec -c true k", "KEY 'k' stands after -c: put KEY before -c STRING, which takes no arguments"),
    ]);
    lab.run(["exec", "--read", "a", "b", "--slot", "c=2", "--", "true"]).silently(0);
}

/// Malformed durations, exit codes and counts are usage errors.
#[test]
fn malformed_duration_or_number_exits_64() {
    let duration =
        |option: &str, word: &str| format!("{option}: '{word}' is not a duration: write it as 90s, 5m, 1h30m or 500ms");
    for (words, option) in
        [("-w", "--wait"), ("--ttl", "--ttl"), ("--grace", "--grace"), ("--connect-timeout", "--connect-timeout")]
    {
        for word in ["soon", "5parsecs", "1..2", "1e3", "s"] {
            assert_usage_errors(&[(&format!("exec k {words} {word} -- true"), &duration(option, word))]);
        }
        assert_usage_errors(&[(&format!("exec k {words} % -- true"), &duration(option, ""))]);
        let long = format!("{option}: '100y' is too long: the limit is 36500 days");
        assert_usage_errors(&[(&format!("exec k {words} 100y -- true"), &long)]);
    }
    assert_usage_errors(&[
        ("exec k -E 256 -- true", "--conflict-exit-code: '256' is not an exit code: give a number from 0 to 255"),
        ("exec k -E=-1 -- true", "--conflict-exit-code: '-1' is not an exit code: give a number from 0 to 255"),
        ("exec k -E busy -- true", "--conflict-exit-code: 'busy' is not an exit code: give a number from 0 to 255"),
        (
            "exec k --replicas few -- true",
            "--replicas: 'few' is not a number of replicas: give 0, 1, 2 and so on, or 1+disk",
        ),
        ("exec --slot k -- true", "--slot: 'k' lacks the number of slots: write k=4"),
        ("exec --slot k=0 -- true", "--slot: 'k=0' must end in a number of slots from 1 to 1000000"),
        ("exec --slot k=many -- true", "--slot: 'k=many' must end in a number of slots from 1 to 1000000"),
    ]);
}

/// A grace above a third of the ttl is a usage error whose message names both. Options that
/// contradict each other are usage errors, too.
#[test]
fn contradicting_options_exit_64() {
    assert_usage_errors(&[
        (
            "exec k --store redis://localhost:1 --grace 11s -- true",
            "--grace 11s is more than a third of --ttl 30s: lower --grace or raise --ttl",
        ),
        (
            "exec k --store redis://localhost:1 --ttl 10s --grace 5s -- true",
            "--grace 5s is more than a third of --ttl 10s: lower --grace or raise --ttl",
        ),
        ("exec k --ttl 999ms -- true", "--ttl: '999ms' is too short: a lease lasts at least 1s"),
        ("exec k -n -w 5 -- true", "--no-wait and --wait 5s exclude each other: give one of them"),
        ("exec k -qv -- true", "--quiet and --verbose exclude each other: give one of them"),
        ("exec --slot k=2 --slot k=3 -- true", "'k' cannot have both 2 and 3 slots: give one --slot k=N"),
        ("exec --slot k=2 k -- true", "--slot cannot be combined with another mode on 'k': give one of them"),
        ("cleanup --break", "--break needs a KEY: name the locks to break"),
        ("cleanup --break --dry-run", "--break needs a KEY: name the locks to break"),
    ]);
    let lab = Lab::new();
    lab.run(["exec", "k", "--ttl", "10s", "--", "true"]).silently(0);
    // The embedded store has no leases, so no grace is too long.
    lab.run(["exec", "k", "--ttl", "10s", "--grace", "1h", "--", "true"]).silently(0);
    lab.run(["exec", "k", "--ttl", "30s", "--grace", "10s", "--", "true"]).silently(0);
}

/// Words and variables that are not UTF-8 have a message of their own. Only the command may contain
/// any bytes.
#[test]
fn text_that_is_not_utf8_exits_64_except_in_the_command() {
    let lab = Lab::new();
    let odd = OsStr::from_bytes(b"\xff");
    let text = "a word before the command is not UTF-8: only the command and its arguments may have any bytes";
    lab.run([OsStr::new("exec"), odd, OsStr::new("--"), OsStr::new("true")]).said(64, text);
    for name in ["RLOCK_STORE", "RLOCK_NAMESPACE", "RLOCK_SESSION", "RLOCK_ANCESTORS"] {
        let mut rlock = lab.rlock(["exec", "k", "--", "true"]);
        rlock.env("RLOCK_SESSION", "0".repeat(32));
        let text = format!("{name} is not UTF-8 text: unset {name}, or set {name} to UTF-8 text");
        Ran::of(rlock.env(name, odd)).said(64, &text);
    }
    let text =
        "RLOCK_SESSION or RLOCK_ANCESTORS is not a list of session ids: unset both outside of the command of an rlock";
    Ran::of(lab.rlock(["exec", "k", "--", "true"]).env("RLOCK_SESSION", "mine")).said(64, text);
}

/// Without any words rlock writes its help to standard error, since the user did not ask for help.
#[test]
fn empty_command_line_prints_help_to_stderr_and_exits_64() {
    let lab = Lab::new();
    let ran = lab.run([""; 0]);
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(64), ""));
    assert!(ran.stderr.starts_with("Hold a lock while a command runs\n\nUsage: rlock "), "{}", ran.stderr);
    assert_eq!(lab.run(["--help"]).stdout, ran.stderr);
}

/// "On a terminal, man(1) shows it, else `PAGER` or less(1), else it is printed as text. Through a
/// pipe it has the format that man(1) reads."
#[test]
fn page_is_shown_on_a_terminal_and_roff_goes_through_a_pipe() {
    skip_unless!(programs(&["script"]));
    let lab = Lab::new();
    assert!(lab.run(["man", "exec"]).stdout.contains(".TH RLOCK-EXEC 1"));
    let shown = |variables: &str| {
        let line = format!("env {variables} '{RLOCK}' man exec");
        let mut command = Command::new("script");
        lab.settle(&mut command);
        Ran::of(command.args(["-qec", &line, "/dev/null"])).stdout.replace('\r', "")
    };
    let tool = |name: &str, text: &str| {
        let path = lab.folder().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("an executable file");
    };
    let path = format!("PATH={}", lab.folder().display());
    let text = shown(&path);
    assert!(text.starts_with("NAME\n       rlock-exec - ") && text.contains("\nDESCRIPTION\n\n       Waits"), "{text}");
    assert!(text.lines().all(|line| !line.starts_with("       Waits") || line.chars().count() <= 80), "{text}");
    tool("less", "read -r line; echo \"less: $line\"");
    assert_eq!(shown(&path), "less: NAME\n");
    tool("man", "read -r line; echo \"man $*\"");
    assert_eq!(shown(&path), "man -l -\n");
}
