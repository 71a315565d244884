//! Sentinels and a failover: one master, one replica, three Sentinels.

use std::ffi::OsStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::world::{assert_failover_is_followed, each};
use rlock_testkit::servers::sentinels::Sentinels;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, RLOCK, wait_until};

/// exec, ranges, waiting and hand-over work at the master.
#[test]
fn locks_work_at_the_master_that_sentinels_name() {
    each(|kind| {
        let mut sentinels = Sentinels::start(kind);
        let lab = Lab::at(sentinels.url());
        lab.run(["exec", "k", "--", RLOCK, "exec", "--read", "k", "--", "echo", "in"]).printed("in\n");
        let holder = lab.hold_by(["range-write", "k", "1", "2"]);
        let direct = Lab::at(sentinels.master().url()).with("RLOCK_NAMESPACE", lab.namespace());
        assert_eq!(direct.counts("k"), (1, 0));
        assert_eq!(lab.inspect(["k"])["store"], sentinels.url());
        let mut waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        waiter.expect_held();
        waiter.end().silently(0);
        lab.assert_idle();
        // The database number follows the name of the master. One of the Sentinels may be down.
        sentinels.sentinel_mut(0).kill();
        Lab::at(format!("{}/2", sentinels.url())).run(["exec", "k", "--", "true"]).silently(0);
    });
}

/// A failover while rlock runs: the holder renews and the waiter waits at the new master, which has
/// the state.
#[test]
fn holder_and_waiter_follow_a_failover() {
    each(|kind| {
        let mut sentinels = Sentinels::start(kind);
        let lab = Lab::at(sentinels.url());
        assert_failover_is_followed(&lab, || sentinels.switch());
    });
}

/// "rlock asks again ... at each release": the old master serves its clients for some seconds after
/// a planned failover, and would take a release that the new one never hears of.
#[test]
fn lock_is_released_at_the_new_master_after_a_planned_failover() {
    each(|kind| {
        let sentinels = Sentinels::start(kind);
        let lab = Lab::at(sentinels.url());
        let holder = lab.hold_by(["exec", "k", "--ttl", "60s", "--replicas", "1"]);
        sentinels.promote();
        // The renewal a second after the grant may have asked the Sentinels just before.
        let promoted = Instant::now();
        wait_until("that answer is too old", || promoted.elapsed() > Duration::from_millis(500));
        holder.end().silently(0);
        assert_eq!(lab.counts("k"), (0, 0), "{kind:?}");
    });
}

/// "At its release, `exec` sees that the old primary has one replica less than at the request." Of
/// short holds, one is under way before the Sentinels name the new one. Busy Sentinels may take
/// longer than the release waits for them, so a lock that is left behind counts if it repeats.
#[test]
fn short_holds_leave_no_lock_behind_at_the_new_master_after_a_planned_failover() {
    each(|kind| {
        let leave_none = || {
            let sentinels = Sentinels::start(kind);
            leaves_no_lock_behind(&Lab::at(sentinels.url()), || sentinels.promote_by(&[]))
        };
        assert!(leave_none() || leave_none(), "{kind:?}");
    });
}

/// Makes short holds while another master takes over. Returns whether none of them is left behind
/// there.
fn leaves_no_lock_behind(lab: &Lab, change_master: impl FnOnce() -> u16 + Send) -> bool {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let hold = || lab.run(["exec", "-q", "-w", "10s", "--ttl", "60s", "k", "--", "sleep", "0.1"]).code();
            let mut is_released = true;
            while is_released && !is_over.load(Ordering::Relaxed) {
                is_released = hold() == Some(0);
            }
        });
        // The work has to end even if this fails.
        let changed = scope.spawn(change_master).join();
        is_over.store(true, Ordering::Relaxed);
        work.join().expect("rlock can be run");
        changed.expect("another master takes over");
    });
    lab.counts("k") == (0, 0)
}

/// "With Valkey 9, plan a failover by `SENTINEL FAILOVER MASTER COORDINATED` ... so no release is
/// lost."
#[test]
fn coordinated_failover_loses_no_release() {
    Kind::Valkey9.run(|kind| {
        let sentinels = Sentinels::start(kind);
        assert!(leaves_no_lock_behind(&Lab::at(sentinels.url()), || sentinels.promote_by(&["COORDINATED"])));
    });
}

/// The master dies. The replica still has the acknowledged grant, and the next token is larger.
#[test]
fn lock_survives_the_death_of_its_master() {
    each(|kind| {
        let mut sentinels = Sentinels::start(kind);
        let lab = Lab::at(sentinels.url());
        let mut holder = lab.hold_by(["exec", "k", "--ttl", "60s", "--replicas", "1"]);
        let token = |lab: &Lab| lab.inspect(["k"])["resources"][0]["holders"][0]["token"].as_u64();
        let first = token(&lab);
        sentinels.failover();
        wait_until("the new master answers", || lab.run(["inspect", "k"]).code() == Some(0));
        assert_eq!((lab.counts("k"), token(&lab)), ((1, 0), first), "{kind:?}");
        assert!(holder.runs());
        let mut next = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        next.expect_held();
        assert!(token(&lab) > first, "{kind:?}");
        next.end().silently(0);
        lab.assert_idle();
    });
}

