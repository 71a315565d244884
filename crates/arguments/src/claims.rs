//! Builds the claims of a request from the matched words.

use std::path::{Path, PathBuf};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, value_parser};

use super::help::advanced;
use super::mistake::Mistake;
use super::options::{KEY, heading, with_places};
use super::values::{self, Slots};
use rlock_model::endpoint::Endpoint;
use rlock_model::mode::Mode;
use rlock_model::request::{self, CLAIMS_MAX, Claim, NAMES_MAX};
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_words::shell_quoted;

/// Finds the file or folder that a path of the user means, or says in one line why not. Only the
/// callers look at files.
pub type Resolve = fn(&Path) -> Result<PathBuf, String>;

/// Words after the one bare KEY. They are always a mistake, which this module explains better than
/// clap.
pub const STRAY: &str = "WORD";

const READ: &str = "read";
const PREWRITE: &str = "prewrite";
const WRITE: &str = "write";
const SLOT: &str = "slot";
const PATH: &str = "path";
const PATH_READ: &str = "path-read";
const RANGE_READ: &str = "range-read";
const RANGE_PREWRITE: &str = "range-prewrite";
const RANGE_WRITE: &str = "range-write";

/// The claims on whole resources, on files and folders, and on intervals. A derived struct would
/// lose their order on the command line.
pub fn claims() -> [Arg; 11] {
    let word = |id: &'static str, parser: ValueParser, help: &'static str| {
        Arg::new(id).value_parser(parser).action(ArgAction::Append).help(help)
    };
    let claim = |id, name: &'static str, parser, help| {
        word(id, parser, help).long(id).value_name(name).help_heading(heading::CLAIMS)
    };
    let key = |id, help| claim(id, "KEY", ValueParser::new(values::resource), help);
    let path = |id, help| advanced(claim(id, "P", value_parser!(PathBuf), help));
    // The two values have different types, so `claims` parses them.
    let range = |id, help| {
        let both = word(id, ValueParser::new(values::plain), help).value_names(["KEY", "INTERVAL"]).num_args(2);
        advanced(both.long(id).help_heading(heading::INTERVALS))
    };
    [
        Arg::new(KEY).value_parser(values::resource).help("What to lock for writing"),
        word(STRAY, ValueParser::new(values::plain), "The command and its arguments").num_args(1..).hide(true),
        key(READ, "Lock KEY for reading, beside other readers"),
        advanced(key(PREWRITE, "Lock KEY for reading now and writing later, beside readers only")),
        advanced(key(WRITE, "Lock KEY for writing, alone, as a bare KEY does")),
        claim(SLOT, "KEY=N", ValueParser::new(values::slot), "Take one of the N slots of KEY; W with KEY=N:W"),
        path(PATH, "Lock the file or folder P, and all that is in it, for writing"),
        path(PATH_READ, "Lock the file or folder P, and all that is in it, for reading"),
        range(RANGE_READ, "Lock an interval of KEY, such as '[1.2,1.8)', for reading"),
        range(RANGE_PREWRITE, "Lock an interval of KEY for reading now and writing later"),
        range(RANGE_WRITE, "Lock an interval of KEY for writing"),
    ]
}

/// The words of `range-*` that claim an interval.
#[derive(Args)]
#[group(skip)]
pub struct RangeClaim {
    /// What to lock a part of.
    #[arg(id = KEY, value_parser = values::resource)]
    key: Option<Resource>,
    /// The lower end, or the whole interval: '[1.2,1.8)'.
    #[arg(id = "LO", value_parser = values::plain)]
    lo: Option<String>,
    /// The upper end.
    #[arg(id = "HI", value_parser = values::plain)]
    hi: Option<String>,
}

impl RangeClaim {
    /// The claim in this mode.
    pub fn claim(self, mode: Mode) -> Result<Claim, Mistake> {
        let Some(resource) = self.key else {
            return Err(Mistake::plain("nothing to lock: name a KEY and its interval, LO HI or '[LO,HI)'"));
        };
        let span = span(self.lo.as_deref(), self.hi.as_deref())?;
        Ok(Claim { resource, mode, span, slots: None })
    }
}

/// The claims of `exec`, in the order of the command line, each span of a resource at most once.
pub fn of_exec(matches: &ArgMatches, resolve: Resolve) -> Result<Vec<Claim>, Mistake> {
    only_one_bare_key(matches)?;
    all(matches, resolve)
}

