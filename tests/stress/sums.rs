//! Commands that increment a number without care: the sum is exact only if no two of them overlap.

use std::fs;

use super::crowd::Crowd;
use rlock_testkit::{Lab, RLOCK};

/// A shell command that increments the number in a file, and not atomically.
fn add(file: &str) -> String {
    format!("read n < {file}; echo $((n + 1)) > {file}")
}

/// A shell command that keeps the processor busy for a while.
const WORK: &str = "i=0; while [ $i -lt 300 ]; do i=$((i + 1)); done";

fn write_zeros(lab: &Lab, files: &[String]) {
    for file in files {
        fs::write(lab.folder().join(file), "0\n").expect("the file is written");
    }
}

fn number(lab: &Lab, file: &str) -> u64 {
    let text = fs::read_to_string(lab.folder().join(file)).expect("the file exists");
    text.trim().parse().unwrap_or_else(|_| panic!("{file} holds {text:?}"))
}

fn run(lab: &Lab, crowd: &mut Crowd, claims: &[&str], script: &str) {
    crowd.start(lab, lab.rlock(claims).args(["--", "sh", "-c", script]));
}

#[test]
fn fifty_writers_never_overlap() {
    let lab = Lab::new();
    let mut crowd = Crowd::new(&lab);
    write_zeros(&lab, &["n".to_owned()]);
    for _ in 0..50 {
        run(&lab, &mut crowd, &["exec", "k"], &add("n"));
    }
    crowd.expect_success();
    assert_eq!(number(&lab, "n"), 50);
    lab.assert_idle();
}

#[test]
fn file_does_not_change_while_a_reader_holds() {
    let lab = Lab::new();
    let mut crowd = Crowd::new(&lab);
    write_zeros(&lab, &["n".to_owned()]);
    for _ in 0..30 {
        run(&lab, &mut crowd, &["exec", "--write", "k"], &add("n"));
        let reader = format!("read a < n; {WORK}; read b < n; [ -n \"$a\" ] && [ \"$a\" = \"$b\" ]");
        run(&lab, &mut crowd, &["exec", "--read", "k"], &reader);
    }
    crowd.expect_success();
    assert_eq!(number(&lab, "n"), 30);
    lab.assert_idle();
}

#[test]
fn running_commands_never_exceed_the_slots() {
    let lab = Lab::new();
    let mut crowd = Crowd::new(&lab);
    fs::create_dir(lab.folder().join("in")).expect("the folder is made");
    let script = format!("> in/$$; set -- in/*; {WORK}; [ $# -le 3 ] || echo \"$# in\"; rm in/$$");
    for _ in 0..40 {
        run(&lab, &mut crowd, &["exec", "--slot", "k=3"], &script);
    }
    crowd.expect_success();
    lab.assert_idle();
}

#[test]
fn closed_intervals_that_touch_never_overlap() {
    let lab = Lab::new();
    let mut crowd = Crowd::new(&lab);
    let cells: Vec<_> = (0..=8).map(|cell| format!("cell{cell}")).collect();
    write_zeros(&lab, &cells);
    for round in 0..48 {
        let (lo, hi) = (round % 8, round % 8 + 1);
        let script = format!("{}; {}", add(&cells[lo]), add(&cells[hi]));
        run(&lab, &mut crowd, &["range-write", "k", &lo.to_string(), &hi.to_string()], &script);
    }
    crowd.expect_success();
    assert_eq!(cells.iter().map(|cell| number(&lab, cell)).sum::<u64>(), 96);
    assert_eq!((number(&lab, "cell0"), number(&lab, "cell1"), number(&lab, "cell8")), (6, 12, 6));
    lab.assert_idle();
}

#[test]
fn requests_with_claims_in_opposite_order_do_not_deadlock() {
    let lab = Lab::new();
    let mut crowd = Crowd::new(&lab);
    write_zeros(&lab, &["a".to_owned(), "b".to_owned()]);
    for _ in 0..20 {
        for claims in [["a", "b"], ["b", "a"]] {
            let script = format!("{}; {}", add("a"), add("b"));
            run(&lab, &mut crowd, &["exec", "--write", claims[0], "--write", claims[1]], &script);
        }
        run(&lab, &mut crowd, &["exec", "a"], &add("a"));
    }
    crowd.expect_success();
    assert_eq!((number(&lab, "a"), number(&lab, "b")), (60, 40));
    lab.assert_idle();
}

#[test]
fn file_does_not_change_between_prewrite_and_upgrade() {
    let lab = Lab::new();
    let mut crowd = Crowd::new(&lab);
    write_zeros(&lab, &["n".to_owned()]);
    let upgrade = format!("read n < n; '{RLOCK}' exec --write k -- sh -c \"echo $((n + 1)) > n\"");
    let reader = format!("read a < n; {WORK}; read b < n; [ -n \"$a\" ] && [ \"$a\" = \"$b\" ]");
    for _ in 0..20 {
        run(&lab, &mut crowd, &["exec", "--prewrite", "k"], &upgrade);
        run(&lab, &mut crowd, &["exec", "--read", "k"], &reader);
    }
    crowd.expect_success();
    assert_eq!(number(&lab, "n"), 20);
    lab.assert_idle();
}
