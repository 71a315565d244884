//! `rlock serve`: serves locks to any program that speaks lines.

use std::sync::Arc;

use super::context;
use crate::cli::invocation::Serve;
use crate::serve;

/// Serves until a signal ends the server, and returns the exit code.
pub(super) fn run(options: &Serve) -> anyhow::Result<u8> {
    let store = context::open_store(&options.store)?;
    let token = options.token_file.as_deref().map(serve::token::read).transpose()?;
    let ttl = context::ttl(options.ttl)?;
    let grace = context::grace(ttl, options.grace, options.grace_yields, store.leases())?;
    let named = options.store.clone();
    let open = Arc::new(move || context::open_store_quietly(&named));
    let history = context::history(options.history)?;
    serve::run::run(options, token, (ttl, grace, history), store, open)
}
