//! Storms of SIGKILL, at any instant from the start of a process on, while others work.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::thread;
use std::time::Duration;

use super::support::random::Random;
use super::support::{Lab, wait_until};

/// How many processes are killed, and how many do their work beside them.
const KILLED: usize = 400;
const WORKERS: usize = 4;
const ROUNDS: usize = 40;

/// The longest time that a process is left to live, which is longer than it takes to start, to be granted and to run the command.
const LIFE: Duration = Duration::from_millis(12);

/// Appends a line for its start, for each step of its work and for its end, with its token and, at the end, the number that it wrote:
/// one more than it read. A write of a few bytes is done or not done, whenever the process is killed.
const COMMAND: &str = r#"
    echo "start $RLOCK_TOKEN" >> log
    read n < number
    i=0; while [ $i -lt 12 ]; do echo "works $RLOCK_TOKEN" >> log; i=$((i + 1)); done
    n=$((n + 1)); echo $n 1<> number
    echo "end $RLOCK_TOKEN $n" >> log
"#;

/// Killed and reaped in any case.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts and kills one process after the other, three at a time, so that holders, waiters and those who just start are among them.
fn kill_many(lab: &Lab, random: &mut Random) -> usize {
    let mut survived = 0;
    for _ in 0..KILLED / 3 {
        let start = |_| {
            let mut command = lab.rlock(["exec", "k", "--", "sh", "-c", COMMAND]);
            Victim(command.current_dir(lab.folder()).spawn().expect("it can be started"))
        };
        for mut victim in (0..3).map(start).collect::<Vec<_>>() {
            // In steps of a microsecond; what the time is for is chance, no condition is waited for.
            thread::sleep(Duration::from_micros(random.below(LIFE.as_micros() as u64)));
            let _ = victim.0.kill();
            let status = victim.0.wait().expect("it is a child");
            assert!(status.success() || status.signal() == Some(9), "{status:?}");
            survived += usize::from(status.success());
        }
    }
    survived
}

fn work(lab: &Lab) {
    for _ in 0..ROUNDS {
        let ran =
            super::support::Ran::of(lab.rlock(["exec", "k", "--", "sh", "-c", COMMAND]).current_dir(lab.folder()));
        ran.silently(0);
    }
}

/// Whoever starts has the highest token, and nobody before him does anything any more, whether he has ended or was killed; each reads
/// what the one before him wrote.
fn check(log: &str, finished: usize) {
    let (mut current, mut ended, mut last) = (0, 0, 0);
    for (number, line) in log.lines().enumerate() {
        let words: Vec<_> = line.split(' ').collect();
        let token: u64 = words[1].parse().expect("a token");
        match words[0] {
            "start" => assert!(token > current, "line {number}: {token} starts after {current}"),
            _ => assert_eq!(token, current, "line {number}: '{line}' although another has started"),
        }
        current = token;
        if words[0] == "end" {
            let sum: u64 = words[2].parse().expect("a number");
            assert!(sum > last, "line {number}: {sum} after {last}, so something was lost");
            (ended, last) = (ended + 1, sum);
        }
    }
    assert!(ended >= finished, "{finished} have finished and {ended} have said so");
}

#[test]
fn whoever_is_killed_whenever_the_others_never_overlap_and_all_are_served() {
    let lab = Lab::new();
    let mut random = Random::new();
    fs::write(lab.folder().join("number"), "0\n").expect("a file can be made");
    let survived = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(|| work(&lab))).collect();
        let survived = kill_many(&lab, &mut random);
        workers.into_iter().for_each(|worker| worker.join().expect("every worker is served"));
        survived
    });
    let finished = WORKERS * ROUNDS + survived;
    let log = fs::read_to_string(lab.folder().join("log")).expect("they have written it");
    check(&log, finished);
    let number = fs::read_to_string(lab.folder().join("number")).expect("it is there");
    let number: usize = number.trim().parse().expect("a number");
    assert!((finished..=finished + KILLED).contains(&number), "{finished} have finished, and the number is {number}");
    eprintln!("{KILLED} killed, {finished} finished, {number} counted, {} lines", log.lines().count());

    // The commands of the killed go with them, so nobody holds or waits; what they left in the folder goes with `cleanup`.
    wait_until("nobody holds or waits", || lab.counts("k") == (0, 0));
    let left = lab.files().len() - 2;
    assert_eq!(lab.run(["cleanup"]).code(), Some(0));
    eprintln!("{left} beacons left before the cleanup");
    lab.assert_idle();
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
}

/// The same for a queue in which modes, spans and slots mix, which no log can judge: everybody alive must be served, and nothing stay.
#[test]
fn a_mixed_crowd_is_served_although_half_of_it_is_killed() {
    let lab = Lab::new();
    let mut random = Random::new();
    let requests: [&[&str]; 8] = [
        &["exec", "--read", "k"],
        &["exec", "--prewrite", "k"],
        &["exec", "--write", "k"],
        &["exec", "--write", "k", "--write", "l"],
        &["exec", "--write", "l", "--read", "k"],
        &["exec", "--slot", "s=3"],
        &["range-write", "l", "1", "5"],
        &["range-read", "l", "[4,9)"],
    ];
    for _ in 0..12 {
        let start = |_: usize| {
            let words = requests[random.below(requests.len() as u64) as usize];
            let mut command = lab.rlock(words);
            Victim(command.args(["--", "sh", "-c", "exit 0"]).spawn().expect("it can be started"))
        };
        let mut crowd: Vec<_> = (0..24).map(start).collect();
        for victim in crowd.iter_mut().step_by(2) {
            thread::sleep(Duration::from_micros(random.below(3000)));
            let _ = victim.0.kill();
        }
        for (index, victim) in crowd.iter_mut().enumerate() {
            let mut status = None;
            wait_until("it is served", || {
                status = victim.0.try_wait().expect("it is a child");
                status.is_some()
            });
            let status = status.expect("it has ended");
            let killed = index % 2 == 0 && status.signal() == Some(9);
            assert!(status.success() || killed, "{index}: {status:?}");
        }
    }
    assert_eq!(lab.run(["cleanup"]).code(), Some(0));
    lab.assert_idle();
}
