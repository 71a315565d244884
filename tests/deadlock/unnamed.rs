//! Nested requests that the variables of the rlock around them do not reach.

use std::process::Stdio;
use std::thread;

use crate::cycles::SEVERAL_LOOKS;
use crate::on_each;
use rlock_testkit::{Lab, RLOCK, Ran, Running};

/// What drops the variables before it executes the words behind it, as sudo(8) does.
const DROPPERS: [&str; 2] = [
    "env -u RLOCK_SESSION -u RLOCK_ANCESTORS -u RLOCK_RESOURCE -u RLOCK_HELD",
    "env -i RLOCK_CONFIG= \"RLOCK_STORE=$RLOCK_STORE\" ${RLOCK_NAMESPACE:+\"RLOCK_NAMESPACE=$RLOCK_NAMESPACE\"}",
];

const REMEDY: &str = "this process runs below that command without the variables of its rlock: pass them on, as by \
                      sudo --preserve-env=RLOCK_SESSION,RLOCK_ANCESTORS,RLOCK_RESOURCE,RLOCK_HELD";

fn below(lab: &Lab, outer: &str, script: &str) -> Ran {
    Ran::of(lab.rlock(["exec"]).args(outer.split_whitespace()).args(["-c", script]))
}

fn assert_deadlock(ran: &Ran, script: &str) {
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(65), ""), "{script}: {ran:?}");
    let lines: Vec<_> = ran.stderr.lines().collect();
    let [cycle, remedy] = lines.as_slice() else { panic!("{script}: {ran:?}") };
    assert!(cycle.starts_with("rlock: refused: deadlock: 'k' is held for "), "{cycle}");
    assert!(cycle.ends_with(", which waits for 'k'"), "{cycle}");
    assert_eq!(*remedy, format!("rlock: {REMEDY}"));
}

/// "A nested rlock that these variables do not reach also looks at its parents in /proc: if it
/// waits for a holder whose command it runs below, it ends with 65."
#[test]
fn request_that_waits_for_the_holder_around_it_exits_65_with_the_remedy() {
    on_each(|lab| {
        for drop in DROPPERS {
            for script in [
                format!("exec {drop} {RLOCK} exec k -- echo inner"),
                format!("{drop} sh -c '{RLOCK} exec k -- echo inner; exit $?'; exit $?"),
                format!("setsid -w {drop} {RLOCK} acquire k --for 1h; exit $?"),
                format!("{drop} {RLOCK} acquire k --pid $$; exit $?"),
                format!("{RLOCK} exec other -- {drop} {RLOCK} exec k -- echo inner; exit $?"),
            ] {
                assert_deadlock(&below(&lab, "k", &script), &script);
            }
            // A command that is setsid(1) itself has left the session of rlock, as a daemon does.
            let ask = format!("{drop} {RLOCK} exec k -- echo inner; exit $?");
            let ran = lab.run(["exec", "k", "--", "setsid", "-w", "sh", "-c", &ask]);
            assert_deadlock(&ran, &ask);
        }
        lab.assert_idle();
    });
}

/// The rules of the search decide: a reader waits for itself, whoever else reads.
#[test]
fn several_holders_are_no_help_if_one_of_them_is_around_the_request() {
    on_each(|lab| {
        let _other = lab.hold_by(["exec", "--read", "k"]);
        let script = format!("{} {RLOCK} exec k -- echo inner; exit $?", DROPPERS[0]);
        assert_deadlock(&below(&lab, "--read k", &script), &script);
    });
}

#[test]
fn holder_of_one_of_several_slots_is_no_deadlock() {
    on_each(|lab| {
        let script = format!("{} {RLOCK} exec --slot k=2 -- echo inner", DROPPERS[0]);
        below(&lab, "--slot k=2", &script).printed("inner\n");
        let other = lab.hold_by(["exec", "--slot", "k=2"]);
        let mut outer = Running::start(&mut lab.rlock(["exec", "--slot", "k=2", "-c", &script]));
        lab.until_waiting("k", 1);
        // No condition shows that a look found nothing.
        thread::sleep(SEVERAL_LOOKS);
        assert!(outer.runs());
        other.end().silently(0);
        outer.end().printed("inner\n");
    });
}

