//! The cost of a hand-over from a holder to the next in the queue.

use std::fs;

use super::aims::{Aim, Bound};
use super::candidate::{BATON, Candidate, EMBEDDED, ETCDCTL, FLOCK, NOTHING, POSTGRES, REDIS_TCP};
use super::crowd::Crowd;
use super::lab::Lab;
use super::options::Effort;
use super::server::Counts;
use super::stamp;
use super::table::{Findings, Row, Spread, Table};

/// The numbers of waiters.
const QUEUES: [usize; 4] = [10, 50, 100, 1_000];

/// The measurements of one candidate with one number of waiters.
#[derive(Clone, Default)]
struct Found {
    gaps: Vec<f64>,
    /// The server's commands per hand-over. `scripts` are those of them that a client sent.
    commands: Vec<f64>,
    scripts: Vec<f64>,
    /// The reason why the measurements stopped.
    problem: Option<String>,
}

/// Measures the time between the end of one command and the start of the next, and the work of the
/// Redis server for it.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let baton = lab.redis.as_ref().map(Candidate::baton);
    let candidates: Vec<&Candidate> = lab.candidates.iter().chain(&baton).collect();
    let mut found = vec![vec![Found::default(); QUEUES.len()]; candidates.len()];
    for (column, &waiters) in QUEUES.iter().enumerate() {
        for _ in 0..effort.pick([8, 4, 2, 1], [40, 20, 10, 5])[column] {
            for (candidate, found) in candidates.iter().zip(&mut found) {
                let found = &mut found[column];
                if waiters <= candidate.most_waiters(effort) && found.problem.is_none() {
                    found.problem = drain(lab, candidate, waiters, found).err();
                }
            }
        }
    }
    let problem = |found: &Found| found.problem.as_ref().map(|problem| format!(" {problem}."));
    let problems: String = found.iter().flatten().filter_map(problem).collect();
    let columns = || QUEUES.map(|waiters| format!("{waiters} waiting")).to_vec();
    let gaps = candidates.iter().zip(&found).map(|(candidate, found)| Row {
        name: candidate.name.to_owned(),
        cells: found.iter().map(|found| Spread::of(found.gaps.clone())).collect(),
    });
    let hand_over = Table {
        title: "Hand-over: from the end of a command to the start of the next in the queue",
        unit: "µs",
        about: format!(
            "By the commands' own clocks, so the end of one process and the start of another are in all of them; \"no \
             lock\" starts one after the other and shows how much that is. \"{BATON}\" has no lock either: each waits for \
             a message of the one before it, and makes one round trip before it starts its command. Beyond 50 or 100 of \
             PostgreSQL, etcdctl and sem there is too little memory or time.{problems}"
        ),
        columns: columns(),
        against: Some(FLOCK),
        rows: gaps.collect(),
        drawn: true,
    };
    let mut aims = Vec::new();
    for (column, waiters) in QUEUES.iter().enumerate() {
        let mut aim = |row: &str, other: &str, bound| {
            let what = format!("hand-over, {waiters} waiting: {row}, of {other}");
            aims.push(Aim::times(what, bound, hand_over.ratio(row, other, column)));
        };
        aim(EMBEDDED, FLOCK, Bound::AtMost(1.3));
        aim(REDIS_TCP, FLOCK, Bound::AtMost(1.45));
        if hand_over.median(POSTGRES, column).is_some() {
            aim(POSTGRES, ETCDCTL, Bound::AtMost(1.0));
        }
        if hand_over.median(ETCDCTL, column).is_some() {
            aim(ETCDCTL, EMBEDDED, Bound::AtLeast(6.0));
            aim(ETCDCTL, REDIS_TCP, Bound::AtLeast(6.0));
            // Every hand-over contains the end of one process and the start of another. The rest is
            // the cost of the lock.
            let own = |row: &str| Some(hand_over.median(row, column)? - hand_over.median(NOTHING, column)?);
            for row in [EMBEDDED, REDIS_TCP] {
                let what = format!("hand-over, {waiters} waiting, beyond \"no lock\": {ETCDCTL}, of {row}");
                let ratio = own(ETCDCTL).zip(own(row)).map(|(other, own)| other / own);
                aims.push(Aim::times(what, Bound::AtLeast(6.0), ratio));
            }
        }
    }
    let Some((_, found)) = candidates.iter().zip(found).find(|(candidate, _)| candidate.name == REDIS_TCP) else {
        return Findings { tables: vec![hand_over], aims };
    };
    let row = |name: &str, figures: fn(&Found) -> &Vec<f64>| Row {
        name: name.to_owned(),
        cells: found.iter().map(|found| Spread::of(figures(found).clone())).collect(),
    };
    let commands = Table {
        title: "Hand-over: commands of the Redis server for each",
        unit: "commands",
        about: "By INFO commandstats, over the whole of the queue.".into(),
        columns: columns(),
        against: None,
        rows: vec![row(SENT, |found| &found.scripts), row(ALL, |found| &found.commands)],
        drawn: false,
    };
    let growth = || Some(commands.median(ALL, QUEUES.len() - 1)? / commands.median(ALL, 0)?);
    aims.push(Aim::times("commands for a hand-over: 1000 waiting, of 10 waiting".into(), Bound::AtMost(1.1), growth()));
    Findings { tables: vec![hand_over, commands], aims }
}

/// The rows of the second table: the commands from clients, and all commands including those in
/// scripts.
const SENT: &str = "scripts that clients called";
const ALL: &str = "all, those in scripts included";

/// Starts a holder with waiters, and lets the holder go.
fn drain(lab: &Lab, candidate: &Candidate, waiters: usize, found: &mut Found) -> Result<(), String> {
    let stamps = lab.folder().join("stamps");
    let _ = fs::remove_file(&stamps);
    let words = stamp::words(&stamps);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if candidate.is_nothing() {
        (0..=waiters)
            .for_each(|_| assert!(candidate.run(&words).status().expect("the program can be started").success()));
        found.gaps.extend(stamp::gaps(&stamps).map_err(|overlap| format!("{}: {overlap}", candidate.name))?);
        return Ok(());
    }
    let mut crowd = Crowd::behind_a_holder(candidate, lab.folder());
    crowd.queue_up(candidate, waiters, &words);
    let mut client = lab.redis.as_ref().filter(|_| candidate.is_on_redis()).map(|redis| redis.client());
    let before = client.as_mut().map(Counts::of);
    crowd.go()?;
    found.gaps.extend(stamp::gaps(&stamps).map_err(|overlap| format!("{}: {overlap}", candidate.name))?);
    if let (Some(mut client), Some(before)) = (client, before) {
        let counts = Counts::of(&mut client).since(&before);
        found.commands.push(counts.calls() / waiters as f64);
        found.scripts.push((counts.calls_of("evalsha") + counts.calls_of("eval")) / waiters as f64);
    }
    Ok(())
}
