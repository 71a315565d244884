//! `rlock downgrade`: lowers the mode in which the rlock around this process holds a resource.

use clap::{ArgMatches, Command};

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::context;
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::narrowing;
use rlock_arguments::options::{StoreOptions, id, read_store, verbose};
use rlock_model::mode::Mode;
use rlock_model::op::Change;
use rlock_model::resource::Resource;
use rlock_show::failure::Failure;
use rlock_show::messages;

pub(super) const DOWNGRADE: Subcommand = Subcommand {
    name: "downgrade",
    page: "rlock-downgrade",
    section: 1,
    about: "Inside a hold: lower its mode",
    texts: &[include_str!("pages/downgrade.txt")],
    define,
    read,
    has_numbers: false,
    runs_command: false,
};

/// `rlock downgrade`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Downgrade {
    /// The store to use.
    pub(super) store: StoreOptions,
    /// The mode to lower the hold to. The store refuses write for a lower hold.
    pub(super) mode: Mode,
    /// Selects one of the held resources; needed only if there are several.
    pub(super) resource: Option<Resource>,
    /// Report the change.
    pub(super) verbose: bool,
}

/// The definition of its words.
fn define(command: Command) -> Command {
    command
        .override_usage("rlock downgrade MODE [--resource KEY]")
        .after_help(notes("", &["rlock downgrade read"]))
        .arg(narrowing::new_mode())
        .arg(narrowing::which())
        .arg(verbose("Say what was lowered"))
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Downgrade(Downgrade {
        mode: narrowing::read_mode(&mut matches),
        resource: matches.remove_one(id::RESOURCE),
        verbose: matches.get_flag(id::VERBOSE),
        store: read_store(&mut matches),
    }))
}

/// Downgrades the hold and returns the exit code.
pub(super) fn run(downgrade: &Downgrade) -> anyhow::Result<u8> {
    let mut store = context::open_store(&downgrade.store)?;
    let hold = context::hold_above(store.as_mut(), downgrade.resource.as_ref())?;
    let change = Change::Downgrade { resource: hold.resource, mode: downgrade.mode };
    let changed = store.change(hold.session, &[], &change).map_err(Failure::from)?;
    context::changed(changed, context::verbose(downgrade.verbose), || {
        messages::downgrades(&hold.claims, downgrade.mode)
    })
}
