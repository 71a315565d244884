//! At maxmemory, as long as nothing may be evicted, whoever has something can keep it and give it
//! up, and nobody gets anything new.

use rlock::lock::mode::Mode::{Prewrite, Read, Write};
use rlock::lock::span::Span;
use rlock::store::redis::codec::{Call, ScriptReply, Wake};

use super::on_each_server;
use crate::party::{Party, TERMS, id, is_granted, is_released, is_waiting, resource, snapshot, us};
use crate::support::servers::{Kind, Server};

on_each_server!(what_is_had_is_kept_and_given_up, nothing_new_is_granted_or_queued);

/// A server that takes nothing more, with what is held and waited for on it.
fn full(kind: Kind, set_up: impl FnOnce(&mut Party)) -> (Server, Party) {
    let server = Server::start(kind);
    let mut party = Party::new(&server, "full", Wake::Publish);
    set_up(&mut party);
    // Scripts are sent before, as EVAL would not be taken either.
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    (server, party)
}

fn what_is_had_is_kept_and_given_up(kind: Kind) {
    let (_server, mut party) = full(kind, |party| {
        // Every script is known to the server then.
        party.ask(1, Read, "");
        party.renew(1, false);
        party.side.call(Call::shrink(id(1), vec![resource()], &Span::parse("[0,9]").unwrap()));
        party.side.call(Call::downgrade(id(1), vec![resource()], Read));
        party.release(1);
        party.side.call(Call::expire(vec![resource()]));
        party.side.call(Call::break_grants(resource()));
        party.side.call(Call::renew_alone(id(1), resource(), us(1)));

        party.ask(1, Write, "[0,9]");
        for number in 2..8 {
            party.ask(number, if number == 3 { Write } else { Read }, "[5,9]");
        }
    });
    assert!(is_granted(&party.renew(1, false)), "a holder");
    assert!(is_waiting(&party.renew(2, true)) && is_waiting(&party.renew(2, false)), "a waiter");
    assert_eq!(party.side.call(Call::renew_alone(id(1), resource(), TERMS.ttl)), ScriptReply::Renewed(TERMS.ttl));
    let narrower = Span::parse("[0,8]").unwrap();
    assert_eq!(party.side.call(Call::shrink(id(1), vec![resource()], &narrower)), ScriptReply::Done);
    assert!(is_released(&party.release(7)), "a place in the queue");
    assert_eq!(party.standing(), (vec![1], vec![2, 3, 4, 5, 6]));
    assert_eq!(party.side.call(Call::downgrade(id(1), vec![resource()], Prewrite)), ScriptReply::Done);
    assert_eq!(party.standing(), (vec![1, 2], vec![3, 4, 5, 6]), "the downgrade lets the first reader in");
    assert!(is_released(&party.release(1)));
    assert!(is_released(&party.release(2)));
    assert_eq!(party.standing(), (vec![3], vec![4, 5, 6]), "the release lets the writer in");
    assert!(
        matches!(party.side.call(Call::break_grants(resource())), ScriptReply::Broken(sessions) if sessions.len() == 1)
    );
    assert_eq!(party.standing().0, [4, 5, 6], "the break lets the readers in");
    party.later(TERMS.ttl);
    assert!(
        matches!(party.side.call(Call::expire(vec![resource()])), ScriptReply::Expired(sessions) if sessions.len() == 3)
    );
    assert_eq!(party.standing(), (vec![], vec![]));
}

fn nothing_new_is_granted_or_queued(kind: Kind) {
    let (server, mut party) = full(kind, |party| {
        party.ask(1, Read, "[0,9]");
        party.ask(2, Write, "[0,9]");
        party.ask(3, Write, "[20,30]");
        party.release(3);
    });
    let before = snapshot(&mut server.client());
    for (mode, part) in [(Read, "[100,200]"), (Write, "[0,9]"), (Write, "")] {
        match party.try_ask(4, mode, part) {
            Err(error) => assert!(error.to_string().contains("OOM"), "{error}"),
            other => panic!("{mode} {part}: {other:?}"),
        }
        // Not even what has expired is dropped.
        party.later(TERMS.ttl);
    }
    assert_eq!(snapshot(&mut server.client()), before);
}
