//! Numbers the slots of a resource: 0 to N−1 for N slots.
//!
//! A grant gets the smallest number that no holder has. A share below a slot has the number of that
//! slot, and keeps it when the share outlives the slot.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::index::Query;
use super::mode::{Mode, Modes};
use super::records::{Records, ResourceState};
use super::resource::Resource;

/// The number of the next slot that is granted.
pub(super) fn free<R: Records>(records: &R, name: &Resource, state: &ResourceState) -> Result<u32, R::Error> {
    let mut taken = BTreeSet::new();
    let held = Query { held: Modes::of(&[Mode::Slot]), waiting: Modes::EMPTY, ..Query::ALL };
    state.tree.visit(records, name, held, |entry| {
        taken.extend(entry.slot);
        ControlFlow::Continue(())
    })?;
    Ok((0..).find(|number| !taken.contains(number)).unwrap_or(u32::MAX))
}
