//! A restarted server restores its state from its append-only file. Both client protocols give the
//! same replies.

use rlock_redis::codec::Wake;

use super::on_each_server;
use crate::clients::snapshot;
use crate::history;
use crate::side::Side;
use rlock_testkit::histories::History;
use rlock_testkit::servers::{Kind, Server};

on_each_server!(append_only_file_restores_the_same_state, resp3_gives_the_same_replies);

fn append_only_file_restores_the_same_state(kind: Kind) {
    let mut server = Server::with(kind, &["--appendonly", "yes", "--appendfsync", "always"]);
    for seed in 7000..7003 {
        history::play(&History::new(seed, 60), &server).unwrap_or_else(|difference| panic!("{seed}: {difference}"));
    }
    let before = snapshot(&mut server.client());
    assert!(before.len() > 10);
    server.restart();
    assert_eq!(snapshot(&mut server.client()), before);
}

fn resp3_gives_the_same_replies(kind: Kind) {
    let server = Server::shared(kind);
    for seed in 8000..8003 {
        let mut side = Side::new(&server, &format!("protocol 3 {seed}"), Wake::Nobody);
        redis::cmd("HELLO").arg(3).exec(&mut side.connection).unwrap();
        history::play_on(&History::new(seed, 60), side).unwrap_or_else(|difference| panic!("{seed}: {difference}"));
    }
}
