//! The scripts while the hash slot of their keys migrates. The server then runs a script only if
//! all its keys exist, and fails a command on a key that the script has emptied. What the script
//! has written by then stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::on_each_server;
use crate::history::play_migrating;
use crate::side::Migrating;
use rlock_testkit::histories::History;
use rlock_testkit::servers::Kind;
use rlock_testkit::servers::cluster::Cluster;
use rlock_testkit::share::share;

on_each_server!(no_script_uses_a_key_that_it_has_emptied);

fn no_script_uses_a_key_that_it_has_emptied(kind: Kind) {
    let cluster = Cluster::start(kind, 2);
    let slot = cluster.slot("t");
    let owner = cluster.owner(slot);
    let (to, scripts) = (cluster.id(1 - owner), Arc::new(AtomicU64::new(0)));
    let count = share(4, 12);
    History::play_all("--test differential", 1000 * (kind as u64 + 1), count, 90, |history| {
        let migrating = Migrating { slot: slot.to_string(), to: to.clone(), scripts: Arc::clone(&scripts) };
        play_migrating(history, cluster.node(owner), "t", migrating)
    });
    let scripts = scripts.load(Ordering::Relaxed);
    assert!(scripts > 10 * count, "only {scripts} scripts ran while the slot migrated");
}
