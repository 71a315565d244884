//! A Cluster of three nodes: redirects, migrating slots, SPUBLISH.

use std::time::Duration;

use crate::world::{assert_failover_is_followed, check, each};
use rlock_testkit::servers::Kind;
use rlock_testkit::servers::cluster::Cluster;
use rlock_testkit::{Lab, RLOCK, wait_until};

/// Runs a test on each kind of server whose Cluster has sharded channels.
fn each_new(test: impl Fn(Kind) + Sync) {
    each(|kind| {
        if kind != Kind::Redis6 {
            test(kind);
        }
    });
}

/// Returns one name for each node, in a slot of that node.
fn names(cluster: &Cluster) -> Vec<String> {
    let on = |node| (0..).map(|n| format!("k{n}")).find(|name| cluster.owner(cluster.slot(name)) == node);
    (0..3).map(|node| on(node).expect("each node has slots")).collect()
}

/// exec, ranges, waiting and hand-over work for a slot on any node, whichever node is asked first.
#[test]
fn locks_work_on_every_node_of_a_cluster() {
    each_new(|kind| {
        let cluster = Cluster::start(kind, 3);
        let lab = Lab::at(cluster.url());
        let names = names(&cluster);
        for name in &names {
            lab.run(["exec", name, "--", RLOCK, "exec", "--read", name, "--", "echo", "in"]).printed("in\n");
            let holder = lab.hold_by(["range-write", name, "1", "2"]);
            lab.run(["range-read", name, "2", "3", "-nq", "--", "true"]).silently(75);
            lab.run(["range-read", name, "(2,3]", "-nq", "--", "true"]).silently(0);
            let mut waiter = lab.wait_by(["exec", name]);
            lab.until_waiting(name, 1);
            holder.end().silently(0);
            waiter.expect_held();
            waiter.end().silently(0);
        }
        // `inspect` scans all nodes of a Cluster.
        let holders: Vec<_> = names.iter().map(|name| lab.hold(name)).collect();
        assert_eq!(lab.inspect([""; 0])["resources"].as_array().map(Vec::len), Some(3));
        assert_eq!(lab.inspect(&names)["resources"].as_array().map(Vec::len), Some(3));
        holders.into_iter().for_each(|holder| holder.end().silently(0));
        lab.assert_idle();
        let nobody = format!("nobody holds '{}': nothing to break; 'rlock inspect' shows what is held", names[0]);
        lab.run(["cleanup", "--break", &names[0]]).said(1, &nobody);
    });
}

/// In a Cluster, resources of different slots are refused, and the message advises one `{tag}`.
#[test]
fn claims_in_several_slots_are_refused_with_the_advice_to_use_a_tag() {
    each_new(|kind| {
        let cluster = Cluster::start(kind, 3);
        let lab = Lab::at(cluster.url());
        let names = names(&cluster);
        let ran = lab.run(["exec", &names[0], "--write", &names[1], "--", "true"]);
        assert!(ran.failed(65).contains("{tag}"), "{kind:?}: {ran:?}");
        let holder = lab.hold_by(["exec", "{k}a", "--write", "{k}b"]);
        lab.run(["exec", "-nq", "{k}b", "--", "true"]).silently(75);
        holder.end().silently(0);
        lab.assert_idle();
    });
}

/// A slot migrates while a lock in it is held and waited for. The holder renews all the time. The
/// lock is handed over during the migration and after it.
#[test]
fn lock_survives_the_migration_of_its_slot() {
    each_new(|kind| {
        let cluster = Cluster::start(kind, 3);
        let lab = Lab::at(cluster.url());
        let slot = cluster.slot("k");
        let from = cluster.owner(slot);
        let to = (from + 1) % 3;
        let mut holder = lab.hold_by(["exec", "k", "--ttl", "6s", "--grace", "200ms"]);
        let mut first = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let mut second = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 2);
        let migration = cluster.migrate(slot, from, to);
        let keys = migration.keys();
        assert!(keys.len() > 1, "{kind:?}: {keys:?}");
        for key in &keys {
            migration.move_key(key);
            // In total the migration takes longer than a lease. While the keys are on two nodes the
            // scripts cannot run, and the holder renews by other commands.
            std::thread::sleep(Duration::from_secs(7) / keys.len() as u32);
            assert!(holder.runs(), "{kind:?}: lost after {key} was moved");
        }
        // All keys have moved, but the slot still belongs to the first node.
        holder.end().silently(0);
        first.expect_held();
        migration.finish();
        assert_eq!(cluster.owner(slot), to);
        lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
        first.end().silently(0);
        second.expect_held();
        second.end().silently(0);
        lab.assert_idle();
    });
}

