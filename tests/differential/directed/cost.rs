//! The cost of an operation, in commands, does not grow with the number of unrelated sessions.

use std::collections::BTreeMap;

use rlock_model::mode::Mode::{self, Prewrite, Read, Write};
use rlock_model::request::{Request, Terms};
use rlock_redis::codec::{Call, ScriptReply, Wake};

use super::on_each_server;
use crate::clients::{Clients, TERMS, id, is_granted, is_released, is_waiting, request, resource};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    handover_cost_does_not_depend_on_the_queue_length,
    release_cost_does_not_depend_on_the_waiters_elsewhere,
    claim_cost_does_not_depend_on_the_number_of_holders,
    numbering_of_slots_reads_the_held_slots_once,
    cost_of_going_ahead_of_waiters_that_do_not_nest_does_not_depend_on_their_number,
);

/// How often the server executed each command, including the commands of scripts.
fn commands(server: &Server, work: impl FnOnce()) -> BTreeMap<String, u64> {
    server.ask::<()>(&["CONFIG", "RESETSTAT"]);
    work();
    let stats: String = server.ask(&["INFO", "commandstats"]);
    let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    let counts = lines.map(|(name, rest)| (name.to_owned(), rest.split(',').next().unwrap().parse().unwrap()));
    counts.filter(|(name, _)| !name.starts_with("config")).collect()
}

fn handover_cost_does_not_depend_on_the_queue_length(kind: Kind) {
    for mode in [Write, Prewrite, Mode::Slot] {
        let server = Server::start(kind);
        let mut counted = Vec::new();
        for (number, waiters) in [10, 100, 1_000].into_iter().enumerate() {
            let mut clients = Clients::new(&server, &format!("{mode} {number}"), Wake::Nobody);
            for number in 0..waiters + 2 {
                clients.acquire(number, mode, "");
            }
            clients.release(0);
            counted.push(commands(&server, || assert!(is_released(&clients.release(1)))));
        }
        assert_eq!(counted[0], counted[1], "{mode}");
        assert_eq!(counted[0], counted[2], "{mode}");
    }
}

fn release_cost_does_not_depend_on_the_waiters_elsewhere(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "elsewhere", Wake::Nobody);
    let part = |number: u32| format!("[{},{}]", 3 * number, 3 * number + 1);
    // The server must know the script before the count starts.
    clients.acquire(1_000_000, Write, "");
    clients.release(1_000_000);
    let mut counted = Vec::new();
    let mut held = 0;
    for holders in [100, 1_000] {
        for number in held..holders {
            clients.acquire(number, Write, &part(number));
            clients.acquire(10_000 + number, Write, &part(number));
            clients.acquire(20_000 + number, Write, &part(number));
        }
        held = holders;
        counted.push(commands(&server, || assert!(is_released(&clients.release(holders - 1)))));
    }
    assert_eq!(counted[0], counted[1]);
}

fn claim_cost_does_not_depend_on_the_number_of_holders(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "crowd", Wake::Nobody);
    // The server must know every script before the count starts, and have the entry that all of
    // these waiters share.
    clients.acquire(0, Write, "");
    assert!(is_waiting(&clients.acquire(1, Write, "")));
    clients.release(1);
    clients.release(0);
    let mut counted = Vec::new();
    let mut held = 0;
    for holders in [10, 300, 3_000] {
        for number in held..holders {
            clients.acquire(number, Read, &format!("[{},{}]", 3 * number, 3 * number + 1));
        }
        held = holders;
        counted.push(commands(&server, || {
            assert!(is_granted(&clients.acquire(1_000_000, Write, "(4,6)")));
            assert!(is_waiting(&clients.acquire(1_000_001, Read, "[0,6]")));
            clients.release(1_000_001);
            clients.release(1_000_000);
        }));
    }
    assert_eq!(counted[0], counted[1]);
    assert_eq!(counted[0], counted[2]);
}

/// Each grant of a slot looks for the smallest number that is free. The number of the next grant in
/// the same script is higher.
fn numbering_of_slots_reads_the_held_slots_once(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "slots", Wake::Nobody);
    let mut slot = |number: u32| {
        // The leases of the last holders end first.
        let ttl = if number < 640 { TERMS.ttl } else { TERMS.claim };
        let mut one = Request { terms: Some(Terms { ttl, ..TERMS }), ..request(number, Mode::Slot, "") };
        one.claims[0].slots = Some(700);
        clients.side.call(Call::acquire(&one, 0, false))
    };
    assert!((0..700).all(|number| is_granted(&slot(number))));
    assert!((700..760).all(|number| is_waiting(&slot(number))));
    clients.advance(TERMS.claim);
    let counted = commands(&server, || {
        clients.side.call(Call::expire(vec![resource()]));
    });
    assert!(counted["zrange"] < 100, "{counted:?}");
}

/// A waiter that returns to its place may be overtaken by nested requests behind it, but nothing is
/// searched where there is none. An upgrade overtakes a queue without a look at all of it.
fn cost_of_going_ahead_of_waiters_that_do_not_nest_does_not_depend_on_their_number(kind: Kind) {
    let server = Server::start(kind);
    let mut counted = Vec::new();
    for waiters in [10, 100, 1_000] {
        let mut clients = Clients::new(&server, &format!("ahead {waiters}"), Wake::Nobody);
        clients.acquire(0, Read, "");
        clients.acquire(1, Prewrite, "");
        let first = request(2, Write, "");
        let ScriptReply::Waiting { seq, .. } = clients.side.call(Call::acquire(&first, 0, false)) else { panic!() };
        for number in 0..waiters {
            clients.acquire(10 + number, Write, "");
        }
        clients.release(2);
        let upgrade = Request { ancestors: vec![id(1)], ..request(3, Write, "") };
        counted.push(commands(&server, || {
            assert!(is_waiting(&clients.side.call(Call::acquire(&first, seq, false))));
            assert!(is_waiting(&clients.side.call(Call::acquire(&upgrade, 0, false))));
        }));
    }
    assert_eq!(counted[0], counted[1]);
    assert_eq!(counted[0], counted[2]);
}
