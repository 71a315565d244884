//! On a terminal, a wait of more than a second shows the holders while it lasts.

use std::fs;
use std::time::{Duration, Instant};

use crate::session::Session;
use rlock_testkit::Lab;

/// The sequence by which rlock erases its line.
const ERASED: &str = "\r\x1b[K";

/// The line names the holder. The line appears after a second at the earliest, and rlock erases it
/// before the command starts.
#[test]
fn line_appears_after_a_second_and_is_erased_at_the_grant() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let began = Instant::now();
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "echo", "started"]);
    session.output.expect(&format!("{ERASED}rlock: waiting, 1 of 1, since "));
    session.output.expect("Z: 'k' is held for write by ");
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
    session.output.expect(&format!("{ERASED}rlock: waiting, 1 of 1, since "));
    session.output.expect("Z: 'k' is held for read by ");
    session.output.expect(&format!("pid {}", stays[0].pid()));
    stays.into_iter().for_each(|reader| drop(reader.end()));
    session.output.expect("started");
    assert_eq!(session.code(), 0);
}

/// The terminal's rlock waits behind another waiter, which becomes the next holder.
#[test]
fn line_names_the_waiter_ahead_once_it_holds() {
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

/// rlock erases the line when Ctrl-C cancels the wait.
#[test]
fn line_is_erased_when_the_wait_is_cancelled() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "echo", "started"]);
    session.output.expect("rlock: waiting, ");
    session.types("\x03");
    assert_eq!(session.code(), 130);
    assert!(session.output.all().ends_with(ERASED));
}

/// `-q` suppresses the line, and also the message "busy".
#[test]
fn quiet_wait_on_a_terminal_prints_nothing() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "-q", "-w", "1500ms", "k", "--", "echo", "started"]);
    assert_eq!(session.code(), 75);
    assert_eq!(session.output.all(), "");
}

/// "an agent gets lines … also on a pseudo-terminal; no redraw with TERM=dumb": a line at a time,
/// without a sequence that erases it.
#[test]
fn agent_ci_or_dumb_terminal_gets_whole_lines_on_a_terminal() {
    for variable in ["CLAUDECODE=1", "CI=true", "TERM=dumb"] {
        let lab = Lab::new();
        let holder = lab.hold("k");
        let words = ["env", variable, "rlock", "exec", "-w", "110s", "k", "--", "echo", "started"];
        let mut session = Session::on_terminal(&lab, words);
        let line = session.output.expect("s)\r\n");
        let (start, rest) = line.split_once("s of 110s: ").expect("the time and its limit");
        assert!(start.starts_with("rlock: waiting for 'k', 1 of 1, "), "{line:?}");
        assert!(rest.starts_with("held for write by "), "{line:?}");
        drop(holder.end());
        let rest = session.output.expect("started");
        assert!(rest.starts_with("rlock: holds 'k' for write; waited ") && !rest.contains('\x1b'), "{rest:?}");
        assert_eq!(session.code(), 0);
    }
}

/// If standard error is not a terminal, rlock prints a single line when it gives up.
#[test]
fn line_is_not_printed_if_stderr_is_not_a_terminal() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let words = ["sh", "-c", "exec rlock exec -w 1500ms k -- echo started 2>errors"];
    let mut session = Session::on_terminal(&lab, words);
    assert_eq!(session.code(), 75);
    assert_eq!(session.output.all(), "");
    let errors = fs::read_to_string(lab.folder().join("errors")).unwrap();
    assert!(errors.starts_with("rlock: busy: 'k' is held for write by ") && errors.lines().count() == 1, "{errors:?}");
    assert!(!errors.contains('\x1b'), "{errors:?}");
}
