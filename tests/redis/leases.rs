//! Leases: a holder renews as long as its command runs, and counts as lost before the server may
//! grant to another session.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::world::{Stubborn, each, expiry, now, on_each};
use rlock_testkit::servers::crowd;
use rlock_testkit::servers::proxy::Proxy;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, Running, wait_until};

/// Waits until the holder renews, so that the next renewal is a third of the ttl away. Returns the
/// new expiry.
fn just_renewed(server: &Server, lab: &Lab, holder: &mut Running) -> u64 {
    let before = expiry(server, lab, "k");
    wait_until("the lease is renewed", || {
        assert!(holder.runs(), "the holder has ended");
        expiry(server, lab, "k") > before
    });
    expiry(server, lab, "k").expect("the lease was renewed")
}

/// A request behind a crowd of expired waiters is granted by its own renewal. Here the renewal does
/// not reach the server: another session gets the lock, and the first command does not start.
#[test]
fn request_behind_an_expired_crowd_starts_no_command_before_its_renewal() {
    each(|kind| {
        let server = Server::start(kind);
        let proxy = Proxy::new(&server);
        let far = Lab::at(proxy.url());
        let near = Lab::at(server.url()).with("RLOCK_NAMESPACE", far.namespace());
        // This loads the scripts into the server.
        near.run(["exec", "k", "--", "true"]).silently(0);
        crowd::expire(&server, far.namespace(), "k");
        // The request is queued and the client subscribes, but the renewal does not arrive.
        proxy.hold_at(3);
        let ran = far.folder().join("ran");
        let ran = ran.to_str().expect("the path is UTF-8");
        let cut_off = Running::start(&mut far.rlock(["exec", "k", "--ttl", "30s", "--", "touch", ran]));
        proxy.until_held();
        let next = near.hold_by(["exec", "k"]);
        assert!(!std::path::Path::new(ran).exists(), "{kind:?}: two commands ran at once");
        next.end().silently(0);
        cut_off.signal(Signal::TERM);
    });
}

/// If a key of a resource is lost, its holder may lose the lock and exits 76. Whichever key is
/// lost, a session notices the loss, and the waiter is granted.
#[test]
fn lost_key_ends_the_holder_with_76_and_grants_the_waiter() {
    each(|kind| {
        let server = Server::start(kind);
        for key in ["d", "e", "q", "l", "u"] {
            let lab = Lab::at(server.url());
            let mut holder = lab.hold_by(["range-write", "k", "1", "2", "--ttl", "3s", "--grace", "200ms"]);
            let mut waiter = lab.wait_by(["range-write", "k", "1", "2"]);
            lab.until_waiting("k", 1);
            server.ask::<i64>(&["DEL", &format!("{}:{{k}}:{key}", lab.namespace())]);
            wait_until("the holder ends though its input is open", || !holder.runs());
            assert_eq!(holder.end().code(), Some(76), "{kind:?} without {key}");
            waiter.expect_held();
            waiter.end().silently(0);
            lab.assert_idle();
        }
    });
}

/// A renewal that drops a dead waiter of several resources declares all of these resources. The
/// next renewal declares only the holder's own resource.
#[test]
fn renewal_names_the_resources_of_a_dead_waiter_only_once() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let lab = Lab::at(server.url());
    let holder = lab.hold_by(["exec", "{t}k", "--ttl", "3s", "--grace", "200ms"]);
    crowd::wait_for(&server, lab.namespace(), &["{t}k", "{t}x"]);
    assert_eq!(lab.counts("{t}k"), (1, 1));
    wait_until("the dead waiter is dropped", || lab.counts("{t}k") == (1, 0));
    server.ask::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    server.ask::<()>(&["SLOWLOG", "RESET"]);
    let renewals = || {
        let log: Vec<(i64, i64, i64, Vec<String>)> = server
            .ask::<Vec<Vec<redis::Value>>>(&["SLOWLOG", "GET", "128"])
            .into_iter()
            .filter_map(|entry| redis::from_redis_value(redis::Value::Array(entry.into_iter().take(4).collect())).ok())
            .collect();
        let of_scripts = log.into_iter().map(|(_, _, _, words)| words);
        of_scripts.filter(|words| words[0].eq_ignore_ascii_case("evalsha")).collect::<Vec<_>>()
    };
    wait_until("the holder renews", || !renewals().is_empty());
    for words in renewals() {
        assert_eq!(words[2], "7", "a renewal of one resource has its seven keys: {words:?}");
    }
    holder.end().silently(0);
}

