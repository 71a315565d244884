//! `rlock break` revokes a live grant.

use crate::session::{IDLE, PROMPT, Session, script};
use rlock_testkit::Lab;
use rlock_testkit::needs::{self, skip_unless};

fn break_grant(lab: &Lab) {
    let ran = lab.run(["cleanup", "--break", "k"]);
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.starts_with("broke the hold for write on 'k'"), "{ran:?}");
}

/// rlock sends TERM, waits for the grace, kills the command's whole group and exits with 76.
#[test]
fn command_that_ignores_term_is_killed_after_the_grace() {
    let lab = Lab::new();
    let script = "trap '' TERM; sleep 1000 & echo ready; wait";
    let mut session = Session::rlock(&lab, ["exec", "--grace", "100ms", "k", "--", "sh", "-c", script]);
    session.output.expect("ready\n");
    break_grant(&lab);
    assert_eq!(session.code(), 76);
    session.until_gone();
    let errors = session.errors().all();
    assert!(
        errors.starts_with("rlock: revoked: 'k' was revoked by 'rlock break'") && errors.lines().count() == 1,
        "{errors:?}"
    );
    lab.assert_idle();
}

/// rlock exits with 76 even if the command then exits with 0, and even if it leaves processes
/// behind in its group.
#[test]
fn lost_command_that_exits_0_exits_76() {
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

/// On a terminal the command shares rlock's group.
#[test]
fn command_that_ignores_term_on_a_terminal_is_killed_after_the_grace() {
    let lab = Lab::new();
    let script = format!("trap '' TERM; {IDLE}");
    let words = ["rlock", "exec", "--grace", "100ms", "k", "--", "sh", "-c", &script];
    let mut session = Session::on_terminal(&lab, words);
    session.output.expect("<ready>");
    break_grant(&lab);
    session.output.expect("rlock: revoked: 'k' was revoked");
    assert_eq!(session.code(), 76);
}

/// "On the embedded store, `rlock break` continues it, so that it can end its command."
#[test]
fn lock_of_a_job_that_ctrl_z_has_stopped_is_free_after_a_break() {
    skip_unless!(needs::programs(&["bash"]));
    let lab = Lab::new();
    script(&lab, "job", IDLE);
    let mut shell = Session::shell(&lab);
    shell.types("rlock exec k -- sh job\n");
    shell.output.expect("<ready>");
    shell.types("\x1a");
    shell.output.expect("Stopped");
    shell.output.expect(PROMPT);
    break_grant(&lab);
    shell.types("wait %1; echo code=$?\n");
    shell.output.expect("code=76");
    lab.assert_idle();
}
