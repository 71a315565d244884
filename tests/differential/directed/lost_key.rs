//! A single key of a resource may be lost, or replaced by another key of its type. The next script
//! then drops the state of the resource and notifies its sessions. Otherwise the rest of the state
//! could block requests, or grant conflicting ones, for ever.

use redis::Connection;
use rlock_model::mode::Mode::{self, Prewrite, Read, Slot, Write};
use rlock_model::request::{Claim, Request};
use rlock_model::resource::Resource;
use rlock_redis::codec::{Call, ScriptReply, Wake};

use super::on_each_server;
use super::passing_over::{next_message, subscribe};
use crate::clients::{Clients, id, is_granted, is_released, is_waiting, request, resource, tokens, us};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    lost_key_drops_the_state_and_the_next_request_is_granted,
    each_session_of_a_crowd_is_told_of_a_lost_key,
    replaced_key_drops_the_state_and_the_next_request_is_granted,
    lost_key_of_one_resource_frees_what_its_sessions_hold_elsewhere,
    lost_key_drops_the_state_at_maxmemory,
    inspect_of_a_damaged_resource_lists_no_session_and_changes_nothing,
    sole_holder_without_its_key_is_unknown,
    sole_holder_that_has_lost_one_of_its_resources_loses_the_others,
    sole_holder_beside_keys_of_other_sessions_is_dropped_and_told,
    script_that_fails_leaves_a_sole_holder_of_another_resource_alone,
);

/// The keys of a resource that is not quiet.
const BUSY: [&str; 6] = ["s", "d", "e", "q", "l", "u"];

const MODES: [Mode; 4] = [Read, Prewrite, Write, Slot];

/// The first operation after the loss of a key.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    HolderRenews,
    WaiterRenews,
    HolderReleases,
    NewRequest,
    Cleanup,
    Break,
}

const TRIGGERS: [Trigger; 6] = [
    Trigger::HolderRenews,
    Trigger::WaiterRenews,
    Trigger::HolderReleases,
    Trigger::NewRequest,
    Trigger::Cleanup,
    Trigger::Break,
];

fn part(mode: Mode) -> &'static str {
    if mode == Slot { "" } else { "[0,9]" }
}

/// Session 1 holds in a mode, 2 waits for a write, and 3 waits in the mode. Returns the token of 1.
fn set_up(clients: &mut Clients, mode: Mode) -> u64 {
    let token = tokens(clients.acquire(1, mode, part(mode)))[0];
    assert!(is_waiting(&clients.acquire(2, Write, "")));
    assert!(is_waiting(&clients.acquire(3, mode, part(mode))));
    token
}

/// Asserts that the first operation drops the state, and that the resource then works as before.
fn check_recovery(clients: &mut Clients, subscribers: &mut [Connection], trigger: Trigger, token: u64, context: &str) {
    match trigger {
        Trigger::HolderRenews => assert_eq!(clients.renew(1, false), ScriptReply::Unknown, "{context}"),
        Trigger::WaiterRenews => assert_eq!(clients.renew(2, false), ScriptReply::Unknown, "{context}"),
        Trigger::HolderReleases => assert_eq!(clients.release(1), ScriptReply::Unknown, "{context}"),
        Trigger::NewRequest => assert!(is_granted(&clients.acquire(4, Write, "")), "{context}"),
        Trigger::Cleanup => {
            assert_eq!(clients.side.call(Call::expire(vec![resource()])), ScriptReply::Expired(vec![]), "{context}")
        }
        Trigger::Break => {
            assert_eq!(
                clients.side.call(Call::break_grants(resource(), None, Vec::new(), None)),
                ScriptReply::Broken { next: vec![], sessions: vec![] },
                "{context}"
            )
        }
    }
    for subscriber in subscribers {
        assert_eq!(next_message(subscriber), "lost", "{context}");
    }
    for number in 1..=3 {
        assert_eq!(clients.renew(number, false), ScriptReply::Unknown, "{context}: {number}");
    }
    assert!(tokens(clients.acquire(4, Write, ""))[0] > token, "{context}: the token does not rise");
    assert!(is_waiting(&clients.acquire(5, Read, "[1,2]")), "{context}");
    assert!(is_waiting(&clients.acquire(2, Write, "")), "{context}");
    assert_eq!(clients.holders_and_waiters(), (vec![4], vec![5, 2]), "{context}");
    assert!(is_released(&clients.release(4)), "{context}");
    assert_eq!(clients.holders_and_waiters(), (vec![5], vec![2]), "{context}");
    assert!(is_released(&clients.release(5)) && is_released(&clients.release(2)), "{context}");
    assert_eq!(clients.holders_and_waiters(), (vec![], vec![]), "{context}");
    let keys = clients.side.keys(&resource());
    let left: i64 = redis::cmd("EXISTS").arg(&keys).query(&mut clients.side.connection).unwrap();
    assert_eq!(left, 1, "{context}: not only s is left");
}

