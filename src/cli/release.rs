//! `rlock release`: releases locks of `rlock acquire`.

use std::collections::BTreeSet;

use anyhow::Context;
use clap::{ArgMatches, Args};

use super::subcommand::Subcommand;
use super::{Invocation, stdout};
use crate::environment::context::Named;
use crate::environment::variables::{self, Form, Held};
use crate::environment::{acquired, context, paths, say};
use rlock_arguments::help::notes;
use rlock_arguments::mistake::Mistake;
use rlock_arguments::options::{self, PathOptions, StoreOptions, each_once};
use rlock_arguments::values::{self, Which};
use rlock_model::past::End;
use rlock_model::records::Session;
use rlock_model::request::SessionId;
use rlock_model::resource::Resource;
use rlock_show::failure::Failure;
use rlock_show::messages::Messages;
use rlock_store::{Released, Store};
use rlock_supervise::keeper::announcement;
use rlock_sys::exit;

pub(super) const RELEASE: Subcommand = Subcommand {
    name: "release",
    page: "rlock-release",
    section: 1,
    about: "Give back a lock of rlock acquire",
    texts: &[include_str!("pages/release.txt")],
    define: Release::augment_args,
    read,
    has_numbers: false,
};

/// `rlock release`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(
    override_usage = "rlock release [SESSION|KEY]... [--path P] [--export]",
    after_help = notes(
        "Exit: 0 given back; 76 not held any more; 64 not a lock of 'rlock acquire'.",
        &["eval \"$(rlock release --export)\""],
    )
)]
#[group(skip)]
pub(crate) struct Release {
    /// The sessions, or the KEYs of locks for a process above [default: the innermost of rlock
    /// acquire around].
    #[arg(id = "SESSION", value_parser = values::which)]
    pub(super) locks: Vec<Which>,
    #[command(flatten)]
    pub(super) paths: PathOptions,
    /// Print the variables of the session around, for a shell's eval; on failure (exit N).
    #[arg(long)]
    pub(super) export: bool,
    /// Say what was released.
    #[arg(short, long)]
    pub(super) verbose: bool,
    #[command(flatten)]
    pub(super) store: StoreOptions,
}

/// Reads the matched words.
fn read(mut matches: ArgMatches) -> Result<Invocation, Mistake> {
    let mut release: Release = options::read(&mut matches);
    release.paths.resolve(Vec::new(), paths::resolved)?;
    Ok(Invocation::Release(Release { locks: each_once(release.locks), ..release }))
}

/// Releases the sessions and returns the exit code.
pub(super) fn run(release: &Release) -> anyhow::Result<u8> {
    let (named, mut store) = context::open_named(&release.store)?;
    let store = store.as_mut();
    let mut ids = match (&release.locks[..], &release.paths.spans[..]) {
        ([], []) => vec![acquired::innermost(store)?],
        (locks, _) => locks.iter().map(|which| acquired::meant(store, which)).collect::<Result<_, _>>()?,
    };
    for path in &release.paths.spans {
        ids.push(acquired::holds(
            store,
            &Resource::new(Resource::PATHS).expect("the axis has a valid name"),
            Some(path),
        )?);
    }
    // One lock may have several of the KEYs.
    let mut seen = BTreeSet::new();
    ids.retain(|id| seen.insert(*id));
    // A mistake in any of the sessions leaves all of them as they are.
    let sessions = ids.iter().map(|id| Ok((*id, acquired::held(store, *id)?))).collect::<Result<Vec<_>, Failure>>()?;
    let verbose = context::verbose(release.verbose);
    let mut code = 0;
    for (id, session) in sessions {
        let claims = session.as_ref().map(|session| variables::parts(session).0).unwrap_or_default();
        let released = match session {
            Some(session) => give_back(store, id, &session)?,
            None => Released::Lost,
        };
        if released == Released::Lost {
            say(&acquired::not_held(id).to_string());
            code = exit::LOST;
        } else if verbose {
            say(&Messages::releases(&claims, false));
        }
    }
    if release.export {
        print_around(store, &named, &ids)?;
    }
    Ok(code)
}

/// Releases a session. Its keeper, if it has one, hears of it first.
fn give_back(store: &mut dyn Store, id: SessionId, session: &Session) -> Result<Released, Failure> {
    let announce = |is_due| {
        if session.job.keep_for.is_none() || session.process.lasts_for.is_some() {
            announcement::send(id, &session.process, is_due);
        }
    };
    announce(true);
    let released = store.release(id, session, Some(End::KEPT));
    if !matches!(released, Ok(Released::Done | Released::Kept)) {
        announce(false);
    }
    Ok(released?)
}

/// Prints the variables for a shell that has released these sessions.
fn print_around(store: &mut dyn Store, named: &Named, released: &[SessionId]) -> anyhow::Result<()> {
    let mut chain = context::sessions_above(store)?;
    chain.retain(|id| !released.contains(id));
    let around = chain.first().map(|id| acquired::find(store, *id)).transpose()?.flatten();
    let parts = around.filter(|session| session.is_holder()).map(|session| variables::parts(&session));
    let held = parts.as_ref().map(|(claims, tokens, slots)| Held { claims, tokens, slots });
    let place = named.exported(store, Form::Shell);
    // The innermost session has variables of its own.
    let above = if chain.len() > 1 { context::held_above()? } else { Vec::new() };
    let lines = variables::of(Form::Shell, &chain, held, &above, place);
    let text = variables::text(Form::Shell, &lines);
    stdout::print_whole(text.as_bytes()).context("can't write to standard output")
}
