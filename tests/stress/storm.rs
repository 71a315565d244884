//! Kills processes at random instants of their lives while other processes work.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::thread;
use std::time::Duration;

use rlock_testkit::random::Random;
use rlock_testkit::{Lab, wait_until};

/// The number of processes to kill. `WORKERS` threads run `ROUNDS` commands each meanwhile.
const KILLED: usize = 400;
const WORKERS: usize = 4;
const ROUNDS: usize = 40;

/// The longest life of a process that is to be killed. A process can start, be granted and run its
/// command in less time.
const LIFE: Duration = Duration::from_millis(12);

/// Increments the number in a file. The command logs its token at its start, at each step and at
/// its end, and the number at its end. A kill cannot split a write of a few bytes.
const COMMAND: &str = r#"
    echo "start $RLOCK_TOKEN" >> log
    read n < number
    i=0; while [ $i -lt 12 ]; do echo "works $RLOCK_TOKEN" >> log; i=$((i + 1)); done
    n=$((n + 1)); echo $n 1<> number
    echo "end $RLOCK_TOKEN $n" >> log
"#;

/// A process that is killed and reaped on drop.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts and kills processes, three at a time, so that some hold, some wait and some have just
/// started. Returns the number of processes that ended before the kill.
fn kill_many(lab: &Lab, random: &mut Random) -> usize {
    let mut survived = 0;
    for _ in 0..KILLED / 3 {
        let start = |_| {
            let mut command = lab.rlock(["exec", "k", "--", "sh", "-c", COMMAND]);
            Victim(command.current_dir(lab.folder()).spawn().expect("rlock starts"))
        };
        for mut victim in (0..3).map(start).collect::<Vec<_>>() {
            // The sleep picks a random instant. It does not wait for a condition.
            thread::sleep(Duration::from_micros(random.below(LIFE.as_micros() as u64)));
            let _ = victim.0.kill();
            let status = victim.0.wait().expect("the process is a child");
            assert!(status.success() || status.signal() == Some(9), "{status:?}");
            survived += usize::from(status.success());
        }
    }
    survived
}

fn work(lab: &Lab) {
    for _ in 0..ROUNDS {
        let ran = rlock_testkit::Ran::of(lab.rlock(["exec", "k", "--", "sh", "-c", COMMAND]).current_dir(lab.folder()));
        ran.silently(0);
    }
}

/// Asserts that no command logs anything after a command with a higher token has started, and that
/// no increment is lost.
fn check(log: &str, finished: usize) {
    let (mut current, mut ended, mut last) = (0, 0, 0);
    for (number, line) in log.lines().enumerate() {
        let words: Vec<_> = line.split(' ').collect();
        let token: u64 = words[1].parse().expect("the second word is a token");
        match words[0] {
            "start" => assert!(token > current, "line {number}: {token} starts after {current}"),
            _ => assert_eq!(token, current, "line {number}: '{line}' after another command has started"),
        }
        current = token;
        if words[0] == "end" {
            let sum: u64 = words[2].parse().expect("the third word is a number");
            assert!(sum > last, "line {number}: {sum} after {last}, an increment is lost");
            (ended, last) = (ended + 1, sum);
        }
    }
    assert!(ended >= finished, "{finished} commands finished, but {ended} logged their end");
}

#[test]
fn commands_never_overlap_while_others_are_killed_at_random() {
    let lab = Lab::new();
    let mut random = Random::new();
    fs::write(lab.folder().join("number"), "0\n").expect("the file is written");
    let survived = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(|| work(&lab))).collect();
        let survived = kill_many(&lab, &mut random);
        workers.into_iter().for_each(|worker| worker.join().expect("every worker is served"));
        survived
    });
    let finished = WORKERS * ROUNDS + survived;
    let log = fs::read_to_string(lab.folder().join("log")).expect("the commands have written the log");
    check(&log, finished);
    let number = fs::read_to_string(lab.folder().join("number")).expect("the file exists");
    let number: usize = number.trim().parse().expect("the file has a number");
    assert!(
        (finished..=finished + KILLED).contains(&number),
        "{finished} commands finished, and the number is {number}"
    );
    eprintln!("{KILLED} killed, {finished} finished, {number} counted, {} lines", log.lines().count());

    // The commands of killed rlocks die too, so no session holds or waits. `cleanup` removes the
    // beacons that the killed processes left.
    wait_until("no session holds or waits", || lab.counts("k") == (0, 0));
    let left = lab.files().len() - 2;
    assert_eq!(lab.run(["cleanup"]).code(), Some(0));
    eprintln!("{left} beacons left before the cleanup");
    lab.assert_idle();
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
}

/// The requests mix modes, spans and slots, so that no log can prove their order. Every live
/// process must be served, and no state may stay behind.
#[test]
fn mixed_requests_are_all_served_while_half_are_killed() {
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
            Victim(command.args(["--", "sh", "-c", "exit 0"]).spawn().expect("rlock starts"))
        };
        let mut crowd: Vec<_> = (0..24).map(start).collect();
        for victim in crowd.iter_mut().step_by(2) {
            thread::sleep(Duration::from_micros(random.below(3000)));
            let _ = victim.0.kill();
        }
        for (index, victim) in crowd.iter_mut().enumerate() {
            let mut status = None;
            wait_until("the process has ended", || {
                status = victim.0.try_wait().expect("the process is a child");
                status.is_some()
            });
            let status = status.expect("the process has ended");
            let killed = index % 2 == 0 && status.signal() == Some(9);
            assert!(status.success() || killed, "{index}: {status:?}");
        }
    }
    // The guardian of a killed rlock keeps its beacon until the command is gone.
    wait_until("every killed rlock has left", || {
        assert_eq!(lab.run(["cleanup"]).code(), Some(0));
        lab.files() == ["lock", "table"]
    });
    lab.assert_idle();
}
