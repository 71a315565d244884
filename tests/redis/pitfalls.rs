//! Failures that other lock libraries are known for. Each test states one failure and proves that
//! rlock does not have it.
//!
//! Other failures are covered by `leases`, `kinds`, `cluster`, `acl` and `inspect_cleanup`, by the
//! stories, by the histories in tests/differential, and by tests/signals.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::world::{Stubborn, each, expiry, keys, on_each, shell};
use rlock_testkit::servers::proxy::Proxy;
use rlock_testkit::servers::{Kind, Server, Setup};
use rlock_testkit::{Lab, RLOCK, Running, wait_until};

/// Returns a lab behind the proxy and a direct one, both in the same namespace.
fn behind(proxy: &Proxy, server: &Server) -> (Lab, Lab) {
    let far = Lab::at(proxy.url());
    let near = Lab::at(server.url()).with("RLOCK_NAMESPACE", far.namespace());
    (far, near)
}

/// A proxy loses each request of a run in turn, or the reply after the server executed the request.
/// The command still runs exactly once.
#[test]
fn lost_request_or_reply_leads_to_one_execution() {
    each(|kind| {
        std::thread::scope(|scope| {
            for lose in [Proxy::lose_reply, Proxy::lose_request] {
                scope.spawn(move || {
                    let server = Server::start(kind);
                    // Each request is lost in a run of its own, until the run has no more requests.
                    (1..).find(|request| lose_one(&server, lose, *request));
                });
            }
        });
    });
}

/// Loses one request. Returns whether the run had fewer requests than that.
fn lose_one(server: &Server, lose: fn(&Proxy, u64), request: u64) -> bool {
    let kind = server.kind();
    let proxy = Proxy::new(server);
    let (far, near) = behind(&proxy, server);
    lose(&proxy, request);
    let holder = near.hold("k");
    let ran = far.folder().join("ran");
    let script = format!(
        "echo x >> '{}'; '{RLOCK}' downgrade read --store '{}'; echo held; exec cat >/dev/null",
        ran.display(),
        server.url()
    );
    let mut waiter = shell(&far, &["exec", "k", "--ttl", "4s", "--grace", "100ms"], &script);
    near.until_waiting("k", 1);
    holder.end().silently(0);
    waiter.expect_held();
    assert_eq!(near.counts("k"), (1, 0));
    // A renewal passes the proxy.
    let before = proxy.requests();
    wait_until("the lease is renewed", || proxy.requests() > before);
    let ended = waiter.end();
    assert_eq!(ended.code(), Some(0), "{kind:?}, request {request}: {ended:?}");
    assert_eq!(std::fs::read_to_string(&ran).unwrap_or_default(), "x\n", "{kind:?}, request {request}");
    wait_until("no session holds or waits", || near.counts("k") == (0, 0));
    proxy.requests() < request
}

/// The command gets its slots and the end of the last hold even if a reply that tells them is lost.
#[test]
fn lost_reply_does_not_hide_slots_and_last_hold() {
    each(|kind| {
        let server = Server::start(kind);
        for slots in [&["{k}a=2"][..], &["{k}a=2", "{k}b=2"]] {
            let claims: Vec<&str> = slots.iter().flat_map(|slot| ["--slot", slot]).collect();
            let run =
                |lab: &Lab| lab.run([&["exec"], &claims[..], &["-c", "echo $RLOCK_SLOT $RLOCK_LAST; exit 3"]].concat());
            let lose = |request: u64| {
                let proxy = Proxy::new(&server);
                let (far, near) = behind(&proxy, &server);
                assert_eq!(run(&near).code(), Some(3));
                proxy.lose_reply(request);
                let ran = run(&far);
                // A request for several resources has no RLOCK_LAST.
                let expected = if slots.len() == 1 { "0 exit 3\n" } else { "0 0\n" };
                assert_eq!((ran.code(), ran.stdout.as_str()), (Some(3), expected), "{kind:?}, {request}: {ran:?}");
                proxy.requests() < request
            };
            (1..).find(|request| lose(*request));
        }
    });
}

