//! At maxmemory with the policy noeviction, holders and waiters can renew and release, but the
//! server refuses new requests.

use rlock_model::mode::Mode::{Prewrite, Read, Write};
use rlock_redis::codec::{Call, Lease, ScriptReply, Wake};

use super::on_each_server;
use crate::clients::{
    Clients, TERMS, downgrade, id, is_granted, is_released, is_waiting, resource, shrink, snapshot, us,
};
use rlock_testkit::servers::{Kind, Server};

on_each_server!(full_server_accepts_renewals_and_releases, full_server_refuses_new_requests_and_changes_nothing);

/// A server at its maxmemory, with the sessions of `set_up`.
fn full(kind: Kind, set_up: impl FnOnce(&mut Clients)) -> (Server, Clients) {
    let server = Server::start(kind);
    let mut clients = Clients::new(&server, "full", Wake::Publish);
    set_up(&mut clients);
    // `set_up` has sent the scripts, because a full server refuses EVAL, too.
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    (server, clients)
}

fn full_server_accepts_renewals_and_releases(kind: Kind) {
    let (_server, mut clients) = full(kind, |clients| {
        // The server must know every script before it is full.
        clients.acquire(1, Read, "");
        clients.renew(1, false);
        clients.side.call(shrink(1, "[0,9]"));
        clients.side.call(downgrade(1, Read));
        clients.release(1);
        clients.side.call(Call::expire(vec![resource()]));
        clients.side.call(Call::break_grants(resource(), None, Vec::new(), None));
        clients.side.call(Call::renew_alone(id(1), resource(), us(1), Lease::Shared));

        clients.acquire(1, Write, "[0,9]");
        for number in 2..8 {
            clients.acquire(number, if number == 3 { Write } else { Read }, "[5,9]");
        }
    });
    assert!(is_granted(&clients.renew(1, false)), "a holder");
    assert!(is_waiting(&clients.renew(2, true)) && is_waiting(&clients.renew(2, false)), "a waiter");
    let alone = Call::renew_alone(id(1), resource(), TERMS.ttl, Lease::Shared);
    assert_eq!(clients.side.call(alone), ScriptReply::Renewed(TERMS.ttl));
    assert_eq!(clients.side.call(shrink(1, "[0,8]")), ScriptReply::Done);
    assert!(is_released(&clients.release(7)), "a place in the queue");
    assert_eq!(clients.holders_and_waiters(), (vec![1], vec![2, 3, 4, 5, 6]));
    assert_eq!(clients.side.call(downgrade(1, Prewrite)), ScriptReply::Done);
    assert_eq!(clients.holders_and_waiters(), (vec![1, 2], vec![3, 4, 5, 6]), "the downgrade lets the first reader in");
    assert!(is_released(&clients.release(1)));
    assert!(is_released(&clients.release(2)));
    assert_eq!(clients.holders_and_waiters(), (vec![3], vec![4, 5, 6]), "the release lets the writer in");
    assert!(
        matches!(clients.side.call(Call::break_grants(resource(), None, Vec::new(), None)), ScriptReply::Broken { sessions, .. } if sessions.len() == 1)
    );
    assert_eq!(clients.holders_and_waiters().0, [4, 5, 6], "the break lets the readers in");
    clients.advance(TERMS.ttl);
    assert!(
        matches!(clients.side.call(Call::expire(vec![resource()])), ScriptReply::Expired(sessions) if sessions.len() == 3)
    );
    assert_eq!(clients.holders_and_waiters(), (vec![], vec![]));
}

fn full_server_refuses_new_requests_and_changes_nothing(kind: Kind) {
    let (server, mut clients) = full(kind, |clients| {
        clients.acquire(1, Read, "[0,9]");
        clients.acquire(2, Write, "[0,9]");
        clients.acquire(3, Write, "[20,30]");
        clients.release(3);
    });
    let before = snapshot(&mut server.client());
    for (mode, part) in [(Read, "[100,200]"), (Write, "[0,9]"), (Write, "")] {
        match clients.try_acquire(4, mode, part) {
            Err(error) => assert!(error.to_string().contains("OOM"), "{error}"),
            other => panic!("{mode} {part}: {other:?}"),
        }
        // The server does not drop expired sessions either.
        clients.advance(TERMS.ttl);
    }
    assert_eq!(snapshot(&mut server.client()), before);
}