fn lost_key_drops_the_state_and_the_next_request_is_granted(kind: Kind) {
    let server = Server::shared(kind);
    for key in 0..BUSY.len() {
        for (turn, mode) in MODES.into_iter().enumerate() {
            for trigger in [TRIGGERS[(key + turn) % 6], TRIGGERS[(key + turn + 3) % 6]] {
                let context = format!("{mode} {trigger:?} without {}", BUSY[key]);
                let mut clients = Clients::new(&server, &context, Wake::Publish);
                let token = set_up(&mut clients, mode);
                let mut subscribers = [1, 2, 3].map(|number| subscribe(&server, &clients, id(number)));
                let lost = clients.side.keys(&resource())[key].clone();
                assert_eq!(redis::cmd("DEL").arg(lost).query(&mut clients.side.connection), Ok(1), "{context}");
                clients.advance(us(1));
                check_recovery(&mut clients, &mut subscribers, trigger, token, &context);
            }
        }
    }
}

/// One call tells 334 sessions with one claim each.
fn each_session_of_a_crowd_is_told_of_a_lost_key(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "lost crowd", Wake::Publish);
    for number in 1..=600 {
        clients.acquire(number, Read, "");
    }
    let mut subscriber = subscribe(&server, &clients, id(1));
    for number in 2..=600 {
        let channel = clients.side.setting.keyspace.channel(&resource(), id(number));
        redis::cmd("SUBSCRIBE").arg(channel).exec(&mut subscriber).unwrap();
    }
    let lost = clients.side.keys(&resource())[5].clone();
    assert_eq!(redis::cmd("DEL").arg(lost).query(&mut clients.side.connection), Ok(1));
    assert!(is_granted(&clients.acquire(601, Write, "")));
    for told in 0..600 {
        assert_eq!(next_message(&mut subscriber), "lost", "after {told} messages");
    }
    assert_eq!(clients.holders_and_waiters(), (vec![601], vec![]));
}

