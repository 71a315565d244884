//! Large numbers: of expired sessions, of waiters that one release frees, of claims in a request,
//! of waiters with the same place, and of digits.

use std::convert::Infallible;

use rlock_model::mode::Mode::{Read, Slot, Write};
use rlock_model::request::{Claim, Request};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_redis::codec::{Call, ScriptReply, Wake};
use rlock_redis::findings::Findings;
use rlock_store::Standing;

use super::on_each_server;
use crate::clients::{Clients, TERMS, id, is_granted, is_released, is_waiting, request, resource, us};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    expired_sessions_are_dropped_in_batches,
    expired_sessions_with_many_resources_are_dropped_in_smaller_batches,
    repeated_request_states_what_is_left_of_its_lease,
    crowd_of_readers_is_granted_step_by_step_by_those_that_claim,
    waiters_for_several_resources_are_granted_step_by_step_by_those_that_claim,
    newcomer_does_not_pass_the_waiters_that_a_release_has_put_off,
    last_waiter_is_granted_behind_a_crowd_of_the_dead,
    crowd_of_shares_outlives_its_slot_step_by_step,
    request_with_4500_claims_is_granted_and_released,
    record_memory_is_linear_in_the_number_of_resources,
    waiters_with_the_same_place_are_all_listed,
    interval_ends_with_thousands_of_digits_are_queued_and_granted,
);

/// More sessions than a script drops in one call.
const MANY: u32 = 1_100;

fn many_expired(server: &Server, namespace: &str) -> Clients {
    let mut clients = Clients::new(server, namespace, Wake::Publish);
    for number in 1..=MANY {
        clients.acquire(number, Read, "");
    }
    clients.advance(TERMS.ttl);
    clients
}

fn expired_sessions_are_dropped_in_batches(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = many_expired(&server, "crowd without wait");
    let no_wait = Request { wait: false, ..request(MANY + 1, Write, "") };
    assert!(is_granted(&clients.side.call(Call::acquire(&no_wait, 0, false))), "a request without a wait");
    assert_eq!(clients.holders_and_waiters().0, [MANY + 1]);

    let mut clients = many_expired(&server, "crowd with wait");
    assert!(is_granted(&clients.acquire(MANY + 1, Write, "")), "a request with a wait");

    let mut clients = many_expired(&server, "crowd expires");
    let some: Vec<_> = (1..=200).map(id).collect();
    let ScriptReply::Expired(over) = clients.side.call(Call::expired(resource(), &some)) else {
        panic!("a dry run reports sessions")
    };
    assert!(over.iter().map(|(session, _)| session).eq(&some));
    let mut dropped = Vec::new();
    while let ScriptReply::Expired(sessions) = clients.side.call(Call::expire(vec![resource()])) {
        assert!(sessions.len() <= 100, "{} sessions are dropped at once", sessions.len());
        if sessions.is_empty() {
            break;
        }
        dropped.extend(sessions.into_iter().map(|(session, _)| session));
    }
    dropped.sort();
    dropped.dedup();
    assert_eq!(dropped.len(), MANY as usize);
    assert_eq!(clients.holders_and_waiters(), (vec![], vec![]));
    assert!(is_granted(&clients.acquire(1, Read, "")));
    assert_eq!(clients.side.call(Call::expired(resource(), &some)), ScriptReply::Expired(vec![]), "one is live");
}

/// A request to read `r` and other resources, `count` in all. The other names begin with `prefix`.
pub(super) fn reading(number: u32, prefix: &str, count: usize) -> Request {
    let mut reading = request(number, Read, "");
    for at in 1..count {
        let resource = Resource::new(&format!("{prefix}{at}")).unwrap();
        reading.claims.push(Claim { resource, ..reading.claims[0].clone() });
    }
    reading
}

/// The number of resources of a session of which a script removes at most [`LARGE_MAX`].
pub(super) const RESOURCES: usize = 20;
pub(super) const LARGE_MAX: usize = 10;

