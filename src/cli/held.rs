//! `rlock held`: tells whether this process runs below a live hold of a resource.

use std::path::PathBuf;

use clap::{ArgGroup, ArgMatches, Command};

use super::Invocation;
use super::subcommand::Subcommand;
use crate::environment::{acquired, after_all_but, context, names, paths, say};
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::{StoreOptions, given, id, read_store, switch, verbose, word};
use rlock_arguments::{claims, values};
use rlock_model::mode::{Mode, Nesting};
use rlock_model::op::HolderListing;
use rlock_model::request::Claim;
use rlock_model::span::Span;
use rlock_show::failure::Failure;
use rlock_show::messages;
use rlock_sys::exit;

pub(super) const HELD: Subcommand = Subcommand {
    name: "held",
    page: "rlock-held",
    section: 1,
    about: "Tell by the exit status whether this runs below a lock",
    texts: &[include_str!("pages/held.txt")],
    define,
    read,
    has_numbers: false,
    runs_command: false,
};

/// `rlock held`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeldBy {
    /// The store to ask.
    pub(super) store: StoreOptions,
    /// What has to be held, in this mode or a stronger one.
    pub(super) claim: Claim,
    /// Say in words what the exit code tells.
    pub(super) verbose: bool,
}

/// The definition of its words.
fn define(command: Command) -> Command {
    let mode = |id, help| switch(id, help).group(id::MODE);
    command
        .override_usage("rlock held [--read|--prewrite|--write|--slot] KEY|--path P")
        .after_help(notes(
            "Exit: 0 held; 1 not held; 69 no store.",
            &["rlock held backup || echo 'start this by rlock exec backup'"],
        ))
        .group(ArgGroup::new(id::MODE))
        .arg(word(id::KEY, values::resource, "What has to be held").required_unless_present(id::PATH))
        .arg(claims::path(id::PATH, "The file or folder that has to be held").conflicts_with_all([id::KEY, id::SLOT]))
        .arg(mode(id::READ, "For reading, or in any stronger mode"))
        .arg(mode(id::PREWRITE, "For reading now and writing later, or for writing"))
        .arg(mode(id::WRITE, "For writing, as without an option"))
        .arg(mode(id::SLOT, "One of its slots, or for writing"))
        .arg(verbose("Say in words what the exit status tells"))
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let modes = [(id::READ, Mode::Read), (id::PREWRITE, Mode::Prewrite), (id::SLOT, Mode::Slot)];
    let asked = modes.into_iter().find(|(id, _)| matches.get_flag(id)).map(|(_, mode)| mode);
    let mode = asked.unwrap_or(Mode::Write);
    let claim = match matches.remove_one::<PathBuf>(id::PATH) {
        Some(path) => claims::path_claim(id::PATH, &path, mode, paths::resolved)?,
        None => Claim { resource: given(&mut matches, id::KEY), mode, span: Span::Whole, slots: None },
    };
    Ok(Invocation::Held(HeldBy { claim, verbose: matches.get_flag(id::VERBOSE), store: read_store(&mut matches) }))
}

/// Asks the store and returns the exit code.
pub(super) fn run(held: &HeldBy) -> anyhow::Result<u8> {
    let verbose = context::verbose(held.verbose);
    let mut above = context::sessions_above()?;
    let name = std::slice::from_ref(&held.claim.resource);
    let mut store = context::open_store(&held.store)?;
    let seen = store.inspect(name).map_err(Failure::from)?;
    let unusable = store.take_unusable();
    if !unusable.is_empty() {
        return Ok(after_all_but(&unusable));
    }
    above.extend(acquired::lasting_for_parents(&seen));
    if above.is_empty() {
        if verbose {
            say(&format!("not below any rlock: {} is not set", names::SESSION));
        }
        return Ok(exit::NOT_HELD);
    }
    let mut holders = seen.resources.iter().flat_map(|listing| &listing.holders);
    let is_held = holders.any(|holder| {
        // A server lists a lease that has ended until something removes it.
        let is_live = !holder.is_over(seen.now);
        is_live && above.contains(&holder.session) && satisfies(holder, &held.claim)
    });
    if verbose {
        let Claim { resource, mode, span, .. } = &held.claim;
        let not = if is_held { "a live" } else { "no live" };
        say(&format!("below {not} lock of {} that allows {mode}", messages::part(resource.as_str(), span)));
    }
    Ok(if is_held { 0 } else { exit::NOT_HELD })
}

/// Whether a hold allows all that the claim would allow.
fn satisfies(holder: &HolderListing, claim: &Claim) -> bool {
    holder.span.covers(&claim.span) && claim.mode.below(holder.mode) == Nesting::AtOnce
}
