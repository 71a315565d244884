//! `rlock held`: tells whether this process runs below a live hold of a resource.

use super::context;
use crate::cli::invocation::HeldBy;
use crate::lock::mode::{Mode, Nesting};
use crate::lock::op::HolderListing;
use crate::lock::span::Span;
use crate::show::failure::Failure;
use crate::system::exit;

/// Asks the store and returns the exit code.
pub(super) fn run(held: &HeldBy) -> anyhow::Result<u8> {
    let verbose = context::verbose(held.verbose);
    let above = context::sessions_above()?;
    if above.is_empty() {
        if verbose {
            super::say(&format!("not below any rlock: {} is not set", context::SESSION));
        }
        return Ok(exit::NOT_HELD);
    }
    let mut store = context::open_store(&held.store)?;
    let seen = store.inspect(std::slice::from_ref(&held.resource)).map_err(Failure::from)?;
    let unusable = store.take_unusable();
    if !unusable.is_empty() {
        return Ok(super::after_all_but(&unusable));
    }
    let mut holders = seen.resources.iter().flat_map(|listing| &listing.holders);
    let is_held = holders.any(|holder| {
        // A server lists a lease that has ended until something removes it.
        let is_live = !holder.is_over(seen.now);
        is_live && above.contains(&holder.session) && satisfies(holder, held.mode)
    });
    if verbose {
        let (name, mode) = (&held.resource, held.mode);
        let not = if is_held { "a live" } else { "no live" };
        super::say(&format!("below {not} lock of '{name}' that allows {mode}"));
    }
    Ok(if is_held { 0 } else { exit::NOT_HELD })
}

/// Whether a hold allows all that a claim on the whole resource in this mode would allow.
fn satisfies(holder: &HolderListing, mode: Mode) -> bool {
    holder.span.covers(&Span::Whole) && mode.below(holder.mode) == Nesting::AtOnce
}
