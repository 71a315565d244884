//! The clock of a resource never goes back. Tokens rise with the clock, even if all data is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use rlock_model::mode::Mode::{Read, Write};
use rlock_model::request::Claim;
use rlock_model::resource::Resource;
use rlock_redis::codec::{Call, Lease, ScriptReply, Wake};
use rlock_store::Standing;
use rlock_sys::clock::StoreTime;

use super::on_each_server;
use crate::clients::{Clients, NOW, TERMS, id, is_granted, is_waiting, request, resource, tokens, us};
use crate::side::Side;
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    clock_of_a_resource_never_goes_back,
    tokens_rise,
    tokens_rise_after_flushall,
    expired_lease_is_not_renewed_by_renew_alone,
    renewal_never_lowers_an_expiry,
    resource_is_judged_by_its_own_clock_alone,
    leases_of_several_resources_are_renewed_one_by_one,
    reading_for_a_deadlock_leaves_out_sessions_whose_lease_is_over
);

fn clock_of_a_resource_never_goes_back(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "clock", Wake::Nobody);
    assert_eq!(tokens(clients.acquire(1, Read, "")), [NOW.as_micros()]);
    for step in
        [Clients::release as fn(&mut Clients, u32) -> ScriptReply, |clients, number| clients.renew(number, false)]
    {
        clients.advance(us(1_000_000));
        let now = clients.now();
        clients.acquire(2, Read, "");
        clients.renew(1, false);
        clients.side.setting.now = Some(StoreTime::from_micros(NOW.as_micros() - 5_000_000));
        let reply = clients.side.call(Call::inspect(vec![resource()], 0));
        let ScriptReply::Listing { now: clock, resources, .. } = reply else { panic!("inspect replies {reply:?}") };
        assert_eq!(clock, now);
        let expiries: BTreeSet<_> = resources[0].listing.holders.iter().map(|holder| holder.expiry).collect();
        assert_eq!(expiries, BTreeSet::from([Some(now + TERMS.ttl)]));
        let next = tokens(clients.acquire(3, Read, ""))[0];
        assert!(next > now.as_micros(), "{next} is not after {now:?}");
        step(&mut clients, 3);
        clients.release(2);
        clients.release(3);
        clients.side.setting.now = Some(now);
    }
    // The clock does not go back either when the last session has left.
    clients.release(1);
    clients.side.setting.now = Some(StoreTime::from_micros(NOW.as_micros() - 5_000_000));
    assert!(tokens(clients.acquire(4, Write, ""))[0] > (NOW + us(2_000_000)).as_micros());
}

fn tokens_rise(kind: Kind) {
    let server = Server::shared(kind);
    let mut side = Side::new(&server, "tokens", Wake::Nobody);
    let mut last = 0;
    // Every second grant comes from the queue.
    side.call(Call::acquire(&request(0, Write, ""), 0, false));
    for number in 1..1_000 {
        side.call(Call::acquire(&request(number, Write, ""), 0, false));
        side.call(Call::release(id(number - 1), vec![resource()]));
        let token = tokens(side.call(Call::renew(id(number), vec![resource()], false)))[0];
        assert!(token > last, "{token} is not above {last}");
        last = token;
        if number % 2 == 0 {
            side.call(Call::release(id(number), vec![resource()]));
            let alone = Call::acquire(&request(number, Write, ""), 0, false);
            last = tokens(side.call(alone))[0];
            assert!(last > token, "{last} is not above {token}");
        }
    }
}

fn tokens_rise_after_flushall(kind: Kind) {
    let server = Server::start(kind);
    let mut side = Side::new(&server, "lost", Wake::Nobody);
    let before = tokens(side.call(Call::acquire(&request(1, Write, ""), 0, false)))[0];
    server.ask::<()>(&["FLUSHALL"]);
    let after = tokens(side.call(Call::acquire(&request(2, Write, ""), 0, false)))[0];
    assert!(after > before, "{after} is not above {before}");
    assert_eq!(side.call(Call::release(id(1), vec![resource()])), ScriptReply::Unknown);
}

