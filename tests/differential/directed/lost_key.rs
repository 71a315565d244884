//! Any one key of a resource may be lost, or replaced by another of its type. Then its state is
//! dropped and everybody is told, instead of what is left of it standing in the way, or letting in
//! two, for ever.

use redis::Connection;
use rlock::lock::mode::Mode::{self, Prewrite, Read, Slot, Write};
use rlock::lock::request::{Claim, Request};
use rlock::lock::resource::Resource;
use rlock::store::redis::codec::{Call, ScriptReply, Wake};

use super::on_each_server;
use super::passing_over::{heard, listener};
use crate::party::{Party, id, is_granted, is_released, is_waiting, request, resource, tokens, us};
use crate::support::servers::{Kind, Server};

on_each_server!(
    lost_key_drops_the_state_and_the_next_request_is_granted,
    replaced_key_drops_the_state_and_the_next_request_is_granted,
    lost_key_of_one_resource_frees_what_its_sessions_hold_elsewhere,
    lost_key_is_mended_at_maxmemory,
    inspect_of_a_damaged_resource_lists_nobody_and_changes_nothing,
);

const MODES: [Mode; 4] = [Read, Prewrite, Write, Slot];

/// What the first script that comes by may be.
#[derive(Clone, Copy, Debug)]
enum First {
    HolderRenews,
    WaiterRenews,
    HolderReleases,
    AnotherAsks,
    Cleanup,
    Break,
}

const FIRSTS: [First; 6] =
    [First::HolderRenews, First::WaiterRenews, First::HolderReleases, First::AnotherAsks, First::Cleanup, First::Break];

fn part(mode: Mode) -> &'static str {
    if mode == Slot { "" } else { "[0,9]" }
}

/// 1 holds in a mode, 2 waits to write, 3 waits in that mode. Gives the token of 1.
fn set_up(party: &mut Party, mode: Mode) -> u64 {
    let token = tokens(party.ask(1, mode, part(mode)))[0];
    assert!(is_waiting(&party.ask(2, Write, "")));
    assert!(is_waiting(&party.ask(3, mode, part(mode))));
    token
}

fn take_turns(party: &mut Party, ears: &mut [Connection], first: First, token: u64, what: &str) {
    match first {
        First::HolderRenews => assert_eq!(party.renew(1, false), ScriptReply::Unknown, "{what}"),
        First::WaiterRenews => assert_eq!(party.renew(2, false), ScriptReply::Unknown, "{what}"),
        First::HolderReleases => assert_eq!(party.release(1), ScriptReply::Unknown, "{what}"),
        First::AnotherAsks => assert!(is_granted(&party.ask(4, Write, "")), "{what}"),
        First::Cleanup => {
            assert_eq!(party.side.call(Call::expire(vec![resource()])), ScriptReply::Expired(vec![]), "{what}")
        }
        First::Break => {
            assert_eq!(party.side.call(Call::break_grants(resource())), ScriptReply::Broken(vec![]), "{what}")
        }
    }
    for ear in ears {
        assert_eq!(heard(ear), "lost", "{what}");
    }
    for number in 1..=3 {
        assert_eq!(party.renew(number, false), ScriptReply::Unknown, "{what}: {number}");
    }
    assert!(tokens(party.ask(4, Write, ""))[0] > token, "{what}: the token does not rise");
    assert!(is_waiting(&party.ask(5, Read, "[1,2]")), "{what}");
    assert!(is_waiting(&party.ask(2, Write, "")), "{what}");
    assert_eq!(party.standing(), (vec![4], vec![5, 2]), "{what}");
    assert!(is_released(&party.release(4)), "{what}");
    assert_eq!(party.standing(), (vec![5], vec![2]), "{what}");
    assert!(is_released(&party.release(5)) && is_released(&party.release(2)), "{what}");
    assert_eq!(party.standing(), (vec![], vec![]), "{what}");
    let keys = party.side.keys(&resource());
    let left: i64 = redis::cmd("EXISTS").arg(&keys).query(&mut party.side.connection).unwrap();
    assert_eq!(left, 1, "{what}: more than the idle hash is left");
}

fn lost_key_drops_the_state_and_the_next_request_is_granted(kind: Kind) {
    let server = Server::shared(kind);
    for key in 0..5 {
        for (turn, mode) in MODES.into_iter().enumerate() {
            for first in [FIRSTS[(key + turn) % 6], FIRSTS[(key + turn + 3) % 6]] {
                let what = format!("{mode} {first:?} without {}", ["d", "e", "q", "l", "u"][key]);
                let mut party = Party::new(&server, &what, Wake::Publish);
                let token = set_up(&mut party, mode);
                let mut ears = [1, 2, 3].map(|number| listener(&server, &party, id(number)));
                let lost = party.side.keys(&resource())[key].clone();
                assert_eq!(redis::cmd("DEL").arg(lost).query(&mut party.side.connection), Ok(1), "{what}");
                party.later(us(1));
                take_turns(&mut party, &mut ears, first, token, &what);
            }
        }
    }
}

