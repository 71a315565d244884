//! Walks over all scripts beside each list that users can make long, and reads from the server how
//! long the slowest script takes: "No script works longer than 25 ms". docs/capacity.md has the
//! figures of a run at the limits, and LIMITS of rlock(1) the exceptions.

mod client;
mod crowds;
mod walk;

use std::collections::BTreeMap;

use client::Client;
use crowds::{CROWDS, Crowd};
use rlock_testkit::servers::{Kind, Server};

/// Lists that are long enough for the scripts to stop at their limits, on one server.
#[test]
fn no_script_takes_long_beside_a_list() {
    Kind::Redis7.run(|kind| walk_beside_each(kind, |crowd| crowd.sizes.0));
}

/// Each list at its limit, on each server.
#[test]
#[ignore = "takes half an hour"]
fn no_script_takes_long_beside_a_list_at_its_limit() {
    for kind in [Kind::Redis6, Kind::Redis7, Kind::Redis8, Kind::Valkey9] {
        kind.run(|kind| walk_beside_each(kind, |crowd| crowd.sizes.1));
    }
}

/// A machine that also does other work takes so many times as long.
const SLACK: f64 = 4.0;

/// The time that a step may take, in milliseconds. The exceptions are in proportion to one request.
fn limit(list: &str, step: &str) -> f64 {
    let is_about = |what: &str| [list, step].iter().any(|text| text.contains(what));
    match () {
        () if is_about("names") || list == "all of these" => 60.0,
        () if is_about("intervals") && !step.ends_with("an interval") => 35.0,
        () => 25.0,
    }
}

/// RLOCK_LIST chooses one list.
fn walk_beside_each(kind: Kind, size: impl Fn(&Crowd) -> u32) {
    let chosen = std::env::var("RLOCK_LIST").unwrap_or_default();
    let mut too_long = Vec::new();
    for crowd in CROWDS.iter().filter(|crowd| crowd.list.contains(&chosen)) {
        let size = size(crowd);
        let (slowest, memory) = walk_beside(crowd, size, kind);
        // Each list meets the same large requests, which have lists of their own.
        let is_own = |(step, _): &&(String, f64)| limit(crowd.list, step) == limit(crowd.list, "");
        let shown = slowest.iter().filter(is_own).take(4).map(|(step, millis)| format!("{step} {millis:.1} ms"));
        let megabytes = memory as f64 / 1e6;
        println!("{kind:?}: {size} {}, {megabytes:.1} MB: {}", crowd.list, shown.collect::<Vec<_>>().join("; "));
        let exceeds = |(step, millis): &(String, f64)| *millis > SLACK * limit(crowd.list, step);
        too_long.extend(slowest.into_iter().filter(exceeds).map(|(step, millis)| (crowd.list, step, millis)));
    }
    assert!(too_long.is_empty(), "{kind:?}: {too_long:?}");
}

/// The time of the slowest script of each step beside a crowd, the slowest first, and the memory
/// that the crowd takes, in bytes.
fn walk_beside(crowd: &Crowd, size: u32, kind: Kind) -> (Vec<(String, f64)>, u64) {
    let (mut slowest, mut memory) = (BTreeMap::<String, f64>::new(), 0);
    for finale in crowd.ends {
        let server = Server::start(kind);
        let mut client = Client::new(&server);
        let before = client.memory();
        (crowd.fill)(&mut client, size);
        memory = client.memory() - before;
        walk::walk(&mut client, size, *finale);
        for (step, millis) in client.slowest {
            let noted = slowest.entry(step).or_default();
            *noted = noted.max(millis);
        }
    }
    let mut slowest: Vec<_> = slowest.into_iter().collect();
    slowest.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    (slowest, memory)
}
