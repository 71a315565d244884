//! Tests the answers to the habits of other programs.

use super::super::exec::has_option;
use super::super::table::SUBCOMMANDS as OWN;
use super::mistake;
use rlock_arguments::hints::{OPTIONS, SUBCOMMANDS};

#[test]
fn habits_of_other_programs_are_answered() {
    for (line, text) in [
        ("exec --shared k -- c", "unexpected argument '--shared': write --read KEY for a shared lock"),
        ("exec -s k -- c", "unexpected argument '-s': write --read KEY for a shared lock"),
        ("exec -x k -- c", "unexpected argument '-x': a bare KEY, or --write KEY, is an exclusive lock"),
        ("exec --timeout 5 k -- c", "unexpected argument '--timeout': write -w DUR or --wait DUR, as in -w 5m"),
        ("exec --timeout=5 k -- c", "unexpected argument '--timeout': write -w DUR or --wait DUR, as in -w 5m"),
        (
            "exec --start 0 --length 10 k -- c",
            "unexpected argument '--start': write 'rlock range-write KEY \"[0,10)\" -- COMMAND' for a part of KEY, \
             here from 0 up to 10",
        ),
        (
            "exec --fcntl k -- c",
            "unexpected argument '--fcntl': rlock locks names, not files; 'rlock range-write KEY \"[0,10)\" -- COMMAND' \
             locks a part of one",
        ),
        ("ls", "no such subcommand 'ls': write 'rlock inspect' to see who holds what and who waits"),
        ("status", "no such subcommand 'status': write 'rlock inspect' to see who holds what and who waits"),
    ] {
        assert_eq!(mistake(line), text, "{line}");
    }
    assert!(mistake("unlock k").starts_with("no such subcommand 'unlock': write 'rlock release' for "));
    assert!(mistake("exec -u k -- c").starts_with("unexpected argument '-u': the lock ends with the command; "));
}

/// A hint for something that rlock has would never be read.
#[test]
fn hints_are_only_for_what_exec_and_rlock_do_not_have() {
    for (option, _) in OPTIONS {
        assert!(!has_option(option), "{option}");
    }
    for (word, _) in SUBCOMMANDS {
        assert!(OWN.iter().all(|subcommand| subcommand.name != word), "{word}");
    }
}
