//! `rlock renew`: lets a kept hold of `rlock acquire` last longer.

use std::time::Duration;

use clap::Args;

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::{acquired, context, say, variables};
use rlock_arguments::help::notes;
use rlock_arguments::options::{self, StoreOptions};
use rlock_arguments::values::{self, Which};
use rlock_model::op::{Change, Refusal};
use rlock_show::failure::Failure;
use rlock_show::messages;
use rlock_store::Changed;

pub(super) const RENEW: Subcommand = Subcommand {
    name: "renew",
    page: "rlock-renew",
    section: 1,
    about: "Let a lock of rlock acquire last longer",
    texts: &[include_str!("pages/renew.txt")],
    define: Renew::augment_args,
    read: |mut matches| Ok(Invocation::Renew(options::read(&mut matches))),
    has_numbers: false,
};

/// `rlock renew`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(
    override_usage = "rlock renew [--for DUR] [SESSION|KEY] [--export]",
    after_help = notes(
        "Exit: 0 renewed; 76 not held any more; 64 not a lock of 'rlock acquire --for'.",
        &["rlock renew --for 1h"],
    )
)]
#[group(skip)]
pub(crate) struct Renew {
    /// The session, or the KEY of a lock for a process above [default: the innermost of rlock
    /// acquire around].
    #[arg(id = "SESSION", value_parser = values::which)]
    pub(super) lock: Option<Which>,
    /// Hold for DUR from now, or 'ever' [default: as acquire]; never shorter.
    #[arg(long = "for", value_name = "DUR", value_parser = values::hold)]
    pub(super) length: Option<Duration>,
    /// Print nothing, or on failure (exit N), for a shell's eval.
    #[arg(long)]
    pub(super) export: bool,
    /// Say what was renewed.
    #[arg(short, long)]
    pub(super) verbose: bool,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// Renews the hold and returns the exit code.
pub(super) fn run(renew: &Renew) -> anyhow::Result<u8> {
    let mut store = context::open_store(&renew.store)?;
    let id = match &renew.lock {
        None => acquired::innermost(store.as_mut())?,
        Some(which) => acquired::meant(store.as_mut(), which)?,
    };
    let Some(session) = acquired::held(store.as_mut(), id)? else { return Err(acquired::not_held(id).into()) };
    let without_end = || Failure::usage(format!("session {id} ends with its process: there is nothing to renew"));
    if session.job.keep_for.is_none() {
        return Err(without_end().into());
    }
    let change = Change::Extend { by: renew.length };
    match store.change(id, &acquired::resources(&session), &change).map_err(Failure::from)? {
        Changed::Done => {
            if context::verbose(renew.verbose) {
                let length = renew.length.or(session.job.keep_for).unwrap_or_default();
                say(&messages::renews(&variables::parts(&session).0, length));
            }
            Ok(0)
        }
        Changed::Lost => Err(acquired::not_held(id).into()),
        Changed::Refused(Refusal::NotKept) => Err(without_end().into()),
        Changed::Refused(refusal) => Err(Failure::refused(&refusal).into()),
    }
}
