//! A script that grants to a waiter publishes to its channel. A waiter whose channel has no
//! subscriber is dead or cut off, and the script passes it over.

use redis::Connection;
use rlock_model::mode::Mode::{self, Read, Slot, Write};
use rlock_model::request::{Claim, Request, SessionId};
use rlock_model::resource::Resource;
use rlock_redis::codec::{Call, ScriptReply, Wake};
use rlock_store::Standing;

use super::on_each_server;
use crate::clients::{Clients, TERMS, id, is_granted, is_released, is_waiting, request, resource, us};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(
    unsubscribed_waiter_is_passed_over_and_gets_its_place_back,
    waiters_behind_a_passed_over_waiter_are_granted,
    waiter_is_granted_by_its_own_renewal_without_a_subscriber,
    waiter_passes_over_the_dead_ahead_of_it_by_its_renewal,
    waiter_behind_a_holder_or_a_live_waiter_passes_over_nobody,
    broken_holder_is_notified,
    subscriber_of_a_pattern_does_not_make_a_dead_waiter_look_alive,
    user_without_pubsub_permission_passes_over_a_dead_waiter,
    newcomer_drops_the_dead_waiters_in_its_way,
    newcomer_waits_behind_a_waiter_with_a_subscriber,
    returning_waiter_that_drops_the_dead_is_not_overtaken,
    returning_waiter_that_still_waits_is_not_overtaken,
    returning_waiter_is_overtaken_by_a_nested_request_with_those_between,
    returning_waiter_lets_a_nested_request_overtake_in_the_queue_of_another_resource,
    newcomer_drops_a_dead_waiter_of_several_resources,
    newcomer_drops_a_crowd_of_dead_waiters,
    number_of_slots_of_a_dead_holder_counts_until_its_lease_ends,
    number_of_slots_of_a_dead_waiter_does_not_count,
);

/// A connection that is subscribed to the channel of a session.
pub(super) fn subscribe(server: &Server, clients: &Clients, session: SessionId) -> Connection {
    let mut connection = server.client();
    let channel = clients.side.setting.keyspace.channel(&resource(), session);
    redis::cmd("SUBSCRIBE").arg(channel).exec(&mut connection).unwrap();
    connection
}

/// The text of the next message.
pub(super) fn next_message(subscriber: &mut Connection) -> String {
    match subscriber.recv_response().unwrap() {
        redis::Value::Array(message) => redis::from_redis_value(message.into_iter().nth(2).unwrap()).unwrap(),
        other => panic!("unexpected message {other:?}"),
    }
}

fn unsubscribed_waiter_is_passed_over_and_gets_its_place_back(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "passed over", Wake::Publish);
    clients.acquire(1, Write, "");
    let ScriptReply::Waiting { seq, position: 1, .. } = clients.acquire(2, Write, "") else {
        panic!("2 does not wait")
    };
    clients.acquire(3, Write, "");
    clients.acquire(4, Write, "");
    let mut subscriber = subscribe(&server, &clients, id(3));
    assert!(is_waiting(&clients.renew(2, true)) && is_waiting(&clients.renew(3, true)));
    assert!(is_released(&clients.release(1)));
    assert_eq!(next_message(&mut subscriber), "granted");
    assert_eq!(clients.holders_and_waiters(), (vec![3], vec![4]));
    assert_eq!(clients.renew(2, true), ScriptReply::Unknown);

    let back = clients.side.call(Call::acquire(&request(2, Write, ""), seq, false));
    assert!(matches!(back, ScriptReply::Waiting { seq: again, position: 1, .. } if again == seq), "{back:?}");
    clients.acquire(5, Write, "");
    assert_eq!(clients.holders_and_waiters(), (vec![3], vec![2, 4, 5]));
    // Session 2 has not said that it listens, so the script does not check for a subscriber.
    clients.release(3);
    assert_eq!(clients.holders_and_waiters(), (vec![2], vec![4, 5]));
    // The place is taken by now, so the request gets a new one at the end.
    let late = clients.side.call(Call::acquire(&request(6, Write, ""), seq + 2, false));
    assert!(matches!(late, ScriptReply::Waiting { position: 3, .. }), "{late:?}");
    let ahead = clients.side.call(Call::acquire(&request(7, Write, ""), seq + 1, false));
    assert!(matches!(ahead, ScriptReply::Waiting { position: 1, .. }), "{ahead:?}");
    assert_eq!(clients.holders_and_waiters(), (vec![2], vec![7, 4, 5, 6]));
    // A request with its former place waits only for the sessions ahead of that place.
    let between = clients.side.call(Call::acquire(&request(8, Read, "[0,1]"), seq, false));
    assert!(matches!(between, ScriptReply::Waiting { position: 1, .. }), "{between:?}");
}