/// The slot of a held lock moves to a node whose clock is behind. The renewals there lower no
/// expiry, so nobody else gets the lock.
#[test]
fn lock_survives_the_migration_to_a_node_whose_clock_is_behind() {
    rlock_testkit::needs::skip_unless!(rlock_testkit::needs::programs(&["cc"]));
    each_new(|kind| {
        std::thread::scope(|scope| {
            for behind in [1, 10, 60] {
                scope.spawn(move || migrate_behind(kind, behind));
            }
        });
    });
}

fn migrate_behind(kind: Kind, behind: i64) {
    let cluster = Cluster::with_clocks(kind, &[0, -behind]);
    let names: Vec<_> = (0..).map(|number| format!("k{number}")).take(100).collect();
    let name = names.iter().find(|name| cluster.owner(cluster.slot(name)) == 0).expect("a name is on each node");
    let clocks = [0, 1].map(|node| cluster.node(node).ask::<(i64, i64)>(&["TIME"]).0);
    assert!((clocks[0] - clocks[1] - behind).abs() <= 5, "{kind:?}: {clocks:?}");
    let lab = Lab::at(cluster.url());
    let mut holder = lab.hold_by(["exec", name, "--ttl", "3s", "--grace", "200ms"]);
    let migration = cluster.migrate(cluster.slot(name), 0, 1);
    let is_excluded = |what: &str| {
        let ran = lab.run(["exec", "-nq", "--connect-timeout", "1s", name, "--", "true"]);
        // Nobody can lock the name while its keys are on two nodes.
        assert!(matches!(ran.code(), Some(69 | 75)), "{kind:?} {behind} {what}: {ran:?}");
    };
    for key in migration.keys() {
        migration.move_key(&key);
        for _ in 0..4 {
            is_excluded(&key);
        }
    }
    migration.finish();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(7) {
        is_excluded("after the migration");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(holder.runs(), "{kind:?} {behind}");
    holder.end().silently(0);
    lab.run(["exec", "-n", name, "--", "true"]).silently(0);
}

/// During a migration a node redirects requests for a key that does not exist, even within a script
/// that has just emptied the key. The release and the grant to the only waiter leave no key empty
/// in between.
#[test]
fn hand_over_works_while_the_slot_migrates() {
    each_new(|kind| {
        let cluster = Cluster::start(kind, 3);
        let lab = Lab::at(cluster.url());
        let slot = cluster.slot("k");
        let from = cluster.owner(slot);
        let holder = lab.hold("k");
        let mut next = lab.wait_by(["exec", "k"]);
        lab.until_waiting("k", 1);
        let migration = cluster.migrate(slot, from, (from + 1) % 3);
        holder.end().silently(0);
        migration.finish();
        next.expect_held();
        next.end().silently(0);
        lab.assert_idle();
    });
}

/// The last waiters leave the queue of a resource, and the queue of another one that nobody holds,
/// before the request that supersedes them is queued there.
#[test]
fn request_supersedes_all_waiters_while_the_slot_migrates() {
    each_new(|kind| {
        let cluster = Cluster::start(kind, 3);
        let lab = Lab::at(cluster.url());
        let slot = cluster.slot("k");
        let from = cluster.owner(slot);
        let holder = lab.hold("k");
        let newest = ["exec", "--job", "j", "--supersede", "--write", "k", "--write", "{k}2"];
        let older = lab.wait_by(newest);
        lab.until_waiting("k", 1);
        let migration = cluster.migrate(slot, from, (from + 1) % 3);
        let mut newer = lab.wait_by(newest);
        older.end().failed(75);
        migration.finish();
        holder.end().silently(0);
        newer.expect_held();
        newer.end().silently(0);
        lab.assert_idle();
    });
}

/// A request holds several resources, whose keys are on two nodes during the migration. The holder
/// renews each where it is. No node can release the request until all keys have moved.
#[test]
fn request_with_several_claims_survives_the_migration_of_its_slot() {
    each_new(|kind| {
        let cluster = Cluster::start(kind, 3);
        let lab = Lab::at(cluster.url());
        let slot = cluster.slot("k");
        let from = cluster.owner(slot);
        let mut holder =
            lab.hold_by(["exec", "k", "--write", "{k}2", "--write", "{k}3", "--ttl", "6s", "--grace", "200ms"]);
        let migration = cluster.migrate(slot, from, (from + 1) % 3);
        let keys = migration.keys();
        for key in &keys {
            migration.move_key(key);
            // In total the migration takes longer than a third of the lease, so the holder renews.
            std::thread::sleep(Duration::from_secs(3) / keys.len() as u32);
            assert!(holder.runs(), "{kind:?}: lost after {key} was moved");
        }
        migration.finish();
        holder.end().silently(0);
        lab.assert_idle();
    });
}

/// A replica becomes the master while rlock runs. The holder renews there, and the waiter is woken
/// from there.
#[test]
fn holder_and_waiter_follow_a_failover() {
    each_new(|kind| {
        let mut cluster = Cluster::start(kind, 3);
        let owner = cluster.owner(cluster.slot("k"));
        let replica = cluster.add_replica(owner);
        let lab = Lab::at(cluster.url());
        assert_failover_is_followed(&lab, || cluster.promote(replica));
    });
}

/// The master dies. The other nodes notice after some seconds, and meanwhile the holder reports no
/// loss.
#[test]
fn lock_survives_the_death_of_its_master() {
    each_new(|kind| {
        let mut cluster = Cluster::start(kind, 3);
        let owner = cluster.owner(cluster.slot("k"));
        let replica = cluster.add_replica(owner);
        let lab = Lab::at(cluster.url());
        let mut holder = lab.hold_by(["exec", "k", "--ttl", "60s", "--replicas", "1"]);
        cluster.node_mut(owner).kill();
        cluster.node(replica).until_master();
        wait_until("the new master answers", || lab.run(["inspect", "k"]).code() == Some(0));
        assert_eq!(lab.counts("k"), (1, 0), "{kind:?}");
        assert!(holder.runs());
        let mut waiter = lab.wait_by(["exec", "-q", "k"]);
        lab.until_waiting("k", 1);
        holder.end().silently(0);
        waiter.expect_held();
        waiter.end().silently(0);
        wait_until("no session holds", || lab.counts("k") == (0, 0));
    });
}

/// In a Cluster, a waiter subscribes only at the node that owns the slot.
#[test]
fn waiter_subscribes_only_at_the_node_of_its_slot() {
    each_new(|kind| {
        let cluster = Cluster::start(kind, 3);
        let lab = Lab::at(cluster.url());
        let owner = cluster.owner(cluster.slot("k"));
        let listen = |node: usize, of: &str| cluster.node(node).ask::<Vec<String>>(&["PUBSUB", of]).len();
        let holder = lab.hold("k");
        let mut waiter = lab.wait_by(["exec", "k"]);
        // The holder also subscribes after some time.
        wait_until("both listen", || listen(owner, "SHARDCHANNELS") == 2);
        for node in 0..3 {
            assert_eq!(listen(node, "CHANNELS"), 0, "{kind:?}");
            assert!(node == owner || listen(node, "SHARDCHANNELS") == 0, "{kind:?}");
        }
        let told = |name: &str| {
            let stats: String = cluster.node(owner).ask(&["INFO", "commandstats"]);
            stats.lines().any(|line| line.starts_with(&format!("cmdstat_{name}:")))
        };
        holder.end().silently(0);
        waiter.expect_held();
        assert!(told("spublish") && !told("publish"), "{kind:?}");
        waiter.end().silently(0);
        lab.assert_idle();
    });
}

/// rlock starts with any node of the URL that answers.
#[test]
fn silent_node_of_the_url_is_skipped() {
    rlock_testkit::needs::skip_unless!(Kind::Redis7.is_present());
    let cluster = Cluster::start(Kind::Redis7, 3);
    let port = crate::fakes::Fake::silent().port();
    let url = cluster.url().replacen("redis+cluster://", &format!("redis+cluster://127.0.0.1:{port},"), 1);
    let lab = Lab::at(url);
    for name in names(&cluster) {
        lab.run(["exec", &name, "--", "true"]).silently(0);
    }
}

/// The URL names one node, which dies. A holder at another node whose connection breaks afterwards
/// finds the Cluster by the nodes that it has heard of.
#[test]
fn holder_outlives_the_only_node_of_its_url() {
    each_new(|kind| {
        let mut cluster = Cluster::start(kind, 3);
        let names = names(&cluster);
        for node in 0..3 {
            cluster.node(node).ask::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        }
        let url = format!("redis+cluster://127.0.0.1:{}", cluster.node(0).port());
        let lab = Lab::at(url);
        let near = Lab::at(format!("redis+cluster://127.0.0.1:{}", cluster.node(2).port()));
        let near = near.with("RLOCK_NAMESPACE", lab.namespace());
        let mut holder = lab.hold_by(["exec", "--ttl", "6s", &names[2]]);
        near.until_subscribed(&names[2], 1);
        cluster.node_mut(0).kill();
        let connections = cluster.node(2).ask::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert!(connections > 0, "{kind:?}: the connection of the holder is cut");
        let began = std::time::Instant::now();
        wait_until("the lease would be over", || began.elapsed() > std::time::Duration::from_secs(8));
        assert!(holder.runs() && near.counts(&names[2]) == (1, 0), "{kind:?}");

        // A listing has the parts of the nodes that live, and names the other.
        let ran = near.run(["inspect"]);
        assert!(ran.stdout.contains(&names[2]), "{kind:?} {ran:?}");
        let said = ran.stderr.trim_end();
        assert!(said.starts_with("rlock: what is in the slots 0-5460 is missing: 'redis://127.0.0.1:"), "{said}");
        assert!(said.lines().count() == 1 && ran.code() == Some(69), "{kind:?} {ran:?}");
        holder.end().silently(0);
    });
}

/// "A slot that moves to another node takes its locks and queues along": Valkey 9 moves it as a
/// whole, again and again.
#[test]
fn lock_and_queue_follow_a_slot_that_moves_as_a_whole() {
    Kind::Valkey9.run(|kind| {
        let cluster = Cluster::start(kind, 3);
        let lab = Lab::at(cluster.url());
        let slot = cluster.slot("k");
        let mut holder = lab.hold_by(["exec", "k", "--ttl", "6s", "--grace", "200ms"]);
        let waiters = [1, 2].map(|place| {
            let waiter = lab.wait_by(["exec", "-q", "k"]);
            lab.until_waiting("k", place);
            waiter
        });
        let mut owner = cluster.owner(slot);
        for _ in 0..4 {
            cluster.move_whole(slot, owner, (owner + 1) % 3);
            owner = (owner + 1) % 3;
            lab.run(["exec", "-nq", "k", "--", "true"]).silently(75);
        }
        wait_until("all are subscribed at the last node", || {
            cluster.node(owner).ask::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).len() == 3
        });
        assert!(holder.runs());
        holder.end().silently(0);
        for mut waiter in waiters {
            waiter.expect_held();
            waiter.end().silently(0);
        }
        lab.assert_idle();
    });
}