/// A failover without the data can let two commands run. The old holder exits 76 as soon as it
/// learns of the new master, and the next token is larger.
#[test]
fn grant_unknown_to_the_new_master_exits_76() {
    each(|kind| {
        let mut sentinels = Sentinels::start(kind);
        let lab = Lab::at(sentinels.url());
        let mut holder = lab.hold_by(["exec", "k", "--ttl", "10m"]);
        let mut waiter = lab.wait_by(["exec", "-q", "k"]);
        lab.until_waiting("k", 1);
        let token = |lab: &Lab| lab.inspect(["k"])["resources"][0]["holders"][0]["token"].as_u64();
        let first = token(&lab);
        // This empties the replica, as if it had not received the grant yet.
        sentinels.replica().ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
        sentinels.replica().ask::<()>(&["FLUSHALL"]);
        sentinels.failover();
        waiter.expect_held();
        wait_until("the holder ends though its input is open", || !holder.runs());
        let ran = holder.end();
        assert!(ran.failed(76).starts_with("lost: 'k'"), "{kind:?}: {ran:?}");
        assert!(token(&lab) > first && first.is_some(), "{kind:?}");
        waiter.end().silently(0);
        lab.assert_idle();
    });
}

/// Sentinels may name a server of another group, which has never seen a grant of this one, as after
/// a restart in which two groups have exchanged addresses. The holder ends, and the waiter asks
/// again there.
#[test]
fn grant_unknown_to_the_master_of_another_group_exits_76() {
    each(|kind| {
        let mut sentinels = Sentinels::start(kind);
        let other = Server::on_tcp(kind);
        let lab = Lab::at(sentinels.url());
        let mut holder = lab.hold_by(["exec", "k", "--ttl", "10m"]);
        let mut waiter = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        sentinels.name_another_group(&other);
        waiter.expect_held();
        wait_until("the holder ends though its input is open", || !holder.runs());
        let ran = holder.end();
        let words = format!("has granted it, and '{}' answers now; the command is stopped", other.url());
        assert!(ran.failed(76).starts_with("lost: 'k'") && ran.stderr.contains(&words), "{kind:?}: {ran:?}");
        let there = Lab::at(other.url()).with("RLOCK_NAMESPACE", lab.namespace());
        assert_eq!(there.counts("k"), (1, 0));
        let ran = waiter.end();
        let words = format!("the request for 'k' was made again: '{}' answers now in place of ", other.url());
        assert!(ran.code() == Some(0) && ran.stderr.contains(&words), "{ran:?}");
        there.assert_idle();
    });
}

/// While the Sentinels promote the replica as an administrator wishes, the old master serves its
/// clients for some seconds. Each command checks by flock(2) that no other one runs, in a long hold
/// and in short ones, with leases that end before and after the old master becomes a replica. A
/// lease of 3 seconds may end before busy Sentinels tell of the new master.
///
/// The promotion may come between a grant from the queue and its claim, which takes about a
/// millisecond. The claim at the old master does not reach the new one, where the grant ends after
/// three seconds. So an overlap counts if it repeats.
#[test]
fn commands_exclude_each_other_during_planned_failovers() {
    rlock_testkit::needs::skip_unless!(rlock_testkit::needs::programs(&["flock"]));
    let overlaps = |kind| {
        let mut sentinels = Sentinels::start(kind);
        let lab = Lab::at(sentinels.url());
        let is_over = AtomicBool::new(false);
        let overlaps = Mutex::new(Vec::new());
        let work = |ttl: &str, seconds: &str| {
            let lock = lab.folder().join(ttl);
            let (mut done, mut codes) = (0, Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                let rlock = ["exec", "-q", "--ttl", ttl, "--grace", "300ms", ttl, "--", "flock", "-n", "-E", "99"];
                let ran = lab.run(rlock.iter().map(OsStr::new).chain([
                    lock.as_os_str(),
                    OsStr::new("sleep"),
                    OsStr::new(seconds),
                ]));
                done += u32::from(ran.code() == Some(0));
                codes.extend(ran.code().filter(|code| *code == 99));
            }
            assert!(done > 0, "{kind:?} {ttl}: {codes:?}");
            if !codes.is_empty() {
                overlaps.lock().expect("no test panics").push(format!("{kind:?} {ttl}: {codes:?}, {done} runs"));
            }
        };
        std::thread::scope(|scope| {
            let work = &work;
            for ttl in ["8s", "10s", "30s"] {
                for seconds in ["5", "0.2", "0.2"] {
                    scope.spawn(move || work(ttl, seconds));
                }
            }
            let switches = scope.spawn(|| {
                for _ in 0..2 {
                    wait_until("the replica can be promoted", || sentinels.could_fail_over());
                    sentinels.switch();
                }
            });
            let result = switches.join();
            is_over.store(true, Ordering::Relaxed);
            result.expect("the Sentinels switch");
        });
        overlaps.into_inner().expect("no test panics")
    };
    each(|kind| {
        let first = overlaps(kind);
        if !first.is_empty() {
            let again = overlaps(kind);
            assert!(again.is_empty(), "{first:?}, and again {again:?}");
        }
    });
}

/// The message names a master that the Sentinels do not know.
#[test]
fn unknown_master_exits_69_and_is_named() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let sentinels = Sentinels::start(Kind::Redis7);
    let url = sentinels.url().replace("/rlock", "/nobody");
    let ran = Lab::at(url).run(["exec", "k", "--", "true"]);
    assert!(ran.failed(69).contains("knows no primary of the name 'nobody'"), "{ran:?}");
}
