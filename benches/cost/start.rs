//! The cost of starting a command under a free lock.

use std::time::Instant;

use super::aims::{Aim, Bound};
use super::candidate::{Candidate, EMBEDDED, ETCDCTL, FLOCK, PACKAGED, REDIS_TCP, REDIS_UNIX};
use super::chance::Chance;
use super::lab::Lab;
use super::options::Effort;
use super::table::{Findings, Row, Spread, Table};

/// Slow candidates are started this many times less often.
const SELDOM: usize = 10;

/// Measures the time from the start to the end of `true` under a lock.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let rounds = effort.pick(400, 3_000);
    let mut commands: Vec<_> = lab.candidates.iter().map(|candidate| candidate.run(&["true"])).collect();
    let mut times = vec![Vec::new(); commands.len()];
    let mut order: Vec<usize> = (0..commands.len()).collect();
    let mut chance = Chance::new();
    for round in 0..rounds {
        // The previous command affects the caches, so the order changes in each round.
        chance.shuffle(&mut order);
        for &at in &order {
            if lab.candidates[at].is_slow() && round % SELDOM != 0 {
                continue;
            }
            let started = Instant::now();
            let status = commands[at].status().expect("the program can be started");
            times[at].push(started.elapsed().as_secs_f64() * 1e6);
            assert!(status.success(), "{:?} fails", commands[at]);
        }
    }
    let row = |(candidate, times): (&Candidate, Vec<f64>)| Row {
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
        rows: lab.candidates.iter().zip(times).map(row).collect(),
        drawn: true,
    };
    let aim = |row: &str, other: &str, bound| {
        Aim::times(format!("start-up: {row}, of {other}"), bound, table.ratio(row, other, 0))
    };
    let mut aims = vec![
        aim(EMBEDDED, FLOCK, Bound::AtMost(1.0)),
        aim(REDIS_TCP, FLOCK, Bound::AtMost(1.2)),
        aim(REDIS_UNIX, FLOCK, Bound::AtMost(1.2)),
    ];
    if lab.packaged.is_some() {
        aims.push(aim(PACKAGED, FLOCK, Bound::AtMost(0.95)));
    }
    for row in [EMBEDDED, REDIS_TCP] {
        aims.push(aim(ETCDCTL, row, Bound::AtLeast(6.0)));
    }
    Findings { tables: vec![table], aims }
}