fn exec(ttl: &'static str, grace: &'static str) -> [&'static str; 6] {
    ["exec", "k", "--ttl", ttl, "--grace", grace]
}

/// The holder renews every ttl/3. A grant outlives many leases and keeps its token.
#[test]
fn lease_is_renewed_while_the_command_runs() {
    on_each(|lab| {
        let mut holder = lab.hold_by(exec("4s", "200ms"));
        let first = lab.inspect(["k"])["resources"][0]["holders"][0].clone();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(9) {
            lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
            // This waits half a second.
            lab.run(["exec", "-q", "-w", "500ms", "k", "--", "true"]).silently(75);
        }
        assert!(holder.runs());
        let last = &lab.inspect(["k"])["resources"][0]["holders"][0];
        assert_eq!([&last["token"], &last["session"]], [&first["token"], &first["session"]]);
        holder.end().silently(0);
        lab.assert_idle();
    });
}

/// The server is stopped by SIGSTOP. The command ends before its lease does.
#[test]
fn stopped_server_ends_the_command_before_the_lease_ends() {
    let stop = |kind, renewals| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let mut holder = Stubborn::start(&lab, &exec("8s", "500ms"));
        let mut end = expiry(&server, &lab, "k").expect("the lock is held");
        for _ in 0..renewals {
            end = just_renewed(&server, &lab, &mut holder.rlock);
        }
        server.stop();
        let gone = holder.gone();
        assert!(gone < end, "{kind:?}: the command lived {} µs longer than its lease", gone - end);
        wait_until("rlock ends", || !holder.rlock.runs());
        let ran = holder.rlock.end();
        assert_eq!(ran.code(), Some(76), "{kind:?}: {ran:?}");
        let said = "rlock: lost: the lease on 'k' was not renewed in time: ";
        assert!(ran.stderr.starts_with(said) && ran.stderr.lines().count() == 1, "{kind:?}: {ran:?}");
        server.cont();
        wait_until("no session holds", || {
            lab.run(["cleanup"]);
            lab.counts("k") == (0, 0)
        });
    };
    // One holder renews before the stop, the other holder never renews.
    each(|kind| {
        std::thread::scope(|scope| {
            for renewals in [1, 0] {
                scope.spawn(move || stop(kind, renewals));
            }
        });
    });
}

/// Silence is not a loss; only the deadline is. The connection is cut for up to two renewal
/// periods, and the grant survives. The rest of the lease is for ending the command and for a busy
/// machine.
#[test]
fn grant_survives_a_cut_that_is_shorter_than_the_lease() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let cut = |away: Duration, cuts: fn(&Proxy)| {
        let server = Server::start(Kind::Redis7);
        let proxy = Proxy::new(&server);
        let lab = Lab::at(proxy.url());
        let mut holder = lab.hold_by(exec("12s", "200ms"));
        let direct = Lab::at(server.url()).with("RLOCK_NAMESPACE", lab.namespace());
        just_renewed(&server, &lab, &mut holder);
        let token = direct.inspect(["k"])["resources"][0]["holders"][0]["token"].clone();
        cuts(&proxy);
        std::thread::sleep(away);
        proxy.pass();
        // Ten leases would take more than a minute. Two renewals show that the holder goes on.
        for _ in 0..2 {
            just_renewed(&server, &lab, &mut holder);
        }
        assert!(holder.runs(), "cut for {away:?}");
        assert_eq!(direct.inspect(["k"])["resources"][0]["holders"][0]["token"], token);
        holder.end().silently(0);
        direct.assert_idle();
    };
    let hold: fn(&Proxy) = Proxy::hold;
    let cut_and_refuse: fn(&Proxy) = |proxy| {
        proxy.refuse();
        proxy.cut();
    };
    // The renewal period is four seconds.
    std::thread::scope(|scope| {
        for cuts in [hold, cut_and_refuse] {
            for away in [2, 5, 8] {
                scope.spawn(move || cut(Duration::from_secs(away), cuts));
            }
        }
    });
}

