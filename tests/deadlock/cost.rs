//! What the search costs a server.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::servers::{Kind, Server};
use crate::support::{Lab, RLOCK, Running};

/// The number of scripts that the server has run.
fn scripts(server: &Server) -> u64 {
    let text: String = server.ask(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    calls("evalsha")
}

/// "A request that is not nested never looks." A nested one runs at most one more script a second.
#[test]
fn nested_waiter_costs_one_script_a_second_and_others_none() {
    Kind::Redis7.run(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let _holder = lab.hold_by(["exec", "k", "--ttl", "1h"]);
        let count = |words: &[&str]| {
            let (before, begin) = (scripts(&server), Instant::now());
            let mut waiter = Running::start(&mut lab.rlock(words));
            thread::sleep(Duration::from_millis(3_500));
            assert!(waiter.runs());
            (scripts(&server) - before, begin.elapsed().as_secs())
        };
        let (plain, _) = count(&["exec", "k", "--", "true"]);
        assert!(plain <= 3, "{plain} scripts for a request and its place in the queue");
        let inner = format!("exec {RLOCK} exec k -- true");
        let (nested, seconds) = count(&["exec", "--ttl", "1h", "p", "-c", &inner]);
        let looks = nested - plain - 1;
        assert!((1..=seconds).contains(&looks), "{looks} looks in {seconds} s");
    });
}
