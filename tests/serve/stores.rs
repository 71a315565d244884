//! Stores that are away, stopped, or replaced.

use std::net::TcpListener;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use rlock_testkit::needs;
use rlock_testkit::serve::LockServer;
use rlock_testkit::servers::cluster::Cluster;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, wait_until};

use crate::NONE;

#[test]
fn request_to_a_store_that_is_away_is_unavailable_and_a_later_one_is_granted() {
    needs::skip_unless!(Kind::Redis7.is_present());
    let mut redis = Server::start(Kind::Redis7);
    let lab = Lab::at(redis.unix_url());
    redis.kill();
    let server = LockServer::start(&lab, NONE);
    let mut client = server.tcp();
    let answer = client.ask("LOCK k");
    assert!(answer.starts_with("unavailable cannot lock 'k': "), "{answer}");
    assert_eq!(client.ask("PING"), "pong");
    redis.restart();
    assert_eq!(client.ask("LOCK k"), "ok");
}

/// "per request that ended": also of a client, whether it sends UNLOCK or goes away. A request that
/// leaves the queue has no entry.
#[test]
fn each_hold_of_a_client_is_in_the_history_once() {
    let check = |lab: &Lab| {
        let server = LockServer::start(lab, ["--history", "3"]);
        let outcomes = || {
            let ran = lab.run(["history", "k", "--json"]);
            let found: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
            let entries = found["resources"][0]["entries"].as_array().expect("a list").clone();
            entries.iter().map(|entry| entry["outcome"].as_str().expect("an outcome").to_owned()).collect::<Vec<_>>()
        };
        lab.run(["exec", "k", "-c", "exit 1"]).silently(1);
        let mut client = server.tcp();
        assert_eq!([client.ask("LOCK k"), client.ask("UNLOCK")], ["ok", "ok"]);
        assert_eq!(outcomes(), ["exit", "kept"]);
        assert_eq!(client.ask("LOCK k"), "ok");
        let mut waiter = server.tcp();
        waiter.say("LOCK k");
        lab.until_waiting("k", 1);
        drop(waiter);
        lab.until_waiting("k", 0);
        drop(client);
        wait_until("the server has given back the lock", || lab.counts("k") == (0, 0));
        assert_eq!(outcomes(), ["exit", "kept", "kept"]);
        assert!(server.tcp().ask("LOCK k") == "ok");
        wait_until("the oldest entry has gone", || outcomes() == ["kept"; 3]);
    };
    check(&Lab::new());
    if Kind::Redis7.is_present() {
        check(&Lab::on(Kind::Redis7));
        check(&Lab::at(Cluster::start(Kind::Redis7, 3).url()));
    }
}

#[test]
fn lock_whose_lease_cannot_be_renewed_is_lost_before_the_lease_ends() {
    needs::skip_unless!(Kind::Redis7.is_present());
    let redis = Server::start(Kind::Redis7);
    let lab = Lab::at(redis.unix_url());
    let server = LockServer::start(&lab, ["--ttl", "3s"]);
    let mut client = server.tcp();
    assert_eq!(client.ask("LOCK k"), "ok");
    redis.stop();
    let line = client.line();
    assert!(line.starts_with("lost the lease on 'k' was not renewed in time"), "{line}");
    client.expect_closed();
    redis.cont();
}

#[test]
fn stopped_store_does_not_keep_clients_from_their_answers() {
    needs::skip_unless!(Kind::Redis7.is_present());
    let redis = Server::start(Kind::Redis7);
    let lab = Lab::at(redis.unix_url());
    let server = LockServer::start(&lab, NONE);
    let (mut one, mut two) = (server.tcp(), server.tcp());
    assert_eq!(one.ask("LOCK k"), "ok");
    redis.stop();
    one.say("UNLOCK");
    assert_eq!(two.ask("PING"), "pong");
    assert_eq!(server.tcp().ask("PING"), "pong");
    redis.cont();
    assert_eq!(one.line(), "ok");
}

/// The nodes hold different keys, and only one of them is stopped.
#[test]
fn stopped_node_of_a_cluster_does_not_keep_clients_from_their_answers() {
    needs::skip_unless!(Kind::Redis7.is_present());
    let cluster = Cluster::start(Kind::Redis7, 3);
    let lab = Lab::at(cluster.url());
    let server = LockServer::start(&lab, ["--ttl", "60s"]);
    let mut clients: Vec<_> = (0..4).map(|_| server.tcp()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask(&format!("LOCK {{k}}{number}")), "ok");
    }
    let node = cluster.node(cluster.owner(cluster.slot("k")));
    node.stop();
    // Each release waits for the node, and no other client waits for a release.
    clients.iter_mut().for_each(|client| client.say("UNLOCK"));
    assert_eq!(server.tcp().ask("PING"), "pong");
    node.cont();
    clients.iter_mut().for_each(|client| assert_eq!(client.line(), "ok"));
}

/// Each request looks for a node that answers, and the first node of the URL never does.
#[test]
fn crowd_of_requests_passes_by_a_silent_node_of_a_cluster() {
    needs::skip_unless!(Kind::Redis7.is_present());
    let cluster = Cluster::start(Kind::Redis7, 3);
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = silent.local_addr().expect("the listener has an address").port();
    let url = cluster.url().replacen("redis+cluster://", &format!("redis+cluster://127.0.0.1:{port},"), 1);
    let lab = Lab::at(url);
    let server = LockServer::start(&lab, ["--ttl", "60s"]);
    let mut clients: Vec<_> = (0..150).map(|_| server.tcp()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.say(&format!("LOCK k{number}"));
    }
    assert_eq!(server.tcp().ask("PING"), "pong");
    clients.iter_mut().for_each(|client| assert_eq!(client.line(), "ok"));
}