/// The connection is cut for longer than the lease. The command is dead before the next holder
/// starts, and rlock exits 76.
#[test]
fn cut_longer_than_the_lease_ends_the_command_before_the_next_grant() {
    each(|kind| {
        let server = Server::start(kind);
        let proxy = Proxy::new(&server);
        let far = Lab::at(proxy.url());
        let near = Lab::at(server.url()).with("RLOCK_NAMESPACE", far.namespace());
        let mut holder = Stubborn::start(&far, &exec("6s", "500ms"));
        let mut next = near.wait_by(["exec", "k"]);
        near.until_waiting("k", 1);
        proxy.refuse();
        proxy.cut();
        let end = holder.gone();
        next.expect_held();
        let since = near.inspect(["k"])["resources"][0]["holders"][0]["since"].clone();
        let granted: humantime::Timestamp = since.as_str().expect("a time").parse().expect("an RFC 3339 time");
        let granted = std::time::SystemTime::from(granted).duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        // `inspect` truncates times to milliseconds.
        assert!(u128::from(end) < granted.as_micros() + 1000, "{kind:?}: gone at {end}, granted at {granted:?}");
        wait_until("rlock ends", || !holder.rlock.runs());
        assert_eq!(holder.rlock.end().code(), Some(76));
        next.end().silently(0);
    });
}

/// After kill -9 of an rlock, the next waiter starts when the lease ends, and not earlier.
#[test]
fn waiter_is_granted_when_the_lease_of_a_killed_holder_ends() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let holder = Stubborn::start(&lab, &exec("4s", "200ms"));
        let mut next = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let Stubborn { rlock, .. } = holder;
        rlock.kill();
        let before = now();
        let left = lab.inspect(["k"])["resources"][0]["holders"][0]["expires_in_ms"].as_u64().expect("a lease");
        let end = before + left * 1000;
        next.expect_held();
        // `inspect` truncates times to milliseconds.
        assert!(now() >= end, "{kind:?}: the waiter was granted {} µs too early", end - now());
        next.end().silently(0);
        lab.assert_idle();
    });
}

/// A waiter is stopped from before its grant until after its claim lease. When the waiter
/// continues, it does not run its command, but still gets its turn.
#[test]
fn stopped_waiter_is_skipped_and_gets_its_turn_after_it_continues() {
    on_each(|lab| {
        let holder = lab.hold("k");
        let mut stopped = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let mut next = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 2);
        stopped.signal(Signal::STOP);
        holder.end().silently(0);
        // The stopped waiter was granted the lock until its claim lease ended.
        next.expect_held();
        stopped.signal(Signal::CONT);
        lab.until_waiting("k", 1);
        let found = lab.inspect(["k"]);
        assert_eq!(found["resources"][0]["holders"][0]["pid"], next.pid());
        assert_eq!(found["resources"][0]["waiters"][0]["pid"], stopped.pid());
        next.end().silently(0);
        stopped.expect_held();
        stopped.end().silently(0);
        lab.assert_idle();
    });
}

/// TSTP stops the command and rlock. On CONT, rlock reads the clock first. Past the deadline it
/// kills the command instead of continuing it.
#[test]
fn holder_stopped_past_its_deadline_kills_the_command_and_exits_76() {
    on_each(|lab| {
        let mut holder = Stubborn::start(&lab, &exec("3s", "300ms"));
        holder.rlock.signal(Signal::TSTP);
        let mut next = lab.wait_by(["exec", "k"]);
        next.expect_held();
        assert!(holder.runs(), "the command has ended instead of stopping");
        let token = lab.inspect(["k"])["resources"][0]["holders"][0]["token"].clone();
        holder.rlock.signal(Signal::CONT);
        holder.gone();
        wait_until("rlock ends", || !holder.rlock.runs());
        assert_eq!(holder.rlock.end().code(), Some(76));
        // The late release of the old holder leaves the new holder alone.
        assert_eq!(lab.inspect(["k"])["resources"][0]["holders"][0]["token"], token);
        next.end().silently(0);
        lab.assert_idle();
    });
}

