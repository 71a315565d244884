//! On a terminal, a wait of more than a second shows the holders while it lasts.

use std::fs;
use std::time::{Duration, Instant};

use crate::session::Session;
use crate::support::Lab;

/// The sequence by which rlock erases its line.
const ERASED: &str = "\r\x1b[K";

/// The line names the holder. It appears after a second at the earliest, and is gone when the
/// command starts.
#[test]
fn it_comes_says_who_holds_and_goes() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let began = Instant::now();
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "echo", "started"]);
    session.output.expect(&format!("{ERASED}rlock: waiting: 'k' is held for write by "));
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    session.output.expect(&format!("pid {}", holder.pid()));
    drop(holder.end());
    let rest = session.output.expect("started");
    assert!(rest.ends_with(&format!("{ERASED}started")), "{rest:?}");
    assert_eq!(session.code(), 0);
}

/// "The waiting line … follows the holders as they change": here one of two readers ends.
#[test]
fn line_follows_the_holders_while_the_wait_goes_on() {
    let lab = Lab::new();
    let readers = [lab.hold_by(["exec", "--read", "k"]), lab.hold_by(["exec", "--read", "k"])];
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "echo", "started"]);
    let shown = session.output.expect("'sh -c");
    let (ends, stays): (Vec<_>, Vec<_>) =
        readers.into_iter().partition(|reader| shown.contains(&format!("pid {}", reader.pid())));
    assert_eq!((ends.len(), stays.len()), (1, 1), "{shown}");
    ends.into_iter().for_each(|reader| drop(reader.end()));
    session.output.expect(&format!("{ERASED}rlock: waiting: 'k' is held for read by "));
    session.output.expect(&format!("pid {}", stays[0].pid()));
    stays.into_iter().for_each(|reader| drop(reader.end()));
    session.output.expect("started");
    assert_eq!(session.code(), 0);
}

/// The same for a waiter behind another waiter: the waiter ahead becomes the next holder.
#[test]
fn line_names_the_waiter_ahead_once_that_one_holds() {
    for is_killed in [false, true] {
        let lab = Lab::new();
        let first = lab.hold("k");
        let second = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "echo", "started"]);
        session.output.expect(&format!("pid {}", first.pid()));
        if is_killed {
            first.kill();
        } else {
            drop(first.end());
        }
        session.output.expect("held for write by ");
        session.output.expect(&format!("pid {}", second.pid()));
        drop(second.end());
        session.output.expect("started");
        assert_eq!(session.code(), 0);
    }
}

/// The line is erased when the wait is given up.
#[test]
fn it_goes_when_the_wait_is_cancelled() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "echo", "started"]);
    session.output.expect("rlock: waiting: ");
    session.types("\x03");
    assert_eq!(session.code(), 130);
    assert!(session.output.all().ends_with(ERASED));
}

/// `-q` suppresses the line, and also the message that says busy.
#[test]
fn quiet_shows_nothing() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "-q", "-w", "1500ms", "k", "--", "echo", "started"]);
    assert_eq!(session.code(), 75);
    assert_eq!(session.output.all(), "");
}

/// If standard error is not a terminal, rlock prints a single line, at the end.
#[test]
fn what_is_no_terminal_gets_no_line() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let words = ["sh", "-c", "exec rlock exec -w 1500ms k -- echo started 2>errors"];
    let mut session = Session::on_terminal(&lab, words);
    assert_eq!(session.code(), 75);
    assert_eq!(session.output.all(), "");
    let said = fs::read_to_string(lab.folder().join("errors")).unwrap();
    assert!(said.starts_with("rlock: busy: 'k' is held for write by ") && said.lines().count() == 1, "{said:?}");
    assert!(!said.contains('\x1b'), "{said:?}");
}
