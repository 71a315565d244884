//! Tests the messages about mistakes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use super::super::{Usage, parse};
use super::mistake;

#[test]
fn every_usage_error_has_its_one_line_message() {
    for (line, text) in [
        ("--foo", "unexpected argument '--foo'; see 'rlock --help'"),
        ("exec --foo k -- c", "unexpected argument '--foo'; see 'rlock exec --help'"),
        ("exec -y k -- c", "unexpected argument '-y'; see 'rlock exec --help'"),
        ("range-read t 1 2 -j -- c", "unexpected argument '-j'; see 'rlock range-read --help'"),
        ("range-read t 1 2 -3 -- c", "unexpected argument '-3'; see 'rlock range-read --help'"),
        ("exec --tll 5s k -- c", "unexpected argument '--tll': did you mean '--ttl'?"),
        ("--store x", "no subcommand; see 'rlock --help'"),
        ("exce k -- c", "no such subcommand 'exce': did you mean 'exec'?"),
        ("zzz", "no such subcommand 'zzz'; see 'rlock --help'"),
        // Two letters away at most.
        ("upgrade", "no such subcommand 'upgrade'; see 'rlock --help'"),
        ("range k 1 2", "no such subcommand 'range'; see 'rlock --help'"),
        ("inspekt", "no such subcommand 'inspekt': did you mean 'inspect'?"),
        ("inspect --force", "unexpected argument '--force'; see 'rlock inspect --help'"),
        ("inspect --follow", "unexpected argument '--follow'; see 'rlock inspect --help'"),
        ("inspect --colour never", "unexpected argument '--colour': did you mean '--color'?"),
        ("backup -- x", "no such subcommand 'backup': did you mean 'rlock exec backup -- x'?"),
        ("zzz k -- true", "no such subcommand 'zzz'; see 'rlock --help'"),
        ("my_job -n -c a_b", "no such subcommand 'my job': did you mean 'rlock exec 'my job' -n -c 'a b''?"),
        ("exce k -- c", "no such subcommand 'exce': did you mean 'exec'?"),
        (
            "lock k -- c",
            "no such subcommand 'lock': write 'rlock exec KEY -- COMMAND', or 'rlock acquire KEY' for a \
                         lock that outlives rlock",
        ),
        ("wait k", "no such subcommand 'wait': write 'rlock exec KEY -- true', which ends when KEY is free"),
        ("config", "no such subcommand 'config': write 'rlock doctor' to see the store in use, or 'rlock help config'"),
        ("version", "no such subcommand 'version': write 'rlock --version'"),
        ("agents", "no such subcommand 'agents': write 'rlock help agents'"),
        ("-n exec k -- c", "unexpected argument '-n': write it behind the subcommand: rlock exec -n …"),
        ("-n k -- c", "unexpected argument '-n': write it behind the subcommand: rlock exec -n …"),
        ("help agent", "no such topic or subcommand 'agent': did you mean 'rlock help agents'?"),
        ("help inspct", "no such topic or subcommand 'inspct': did you mean 'rlock help inspect'?"),
        ("help zzz", "no such topic or subcommand 'zzz': the topics are agents, config, cron, ci, exit-codes, stuck"),
        ("exec k -w", "--wait needs a value; see 'rlock exec --help'"),
        ("exec k -c", "--shell needs a value; see 'rlock exec --help'"),
        ("exec k -w x -- c", "--wait: 'x' is not a duration: write it as 90s, 5m, 1h30m or 500ms"),
        ("range-read t 1 2 -w -5 -- c", "--wait: '-5' is not a duration: write it as 90s, 5m, 1h30m or 500ms"),
        ("exec k --connect-timeout 0s -- c", "--connect-timeout: '0s' is too short: give a server at least 1ms"),
        ("exec k --ttl 0 -- c", "--ttl: '0' is too short: a lease lasts at least 1s"),
        ("exec k -E 256 -- c", "--conflict-exit-code: '256' is not an exit code: give a number from 0 to 255"),
        ("exec k --replicas x -- c", "--replicas: 'x' is not a number of replicas: give 0, 1, 2 and so on, or 1+disk"),
        ("exec --slot db -- c", "--slot: 'db' lacks the number of slots: write db=4"),
        ("exec k -q -v -- c", "--quiet and --verbose exclude each other: give one of them"),
        ("exec k -c a -- c", "--shell and COMMAND exclude each other: give one of them"),
        ("man rlock --dir d", "PAGE and --dir exclude each other: give one of them"),
        ("inspect --json=x", "--json takes no value: leave out 'x'"),
        ("shrink", "LO is missing; see 'rlock shrink --help'"),
        ("shrink 1 2 3", "unexpected argument '3'; see 'rlock shrink --help'"),
        ("downgrade", "MODE is missing; see 'rlock downgrade --help'"),
        ("downgrade slot", "MODE must be read or prewrite, not 'slot'"),
        ("completions", "SHELL is missing; see 'rlock completions --help'"),
        ("completions tcsh", "SHELL must be bash, zsh or fish, not 'tcsh'"),
    ] {
        assert_eq!(mistake(line), text, "{line}");
    }
    assert_eq!(mistake("man exce"), "no such PAGE 'exce': did you mean 'rlock-exec'?");
    assert!(mistake("man zzz").starts_with("PAGE must be rlock, rlock-exec, rlock-range-read, "));
}

#[test]
fn word_that_is_not_utf8_is_rejected_before_the_command() {
    let text = "a word before the command is not UTF-8: only the command and its arguments may have any bytes";
    let odd = || OsString::from_vec(vec![0xff]);
    let word = OsString::from;
    for words in [
        vec![word("rlock"), word("exec"), odd(), word("--"), word("c")],
        vec![word("rlock"), word("exec"), word("--read"), odd(), word("--"), word("c")],
        vec![word("rlock"), word("--store"), odd(), word("inspect")],
        vec![word("rlock"), word("range-read"), word("k"), odd(), word("1"), word("--"), word("c")],
    ] {
        assert_eq!(parse(words.into_iter()), Err(Usage::Mistake(text.to_owned())));
    }
}

#[test]
fn usage_error_is_one_line_for_any_words() {
    for line in ["exec --a\nb k -- c", "exec k -w \u{1b}[2J\n -- c", "\u{7}", "completions a\rb", "exec a\nb -- c"] {
        let Err(Usage::Mistake(text)) = parse(["rlock"].into_iter().chain(line.split(' ')).map(OsString::from)) else {
            panic!("{line:?} should be a usage error");
        };
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn parser_never_panics() {
    let words = [
        "exec",
        "range-read",
        "shrink",
        "k",
        "-3",
        "--",
        "-n",
        "-c",
        "--store",
        "=",
        "",
        "-",
        "[",
        "--read",
        "--break",
    ];
    for one in words {
        for two in words {
            for three in words {
                let _ = parse(["rlock", one, two, three].into_iter().map(OsString::from));
            }
        }
    }
}
