//! The cost of an idle process that holds or waits for a lock, and the size of the program on the
//! disk.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::aims::{Aim, Bound};
use super::candidate::{Candidate, EMBEDDED, PACKAGED, REDIS_TCP, REDIS_UNIX};
use super::crowd::Crowd;
use super::lab::Lab;
use super::options::Effort;
use super::server::{Counts, Redis};
use super::table::{Findings, Row, Spread, Table};

/// The two processes that are measured for each candidate.
const ROLES: [&str; 2] = ["holding", "waiting"];
/// The number of KiB in a MiB: /proc counts in KiB, and the tables show MiB.
const MIB: f64 = 1024.0;

/// Measures memory, wake-ups and size.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let length = Duration::from_secs(effort.pick(11, 61));
    let candidates: Vec<&Candidate> = lab.candidates.iter().filter(|candidate| !candidate.is_nothing()).collect();
    // All candidates run at the same time, each with a lock of its own.
    let mut crowds = Vec::new();
    for candidate in &candidates {
        let mut crowd = Crowd::behind_a_holder(candidate, lab.folder());
        crowd.queue_up(candidate, 1, &["true"]);
        crowds.push(crowd);
    }
    let scripts = || lab.redis.as_ref().map(scripts);
    let wakes = || -> Vec<[f64; 2]> { crowds.iter().map(|crowd| crowd.first_two().map(wake_ups)).collect() };
    let (before, woken) = (scripts(), wakes());
    thread::sleep(length);
    let (after, woken_since) = (scripts(), wakes());
    let peaks: Vec<_> = crowds.iter().map(|crowd| crowd.first_two().map(memory)).collect();
    for crowd in &mut crowds {
        crowd.go().unwrap_or_else(|problem| eprintln!("{problem}"));
    }

    let woken: Vec<[f64; 2]> =
        woken.iter().zip(&woken_since).map(|(before, after)| [0, 1].map(|role| after[role] - before[role])).collect();
    let wakes_of = |name: &str| {
        let found = candidates.iter().zip(&woken).find(|(candidate, _)| candidate.name == name);
        found.map(|(_, woken)| woken.iter().sum::<f64>())
    };
    let row = |name: &str, figures: &[f64]| Row {
        name: name.to_owned(),
        cells: figures.iter().map(|figure| Some(Spread::exactly(*figure))).collect(),
    };
    let memory = Table {
        title: "Memory of a process that holds, and of one that waits",
        unit: "MiB",
        about: "The most that it ever had in memory, the pages of its program included, and what is its own of it now."
            .into(),
        columns: ROLES.iter().flat_map(|role| [format!("{role}, at most"), format!("{role}, its own")]).collect(),
        against: None,
        rows: candidates
            .iter()
            .zip(&peaks)
            .map(|(candidate, peaks)| row(candidate.name, peaks.as_flattened()))
            .collect(),
        drawn: false,
    };
    let per_second = |woken: &[f64; 2]| woken.map(|times| times / length.as_secs_f64());
    let wake_ups = Table {
        title: "Wake-ups of a process that holds, and of one that waits",
        unit: "per second",
        about: format!("How often it went to sleep again, over {} s in which nothing happened.", length.as_secs()),
        columns: ROLES.map(str::to_owned).to_vec(),
        against: None,
        rows: candidates.iter().zip(&woken).map(|(candidate, woken)| row(candidate.name, &per_second(woken))).collect(),
        drawn: false,
    };
    let mut programs = vec![("rlock", &lab.rlock, 4.5)];
    programs.extend(lab.packaged.as_ref().map(|program| ("rlock as packaged", program, 4.0)));
    let size = Table {
        title: "Size of the program",
        unit: "MiB",
        about: "With everything in it: it needs no library and no other program.".into(),
        columns: vec!["on the disk".into()],
        against: None,
        rows: programs.iter().map(|(name, program, _)| row(name, &[size_of(program)])).collect(),
        drawn: false,
    };

    let mut aims = Vec::new();
    for name in [EMBEDDED, REDIS_TCP].into_iter().chain(lab.packaged.as_ref().map(|_| PACKAGED)) {
        let (what, figure) = (format!("memory at most, holding: {name}"), memory.median(name, 0));
        aims.push(Aim { what, bound: Bound::AtMost(3.5), figure, unit: "MiB" });
    }
    aims.push(Aim {
        what: format!("wake-ups in {} s, holding and waiting: {EMBEDDED}", length.as_secs()),
        bound: Bound::AtMost(0.0),
        figure: wakes_of(EMBEDDED),
        unit: "",
    });
    let renewals = before.zip(after).map(|(before, after)| after - before);
    let on_redis = wakes_of(REDIS_TCP).zip(wakes_of(REDIS_UNIX)).map(|(tcp, unix)| tcp + unix);
    aims.push(Aim {
        what: "wake-ups for a renewal, one to ask and one for the answer: rlock on Redis".into(),
        bound: Bound::AtMost(2.0),
        figure: on_redis.zip(renewals).map(|(woken, renewals)| woken / renewals),
        unit: "",
    });
    aims.extend(programs.iter().map(|(name, _, most)| Aim {
        what: format!("size of the program: {name}"),
        bound: Bound::AtMost(*most),
        figure: size.median(name, 0),
        unit: "MiB",
    }));
    Findings { tables: vec![memory, wake_ups, size], aims }
}

/// Returns the size of a file in MiB.
fn size_of(program: &Path) -> f64 {
    fs::metadata(program).expect("the bench copied the program").len() as f64 / MIB / 1024.0
}

/// Returns the number of scripts that the server has run.
fn scripts(redis: &Redis) -> f64 {
    Counts::of(&mut redis.client()).calls_of("evalsha")
}

/// Returns the peak memory of a process, and the memory that it does not share.
fn memory(process: u32) -> [f64; 2] {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
    ["VmHWM:", "RssAnon:"].map(|name| number(&status, name) / MIB)
}

/// Returns how often the threads of a process have gone to sleep.
fn wake_ups(process: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let times = threads.map(|thread| {
        let path = thread.expect("the folder can be read").path().join("status");
        number(&fs::read_to_string(path).expect("the process runs"), "voluntary_ctxt_switches:")
    });
    times.sum()
}

fn number(status: &str, name: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("/proc has the line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