fn expired_sessions_with_many_resources_are_dropped_in_smaller_batches(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "crowd of names", Wake::Nobody);
    for number in 1..=30 {
        assert!(is_granted(&clients.side.call(Call::acquire(&reading(number, "x", RESOURCES), 0, false))));
    }
    clients.advance(TERMS.ttl);
    let mut dropped = 0;
    while let ScriptReply::Expired(sessions) = clients.side.call(Call::expire(vec![resource()])) {
        assert!(sessions.len() <= LARGE_MAX, "{} sessions are dropped at once", sessions.len());
        if sessions.is_empty() {
            break;
        }
        dropped += sessions.len();
    }
    assert_eq!(dropped, 30);
}

fn repeated_request_states_what_is_left_of_its_lease(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "rest of a lease", Wake::Publish);
    let lease = |reply: ScriptReply| match reply {
        ScriptReply::Granted { lease, .. } => lease,
        other => panic!("expected a grant, got {other:?}"),
    };
    clients.acquire(1, Write, "");
    assert!(is_waiting(&clients.acquire(2, Write, "")));
    clients.release(1);
    clients.advance(us(1_000_000));
    assert_eq!(lease(clients.acquire(2, Write, "")), Some(TERMS.claim - us(1_000_000)));
    assert_eq!(lease(clients.renew(2, false)), Some(TERMS.ttl));
    assert!(is_waiting(&clients.acquire(3, Write, "")));
    clients.advance(us(1_000_000));
    assert_eq!(lease(clients.acquire(2, Write, "")), Some(TERMS.ttl - us(1_000_000)));
}

/// More waiters than one call grants or drops.
pub(super) const CROWD: u32 = 300;

/// The most commands that one call may execute for a crowd. Each takes a few microseconds.
pub(super) const COMMANDS_MAX: u64 = 1_500;

/// How many commands the server has executed since it last forgot, and forgets.
pub(super) fn commands(server: &Server) -> u64 {
    let stats: String = server.ask(&["INFO", "commandstats"]);
    server.ask::<()>(&["CONFIG", "RESETSTAT"]);
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    stats.lines().filter_map(calls).sum()
}

/// A writer, and a crowd of readers behind it.
pub(super) fn readers_behind_a_writer(server: &Server) -> Clients {
    let mut clients = Clients::new(server, "readers", Wake::Nobody);
    clients.acquire(0, Write, "");
    for number in 1..=CROWD {
        clients.acquire(number, Read, "");
    }
    commands(server);
    clients
}

fn crowd_of_readers_is_granted_step_by_step_by_those_that_claim(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = readers_behind_a_writer(&server);
    assert!(is_released(&clients.release(0)));
    let executed = commands(&server);
    assert!(executed < COMMANDS_MAX, "the release executes {executed} commands");
    let mut granted = clients.holders_and_waiters().0;
    assert!(!granted.is_empty() && granted.len() < CROWD as usize, "the release grants {} readers", granted.len());
    let mut claimed = 0;
    while let Some(number) = granted.get(claimed) {
        commands(&server);
        assert!(is_granted(&clients.renew(*number, false)));
        let executed = commands(&server);
        assert!(executed < COMMANDS_MAX, "the claim executes {executed} commands");
        claimed += 1;
        if claimed == granted.len() {
            granted = clients.holders_and_waiters().0;
        }
    }
    assert_eq!(clients.holders_and_waiters(), ((1..=CROWD).collect(), vec![]));
}

/// A script knows the resources of only the first waiters. A walk that comes to a further waiter
/// goes on in the next call.
fn waiters_for_several_resources_are_granted_step_by_step_by_those_that_claim(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "waiters for several", Wake::Nobody);
    clients.acquire(0, Write, "");
    for number in 1..=20 {
        let several = reading(number, &format!("of {number} "), 2);
        assert!(is_waiting(&clients.side.call(Call::acquire(&several, 0, false))));
    }
    assert!(is_released(&clients.release(0)));
    let mut granted = clients.holders_and_waiters().0;
    assert!(!granted.is_empty() && granted.len() < 20, "the release grants {} requests", granted.len());
    let mut claimed = 0;
    while let Some(number) = granted.get(claimed) {
        assert!(is_granted(&clients.renew(*number, false)));
        claimed += 1;
        granted = clients.holders_and_waiters().0;
    }
    assert_eq!(clients.holders_and_waiters(), ((1..=20).collect(), vec![]));
}