fn waiters_behind_a_passed_over_waiter_are_granted(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "blocked", Wake::Publish);
    clients.acquire(1, Write, "[0,1]");
    clients.acquire(2, Write, "[0,9]");
    clients.acquire(3, Read, "[5,6]");
    clients.acquire(4, Write, "[6,7]");
    clients.renew(2, true);
    clients.release(1);
    assert_eq!(clients.holders_and_waiters(), (vec![3], vec![4]));
}

fn waiter_is_granted_by_its_own_renewal_without_a_subscriber(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "own renewal", Wake::Publish);
    clients.acquire(1, Write, "");
    clients.acquire(2, Write, "");
    clients.renew(2, true);
    clients.advance(TERMS.heartbeat - us(1));
    clients.renew(2, true);
    clients.advance(TERMS.heartbeat - us(1));
    clients.renew(2, true);
    clients.advance(us(2));
    assert!(is_granted(&clients.renew(2, true)));
}

/// A monitoring client receives every message through PSUBSCRIBE, but the waiter has no subscriber.
/// Session 3 could be granted beside the holder if the dead session 2 were not ahead of it.
fn waiter_passes_over_the_dead_ahead_of_it_by_its_renewal(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "dead ahead", Wake::Publish);
    clients.acquire(1, Read, "");
    clients.acquire(2, Write, "");
    clients.acquire(3, Read, "[0,1]");
    clients.acquire(4, Write, "[7,8]");
    let mut alive = subscribe(&server, &clients, id(4));
    assert!(is_waiting(&clients.renew(4, true)), "session 2 does not listen yet, so it counts as alive");
    clients.renew(2, true);
    assert_eq!(clients.holders_and_waiters(), (vec![1], vec![2, 3, 4]));
    // Session 3 may have been away, as the others may.
    assert!(is_waiting(&clients.renew(3, true)));
    clients.advance(TERMS.heartbeat / 3);
    for live in [2, 4] {
        clients.renew(live, true);
    }
    let reply = clients.renew(3, true);
    let ScriptReply::Granted { lease, .. } = &reply else { panic!("3 does not pass over 2: {reply:?}") };
    assert_eq!(*lease, Some(TERMS.ttl), "the grant is claimed at once");
    // Session 4 waits for the holder, so nothing changes for it.
    assert_eq!(clients.holders_and_waiters(), (vec![1, 3], vec![4]));
    assert!(is_released(&clients.release(1)));
    assert_eq!(next_message(&mut alive), "granted");
}

fn waiter_behind_a_holder_or_a_live_waiter_passes_over_nobody(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "nobody is passed", Wake::Publish);
    clients.acquire(1, Write, "[0,1]");
    clients.acquire(2, Write, "[0,5]");
    clients.renew(2, true);
    clients.acquire(3, Write, "[0,9]");
    let _alive = subscribe(&server, &clients, id(3));
    clients.renew(3, true);
    clients.acquire(4, Read, "[9,9]");
    clients.advance(TERMS.heartbeat / 3);
    assert!(is_waiting(&clients.renew(4, true)) && is_waiting(&clients.renew(3, true)));
    assert_eq!(clients.holders_and_waiters(), (vec![1], vec![2, 3, 4]));
}

fn subscriber_of_a_pattern_does_not_make_a_dead_waiter_look_alive(kind: Kind) {
    let server = Server::start(kind);
    let mut monitor = server.client();
    redis::cmd("PSUBSCRIBE").arg("*").exec(&mut monitor).unwrap();
    assert_dead_waiter_is_passed_over(&server, &mut Clients::new(&server, "pattern", Wake::Publish));
}

