//! What other lock libraries got wrong, by the numbers of the survey that the design was made from.
//!
//! Those that are not here: A4, A5, A9 to A11 and H in `leases` and in tests/signals.rs (A9 by
//! tests/differential.rs, where the time is an argument: no message of a client has one); A12, E5
//! and F6 don't apply; B4 and C6 in the benches; C5, D1, D2, E1 to E4 and F in the stories and in
//! tests/differential.rs; G1 and G2 in `cluster`; G6 in `acl`; G8 in `kinds`; G10 in
//! `inspect_cleanup`.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::servers::proxy::Proxy;
use crate::support::servers::{Server, Setup};
use crate::support::{Lab, RLOCK, Running, wait_until};
use crate::world::{Stubborn, each, expiry, keys, on_each, shell};

/// A lab behind a proxy, and one on the same namespace that sees the server itself.
fn behind(proxy: &Proxy, server: &Server) -> (Lab, Lab) {
    let far = Lab::at(proxy.url());
    let near = Lab::at(server.url()).with("RLOCK_NAMESPACE", far.namespace());
    (far, near)
}

/// A1: "proxy drops the reply after the server executed; …; state must equal one execution", for
/// each request of a run; and the same with requests that never arrive.
#[test]
fn a1_each_request_may_be_lost_or_its_reply() {
    each(|kind| {
        std::thread::scope(|scope| {
            for lose in [Proxy::lose_reply, Proxy::lose_request] {
                scope.spawn(move || {
                    let server = Server::start(kind);
                    // Each is lost in a run of its own, until there are no more.
                    (1..).find(|request| lost(&server, lose, *request));
                });
            }
        });
    });
}

/// Loses one; tells whether the run made fewer requests than that.
fn lost(server: &Server, lose: fn(&Proxy, u64), request: u64) -> bool {
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
    // A renewal comes by.
    let before = proxy.requests();
    wait_until("the lease is renewed", || proxy.requests() > before);
    let ended = waiter.end();
    assert_eq!(ended.code(), Some(0), "{kind:?}, request {request}: {ended:?}");
    assert_eq!(std::fs::read_to_string(&ran).unwrap_or_default(), "x\n", "{kind:?}, request {request}");
    wait_until("nobody holds or waits", || near.counts("k") == (0, 0));
    proxy.requests() < request
}

/// A3: "SIGINT at every await point in acquire; afterwards no id of this process in Redis"
#[test]
fn a3_an_interrupted_request_leaves_nothing() {
    on_each(|lab| {
        let holder = lab.hold("k");
        for round in 0..30 {
            let waiter = lab.wait_by(["exec", "k"]);
            std::thread::sleep(Duration::from_millis(round));
            waiter.signal(Signal::INT);
            assert_eq!(waiter.end().status.code().unwrap_or(130), 130, "round {round}");
        }
        // The last ones may have left without waiting for the server to hear of it.
        wait_until("nobody waits", || lab.counts("k") == (1, 0));
        holder.end().silently(0);
        lab.assert_idle();
    });
}