fn newcomer_does_not_pass_the_waiters_that_a_release_has_put_off(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = readers_behind_a_writer(&server);
    assert!(is_released(&clients.release(0)));
    let newcomer = Request { wait: false, ..request(CROWD + 1, Write, "") };
    let reply = clients.side.call(Call::acquire(&newcomer, 0, false));
    assert!(matches!(reply, ScriptReply::Over(Standing::Busy { .. })), "{reply:?}");
    assert_eq!(clients.holders_and_waiters(), ((1..=CROWD).collect(), vec![]));
}

/// A waiter that listens on a channel without subscribers is dead.
fn last_waiter_is_granted_behind_a_crowd_of_the_dead(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "dead", Wake::Publish);
    clients.acquire(0, Write, "");
    for number in 1..=CROWD {
        clients.acquire(number, Write, "");
        clients.renew(number, true);
    }
    clients.acquire(CROWD + 1, Write, "");
    commands(&server);
    assert!(is_released(&clients.release(0)));
    let executed = commands(&server);
    assert!(executed < COMMANDS_MAX, "the release executes {executed} commands");
    assert!(!clients.holders_and_waiters().1.is_empty());
    assert!(is_granted(&clients.renew(CROWD + 1, false)));
    assert_eq!(clients.holders_and_waiters(), (vec![CROWD + 1], vec![]));
}

/// A share that outlives its slot takes a slot. A request for a slot that comes afterwards finds
/// all slots taken.
fn crowd_of_shares_outlives_its_slot_step_by_step(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "shares", Wake::Nobody);
    clients.acquire(0, Slot, "");
    for number in 1..=CROWD {
        let share = Request { ancestors: vec![id(0)], ..request(number, Slot, "") };
        assert!(is_granted(&clients.side.call(Call::acquire(&share, 0, false))));
    }
    commands(&server);
    assert!(is_released(&clients.release(1)));
    let executed = commands(&server);
    assert!(executed < 100, "the release of a share executes {executed} commands");
    assert!(is_released(&clients.release(0)));
    let executed = commands(&server);
    assert!(executed < COMMANDS_MAX, "the release of the slot executes {executed} commands");
    let newcomer = Request { wait: false, ..request(CROWD + 1, Slot, "") };
    let reply = clients.side.call(Call::acquire(&newcomer, 0, false));
    assert!(matches!(reply, ScriptReply::Over(Standing::Busy { .. })), "{reply:?}");
    for number in 2..CROWD {
        clients.release(number);
    }
    assert!(is_granted(&clients.acquire(CROWD + 1, Slot, "")), "one slot of two is free");
    assert!(is_waiting(&clients.acquire(CROWD + 2, Slot, "")));
}

/// Lua passes at most 8,000 values to a function, fewer than the claims need.
fn request_with_4500_claims_is_granted_and_released(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "claims", Wake::Publish);
    let mut many = request(1, Write, "");
    let claim = |at: u32| Claim { span: Span::parse(&format!("[{at},{at}]")).unwrap(), ..many.claims[0].clone() };
    many.claims = (0..4_500).map(claim).collect();
    let waiting = Request { session: id(2), ..many.clone() };
    assert!(is_granted(&clients.side.call(Call::acquire(&many, 0, false))));
    assert!(is_waiting(&clients.side.call(Call::acquire(&waiting, 0, false))));
    assert!(is_released(&clients.release(1)));
    assert!(is_granted(&clients.renew(2, false)));
    assert!(is_released(&clients.release(2)));
    assert_eq!(clients.holders_and_waiters(), (vec![], vec![]));
}