/// A key is replaced by the key of another resource of the same size, and by its own earlier
/// contents.
fn replaced_key_drops_the_state_and_the_next_request_is_granted(kind: Kind) {
    let server = Server::shared(kind);
    let copy = |clients: &mut Clients, from: &str, to: &str| {
        let copied = redis::cmd("COPY").arg(from).arg(to).arg("REPLACE").query(&mut clients.side.connection);
        assert_eq!(copied, Ok(1), "{from} to {to}");
    };
    for key in 0..BUSY.len() {
        for (turn, mode) in MODES.into_iter().enumerate() {
            let trigger = match TRIGGERS[(key + turn) % 6] {
                // A renewal of one resource looks only for keys that are missing.
                Trigger::HolderRenews => Trigger::NewRequest,
                trigger => trigger,
            };
            let context = format!("{mode} {trigger:?} with another {}", BUSY[key]);
            let mut foreign = Clients::new(&server, &format!("foreign {context}"), Wake::Publish);
            foreign.advance(us(7));
            set_up(&mut foreign, mode);
            let mut clients = Clients::new(&server, &context, Wake::Publish);
            let token = set_up(&mut clients, mode);
            let from = foreign.side.keys(&resource())[key].clone();
            let to = clients.side.keys(&resource())[key].clone();
            copy(&mut clients, &from, &to);
            clients.advance(us(8));
            check_recovery(&mut clients, &mut [], trigger, token, &context);

            let context = format!("{mode} {trigger:?} with an earlier {}", BUSY[key]);
            let mut clients = Clients::new(&server, &context, Wake::Publish);
            let token = set_up(&mut clients, mode);
            let (kept, to) = (format!("kept {context}"), clients.side.keys(&resource())[key].clone());
            copy(&mut clients, &to, &kept);
            assert!(is_waiting(&clients.acquire(6, Write, "")));
            copy(&mut clients, &kept, &to);
            clients.advance(us(1));
            check_recovery(&mut clients, &mut [], trigger, token, &context);
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
    for key in 0..BUSY.len() {
        for lost in 0..2 {
            let context = format!("key {key} of {}", names[lost]);
            let mut clients = Clients::new(&server, &format!("several {context}"), Wake::Publish);
            assert!(is_granted(&clients.side.call(Call::acquire(&both_of(1, Write), 0, false))));
            assert!(is_waiting(&clients.side.call(Call::acquire(&both_of(2, Write), 0, false))));
            assert!(is_waiting(&clients.side.call(Call::acquire(&both_of(3, Read), 0, false))));
            let key = clients.side.keys(&names[lost])[key].clone();
            assert_eq!(redis::cmd("DEL").arg(key).query(&mut clients.side.connection), Ok(1), "{context}");
            for number in 1..=2 {
                let renew = Call::renew(id(number), names.to_vec(), false);
                assert_eq!(clients.side.call(renew), ScriptReply::Unknown, "{context}: {number}");
            }
            // Session 3 has lost a part, too, and has sent no renewal. It blocks no session when
            // its turn comes.
            let mut other = request(4, Write, "");
            other.claims[0].resource = names[1 - lost].clone();
            let reply = clients.side.call(Call::acquire(&other, 0, false));
            assert!(is_granted(&reply), "{context}: {reply:?}");
            let again = clients.side.call(Call::acquire(&both_of(2, Write), 0, false));
            assert!(is_waiting(&again), "{context}: {again:?}");
            assert!(is_released(&clients.side.call(Call::release(id(4), vec![names[1 - lost].clone()]))), "{context}");
            let renewed = clients.side.call(Call::renew(id(2), names.to_vec(), false));
            assert!(is_granted(&renewed), "{context}: {renewed:?}");
        }
    }
}

fn lost_key_drops_the_state_at_maxmemory(kind: Kind) {
    let server = Server::start(kind);
    for key in 0..BUSY.len() {
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        let mut clients = Clients::new(&server, &format!("full {key}"), Wake::Publish);
        set_up(&mut clients, Write);
        // The server must know the scripts before it is full.
        clients.renew(1, false);
        clients.release(9);
        let lost = clients.side.keys(&resource())[key].clone();
        server.ask::<i64>(&["DEL", &lost]);
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        assert_eq!(clients.renew(2, false), ScriptReply::Unknown);
        assert_eq!(clients.release(1), ScriptReply::Unknown);
        assert_eq!(clients.holders_and_waiters(), (vec![], vec![]));
    }
}

fn inspect_of_a_damaged_resource_lists_no_session_and_changes_nothing(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "looked at", Wake::Publish);
    set_up(&mut clients, Write);
    server.ask::<i64>(&["DEL", &clients.side.keys(&resource())[3].clone()]);
    let before = crate::clients::snapshot(&mut server.client());
    assert_eq!(clients.holders_and_waiters(), (vec![], vec![]));
    assert_eq!(clients.side.call(Call::expired(resource(), &[id(1)])), ScriptReply::Expired(vec![]));
    assert_eq!(
        clients.side.call(Call::breakable(resource(), None, Vec::new())),
        ScriptReply::Broken { next: vec![], sessions: vec![] }
    );
    assert!(crate::clients::snapshot(&mut server.client()) == before);
}

/// Nothing is left of a sole holder whose key is lost. So the next request is granted, and the
/// holder learns of the loss by its next call.
fn sole_holder_without_its_key_is_unknown(kind: Kind) {
    let server = Server::shared(kind);
    for mode in MODES {
        let mut clients = Clients::new(&server, &format!("sole {mode}"), Wake::Publish);
        let token = tokens(clients.acquire(1, mode, part(mode)))[0];
        let lost = clients.side.keys(&resource())[0].clone();
        assert_eq!(redis::cmd("DEL").arg(lost).query(&mut clients.side.connection), Ok(1));
        clients.advance(us(1));
        assert!(tokens(clients.acquire(2, Write, ""))[0] > token);
        assert_eq!(clients.renew(1, false), ScriptReply::Unknown);
        assert_eq!(clients.release(1), ScriptReply::Unknown);
        assert_eq!(clients.holders_and_waiters(), (vec![2], vec![]));
    }
}

/// A sole holder of several resources has one key for each.
fn sole_holder_that_has_lost_one_of_its_resources_loses_the_others(kind: Kind) {
    let server = Server::shared(kind);
    let names = ["{r}a", "{r}b"].map(|name| Resource::new(name).unwrap());
    for lost in 0..2 {
        for is_taken in [false, true] {
            let mut clients = Clients::new(&server, &format!("one of two {lost} {is_taken}"), Wake::Publish);
            let one_of = |number: u32, name: &Resource| {
                let mut one = request(number, Write, "");
                one.claims[0].resource = name.clone();
                Call::acquire(&one, 0, false)
            };
            assert!(is_granted(&clients.side.call(Call::acquire(&both_of(1, Write), 0, false))));
            assert!(is_granted(&clients.side.call(Call::renew(id(1), names.to_vec(), false))));
            let key = clients.side.keys(&names[lost])[0].clone();
            assert_eq!(redis::cmd("DEL").arg(key).query(&mut clients.side.connection), Ok(1));
            if is_taken {
                assert!(is_granted(&clients.side.call(one_of(2, &names[lost]))));
            }
            let renewed = clients.side.call(Call::renew(id(1), names.to_vec(), false));
            assert_eq!(renewed, ScriptReply::Unknown, "{lost}, {is_taken}");
            assert!(is_granted(&clients.side.call(one_of(3, &names[1 - lost]))), "{lost}, {is_taken}");
            if is_taken {
                assert!(is_granted(&clients.side.call(Call::renew(id(2), vec![names[lost].clone()], false))));
            }
        }
    }
}

/// A key that was put back from a backup makes all keys of the resource worthless.
fn sole_holder_beside_keys_of_other_sessions_is_dropped_and_told(kind: Kind) {
    let server = Server::shared(kind);
    for (key, name) in BUSY.iter().enumerate().skip(1) {
        let mut foreign = Clients::new(&server, &format!("backup {key}"), Wake::Publish);
        set_up(&mut foreign, Write);
        let mut clients = Clients::new(&server, &format!("restored {key}"), Wake::Publish);
        let token = tokens(clients.acquire(1, Write, ""))[0];
        let mut subscriber = subscribe(&server, &clients, id(1));
        let from = foreign.side.keys(&resource())[key].clone();
        let to = clients.side.keys(&resource())[key].clone();
        assert_eq!(redis::cmd("COPY").arg(from).arg(to).query(&mut clients.side.connection), Ok(1));
        clients.advance(us(1));
        assert!(tokens(clients.acquire(4, Write, ""))[0] > token, "{name}");
        assert_eq!(next_message(&mut subscriber), "lost", "{name}");
        assert_eq!(clients.renew(1, false), ScriptReply::Unknown);
        assert_eq!(clients.holders_and_waiters(), (vec![4], vec![]));
    }
}

/// A request for two resources meets a record that rlock did not write on one of them.
fn script_that_fails_leaves_a_sole_holder_of_another_resource_alone(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "fails", Wake::Publish);
    let both = both_of(4, Write);
    let [ours, theirs] = [0, 1].map(|at| both.claims[at].resource.clone());
    let one = |number: u32, name: &Resource| {
        let mut one = request(number, Write, "");
        one.claims[0].resource = name.clone();
        Call::acquire(&one, 0, false)
    };
    assert!(is_granted(&clients.side.call(one(1, &ours))));
    assert!(is_granted(&clients.side.call(one(2, &theirs))));
    assert!(is_waiting(&clients.side.call(one(3, &theirs))));
    let records = clients.side.keys(&theirs)[1].clone();
    let damage =
        redis::cmd("HSET").arg(records).arg(id(2).to_string()).arg("garbage").exec(&mut clients.side.connection);
    assert_eq!(damage, Ok(()));
    assert!(clients.side.try_call(Call::acquire(&Request { wait: false, ..both }, 0, false)).is_err());
    assert!(is_granted(&clients.side.call(Call::renew(id(1), vec![ours.clone()], false))));
    assert!(is_waiting(&clients.side.call(one(5, &ours))));
    assert!(is_released(&clients.side.call(Call::release(id(1), vec![ours]))));
}