#[test]
fn busy_line_of_a_request_below_the_holder_names_the_remedy() {
    on_each(|lab| {
        let script = format!("{} {RLOCK} exec k -n -- echo inner; exit $?", DROPPERS[1]);
        for words in [&["sh"][..], &["setsid", "-w", "sh"]] {
            let ran = Ran::of(lab.rlock(["exec", "k", "--"]).args(words).args(["-c", &script]));
            let why = ran.busy();
            let remedy = REMEDY.replace("that command", "the command of the holder");
            assert!(why.starts_with(&format!("{remedy}; 'k' is held for write by ")), "{why}");
        }
        let _other = lab.hold("other");
        let ran = below(&lab, "k", &script.replace("exec k", "exec other"));
        assert!(!ran.failed(75).contains("variables"), "{ran:?}");
    });
}

/// Starts what asks for `k` below a command that holds it, and that the command does not wait for.
fn assert_waits_its_turn(lab: &Lab, start: &str) {
    let script = format!("echo held; read go\n{start}\necho started; read end");
    let mut outer = Running::start(lab.rlock(["exec", "k", "-c", &script]).stdin(Stdio::piped()));
    outer.expect_held();
    outer.write("go\n");
    assert_eq!(outer.line(), "started");
    lab.until_waiting("k", 1);
    thread::sleep(SEVERAL_LOOKS);
    assert_eq!(lab.counts("k"), (1, 1), "{start}");
    outer.write("end\n");
    let ran = outer.end();
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""), "{start}");
}

/// "An rlock does not wait for the daemons and the orphans of its command."
#[test]
fn what_the_command_leaves_in_the_background_waits_its_turn() {
    on_each(|lab| {
        let turn = lab.folder().join("turn");
        let file = lab.folder().join("out");
        std::fs::write(&turn, format!("echo turn >> {}", file.display())).unwrap();
        for drop in DROPPERS {
            let ask = format!("{drop} {RLOCK} exec k -- sh {}", turn.display());
            assert_waits_its_turn(&lab, &format!("( {ask} & )"));
            assert_waits_its_turn(&lab, &format!("( setsid sh -c '{ask}; exit' & )"));
            // With the variables, too, a daemon is below nothing: no look takes it for a deadlock.
            // It is no daemon before its parent has ended.
            let fifo = lab.folder().join("fifo");
            let ask = format!("read go < {}; {RLOCK} exec -q k -- sh {}", fifo.display(), turn.display());
            let start = format!("mkfifo {0}; ( setsid sh -c '{ask}; exit' & ); echo > {0}; rm {0}", fifo.display());
            assert_waits_its_turn(&lab, &start);
            let turns = || std::fs::read_to_string(&file).unwrap_or_default();
            rlock_testkit::wait_until("all have had their turns", || turns() == "turn\n".repeat(3));
            lab.assert_idle();
            std::fs::remove_file(&file).unwrap();
        }
    });
}

/// The spare work outlives the hold.
#[test]
fn spare_work_below_the_holder_waits_its_turn() {
    on_each(|lab| {
        let first = lab.hold("k");
        let spare = format!("exec {} {RLOCK} exec k -- echo spare", DROPPERS[0]);
        let words = ["exec", "k", "--meanwhile", &spare, "-c", "echo held; read end"];
        let mut outer = Running::start(lab.rlock(words).stdin(Stdio::piped()));
        lab.until_waiting("k", 2);
        first.end().silently(0);
        outer.expect_held();
        thread::sleep(SEVERAL_LOOKS);
        assert_eq!(lab.counts("k"), (1, 1));
        outer.write("end\n");
        outer.end().printed("spare\n");
    });
}