/// SIGINT may reach a waiter at any moment of its request. No trace of the request stays on the
/// server.
#[test]
fn request_interrupted_at_any_moment_leaves_no_trace() {
    on_each(|lab| {
        let holder = lab.hold("k");
        for round in 0..30 {
            let waiter = lab.wait_by(["exec", "k"]);
            std::thread::sleep(Duration::from_millis(round));
            waiter.signal(Signal::INT);
            assert_eq!(waiter.end().status.code().unwrap_or(130), 130, "round {round}");
        }
        // The last waiters may have ended before the server executed their cancellation.
        wait_until("no session waits", || lab.counts("k") == (1, 0));
        holder.end().silently(0);
        lab.assert_idle();
    });
}

/// Each holder renews its own lease only. The grant of a killed reader ends with its lease while
/// another reader renews. A writer gets the lock when that reader leaves.
#[test]
fn living_reader_does_not_renew_the_lease_of_a_dead_reader() {
    on_each(|lab| {
        let short = ["exec", "--read", "k", "--ttl", "4s", "--grace", "100ms"];
        let (dead, mut alive) = (lab.hold_by(short), lab.hold_by(short));
        dead.kill();
        wait_until("the lease of the dead reader ends", || {
            lab.run(["cleanup"]);
            lab.counts("k") == (1, 0)
        });
        assert!(alive.runs());
        let mut writer = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        alive.end().silently(0);
        writer.expect_held();
        writer.end().silently(0);
        lab.assert_idle();
    });
}

/// One resource is held by five nested sessions with ttls of different lengths. Each session renews
/// its own lease.
#[test]
fn nested_sessions_keep_their_own_leases() {
    on_each(|lab| {
        let ttls = ["60s", "4s", "40s", "4s", "20s"];
        let mut script = "echo held; exec cat >/dev/null".to_owned();
        for ttl in ttls.iter().skip(1).rev() {
            script = format!(
                "exec '{RLOCK}' exec k --ttl {ttl} --grace 300ms -c \"$(cat <<'{ttl}{0}'\n{script}\n{ttl}{0}\n)\"",
                script.len()
            );
        }
        let mut holder = shell(&lab, &["exec", "k", "--ttl", ttls[0], "--grace", "300ms"], &script);
        holder.expect_held();
        let left = || {
            let found = lab.inspect(["k"])["resources"][0]["holders"].clone();
            let left = found.as_array().expect("a list").iter();
            let mut left: Vec<_> = left.map(|hold| hold["expires_in_ms"].as_u64().expect("a lease")).collect();
            left.sort_unstable();
            left
        };
        // This takes longer than the short leases.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(6) {
            let left = left();
            assert_eq!(left.len(), 5, "{left:?}");
            assert!(left[1] <= 4000 && left[2] > 5000 && left[2] <= 20_000, "{left:?}");
            assert!(left[3] > 20_000 && left[3] <= 40_000 && left[4] > 40_000 && left[4] <= 60_000, "{left:?}");
        }
        holder.end().silently(0);
        lab.assert_idle();
    });
}

/// The deadline counts from the instant at which the renewal was sent. A late reply does not move
/// it.
#[test]
fn late_reply_does_not_lengthen_the_lease() {
    each(|kind| {
        let server = Server::start(kind);
        let proxy = Proxy::new(&server);
        proxy.delay(Duration::from_secs(2));
        // This loads the scripts into the server, since the client first calls each script by its
        // hash.
        Lab::at(server.url()).run(["exec", "k", "--", "true"]).silently(0);
        // The proxy passes the first request, which is granted, and no renewal.
        proxy.hold_at(2);
        let far = Lab::at(proxy.url());
        let mut holder = Stubborn::start(&far, &["exec", "k", "--ttl", "6s", "--grace", "1s"]);
        let end = expiry(&server, &far, "k").expect("a lease");
        let gone = holder.gone();
        assert!(gone < end, "{kind:?}: the command lived {} µs longer than its lease", gone - end);
        wait_until("rlock ends", || !holder.rlock.runs());
        assert_eq!(holder.rlock.end().code(), Some(76));
    });
}

