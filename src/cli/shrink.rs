//! `rlock shrink`: gives up a part of the interval that the enclosing rlock holds.

use clap::{ArgMatches, Command};

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::context;
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::{StoreOptions, id, read_store, verbose};
use rlock_arguments::{claims, narrowing};
use rlock_model::op::Change;
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_show::failure::Failure;
use rlock_show::messages;

pub(super) const SHRINK: Subcommand = Subcommand {
    name: "shrink",
    page: "rlock-shrink",
    section: 1,
    about: "Inside a hold: give up part of the interval",
    texts: &[include_str!("pages/shrink.txt")],
    define,
    read,
    has_numbers: true,
    runs_command: false,
};

/// `rlock shrink`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shrink {
    /// The store to use.
    pub(super) store: StoreOptions,
    /// The remaining part of the held span.
    pub(super) span: Span,
    /// Selects one of the held resources; needed only if there are several.
    pub(super) resource: Option<Resource>,
    /// Report the change.
    pub(super) verbose: bool,
}

/// The definition of its words.
fn define(command: Command) -> Command {
    command
        .override_usage("rlock shrink LO HI [--resource KEY]\n       rlock shrink '[LO,HI)' [--resource KEY]")
        .after_help(notes("", &["rlock shrink 1/4 1/2"]))
        .args(narrowing::remaining())
        .arg(narrowing::which())
        .arg(verbose("Say what was shrunk"))
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    Ok(Invocation::Shrink(Shrink {
        span: claims::span(&matches)?,
        resource: matches.remove_one(id::RESOURCE),
        verbose: matches.get_flag(id::VERBOSE),
        store: read_store(&mut matches),
    }))
}

/// Shrinks the hold and returns the exit code.
pub(super) fn run(shrink: Shrink) -> anyhow::Result<u8> {
    let mut store = context::open_store(&shrink.store)?;
    let hold = context::hold_above(store.as_mut(), shrink.resource.as_ref())?;
    let change = Change::Shrink { resource: hold.resource, span: shrink.span.clone() };
    let changed = store.change(hold.session, &[], &change).map_err(Failure::from)?;
    context::changed(changed, context::verbose(shrink.verbose), || messages::shrinks(&hold.claims, &shrink.span))
}
