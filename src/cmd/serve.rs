//! `rlock serve`: serves locks to any program that speaks lines.

use std::sync::Arc;

use super::context::{self, Named};
use crate::cli::invocation::Serve;
use crate::serve;

/// Serves until a signal ends the server, and returns the exit code.
pub(super) fn run(options: &Serve) -> anyhow::Result<u8> {
    let options = &Serve { verbose: context::verbose(options.verbose), ..options.clone() };
    let named = Named::find(&options.store)?;
    let store = named.open(None)?;
    context::warn_of_password(&options.store);
    let token = options.token_file.as_deref().map(serve::token::read).transpose()?;
    let ttl = named.defaults.ttl(options.ttl)?;
    let grace = named.defaults.grace(options.grace, ttl, store.leases())?;
    let history = named.defaults.history(options.history)?;
    let open = Arc::new(move || named.open(None));
    serve::run::run(options, token, (ttl, grace, history), store, open)
}