fn user_without_pubsub_permission_passes_over_a_dead_waiter(kind: Kind) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "no right", Wake::Publish);
    server.ask::<()>(&["ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-pubsub"]);
    redis::cmd("AUTH").arg("limited").arg("").exec(&mut clients.side.connection).unwrap();
    assert_dead_waiter_is_passed_over(&server, &mut clients);
}

fn assert_dead_waiter_is_passed_over(server: &Server, clients: &mut Clients) {
    clients.acquire(1, Write, "");
    clients.acquire(2, Write, "");
    clients.acquire(3, Write, "");
    let mut subscriber = subscribe(server, clients, id(3));
    assert!(is_waiting(&clients.renew(2, true)) && is_waiting(&clients.renew(3, true)));
    assert!(is_released(&clients.release(1)));
    assert_eq!(next_message(&mut subscriber), "granted");
    assert_eq!(clients.holders_and_waiters(), (vec![3], vec![]));
}

fn newcomer_drops_the_dead_waiters_in_its_way(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "newcomer", Wake::Publish);
    clients.acquire(1, Read, "");
    for dead in [2, 3] {
        assert!(is_waiting(&clients.acquire(dead, Write, "")));
        clients.renew(dead, true);
    }
    // Session 4 has not said that it listens, so it counts as alive.
    assert!(is_waiting(&clients.acquire(4, Write, "[7,9]")));
    assert!(is_granted(&clients.acquire(5, Read, "[0,5]")));
    assert_eq!(clients.holders_and_waiters(), (vec![1, 5], vec![4]));
    assert_eq!(clients.renew(2, true), ScriptReply::Unknown);
    let no_wait = Request { wait: false, ..request(6, Read, "[8,8]") };
    assert!(matches!(clients.side.call(Call::acquire(&no_wait, 0, false)), ScriptReply::Over(Standing::Busy { .. })));
    clients.renew(4, true);
    assert!(is_granted(&clients.side.call(Call::acquire(&no_wait, 0, false))));
}

fn newcomer_waits_behind_a_waiter_with_a_subscriber(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "newcomer behind", Wake::Publish);
    clients.acquire(1, Read, "");
    clients.acquire(2, Write, "");
    clients.acquire(3, Write, "");
    let _subscriber = subscribe(&server, &clients, id(2));
    clients.renew(2, true);
    clients.renew(3, true);
    assert!(is_waiting(&clients.acquire(4, Read, "")));
    assert_eq!(clients.holders_and_waiters(), (vec![1], vec![2, 3, 4]));
    // A waiter behind a holder need not look: the release of the holder passes over the dead.
    assert!(is_waiting(&clients.acquire(5, Write, "")));
    assert_eq!(clients.holders_and_waiters(), (vec![1], vec![2, 3, 4, 5]));
}

fn returning_waiter_that_drops_the_dead_is_not_overtaken(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "return", Wake::Publish);
    clients.acquire(1, Read, "[0,1]");
    clients.acquire(2, Write, "[0,9]");
    let ScriptReply::Waiting { seq, .. } = clients.acquire(3, Write, "[5,6]") else { panic!("3 does not wait") };
    clients.acquire(4, Write, "[5,7]");
    assert!(is_released(&clients.release(3)));
    clients.renew(2, true);
    assert!(is_granted(&clients.side.call(Call::acquire(&request(3, Write, "[5,6]"), seq, false))));
    assert_eq!(clients.holders_and_waiters(), (vec![1, 3], vec![4]));
    clients.release(3);
    assert_eq!(clients.holders_and_waiters(), (vec![1, 4], vec![]));
}

