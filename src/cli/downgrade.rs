//! `rlock downgrade`: lowers the mode in which the rlock around this process holds a resource.

use clap::Args;

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::context;
use rlock_arguments::help::notes;
use rlock_arguments::narrowing;
use rlock_arguments::options::{self, StoreOptions};
use rlock_model::op::Change;
use rlock_show::failure::Failure;
use rlock_show::messages;

pub(super) const DOWNGRADE: Subcommand = Subcommand {
    name: "downgrade",
    page: "rlock-downgrade",
    section: 1,
    about: "Inside a hold: lower its mode",
    texts: &[include_str!("pages/downgrade.txt")],
    define: Downgrade::augment_args,
    read: |mut matches| Ok(Invocation::Downgrade(options::read(&mut matches))),
    has_numbers: false,
};

/// `rlock downgrade`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(override_usage = "rlock downgrade MODE [--resource KEY]", after_help = notes("", &["rlock downgrade read"]))]
#[group(skip)]
pub(crate) struct Downgrade {
    #[command(flatten)]
    pub(super) words: narrowing::Downgrade,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// Downgrades the hold and returns the exit code.
pub(super) fn run(downgrade: &Downgrade) -> anyhow::Result<u8> {
    let mut store = context::open_store(&downgrade.store)?;
    let hold = context::hold_above(store.as_mut(), downgrade.words.resource.as_ref())?;
    let change = Change::Downgrade { resource: hold.resource, mode: downgrade.words.mode };
    let changed = store.change(hold.session, &[], &change).map_err(Failure::from)?;
    context::changed(changed, context::verbose(downgrade.words.verbose), || {
        messages::downgrades(&hold.claims, downgrade.words.mode)
    })
}