/// The claims of `acquire`, as those of `exec`.
pub fn of_acquire(matches: &ArgMatches, resolve: Resolve) -> Result<Vec<Claim>, Mistake> {
    if let Some([key, stray]) = stray(matches) {
        let text = format!("unexpected second KEY '{stray}': for two locks write {}", two_writes(key, stray));
        return Err(Mistake::plain(text));
    }
    all(matches, resolve)
}

/// The claims of the same words again, whose paths may lead elsewhere by now.
pub fn again(matches: &ArgMatches, resolve: Resolve) -> Result<Vec<Claim>, Mistake> {
    all(matches, resolve)
}

/// Whether a claim of `exec` or `acquire` is on a path.
pub fn has_paths(matches: &ArgMatches) -> bool {
    [PATH, PATH_READ].into_iter().any(|id| matches.contains_id(id))
}

/// A bare KEY beside paths, with the option of a path, and the words that name KEY as a path, too.
pub fn key_beside_paths(matches: &ArgMatches) -> Option<(&Resource, &'static str, String)> {
    let key = matches.get_one::<Resource>(KEY).filter(|key| key.as_str() != Resource::PATHS)?;
    let of = |id: &'static str| Some((id, matches.get_many::<PathBuf>(id)?.next()?));
    let (id, path) = [PATH, PATH_READ].into_iter().find_map(of)?;
    let [path, name] = [&path.to_string_lossy(), key.as_str()].map(shell_quoted);
    Some((key, id, format!("--{id} {path} --{id} {name}")))
}

fn all(matches: &ArgMatches, resolve: Resolve) -> Result<Vec<Claim>, Mistake> {
    let mut claims = Vec::new();
    for (id, mode) in [(KEY, Mode::Write), (READ, Mode::Read), (PREWRITE, Mode::Prewrite), (WRITE, Mode::Write)] {
        claims
            .extend(with_places::<Resource>(matches, id).map(|(place, resource)| (place, whole(resource, mode, None))));
    }
    let slots = || with_places::<Slots>(matches, SLOT);
    claims.extend(slots().map(|(place, its)| (place, whole(&its.resource, Mode::Slot, Some(its.of)))));
    for (id, mode) in [(RANGE_READ, Mode::Read), (RANGE_PREWRITE, Mode::Prewrite), (RANGE_WRITE, Mode::Write)] {
        for range in ranges(matches, id) {
            let (place, [key, interval]) = range;
            let claim = interval_claim(key, interval, mode);
            claims.push((place, claim.map_err(|reason| Mistake::plain(format!("--{id}: {reason}")))?));
        }
    }
    for (id, mode) in [(PATH, Mode::Write), (PATH_READ, Mode::Read)] {
        for (place, path) in with_places::<PathBuf>(matches, id) {
            claims.push((place, path_claim(id, path, mode, resolve)?));
        }
    }
    claims.sort_by_key(|(place, _)| *place);

    let mut merged: Vec<Claim> = Vec::with_capacity(claims.len());
    for (_, claim) in claims {
        merge_into(&mut merged, claim)?;
        if merged.len() > CLAIMS_MAX {
            break;
        }
    }
    if merged.is_empty() {
        return Err(Mistake::plain(
            "nothing to lock: name a KEY, or use --read, --prewrite, --write, --slot or --range-write",
        ));
    }
    // Each slot is a claim of its own.
    for (_, Slots { resource, taken, .. }) in slots() {
        let place = merged.iter().position(|claim| claim.resource == *resource).unwrap_or_default();
        let more = taken.saturating_sub(1).min(CLAIMS_MAX);
        merged.splice(place..place, vec![merged[place].clone(); more]);
    }
    if merged.len() > CLAIMS_MAX || request::resources(&merged).len() > NAMES_MAX {
        return Err(Mistake::plain(format!(
            "too many claims: a request has at most {NAMES_MAX} names and {CLAIMS_MAX} claims"
        )));
    }
    Ok(merged)
}

/// Refuses a second bare KEY. It is nearly always the first word of a command without its `--`. If
/// rlock locked that name, it would run the rest of the command line, on this host.
fn only_one_bare_key(matches: &ArgMatches) -> Result<(), Mistake> {
    let Some([key, stray]) = stray(matches) else { return Ok(()) };
    let two_writes = two_writes(key, stray);
    if matches.contains_id("shell") {
        return Err(Mistake::plain(format!(
            "unexpected '{stray}' beside KEY '{key}': -c takes one STRING and no arguments; \
             for two locks write {two_writes}"
        )));
    }
    Err(Mistake::plain(format!(
        "unexpected second KEY '{stray}': did you forget -- before the command, or did poetry or hatch take it away? \
         for two locks write {two_writes}"
    )))
}

