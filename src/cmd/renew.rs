//! `rlock renew`: lets a kept hold of `rlock acquire` last longer.

use super::{acquired, context, variables};
use crate::cli::invocation::Renew;
use crate::lock::op::Refusal;
use crate::show::failure::Failure;
use crate::show::messages;
use crate::store::Changed;

/// Renews the hold and returns the exit code.
pub(super) fn run(renew: &Renew) -> anyhow::Result<u8> {
    let mut store = context::open_store(&renew.store)?;
    let id = renew.session.map_or_else(|| acquired::innermost(store.as_mut()), Ok)?;
    let Some(session) = acquired::held(store.as_mut(), id)? else { return Err(acquired::not_held(id).into()) };
    let without_end = || Failure::usage(format!("session {id} ends with its process: there is nothing to renew"));
    if session.job.keep_for.is_none() {
        return Err(without_end().into());
    }
    match store.extend(id, &acquired::resources(&session), renew.length).map_err(Failure::from)? {
        Changed::Done => {
            if context::verbose(renew.verbose) {
                let length = renew.length.or(session.job.keep_for).unwrap_or_default();
                super::say(&messages::renews(&variables::parts(&session).0, length));
            }
            Ok(0)
        }
        Changed::Lost => Err(acquired::not_held(id).into()),
        Changed::Refused(Refusal::NotKept) => Err(without_end().into()),
        Changed::Refused(refusal) => Err(Failure::refused(&refusal).into()),
    }
}
