//! The cost of starting a command under a free lock.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::aims::{Aim, Bound};
use super::candidate::{Candidate, EMBEDDED, ETCDCTL, FLOCK, PACKAGED, POSTGRES, PSQL, REDIS_TCP, REDIS_UNIX};
use super::chance::Chance;
use super::lab::Lab;
use super::options::Effort;
use super::table::{Findings, Row, Spread, Table};

/// Slow candidates are started this many times less often.
const SELDOM: usize = 10;

/// Measures the time from the start to the end of `true` under a lock.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let rounds = effort.pick(400, 3_000);
    let psql = lab.postgres.as_ref().map(Candidate::psql);
    let candidates: Vec<&Candidate> = lab.candidates.iter().chain(&psql).collect();
    let mut commands: Vec<_> = candidates.iter().map(|candidate| candidate.run(&["true"])).collect();
    let mut times = vec![Vec::new(); commands.len()];
    let mut worked = times.clone();
    let mut order: Vec<usize> = (0..commands.len()).collect();
    let mut chance = Chance::new();
    for round in 0..rounds {
        // The previous command affects the caches, so the order changes in each round.
        chance.shuffle(&mut order);
        for &at in &order {
            if candidates[at].is_slow() && round % SELDOM != 0 {
                continue;
            }
            let (before, started) = (processor_time(), Instant::now());
            let status = commands[at].status().expect("the program can be started");
            times[at].push(started.elapsed().as_secs_f64() * 1e6);
            worked[at].push(processor_time() - before);
            assert!(status.success(), "{:?} fails", commands[at]);
        }
    }
    let row = |(candidate, times): (&&Candidate, Vec<f64>)| Row {
        name: candidate.name.to_owned(),
        cells: vec![Spread::of(times)],
    };
    let table = Table {
        title: "Start-up: `true` under a lock that is free",
        unit: "µs",
        about: format!(
            "From the start of the process to its end, {rounds} times in turn, etcdctl and sem {} times.",
            rounds / SELDOM
        ),
        columns: vec!["from start to end".into()],
        against: Some(FLOCK),
        rows: candidates.iter().zip(times).map(row).collect(),
        drawn: true,
    };
    let aim = |row: &str, other: &str, bound| {
        Aim::times(format!("start-up: {row}, of {other}"), bound, table.ratio(row, other, 0))
    };
    let row = |(candidate, worked): (&&Candidate, Vec<f64>)| Row {
        name: candidate.name.to_owned(),
        cells: vec![Spread::of(worked), system_calls(lab, candidate).map(Spread::exactly)],
    };
    let work = Table {
        title: "Start-up: the work for it",
        unit: "µs, and a number",
        about:
            "The processor time of all processes of these starts, and the system calls of one, as strace counts them."
                .into(),
        columns: vec!["processor time".into(), "system calls".into()],
        against: Some(FLOCK),
        rows: candidates.iter().zip(worked).map(row).collect(),
        drawn: false,
    };
    let mut aims = vec![
        aim(EMBEDDED, FLOCK, Bound::AtMost(1.12)),
        aim(REDIS_TCP, FLOCK, Bound::AtMost(1.2)),
        aim(REDIS_UNIX, FLOCK, Bound::AtMost(1.2)),
        aim(POSTGRES, PSQL, Bound::AtMost(1.3)),
        aim(POSTGRES, ETCDCTL, Bound::AtMost(1.0)),
    ];
    if lab.packaged.is_some() {
        aims.push(aim(PACKAGED, FLOCK, Bound::AtMost(1.05)));
    }
    for row in [EMBEDDED, REDIS_TCP] {
        aims.push(aim(ETCDCTL, row, Bound::AtLeast(6.0)));
    }
    Findings { tables: vec![table, work], aims }
}

/// The processor time of all processes below this one that have ended, in µs.
fn processor_time() -> f64 {
    // SAFETY: zeros are a valid rusage.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes to `used` and keeps nothing.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut used) };
    [used.ru_utime, used.ru_stime].iter().map(|time| time.tv_sec as f64 * 1e6 + time.tv_usec as f64).sum()
}

/// The system calls of a start, with those of the command; none without strace(1).
fn system_calls(lab: &Lab, candidate: &Candidate) -> Option<f64> {
    let (counts, command) = (lab.folder().join("system-calls"), candidate.run(&["true"]));
    let mut traced = Command::new("strace");
    traced.args(["-f", "-c", "-o"]).arg(&counts).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    traced.stdin(Stdio::null()).stderr(Stdio::null()).status().ok().filter(|status| status.success())?;
    let total = fs::read_to_string(counts).ok()?;
    total.lines().find(|line| line.ends_with(" total"))?.split_whitespace().nth(3)?.parse().ok()
}
