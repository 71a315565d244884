//! A waiter who listens is asked for by the message that tells him of his grant: one who can't hear
//! is passed over.

use redis::Connection;
use rlock::lock::mode::Mode::Slot;
use rlock::lock::mode::Mode::{Read, Write};
use rlock::lock::op::Refusal;
use rlock::lock::request::{Request, SessionId};
use rlock::store::redis::codec::{Call, ScriptReply, Wake};

use super::on_each_server;
use crate::party::{Party, TERMS, id, is_granted, is_released, is_waiting, request, resource, us};
use crate::support::servers::{Kind, Server};

on_each_server!(
    who_cannot_hear_is_passed_over_and_has_its_place_again,
    what_it_stood_in_the_way_of_goes_on,
    who_asks_itself_is_not_asked_for,
    who_loses_its_grant_is_told,
    subscriber_of_a_pattern_does_not_make_a_dead_waiter_look_alive,
    user_without_the_right_to_count_subscribers_passes_over_the_dead,
    slots_of_a_dead_holder_end_with_its_lease_and_do_not_refuse_another_number,
    slots_of_a_dead_waiter_do_not_refuse_another_number,
);

/// A connection that hears what a session is told.
pub(super) fn listener(server: &Server, party: &Party, session: SessionId) -> Connection {
    let mut connection = server.client();
    let channel = party.side.setting.keyspace.channel(&resource(), session);
    redis::cmd("SUBSCRIBE").arg(channel).exec(&mut connection).unwrap();
    // A message that never comes fails the test instead of keeping it waiting.
    connection.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    connection
}

/// The text of the next message.
pub(super) fn heard(listener: &mut Connection) -> String {
    match listener.recv_response().unwrap() {
        redis::Value::Array(message) => redis::from_redis_value(message.into_iter().nth(2).unwrap()).unwrap(),
        other => panic!("it hears {other:?}"),
    }
}

fn who_cannot_hear_is_passed_over_and_has_its_place_again(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "passed over", Wake::Publish);
    party.ask(1, Write, "");
    let ScriptReply::Waiting { seq, position: 1, .. } = party.ask(2, Write, "") else { panic!("2 does not wait") };
    party.ask(3, Write, "");
    party.ask(4, Write, "");
    let mut ear = listener(&server, &party, id(3));
    assert!(is_waiting(&party.renew(2, true)) && is_waiting(&party.renew(3, true)));
    assert!(is_released(&party.release(1)));
    assert_eq!(heard(&mut ear), "granted");
    assert_eq!(party.standing(), (vec![3], vec![4]));
    assert_eq!(party.renew(2, true), ScriptReply::Unknown);

    let back = party.side.call(Call::acquire(&request(2, Write, ""), seq, false));
    assert!(matches!(back, ScriptReply::Waiting { seq: again, position: 1, .. } if again == seq), "{back:?}");
    party.ask(5, Write, "");
    assert_eq!(party.standing(), (vec![3], vec![2, 4, 5]));
    // Whoever isn't listening yet is granted without a question.
    party.release(3);
    assert_eq!(party.standing(), (vec![2], vec![4, 5]));
    // A place that somebody has by now is a new one at the end.
    let late = party.side.call(Call::acquire(&request(6, Write, ""), seq + 2, false));
    assert!(matches!(late, ScriptReply::Waiting { position: 3, .. }), "{late:?}");
    let ahead = party.side.call(Call::acquire(&request(7, Write, ""), seq + 1, false));
    assert!(matches!(ahead, ScriptReply::Waiting { position: 1, .. }), "{ahead:?}");
    assert_eq!(party.standing(), (vec![2], vec![7, 4, 5, 6]));
    // With its place it waits for those ahead only.
    let between = party.side.call(Call::acquire(&request(8, Read, "[0,1]"), seq, false));
    assert!(matches!(between, ScriptReply::Waiting { position: 1, .. }), "{between:?}");
}

fn what_it_stood_in_the_way_of_goes_on(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "in the way", Wake::Publish);
    party.ask(1, Write, "[0,1]");
    party.ask(2, Write, "[0,9]");
    party.ask(3, Read, "[5,6]");
    party.ask(4, Write, "[6,7]");
    party.renew(2, true);
    party.release(1);
    assert_eq!(party.standing(), (vec![3], vec![4]));
}

fn who_asks_itself_is_not_asked_for(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "asks itself", Wake::Publish);
    party.ask(1, Write, "");
    party.ask(2, Write, "");
    party.renew(2, true);
    party.later(TERMS.heartbeat - us(1));
    party.renew(2, true);
    party.later(TERMS.heartbeat - us(1));
    party.renew(2, true);
    party.later(us(2));
    assert!(is_granted(&party.renew(2, true)));
}

