//! Standbys: what `--replicas` asks of them, and what they know when they are promoted.

use std::net::TcpListener;

use rustix::process::Signal;

use rlock_testkit::needs::skip_unless;
use rlock_testkit::servers::postgres::Postgres;
use rlock_testkit::{Lab, wait_until};

#[test]
fn grant_without_its_copies_is_given_back() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    let run = |replicas: &str| lab.run(["exec", "--replicas", replicas, "k", "--", "true"]);
    let lacks = |replicas: &str, words: &str| {
        let ran = run(replicas);
        assert!(ran.failed(69).contains(words), "{replicas}: {ran:?}");
        lab.assert_idle();
    };
    lacks("1", "0 of 1 synchronous standbys have the lock, so it was given back");
    lacks("0+disk", "the disk of the server need not have the lock, so it was given back");
    let _standby = server.synchronous_standby();
    run("1").silently(0);
    lacks("2", "1 of 2 synchronous standbys have the lock, so it was given back");
    lacks("1+disk", "the disk of the server need not have the lock, so it was given back");
}

/// The server holds the commit back without a word until the standby is there again.
#[test]
fn request_whose_standby_is_away_says_where_to_look() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let standby = server.synchronous_standby();
    let lab = Lab::at(server.url());
    lab.run(["exec", "--replicas", "1", "k", "--", "true"]).silently(0);
    standby.signal_all(Signal::STOP);
    let ran = lab.run(["exec", "--connect-timeout", "1s", "--replicas", "1", "k", "--", "true"]);
    standby.signal_all(Signal::CONT);
    assert!(ran.failed(69).ends_with(", or waits for a synchronous standby"), "{ran:?}");
    lab.run(["exec", "--replicas", "1", "other", "--", "true"]).silently(0);
}

/// A waiter is granted by the transaction of another client, and claims with its copies.
#[test]
fn waiter_asks_for_copies_once_it_is_granted() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    let holder = lab.hold("k");
    let waiter = lab.wait_by(["exec", "--replicas", "1", "k"]);
    lab.until_waiting("k", 1);
    holder.end().silently(0);
    assert!(waiter.end().failed(69).contains("0 of 1 synchronous standbys"));
    lab.assert_idle();
}

/// "Of several hosts, rlock takes the one that takes writes."
#[test]
fn standby_among_the_hosts_is_passed_over() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let standby = server.synchronous_standby();
    for url in [standby.url_with(&server), server.url_with(&standby)] {
        let lab = Lab::at(url);
        lab.run(["exec", "k", "--", "true"]).silently(0);
        assert_eq!(lab.counts("k"), (0, 0));
    }
    let line = Lab::at(standby.url()).run(["exec", "k", "--", "true"]);
    assert!(line.failed(69).contains("takes no writes"), "{line:?}");
}

/// As a machine whose power is off, or a port that another program has.
#[test]
fn host_that_does_not_answer_is_passed_over() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start_on_tcp(&[]);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let silent = silent.local_addr().expect("it has an address");
    let url = server.tcp_url().replace("127.0.0.1:", &format!("{silent},127.0.0.1:"));
    for url in [url.clone(), format!("{url}?connect_timeout=2")] {
        let lab = Lab::at(url);
        for words in [&["exec", "k", "--", "true"][..], &["held", "k"], &["doctor"]] {
            let said = lab.run(words);
            assert!([0, 1].contains(&said.code().unwrap()), "{words:?}: {said:?}");
        }
    }
}

/// Or where writes are off by default, as some services have it when the disk is full.
#[test]
fn waiter_at_a_server_that_takes_no_writes_waits_until_it_does() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let lab = Lab::at(server.url());
    let holder = lab.hold("k");
    let mut waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    server.ask("alter system set default_transaction_read_only = on");
    server.ask("select pg_reload_conf()");
    wait_until("the server takes no writes", || server.ask("show default_transaction_read_only") == "on");
    lab.run(["exec", "-q", "--connect-timeout", "1s", "x", "--", "true"]).failed(69);
    assert!(waiter.runs());
    server.ask("alter system set default_transaction_read_only = off");
    server.ask("select pg_reload_conf()");
    holder.end().silently(0);
    waiter.expect_held();
    waiter.end().silently(0);
    lab.assert_idle();
}

#[test]
fn synchronous_standby_that_is_promoted_knows_every_grant() {
    skip_unless!(Postgres::is_present());
    let server = Postgres::start(&[]);
    let standby = server.synchronous_standby();
    let lab = Lab::at(server.url_with(&standby));
    let holder = lab.hold_by(["exec", "--replicas", "1", "k"]);
    let mut waiter = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    server.signal(Signal::QUIT);
    standby.promote();
    let other = Lab::at(standby.url()).with("RLOCK_NAMESPACE", lab.namespace());
    other.run(["exec", "-nq", "k", "--", "true"]).silently(75);
    wait_until("the waiter is back in the queue", || other.counts("k") == (1, 1));
    holder.end().silently(0);
    waiter.expect_held();
    waiter.end().silently(0);
    other.assert_idle();
}