/// A request holds five resources, and the server loses the keys of one: of a resource that nobody
/// else wants, or of the one with a waiter. The release frees the other four, and the waiter gets
/// its lock.
#[test]
fn release_after_a_lost_key_frees_the_other_resources() {
    for (lost, count) in [("%7Db:", 1), ("%7De:", 7)] {
        each(|kind| release_after_losing(kind, lost, count));
    }
}

fn release_after_losing(kind: Kind, lost: &str, count: u32) {
    let server = Server::start(kind);
    let lab = Lab::at(server.url());
    let names = ["{k}a", "{k}b", "{k}c", "{k}d", "{k}e"];
    let claims = names.map(|name| ["--write", name]).concat();
    let holder = lab.hold_by([&["exec"], &claims[..]].concat());
    let mut next = lab.wait_by(["exec", "{k}e"]);
    lab.until_waiting("{k}e", 1);
    let lost = keys(&server, lab.namespace()).into_iter().filter(|key| key.contains(lost));
    // A waiter that looks for a deadlock after a second leaves more of them.
    assert!(lost.map(|key| server.ask::<u32>(&["DEL", &key])).sum::<u32>() >= count, "{kind:?}");
    assert!(holder.end().failed(76).starts_with("lost: "), "{kind:?}");
    next.expect_held();
    next.end().silently(0);
    assert!(names.iter().all(|name| lab.counts(name) == (0, 0)), "{kind:?}");
    lab.run([&["exec", "-nq"], &claims[..], &["--", "true"]].concat()).silently(0);
}

/// Waiters time out at arbitrary moments. They leave no key behind and no wake-up is lost.
#[test]
fn waiters_that_time_out_leave_no_keys() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let holder = lab.hold("k");
        for round in 0..5 {
            let wait = |n: u64| format!("{}ms", 1 + (round * 7 + n * 13) % 60);
            let waiters: Vec<_> =
                (0..6).map(|n| Running::start(&mut lab.rlock(["exec", "-qw", &wait(n), "k", "--", "true"]))).collect();
            waiters.into_iter().for_each(|waiter| waiter.end().silently(75));
        }
        wait_until("waiters that ended without a word are dropped", || {
            lab.run(["cleanup"]);
            lab.counts("k") == (1, 0)
        });
        holder.end().silently(0);
        assert_eq!(
            keys(&server, lab.namespace()),
            ["h", "s"].map(|key| format!("{}:{{k}}:{key}", lab.namespace())),
            "{kind:?}"
        );
    });
}

/// A waiter is granted its request after it was queued and before it subscribed. The waiter notices
/// the grant without a message.
#[test]
fn grant_before_the_subscription_is_noticed() {
    each(|kind| {
        let server = Server::start(kind);
        let proxy = Proxy::new(&server);
        let (far, near) = behind(&proxy, &server);
        let holder = near.hold("k");
        // The first request is the one that is queued.
        proxy.hold_at(2);
        let mut waiter = far.wait_by(["exec", "k"]);
        proxy.until_held();
        assert_eq!(near.counts("k"), (1, 1), "{kind:?}");
        holder.end().silently(0);
        proxy.pass();
        waiter.expect_held();
        waiter.end().silently(0);
        near.assert_idle();
    });
}