/// A client that monitors the server with PSUBSCRIBE hears every message, and no waiter any.
fn subscriber_of_a_pattern_does_not_make_a_dead_waiter_look_alive(kind: Kind) {
    let server = Server::start(kind);
    let mut monitor = server.client();
    redis::cmd("PSUBSCRIBE").arg("*").exec(&mut monitor).unwrap();
    dead_is_passed_over(&server, &mut Party::new(&server, "pattern", Wake::Publish));
}

fn user_without_the_right_to_count_subscribers_passes_over_the_dead(kind: Kind) {
    let server = Server::start(kind);
    let mut party = Party::new(&server, "no right", Wake::Publish);
    server.ask::<()>(&["ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-pubsub"]);
    redis::cmd("AUTH").arg("limited").arg("").exec(&mut party.side.connection).unwrap();
    dead_is_passed_over(&server, &mut party);
}

fn dead_is_passed_over(server: &Server, party: &mut Party) {
    party.ask(1, Write, "");
    party.ask(2, Write, "");
    party.ask(3, Write, "");
    let mut ear = listener(server, party, id(3));
    assert!(is_waiting(&party.renew(2, true)) && is_waiting(&party.renew(3, true)));
    assert!(is_released(&party.release(1)));
    assert_eq!(heard(&mut ear), "granted");
    assert_eq!(party.standing(), (vec![3], vec![]));
}

/// A request for one of so many slots.
fn slot_of(number: u32, slots: u32) -> Call {
    let mut one = request(number, Slot, "");
    one.claims[0].slots = Some(slots);
    Call::acquire(&one, 0, false)
}

fn is_refused(reply: &ScriptReply, number: u32) -> bool {
    matches!(reply, ScriptReply::Refused(Refusal::SlotsDiffer { in_force, .. }) if *in_force == number)
}

fn slots_of_a_dead_holder_end_with_its_lease_and_do_not_refuse_another_number(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "other slots", Wake::Publish);
    assert!(is_granted(&party.side.call(slot_of(1, 2))));
    assert!(is_refused(&party.side.call(slot_of(2, 3)), 2), "a holder that has just begun is alive");
    party.later(us(4_000_000));
    let ear = listener(&server, &party, id(1));
    assert!(is_refused(&party.side.call(slot_of(2, 3)), 2), "a holder that listens is alive");
    drop(ear);
    let channel = party.side.setting.keyspace.channel(&resource(), id(1));
    crate::support::wait_until("the listener is gone", || {
        let counted: (String, i64) = server.ask(&["PUBSUB", "NUMSUB", &channel]);
        counted.1 == 0
    });
    let no_wait = Request { wait: false, ..request(7, Slot, "") };
    let no_wait = Request {
        claims: vec![rlock::lock::request::Claim { slots: Some(3), ..no_wait.claims[0].clone() }],
        ..no_wait
    };
    let busy = party.side.call(Call::acquire(&no_wait, 0, false));
    assert!(matches!(&busy, ScriptReply::Busy(told) if told[0].listing.holders.len() == 1), "{busy:?}");
    assert!(is_waiting(&party.side.call(slot_of(2, 3))), "a dead one has its lease");
    assert!(is_refused(&party.side.call(slot_of(3, 2)), 3), "whoever waits is alive");
    assert!(is_waiting(&party.side.call(slot_of(4, 3))));
    for _ in 0..2 {
        party.later(TERMS.heartbeat - us(2_000_000));
        for number in [2, 4] {
            party.renew(number, false);
        }
    }
    assert_eq!(party.standing(), (vec![2, 4], vec![]));
    assert!(is_granted(&party.side.call(slot_of(5, 3))));
    assert!(is_waiting(&party.side.call(slot_of(6, 3))), "never more than three");
}

fn slots_of_a_dead_waiter_do_not_refuse_another_number(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "other slots waited for", Wake::Publish);
    party.ask(1, Write, "");
    assert!(is_waiting(&party.side.call(slot_of(2, 2))));
    assert!(is_refused(&party.side.call(slot_of(3, 3)), 2));
    party.renew(2, true);
    assert!(is_waiting(&party.side.call(slot_of(3, 3))));
    assert_eq!(party.standing(), (vec![1], vec![3]));
    assert!(is_released(&party.release(1)));
    assert_eq!(party.standing(), (vec![3], vec![]));
}

fn who_loses_its_grant_is_told(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "is told", Wake::Publish);
    party.ask(1, Write, "");
    party.ask(2, Write, "");
    let mut ears = [listener(&server, &party, id(1)), listener(&server, &party, id(2))];
    party.renew(2, true);
    let broken = party.side.call(Call::break_grants(resource()));
    assert!(matches!(broken, ScriptReply::Broken(sessions) if sessions.len() == 1 && sessions[0].0 == id(1)));
    assert_eq!(ears.each_mut().map(heard), ["broken", "granted"]);
    assert_eq!(party.standing(), (vec![2], vec![]));
}