#[test]
fn locked_embedded_table_does_not_keep_clients_from_their_answers() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let (mut one, mut two) = (server.tcp(), server.tcp());
    assert_eq!(one.ask("LOCK k"), "ok");
    let lock = std::fs::File::open(lab.directory().join("state/lock")).expect("the lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock");
    two.say("LOCK j");
    one.say("UNLOCK");
    assert_eq!(server.tcp().ask("PING"), "pong");
    drop(lock);
    assert_eq!(one.line(), "ok");
    assert_eq!(two.line(), "ok");
}

#[test]
fn drained_server_sleeps_until_the_store_takes_its_releases() {
    let lab = Lab::new();
    let mut server = LockServer::start(&lab, ["--grace", "100ms"]);
    let mut holder = server.tcp();
    assert_eq!(holder.ask("LOCK k"), "ok");
    let lock = std::fs::File::open(lab.directory().join("state/lock")).expect("the lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock");
    server.signal(Signal::TERM);
    assert_eq!(holder.line(), "lost the server ends and gives the lock back");
    holder.expect_closed();
    let before = processor_time(&server);
    // A server that does not sleep uses all of this time.
    std::thread::sleep(Duration::from_millis(400));
    let used = processor_time(&server) - before;
    assert!(used < Duration::from_millis(150), "{used:?}");
    drop(lock);
    assert_eq!(server.wait().code(), Some(0));
}

/// A server that ends says of no lock that it gave it back unless the store confirmed that.
#[test]
fn drained_server_without_its_store_does_not_claim_a_release() {
    needs::skip_unless!(Kind::Redis7.is_present());
    let mut redis = Server::start(Kind::Redis7);
    let lab = Lab::at(redis.unix_url());
    let mut server = LockServer::start(&lab, ["--ttl", "60s", "--grace", "100ms"]);
    let mut holder = server.unix();
    assert_eq!(holder.ask("LOCK k"), "ok");
    redis.kill();
    server.signal(Signal::TERM);
    assert_eq!(holder.line(), "lost the server ends and gives the lock back");
    assert_eq!(server.wait().code(), Some(0));
    wait_until("the server has told what is not sure", || {
        let says =
            |line: &String| line.contains("the release of 'k' is not confirmed, it may be held until its lease ends: ");
        server.log().iter().any(says)
    });
    assert!(!server.log().iter().any(|line| line.contains("unlocked")), "{:?}", server.log());
}

#[test]
fn unlock_while_somebody_keeps_the_table_locked_is_not_confirmed() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let mut client = server.tcp();
    assert_eq!(client.ask("LOCK k"), "ok");
    let lock = std::fs::File::open(lab.directory().join("state/lock")).expect("the lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock");
    let answer = client.ask("UNLOCK");
    let text = "unavailable the release of 'k' is not confirmed, it may be held until the server ends: ";
    assert!(answer.starts_with(text), "{answer}");
    drop(lock);
    wait_until("the server has given the lock back", || lab.counts("k") == (0, 0));
}

/// The processor time that a server has used.
fn processor_time(server: &LockServer) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("the server runs");
    let (_, fields) = stat.rsplit_once(')').expect("the name is in parentheses");
    let ticks = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number"));
    Duration::from_secs(ticks.sum()) / rustix::param::clock_ticks_per_second() as u32
}

/// The clients take all descriptors but those that the store needs to wake other processes.
#[test]
fn server_at_its_limit_of_open_files_wakes_the_next_holder() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let pid = Pid::from_raw(i32::try_from(server.pid()).expect("a pid is small"));
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).expect("the server runs");
    let mut holder = server.unix();
    assert_eq!(holder.ask("LOCK k"), "ok");
    let mut crowd: Vec<_> = (0..80).map(|_| server.unix()).collect();
    crowd.iter_mut().for_each(|client| client.say("PING"));
    wait_until("no more clients are accepted", || server.log().iter().any(|line| line.contains("cannot accept")));
    for _ in 0..5 {
        let mut next = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        assert_eq!(holder.ask("UNLOCK"), "ok");
        next.expect_held();
        next.end().silently(0);
        assert_eq!(holder.ask("LOCK k"), "ok");
    }
}

/// The server goes on, so nothing else would end the hold.
#[test]
fn release_that_the_embedded_store_could_not_make_is_tried_again() {
    let lab = Lab::new();
    let server = LockServer::start(&lab, NONE);
    let (mut other, mut client) = (server.tcp(), server.tcp());
    assert_eq!(other.ask("LOCK other"), "ok");
    assert_eq!(client.ask("LOCK k"), "ok");
    let mut next = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    // Without a free descriptor the server cannot look for the waiter. poll(2) takes no more
    // descriptors than the limit, and it still has to work.
    let pid = Pid::from_raw(i32::try_from(server.pid()).expect("a pid is small"));
    let usual = prlimit(pid, Resource::Nofile, Rlimit { current: Some(8), ..getrlimit(Resource::Nofile) })
        .expect("the server runs");
    let answer = client.ask("UNLOCK");
    assert!(answer.starts_with("unavailable the release of 'k' is not confirmed, "), "{answer}");
    prlimit(pid, Resource::Nofile, usual).expect("the server runs");
    next.expect_held();
    next.end().silently(0);
    assert_eq!(lab.counts("other"), (1, 0));
}
