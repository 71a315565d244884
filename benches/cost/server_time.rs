//! How long the scripts take a server, on each server that the tests use.
//!
//! A server serves nobody else while a script runs, so this time decides how many locks it can
//! carry.

use std::collections::VecDeque;
use std::env;
use std::time::Duration;

use redis::Connection;
use rlock_model::mode::Mode;
use rlock_model::request::SessionId;
use rlock_redis::codec::{Call, ScriptReply};

use super::aims::{Aim, Bound};
use super::candidate::Candidate;
use super::lab::Lab;
use super::options::Effort;
use super::peers;
use super::rate::{Make, rate};
use super::scripts::{self, Client};
use super::server::{Counts, Redis};
use super::table::{Findings, Row, Spread, Table};
use super::wrappers;

/// The variables that name the servers, as for the tests, and the servers.
const SERVERS: [(&str, &str); 4] = [
    ("RLOCK_REDIS_6", "Redis 6.2"),
    ("RLOCK_REDIS_7", "Redis 7.0"),
    ("RLOCK_REDIS_8", "Redis 8.2"),
    ("RLOCK_VALKEY_9", "Valkey 9.1"),
];

/// The number of resources, each of which is used once for a reading of the counters.
const TOGETHER: u32 = 200;
/// The number of waiters for each resource when a release grants.
const WAITERS: usize = 10;

/// The scripts that are measured, with their aims in microseconds.
const SCRIPTS: [(&str, Option<f64>); 6] = [
    ("acquire a free resource", Some(25.0)),
    ("renew its sole holder", Some(12.0)),
    ("release it", Some(25.0)),
    ("renew a holder before 10 waiters", None),
    ("release that grants to the first of 10", None),
    ("claim of that grant", None),
];

const OWN: &str = "rlock";
const NAIVE: &str = "SET NX PX, compare and delete";
const REDISSON: &str = "Redisson, write";

/// The locks that many connections take.
const LOCKS: [(&str, Make); 3] = [
    (NAIVE, |client, lock, _| peers::set_nx(client, lock)),
    (REDISSON, |client, lock, _| peers::redisson(client, lock, true)),
    (OWN, |_, lock, number| scripts::whole(lock, number as u128, Mode::Write)),
];

/// The number of those connections.
const CONNECTIONS: usize = 16;

/// Measures each server: the scripts in a tight loop, the locks of one process after another, and
/// the locks of many connections.
pub(crate) fn measure(lab: &Lab, effort: Effort) -> Findings {
    let named = SERVERS.into_iter().filter_map(|(variable, name)| Some((env::var(variable).ok()?, name)));
    let started = named.filter_map(|(program, name)| Some((Redis::start(&program, lab.folder()).ok()?, name)));
    let servers: Vec<(Redis, &str)> = started.collect();
    let names: Vec<String> = servers.iter().map(|(_, name)| (*name).to_owned()).collect();
    let servers: Vec<&Redis> = servers.iter().map(|(redis, _)| redis).collect();
    if servers.is_empty() {
        return Findings::default();
    }
    let loops = in_a_loop(&servers, &names, effort.pick(10, 40));
    let processes = one_after_another(lab, &servers, &names, effort.pick(60, 200));
    let rates = of_many_connections(&servers, &names, effort.pick(3, 10));
    let mut aims = Vec::new();
    for (column, name) in names.iter().enumerate() {
        for (script, bound) in SCRIPTS {
            let (what, figure) = (format!("{name}: {script}"), loops.median(script, column));
            aims.extend(bound.map(|bound| Aim { what, bound: Bound::AtMost(bound), figure, unit: "µs" }));
        }
        let what = format!("{name}: a lock for a process, of {NAIVE}");
        aims.push(Aim::times(what, Bound::AtMost(3.0), processes.ratio(OWN, NAIVE, column)));
        for (other, bound) in [(NAIVE, 0.5), (REDISSON, 0.75)] {
            let what = format!("{name}: {CONNECTIONS} connections, of {other}");
            aims.push(Aim::times(what, Bound::AtLeast(bound), rates.ratio(OWN, other, column)));
        }
    }
    Findings { tables: vec![loops, processes, rates], aims }
}

