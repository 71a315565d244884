//! Answers that need a look at the store, while the store is slow or clients are.

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::limits::memory;
use crate::{NONE, on_both};
use rlock_testkit::serve::{Client, LockServer, Next};
use rlock_testkit::{Lab, wait_until};

/// Holds the lock on the embedded table, as a stopped process does.
fn stop_table(lab: &Lab) -> File {
    let lock = File::open(lab.directory().join("state/lock")).expect("the lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock");
    lock
}

/// "The answer says who is in the way if the store tells within a second."
#[test]
fn waiter_whose_wait_is_over_is_answered_while_somebody_keeps_the_table_locked() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let _holder = lab.hold("k");
    let (mut waiter, mut curious) = (server.tcp(), server.tcp());
    waiter.say("LOCK -w 2s k");
    lab.until_waiting("k", 1);
    let lock = stop_table(&lab);
    let stopped = Instant::now();
    curious.say("INSPECT");
    assert_eq!(waiter.line(), "busy 'k' was held a moment ago; waited 2s");
    assert!(stopped.elapsed() < Duration::from_secs(6), "{:?}", stopped.elapsed());
    drop(lock);
    assert!(curious.line().starts_with('{'));
}

#[test]
fn waiter_whose_wait_is_over_is_told_the_holder() {
    on_both(|lab| {
        let server = LockServer::start(lab, NONE);
        let _holder = lab.hold("k");
        let answer = server.tcp().ask("LOCK -w 100ms k");
        assert!(answer.starts_with("busy 'k' is held for write by "), "{answer}");
    });
}

/// Locks so many names that a listing does not fit into the buffers of a socket.
fn fill(server: &LockServer, clients: usize) -> Vec<Client> {
    let names = |client| (0..250).map(|name| format!(" --read {client}x{name}")).collect::<String>();
    let holders = (0..clients).map(|number| {
        let mut client = server.unix();
        client.token(&format!("LOCK{}", names(number)));
        client
    });
    holders.collect()
}

/// "Clients that ask at the same time share an answer."
#[test]
fn listing_of_those_who_ask_at_the_same_time_is_in_the_memory_once() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let _holders = fill(&server, 8);
    let size = server.unix().ask("INSPECT").len() as u64;
    assert!(size > 500_000, "{size}");
    let before = memory(&server);
    let lock = stop_table(&lab);
    let mut first = server.unix();
    first.say("INSPECT k");
    let mut crowd: Vec<_> = (0..60).map(|_| server.unix()).collect();
    crowd.iter_mut().for_each(|client| client.say("INSPECT"));
    assert_eq!(server.unix().ask("PING"), "pong");
    drop(lock);
    crowd.iter().for_each(Client::until_readable);
    let used = memory(&server).saturating_sub(before);
    assert!(used < 20 * size, "{used} bytes for {} listings of {size}", crowd.len());
    assert!(crowd.iter_mut().all(|client| client.line().len() as u64 > size - 1000));
}

/// "in which the client takes nothing of an answer": at a unix socket, too.
#[test]
fn client_that_never_reads_its_listing_is_given_up() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let _holders = fill(&server, 4);
    let mut deaf = server.unix();
    assert_eq!(deaf.ask("LOCK k"), "ok");
    deaf.say("INSPECT");
    deaf.until_readable();
    let asked = Instant::now();
    wait_until("the server gives the lock back", || lab.counts("k") == (0, 0));
    assert!(asked.elapsed() > Duration::from_secs(20), "{:?}", asked.elapsed());
    assert!(!matches!(server.unix().next_within(Duration::ZERO), Next::End));
}