/// The bare KEY and the word after it, if there is one.
fn stray(matches: &ArgMatches) -> Option<[&str; 2]> {
    let stray = matches.get_many::<String>(STRAY)?.next()?;
    Some([matches.get_one::<Resource>(KEY).map_or("", Resource::as_str), stray])
}

/// The words that claim both resources for writing.
fn two_writes(one: &str, other: &str) -> String {
    format!("--write {} --write {}", shell_quoted(one), shell_quoted(other))
}

/// A claim on the whole of a resource.
fn whole(resource: &Resource, mode: Mode, slots: Option<u32>) -> Claim {
    Claim { resource: resource.clone(), mode, span: Span::Whole, slots }
}

/// The claim on the file or folder at a path, which is the value of the option `id`.
pub fn path_claim(id: &str, path: &Path, mode: Mode, resolve: Resolve) -> Result<Claim, Mistake> {
    let span = resolve(path)
        .and_then(|path| Span::path(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string()));
    let span = span.map_err(|reason| Mistake::plain(format!("--{id}: {reason}")))?;
    let resource = Resource::new(Resource::PATHS).expect("the axis has a valid name");
    Ok(Claim { resource, mode, span, slots: None })
}

/// The pairs of values of an option for an interval, each with its position among the words.
fn ranges<'a>(matches: &'a ArgMatches, id: &str) -> impl Iterator<Item = (usize, [&'a str; 2])> {
    let mut values = with_places::<String>(matches, id);
    std::iter::from_fn(move || {
        let ((place, key), (_, interval)) = (values.next()?, values.next()?);
        Some((place, [key.as_str(), interval.as_str()]))
    })
}

/// The claim on an interval that one word describes.
fn interval_claim(key: &str, interval: &str, mode: Mode) -> Result<Claim, String> {
    let resource = values::resource(key)?;
    if !interval.starts_with(['[', '(']) {
        return Err(format!("'{interval}' is not an interval: write it as one word, such as '[1.2,1.8)'"));
    }
    let span = Span::parse(interval).map_err(|error| error.to_string())?;
    Ok(Claim { resource, mode, span, slots: None })
}

/// Adds a claim. Of two claims on the same span, the stronger mode counts, as it allows what either
/// mode allows. Slots have no such order.
fn merge_into(merged: &mut Vec<Claim>, claim: Claim) -> Result<(), Mistake> {
    let key = &claim.resource;
    for earlier in merged.iter_mut().filter(|earlier| earlier.resource == *key) {
        match (earlier.slots, claim.slots) {
            (Some(one), Some(other)) if one != other => {
                let text = format!("'{key}' cannot have both {one} and {other} slots: give one --slot {key}=N");
                return Err(Mistake::plain(text));
            }
            (Some(_), Some(_)) => {
                let text = format!("'{key}' has two slots in one request: give one --slot {key}=N");
                return Err(Mistake::plain(text));
            }
            (None, None) if earlier.span == claim.span => {
                earlier.mode = earlier.mode.max(claim.mode);
                return Ok(());
            }
            (None, None) => {}
            _ => {
                let text = format!("--slot cannot be combined with another mode on '{key}': give one of them");
                return Err(Mistake::plain(text));
            }
        }
    }
    merged.push(claim);
    Ok(())
}

/// The interval in the words LO HI, or in one word such as `[LO,HI)`.
pub(crate) fn span(lo: Option<&str>, hi: Option<&str>) -> Result<Span, Mistake> {
    let span = match (lo, hi) {
        (Some(interval), None) if interval.starts_with(['[', '(']) => Span::parse(interval),
        (Some(interval), Some(word)) if interval.starts_with(['[', '(']) => {
            let text = format!("unexpected '{word}' after the interval '{interval}': put the command after --");
            return Err(Mistake::plain(text));
        }
        (Some(lo), Some(hi)) => Span::closed(endpoint(lo)?, endpoint(hi)?),
        (Some(lo), None) => {
            return Err(Mistake::plain(format!("the interval from '{lo}' lacks its end: write LO HI or '[LO,HI)'")));
        }
        (None, _) => return Err(Mistake::plain("no interval: write LO HI or '[LO,HI)' after the KEY")),
    };
    span.map_err(|error| Mistake::plain(error.to_string()))
}

fn endpoint(word: &str) -> Result<Endpoint, Mistake> {
    Endpoint::parse(word).map_err(|error| Mistake::plain(error.to_string()))
}
