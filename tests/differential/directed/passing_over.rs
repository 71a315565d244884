//! A waiter who listens is asked for by the message that tells him of his grant: one who can't hear is passed over.

use redis::Connection;
use rlock::lock::mode::Mode::{Read, Write};
use rlock::lock::request::SessionId;
use rlock::store::redis::codec::{Call, Reply, Wake};

use super::on_each_server;
use crate::party::{Party, TERMS, id, is_granted, is_released, is_waiting, request, resource};
use crate::support::servers::{Kind, Server};

on_each_server!(
    who_cannot_hear_is_passed_over_and_has_its_place_again,
    what_it_stood_in_the_way_of_goes_on,
    who_asks_itself_is_not_asked_for,
    who_loses_its_grant_is_told,
);

/// A connection that hears what a session is told.
fn listener(server: &Server, party: &Party, session: SessionId) -> Connection {
    let mut connection = server.client();
    let channel = party.side.setting.keyspace.channel(&resource(), session);
    redis::cmd("SUBSCRIBE").arg(channel).exec(&mut connection).unwrap();
    connection
}

/// The text of the next message.
fn heard(listener: &mut Connection) -> String {
    match listener.recv_response().unwrap() {
        redis::Value::Array(message) => redis::from_redis_value(message.into_iter().nth(2).unwrap()).unwrap(),
        other => panic!("it hears {other:?}"),
    }
}

fn who_cannot_hear_is_passed_over_and_has_its_place_again(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "passed over", Wake::Publish);
    party.ask(1, Write, "");
    let Reply::Waiting { seq, position: 1, .. } = party.ask(2, Write, "") else { panic!("2 does not wait") };
    party.ask(3, Write, "");
    party.ask(4, Write, "");
    let mut ear = listener(&server, &party, id(3));
    assert!(is_waiting(&party.renew(2, true)) && is_waiting(&party.renew(3, true)));
    assert!(is_released(&party.release(1)));
    assert_eq!(heard(&mut ear), "granted");
    assert_eq!(party.standing(), (vec![3], vec![4]));
    assert_eq!(party.renew(2, true), Reply::Unknown);

    let back = party.side.call(Call::acquire(&request(2, Write, ""), seq, false));
    assert!(matches!(back, Reply::Waiting { seq: again, position: 1, .. } if again == seq), "{back:?}");
    party.ask(5, Write, "");
    assert_eq!(party.standing(), (vec![3], vec![2, 4, 5]));
    // Whoever isn't listening yet is granted without a question.
    party.release(3);
    assert_eq!(party.standing(), (vec![2], vec![4, 5]));
    // A place that somebody has by now is a new one at the end.
    let late = party.side.call(Call::acquire(&request(6, Write, ""), seq + 2, false));
    assert!(matches!(late, Reply::Waiting { position: 3, .. }), "{late:?}");
    let ahead = party.side.call(Call::acquire(&request(7, Write, ""), seq + 1, false));
    assert!(matches!(ahead, Reply::Waiting { position: 1, .. }), "{ahead:?}");
    assert_eq!(party.standing(), (vec![2], vec![7, 4, 5, 6]));
    // With its place it waits for those ahead only.
    let between = party.side.call(Call::acquire(&request(8, Read, "[0,1]"), seq, false));
    assert!(matches!(between, Reply::Waiting { position: 1, .. }), "{between:?}");
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
    party.later(TERMS.heartbeat - 1);
    party.renew(2, true);
    party.later(TERMS.heartbeat - 1);
    party.renew(2, true);
    party.later(2);
    assert!(is_granted(&party.renew(2, true)));
}

fn who_loses_its_grant_is_told(kind: Kind) {
    let server = Server::shared(kind);
    let mut party = Party::new(&server, "is told", Wake::Publish);
    party.ask(1, Write, "");
    party.ask(2, Write, "");
    let mut ears = [listener(&server, &party, id(1)), listener(&server, &party, id(2))];
    party.renew(2, true);
    let broken = party.side.call(Call::break_grants(resource()));
    assert!(matches!(broken, Reply::Broken(sessions) if sessions.len() == 1 && sessions[0].0 == id(1)));
    assert_eq!(ears.each_mut().map(heard), ["broken", "granted"]);
    assert_eq!(party.standing(), (vec![2], vec![]));
}
