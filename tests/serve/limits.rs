//! The limits of a server, which refuse and never evict.

use std::thread;
use std::time::{Duration, Instant};

use rlock_testkit::needs;
use rlock_testkit::serve::LockServer;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, wait_until};

use crate::{NONE, on_both};

#[test]
fn connection_beyond_the_limit_is_refused_and_the_others_stay() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, ["--max-connections", "2"]);
    let (mut one, mut two) = (server.tcp(), server.unix());
    assert_eq!(one.ask("LOCK k"), "ok");
    assert_eq!(two.ask("PING"), "pong");
    for mut third in [server.tcp(), server.unix()] {
        assert_eq!(third.line(), "error full");
        third.expect_closed();
    }
    assert_eq!(lab.counts("k"), (1, 0));
    drop(two);
    wait_until("a place is free", || server.tcp().ask("PING") == "pong");
    assert_eq!(one.ask("UNLOCK"), "ok");
}

#[test]
fn request_beyond_the_limit_of_waiting_requests_is_busy_and_the_others_wait() {
    on_both(|lab| {
        let server = LockServer::start(lab, ["--max-waiting", "2"]);
        let holder = lab.hold("k");
        let mut waiters = [server.tcp(), server.tcp()];
        for waiter in &mut waiters {
            waiter.say("LOCK k");
        }
        lab.until_waiting("k", 2);
        let mut third = server.tcp();
        assert!(third.ask("LOCK k").starts_with("busy "));
        // A request that has nothing to wait for is granted all the same.
        assert_eq!(third.ask("LOCK j"), "ok");
        holder.end().silently(0);
        for mut waiter in waiters {
            assert_eq!(waiter.line(), "ok");
        }
    });
}

/// "A request that has no answer yet does not count."
#[test]
fn requests_without_an_answer_do_not_count_as_waiting() {
    needs::skip_unless!(Kind::Redis7.is_present());
    let redis = Server::start(Kind::Redis7);
    let lab = Lab::at(redis.unix_url());
    let server = LockServer::start(&lab, ["--max-waiting", "1"]);
    let holder = lab.hold("k");
    let mut clients: Vec<_> = ["a", "b", "k", "k", "k"].map(|key| (key, server.tcp())).into_iter().collect();
    redis.stop();
    for (key, client) in &mut clients {
        client.say(&format!("LOCK {key}"));
    }
    assert_eq!(server.tcp().ask("PING"), "pong");
    redis.cont();
    let mut waiting = clients.split_off(2);
    for (_, client) in &mut clients {
        assert_eq!(client.line(), "ok");
    }
    lab.until_waiting("k", 1);
    for (_, client) in waiting.split_off(1).iter_mut() {
        let answer = client.line();
        assert!(
            answer.starts_with("busy 'k' is held for write by ") && answer.ends_with("; no more requests may wait")
        );
    }
    holder.end().silently(0);
    assert_eq!(waiting[0].1.line(), "ok");
}

#[test]
fn longest_line_is_understood_and_a_longer_one_closes() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let mut client = server.tcp();
    let long = format!("LOCK {}k", " ".repeat(4096 - 6));
    assert_eq!(long.len(), 4096);
    assert_eq!(client.ask(&long), "ok");
    client.send(&vec![b'x'; 1 << 20]);
    assert_eq!(client.line(), "error the line is too long: send at most 4096 bytes");
    client.expect_closed();
    wait_until("nobody holds", || lab.counts("k") == (0, 0));
}

#[test]
fn client_that_says_nothing_is_closed_after_ten_seconds() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let (mut silent, mut half_a_line) = (server.tcp(), server.tcp());
    half_a_line.send(b"LOCK k");
    let started = Instant::now();
    silent.expect_closed();
    half_a_line.expect_closed();
    assert!(started.elapsed() > Duration::from_secs(9));
}

/// The server keeps at most one answer for a client that reads none, and reads no more of its
/// lines. Other clients are served meanwhile.
#[test]
fn client_that_does_not_read_its_answers_blocks_nobody() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let before = memory(&server);
    let mut deaf: Vec<_> = (0..8).map(|_| server.unix()).collect();
    let flood = "PING\n".repeat(200_000);
    let floods: Vec<_> = deaf
        .drain(..)
        .map(|mut client| {
            let flood = flood.clone();
            thread::spawn(move || {
                client.send(flood.as_bytes());
                client
            })
        })
        .collect();
    let mut client = server.tcp();
    for _ in 0..100 {
        assert_eq!(client.ask("LOCK k"), "ok");
        assert_eq!(client.ask("UNLOCK"), "ok");
    }
    assert!(memory(&server) < before + (8 << 20), "the server keeps unread answers");
    server.signal(rustix::process::Signal::KILL);
    floods.into_iter().for_each(|flood| drop(flood.join()));
}

/// The resident memory of a server in bytes.
pub(crate) fn memory(server: &LockServer) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel states the memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

#[test]
fn names_outside_of_only_are_neither_locked_nor_listed() {
    on_both(|lab| {
        let server = LockServer::start(lab, ["--only", "app-*", "--only", "x"]);
        let _holders = [lab.hold("secret"), lab.hold("app-1")];
        let mut client = server.tcp();
        let refused = "refused this server does not serve 'secret': name a KEY that matches app-* or x";
        assert_eq!(client.ask("LOCK secret"), refused);
        assert_eq!(client.ask("INSPECT secret"), refused);
        assert_eq!(client.ask("LOCK --write x --read secret"), refused);
        let listing = client.ask("INSPECT");
        assert!(listing.contains("app-1") && !listing.contains("secret"), "{listing}");
        assert_eq!(client.ask("LOCK x"), "ok");
    });
}

#[test]
fn thousands_of_connections_at_once_are_served() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, ["--max-connections", "5000"]);
    // Both ends of a connection need a descriptor, and this process has only its own limit.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("a process may raise its limit");
    let mut clients: Vec<_> = (0..4000).map(|_| server.unix()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.say(if number % 2 == 0 { "PING" } else { "LOCK --read k" });
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let answer = client.line();
        assert!(if number % 2 == 0 { answer == "pong" } else { answer.starts_with("ok ") }, "{answer}");
    }
    assert_eq!(lab.counts("k"), (2000, 0));
    drop(clients);
    wait_until("nobody holds", || lab.counts("k") == (0, 0));
}