fn expired_lease_is_not_renewed_by_renew_alone(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "alone", Wake::Nobody);
    let terms = TERMS.ttl;
    let alone = |clients: &mut Clients| {
        Lease::ALL.map(|lease| clients.side.call(Call::renew_alone(id(1), resource(), terms, lease)))
    };
    let (unknown, renewed) = (ScriptReply::Unknown, ScriptReply::Renewed(terms));
    for is_sole in [true, false] {
        assert_eq!(alone(&mut clients), [unknown.clone(), unknown.clone()]);
        clients.acquire(1, Read, "");
        if !is_sole {
            clients.acquire(2, Read, "");
        }
        clients.advance(terms - us(1));
        let [sole, shared] = if is_sole { [&renewed, &unknown] } else { [&unknown, &renewed] };
        assert_eq!(alone(&mut clients), [sole.clone(), shared.clone()]);
        clients.advance(terms - us(1));
        assert!(is_granted(&clients.renew(1, false)));
        clients.advance(terms);
        assert_eq!(alone(&mut clients), [unknown.clone(), unknown.clone()]);
        assert_eq!(clients.renew(1, false), unknown);
    }
}

/// The clock steps back after a renewal that left no trace in the clock of the resource, or the
/// slot has moved to a node whose clock is behind.
fn renewal_never_lowers_an_expiry(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "lower", Wake::Nobody);
    type Renew = fn(&mut Clients) -> ScriptReply;
    let renewals: [(bool, Renew); 4] = [
        (true, |clients| clients.renew(1, false)),
        (true, |clients| clients.side.call(Call::renew_alone(id(1), resource(), TERMS.ttl, Lease::Sole))),
        (false, |clients| clients.renew(1, false)),
        (false, |clients| clients.side.call(Call::renew_alone(id(1), resource(), TERMS.ttl, Lease::Shared))),
    ];
    for (is_sole, renew) in renewals {
        clients.acquire(1, Read, "");
        if !is_sole {
            clients.acquire(2, Read, "");
        }
        clients.advance(us(1_000_000));
        let before = clients.now();
        clients.renew(1, false);
        clients.side.setting.now = Some(StoreTime::from_micros(before.as_micros() - 500_000));
        let reply = renew(&mut clients);
        assert!(is_granted(&reply) || reply == ScriptReply::Renewed(TERMS.ttl), "{reply:?}");
        let reply = clients.side.call(Call::inspect(vec![resource()], 0));
        let ScriptReply::Listing { resources, .. } = reply else { panic!("inspect replies {reply:?}") };
        let own = resources[0].listing.holders.iter().find(|holder| holder.session == id(1)).unwrap();
        assert_eq!(own.expiry, Some(before + TERMS.ttl), "sole: {is_sole}");
        clients.side.setting.now = Some(before);
        clients.release(1);
        clients.release(2);
    }
}

/// The clock of the server steps back after `x` was used and before `y` is. No request for both
/// takes the clock of one for the other: neither while it is busy, nor for a hold of both.
fn resource_is_judged_by_its_own_clock_alone(kind: Kind) {
    let server = Server::shared(kind);
    let names = ["{r}x", "{r}y"].map(|name| Resource::new(name).unwrap());
    let step = TERMS.ttl * 2;
    for x_is_held in [true, false] {
        let mut clients = Clients::new(&server, &format!("own clocks {x_is_held}"), Wake::Nobody);
        let on = |number: u32, names: &[Resource]| {
            let mut request = request(number, Write, "");
            request.wait = false;
            request.claims =
                names.iter().map(|name| Claim { resource: name.clone(), ..request.claims[0].clone() }).collect();
            request
        };
        let ask = |clients: &mut Clients, number: u32, names: &[Resource]| {
            let request = on(number, names);
            clients.side.call(Call::acquire(&request, 0, false))
        };
        let before = clients.now();
        clients.advance(step);
        assert!(is_granted(&ask(&mut clients, 1, &names[..1])));
        if !x_is_held {
            clients.side.call(Call::release(id(1), names[..1].to_vec()));
        }
        clients.side.setting.now = Some(before);
        assert!(is_granted(&ask(&mut clients, 2, &names[1..])));
        let reply = ask(&mut clients, 3, &names);
        assert!(
            matches!(reply, ScriptReply::Over(Standing::Busy { .. })),
            "the hold of y is younger than the step: {reply:?}"
        );
        let reply = clients.side.call(Call::inspect(names.to_vec(), 0));
        let ScriptReply::Listing { now, resources, .. } = reply else { panic!("inspect replies {reply:?}") };
        let holders = resources.iter().flat_map(|it| &it.listing.holders);
        let left: Vec<_> = holders.map(|holder| holder.expiry.unwrap() - now).collect();
        assert_eq!(left, vec![TERMS.ttl; 1 + usize::from(x_is_held)], "each lease is as long as it is");
        clients.advance(TERMS.ttl - us(1));
        assert!(matches!(ask(&mut clients, 3, &names[1..]), ScriptReply::Over(Standing::Busy { .. })));
        clients.advance(us(1));
        assert!(is_granted(&ask(&mut clients, 3, &names[1..])), "the clock of x did not get into y");
        clients.side.call(Call::release(id(3), names[1..].to_vec()));
        if x_is_held {
            clients.side.setting.now = Some(before + step + TERMS.ttl);
        }
        // A hold of both has a lease on each by its clock, and each is renewed.
        assert!(is_granted(&ask(&mut clients, 4, &names)));
        for _ in 0..3 {
            clients.advance(TERMS.ttl - us(1));
            assert!(is_granted(&clients.side.call(Call::renew(id(4), names.to_vec(), false))));
        }
        clients.side.call(Call::release(id(4), names.to_vec()));
        assert!(is_granted(&ask(&mut clients, 5, &names)));
    }
}