/// The request is in the queue before what the dead waiter blocked is granted.
fn returning_waiter_that_still_waits_is_not_overtaken(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "return and wait", Wake::Publish);
    clients.acquire(1, Read, "[0,1]");
    clients.acquire(2, Write, "[0,9]");
    assert!(is_waiting(&clients.acquire(3, Write, "[0,5]")));
    let ScriptReply::Waiting { seq, .. } = clients.acquire(4, Write, "[4,6]") else { panic!("4 does not wait") };
    clients.acquire(5, Write, "[5.5,7]");
    clients.acquire(6, Write, "[8,9]");
    assert!(is_released(&clients.release(4)));
    clients.renew(2, true);
    assert!(is_waiting(&clients.side.call(Call::acquire(&request(4, Write, "[4,6]"), seq, false))));
    assert_eq!(clients.holders_and_waiters(), (vec![1, 6], vec![3, 4, 5]));
}

fn returning_waiter_is_overtaken_by_a_nested_request_with_those_between(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "return ahead", Wake::Nobody);
    let other = Resource::new("{r}other").unwrap();
    let mut above = request(1, Write, "");
    above.claims[0].resource = other.clone();
    assert!(is_granted(&clients.side.call(Call::acquire(&above, 0, false))));
    clients.acquire(2, Read, "");
    let mut both = request(3, Write, "");
    both.claims.push(above.claims[0].clone());
    let ScriptReply::Waiting { seq, .. } = clients.side.call(Call::acquire(&both, 0, false)) else { panic!() };
    clients.acquire(4, Write, "");
    clients.side.call(Call::release(id(3), vec![resource(), other.clone()]));
    let mut nested = Request { ancestors: vec![id(1)], ..request(5, Read, "") };
    nested.job.held_above = vec![other];
    assert!(is_waiting(&clients.side.call(Call::acquire(&nested, 0, false))));
    assert!(is_waiting(&clients.side.call(Call::acquire(&both, seq, false))));
    assert_eq!(clients.holders_and_waiters(), (vec![2, 5], vec![3, 4]));
}

/// 3 waits for 1, and 4 heeds 3 when it is back. So 5, which runs below 1, overtakes 4 in a queue
/// that 3 is not in. The return leaves out a waiter with more than 16 names.
fn returning_waiter_lets_a_nested_request_overtake_in_the_queue_of_another_resource(kind: Kind) {
    let server = Server::shared(kind);
    for (names, overtakes) in [(2, true), (16, true), (17, false)] {
        let held = if overtakes { vec![2, 5] } else { vec![2] };
        assert_eq!(holders_after_a_return_ahead_of_a_waiter_with(names, &server), held, "{names} names");
    }
}

fn holders_after_a_return_ahead_of_a_waiter_with(names: usize, server: &Server) -> Vec<u32> {
    let mut clients = Clients::new(server, &format!("return elsewhere {names}"), Wake::Nobody);
    let [shared, own] = ["{r}shared", "{r}own"].map(|name| Resource::new(name).unwrap());
    let of = |number, claims: &[(&Resource, Mode)]| {
        let mut asked = request(number, Read, "");
        let plain = asked.claims[0].clone();
        let claim =
            |(name, mode): &(&Resource, Mode)| Claim { resource: (*name).clone(), mode: *mode, ..plain.clone() };
        asked.claims = claims.iter().map(claim).collect();
        asked
    };
    let mut ask = |request: &Request, place| clients.side.call(Call::acquire(request, place, false));
    assert!(is_granted(&ask(&of(1, &[(&shared, Read), (&own, Write)]), 0)));
    assert!(is_granted(&ask(&of(2, &[(&resource(), Read)]), 0)));
    let returns = of(3, &[(&shared, Write)]);
    let ScriptReply::Waiting { seq, .. } = ask(&returns, 0) else { panic!("3 does not wait") };
    let mut behind = of(4, &[(&shared, Read), (&resource(), Write)]);
    let further = (2..names).map(|at| Resource::new(&format!("{{r}}further {at}")).unwrap());
    let plain = behind.claims[0].clone();
    behind.claims.extend(further.map(|resource| Claim { resource, ..plain.clone() }));
    assert!(is_waiting(&ask(&behind, 0)));
    assert!(is_waiting(&ask(&of(6, &[(&resource(), Write), (&own, Write)]), 0)));
    clients.side.call(Call::release(id(3), vec![shared.clone()]));
    let mut nested = Request { ancestors: vec![id(1)], ..request(5, Read, "") };
    nested.job.held_above = vec![shared.clone(), own.clone()];
    assert!(is_waiting(&clients.side.call(Call::acquire(&nested, 0, false))));
    assert!(is_waiting(&clients.side.call(Call::acquire(&returns, seq, false))));
    // The call of 3 does not know what 1 holds, so it leaves the walk to the next call.
    assert!(is_waiting(&clients.renew(4, false)));
    clients.holders_and_waiters().0
}

