//! `rlock held`: tells whether this process runs below a live hold of a resource.

use std::path::PathBuf;

use clap::{ArgMatches, Args};

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::{acquired, after_all_but, context, paths, say};
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::{self, KEY, StoreOptions};
use rlock_arguments::{claims, values};
use rlock_model::mode::{Mode, Nesting};
use rlock_model::op::HolderListing;
use rlock_model::request::{Claim, SessionId};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_show::failure::Failure;
use rlock_show::messages;
use rlock_store::Inspection;
use rlock_sys::exit;

pub(super) const HELD: Subcommand = Subcommand {
    name: "held",
    page: "rlock-held",
    section: 1,
    about: "Tell by the exit status whether this runs below a lock",
    texts: &[include_str!("pages/held.txt")],
    define: HeldBy::augment_args,
    read,
    has_numbers: false,
};

/// `rlock held`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(
    override_usage = "rlock held [--read|--prewrite|--write|--slot] KEY|--path P",
    after_help = notes(
        "Exit: 0 held; 1 not held; 69 no store.",
        &["rlock held backup || echo 'start this by rlock exec backup'"],
    )
)]
#[group(skip)]
pub(crate) struct HeldBy {
    /// What has to be held.
    #[arg(id = KEY, value_parser = values::resource, required_unless_present = "path")]
    pub(super) key: Option<Resource>,
    /// The file or folder that has to be held.
    #[arg(long, value_name = "P", conflicts_with_all = [KEY, "slot"])]
    pub(super) path: Vec<PathBuf>,
    /// For reading, or in any stronger mode.
    #[arg(long, group = "mode")]
    pub(super) read: bool,
    /// For reading now and writing later, or for writing.
    #[arg(long, group = "mode")]
    pub(super) prewrite: bool,
    /// For writing, as without an option.
    #[arg(long, group = "mode")]
    pub(super) write: bool,
    /// One of its slots, or for writing.
    #[arg(long, group = "mode")]
    pub(super) slot: bool,
    /// Say in words what the exit status tells.
    #[arg(short, long)]
    pub(super) verbose: bool,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let held: HeldBy = options::read(&mut matches);
    let modes = [(held.read, Mode::Read), (held.prewrite, Mode::Prewrite), (held.slot, Mode::Slot)];
    let mode = modes.into_iter().find(|(is_asked, _)| *is_asked).map_or(Mode::Write, |(_, mode)| mode);
    let claim = match (&held.path[..], &held.key) {
        ([path], _) => claims::path_claim("path", path, mode, paths::resolved)?,
        ([_, ..], _) => return Err(Mistake::plain("name one --path, since held looks at one claim")),
        ([], key) => {
            let resource = key.clone().expect("clap requires KEY or a path");
            Claim { resource, mode, span: Span::Whole, slots: None }
        }
    };
    Ok(Invocation::Held(held, claim))
}

/// Asks the store and returns the exit code.
pub(super) fn run(held: &HeldBy, claim: &Claim) -> anyhow::Result<u8> {
    let verbose = context::verbose(held.verbose);
    let name = std::slice::from_ref(&claim.resource);
    let mut store = context::open_store(&held.store)?;
    let mut above = context::sessions_above(store.as_mut())?;
    let seen = store.inspect(name).map_err(Failure::from)?;
    let unusable = store.take_unusable();
    if !unusable.is_empty() {
        return Ok(after_all_but(&unusable));
    }
    above.extend(acquired::lasting_for_parents(&seen));
    if above.is_empty() {
        let others = by_others(&seen, claim, &above);
        if verbose || !others.is_empty() {
            say(&format!("not below any rlock: {}{others}", context::why_not_below()?));
        }
        return Ok(exit::NOT_HELD);
    }
    let mut holders = seen.resources.iter().flat_map(|listing| &listing.holders);
    let is_held = holders.any(|holder| {
        // A server lists a lease that has ended until something removes it.
        let is_live = !holder.is_over(seen.now);
        is_live && above.contains(&holder.session) && satisfies(holder, claim)
    });
    let others = if is_held { String::new() } else { by_others(&seen, claim, &above) };
    if verbose || !others.is_empty() {
        let Claim { resource, mode, span, .. } = claim;
        let not = if is_held { "a live" } else { "no live" };
        say(&format!("below {not} lock of {} that allows {mode}{others}", messages::part(resource.as_str(), span)));
    }
    Ok(if is_held { 0 } else { exit::NOT_HELD })
}

/// Says that somebody else holds what is asked for.
fn by_others(seen: &Inspection, claim: &Claim, above: &[SessionId]) -> String {
    let mut holders = seen.resources.iter().flat_map(|listing| &listing.holders);
    let is_other = |it: &HolderListing| !it.is_over(seen.now) && !above.contains(&it.session);
    let is_held = holders.any(|holder| is_other(holder) && holder.span.overlaps(&claim.span));
    let words = messages::words(&claim.resource, &claim.span);
    if is_held { format!("; somebody else holds it: see 'rlock inspect {words}'") } else { String::new() }
}

/// Whether a hold allows all that the claim would allow.
fn satisfies(holder: &HolderListing, claim: &Claim) -> bool {
    holder.span.covers(&claim.span) && claim.mode.below(holder.mode) == Nesting::AtOnce
}
