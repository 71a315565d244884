//! `rlock serve`: serves locks to any program that speaks lines.

use std::sync::Arc;

use super::context;
use super::defaults::Chosen;
use crate::cli::invocation::Serve;
use crate::serve;

/// Serves until a signal ends the server, and returns the exit code.
pub(super) fn run(options: &Serve) -> anyhow::Result<u8> {
    let options = &Serve { verbose: context::verbose(options.verbose), ..options.clone() };
    let (named, store) = context::open_named(&options.store)?;
    let token = options.token_file.as_deref().map(serve::token::read).transpose()?;
    let Chosen { terms, grace, history } =
        named.defaults.choose(options.ttl, options.grace, options.history, store.leases())?;
    let open = Arc::new(move || named.open(None));
    serve::run::run(options, token, (terms, grace, history), store, open)
}