fn newcomer_drops_a_dead_waiter_of_several_resources(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "newcomer several", Wake::Publish);
    let other = || Resource::new("{r}other").unwrap();
    clients.acquire(1, Read, "");
    let mut both = request(2, Write, "");
    both.claims.push(Claim { resource: other(), ..both.claims[0].clone() });
    assert!(is_waiting(&clients.side.call(Call::acquire(&both, 0, false))));
    clients.side.call(Call::renew(id(2), vec![resource(), other()], true));
    let mut newcomer = request(3, Write, "");
    newcomer.claims[0].resource = other();
    assert!(is_granted(&clients.side.call(Call::acquire(&newcomer, 0, false))));
    assert_eq!(clients.holders_and_waiters(), (vec![1], vec![]));
}

fn newcomer_drops_a_crowd_of_dead_waiters(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "newcomer crowd", Wake::Publish);
    clients.acquire(1, Read, "");
    for dead in 2..=302 {
        clients.acquire(dead, Write, "");
        clients.renew(dead, true);
    }
    assert!(is_granted(&clients.acquire(303, Read, "")));
    assert_eq!(clients.holders_and_waiters(), (vec![1, 303], vec![]));
}

/// A request for one of `slots` slots.
fn slot_of(number: u32, slots: u32) -> Call {
    let mut one = request(number, Slot, "");
    one.claims[0].slots = Some(slots);
    Call::acquire(&one, 0, false)
}

fn number_of_slots_of_a_dead_holder_counts_until_its_lease_ends(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "other slots", Wake::Publish);
    assert!(is_granted(&clients.side.call(slot_of(1, 1))));
    assert!(is_waiting(&clients.side.call(slot_of(2, 3))));
    for _ in 0..3 {
        clients.advance(TERMS.heartbeat - us(2_000_000));
        clients.renew(2, false);
    }
    assert_eq!(clients.holders_and_waiters(), (vec![2], vec![]));
    assert!(is_granted(&clients.side.call(slot_of(3, 3))));
    assert!(is_granted(&clients.side.call(slot_of(4, 3))));
    assert!(is_waiting(&clients.side.call(slot_of(5, 3))), "at most three sessions hold slots");
}

fn number_of_slots_of_a_dead_waiter_does_not_count(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "other slots waited for", Wake::Publish);
    assert!(is_granted(&clients.side.call(slot_of(1, 3))));
    assert!(is_waiting(&clients.side.call(slot_of(2, 1))));
    assert!(is_waiting(&clients.side.call(slot_of(3, 3))));
    clients.renew(2, true);
    assert!(is_granted(&clients.side.call(slot_of(4, 3))));
    assert_eq!(clients.holders_and_waiters(), (vec![1, 4, 3], vec![]));
}

fn broken_holder_is_notified(kind: Kind) {
    let server = Server::shared(kind);
    let mut clients = Clients::new(&server, "notified", Wake::Publish);
    clients.acquire(1, Write, "");
    clients.acquire(2, Write, "");
    let mut subscribers = [subscribe(&server, &clients, id(1)), subscribe(&server, &clients, id(2))];
    clients.renew(2, true);
    let broken = clients.side.call(Call::break_grants(resource(), None, Vec::new(), None));
    assert!(matches!(broken, ScriptReply::Broken { sessions, .. } if sessions.len() == 1 && sessions[0].0 == id(1)));
    assert_eq!(subscribers.each_mut().map(next_message), ["broken", "granted"]);
    assert_eq!(clients.holders_and_waiters(), (vec![2], vec![]));
}
