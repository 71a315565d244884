//! A server goes back to an earlier state, as a failover to a replica that lags does. A session
//! that got its lock after that state learns that it has lost the lock.

use redis::{Connection, Value};

use crate::world::each;
use rlock_testkit::servers::Server;
use rlock_testkit::{Lab, Running, wait_until};

/// All keys of a server at one instant.
struct State(Vec<(Value, Value)>);

impl State {
    fn of(server: &Server) -> Self {
        let mut client = server.client();
        let keys: Vec<Value> = redis::cmd("KEYS").arg("*").query(&mut client).expect("the server answers");
        let dump = |key: &Value, client: &mut Connection| redis::cmd("DUMP").arg(bytes(key)).query(client);
        let dumped = |key: Value| (dump(&key, &mut client).expect("the key is there"), key);
        Self(keys.into_iter().map(dumped).map(|(dump, key)| (key, dump)).collect())
    }

    fn restore(&self, server: &Server) {
        let mut all = redis::pipe();
        all.atomic().cmd("FLUSHALL");
        for (key, dump) in &self.0 {
            all.cmd("RESTORE").arg(bytes(key)).arg(0).arg(bytes(dump));
        }
        all.query::<()>(&mut server.client()).expect("the server takes its own dumps");
    }
}

fn bytes(value: &Value) -> &[u8] {
    if let Value::BulkString(bytes) = value { bytes } else { panic!("{value:?} is no text") }
}

/// Returns a session that waited and holds now, and the state of the server while the session
/// waited.
fn granted_after_snapshot(server: &Server, lab: &Lab, ttl: &str) -> (Running, State) {
    let holder = lab.hold("k");
    let mut waiter = lab.wait_by(["exec", "k", "--ttl", ttl]);
    lab.until_waiting("k", 1);
    let state = State::of(server);
    holder.end().silently(0);
    waiter.expect_held();
    (waiter, state)
}

#[test]
fn session_that_waits_again_at_its_release_exits_76() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let (waiter, state) = granted_after_snapshot(&server, &lab, "10m");
        state.restore(&server);
        let ran = waiter.end();
        assert!(ran.failed(76).starts_with("lost: 'k' was taken away"), "{kind:?}: {ran:?}");
    });
}

/// The new grant has another token than the one that the command was given, and another session may
/// have held the lock in between.
#[test]
fn second_grant_to_a_holder_counts_as_a_loss() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let (mut waiter, state) = granted_after_snapshot(&server, &lab, "6s");
        state.restore(&server);
        lab.run(["break", "--now", "k"]);
        wait_until("the command is ended though its input is open", || !waiter.runs());
        let ran = waiter.end();
        assert!(ran.failed(76).starts_with("lost: 'k' was taken away"), "{kind:?}: {ran:?}");
        wait_until("the grant made anew is given back", || lab.counts("k") == (0, 0));
    });
}
