//! The steps of a CI job below one lock of `acquire --for`, cancelled as a runner does it.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::acquire::{acquire, below};
use rlock_testkit::needs::{programs, skip_unless};
use rlock_testkit::random::Random;
use rlock_testkit::{Lab, RLOCK, Ran, Running, on_both};

/// A runner sends INT, waits for 7.5 s, sends TERM, waits for 2.5 s, and kills what is left. The
/// waits here are 50 times shorter.
const CANCELLATION: [(Signal, Duration); 3] = [
    (Signal::INT, Duration::from_millis(150)),
    (Signal::TERM, Duration::from_millis(50)),
    (Signal::KILL, Duration::ZERO),
];

/// The start of every command. It exits with 99 if another command runs at this time. The lock ends
/// with the shell itself, because a process that outlives its command holds no lock of rlock
/// either.
const WITNESS: &str = "exec 9>witness; flock -n 9 || exit 99; ";

/// How many jobs are cancelled on a store.
const JOBS: usize = 6;

/// One step, in a process group of its own.
fn step(lab: &Lab, variables: &BTreeMap<String, String>, key: &str, work: &'static str) -> Running {
    let mut rlock = below(lab, variables, &["exec", "--nested", "--ttl", "1s", key]);
    rlock.args(["-c", &format!("{WITNESS}{work}")]).current_dir(lab.folder()).env("RLOCK", RLOCK).env("KEY", key);
    Running::start(rlock.process_group(0))
}

/// Ends a step as a cancelled runner does.
fn cancel(step: &mut Running) {
    let group = Pid::from_raw(step.pid().cast_signed()).expect("a process has a number");
    for (signal, patience) in CANCELLATION {
        if signal == Signal::KILL {
            // The guardian leads a group of its own and dies with the rlock.
            let _ = kill_process_group(group, signal);
        } else if step.runs() {
            step.signal(signal);
        }
        let until = Instant::now() + patience;
        while step.runs() && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Plays a job of five steps and cancels it after `life`.
fn job(lab: &Lab, key: &str, random: &mut Random) {
    let length = format!("{}ms", 200 + random.below(1_500));
    let cancelled = Instant::now() + Duration::from_micros(random.below(1_200_000));
    let variables = acquire(lab, &[key, "--for", &length]);
    let work = random.pick(&[
        "\"$RLOCK\" held \"$KEY\" 9>&- || exit 98; sleep 0.2 9>&-; true",
        "trap '' INT; \"$RLOCK\" held \"$KEY\" 9>&- || exit 98; sleep 0.2 9>&-; true",
        "trap '' INT TERM; \"$RLOCK\" held \"$KEY\" 9>&- || exit 98; sleep 0.2 9>&-; sleep 0.2 9>&-; true",
    ]);
    for _ in 0..5 {
        let mut step = step(lab, &variables, key, work);
        while step.runs() && Instant::now() < cancelled {
            thread::sleep(Duration::from_millis(2));
        }
        if step.runs() {
            cancel(&mut step);
            step.end();
            break;
        }
        // A step whose lock has ended runs nothing.
        let ran = step.end();
        assert!(matches!(ran.code(), Some(0 | 76)), "{ran:?}");
    }
    // A runner that dies runs no step that releases the lock.
    if random.once_in(2) {
        let ran = Ran::of(&mut below(lab, &variables, &["release"]));
        assert!(matches!(ran.code(), Some(0 | 76)), "{ran:?}");
    }
}

/// "no lock outlives its --for, no step runs without one".
#[test]
fn cancelled_job_leaves_no_lock_behind_and_runs_no_step_without_it() {
    skip_unless!(programs(&["flock"]));
    on_both(|lab| {
        let mut random = Random::new();
        for number in 0..JOBS {
            let key = format!("job {number}");
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                let others = scope.spawn(|| {
                    let mut granted = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let work = format!("{WITNESS}sleep 0.01 9>&-; true");
                        Ran::of(lab.rlock(["exec", &key, "-c", &work]).current_dir(lab.folder())).silently(0);
                        granted += 1;
                    }
                    granted
                });
                // The others have to end even if this fails.
                let ended = scope.spawn(|| job(lab, &key, &mut random)).join();
                is_over.store(true, Ordering::Relaxed);
                assert!(others.join().expect("no two commands ran at a time") > 0);
                ended.expect("the job is as it should be");
            });
            lab.run(["exec", &key, "--", "true"]).silently(0);
        }
        lab.assert_idle();
    });
}
