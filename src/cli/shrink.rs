//! `rlock shrink`: gives up a part of the interval that the enclosing rlock holds.

use clap::{ArgMatches, Args};

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::context;
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::narrowing;
use rlock_arguments::options::{self, StoreOptions};
use rlock_model::op::Change;
use rlock_model::span::Span;
use rlock_show::failure::Failure;
use rlock_show::messages;

pub(super) const SHRINK: Subcommand = Subcommand {
    name: "shrink",
    page: "rlock-shrink",
    section: 1,
    about: "Inside a hold: give up part of the interval",
    texts: &[include_str!("pages/shrink.txt")],
    define: Shrink::augment_args,
    read,
    has_numbers: true,
};

/// `rlock shrink`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(
    override_usage = "rlock shrink LO HI [--resource KEY]\n       rlock shrink '[LO,HI)' [--resource KEY]",
    after_help = notes("", &["rlock shrink 1/4 1/2"])
)]
#[group(skip)]
pub(crate) struct Shrink {
    #[command(flatten)]
    pub(super) words: narrowing::Shrink,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let shrink: Shrink = options::read(&mut matches);
    let span = shrink.words.span()?;
    Ok(Invocation::Shrink(shrink, span))
}

/// Shrinks the hold and returns the exit code.
pub(super) fn run(shrink: &Shrink, span: Span) -> anyhow::Result<u8> {
    let mut store = context::open_store(&shrink.store)?;
    let hold = context::hold_above(store.as_mut(), shrink.words.resource.as_ref())?;
    let change = Change::Shrink { resource: hold.resource, span: span.clone() };
    let changed = store.change(hold.session, &[], &change).map_err(Failure::from)?;
    context::changed(changed, context::verbose(shrink.words.verbose), || messages::shrinks(&hold.claims, &span))
}