/// While the slot of the resources migrates, no script gets the keys of all of them.
fn leases_of_several_resources_are_renewed_one_by_one(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "one by one", Wake::Nobody);
    let names = ["{r}a", "{r}b"].map(|name| Resource::new(name).unwrap());
    let mut both = request(1, Read, "");
    both.claims = names.iter().map(|name| Claim { resource: name.clone(), ..both.claims[0].clone() }).collect();
    let granted = tokens(clients.side.call(Call::acquire(&both, 0, false)));
    clients.advance(TERMS.ttl - us(1));
    for name in &names {
        let part = Call::renew_alone(id(1), name.clone(), TERMS.ttl, Lease::Sole);
        assert_eq!(clients.side.call(part), ScriptReply::Renewed(TERMS.ttl));
    }
    // All of them are renewed together, too.
    for _ in 0..2 {
        clients.advance(TERMS.ttl - us(1));
        assert_eq!(tokens(clients.side.call(Call::renew(id(1), names.to_vec(), false))), granted);
    }
    let released = clients.side.call(Call::release(id(1), names.to_vec()));
    assert_eq!(released, ScriptReply::Released(granted));
    assert!(is_granted(&clients.side.call(Call::acquire(&both, 0, false))));
    clients.advance(TERMS.ttl);
    assert_eq!(clients.side.call(Call::renew(id(1), names.to_vec(), false)), ScriptReply::Unknown);
}

/// The next script drops such sessions, so they keep nobody waiting.
fn reading_for_a_deadlock_leaves_out_sessions_whose_lease_is_over(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "live", Wake::Nobody);
    let start = clients.now();
    let read = |clients: &mut Clients, after: Duration| {
        clients.side.setting.now = Some(start + after);
        let reply = clients.side.call(Call::inspect_live(vec![resource()], 0, Vec::new()));
        let ScriptReply::Listing { sessions, .. } = reply else { panic!("inspect replies {reply:?}") };
        sessions.iter().map(|(_, session)| session.process.pid).collect::<BTreeSet<_>>()
    };
    assert!(is_granted(&clients.acquire(1, Write, "")));
    assert_eq!(read(&mut clients, TERMS.ttl - us(1)), BTreeSet::from([1]));
    assert_eq!(read(&mut clients, TERMS.ttl), BTreeSet::new());

    clients.side.setting.now = Some(start);
    assert!(is_waiting(&clients.acquire(2, Write, "")));
    clients.advance(us(1));
    assert!(is_waiting(&clients.acquire(3, Write, "")));
    assert_eq!(read(&mut clients, TERMS.heartbeat - us(1)), BTreeSet::from([1, 2, 3]));
    assert_eq!(read(&mut clients, TERMS.heartbeat), BTreeSet::from([1, 3]));
    assert_eq!(read(&mut clients, TERMS.heartbeat + us(1)), BTreeSet::from([1]));
}