/// CLIENT KILL closes all connections again and again. Every waiter still gets its turn.
#[test]
fn waiters_get_their_turn_while_all_connections_are_killed() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let holder = lab.hold_by(["exec", "k", "--ttl", "6s", "--grace", "1s"]);
        let waiters: Vec<_> = (1..=4)
            .map(|place| {
                let waiter = Running::start(&mut lab.rlock(["exec", "k", "--", "echo", "held"]));
                lab.until_waiting("k", place);
                waiter
            })
            .collect();
        let mut client = server.client();
        let mut kill = || {
            for kind in ["pubsub", "normal"] {
                let words = ["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"];
                rlock_testkit::servers::ask::<u32>(&mut client, &words);
            }
        };
        for _ in 0..20 {
            kill();
            std::thread::sleep(Duration::from_millis(50));
        }
        holder.end().silently(0);
        // The order may differ: a waiter without a connection at that moment is skipped and queued
        // again.
        for waiter in waiters {
            kill();
            waiter.end().printed("held\n");
        }
        lab.assert_idle();
    });
}

/// A writer lowers its mode to read, and three waiting readers start at once.
#[test]
fn downgrade_to_read_wakes_all_waiting_readers() {
    on_each(|lab| {
        let script = format!("echo held; read line; '{RLOCK}' downgrade read; exec cat >/dev/null");
        let mut holder = shell(&lab, &["exec", "k", "--ttl", "10m"], &script);
        holder.expect_held();
        let mut readers = [1, 2, 3].map(|place| {
            let reader = lab.wait_by(["exec", "--read", "k"]);
            lab.until_waiting("k", place);
            reader
        });
        holder.write("\n");
        readers.iter_mut().for_each(Running::expect_held);
        assert_eq!(lab.counts("k"), (4, 0));
        readers.into_iter().for_each(|reader| reader.end().silently(0));
        holder.end().silently(0);
        lab.assert_idle();
    });
}

/// A holder is killed. When its lease ends, the first of 16 waiters starts and the others wait on.
#[test]
fn expired_lease_wakes_the_first_waiter_only() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let holder = lab.hold_by(["exec", "k", "--ttl", "5s", "--grace", "200ms"]);
        let mut first = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let others: Vec<_> = (0..15).map(|_| lab.wait_by(["exec", "k"])).collect();
        lab.until_waiting("k", 16);
        holder.kill();
        first.expect_held();
        assert_eq!(lab.counts("k"), (1, 15));
        drop(others);
        first.end();
    });
}

/// The first ten of 20 waiters are killed. The release itself grants the lock to the eleventh.
#[test]
fn release_skips_dead_waiters() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let listening = |count| server.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len() == count;
        let holder = lab.hold("k");
        let mut waiters: Vec<_> = (1..=20)
            .map(|place| {
                let waiter = lab.wait_by(["exec", "k"]);
                lab.until_waiting("k", place);
                waiter
            })
            .collect();
        let alive = waiters.split_off(10);
        wait_until("the holder listens as well", || listening(21));
        waiters.into_iter().for_each(|waiter| drop(waiter.kill()));
        wait_until("the server drops their subscriptions", || listening(11));
        holder.end().silently(0);
        // The release itself must skip the dead waiters, before their heartbeat leases end.
        let next = &lab.inspect(["k"])["resources"][0]["holders"][0]["pid"];
        assert_eq!(*next, alive[0].pid());
        for mut waiter in alive {
            waiter.expect_held();
            waiter.end().silently(0);
        }
        lab.assert_idle();
    });
}

/// A waiter waits for longer than its heartbeat lease, and keeps its place by renewals.
#[test]
fn waiter_that_renews_keeps_its_place_beyond_its_heartbeat_lease() {
    on_each(|lab| {
        let holder = lab.hold("k");
        // The heartbeat lease of these waiters is three seconds.
        let mut first = lab.wait_by(["exec", "k", "--ttl", "3s", "--grace", "500ms"]);
        lab.until_waiting("k", 1);
        let second = lab.wait_by(["exec", "k", "--ttl", "3s", "--grace", "500ms"]);
        lab.until_waiting("k", 2);
        let waiters = || lab.inspect(["k"])["resources"][0]["waiters"].clone();
        let (before, begin) = (waiters(), Instant::now());
        wait_until("the first heartbeat leases are over", || begin.elapsed() > Duration::from_secs(4));
        lab.run(["cleanup"]).printed("");
        assert_eq!(waiters(), before);
        holder.end().silently(0);
        first.expect_held();
        first.end().silently(0);
        second.end().printed("held\n");
        lab.assert_idle();
    });
}

