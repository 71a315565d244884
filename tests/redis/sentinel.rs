//! Sentinels and a failover: one master, one replica, three Sentinels.

use crate::support::servers::Kind;
use crate::support::servers::sentinels::Sentinels;
use crate::support::{Lab, RLOCK, wait_until};
use crate::world::{assert_failover_is_followed, each};

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

/// The message names a master that the Sentinels do not know.
#[test]
fn unknown_master_exits_69_and_is_named() {
    crate::support::needs::skip_unless!(Kind::Redis7.is_present());
    let sentinels = Sentinels::start(Kind::Redis7);
    let url = sentinels.url().replace("/rlock", "/nobody");
    let ran = Lab::at(url).run(["exec", "k", "--", "true"]);
    assert!(ran.failed(69).contains("knows no master of the name 'nobody'"), "{ran:?}");
}
