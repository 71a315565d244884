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
