//! Checks the records of a table: each record is valid, and its statements about other records are
//! true (invariants 5 and 7 of the lock table).

use std::collections::{HashMap, HashSet};

use super::super::beacon::Identity;
use super::super::lmdb::Item;
use rlock_model::index::{Entry, Node, Rank};
use rlock_model::mode::Mode;
use rlock_model::past::{HISTORY_MAX, Past};
use rlock_model::records::{ClaimRecord, Phase, ResourceState, Session};
use rlock_store::records::codec::{Damaged, decode, decode_entry, decode_open, ensure};
use rlock_store::records::{Clock, resource};
use rlock_sys::clock::StoreTime;

/// The records of a table. Each map's keys are the keys of the table without their first byte.
#[derive(Default)]
struct Table<'b> {
    sessions: HashMap<&'b [u8], Session>,
    resources: HashMap<&'b [u8], ResourceState>,
    nodes: HashMap<&'b [u8], Node>,
    expiries: HashSet<&'b [u8]>,
    pasts: HashMap<&'b [u8], Past>,
    checks: HashSet<&'b [u8]>,
    entries: HashSet<&'b [u8]>,
}

/// Fails unless the items are the records of a valid table.
pub(super) fn check(items: &[Item<'_>]) -> Result<(), Damaged> {
    let mut table = Table::default();
    for (key, value) in items {
        table.take(key, value)?;
    }
    // The number of each session's claims that stand in a tree.
    let mut found: HashMap<Vec<u8>, usize> = HashMap::new();
    for (key, state) in std::mem::take(&mut table.resources) {
        table.check_resource(key, &state, &mut found)?;
    }
    let all_found =
        table.sessions.iter().all(|(key, session)| found.get(*key).copied().unwrap_or(0) == session.claims.len());
    let are_in_phase = table.sessions.values().all(is_in_phase);
    table.check_pasts()?;
    ensure(all_found && are_in_phase && table.nodes.is_empty() && table.has_exactly_the_expiries())
}

/// Whether the claims and the expiry of a session fit its phase.
fn is_in_phase(session: &Session) -> bool {
    let is_due = !matches!(session.phase, Phase::Granted | Phase::Kept) || session.expiry.is_some();
    let has_slot = |record: &ClaimRecord| session.is_holder() && record.claim.mode == Mode::Slot;
    is_due
        && session
            .claims
            .iter()
            .all(|record| record.rank.is_held() == session.is_holder() && record.slot.is_some() == has_slot(record))
}

/// Fails if a number that rises with each use is close to the end of its range.
fn in_range(number: u64) -> Result<(), Damaged> {
    ensure(number <= u64::MAX / 4)
}

/// The namespace with its end, and the rest of a key.
fn split(key: &[u8]) -> Result<(&[u8], &[u8]), Damaged> {
    let zero = key.iter().position(|byte| *byte == 0).ok_or(Damaged)?;
    Ok(key.split_at(zero + 1))
}

impl<'b> Table<'b> {
    fn take(&mut self, key: &'b [u8], value: &[u8]) -> Result<(), Damaged> {
        let (kind, name) = key.split_first().ok_or(Damaged)?;
        match kind {
            b'c' if name.is_empty() => in_range(decode::<Clock>(value)?.now.as_micros())?,
            b'q' if name.is_empty() => in_range(decode(value)?)?,
            b'e' => drop(self.expiries.insert(name)),
            b'f' => drop(self.checks.insert(name)),
            b'h' => {
                decode_entry(value)?;
                self.entries.insert(name);
            }
            b'p' => drop(self.pasts.insert(name, decode_open(value)?)),
            b'b' => drop(decode::<Identity>(value)?),
            b's' => drop(self.sessions.insert(name, decode_open(value)?)),
            b'r' => drop(self.resources.insert(name, decode(value)?)),
            b'n' => drop(self.nodes.insert(name, decode(value)?)),
            // Later versions keep here what this one does not know.
            b'x' => {}
            _ => return Err(Damaged),
        }
        Ok(())
    }

    /// Whether there is a key for the expiry of each session that has one, and no other.
    fn has_exactly_the_expiries(&self) -> bool {
        let expires = self.sessions.iter().filter_map(|(key, session)| Some((key, session.expiry?)));
        let key = |(key, expiry): (&&[u8], StoreTime)| {
            let (namespace, id) = key.split_at(key.len().saturating_sub(16));
            [namespace, &expiry.as_micros().to_be_bytes(), id].concat()
        };
        let expected: Vec<_> = expires.map(key).collect();
        expected.len() == self.expiries.len() && expected.iter().all(|key| self.expiries.contains(key.as_slice()))
    }

    /// Makes sure that the table checks each past at its instant, and that it has exactly the
    /// entries of the rings.
    fn check_pasts(&self) -> Result<(), Damaged> {
        let mut entered = 0;
        for (key, past) in &self.pasts {
            let (namespace, name) = split(key)?;
            let check_at = past.check_at.as_micros();
            let ring = &past.ring;
            in_range(ring.end)?;
            ensure(ring.start <= ring.end && ring.end - ring.start <= u64::from(HISTORY_MAX))?;
            ensure(self.checks.contains([namespace, &check_at.to_be_bytes(), name].concat().as_slice()))?;
            for number in ring.clone() {
                ensure(self.entries.contains([*key, b"\0", &number.to_be_bytes()[..]].concat().as_slice()))?;
            }
            entered += ring.end - ring.start;
        }
        ensure(self.checks.len() == self.pasts.len() && self.entries.len() as u64 == entered)
    }

    fn check_resource(
        &mut self,
        key: &[u8],
        state: &ResourceState,
        found: &mut HashMap<Vec<u8>, usize>,
    ) -> Result<(), Damaged> {
        let (namespace, name) = split(key)?;
        let resource = resource(name)?;
        in_range(state.last_token)?;
        ensure(state.tree.next <= u32::MAX / 2)?;
        let mut entries = Vec::new();
        self.collect(key, &state.tree.root, state.tree.next, &mut entries)?;
        let order = |entry: &Entry| (entry.lower.clone(), entry.rank, entry.session, entry.claim);
        ensure(entries.is_sorted_by(|one, other| order(one) < order(other)))?;
        let mut counts = ResourceState::default();
        for entry in &entries {
            let session_key = [namespace, &entry.session.0].concat();
            let session = self.sessions.get(session_key.as_slice()).ok_or(Damaged)?;
            let record = session.claims.get(entry.claim as usize).ok_or(Damaged)?;
            let claim = &record.claim;
            let said = (&entry.lower, &entry.upper, entry.mode, entry.rank, entry.shares, entry.slot);
            let is = (claim.span.lower(), claim.span.upper(), claim.mode, record.rank, record.shares, record.slot);
            let slot = claim.mode == Mode::Slot;
            let fits = claim.resource == resource && claim.slots.is_some() == slot && (slot || !record.shares);
            ensure(said == is && fits && record.rank != Rank::LAST)?;
            *(if record.rank.is_held() { &mut counts.held } else { &mut counts.waiting }) += 1;
            counts.waiting_below += u32::from(!record.rank.is_held() && !session.ancestors.is_empty());
            counts.slot_claims += u32::from(slot);
            counts.shared_slots += u32::from(record.shares);
            if !record.rank.is_held() && state.overtakers.contains(&entry.session) {
                counts.overtakers.insert(entry.session);
            }
            *found.entry(session_key).or_default() += 1;
        }
        let said = (state.held, state.waiting, state.waiting_below, state.slot_claims, state.shared_slots);
        let is = (counts.held, counts.waiting, counts.waiting_below, counts.slot_claims, counts.shared_slots);
        ensure(said == is && state.overtakers == counts.overtakers && !entries.is_empty())
    }

    /// Collects the entries below a node. Each node is removed from the map, so no node is visited
    /// twice.
    fn collect(&mut self, resource: &[u8], node: &Node, next: u32, entries: &mut Vec<Entry>) -> Result<(), Damaged> {
        match node {
            Node::Leaf(leaf) => entries.extend_from_slice(leaf),
            Node::Inner(children) => {
                for child in children {
                    let key = [resource, b"\0", &child.node.to_be_bytes()].concat();
                    let below = self.nodes.remove(key.as_slice()).ok_or(Damaged)?;
                    ensure(child.node < next && child.sums_up(&below))?;
                    self.collect(resource, &below, next, entries)?;
                }
            }
        }
        Ok(())
    }
}
