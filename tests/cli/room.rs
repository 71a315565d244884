//! `--min-memory` and `--max-load`: a granted request waits until its machine has room.
//!
//! The gate is in the default store of this user, and one request at a time passes it. So these are
//! one test: others would wait for each other.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};

use rlock_testkit::{Lab, Ran, Running, on_both, wait_until, wait_within};

/// The memory of the machine in bytes, which is never free as a whole.
fn all_memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").expect("there is a /proc");
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("the kernel tells its memory");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    (kib << 10).to_string()
}

/// Gives this thread and the processes that it starts a `/run` of their own, in which the gate is
/// nobody else's. Only root may do so, and not in every container.
fn leave_run_to_others() {
    // SAFETY: the call changes the mounts that this thread sees, and no memory.
    if !geteuid().is_root() || unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return;
    }
    for words in [&["--make-rprivate", "/"][..], &["-t", "tmpfs", "-o", "mode=755", "run", "/run"]] {
        let status = Command::new("mount").args(words).status().expect("mount(8) can be started");
        assert!(status.success(), "{words:?}");
    }
}

/// "A request that is granted passes a gate before its command starts: one at a time on a machine."
#[test]
fn command_starts_only_when_there_is_room_and_one_at_a_time() {
    leave_run_to_others();
    on_both(waits_for_memory);
    // The turns at the gate last for 30 s, so both are tried at once.
    thread::scope(|scope| {
        scope.spawn(|| passes_one_that_needs_more(&Lab::new()));
        scope.spawn(|| takes_over_from_a_stopped_one(&Lab::new()));
    });
    let lab = Lab::new();
    starts_follow_each_other(&lab);
    let text = "--min-memory: 900T is more than the ";
    assert!(lab.run(["exec", "--min-memory", "900T", "k", "--", "true"]).failed(64).starts_with(text));
}

fn waits_for_memory(lab: &Lab) {
    let all = all_memory();
    let ran = |words: &[&str]| lab.run([&["exec", "--min-memory", &all], words].concat());
    for words in [&["-n"][..], &["-w", "1s"], &["--max-waiting", "0"]] {
        let words = &[words, &["k", "--", "true"]].concat();
        let ran = ran(words);
        assert!(ran.busy().starts_with("waiting for "), "{ran:?}");
        assert_eq!(lab.counts("k"), (0, 0), "the grant is given back");
    }
    let status = lab.folder().join("status").display().to_string();
    ran(&["-n", "--status-file", &status, "k", "--", "true"]).busy();
    let status = fs::read_to_string(status).expect("the status is written");
    assert!(status.contains("\"outcome\":\"busy\"") && status.contains("\"token\":null"), "{status}");
    ran(&["-n", "--skip-ok", "k", "--", "true"]).silently(0);
    let otherwise = ran(&["-n", "--else", "echo \"$RLOCK_BUSY\"", "k", "--", "true"]);
    assert!(otherwise.stdout.starts_with("busy: waiting for "), "{otherwise:?}");
    // The lock is held meanwhile, and a break frees it at once.
    let words = ["exec", "--max-runtime", "100ms", "--min-memory", &all, "k", "--", "true"];
    let waiter = Running::start(&mut lab.rlock(words));
    let gate = || lab.inspect(["k"])["resources"][0]["holders"][0]["gate"].clone();
    wait_until("the listing shows the gate", || gate().as_str().is_some_and(|gate| gate.ends_with(" of memory")));
    assert!(lab.run(["inspect", "k"]).stdout.contains("  waits for room  "));
    lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
    assert_eq!(lab.run(["break", "k"]).code(), Some(0));
    assert!(waiter.end().failed(76).contains("revoked by 'rlock break'; the command was not started"));
    // A revoked request that has spare work left is not at the gate any more.
    let spare = ["exec", "--meanwhile", "exec sleep 600", "--min-memory", &all, "k", "--", "true"];
    let spare = Running::start(&mut lab.rlock(spare));
    wait_until("the listing shows the gate", || gate().is_string());
    assert_eq!(lab.run(["break", "k"]).code(), Some(0));
    // Its patience at the gate would end only after 30 s.
    lab.run(["exec", "-w", "20s", "--min-memory", "1M", "other", "--", "true"]).silently(0);
    spare.signal(Signal::TERM);
    spare.end();
}

/// "From then on each of them has a turn of half a second, so those that need less room pass."
fn passes_one_that_needs_more(lab: &Lab) {
    let big = Running::start(&mut lab.rlock(["exec", "--min-memory", &all_memory(), "a", "--", "true"]));
    wait_until("the request is at the gate", || lab.inspect(["a"])["resources"][0]["holders"][0]["gate"].is_string());
    let mut small = Running::start(&mut lab.rlock(["exec", "--min-memory", "1M", "b", "--", "echo", "ran"]));
    wait_within(Duration::from_secs(120), "the command that needs less has run", || !small.runs());
    small.end().printed("ran\n");
    big.signal(Signal::TERM);
    assert_eq!(big.end().code(), Some(143));
}

/// "A request that is stopped at the gate loses its turn after 30 seconds": the next one passes,
/// and the one that wakes waits behind others.
fn takes_over_from_a_stopped_one(lab: &Lab) {
    let stopped = Running::start(&mut lab.rlock(["exec", "--min-memory", &all_memory(), "c", "--", "true"]));
    let gate = || lab.inspect(["c"])["resources"][0]["holders"][0]["gate"].clone();
    wait_until("the request is at the gate", || gate().is_string());
    stopped.signal(Signal::STOP);
    let mut next = Running::start(&mut lab.rlock(["exec", "--min-memory", "1M", "d", "--", "echo", "ran"]));
    wait_within(Duration::from_secs(180), "the next request has passed the gate", || !next.runs());
    next.end().printed("ran\n");
    stopped.signal(Signal::CONT);
    wait_until("the request is at the gate again", || gate().is_string());
    stopped.signal(Signal::TERM);
    assert_eq!(stopped.end().code(), Some(143));
}

/// "It keeps the gate for 2 s after its start, so three grants at once don't each count the same
/// memory": of 20 starts at once, only few come within a short wait.
fn starts_follow_each_other(lab: &Lab) {
    let log = lab.folder().join("log");
    let script = format!("date +%s%N >>'{}'; exec sleep 10", log.display());
    let began = Instant::now();
    let words = |n: u32| ["exec", "-w", "5s", "--min-memory", "1M", &n.to_string(), "-c", &script].map(str::to_owned);
    let all: Vec<Running> = (0..20).map(|n| Running::start(&mut lab.rlock(words(n)))).collect();
    let mut started = 0;
    for running in all {
        wait_until("the request has started or is busy", || began.elapsed() > Duration::from_secs(6));
        running.signal(Signal::TERM);
        let ran: Ran = running.end();
        started += u32::from(ran.code() == Some(143));
    }
    let text = fs::read_to_string(&log).expect("some command has started");
    let instants: Vec<u64> = text.lines().map(|line| line.parse().expect("an instant")).collect();
    assert!(started as usize == instants.len() && (1..=3).contains(&started), "{started}, {instants:?}");
    for pair in instants.windows(2) {
        // The clock of date is that of the machine, which may be corrected by a little.
        assert!(pair[1] - pair[0] > 1_900_000_000, "{instants:?}");
    }
}
