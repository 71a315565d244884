//! "On a terminal a wait of more than a second shows the same while it lasts."

use std::fs;
use std::time::{Duration, Instant};

use crate::session::Session;
use crate::support::Lab;

/// How rlock takes its line away.
const ERASED: &str = "\r\x1b[K";

/// It says who holds, not before a second has passed, and is gone when the command starts.
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

/// It follows the holders as they change, though the waiter stands behind another one all the time.
#[test]
fn waiting_line_names_the_next_holder_when_the_first_one_ends() {
    let lab = Lab::new();
    let holder = lab.hold("k");
    let mut next = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "k", "--", "echo", "started"]);
    session.output.expect(&format!("pid {}", holder.pid()));
    drop(holder.end());
    next.expect_held();
    session.output.expect(&format!("{ERASED}rlock: waiting: 'k' is held for write by "));
    session.output.expect(&format!("pid {}", next.pid()));
    drop(next.end());
    session.output.expect("started");
    assert_eq!(session.code(), 0);
}

/// It goes, too, when the wait is given up.
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

/// Not with `-q`, which leaves out the line that says busy, too.
#[test]
fn quiet_shows_nothing() {
    let lab = Lab::new();
    let _holder = lab.hold("k");
    let mut session = Session::on_terminal(&lab, ["rlock", "exec", "-q", "-w", "1500ms", "k", "--", "echo", "started"]);
    assert_eq!(session.code(), 75);
    assert_eq!(session.output.all(), "");
}

/// Not where standard error is no terminal: there is one line, at the end.
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
