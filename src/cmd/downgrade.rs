//! `rlock downgrade`: lowers the mode in which the rlock around this process holds a resource.

use super::context;
use crate::cli::invocation::Downgrade;
use crate::failure::Failure;

/// Downgrades the hold and returns the exit code.
pub(super) fn run(downgrade: &Downgrade) -> anyhow::Result<u8> {
    let mut store = context::open_store(&downgrade.store)?;
    let (session, resource) = context::hold_above(store.as_mut(), downgrade.resource.as_ref())?;
    let changed = store.downgrade(session, &resource, downgrade.mode).map_err(Failure::from)?;
    context::changed(changed)
}