/// "A `--no-wait` request obeys the same rule: it is busy, too, when an earlier waiter conflicts
/// with it."
#[test]
fn request_without_wait_does_not_overtake_a_waiter() {
    on_each(|lab| {
        let _reader = lab.hold_by(["exec", "--read", "k"]);
        let _writer = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        lab.run(["exec", "-nq", "--read", "k", "--", "true"]).silently(75);
    });
}

/// A downgraded grant is renewed like any other: it outlives two leases.
#[test]
fn downgraded_grant_is_renewed() {
    on_each(|lab| {
        let script = format!("'{RLOCK}' downgrade read; echo held; exec cat >/dev/null");
        let mut holder = shell(&lab, &["exec", "k", "--ttl", "3s", "--grace", "100ms"], &script);
        holder.expect_held();
        lab.run(["exec", "-qw", "7s", "k", "--", "true"]).silently(75);
        assert!(holder.runs());
        assert_eq!(lab.counts("k"), (1, 0));
        holder.end().silently(0);
        lab.assert_idle();
    });
}

/// A read inside the command of a read is granted ahead of the writer that waits in between.
#[test]
fn nested_read_passes_a_queued_writer() {
    on_each(|lab| {
        let script = format!("echo held; read line; '{RLOCK}' exec --read k -- echo in");
        let mut holder = shell(&lab, &["exec", "--read", "k"], &script);
        holder.expect_held();
        let writer = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        holder.write("\n");
        assert_eq!(holder.line(), "in");
        assert_eq!(holder.end().code(), Some(0));
        writer.end().printed("held\n");
        lab.assert_idle();
    });
}

/// SCRIPT FLUSH may come at any moment. After NOSCRIPT, the client sends the text of the script.
#[test]
fn script_flush_at_any_moment_does_no_harm() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let flush = || server.ask::<()>(&["SCRIPT", "FLUSH"]);
        let holder = lab.hold_by(["exec", "k", "--ttl", "4s", "--grace", "200ms"]);
        flush();
        let mut waiter = lab.wait_by(["exec", "k", "--ttl", "4s", "--grace", "200ms"]);
        lab.until_waiting("k", 1);
        for _ in 0..30 {
            flush();
            std::thread::sleep(Duration::from_millis(150));
        }
        holder.end().silently(0);
        flush();
        waiter.expect_held();
        flush();
        waiter.end().silently(0);
        lab.assert_idle();
    });
}

/// Renewal, release and cancellation work on a server at maxmemory.
#[test]
fn holds_are_renewed_and_released_at_maxmemory() {
    each(|kind| {
        let server = Setup::new(kind).options(&["--maxmemory-policy", "noeviction"]).start();
        let lab = Lab::at(server.url());
        let holder = lab.hold_by(["exec", "k", "--ttl", "4s", "--grace", "200ms"]);
        let first = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let mut second = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 2);
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        std::thread::sleep(Duration::from_secs(6));
        assert_eq!(lab.inspect(["k"])["resources"][0]["holders"][0]["pid"], holder.pid(), "{kind:?}");
        first.signal(Signal::TERM);
        assert_eq!(first.end().code(), Some(128 + 15), "{kind:?}");
        assert_eq!(lab.counts("k"), (1, 1), "{kind:?}");
        holder.end().silently(0);
        second.expect_held();
        second.end().silently(0);
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        lab.assert_idle();
    });
}

