//! Numbers the slots of a resource: 0 to N−1 for N slots.
//!
//! A grant gets the smallest number that no holder has. A claim that takes from an ancestor's slots
//! has one of their numbers, and keeps it when it outlives the ancestor's hold.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::conflict::Asker;
use super::index::Query;
use super::mode::{Mode, Modes};
use super::nesting::Pool;
use super::records::{Records, ResourceState};
use super::resource::Resource;

/// The held slots.
const HELD: Query<'static> = Query { held: Modes::of(&[Mode::Slot]), waiting: Modes::EMPTY, ..Query::ALL };

/// The number of the next slot that is granted.
pub(super) fn free<R: Records>(records: &R, name: &Resource, state: &ResourceState) -> Result<u32, R::Error> {
    let mut taken = BTreeSet::new();
    state.tree.visit(records, name, HELD, |entry| {
        taken.extend(entry.slot);
        ControlFlow::Continue(())
    })?;
    Ok((0..).find(|number| !taken.contains(number)).unwrap_or(u32::MAX))
}

/// The numbers of a pool that a session below its holder may take, in rising order.
pub(super) fn free_of<R: Records>(
    records: &R,
    name: &Resource,
    state: &ResourceState,
    pool: Pool,
    asker: Asker<'_>,
) -> Result<BTreeSet<u32>, R::Error> {
    let is_divided = pool.is_divided();
    let mut free = pool.numbers;
    state.tree.visit(records, name, HELD, |entry| {
        if let Some(number) = entry.slot.filter(|_| is_divided && entry.shares && !asker.passes(entry.session)) {
            free.remove(&number);
        }
        ControlFlow::Continue(())
    })?;
    Ok(free)
}
