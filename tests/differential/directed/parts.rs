//! Listings and breaks that take several calls, and changes between these calls.

use std::convert::Infallible;

use rlock_model::mode::Mode::{Read, Write};
use rlock_model::request::{Claim, Process, Request};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_redis::codec::{Call, ScriptReply, Wake};
use rlock_redis::findings::{Findings, live, remembered};

use super::crowd::{COMMANDS_MAX, CROWD, LARGE_MAX, RESOURCES, commands, readers_behind_a_writer, reading};
use super::on_each_server;
use crate::clients::{Clients, TERMS, downgrade, id, is_granted, request, resource, us};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    crowd_is_listed_in_parts,
    session_with_several_claims_is_in_one_part,
    dry_run_of_break_tells_each_session_once,
    few_claims_are_listed_to_tell_who_holds,
    search_for_a_deadlock_reads_holders_behind_a_long_queue,
    history_of_many_intervals_is_listed_in_small_parts,
    damaged_resource_is_listed_in_one_part,
    crowd_is_broken_in_steps_that_spare_newcomers,
    holders_of_many_resources_are_broken_in_smaller_steps,
    later_step_of_a_break_spares_a_sole_newcomer,
    break_finds_a_holder_that_has_lowered_its_mode,
    break_after_an_expiry_takes_all_resources_of_a_later_holder,
);

/// More holders than one call breaks.
const MORE: u32 = 150;

fn crowd_is_listed_in_parts(kind: Kind) {
    const PART: u32 = 100;
    let server = Server::start(kind);
    let mut clients = readers_behind_a_writer(&server);
    (CROWD + 1..=2 * CROWD).for_each(|number| drop(clients.acquire(number, Write, "[1,2]")));
    clients.release(0);
    // Each claim grants some more readers.
    let (mut granted, mut claimed) = (Vec::new(), 0);
    while claimed < CROWD as usize {
        if claimed == granted.len() {
            granted = clients.holders_and_waiters().0;
        }
        clients.renew(granted[claimed], false);
        claimed += 1;
    }
    let ScriptReply::Listing { resources, .. } = clients.side.call(Call::inspect(vec![resource()], 0)) else {
        panic!("inspect lists")
    };
    let (mut findings, mut calls) = (Findings::default(), 0);
    let listed = findings.list(&[resource()], PART, |call| {
        commands(&server);
        let reply = clients.side.call(call);
        let executed = commands(&server);
        assert!(executed < COMMANDS_MAX / 3, "a part takes {executed} commands");
        calls += 1;
        Ok::<_, Infallible>(reply)
    });
    assert_eq!(listed, Ok(true));
    assert_eq!(findings.resources(), [resources.into_iter().next().unwrap().listing]);
    assert_eq!(findings.sessions.len(), 2 * CROWD as usize);
    assert!((2 * CROWD / PART..=2 * CROWD / PART + 2).contains(&calls), "{calls} calls");
}

/// Sessions with this many claims, which alternate along the resource.
fn alternating(clients: &mut Clients, sessions: u32, claims: u32) {
    for number in 1..=sessions {
        let several = several(number, sessions, claims);
        assert!(is_granted(&clients.side.call(Call::acquire(&several, 0, false))));
    }
}

fn several(number: u32, sessions: u32, claims: u32) -> Request {
    let one = request(number, Read, "");
    let claim = |at: u32| {
        let span = Span::parse(&format!("[{0},{0}]", sessions * at + number)).unwrap();
        Claim { span, ..one.claims[0].clone() }
    };
    Request { claims: (0..claims).map(claim).collect(), ..one.clone() }
}

fn session_with_several_claims_is_in_one_part(kind: Kind) {
    const CLAIMS: u32 = 20;
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "several claims", Wake::Publish);
    alternating(&mut clients, 50, CLAIMS);
    let (mut findings, mut listed) = (Findings::default(), Vec::new());
    let makes_sense = findings.list(&[resource()], 10 * CLAIMS, |call| {
        let reply = clients.side.call(call);
        if let ScriptReply::Listing { sessions, .. } = &reply {
            assert!(sessions.len() <= 10, "a part has {} sessions", sessions.len());
            listed.extend(sessions.iter().map(|(id, _)| *id));
        }
        Ok::<_, Infallible>(reply)
    });
    assert_eq!(makes_sense, Ok(true));
    assert_eq!((listed.len(), findings.sessions.len()), (50, 50));
}

/// A call looks at about a thousand claims, or reports sessions with as many.
fn dry_run_of_break_tells_each_session_once(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "dry run", Wake::Nobody);
    alternating(&mut clients, 10, 600);
    let (mut from, mut told, mut calls) = (Vec::new(), Vec::new(), 0);
    loop {
        let reply = clients.side.call(Call::breakable(resource(), None, from));
        let ScriptReply::Broken { next, sessions } = reply else { panic!("break replies {reply:?}") };
        told.extend(sessions.iter().map(|(id, _)| *id));
        calls += 1;
        if next.is_empty() {
            break;
        }
        from = next;
    }
    told.sort();
    let mut all: Vec<_> = (1..=10).map(id).collect();
    all.sort();
    assert_eq!(told, all);
    assert!(calls < 20, "{calls} calls");
}

