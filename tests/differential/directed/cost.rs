//! What an operation takes does not grow with those whom it doesn't concern, counted in commands.

use std::collections::BTreeMap;

use rlock::lock::mode::Mode::{self, Prewrite, Read, Write};
use rlock::store::redis::codec::Wake;

use super::on_each_server;
use crate::party::{Party, is_granted, is_released, is_waiting};
use crate::support::servers::{Kind, Server};

on_each_server!(a_handover_is_the_same_for_any_queue, a_claim_is_the_same_among_any_number);

/// How often each command was carried out, scripts' own commands included.
fn commands(server: &Server, work: impl FnOnce()) -> BTreeMap<String, u64> {
    server.ask::<()>(&["CONFIG", "RESETSTAT"]);
    work();
    let stats: String = server.ask(&["INFO", "commandstats"]);
    let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    let counts = lines.map(|(name, rest)| (name.to_owned(), rest.split(',').next().unwrap().parse().unwrap()));
    counts.filter(|(name, _)| !name.starts_with("config")).collect()
}

fn a_handover_is_the_same_for_any_queue(kind: Kind) {
    for mode in [Write, Prewrite, Mode::Slot] {
        let server = Server::start(kind);
        let mut counted = Vec::new();
        for (number, waiters) in [10, 100, 1_000].into_iter().enumerate() {
            let mut party = Party::new(&server, &format!("{mode} {number}"), Wake::Nobody);
            for number in 0..waiters + 2 {
                party.ask(number, mode, "");
            }
            party.release(0);
            counted.push(commands(&server, || assert!(is_released(&party.release(1)))));
        }
        assert_eq!(counted[0], counted[1], "{mode}");
        assert_eq!(counted[0], counted[2], "{mode}");
    }
}

fn a_claim_is_the_same_among_any_number(kind: Kind) {
    let server = Server::start(kind);
    let mut party = Party::new(&server, "crowd", Wake::Nobody);
    // So that every script is known to the server when it is counted.
    party.ask(0, Read, "[0,1]");
    party.release(0);
    let mut counted = Vec::new();
    let mut held = 0;
    for holders in [10, 300, 3_000] {
        for number in held..holders {
            party.ask(number, Read, &format!("[{},{}]", 3 * number, 3 * number + 1));
        }
        held = holders;
        counted.push(commands(&server, || {
            assert!(is_granted(&party.ask(1_000_000, Write, "(4,6)")));
            assert!(is_waiting(&party.ask(1_000_001, Read, "[0,6]")));
            party.release(1_000_001);
            party.release(1_000_000);
        }));
    }
    assert_eq!(counted[0], counted[1]);
    assert_eq!(counted[0], counted[2]);
}