/// A6: "readers A,B; kill -9 A; B renews; A's record must vanish at its own lease and a writer
/// proceed when B leaves"
#[test]
fn a6_nobody_renews_for_the_dead() {
    on_each(|lab| {
        let short = ["exec", "--read", "k", "--ttl", "4s", "--grace", "100ms"];
        let (dead, mut alive) = (lab.hold_by(short), lab.hold_by(short));
        dead.kill();
        wait_until("the dead one's lease ends", || {
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

/// A7: "holds with leases 60 s and 1 s" (here 4 s; nesting depth 5; the remaining time is per hold"
#[test]
fn a7_each_hold_has_its_own_lease() {
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
        // For longer than the short leases.
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

/// A10: "Deadline = time of *sending* the successful request + lease": a reply that came late does
/// not lengthen it.
#[test]
fn a10_a_late_reply_does_not_lengthen_the_lease() {
    each(|kind| {
        let server = Server::start(kind);
        let proxy = Proxy::new(&server);
        proxy.delay(Duration::from_secs(2));
        // So that the server knows the script: each is asked for by its name at first.
        Lab::at(server.url()).run(["exec", "k", "--", "true"]).silently(0);
        // The request to be granted passes, no renewal does.
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

/// A13: "delete one of three keys, release; the other two are free", here one of five, and somebody
/// waits for the last
#[test]
fn a13_what_is_left_of_a_hold_is_released() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let names = ["{k}a", "{k}b", "{k}c", "{k}d", "{k}e"];
        let claims = names.map(|name| ["--write", name]).concat();
        let holder = lab.hold_by([&["exec"], &claims[..]].concat());
        let mut next = lab.wait_by(["exec", "{k}e"]);
        lab.until_waiting("{k}e", 1);
        let lost = keys(&server, lab.namespace()).into_iter().filter(|key| key.contains("%7Db:"));
        assert_eq!(lost.map(|key| server.ask::<u32>(&["DEL", &key])).sum::<u32>(), 4, "{kind:?}");
        assert!(holder.end().failed(76).starts_with("lost: "), "{kind:?}");
        next.expect_held();
        next.end().silently(0);
        assert!(names.iter().all(|name| lab.counts(name) == (0, 0)), "{kind:?}");
        lab.run([&["exec", "-nq"], &claims[..], &["--", "true"]].concat()).silently(0);
    });
}

/// B1 and C3: "random timeouts; no stray wake, no leftover key", "queue empty after … random
/// timeouts"
#[test]
fn b1_c3_those_who_give_up_leave_nothing() {
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
        wait_until("those who were not heard are passed over", || {
            lab.run(["cleanup"]);
            lab.counts("k") == (1, 0)
        });
        holder.end().silently(0);
        assert_eq!(keys(&server, lab.namespace()), [format!("{}:1:{{k}}:d", lab.namespace())], "{kind:?}");
    });
}

/// B2: "pause the client between 'queued' reply and wait"
#[test]
fn b2_a_grant_before_the_subscription_is_seen() {
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

/// B3: "CLIENT KILL TYPE pubsub in a loop; every waiter still gets its turn"; the issue: "CLIENT
/// KILL of every connection in a loop"
#[test]
fn b3_connections_may_be_killed_again_and_again() {
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
                crate::support::servers::ask::<u32>(&mut client, &words);
            }
        };
        for _ in 0..20 {
            kill();
            std::thread::sleep(Duration::from_millis(50));
        }
        holder.end().silently(0);
        // Not in their order: one without a connection at that moment is passed over, and comes
        // back.
        for waiter in waiters {
            kill();
            waiter.end().printed("held\n");
        }
        lab.assert_idle();
    });
}

/// B5: "W holder, 3 R waiters, downgrade → all 3 start"
#[test]
fn b5_a_downgrade_wakes_the_readers() {
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

/// B6: "kill -9 holder with 50 waiters: head starts ≤ lease + 100 ms, and ≤ 3 commands per waiter
/// meanwhile"
#[test]
fn b6_the_end_of_a_lease_wakes_one() {
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

/// C1: "20 waiters, kill -9 the first 10: the 11th starts"
#[test]
fn c1_dead_waiters_are_passed_over() {
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
        wait_until("the server has noticed", || listening(11));
        holder.end().silently(0);
        // By the release itself, not when the dead have let their time pass.
        let next = &lab.inspect(["k"])["resources"][0]["holders"][0]["pid"];
        assert_eq!(*next, alive[0].pid());
        for mut waiter in alive {
            waiter.expect_held();
            waiter.end().silently(0);
        }
        lab.assert_idle();
    });
}

/// C2: "wait 3× the waiter lease with heartbeats; still queued, same seq" (here a little more than
/// once: it is a quarter of a minute)
#[test]
fn c2_a_living_waiter_keeps_its_place() {
    on_each(|lab| {
        let holder = lab.hold("k");
        let mut first = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let second = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 2);
        let waiters = || lab.inspect(["k"])["resources"][0]["waiters"].clone();
        let before = waiters();
        std::thread::sleep(Duration::from_secs(17));
        lab.run(["cleanup"]).printed("");
        assert_eq!(waiters(), before);
        holder.end().silently(0);
        first.expect_held();
        first.end().silently(0);
        second.end().printed("held\n");
        lab.assert_idle();
    });
}

/// C4: "try-lock while a waiter is queued must fail even if momentarily free"
#[test]
fn c4_no_wait_does_not_overtake() {
    on_each(|lab| {
        let _reader = lab.hold_by(["exec", "--read", "k"]);
        let _writer = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        lab.run(["exec", "-nq", "--read", "k", "--", "true"]).silently(75);
    });
}

/// D3: "W→R, hold R for 5 leases" (here for more than two)
#[test]
fn d3_a_downgraded_hold_is_renewed() {
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

/// D4: "nested `rlock -r x` inside `rlock -r x` with a writer queued in between: must enter"
#[test]
fn d4_a_nested_read_passes_the_queue() {
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

/// G3: "NOSCRIPT after failover/SCRIPT FLUSH": at any moment
#[test]
fn g3_scripts_may_be_flushed() {
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

/// G4: "Renew, release and cancel work on a server at maxmemory"
#[test]
fn g4_at_maxmemory_what_is_held_can_be_kept_and_given_back() {
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

/// G5: "no TTL on live state": volatile-lru takes none of it
#[test]
fn g5_eviction_of_volatile_keys_takes_no_lock() {
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
                // Where nothing is left to evict it is refused.
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
    let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("INFO has it");
    line.parse().expect("it is a number")
}

/// G7: "READONLY … on demotion: reconnect and re-ask state by id, never assume": a master that
/// becomes a replica for a while, and one that stays one
#[test]
fn g7_a_demoted_master_is_not_trusted() {
    each(|kind| {
        let (server, other) = (Server::on_tcp(kind), Server::on_tcp(kind));
        let lab = Lab::at(server.url());
        let mut holder = Stubborn::start(&lab, &["exec", "k", "--ttl", "6s", "--grace", "300ms"]);
        // A replica of nobody keeps what it has.
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

/// I1: "nested acquire prints the same token"; I2: "FLUSHALL between two acquires: second token
/// still larger"; the issue: "FLUSHALL under a holder (exit 76, next token still larger)"
#[test]
fn i1_i2_tokens_survive_nesting_and_flushall() {
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
            wait_until("the holder learns of it", || !holder.runs());
            let ran = holder.end();
            assert_eq!(ran.code(), Some(76), "{kind:?}: {ran:?}");
            assert!(ran.stderr.starts_with("rlock: lost: 'k'"), "{kind:?}: {ran:?}");
        }
    });
}
