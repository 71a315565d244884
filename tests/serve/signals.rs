//! The end of a server: drained, at once, and killed.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{NONE, on_both};
use rlock_testkit::serve::LockServer;
use rlock_testkit::{Lab, wait_until};

#[test]
fn term_closes_idle_and_waiting_clients_and_lets_holders_finish() {
    on_both(|lab| {
        let mut server = LockServer::start(lab, ["--grace", "10s"]);
        let (mut idle, mut holder, mut waiter) = (server.tcp(), server.tcp(), server.unix());
        assert_eq!(idle.ask("PING"), "pong");
        assert_eq!(holder.ask("LOCK k"), "ok");
        waiter.say("LOCK k");
        lab.until_waiting("k", 1);
        server.signal(Signal::TERM);
        idle.expect_closed();
        waiter.expect_closed();
        lab.until_waiting("k", 0);
        assert!(std::net::TcpStream::connect(("127.0.0.1", server.port())).is_err(), "no client is accepted");
        assert_eq!(lab.counts("k"), (1, 0));
        assert_eq!(holder.ask("PING"), "pong");
        assert_eq!(holder.ask("UNLOCK"), "ok");
        holder.expect_closed();
        assert_eq!(server.wait().code(), Some(0));
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    });
}

#[test]
fn holder_that_does_not_finish_within_the_grace_is_told_that_its_lock_is_lost() {
    on_both(|lab| {
        let mut server = LockServer::start(lab, ["--grace", "300ms"]);
        let mut holder = server.tcp();
        assert_eq!(holder.ask("LOCK k"), "ok");
        let started = Instant::now();
        server.signal(Signal::INT);
        assert_eq!(holder.line(), "lost the server ends and gives the lock back");
        holder.expect_closed();
        assert!(started.elapsed() >= Duration::from_millis(300));
        assert_eq!(server.wait().code(), Some(0));
        lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
    });
}

#[test]
fn second_signal_ends_the_server_at_once() {
    let lab = Lab::new();
    let mut server = LockServer::start(&lab, ["--grace", "1h"]);
    let mut holder = server.tcp();
    assert_eq!(holder.ask("LOCK k"), "ok");
    let mut idle = server.tcp();
    assert_eq!(idle.ask("PING"), "pong");
    server.signal(Signal::INT);
    idle.expect_closed();
    assert!(server.runs());
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(130));
    holder.expect_closed();
    lab.run(["exec", "-n", "k", "--", "true"]).silently(0);
}

#[test]
fn locks_of_a_killed_server_are_free_at_once_in_the_embedded_store() {
    let lab = Lab::new();
    let mut server = LockServer::start(&lab, NONE);
    let mut clients: Vec<_> = (0..20).map(|_| server.tcp()).collect();
    for client in &mut clients {
        assert!(client.ask("LOCK --read k").starts_with("ok "));
    }
    let mut next = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    server.kill();
    next.expect_held();
    clients.iter_mut().for_each(rlock_testkit::serve::Client::expect_closed);
    next.end().silently(0);
    lab.assert_idle();
}

#[test]
fn locks_of_a_killed_server_are_free_after_the_lease_on_a_server() {
    use rlock_testkit::servers::Kind;
    if !Kind::Redis7.is_present() {
        return;
    }
    let lab = Lab::on(Kind::Redis7);
    let mut server = LockServer::start(&lab, ["--ttl", "2s"]);
    let mut client = server.tcp();
    assert_eq!(client.ask("LOCK k"), "ok");
    server.kill();
    client.expect_closed();
    lab.run(["exec", "-n", "k", "--", "true"]).failed(75);
    wait_until("the lease is over", || lab.run(["exec", "-n", "k", "--", "true"]).code() == Some(0));
}
