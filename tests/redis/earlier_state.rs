//! A server that goes back to an earlier state, as a failover to a replica that lags makes it: whoever held something meanwhile, and
//! waited for it then, is told of it.

use redis::{Connection, Value};

use crate::support::servers::Server;
use crate::support::{Lab, Running, wait_until};
use crate::world::each;

/// All keys of a server, as they are now.
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

/// One that waited, and holds by now; and the state in which it waited.
fn overtaken(server: &Server, lab: &Lab, ttl: &str) -> (Running, State) {
    let holder = lab.hold("k");
    let mut waiter = lab.wait_by(["exec", "k", "--ttl", ttl]);
    lab.until_waiting("k", 1);
    let state = State::of(server);
    holder.end().silently(0);
    waiter.expect_held();
    (waiter, state)
}

#[test]
fn what_waits_again_at_its_release_was_lost() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let (waiter, state) = overtaken(&server, &lab, "10m");
        state.restore(&server);
        let ran = waiter.end();
        assert!(ran.failed(76).starts_with("lost: 'k' was taken away"), "{kind:?}: {ran:?}");
    });
}

/// The token that the command was given is not the one of this grant, and somebody may have held it in between.
#[test]
fn a_grant_that_is_made_anew_is_another_one() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let (mut waiter, state) = overtaken(&server, &lab, "6s");
        state.restore(&server);
        lab.run(["cleanup", "--break", "k"]);
        wait_until("the command is ended though its input is open", || !waiter.runs());
        let ran = waiter.end();
        assert!(ran.failed(76).starts_with("lost: 'k' was taken away"), "{kind:?}: {ran:?}");
        wait_until("the grant made anew is given back", || lab.counts("k") == (0, 0));
    });
}