/// A grace above a third of the ttl is a usage error that names both.
#[test]
fn grace_above_a_third_of_the_ttl_exits_64() {
    let lab = Lab::at("redis://127.0.0.1:1");
    let ran = lab.run(["exec", "k", "--ttl", "3s", "--grace", "1100ms", "--", "true"]);
    let said = ran.failed(64);
    assert!(said.contains("3s") && said.contains("1s100ms"), "{said}");
    // A ttl of zero would delete the lock.
    for ttl in ["0", "0s"] {
        lab.run(["exec", "k", "--ttl", ttl, "--", "true"]).failed(64);
    }
}

/// A stopped server executes the requests that it got when it continues: first the request, then
/// its cancellation.
#[test]
fn cancelled_request_to_a_stopped_server_is_granted_nothing_later() {
    each(|kind| {
        let server = Server::on_tcp(kind);
        let lab = Lab::at(server.url());
        // This loads the scripts into the server. Later, after the server continues, no client is
        // left to send a script that the server does not know.
        lab.run(["exec", "k", "--", "true"]).silently(0);
        let holder = lab.hold_by(["exec", "--ttl", "2s", "--grace", "500ms", "k"]);
        let mut waiter = lab.wait_by(["exec", "-w", "4s", "--ttl", "10m", "k"]);
        lab.until_waiting("k", 1);
        server.stop();
        lab.run(["exec", "--connect-timeout", "1s", "--ttl", "10m", "l", "--", "true"]).failed(69);
        wait_until("the wait is over", || !waiter.runs());
        assert!(waiter.end().failed(69).ends_with("see whether the server is stopped or overloaded"), "{kind:?}");
        drop(holder.end());
        server.cont();
        wait_until("no session holds", || {
            lab.run(["cleanup"]);
            (lab.counts("k"), lab.counts("l")) == ((0, 0), (0, 0))
        });
    });
}

/// A lost lock exits 76, even if the command ends with 0. If the command ends before the next
/// renewal, the release reports the loss.
#[test]
fn release_of_a_lost_grant_exits_76() {
    each(|kind| {
        let server = Server::start(kind);
        let lab = Lab::at(server.url());
        let holder = lab.hold_by(["exec", "k", "--ttl", "10m"]);
        // The holder renews when it subscribes, and then not for minutes. This renewal is the
        // second script that a new server gets by EVAL.
        wait_until("the holder has renewed", || server.says(&["INFO", "commandstats"], "cmdstat_eval:calls=2,"));
        server.ask::<()>(&["FLUSHALL"]);
        let ran = holder.end();
        let how = "by 'rlock break', a failover, lost data or a step of the server's clock; the command has ended, but maybe too late";
        ran.said(76, &format!("lost: 'k' was taken away, {how}"));
    });
}

/// A store that cannot be reached exits 69 when the wait is over, whatever `--conflict-exit-code`
/// says. A long wait for a server that is gone warns once, unless `-q` is given.
#[test]
fn wait_for_a_dead_server_exits_69_with_the_reason() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let mut server = Server::start(Kind::Redis7);
    let lab = Lab::at(server.url());
    let holder = lab.hold_by(["exec", "k", "--ttl", "10m"]);
    let wait = |options: &[&'static str]| lab.wait_by([&["exec", "-E", "0"], options, &["k"]].concat());
    let short = wait(&["-w", "10s"]);
    let long = wait(&["-w", "45s"]);
    let quiet = wait(&["-w", "45s", "-q"]);
    lab.until_waiting("k", 3);
    server.kill();
    let trouble =
        format!("cannot lock 'k': '{}' refused the connection; start the server, or correct the address", server.url());
    let warning = format!("rlock: warning: {trouble}; the wait goes on");
    let told = |mut waiter: Running| {
        wait_until("the wait is over", || !waiter.runs());
        let ran = waiter.end();
        assert_eq!(ran.code(), Some(69), "{ran:?}");
        ran.stderr.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let end = format!("rlock: {trouble}");
    assert_eq!(told(short), [end.as_str()]);
    assert_eq!(told(long), [warning.as_str(), &end]);
    assert_eq!(told(quiet), [end]);
    drop(holder.kill());
}
