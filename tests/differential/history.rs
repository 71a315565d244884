//! Plays random histories on both tables.

use std::sync::atomic::{AtomicU64, Ordering};

use rlock_model::mode::Mode::{self, Prewrite, Read, Slot, Write};
use rlock_model::op::Op;
use rlock_model::records::Records as _;
use rlock_model::resource::Resource;
use rlock_model::table::LockTable;
use rlock_redis::codec::{Variant, Wake};
use rlock_sys::clock::StoreTime;

use crate::both::Both;
use crate::side::{Migrating, Side};
use rlock_testkit::histories::{History, Profile, Stage};
use rlock_testkit::random::Random;
use rlock_testkit::servers::Server;

/// Names with characters that are special to Redis, to a Cluster or to SCAN, and ordinary names.
const NAMES: [&str; 7] = ["nightly", "a b:c", "{tag}:x", "{tag}:y", "{}*?[%]\\", "名前 é", "x}y{z}"];
const ENDS: [&str; 12] =
    ["-inf", "-1e3", "-22/7", "0", "1/3", "0.5", "1", "1.5", "2", "22/7", "1000000000000000000001", "inf"];
const MODES: [&[Mode]; 6] = [
    &[Read, Prewrite, Write, Write, Slot],
    &[Read, Prewrite, Write, Write, Slot],
    &[Slot, Slot, Slot, Slot, Slot, Slot, Slot, Write],
    &[Read, Read, Prewrite, Prewrite, Write],
    &[Slot, Slot, Slot, Read, Write],
    &[Read, Write],
];

/// Plays a history in a fresh namespace. Half of the histories do without the fast paths of the
/// scripts. In a third, each call does little at a time.
pub(crate) fn play(history: &History, server: &Server) -> Result<(), String> {
    let mut side = fresh(server);
    side.variant = Variant { is_general: history.seed % 2 == 1, is_bounded: history.seed % 3 == 1 };
    play_on(history, side)
}

/// A namespace that no other history uses.
fn fresh(server: &Server) -> Side {
    static PLAYED: AtomicU64 = AtomicU64::new(0);
    let number = PLAYED.fetch_add(1, Ordering::Relaxed);
    Side::new(server, &format!("history {number}"), Wake::Nobody)
}

/// Plays a history in a fresh namespace of a node of a Cluster, whose slot of `tag` migrates.
pub(crate) fn play_migrating(history: &History, node: &Server, tag: &str, migrating: Migrating) -> Result<(), String> {
    let mut side = fresh(node);
    side.variant = Variant { is_general: false, is_bounded: history.seed % 3 == 1 };
    side.migrating = Some(migrating);
    let names: Vec<_> = NAMES.iter().enumerate().map(|(index, _)| format!("{{{tag}}}{index}")).collect();
    play_with(history, side, &names.iter().map(String::as_str).collect::<Vec<_>>(), false)
}

/// Plays a history in an empty namespace.
pub(crate) fn play_on(history: &History, side: Side) -> Result<(), String> {
    let all_named = Random::seeded(!history.seed).chance(50);
    play_with(history, side, &NAMES, all_named)
}

fn play_with(history: &History, side: Side, all: &[&str], all_named: bool) -> Result<(), String> {
    let mut random = Random::seeded(history.seed);
    let count = 3 + random.below(5) as usize;
    let from = random.below(all.len() as u64) as usize;
    let names = all.iter().cycle().skip(from).take(count);
    let resources: Vec<_> = names.map(|name| Resource::new(name).unwrap()).collect();
    // With few resources the queues are long.
    let used = if random.chance(30) { 1 + random.below(2) as usize } else { count };
    let profile = Profile {
        resources: resources[..used].to_vec(),
        ends: ENDS.map(str::to_owned).to_vec(),
        modes: MODES[random.below(MODES.len() as u64) as usize],
        claims: 4,
        acquire: 46,
        nested: if random.chance(25) { 86 } else { 35 },
        leases: 85,
        jobs: 100,
        live_max: 12,
        is_entangled: random.chance(50),
        is_free: false,
    };
    history.play(profile, &mut Both::new(side, resources, all_named))
}

impl Stage for Both {
    fn table(&self) -> &LockTable {
        &self.table
    }

    fn apply(&mut self, now: StoreTime, op: Op, claimed: &[Resource]) -> Result<(), String> {
        Self::apply(self, now, op, claimed)
    }

    /// The clock has to be past the last token of each idle resource. The server keeps that token,
    /// but the model forgets it with the last session, and needs the clock to give a higher one.
    fn earliest(&mut self, now: StoreTime) -> StoreTime {
        let tokens = self.last_tokens();
        let mut earliest = now;
        loop {
            let mut after = LockTable::new(self.table.records().clone());
            let Ok(_) = after.apply(earliest, Op::Expire);
            let idle = |name: &Resource| matches!(after.records().resource(name), Ok(None));
            match tokens.iter().filter(|(name, _)| idle(name)).map(|(_, token)| *token).max() {
                Some(top) if top >= earliest.as_micros() => earliest = StoreTime::from_micros(top + 1),
                _ => return earliest,
            }
        }
    }
}
