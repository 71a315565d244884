//! Many processes that lock random resources in random orders, one inside the other. All of them
//! end, and each request that ended with 65 was in a real cycle, which the log shows.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rlock_testkit::random::Random;
use rlock_testkit::servers::Kind;
use rlock_testkit::share::share;
use rlock_testkit::{Lab, RLOCK, Running, wait_within};

const RESOURCES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const DEPTH: usize = 3;

/// How long one order may take. Each deadlock on its way lasts two seconds or more.
const ORDER_MAX: Duration = Duration::from_secs(600);

/// Locks the first name, and below it the others. The parent of the script is the rlock that holds
/// the name. A line of the log is one write, so the lines keep the order of the events.
const NEST: &str = r#"
log=$1 held=$2; shift 2
echo "hold $held $PPID" >> "$log"
code=0
if [ $# -gt 0 ]; then
    echo "wants $1 $PPID" >> "$log"
    errors=$log.$$
    "$RLOCK" exec "$1" -- sh "$NEST" "$log" "$@" 2> "$errors"
    code=$?
    [ -s "$errors" ] && sed "s/^/said $PPID /" "$errors" >> "$log"
    rm -f "$errors"
else
    sleep 0.02
fi
echo "free $held $PPID" >> "$log"
exit $code
"#;

/// Runs the orders with so many workers, and returns how many ended with 65.
fn play(lab: &Lab, orders: usize, workers: usize, seed: u64, is_sorted: bool) -> usize {
    let (nest, log) = (lab.folder().join("nest"), lab.folder().join("log"));
    fs::write(&nest, NEST).unwrap();
    fs::write(&log, "").unwrap();
    let (next, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begin = Instant::now();
    thread::scope(|scope| {
        for worker in 0..workers {
            let (next, refused, nest, log) = (&next, &refused, &nest, &log);
            scope.spawn(move || {
                let mut random = Random::seeded(seed << 8 | worker as u64);
                while next.fetch_add(1, Ordering::Relaxed) < orders {
                    let mut names: Vec<&str> = Vec::new();
                    while names.len() < DEPTH {
                        let name = RESOURCES[random.below(RESOURCES.len() as u64) as usize];
                        if !names.contains(&name) {
                            names.push(name);
                        }
                    }
                    if is_sorted {
                        names.sort_unstable();
                    }
                    let mut command = lab.rlock(["exec", names[0], "--", "sh"]);
                    command.arg(nest).arg(log).args(&names).env("NEST", nest).env("RLOCK", RLOCK);
                    let mut running = Running::start(&mut command);
                    wait_within(ORDER_MAX, "the order ends", || !running.runs());
                    let ran = running.end();
                    match ran.code() {
                        Some(0) => {}
                        Some(65) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                        code => panic!("{names:?} ended with {code:?}: {ran:?}"),
                    }
                    assert_eq!(ran.stderr, "");
                }
            });
        }
    });
    let (refused, order) = (refused.into_inner(), if is_sorted { "one order" } else { "random orders" });
    println!("{orders} commands in {order} in {:?}, {refused} ended with 65", begin.elapsed());
    lab.assert_idle();
    refused
}

/// Fails unless each reported cycle was real when it was reported: each process held what the
/// report says, and waited for what the next one held. Returns the number of reports.
fn check(log: &str) -> usize {
    let lines: Vec<&str> = log.lines().collect();
    let mut reports = 0;
    for (at, line) in lines.iter().enumerate() {
        let Some((_, cycle)) = line.split_once("rlock: refused: deadlock: ") else {
            assert!(!line.contains("rlock:") || line.contains("ask for "), "an unexpected message: {line}");
            continue;
        };
        reports += 1;
        let mut wanted = Vec::new();
        let mut held = Vec::new();
        for clause in cycle.split("; '").map(|clause| clause.trim_start_matches('\'')) {
            let (name, rest) = clause.split_once("' is held for write by ").unwrap_or_else(|| panic!("{clause}"));
            let pid = rest.split_once(", pid ").and_then(|(_, rest)| rest.split(',').next()).unwrap();
            let wants = clause.rsplit_once("which waits for '").unwrap().1.trim_end_matches('\'');
            let last = |text: String| lines[..at].iter().rposition(|line| *line == text);
            let (hold, free) = (last(format!("hold {name} {pid}")), last(format!("free {name} {pid}")));
            assert!(hold.is_some() && hold > free, "pid {pid} does not hold {name}: {line}");
            // The request may be of a process further below, as the holder waits for all of them.
            assert!(lines[..at].iter().any(|line| line.starts_with(&format!("wants {wants} "))), "{line}");
            held.push(name);
            wanted.push(wants);
        }
        held.rotate_left(1);
        assert_eq!(held, wanted, "no cycle: {line}");
        assert_eq!(BTreeSet::from_iter(&held).len(), held.len(), "{line}");
    }
    reports
}

fn play_and_check(lab: &Lab, orders: usize, workers: usize, seed: u64) {
    let refused = play(lab, orders, workers, seed, false);
    let log = fs::read_to_string(lab.folder().join("log")).unwrap();
    assert_eq!(check(&log), refused, "every 65 has its report");
}

#[test]
fn random_orders_all_end_on_the_embedded_store() {
    play_and_check(&Lab::new(), share(10, 24), 8, 1);
}

#[test]
fn random_orders_all_end_on_a_server() {
    Kind::Redis7.run(|kind| play_and_check(&Lab::on(kind), share(10, 24), 8, 2));
}

/// Takes minutes on each store, and goes on for RLOCK_MINUTES:
/// `cargo test --test deadlock random_orders_of_16 -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn random_orders_of_16_processes_all_end_on_each_store() {
    let minutes: u64 =
        std::env::var("RLOCK_MINUTES").map_or(0, |text| text.parse().expect("RLOCK_MINUTES is a number"));
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut seed = Random::seed();
    loop {
        for (name, lab) in crate::labs() {
            println!("{name}, RLOCK_SEED={seed}:");
            play_and_check(&lab, 100, 16, seed);
            assert_eq!(play(&lab, 100, 16, seed, true), 0, "one order knows no deadlock");
        }
        if Instant::now() >= end {
            return;
        }
        seed = seed.wrapping_add(1);
    }
}
