//! What the masters of a Redis Cluster carry. The processor time of the masters counts and not the
//! time by the clock, because the machine has fewer processors than masters.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use redis::Connection;
use rlock_model::mode::Mode;
use rlock_model::resource::Resource;
use rlock_redis::keys;

use super::lab::Lab;
use super::options::Effort;
use super::peers::Pair;
use super::scripts;
use super::server::Redis;
use super::table::{Findings, Row, Spread, Table};

/// The numbers of masters.
const MASTERS: [usize; 3] = [1, 3, 6];
/// The number of slots of a Cluster.
const SLOTS: usize = 16_384;
/// The number of connections to each master. Each has one command under way.
const CONNECTIONS: usize = 32;
/// The number of names of locks for each master. Their slots decide which master has a lock.
const NAMES: usize = 500;

/// Measures pairs of an acquire and a release in a second of processor time.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let (rounds, length) = effort.pick((5, Duration::from_millis(500)), (10, Duration::from_secs(2)));
    let clusters: Vec<_> = MASTERS.into_iter().map_while(|masters| start(lab, masters).ok()).collect();
    let mut figures = vec![vec![Vec::new(); MASTERS.len()]; 3];
    for _ in 0..rounds {
        for (column, masters) in clusters.iter().enumerate() {
            let (alone, _) = load(masters, 1, length);
            let (together, share) = load(masters, masters.len(), length);
            for (row, figure) in [alone, together, together / share].into_iter().enumerate() {
                figures[row][column].push(figure);
            }
        }
    }
    let names = ["one master at work", "all masters at work", "one processor for each master"];
    let row = |(name, figures): (&str, Vec<Vec<f64>>)| Row {
        name: name.to_owned(),
        cells: figures.into_iter().map(Spread::of).collect(),
    };
    let table = Table {
        title: "Cluster: acquire and release, by the processor time of the masters",
        unit: "pairs/s",
        about: format!(
            "{CONNECTIONS} connections to each master, {NAMES} names for each, which their slots spread; {rounds} times {} ms in \
             turn, by TCP. The first two rows are pairs in a second of the processor time of all masters. The third is the \
             second for as many processors as masters, less what the master with the most names has more than the others.",
            length.as_millis()
        ),
        columns: MASTERS.map(|masters| format!("masters: {masters}")).to_vec(),
        against: None,
        rows: names.into_iter().zip(figures).map(row).collect(),
        drawn: false,
    };
    Findings { tables: vec![table], aims: Vec::new() }
}

/// Starts masters that share the slots evenly, and waits until each of them knows all others.
fn start(lab: &Lab, masters: usize) -> Result<Vec<Redis>, String> {
    let node = |_| Redis::start_node(&Redis::program(), lab.folder());
    let nodes: Vec<_> = (0..masters).map(node).collect::<Result<_, _>>()?;
    let cluster = |client: &mut Connection, words: &[&str]| -> String {
        let answer: redis::Value = redis::cmd("CLUSTER").arg(words).query(client).expect("the node takes the command");
        redis::from_redis_value(answer).expect("the answer is a text")
    };
    let first = nodes[0].port().to_string();
    for (number, node) in nodes.iter().enumerate() {
        let (from, to) = (SLOTS * number / masters, SLOTS * (number + 1) / masters - 1);
        let mut client = node.client();
        // Otherwise two nodes may claim the same epoch and need time to agree.
        cluster(&mut client, &["SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        cluster(&mut client, &["ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
        cluster(&mut client, &["MEET", "127.0.0.1", &first]);
    }
    let known = format!("cluster_known_nodes:{masters}\r\n");
    let is_whole = |node: &Redis| {
        let info = cluster(&mut node.client(), &["INFO"]);
        info.contains("cluster_state:ok\r\n") && info.contains(&known)
    };
    while !nodes.iter().all(is_whole) {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(nodes)
}

/// Has the first `busy` masters work. Returns the pairs in a second of the processor time of all
/// masters, and the largest share that a master has of the names.
fn load(masters: &[Redis], busy: usize, length: Duration) -> (f64, f64) {
    let names = (0..NAMES * masters.len()).map(|number| format!("cluster:{number}"));
    let mut names_of = vec![Vec::new(); masters.len()];
    for name in names {
        let slot = keys::slot(&Resource::new(&name).expect("the name is valid"));
        // The last slots of a range may be those of the next master after the division.
        let owner = (0..masters.len()).find(|owner| usize::from(slot) < SLOTS * (owner + 1) / masters.len());
        names_of[owner.expect("each slot has a master")].push(name);
    }
    let is_over = AtomicBool::new(false);
    let before: Vec<_> = masters.iter().map(Redis::processor_time).collect();
    let pairs: Vec<f64> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (master, names) in masters.iter().zip(&names_of).take(busy) {
            for number in 0..CONNECTIONS {
                let own: Vec<_> = names.iter().skip(number).step_by(CONNECTIONS).collect();
                let is_over = &is_over;
                threads.push(scope.spawn(move || {
                    let mut client = master.client();
                    let pair = |(number, name): (usize, &&String)| scripts::whole(name, number as u128, Mode::Write);
                    let mut locks: Vec<Pair> = own.iter().enumerate().map(pair).collect();
                    let mut pairs = 0_u32;
                    while !is_over.load(Ordering::Relaxed) {
                        let next = pairs as usize % locks.len();
                        locks[next](&mut client);
                        pairs += 1;
                    }
                    f64::from(pairs)
                }));
            }
        }
        thread::sleep(length);
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    });
    let spent: Vec<f64> =
        masters.iter().zip(before).map(|(master, before)| (master.processor_time() - before).as_secs_f64()).collect();
    let in_a_second = pairs.iter().sum::<f64>() / spent.iter().sum::<f64>();
    // Each name is used as often as any other. So the master with the most names is the limit.
    let most = names_of.iter().map(Vec::len).max().unwrap_or(1) as f64;
    let share = most / (NAMES * masters.len()) as f64;
    (in_a_second, share)
}