/// The time of each script in a tight loop.
fn in_a_loop(servers: &[&Redis], names: &[String], rounds: usize) -> Table {
    let mut found = vec![vec![Vec::new(); servers.len()]; SCRIPTS.len()];
    for (column, redis) in servers.iter().enumerate() {
        let (mut client, mut listener) = (redis.client(), redis.client());
        let mut note = |script: usize, spent: f64| found[script][column].push(spent);
        let mut resources: Vec<Client> = (0..TOGETHER).map(|n| Client::new(&format!("r{n}"), n.into())).collect();
        // The server has to know the scripts and the resources.
        for resource in &mut resources {
            let (id, ask) = resource.ask_for_all();
            for call in [ask, resource.renew(id), resource.end(id)] {
                resource.ask(&mut client, &call);
            }
        }
        for _ in 0..rounds {
            let (held, asks): (Vec<_>, Vec<_>) = resources.iter_mut().map(Client::ask_for_all).unzip();
            note(0, granted(&mut client, &asks));
            note(1, granted(&mut client, &calls(&resources, &held, Client::renew)));
            note(2, released(&mut client, &calls(&resources, &held, Client::end)));
        }
        let mut listener = listener.as_pubsub();
        let mut newcomer = redis.client();
        let mut join = |resource: &mut Client| {
            let (id, ask) = resource.ask_for_all();
            listener.subscribe(resource.channel(id)).expect("the server answers");
            resource.ask(&mut newcomer, &ask);
            id
        };
        // The sessions of a queue are those of one place, for all resources; the first one holds.
        let mut queues: VecDeque<Vec<SessionId>> =
            (0..=WAITERS).map(|_| resources.iter_mut().map(&mut join).collect()).collect();
        for _ in 0..rounds {
            let held = queues.pop_front().expect("there are waiters");
            note(3, granted(&mut client, &calls(&resources, &held, Client::renew)));
            note(4, released(&mut client, &calls(&resources, &held, Client::end)));
            note(5, granted(&mut client, &calls(&resources, &queues[0], Client::renew)));
            queues.push_back(resources.iter_mut().map(&mut join).collect());
        }
    }
    let rows = SCRIPTS.iter().zip(found).map(|((script, _), values)| row(script, values));
    Table {
        title: "The server's time for a script",
        unit: "µs",
        about: format!(
            "By INFO commandstats, for {TOGETHER} calls in one go on as many resources, {rounds} times. The history has its \
             usual length."
        ),
        columns: names.to_vec(),
        against: None,
        rows: rows.collect(),
        drawn: true,
    }
}

/// The time of a lock that a process takes and releases, when other processes have had the caches
/// before.
fn one_after_another(lab: &Lab, servers: &[&Redis], names: &[String], rounds: usize) -> Table {
    let mut found = vec![vec![Vec::new(); servers.len()]; 2];
    for (column, redis) in servers.iter().enumerate() {
        let mut counters = redis.client();
        let wrapped = Candidate::redis_tcp(&lab.rlock, redis);
        let script = peers::load_compare_and_delete(&mut counters);
        let mut naive = wrappers::naive(&redis.tcp(), &script, &["true"]);
        for round in 0..=rounds {
            let before = Counts::of(&mut counters);
            let status = wrapped.run(&["true"]).status().expect("rlock can be started");
            assert!(status.success(), "rlock fails");
            let own = Counts::of(&mut counters).since(&before).usec(&Client::COMMANDS);
            let before = Counts::of(&mut counters);
            let status = naive.status().expect("the bench can be started");
            assert!(status.success(), "the naive wrapper fails");
            let spent = Counts::of(&mut counters).since(&before).usec(&["set", "evalsha"]);
            if round > 0 {
                found[0][column].push(spent);
                found[1][column].push(own);
            }
        }
    }
    Table {
        title: "The server's time for a lock of a short process",
        unit: "µs",
        about: format!(
            "`true` under a lock of its own process, by rlock and by a naive wrapper, {rounds} times in turn: the caches of \
             the processor are cold. Acquire and release together, by INFO commandstats."
        ),
        columns: names.to_vec(),
        against: Some(NAIVE),
        rows: [NAIVE, OWN].into_iter().zip(found).map(|(name, values)| row(name, values)).collect(),
        drawn: false,
    }
}

/// The rate of many connections.
fn of_many_connections(servers: &[&Redis], names: &[String], rounds: usize) -> Table {
    const LENGTH: Duration = Duration::from_millis(300);
    let mut found = vec![vec![Vec::new(); servers.len()]; LOCKS.len()];
    for (column, redis) in servers.iter().enumerate() {
        for _ in 0..rounds {
            for ((_, make), values) in LOCKS.iter().zip(&mut found) {
                values[column].push(rate(redis, *make, CONNECTIONS, LENGTH));
            }
        }
    }
    Table {
        title: "Rate of 16 connections",
        unit: "pairs/s",
        about: format!("As in the section on the rate, {rounds} times {} ms in turn.", LENGTH.as_millis()),
        columns: names.to_vec(),
        against: Some(NAIVE),
        rows: LOCKS.iter().zip(found).map(|((name, _), values)| row(name, values)).collect(),
        drawn: false,
    }
}

/// One call for each resource, about the session that it has in `sessions`.
fn calls(resources: &[Client], sessions: &[SessionId], call: fn(&Client, SessionId) -> Call) -> Vec<Call> {
    resources.iter().zip(sessions).map(|(resource, id)| call(resource, *id)).collect()
}

/// The server's microseconds for each of these calls, which grant or renew.
fn granted(client: &mut Connection, calls: &[Call]) -> f64 {
    timed(client, calls, |reply| matches!(reply, ScriptReply::Granted { .. }))
}

/// The server's microseconds for each of these calls, which release.
fn released(client: &mut Connection, calls: &[Call]) -> f64 {
    timed(client, calls, |reply| matches!(reply, ScriptReply::Released(_)))
}

fn timed(client: &mut Connection, calls: &[Call], is_expected: impl Fn(&ScriptReply) -> bool) -> f64 {
    let before = Counts::of(client);
    let replies = scripts::ask_together(client, calls);
    let spent = Counts::of(client).since(&before).usec(&Client::COMMANDS);
    assert!(replies.iter().all(is_expected), "a hold was lost: {replies:?}");
    spent / calls.len() as f64
}

fn row(name: &str, values: Vec<Vec<f64>>) -> Row {
    Row { name: name.to_owned(), cells: values.into_iter().map(Spread::of).collect() }
}
