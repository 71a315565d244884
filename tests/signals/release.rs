//! The release and the order of commands.

use std::collections::HashMap;
use std::fs;

use crate::session::{Session, script};
use rlock_testkit::Lab;

/// Logs its start, its end, and an overlap if its predecessor still exists, even as a zombie. Of
/// every five jobs, one dies of KILL and one of TERM.
const JOB: &str = r#"
echo "start $$" >> log
if [ -e last ] && kill -0 "$(cat last)" 2>/dev/null; then echo "overlap $(cat last)" >> log; fi
echo $$ > last
case $1 in *[05]) kill -KILL $$ ;; *[16]) kill -TERM $$ ;; esac
echo "end $$" >> log
"#;

/// "Release comes after the command is reaped, never before": no command ever sees the command of
/// the previous holder.
#[test]
fn next_command_starts_after_the_previous_one_is_reaped() {
    const WORKERS: usize = 4;
    const ROUNDS: usize = 25;
    let lab = Lab::new();
    script(&lab, "job", JOB);
    let round = "i=0; while [ $i -lt \"$1\" ]; do i=$((i + 1)); rlock exec k -- sh job $i; done; exit 0";
    let worker = || Session::start(&lab, ["sh", "-c", round, "sh", &ROUNDS.to_string()]);
    let mut workers: Vec<_> = (0..WORKERS).map(|_| worker()).collect();
    for worker in &mut workers {
        assert_eq!(worker.code(), 0);
        assert_eq!(worker.errors().all(), "");
    }
    let log = fs::read_to_string(lab.folder().join("log")).unwrap();
    let mut counts = HashMap::new();
    let mut running: Option<&str> = None;
    for line in log.lines() {
        let (event, pid) = line.split_once(' ').unwrap();
        *counts.entry(event).or_insert(0) += 1;
        match event {
            "start" => running = Some(pid),
            "end" => assert_eq!(running.take(), Some(pid), "another command started before {pid} ended:\n{log}"),
            _ => panic!("a command started before its predecessor was reaped:\n{log}"),
        }
    }
    assert_eq!(counts["start"], WORKERS * ROUNDS);
    assert_eq!(counts["end"], WORKERS * ROUNDS / 5 * 3);
    lab.assert_idle();
}
