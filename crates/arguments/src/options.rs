//! Defines the options that several subcommands have, and reads what clap has matched.
//!
//! A struct of options says all of each option once: a field has the value, its attributes make the
//! definition, and its comment is the help. The structs skip the groups that clap would make of
//! them: no option refers to one, and rlock must start quickly.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, ColorChoice, FromArgMatches, ValueHint};

use super::claims::{self, Resolve, STRAY};
use super::mistake::Mistake;
use super::values;
use rlock_model::mode::Mode;
use rlock_model::resource::Resource;
use rlock_model::span::Span;

/// The name of the argument KEY, of which a subcommand may take one or several.
pub const KEY: &str = "KEY";

/// The headings of the options of subcommands that lock.
#[allow(missing_docs, reason = "each is named as its text")]
pub mod heading {
    pub(crate) const CLAIMS: &str = "Claims";
    pub(crate) const INTERVALS: &str = "Claims on intervals";
    pub const WAITING: &str = "Waiting";
    pub const BUSY: &str = "When busy";
    pub(crate) const LEASE: &str = "Lease";
    pub const CRON: &str = "Cron and CI";
}

/// Reads the options of a struct, by whose definitions clap has matched the words.
pub fn read<T: FromArgMatches>(matches: &mut ArgMatches) -> T {
    T::from_arg_matches_mut(matches).expect("clap requires what has no default")
}

/// The store options of the command line. The environment and the defaults apply where an option is
/// absent.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[group(skip)]
pub struct StoreOptions {
    /// `--store URL`.
    #[arg(from_global)]
    pub store: Option<String>,
    /// `--namespace NAME`.
    #[arg(from_global)]
    pub namespace: Option<String>,
}

/// The options that select the store, accepted before and after the subcommand.
pub fn store_options() -> [Arg; 2] {
    let store = "The store: redis://HOST, postgres://HOST/DB, file:///DIR or embedded [default: RLOCK_STORE, else that of /etc/rlock.conf, else embedded]";
    let namespace = "Separate names from other users of the same store [default: RLOCK_NAMESPACE, else rlock]";
    [
        Arg::new("store").long("store").value_name("URL").value_hint(ValueHint::Url).help(store).display_order(100),
        Arg::new("namespace").long("namespace").value_name("NAME").help(namespace).display_order(101),
    ]
    .map(|arg| arg.value_parser(values::plain).global(true).help_heading("Store options"))
}

/// The files and folders that a subcommand looks at. They are parts of the resource of all paths.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[group(skip)]
pub struct PathOptions {
    /// Only the file or folder P, what is in it, and the folders around it.
    #[arg(long, value_name = "P")]
    path: Vec<PathBuf>,
    /// Their spans: all paths, if there are none.
    #[arg(skip)]
    pub spans: Vec<Span>,
}

impl PathOptions {
    /// Resolves the paths, and adds their resource to those that the user has named.
    ///
    /// # Errors
    /// A path cannot be resolved.
    pub fn resolve(&mut self, named: Vec<Resource>, resolve: Resolve) -> Result<Vec<Resource>, Mistake> {
        let mut named = named;
        for path in self.path.drain(..) {
            let claim = claims::path_claim("path", &path, Mode::Write, resolve)?;
            named.push(claim.resource);
            self.spans.push(claim.span);
        }
        Ok(each_once(named))
    }

    /// Whether the paths narrow what a subcommand looks at of this resource.
    pub fn narrow(&self, resource: &Resource) -> bool {
        resource.as_str() == Resource::PATHS && !self.spans.is_empty()
    }

    /// Whether a claim on this part of the resource is meant: the paths overlap as claims do.
    pub fn include(&self, resource: &Resource, span: &Span) -> bool {
        !self.narrow(resource) || self.spans.iter().any(|path| path.overlaps(span))
    }
}

/// How a listing looks.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[group(skip)]
pub struct LookOptions {
    /// Use colours: always, never, or auto: on a terminal.
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub color: ColorChoice,
}

/// The values, each once, in their order.
pub fn each_once<T: PartialEq>(values: Vec<T>) -> Vec<T> {
    let mut once = Vec::new();
    for value in values {
        if !once.contains(&value) {
            once.push(value);
        }
    }
    once
}

/// The values of an argument, each with its position among the words.
pub(crate) fn with_places<'a, T>(matches: &'a ArgMatches, id: &str) -> impl Iterator<Item = (usize, &'a T)>
where
    T: Clone + Send + Sync + 'static,
{
    let places = matches.indices_of(id).into_iter().flatten();
    places.zip(matches.get_many::<T>(id).into_iter().flatten())
}

/// Refuses a bare KEY that reads as a duration, directly after an option whose value may be absent.
/// It is nearly always the value, behind a blank in place of the `=`.
pub fn no_blank_before_value(matches: &ArgMatches, option: &str) -> Result<(), Mistake> {
    let is_absent = matches.get_one::<Option<Duration>>(option).is_some_and(Option::is_none);
    let Some(at) = matches.index_of(option).filter(|_| is_absent) else { return Ok(()) };
    let keys = with_places::<Resource>(matches, KEY).map(|(place, key)| (place, key.as_str()));
    let strays = matches.try_contains_id(STRAY).is_ok().then(|| with_places::<String>(matches, STRAY));
    let strays = strays.into_iter().flatten().map(|(place, stray)| (place, stray.as_str()));
    let mut next = keys.chain(strays).filter(|(place, _)| *place == at + 1).map(|(_, word)| word);
    match next.find(|word| values::duration(word).is_ok()) {
        None => Ok(()),
        Some(word) => Err(Mistake::plain(format!(
            "'{word}' after --{option} is a KEY and not its DUR: write --{option}={word}, or put the KEY '{word}' first"
        ))),
    }
}