/// Keys of live sessions have no TTL, so volatile-lru evicts none of them.
#[test]
fn eviction_of_keys_with_a_ttl_takes_no_lock() {
    each(|kind| {
        let server = Setup::new(kind).options(&["--maxmemory-policy", "volatile-lru"]).start();
        let lab = Lab::at(server.url());
        let holder = lab.hold_by(["exec", "k", "--ttl", "4s", "--grace", "200ms"]);
        let before: u64 = used_memory(&server);
        let mut client = server.client();
        let mut fill = |from: u32, to: u32| {
            for n in from..to {
                let key = format!("volatile:{n}");
                let value = "x".repeat(1000);
                // The server refuses the SET when nothing is left to evict.
                let _ = redis::cmd("SET").arg(&[key.as_str(), &value, "EX", "1000"]).exec(&mut client);
            }
        };
        fill(0, 500);
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", &(before + 300_000).to_string()]);
        fill(500, 2000);
        assert!(evicted(&server) > 100, "{kind:?}");
        lab.run(["exec", "-qw", "5s", "k", "--", "true"]).silently(75);
        holder.end().silently(0);
        lab.assert_idle();
    });
}

fn used_memory(server: &Server) -> u64 {
    number(&server.ask::<String>(&["INFO", "memory"]), "used_memory:")
}

fn evicted(server: &Server) -> u64 {
    number(&server.ask::<String>(&["INFO", "stats"]), "evicted_keys:")
}

fn number(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("INFO has the line");
    line.parse().expect("the value is a number")
}

/// A master becomes a replica, for a moment or for good. The holder asks again for the state of its
/// request, and its command ends before the lease does.
#[test]
fn demoted_master_is_not_trusted() {
    each(|kind| {
        let (server, other) = (Server::on_tcp(kind), Server::on_tcp(kind));
        let lab = Lab::at(server.url());
        let mut holder = Stubborn::start(&lab, &["exec", "k", "--ttl", "6s", "--grace", "300ms"]);
        // A replica whose master does not exist keeps its data.
        let demote = || server.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        demote();
        std::thread::sleep(Duration::from_millis(1500));
        server.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
        lab.run(["exec", "-qw", "5s", "k", "--", "true"]).silently(75);
        assert!(holder.runs(), "{kind:?}");
        let end = expiry(&server, &lab, "k").expect("a lease");
        demote();
        let gone = holder.gone();
        let end = end.max(expiry(&server, &lab, "k").unwrap_or(0));
        assert!(gone < end, "{kind:?}: the command lived {} µs longer than its lease", gone - end);
        wait_until("rlock ends", || !holder.rlock.runs());
        assert_eq!(holder.rlock.end().code(), Some(76));
        drop(other);
    });
}

/// A nested grant has the token of the grant around it. After FLUSHALL the holder exits 76, and the
/// next token is higher.
#[test]
fn nested_token_is_equal_and_token_after_flushall_is_higher() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let script = format!("echo $RLOCK_TOKEN; '{RLOCK}' exec --read k -c 'echo $RLOCK_TOKEN'");
        let tokens = lab.run(["exec", "k", "-c", &script]).stdout;
        let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().expect("a token")).collect();
        assert_eq!((tokens.len(), tokens[0]), (2, tokens[1]), "{kind:?}");
        let mut last = tokens[0];
        for _ in 0..3 {
            let script = "echo $RLOCK_TOKEN; exec cat";
            let mut holder = shell(&lab, &["exec", "k", "--ttl", "4s", "--grace", "200ms"], script);
            let token: u64 = holder.line().parse().expect("a token");
            assert!(token > last, "{kind:?}: {token} after {last}");
            last = token;
            server.ask::<()>(&["FLUSHALL"]);
            wait_until("the holder notices the loss", || !holder.runs());
            let ran = holder.end();
            assert_eq!(ran.code(), Some(76), "{kind:?}: {ran:?}");
            assert!(ran.stderr.starts_with("rlock: lost: 'k'"), "{kind:?}: {ran:?}");
        }
    });
}
