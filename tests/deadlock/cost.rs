//! What the search costs a server.

use std::time::{Duration, Instant};

use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, RLOCK, Running, wait_until};

/// The number of scripts that the server has run.
fn scripts(server: &Server) -> u64 {
    let text: String = server.ask(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    calls("evalsha")
}

/// A waiter on a server of its own, where `k` is held.
struct Waiting {
    // Fields drop in this order, so both rlocks have ended before the server does.
    waiter: Running,
    _holder: Running,
    server: Server,
    begin: Instant,
    /// The number of scripts before the waiter came.
    before: u64,
}

impl Waiting {
    fn start(kind: Kind, words: &[&str]) -> Self {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let holder = lab.hold_by(["exec", "k", "--ttl", "1h"]);
        let (before, begin) = (scripts(&server), Instant::now());
        let waiter = Running::start(&mut lab.rlock(words));
        Self { waiter, _holder: holder, server, begin, before }
    }

    fn scripts(&self) -> u64 {
        scripts(&self.server) - self.before
    }
}

/// "A request that is not nested never looks." A nested one runs at most one more script a second.
#[test]
fn nested_waiter_costs_one_script_a_second_and_others_none() {
    Kind::Redis7.run(|kind| {
        let inner = format!("exec {RLOCK} exec k -- true");
        let mut plain = Waiting::start(kind, &["exec", "k", "--", "true"]);
        let mut nested = Waiting::start(kind, &["exec", "--ttl", "1h", "p", "-c", &inner]);
        // A request and its place in the queue are two or three scripts. The nested command takes
        // one more for the lock around it.
        wait_until("the nested request has looked twice", || nested.scripts() >= 3 + 1 + 2);
        let (seconds, waited) = (nested.begin.elapsed(), plain.scripts());
        assert!(waited <= 3, "{waited} scripts for a request and its place in the queue");
        assert!(seconds >= Duration::from_secs(1), "two looks in {seconds:?}");
        assert!(plain.waiter.runs() && nested.waiter.runs());
    });
}
