//! `rlock shrink`: gives up a part of the interval that the enclosing rlock holds.

use super::context;
use crate::cli::invocation::Shrink;
use crate::show::failure::Failure;
use crate::show::messages;

/// Shrinks the hold and returns the exit code.
pub(super) fn run(shrink: Shrink) -> anyhow::Result<u8> {
    let mut store = context::open_store(&shrink.store)?;
    let hold = context::hold_above(store.as_mut(), shrink.resource.as_ref())?;
    let changed = store.shrink(hold.session, &hold.resource, shrink.span.clone()).map_err(Failure::from)?;
    context::changed(changed, context::verbose(shrink.verbose), || messages::shrinks(&hold.claims, &shrink.span))
}
