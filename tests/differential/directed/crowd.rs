//! Many of something: of expired sessions, of claims of one request, of waiters that somehow have
//! the same place, of digits.

use rlock::lock::mode::Mode::{Read, Write};
use rlock::lock::request::{Claim, Request};
use rlock::lock::resource::Resource;
use rlock::lock::span::Span;
use rlock::store::redis::codec::{Call, ScriptReply, Wake};

use super::on_each_server;
use crate::party::{Party, TERMS, id, is_granted, is_released, is_waiting, request, resource, us};
use crate::support::servers::{Kind, Server};

on_each_server!(
    many_expired_are_dropped_some_at_a_time,
    grant_past_a_crowd_states_what_is_left_of_its_lease,
    a_request_of_many_claims_is_granted_and_released,
    records_of_many_names_take_memory_in_proportion_to_them,
    waiters_of_one_place_are_all_seen,
    ends_of_many_digits_wait_and_are_granted,
);

/// More than a script drops at once.
const MANY: u32 = 1_100;

fn many_expired(server: &Server, namespace: &str) -> Party {
    let mut party = Party::new(server, namespace, Wake::Publish);
    for number in 1..=MANY {
        party.ask(number, Read, "");
    }
    party.later(TERMS.ttl);
    party
}

fn many_expired_are_dropped_some_at_a_time(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = many_expired(&server, "crowd asks");
    let no_wait = Request { wait: false, ..request(MANY + 1, Write, "") };
    assert!(is_granted(&party.side.call(Call::acquire(&no_wait, 0, false))), "one who doesn't wait");
    assert_eq!(party.standing().0, [MANY + 1]);

    let mut party = many_expired(&server, "crowd waits");
    assert!(is_granted(&party.ask(MANY + 1, Write, "")), "one who would wait");

    let mut party = many_expired(&server, "crowd is told");
    let mut told = Vec::new();
    while let ScriptReply::Expired(sessions) = party.side.call(Call::expire(vec![resource()])) {
        assert!(sessions.len() <= 1_000, "{} are dropped at once", sessions.len());
        if sessions.is_empty() {
            break;
        }
        told.extend(sessions.into_iter().map(|(session, _)| session));
    }
    told.sort();
    told.dedup();
    assert_eq!(told.len(), MANY as usize);
    assert_eq!(party.standing(), (vec![], vec![]));
}

/// The asker is queued first, and granted from the queue when it asks again: with the lease of a
/// grant that is to be claimed.
fn grant_past_a_crowd_states_what_is_left_of_its_lease(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = many_expired(&server, "crowd and lease");
    let lease = |reply: ScriptReply| match reply {
        ScriptReply::Granted { lease, .. } => lease,
        other => panic!("it is not granted but {other:?}"),
    };
    assert_eq!(lease(party.ask(MANY + 1, Write, "")), Some(TERMS.claim));
    party.later(us(1_000_000));
    assert_eq!(lease(party.ask(MANY + 1, Write, "")), Some(TERMS.claim - us(1_000_000)));
    assert_eq!(lease(party.renew(MANY + 1, false)), Some(TERMS.ttl));
    party.later(us(1_000_000));
    assert_eq!(lease(party.ask(MANY + 1, Write, "")), Some(TERMS.ttl - us(1_000_000)));
}

/// Lua hands over at most 8,000 values at once.
fn a_request_of_many_claims_is_granted_and_released(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "claims", Wake::Publish);
    let mut many = request(1, Write, "");
    let claim = |at: u32| Claim { span: Span::parse(&format!("[{at},{at}]")).unwrap(), ..many.claims[0].clone() };
    many.claims = (0..4_500).map(claim).collect();
    let waiting = Request { session: id(2), ..many.clone() };
    assert!(is_granted(&party.side.call(Call::acquire(&many, 0, false))));
    assert!(is_waiting(&party.side.call(Call::acquire(&waiting, 0, false))));
    assert!(is_released(&party.release(1)));
    assert!(is_granted(&party.renew(2, false)));
    assert!(is_released(&party.release(2)));
    assert_eq!(party.standing(), (vec![], vec![]));
}

fn records_of_many_names_take_memory_in_proportion_to_them(kind: Kind) {
    let server = Server::shared(kind);
    let taken = |many: usize| {
        let mut party = Party::new(&server, &format!("names {many}"), Wake::Publish);
        let one = request(1, Write, "");
        let names: Vec<_> = (0..many).map(|at| Resource::new(&format!("{{r}}{at}")).unwrap()).collect();
        let claim = |name: &Resource| Claim { resource: name.clone(), ..one.claims[0].clone() };
        let holder = Request { claims: names.iter().map(claim).collect(), ..one.clone() };
        let waiter = Request { session: id(2), ..holder.clone() };
        assert!(is_granted(&party.side.call(Call::acquire(&holder, 0, false))));
        assert!(is_waiting(&party.side.call(Call::acquire(&waiter, 0, false))));
        let mut bytes = 0;
        for name in &names {
            let hash = &party.side.keys(name)[0];
            let values: Vec<Vec<u8>> = redis::cmd("HVALS").arg(hash).query(&mut party.side.connection).unwrap();
            bytes += values.iter().map(Vec::len).sum::<usize>();
        }
        // Whoever releases one of them, in the middle, learns from its record which others to name.
        let release = |number: u32, name: usize| Call::release(id(number), vec![names[name].clone()]);
        assert!(is_released(&party.side.call(release(1, many / 2))));
        assert!(is_granted(&party.side.call(Call::renew(id(2), vec![names[many - 1].clone()], false))));
        assert!(is_released(&party.side.call(release(2, many - 1))));
        let listing = party.side.call(Call::inspect(names.clone(), 0));
        assert!(matches!(&listing, ScriptReply::Listing { sessions, .. } if sessions.is_empty()), "{listing:?}");
        bytes
    };
    let (few, many) = (taken(200), taken(800));
    assert!(many < 5 * few, "{few} bytes for 200 names, {many} for 800");
}

/// No script gives a place twice; should it happen all the same, nobody is forgotten.
fn waiters_of_one_place_are_all_seen(kind: Kind) {
    let server = Server::shared(kind);
    for (one, other) in [(2, 3), (3, 4), (6, 7), (8, 9), (14, 15)] {
        let mut party = Party::new(&server, &format!("one place {one}"), Wake::Publish);
        for number in 0..20 {
            party.ask(number, Write, "");
        }
        let queue = &party.side.keys(&resource())[2];
        // The first is the epoch.
        let members: Vec<Vec<u8>> =
            redis::cmd("ZRANGE").arg(queue).arg(0).arg(-1).query(&mut party.side.connection).unwrap();
        redis::cmd("ZADD").arg(queue).arg(one).arg(&members[other]).exec(&mut party.side.connection).unwrap();
        let mut waiting = party.standing().1;
        waiting.sort();
        assert_eq!(waiting, (1..20).collect::<Vec<_>>());
    }
}

/// The quotient of neighbours among Fibonacci's numbers has the longest continued fraction for its
/// digits.
fn ends_of_many_digits_wait_and_are_granted(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "digits", Wake::Publish);
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
    assert!(is_granted(&party.ask(1, Write, "[1,2]")));
    assert!(is_waiting(&party.ask(2, Write, &part)));
    assert!(is_granted(&party.ask(3, Write, "[3,4]")), "another part");
    assert!(is_released(&party.release(1)));
    assert!(is_granted(&party.renew(2, false)));
    assert!(is_waiting(&party.ask(4, Read, "[1,2]")));
    assert!(is_released(&party.release(2)));
    assert_eq!(party.standing(), (vec![3, 4], vec![]));
}