/// By the key of another resource, with as many members, and by one of its own from before.
fn replaced_key_drops_the_state_and_the_next_request_is_granted(kind: Kind) {
    let server = Server::shared(kind);
    let copy = |party: &mut Party, from: &str, to: &str| {
        let copied = redis::cmd("COPY").arg(from).arg(to).arg("REPLACE").query(&mut party.side.connection);
        assert_eq!(copied, Ok(1), "{from} to {to}");
    };
    for key in 0..5 {
        for (turn, mode) in MODES.into_iter().enumerate() {
            let first = FIRSTS[(key + turn) % 6];
            let what = format!("{mode} {first:?} with another {}", ["d", "e", "q", "l", "u"][key]);
            let mut foreign = Party::new(&server, &format!("foreign {what}"), Wake::Publish);
            foreign.later(us(7));
            set_up(&mut foreign, mode);
            let mut party = Party::new(&server, &what, Wake::Publish);
            let token = set_up(&mut party, mode);
            let from = foreign.side.keys(&resource())[key].clone();
            let to = party.side.keys(&resource())[key].clone();
            copy(&mut party, &from, &to);
            party.later(us(8));
            take_turns(&mut party, &mut [], first, token, &what);

            let what = format!("{mode} {first:?} with an earlier {}", ["d", "e", "q", "l", "u"][key]);
            let mut party = Party::new(&server, &what, Wake::Publish);
            let token = set_up(&mut party, mode);
            let (kept, to) = (format!("kept {what}"), party.side.keys(&resource())[key].clone());
            copy(&mut party, &to, &kept);
            assert!(is_waiting(&party.ask(6, Write, "")));
            copy(&mut party, &kept, &to);
            party.later(us(1));
            take_turns(&mut party, &mut [], first, token, &what);
        }
    }
}

fn both_of(number: u32, mode: Mode) -> Request {
    let one = request(number, mode, "");
    let claim = |name: &str| Claim { resource: Resource::new(name).unwrap(), ..one.claims[0].clone() };
    Request { claims: vec![claim("{r}a"), claim("{r}b")], ..one.clone() }
}

fn lost_key_of_one_resource_frees_what_its_sessions_hold_elsewhere(kind: Kind) {
    let server = Server::shared(kind);
    let names = ["{r}a", "{r}b"].map(|name| Resource::new(name).unwrap());
    for key in 0..5 {
        for lost in 0..2 {
            let what = format!("key {key} of {}", names[lost]);
            let mut party = Party::new(&server, &format!("several {what}"), Wake::Publish);
            assert!(is_granted(&party.side.call(Call::acquire(&both_of(1, Write), 0, false))));
            assert!(is_waiting(&party.side.call(Call::acquire(&both_of(2, Write), 0, false))));
            assert!(is_waiting(&party.side.call(Call::acquire(&both_of(3, Read), 0, false))));
            let key = party.side.keys(&names[lost])[key].clone();
            assert_eq!(redis::cmd("DEL").arg(key).query(&mut party.side.connection), Ok(1), "{what}");
            for number in 1..=2 {
                let renew = Call::renew(id(number), names.to_vec(), false);
                assert_eq!(party.side.call(renew), ScriptReply::Unknown, "{what}: {number}");
            }
            // 3 has not shown itself and has lost a part as well, so it is in nobody's way when its
            // turn comes.
            let mut other = request(4, Write, "");
            other.claims[0].resource = names[1 - lost].clone();
            let reply = party.side.call(Call::acquire(&other, 0, false));
            assert!(is_granted(&reply), "{what}: {reply:?}");
            let again = party.side.call(Call::acquire(&both_of(2, Write), 0, false));
            assert!(is_waiting(&again), "{what}: {again:?}");
            assert!(is_released(&party.side.call(Call::release(id(4), vec![names[1 - lost].clone()]))), "{what}");
            let renewed = party.side.call(Call::renew(id(2), names.to_vec(), false));
            assert!(is_granted(&renewed), "{what}: {renewed:?}");
        }
    }
}

fn lost_key_is_mended_at_maxmemory(kind: Kind) {
    let server = Server::start(kind);
    for key in 0..5 {
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        let mut party = Party::new(&server, &format!("full {key}"), Wake::Publish);
        set_up(&mut party, Write);
        // Scripts are known to the server then.
        party.renew(1, false);
        party.release(9);
        let lost = party.side.keys(&resource())[key].clone();
        server.ask::<i64>(&["DEL", &lost]);
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        assert_eq!(party.renew(2, false), ScriptReply::Unknown);
        assert_eq!(party.release(1), ScriptReply::Unknown);
        assert_eq!(party.standing(), (vec![], vec![]));
    }
}

fn inspect_of_a_damaged_resource_lists_nobody_and_changes_nothing(kind: Kind) {
    let server = Server::start(kind);
    let mut party = Party::new(&server, "looked at", Wake::Publish);
    set_up(&mut party, Write);
    server.ask::<i64>(&["DEL", &party.side.keys(&resource())[2].clone()]);
    let before = crate::party::snapshot(&mut server.client());
    assert_eq!(party.standing(), (vec![], vec![]));
    assert_eq!(party.side.call(Call::expire(vec![resource()]).dry()), ScriptReply::Expired(vec![]));
    assert_eq!(party.side.call(Call::break_grants(resource()).dry()), ScriptReply::Broken(vec![]));
    assert!(crate::party::snapshot(&mut server.client()) == before);
}
