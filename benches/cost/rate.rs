//! How often a lock on Redis can be taken and released in a second.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use redis::Connection;
use rlock_model::mode::Mode;

use super::lab::Lab;
use super::options::Effort;
use super::peers::{self, Pair};
use super::scripts;
use super::server::Redis;
use super::table::{Findings, Row, Spread, Table};

/// The numbers of connections. Each connection has a lock of its own.
const CONNECTIONS: [usize; 2] = [1, 16];

/// Prepares one connection, given the name of its lock and its number.
pub(crate) type Make = fn(&mut Connection, &str, usize) -> Pair;

const LOCKS: [(&str, Make); 6] = [
    ("two PINGs", |_, _, _| peers::pings()),
    ("SET NX PX, compare and delete", |client, lock, _| peers::set_nx(client, lock)),
    ("Redisson, read", |client, lock, _| peers::redisson(client, lock, false)),
    ("Redisson, write", |client, lock, _| peers::redisson(client, lock, true)),
    ("rlock, read", |_, lock, number| scripts::whole(lock, number as u128, Mode::Read)),
    ("rlock, write", |_, lock, number| scripts::whole(lock, number as u128, Mode::Write)),
];

/// Measures pairs of an acquire and a release in a second.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let Some(redis) = &lab.redis else { return Findings::default() };
    let (rounds, length) = effort.pick((5, Duration::from_millis(200)), (20, Duration::from_millis(500)));
    let mut rates = vec![vec![Vec::new(); CONNECTIONS.len()]; LOCKS.len()];
    for _ in 0..rounds {
        for ((_, make), rates) in LOCKS.iter().zip(&mut rates) {
            for (connections, rates) in CONNECTIONS.into_iter().zip(rates) {
                rates.push(rate(redis, *make, connections, length));
            }
        }
    }
    let row = |((name, _), rates): (&(&str, Make), Vec<Vec<f64>>)| Row {
        name: (*name).to_owned(),
        cells: rates.into_iter().map(Spread::of).collect(),
    };
    let table = Table {
        title: "Rate: acquire and release on one Redis server",
        unit: "pairs/s",
        about: format!(
            "Each connection has a lock of its own and waits for each answer; {rounds} times {} ms in turn, by TCP. No \
             program is started: these are the scripts alone, driven by the same client.",
            length.as_millis()
        ),
        columns: CONNECTIONS.map(|connections| format!("connections: {connections}")).to_vec(),
        against: Some("SET NX PX, compare and delete"),
        rows: LOCKS.iter().zip(rates).map(row).collect(),
        drawn: true,
    };
    Findings { tables: vec![table], aims: Vec::new() }
}

/// Returns the pairs in a second of connections that each have a lock of their own.
pub(crate) fn rate(redis: &Redis, make: Make, connections: usize, length: Duration) -> f64 {
    let start = Barrier::new(connections);
    let count = |number: usize| {
        let mut client = redis.client();
        let mut pair = make(&mut client, &format!("rate:{number}"), number);
        // The first pair loads the scripts into the server.
        pair(&mut client);
        start.wait();
        let (started, mut pairs) = (Instant::now(), 0.0);
        while started.elapsed() < length {
            pair(&mut client);
            pairs += 1.0;
        }
        pairs / started.elapsed().as_secs_f64()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..connections).map(|number| scope.spawn(move || count(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).sum()
    })
}
