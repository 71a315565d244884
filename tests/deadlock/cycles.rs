//! Single cycles, and waits that look like one.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::on_each;
use rlock_testkit::servers::Kind;
use rlock_testkit::servers::cluster::Cluster;
use rlock_testkit::servers::sentinels::Sentinels;
use rlock_testkit::{Lab, RLOCK, Ran, Running};

/// The time in which a nested request looks several times.
pub(crate) const SEVERAL_LOOKS: Duration = Duration::from_millis(3_500);

/// Holds `name`, and runs `nested` when it is told to.
fn holder(lab: &Lab, name: &str, nested: &str) -> Running {
    let script = format!("echo held; read go; {nested}");
    let mut holder = Running::start(lab.rlock(["exec", name, "-c", &script]).stdin(Stdio::piped()));
    holder.expect_held();
    holder
}

fn asks(name: &str) -> String {
    format!("exec {RLOCK} exec {name} -- true")
}

/// Each holds one name and asks for the next, the last one for the first. Returns the end of the
/// last, after the others have ended with 0.
fn cycle(lab: &Lab, names: &[&str]) -> Ran {
    let nexts = names.iter().cycle().skip(1);
    let mut holders: Vec<_> = names.iter().zip(nexts).map(|(name, next)| holder(lab, name, &asks(next))).collect();
    let mut last = holders.pop().expect("there are several");
    for (holder, next) in holders.iter_mut().zip(&names[1..]) {
        holder.write("go\n");
        lab.until_waiting(next, 1);
    }
    last.write("go\n");
    let ran = last.end();
    holders.into_iter().for_each(|holder| holder.end().silently(0));
    lab.assert_idle();
    ran
}

/// "Of the rlocks that wait for each other, the youngest nested one ends with exit status 65; the
/// others go on. Two lines say which commands wait for each other, and which single request to make
/// instead."
#[test]
fn youngest_of_a_cycle_exits_65_with_two_lines() {
    on_each(|lab| {
        for names in [&["a", "b"][..], &["a", "b", "c"], &["a", "b", "c", "d", "e"]] {
            let ran = cycle(&lab, names);
            assert_eq!((ran.code(), ran.stdout.as_str()), (Some(65), ""), "{ran:?}");
            let lines: Vec<_> = ran.stderr.lines().collect();
            let [cycle, instead] = lines.as_slice() else { panic!("{ran:?}") };
            let last = names.last().unwrap();
            assert!(cycle.starts_with(&format!("rlock: refused: deadlock: '{last}' is held for write by ")), "{cycle}");
            assert!(cycle.ends_with(&format!(", which waits for '{last}'")), "{cycle}");
            assert_eq!(cycle.matches(", which waits for ").count(), names.len(), "{cycle}");
            let request = format!("rlock exec --write {last} --write a -- COMMAND");
            assert_eq!(*instead, format!("rlock: ask for both in one request: {request}"));
        }
    });
}

/// The nested request of the first holder runs below 401 names, and `a` is the last of them.
#[test]
fn cycle_is_found_among_hundreds_of_names() {
    on_each(|lab| {
        let many = |prefix: &str| (0..200).map(|number| format!("--write {prefix}{number} ")).collect::<String>();
        let nested = format!("exec {RLOCK} exec {}-c 'echo held; read go; {}'", many("inner"), asks("b"));
        let mut outer = lab.rlock(["exec"]);
        outer.args(many("outer").split_whitespace()).args(["--write", "a", "-c", &nested]);
        let mut first = Running::start(outer.stdin(Stdio::piped()));
        first.expect_held();
        let mut second = holder(&lab, "b", &asks("a"));
        first.write("go\n");
        lab.until_waiting("b", 1);
        second.write("go\n");
        assert_eq!(second.end().code(), Some(65));
        first.end().silently(0);
        lab.assert_idle();
    });
}

