//! pgbouncer in transaction mode, where each transaction may be on another backend.

use std::time::Duration;

use rlock_testkit::needs::skip_unless;
use rlock_testkit::servers::postgres::{Bouncer, Postgres, Splitter};
use rlock_testkit::{Lab, wait_until, wait_within};

/// "Behind a pooler in transaction mode everything works."
#[test]
fn queue_behind_a_pooler_is_served_in_order() {
    skip_unless!(Bouncer::is_present());
    let server = Postgres::start(&["max_connections=20"]);
    let bouncer = Bouncer::before(&server, 2);
    let lab = Lab::at(bouncer.url());
    lab.assert_quiet();
    let holder = lab.hold("k");
    let mut waiters: Vec<_> = (1..=4)
        .map(|count| {
            let waiter = lab.wait_by(["exec", "k"]);
            lab.until_waiting("k", count);
            waiter
        })
        .collect();
    holder.end().silently(0);
    for waiter in &mut waiters {
        waiter.expect_held();
        waiter.close();
    }
    waiters.into_iter().for_each(|waiter| waiter.end().silently(0));
    lab.assert_idle();
}

/// "All that were killed in a row cost 5 seconds together", which were 3 seconds for each.
#[test]
fn killed_waiters_behind_a_pooler_are_passed_over_together() {
    skip_unless!(Bouncer::is_present());
    let server = Postgres::start(&[]);
    let bouncer = Bouncer::before(&server, 3);
    let lab = Lab::at(bouncer.url());
    let holder = lab.hold("k");
    let dead: Vec<_> = (1..=6)
        .map(|count| {
            let waiter = lab.wait_by(["exec", "k"]);
            lab.until_waiting("k", count);
            waiter
        })
        .collect();
    let mut next = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 7);
    dead.into_iter().for_each(|waiter| drop(waiter.kill()));
    holder.end().silently(0);
    wait_within(Duration::from_secs(10), "the seventh is granted", || lab.counts("k") == (1, 0));
    next.expect_held();
    next.end().silently(0);
}

/// A holder finds the new one before its lease ends, and a waiter keeps its place.
#[test]
fn killed_pooler_that_comes_back_costs_nobody_anything() {
    skip_unless!(Bouncer::is_present());
    let server = Postgres::start(&[]);
    let mut bouncer = Bouncer::before(&server, 2);
    let lab = Lab::at(bouncer.url());
    let holder = lab.hold_by(["exec", "--ttl", "6s", "k"]);
    let mut first = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 1);
    let mut second = lab.wait_by(["exec", "k"]);
    lab.until_waiting("k", 2);
    bouncer.restart();
    holder.end().silently(0);
    first.expect_held();
    assert!(second.runs());
    first.end().silently(0);
    second.expect_held();
    second.end().silently(0);
    lab.assert_idle();
}

/// "A pooler is found before LISTEN, which would stick to a foreign backend."
#[test]
fn waiter_behind_a_pooler_is_known_by_no_backend() {
    skip_unless!(Bouncer::is_present());
    let server = Postgres::start(&[]);
    let bouncer = Bouncer::before(&server, 2);
    server.ask("alter system set log_statement = 'all'");
    server.ask("select pg_reload_conf()");
    let recorded = "select count(*) from rlock.records where pid is not null";
    for (lab, is_pooled) in [(Lab::at(bouncer.url()), true), (Lab::at(server.url()), false)] {
        let holder = lab.hold("k");
        let mut waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        if is_pooled {
            holder.end().silently(0);
            waiter.expect_held();
            assert_eq!(server.ask(recorded), "0");
            assert!(!server.log().contains("; LISTEN "));
        } else {
            wait_until("the waiter is known by its backend", || server.ask(recorded) != "0");
            assert!(server.log().contains("; LISTEN "));
            holder.end().silently(0);
            waiter.expect_held();
        }
        waiter.end().silently(0);
    }
}

/// "rlock exits with 69 at once and names the mode": each statement would be a transaction.
#[test]
fn pooler_in_statement_mode_is_refused_by_its_name() {
    skip_unless!(Bouncer::is_present());
    let server = Postgres::start(&[]);
    let bouncer = Bouncer::in_mode("statement", &server, 2);
    let lab = Lab::at(bouncer.url());
    let said = lab.run(["exec", "-w", "100s", "k", "--", "true"]);
    assert!(said.failed(69).contains("is behind pgbouncer in statement mode"), "{said:?}");
}

/// "What decides is read by the server that has the lock": the standby knows nothing of the grant.
#[test]
fn proxy_that_sends_reads_to_a_standby_lets_no_two_commands_run() {
    skip_unless!(Splitter::is_present());
    let server = Postgres::start(&[]);
    let standby = server.synchronous_standby();
    let lab = Lab::at(server.url());
    lab.run(["exec", "k", "--", "true"]).silently(0);
    let end = server.ask("select pg_current_wal_lsn()");
    wait_until("the standby has the tables", || {
        standby.ask(&format!("select pg_last_wal_replay_lsn() >= '{end}'")) == "t"
    });
    standby.ask("select pg_wal_replay_pause()");
    for splits in ["off", "dml_adaptive", "transaction"] {
        let pool = Splitter::before(&server, &standby, splits);
        let pooled = Lab::at(pool.url()).with("RLOCK_NAMESPACE", lab.namespace());
        let holder = pooled.hold("k");
        let mut waiter = pooled.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        pooled.run(["exec", "-n", "k", "--", "true"]).busy();
        assert_eq!(pooled.counts("k"), (1, 1), "{splits}");
        holder.end().silently(0);
        waiter.expect_held();
        waiter.end().silently(0);
        let said = pooled.run(["doctor"]);
        assert!(said.stdout.contains("handed over"), "{splits}: {said:?}");
    }
}