/// The listing of those in the way has a few of the waiters and of the holders.
fn few_claims_are_listed_to_tell_who_holds(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "who holds", Wake::Nobody);
    alternating(&mut clients, 20, 100);
    (0..400).for_each(|number| drop(clients.acquire(100 + number, Write, "")));
    let reply = clients.side.call(Call::inspect(vec![resource()], 256));
    let ScriptReply::Listing { resources, next, .. } = reply else { panic!("inspect replies {reply:?}") };
    let listing = &resources[0].listing;
    let (held, waiting) = (listing.holders.len(), listing.waiters.len());
    assert!((100..=400).contains(&held) && (100..=256).contains(&waiting), "{held} and {waiting}");
    assert_eq!((resources[0].waiting, next), (400, vec![]));
}

fn search_for_a_deadlock_reads_holders_behind_a_long_queue(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "search", Wake::Nobody);
    alternating(&mut clients, 30, 3);
    (0..100).for_each(|number| drop(clients.acquire(100 + number, Write, "")));
    let other = Resource::new("other").unwrap();
    let mut elsewhere = request(1_000, Write, "");
    elsewhere.claims[0].resource = other.clone();
    assert!(is_granted(&clients.side.call(Call::acquire(&elsewhere, 0, false))));
    let Ok(reading) = live(&[resource(), other], 20, 10, |call| Ok::<_, Infallible>(clients.side.call(call)));
    let reading = reading.expect("the replies make sense");
    let held = reading.values().filter(|session| session.is_holder()).count();
    let waiting = reading.len() - held;
    assert!((20..=30).contains(&waiting) && (20..=31).contains(&held), "{waiting} and {held}");
    assert!(reading.contains_key(&id(100)), "the first waiter");
    assert!(reading.contains_key(&id(1_000)), "the holder of the other resource");
}

fn history_of_many_intervals_is_listed_in_small_parts(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "long entries", Wake::Nobody);
    for number in 1..=20 {
        clients.side.call(Call::acquire(&several(number, 20, 500), 0, false));
        clients.end(number, "exit 0", 32);
    }
    let mut parts = Vec::new();
    let Ok(found) = remembered(&[resource()], 32, 200, |call| {
        let reply = clients.side.call(call);
        if let ScriptReply::History { remembered, .. } = &reply {
            parts.push(remembered[0].entries.len());
        }
        Ok::<_, Infallible>(reply)
    });
    let found = found.expect("the replies make sense");
    assert_eq!(found[0].entries.len(), 20);
    assert!(found[0].entries.is_sorted_by_key(|entry| entry.process.pid), "the oldest comes first");
    // An entry costs 1, and each of its claims 0.1.
    assert!(parts.iter().all(|entries| *entries <= 4), "{parts:?}");
}

/// A damaged resource has no sessions, so a walk along its members would be in vain.
fn damaged_resource_is_listed_in_one_part(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "damaged", Wake::Nobody);
    (1..=MORE).for_each(|number| drop(clients.acquire(number, Read, "")));
    let keys = clients.side.keys(&resource());
    server.ask::<i64>(&["DEL", &keys[5]]);
    let reply = clients.side.call(Call::inspect_part(vec![resource()], 1, Vec::new()));
    let ScriptReply::Listing { next, sessions, .. } = reply else { panic!("inspect replies {reply:?}") };
    assert_eq!((next, sessions), (vec![], vec![]));
}

fn crowd_is_broken_in_steps_that_spare_newcomers(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "broken", Wake::Nobody);
    // Writers get the intervals of readers, and `l` has all writers behind all readers.
    for number in 1..=2 * CROWD {
        let mode = if number <= CROWD { Read } else { Write };
        clients.acquire(number, mode, &format!("[{0},{0}]", number % CROWD));
    }
    let mut broken = Vec::new();
    let by = Process::default();
    for how in ["dry", "revoked", "at once"] {
        let mut from = Vec::new();
        loop {
            commands(&server);
            let reply = clients.side.call(match how {
                "dry" => Call::breakable(resource(), None, from),
                "revoked" => Call::break_grants(resource(), None, from, Some(&by)),
                _ => Call::break_grants(resource(), None, from, None),
            });
            let executed = commands(&server);
            assert!(executed < 4 * COMMANDS_MAX, "a step takes {executed} commands");
            let ScriptReply::Broken { next, sessions } = reply else { panic!("break replies {reply:?}") };
            assert!(sessions.len() <= 100, "one call breaks {} sessions", sessions.len());
            broken.extend(sessions.iter().map(|(_, session)| session.process.pid));
            if next.is_empty() {
                break;
            }
            from = next;
        }
        broken.sort_unstable();
        assert!(broken.iter().copied().eq(1..=CROWD), "{how}: {broken:?}");
        broken.clear();
    }
    let (mut holders, _) = clients.holders_and_waiters();
    holders.sort_unstable();
    assert!(!holders.is_empty() && holders.iter().all(|number| *number > CROWD), "{holders:?}");
}