/// A Cluster has each resource in a slot of its own, on several nodes.
#[test]
fn cycle_across_the_nodes_of_a_cluster_is_found() {
    Kind::Valkey9.run(|kind| {
        let cluster = Cluster::start(kind, 3);
        let names = ["a", "b", "c", "d"];
        let owners: std::collections::BTreeSet<_> =
            names.iter().map(|name| cluster.owner(cluster.slot(&format!("lab:{{{name}}}")))).collect();
        assert!(owners.len() > 1, "all names are on one node");
        assert_eq!(cycle(&Lab::at(cluster.url()), &names).code(), Some(65));
    });
}

#[test]
fn cycle_at_a_server_behind_sentinels_is_found() {
    Kind::Redis7.run(|kind| {
        let sentinels = Sentinels::start(kind);
        assert_eq!(cycle(&Lab::at(sentinels.url()), &["a", "b"]).code(), Some(65));
    });
}

/// "A deadlock is not busy: `--skip-ok`, `--else`, `-E` and `-q` do not apply."
#[test]
fn deadlock_is_neither_skipped_nor_busy_and_has_its_outcome() {
    let lab = Lab::new();
    let file = lab.folder().join("status");
    for options in ["-w 1h --skip-ok -q", "-w 1h --else 'echo else'", "-E 9"] {
        let inner = format!("exec {RLOCK} exec a {options} --status-file {} -- true", file.display());
        let mut first = holder(&lab, "a", &asks("b"));
        let mut last = holder(&lab, "b", &inner);
        first.write("go\n");
        lab.until_waiting("b", 1);
        last.write("go\n");
        let ran = last.end();
        assert_eq!((ran.code(), ran.stdout.as_str()), (Some(65), ""), "{options}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 2, "{options}: {ran:?}");
        let status: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(status["outcome"], "deadlock");
        first.end().silently(0);
    }
}

/// "If it does not end within 5 s, because it is stopped, looks later or does not look, the next
/// older one ends."
#[test]
fn older_request_ends_where_the_youngest_has_deadlock_timeout_0() {
    let lab = Lab::new();
    let mut first = holder(&lab, "a", &asks("b"));
    let mut last = holder(&lab, "b", &format!("exec {RLOCK} exec a --deadlock-timeout 0 -- true"));
    first.write("go\n");
    lab.until_waiting("b", 1);
    last.write("go\n");
    assert_eq!(first.end().code(), Some(65));
    last.end().silently(0);
}

/// "Two commands below one hold, as of `make -j2`, that lock the same KEY are no deadlock: they
/// take turns."
#[test]
fn siblings_below_one_hold_take_turns() {
    on_each(|lab| {
        let sibling = format!("{RLOCK} exec b -- sleep 2 &");
        let script = format!("{sibling} one=$!\n{sibling} two=$!\nwait $one && wait $two");
        lab.run(["exec", "p", "-c", &script]).silently(0);
        lab.assert_idle();
    });
}

/// A killed waiter closes no cycle, although a server may keep it in the queue for a while. It
/// shows that it is dead by its missing subscription.
#[test]
fn killed_waiter_causes_no_false_alarm() {
    on_each(|lab| {
        let mut first = holder(&lab, "a", &asks("b"));
        let mut other = holder(&lab, "b", &format!("{RLOCK} exec a -- true & echo $!; read end"));
        other.write("go\n");
        let waiter: i32 = other.line().parse().expect("a process id");
        lab.until_waiting("a", 1);
        // The holder's channel and the waiter's.
        lab.until_subscribed("a", 2);
        kill_process(Pid::from_raw(waiter).unwrap(), Signal::KILL).unwrap();
        first.write("go\n");
        lab.until_waiting("b", 1);
        // No condition shows that a look found nothing.
        thread::sleep(SEVERAL_LOOKS);
        assert!(first.runs());
        other.end();
        first.end().silently(0);
    });
}

/// A stopped waiter is in the queue and will go on, so its cycle is real.
#[test]
fn cycle_with_a_stopped_waiter_is_found() {
    let lab = Lab::new();
    let mut first = holder(&lab, "a", &format!("{RLOCK} exec b -- true & echo $!; wait $!"));
    let mut last = holder(&lab, "b", &asks("a"));
    first.write("go\n");
    let waiter = Pid::from_raw(first.line().parse().expect("a process id")).unwrap();
    lab.until_waiting("b", 1);
    kill_process(waiter, Signal::STOP).unwrap();
    last.write("go\n");
    assert_eq!(last.end().code(), Some(65));
    kill_process(waiter, Signal::CONT).unwrap();
    assert_eq!(first.end().code(), Some(0));
}

/// Sessions that the server has forgotten are in no cycle, and nobody hangs.
#[test]
fn restart_without_data_ends_the_waits_of_a_cycle() {
    Kind::Redis7.run(|kind| {
        let mut server = rlock_testkit::servers::Server::start(kind);
        let lab = Lab::at(server.url());
        let mut first = holder(&lab, "a", &asks("b"));
        let mut last = holder(&lab, "b", &asks("a"));
        first.write("go\n");
        lab.until_waiting("b", 1);
        last.write("go\n");
        lab.until_waiting("a", 1);
        server.kill();
        server.restart();
        for ran in [first.end(), last.end()] {
            assert!([Some(0), Some(65), Some(76)].contains(&ran.code()), "{ran:?}");
        }
    });
}

/// "Where a kept hold is around the request, release it first."
#[test]
fn cycle_through_the_kept_hold_around_a_request_is_found() {
    on_each(|lab| {
        let cases = [
            ("ever", "", "release"),
            ("7d", "", "release"),
            ("7d", "-w 1h", "release"),
            ("7d --pid $$", "", "release a"),
        ];
        for (length, wait, release) in cases {
            let mut other = holder(&lab, "b", &asks("a"));
            let script = format!(
                "lock=$({RLOCK} acquire a --for {length} --export) && eval \"$lock\" && echo held && read go
                {RLOCK} exec {wait} b -- true; code=$?
                {RLOCK} {release}; exit $code"
            );
            let mut shell = std::process::Command::new("sh");
            lab.settle(&mut shell);
            let mut owner = Running::start(shell.args(["-c", &script]).stdin(Stdio::piped()));
            owner.expect_held();
            other.write("go\n");
            lab.until_waiting("a", 1);
            owner.write("go\n");
            let ran = owner.end();
            assert_eq!((ran.code(), ran.stdout.as_str()), (Some(65), ""), "{length} {wait}: {ran:?}");
            let lines: Vec<_> = ran.stderr.lines().collect();
            let [cycle, instead] = lines.as_slice() else { panic!("{ran:?}") };
            assert!(cycle.starts_with("rlock: refused: deadlock: 'a' is kept for write by "), "{cycle}");
            assert!(cycle.contains(", and a request below waits for 'b'; 'b' is held for write by "), "{cycle}");
            let request = "ask for both in one request: rlock exec --write a --write b -- COMMAND";
            assert_eq!(*instead, format!("rlock: run 'rlock {release}', then {request}"));
            other.end().silently(0);
            lab.assert_idle();
        }
    });
}

/// "A kept hold ends at its instant": the request of others waits for that, unless its own wait is
/// over before.
#[test]
fn cycle_through_the_kept_hold_of_others_is_one_for_a_wait_that_is_over_before() {
    on_each(|lab| {
        for (length, wait, code) in [("4s", "1h", 0), ("1h", "30m", 65)] {
            let ran = lab.run(["acquire", "a", "--for", length]);
            let variables = ran.stdout.lines().filter_map(|line| line.split_once('='));
            let mut other = holder(&lab, "b", &format!("exec {RLOCK} exec -w {wait} a -- true"));
            let words = ["exec", "b", "--deadlock-timeout", "0", "--", "true"];
            let below = Running::start(lab.rlock(words).envs(variables));
            lab.until_waiting("b", 1);
            other.write("go\n");
            assert_eq!(other.end().code(), Some(code), "{length} {wait}");
            below.end().silently(0);
            if code != 0 {
                lab.run(["break", "a"]);
            }
        }
    });
}