/// A resharding that broke off leaves its slot open. New requests there fail and say why, and
/// doctor names the slot and what closes it.
#[test]
fn open_slot_is_told_to_new_requests_and_named_by_doctor() {
    each_new(|kind| {
        let cluster = Cluster::start(kind, 3);
        let lab = Lab::at(cluster.url());
        let slot = cluster.slot("k");
        let from = cluster.owner(slot);
        let migration = cluster.migrate(slot, from, (from + 1) % 3);
        let limit = ["--connect-timeout", "1s"];
        for words in
            [&["exec", limit[0], limit[1], "k", "--", "true"][..], &["acquire", "--for", "1m", limit[0], limit[1], "k"]]
        {
            let ran = lab.run(words);
            assert!(ran.failed(69).contains("is moving the data to another node of the Cluster;"), "{kind:?}: {ran:?}");
        }
        let ran = lab.run(["doctor"]);
        let found = check(&ran, "cluster");
        assert!(found.starts_with("fail") && found.contains(&format!("slot {slot} is open")), "{kind:?}: {ran:?}");
        assert!(found.contains("redis-cli --cluster fix 127.0.0.1:"), "{kind:?}: {ran:?}");
        assert_eq!(ran.code(), Some(69), "{kind:?}: {ran:?}");
        migration.finish();
        let ran = lab.run(["doctor"]);
        assert!(check(&ran, "cluster").contains("3 primaries, and no slot is open"), "{kind:?}: {ran:?}");
        assert_eq!(ran.code(), Some(0), "{kind:?}: {ran:?}");
    });
}

