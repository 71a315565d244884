//! What one run of a job costs a Redis server: the processor time of the server, and what goes over
//! the network. A fleet costs as many times more as it has runs.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::lab::Lab;
use super::options::Effort;
use super::server::{Counts, Redis};
use super::table::{Findings, Row, Spread, Table};

/// The commands that rlock itself sends; other commands are called by scripts.
const SENT: [&str; 6] = ["evalsha", "eval", "hello", "client|setinfo", "subscribe", "unsubscribe"];
const COLUMNS: [&str; 6] =
    ["processor, µs", "scripts", "commands", "bytes to the server", "bytes from it", "connections"];
type Counters = [f64; COLUMNS.len()];
/// The number of runs in a round.
const RUNS: usize = 40;
/// The lease of the holders whose renewals are counted, a third of which lies between two renewals.
const TTL: &str = "3s";
/// How long they hold, in seconds.
const HELD: &str = "10";
const HOLDERS: usize = 30;

/// Measures a run that is granted, and one that finds the lock busy or its work done.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let Some(redis) = &lab.redis else { return Findings::default() };
    let rounds = effort.pick(5, 20);
    let rlock = |words: &[&str]| {
        let mut command = Command::new(&lab.rlock);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env("RLOCK_STORE", redis.tcp()).env("RLOCK_NAMESPACE", "fleet").spawn().expect("rlock can be started")
    };
    let run = |words: &[&str]| drop(rlock(words).wait());
    let idle = idle(redis);
    let each = |run: &dyn Fn(usize)| -> Vec<Counters> {
        run(0);
        let round = || used(redis, idle, || (1..=RUNS).for_each(run)).map(|used| used / RUNS as f64);
        (0..rounds).map(|_| round()).collect()
    };
    let granted = each(&|number| {
        run(&["exec", &format!("host{}", number % 10), "--", "true"]);
    });
    run(&["acquire", "job", "--for", "1h"]);
    let busy = each(&|_| {
        run(&["exec", "-n", "job", "--", "true"]);
    });
    let done = each(&|_| {
        run(&["exec", "--once-per", "1h", "once", "--", "true"]);
    });
    let hold = |holders: usize| {
        let words = |number| ["exec".to_owned(), format!("held{number}"), "--ttl".to_owned(), TTL.to_owned()];
        let holders = (0..holders).map(|number| {
            let words = words(number);
            let words: Vec<_> = words.iter().map(String::as_str).chain(["--", "sleep", HELD]).collect();
            rlock(&words)
        });
        holders.collect::<Vec<_>>().into_iter().for_each(|mut holder| drop(holder.wait()));
    };
    // The first renewal brings the script to the server.
    hold(1);
    let held = used(redis, idle, || hold(HOLDERS));
    // All scripts but those of the runs themselves are renewals.
    let of_runs: Counters = std::array::from_fn(|column| HOLDERS as f64 * median(&granted, column));
    let renewals = held[1] - of_runs[1];
    let renewal: Counters = std::array::from_fn(|column| (held[column] - of_runs[column]) / renewals);
    let rows = [
        ("a lock of its own, granted", granted),
        ("one lock for all, busy (-n)", busy),
        ("one lock for all, done (--once-per)", done),
        ("a renewal of a lease", vec![renewal]),
    ];
    let rows = rows.map(|(name, used)| Row {
        name: name.to_owned(),
        cells: (0..COLUMNS.len()).map(|column| Spread::of(used.iter().map(|used| used[column]).collect())).collect(),
    });
    let table = Table {
        title: "Fleet: what a run costs a Redis server",
        unit: "for each run",
        about: format!(
            "{rounds} times {RUNS} runs one after the other, by TCP: the processor time of the server, with what the kernel does for \
             its connections; and what it reads and writes. A connection of TCP and its end cost the network about 500 bytes more."
        ),
        columns: COLUMNS.map(str::to_owned).to_vec(),
        against: None,
        rows: rows.into(),
        drawn: false,
    };
    Findings { tables: vec![table], aims: Vec::new() }
}

fn median(used: &[Counters], column: usize) -> f64 {
    Spread::of(used.iter().map(|used| used[column]).collect()).expect("there are rounds").median
}

/// What the server spends while `work` runs, beyond the microseconds that it spends in each idle
/// second.
fn used(redis: &Redis, idle: f64, work: impl FnOnce()) -> Counters {
    let readings = [counters(redis), counters(redis)];
    let started = Instant::now();
    work();
    let passed = started.elapsed().as_secs_f64();
    let after = counters(redis);
    // Reading the counters costs something as well.
    let mut used: Counters =
        std::array::from_fn(|column| after[column] - 2.0 * readings[1][column] + readings[0][column]);
    used[0] -= idle * passed;
    used
}

/// The microseconds that a server without clients spends in a second.
fn idle(redis: &Redis) -> f64 {
    let (started, before) = (Instant::now(), redis.processor_time());
    thread::sleep(Duration::from_secs(2));
    (redis.processor_time() - before).as_secs_f64() * 1e6 / started.elapsed().as_secs_f64()
}

/// The counters of a server, in the order of the columns.
fn counters(redis: &Redis) -> Counters {
    let mut client = redis.client();
    let counts = Counts::of(&mut client);
    let info: String = redis::cmd("INFO").arg("stats").query(&mut client).expect("the server answers");
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.parse().ok()).expect("all servers report the field")
    };
    [
        redis.processor_time().as_secs_f64() * 1e6,
        counts.calls_of("evalsha"),
        SENT.iter().map(|command| counts.calls_of(command)).sum(),
        field("total_net_input_bytes"),
        field("total_net_output_bytes"),
        field("total_connections_received"),
    ]
}
