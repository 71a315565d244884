//! `rlock serve`: serves locks to any program that speaks lines.

use super::context;
use crate::cli::invocation::Serve;

/// Serves until a signal ends the server, and returns the exit code.
pub(super) fn run(serve: &Serve) -> anyhow::Result<u8> {
    let _store = context::open_store(&serve.store)?;
    Ok(0)
}
