//! What a server that is started again reads from its log of effects is what it had, and both protocols of clients are alike.

use rlock::store::redis::codec::Wake;

use super::on_each_server;
use crate::history::History;
use crate::party::snapshot;
use crate::side::Side;
use crate::support::servers::{Kind, Server};

on_each_server!(a_log_of_effects_gives_the_same_state, the_newer_protocol_says_the_same);

fn a_log_of_effects_gives_the_same_state(kind: Kind) {
    let mut server = Server::with(kind, &["--appendonly", "yes", "--appendfsync", "always"]);
    for seed in 7000..7003 {
        let history = History::new(seed, (0..60).collect());
        history.play(&server).unwrap_or_else(|difference| panic!("{seed}: {difference}"));
    }
    let before = snapshot(&mut server.client());
    assert!(before.len() > 10);
    server.restart();
    assert_eq!(snapshot(&mut server.client()), before);
}

fn the_newer_protocol_says_the_same(kind: Kind) {
    let server = Server::shared(kind);
    for seed in 8000..8003 {
        let mut side = Side::new(&server, &format!("protocol 3 {seed}"), Wake::Nobody);
        redis::cmd("HELLO").arg(3).exec(&mut side.connection).unwrap();
        let history = History::new(seed, (0..60).collect());
        history.play_on(side).unwrap_or_else(|difference| panic!("{seed}: {difference}"));
    }
}
