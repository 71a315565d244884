//! `rlock cleanup --break` takes a live grant away.

use crate::session::{IDLE, Session};
use crate::support::Lab;

fn break_grant(lab: &Lab) {
    let ran = lab.run(["cleanup", "--break", "k"]);
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.starts_with("broke the hold for write on 'k'"), "{ran:?}");
}

/// A command that ignores TERM is killed with its whole group: TERM, grace, KILL, exit 76.
#[test]
fn a_command_that_ignores_term_is_killed_after_the_grace() {
    let lab = Lab::new();
    let script = "trap '' TERM; sleep 1000 & echo ready; wait";
    let mut session = Session::rlock(&lab, ["exec", "--grace", "100ms", "k", "--", "sh", "-c", script]);
    session.output.expect("ready\n");
    break_grant(&lab);
    assert_eq!(session.code(), 76);
    session.until_gone();
    let said = session.errors().all();
    assert!(said.starts_with("rlock: lost: 'k' was taken away") && said.lines().count() == 1, "{said:?}");
    lab.assert_idle();
}

/// rlock exits with 76 even if the command then exits with 0, and even if it leaves processes
/// behind in its group.
#[test]
fn a_command_that_ends_well_is_lost_all_the_same() {
    let lab = Lab::new();
    let script = "trap 'echo term; exit 0' TERM; (trap '' TERM; exec sleep 1000) & echo ready; wait";
    let mut session = Session::rlock(&lab, ["exec", "k", "--", "sh", "-c", script]);
    session.output.expect("ready\n");
    break_grant(&lab);
    session.output.expect("term\n");
    assert_eq!(session.code(), 76);
    session.until_gone();
    lab.assert_idle();
}

/// The same on a terminal, where the command shares rlock's group.
#[test]
fn on_a_terminal_too() {
    let lab = Lab::new();
    let script = format!("trap '' TERM; {IDLE}");
    let words = ["rlock", "exec", "--grace", "100ms", "k", "--", "sh", "-c", &script];
    let mut session = Session::on_terminal(&lab, words);
    session.output.expect("<ready>");
    break_grant(&lab);
    session.output.expect("rlock: lost: 'k' was taken away");
    assert_eq!(session.code(), 76);
}