fn record_memory_is_linear_in_the_number_of_resources(kind: Kind) {
    let server = Server::shared(kind);
    let taken = |many: usize| {
        let mut clients = Clients::new(&server, &format!("names {many}"), Wake::Publish);
        let one = request(1, Write, "");
        let names: Vec<_> = (0..many).map(|at| Resource::new(&format!("{{r}}{at}")).unwrap()).collect();
        let claim = |name: &Resource| Claim { resource: name.clone(), ..one.claims[0].clone() };
        let holder = Request { claims: names.iter().map(claim).collect(), ..one.clone() };
        let waiter = Request { session: id(2), ..holder.clone() };
        assert!(is_granted(&clients.side.call(Call::acquire(&holder, 0, false))));
        assert!(is_waiting(&clients.side.call(Call::acquire(&waiter, 0, false))));
        let mut bytes = 0;
        for name in &names {
            let hash = &clients.side.keys(name)[1];
            let values: Vec<Vec<u8>> = redis::cmd("HVALS").arg(hash).query(&mut clients.side.connection).unwrap();
            bytes += values.iter().map(Vec::len).sum::<usize>();
        }
        // The call names only one resource in the middle. The session's record names the others.
        let release = |number: u32, name: usize| Call::release(id(number), vec![names[name].clone()]);
        assert!(is_released(&clients.side.call(release(1, many / 2))));
        assert!(is_granted(&clients.side.call(Call::renew(id(2), vec![names[many - 1].clone()], false))));
        assert!(is_released(&clients.side.call(release(2, many - 1))));
        let listing = clients.side.call(Call::inspect(names.clone(), 0));
        assert!(matches!(&listing, ScriptReply::Listing { sessions, .. } if sessions.is_empty()), "{listing:?}");
        bytes
    };
    let (few, many) = (taken(200), taken(800));
    assert!(many < 5 * few, "{few} bytes for 200 names, {many} for 800");
}

/// No script assigns a place twice. If two waiters had the same place, both would still be listed.
fn waiters_with_the_same_place_are_all_listed(kind: Kind) {
    let server = Server::shared(kind);
    for (one, other) in [(2, 3), (3, 4), (6, 7), (8, 9), (14, 15)] {
        let mut clients = Clients::new(&server, &format!("one place {one}"), Wake::Publish);
        for number in 0..20 {
            clients.acquire(number, Write, "");
        }
        let queue = &clients.side.keys(&resource())[3];
        // The first member is the epoch.
        let members: Vec<Vec<u8>> =
            redis::cmd("ZRANGE").arg(queue).arg(0).arg(-1).query(&mut clients.side.connection).unwrap();
        redis::cmd("ZADD").arg(queue).arg(one).arg(&members[other]).exec(&mut clients.side.connection).unwrap();
        let mut waiting = clients.holders_and_waiters().1;
        waiting.sort();
        assert_eq!(waiting, (1..20).collect::<Vec<_>>());
        let mut findings = Findings::default();
        let listed = findings.list(&[resource()], 1, |call| Ok::<_, Infallible>(clients.side.call(call)));
        assert_eq!(listed, Ok(true));
        assert_eq!(findings.sessions.len(), 20);
    }
}

/// The quotient of consecutive Fibonacci numbers has the longest continued fraction for its number
/// of digits.
fn interval_ends_with_thousands_of_digits_are_queued_and_granted(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "digits", Wake::Publish);
    let (mut small, mut large) = (vec![1_u8], vec![1_u8]);
    while large.len() < 2_040 {
        let mut carry = 0;
        let sum = (0..large.len()).map(|at| {
            let sum = large[at] + small.get(at).unwrap_or(&0) + carry;
            carry = sum / 10;
            sum % 10
        });
        let mut sum: Vec<u8> = sum.collect();
        sum.extend((carry > 0).then_some(carry));
        small = std::mem::replace(&mut large, sum);
    }
    let text = |digits: &[u8]| digits.iter().rev().map(|digit| char::from(b'0' + digit)).collect::<String>();
    let end = format!("{}/{}", text(&large), text(&small));
    let part = format!("[{end},{end}]");
    assert!(is_granted(&clients.acquire(1, Write, "[1,2]")));
    assert!(is_waiting(&clients.acquire(2, Write, &part)));
    assert!(is_granted(&clients.acquire(3, Write, "[3,4]")), "the claims do not overlap");
    assert!(is_released(&clients.release(1)));
    assert!(is_granted(&clients.renew(2, false)));
    assert!(is_waiting(&clients.acquire(4, Read, "[1,2]")));
    assert!(is_released(&clients.release(2)));
    assert_eq!(clients.holders_and_waiters(), (vec![3, 4], vec![]));
}