/// What a dead primary has is missing, and not foreign. doctor names the slots and fails, though
/// its own lock may be on another primary.
#[test]
fn doctor_names_the_slots_of_a_dead_primary_and_exits_69() {
    each_new(|kind| {
        let mut cluster = Cluster::start(kind, 3);
        for node in 0..3 {
            cluster.node(node).ask::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        }
        let dead = format!("'redis://127.0.0.1:{}' refused the connection", cluster.node(0).port());
        cluster.node_mut(0).kill();
        let ran = Lab::at(cluster.url()).run(["doctor"]);
        assert_eq!(ran.code(), Some(69), "{kind:?}: {ran:?}");
        for (name, found) in [
            ("cluster", format!("the slots 0-5460 are missing: {dead}: start the server")),
            ("names", format!("what is in the slots 0-5460 is missing: {dead}; elsewhere held: 0; waited for: 0:")),
        ] {
            let line = check(&ran, name);
            assert!(line.starts_with("fail") && line.contains(&found), "{kind:?}: {line}");
        }
    });
}

/// "a Cluster is Redis 7.0 or later": an older Cluster is refused with the reason.
#[test]
fn cluster_of_redis_6_exits_69_as_too_old() {
    rlock_testkit::needs::skip_unless!(Kind::Redis6.is_present());
    let cluster = Cluster::start(Kind::Redis6, 3);
    let lab = Lab::at(cluster.url());
    let ran = lab.run(["exec", "k", "--", "true"]);
    assert!(ran.failed(69).contains("7.0"), "{ran:?}");
    lab.assert_idle();
}