fn holders_of_many_resources_are_broken_in_smaller_steps(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "broken names", Wake::Nobody);
    for number in 1..=30 {
        assert!(is_granted(&clients.side.call(Call::acquire(&reading(number, "x", RESOURCES), 0, false))));
    }
    let (mut broken, mut from) = (0, Vec::new());
    loop {
        let reply = clients.side.call(Call::break_grants(resource(), None, from, None));
        let ScriptReply::Broken { next, sessions } = reply else { panic!("break replies {reply:?}") };
        assert!(sessions.len() <= LARGE_MAX, "one call breaks {} sessions", sessions.len());
        broken += sessions.len();
        if next.is_empty() {
            break;
        }
        from = next;
    }
    assert_eq!(broken, 30);
}

/// Breaks the resource from a place on, and returns the process ids of the holders with their
/// numbers of claims.
fn break_from(clients: &mut Clients, mut from: Vec<u8>) -> Vec<(u32, usize)> {
    let mut broken = Vec::new();
    loop {
        let reply = clients.side.call(Call::break_grants(resource(), None, from, None));
        let ScriptReply::Broken { next, sessions } = reply else { panic!("break replies {reply:?}") };
        broken.extend(sessions.iter().map(|(_, session)| (session.process.pid, session.claims.len())));
        if next.is_empty() {
            return broken;
        }
        from = next;
    }
}

/// Many writers of intervals, and the place after the first step of a break.
fn broken_once(server: &Server, namespace: &str) -> (Clients, Vec<u8>) {
    let mut clients = Clients::new(server, namespace, Wake::Nobody);
    for number in 1..=MORE {
        clients.acquire(number, Write, &format!("[{0},{0}]", 100 + number));
    }
    let reply = clients.side.call(Call::break_grants(resource(), None, Vec::new(), None));
    let ScriptReply::Broken { next, sessions } = reply else { panic!("break replies {reply:?}") };
    assert!(sessions.len() < MORE as usize && !next.is_empty());
    (clients, next)
}

fn later_step_of_a_break_spares_a_sole_newcomer(kind: Kind) {
    let server = Server::shared(kind);
    let (mut clients, next) = broken_once(&server, "sole newcomer");
    (1..=MORE).for_each(|number| drop(clients.release(number)));
    clients.advance(us(5));
    assert!(is_granted(&clients.acquire(MORE + 1, Write, "")));
    let none = ScriptReply::Broken { next: vec![], sessions: vec![] };
    assert_eq!(clients.side.call(Call::breakable(resource(), None, next.clone())), none);
    assert!(break_from(&mut clients, next).is_empty());
    assert_eq!(clients.holders_and_waiters().0, [MORE + 1]);
}

/// Readers come before writers in `l`, so the holder is now behind the walk.
fn break_finds_a_holder_that_has_lowered_its_mode(kind: Kind) {
    let server = Server::shared(kind);
    let (mut clients, next) = broken_once(&server, "lowered");
    assert_eq!(clients.side.call(downgrade(MORE, Read)), ScriptReply::Done);
    assert!(break_from(&mut clients, next).contains(&(MORE, 1)));
    assert_eq!(clients.holders_and_waiters(), (vec![], vec![]));
}

/// A call breaks 100 holders. The last of these is the 101st until the first one is dropped.
fn break_after_an_expiry_takes_all_resources_of_a_later_holder(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "expiry", Wake::Nobody);
    let other = Resource::new("other").unwrap();
    clients.acquire(0, Read, "[0,0]");
    clients.advance(us(1_000_000));
    for number in 1..=99 {
        clients.acquire(number, Read, &format!("[{number},{number}]"));
    }
    let mut both = request(100, Read, "[100,100]");
    both.claims.push(Claim { resource: other.clone(), span: Span::Whole, ..both.claims[0].clone() });
    assert!(is_granted(&clients.side.call(Call::acquire(&both, 0, false))));
    clients.advance(TERMS.ttl - us(1_000_000));
    let broken = break_from(&mut clients, Vec::new());
    assert_eq!(broken.len(), 100);
    assert!(broken.contains(&(100, 2)), "{broken:?}");
    let reply = clients.side.call(Call::inspect(vec![other], 0));
    assert!(matches!(&reply, ScriptReply::Listing { sessions, .. } if sessions.is_empty()), "{reply:?}");
}
