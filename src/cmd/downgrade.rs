//! `rlock downgrade`: lowers the mode in which the rlock around this process holds a resource.

use super::context;
use crate::cli::invocation::Downgrade;
use crate::show::failure::Failure;
use crate::show::messages;

/// Downgrades the hold and returns the exit code.
pub(super) fn run(downgrade: &Downgrade) -> anyhow::Result<u8> {
    let mut store = context::open_store(&downgrade.store)?;
    let hold = context::hold_above(store.as_mut(), downgrade.resource.as_ref())?;
    let changed = store.downgrade(hold.session, &hold.resource, downgrade.mode).map_err(Failure::from)?;
    context::changed(changed, context::verbose(downgrade.verbose), || {
        messages::downgrades(&hold.claims, downgrade.mode)
    })
}
