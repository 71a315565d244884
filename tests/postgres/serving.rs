//! The lock server with this store.

use rlock_testkit::Lab;
use rlock_testkit::needs::skip_unless;
use rlock_testkit::serve::LockServer;
use rlock_testkit::servers::postgres::Postgres;
use rustix::process::Signal;

const NONE: [&str; 0] = [];

/// "rlock serve with this store is a local pooler: at most a few connections for all clients."
#[test]
fn lock_server_has_one_connection_for_all_clients_and_outlives_a_restart() {
    skip_unless!(Postgres::is_present());
    let mut server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    let serve = LockServer::start(&lab, NONE);
    let mut clients: Vec<_> = (0..30).map(|_| serve.unix()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask(&format!("LOCK k{number}")), "ok");
    }
    let mut waits = serve.unix();
    waits.say("LOCK k0");
    lab.until_waiting("k0", 1);
    let connections = "select count(*) from pg_stat_activity where application_name like 'rlock%'";
    assert_eq!(server.ask(connections), "1");
    server.restart(Signal::INT);
    assert_eq!(clients[0].ask("UNLOCK"), "ok");
    assert_eq!(waits.line(), "ok");
    for client in clients.iter_mut().skip(1) {
        assert_eq!(client.ask("UNLOCK"), "ok");
    }
}

/// The record of a waiter names a backend that is gone until the waiter speaks over the next one.
#[test]
fn lock_server_that_reconnects_passes_over_none_of_its_waiters() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    let serve = LockServer::start(&lab, NONE);
    let names: Vec<_> = (0..4).map(|number| format!("k{number}")).collect();
    let mut queues: Vec<_> = names
        .iter()
        .map(|name| {
            let (mut holder, mut first) = (serve.unix(), serve.unix());
            assert_eq!(holder.ask(&format!("LOCK {name}")), "ok");
            first.say(&format!("LOCK {name}"));
            lab.until_waiting(name, 1);
            let second = lab.wait_by(["exec", name]);
            lab.until_waiting(name, 2);
            (holder, first, second)
        })
        .collect();
    let pid = serve.pid();
    server
        .ask(&format!("select pg_terminate_backend(pid) from pg_stat_activity where application_name like '%:{pid}'"));
    queues.iter_mut().for_each(|(holder, ..)| holder.say("UNLOCK"));
    for (holder, mut first, mut second) in queues {
        assert_eq!(first.line(), "ok");
        assert!(second.runs());
        assert_eq!(first.ask("UNLOCK"), "ok");
        second.expect_held();
        second.end().silently(0);
        drop(holder);
    }
}
