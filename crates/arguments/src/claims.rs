//! Builds the claims of a request from the matched words.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};

use super::help::advanced;
use super::mistake::Mistake;
use super::options::{heading, id, option, with_places, word};
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

/// The claims on whole resources, on files and folders, and on intervals.
pub fn claims() -> [Arg; 11] {
    let claim =
        |id, help| option(id, "KEY", values::resource, help).action(ArgAction::Append).help_heading(heading::CLAIMS);
    let path = |id, help| advanced(path(id, help).action(ArgAction::Append).help_heading(heading::CLAIMS));
    // The two values have different types, so `claims` parses them.
    let range = |id, help| {
        option(id, "KEY", values::plain, help)
            .value_names(["KEY", "INTERVAL"])
            .num_args(2)
            .action(ArgAction::Append)
            .help_heading(heading::INTERVALS)
    };
    [
        word(id::KEY, values::resource, "What to lock for writing"),
        stray_words(),
        claim(id::READ, "Lock KEY for reading, beside other readers"),
        advanced(claim(id::PREWRITE, "Lock KEY for reading now and writing later, beside readers only")),
        advanced(claim(id::WRITE, "Lock KEY for writing, alone, as a bare KEY does")),
        option(id::SLOT, "KEY=N", values::slot, "Take one of the N slots of KEY; W with KEY=N:W")
            .action(ArgAction::Append)
            .help_heading(heading::CLAIMS),
        path(id::PATH, "Lock the file or folder P, and all that is in it, for writing"),
        path(id::PATH_READ, "Lock the file or folder P, and all that is in it, for reading"),
        advanced(range(id::RANGE_READ, "Lock an interval of KEY, such as '[1.2,1.8)', for reading")),
        advanced(range(id::RANGE_PREWRITE, "Lock an interval of KEY for reading now and writing later")),
        advanced(range(id::RANGE_WRITE, "Lock an interval of KEY for writing")),
    ]
}

/// An option whose value is the path of a file or folder.
pub fn path(id: &'static str, help: &'static str) -> Arg {
    option(id, "P", value_parser!(PathBuf), help).value_hint(ValueHint::AnyPath)
}

/// Words after KEY.
fn stray_words() -> Arg {
    word(id::STRAY, values::plain, "The command and its arguments").action(ArgAction::Append).num_args(1..).hide(true)
}

/// The claim on an interval.
pub fn range_claim() -> [Arg; 3] {
    [
        word(id::KEY, values::resource, "What to lock a part of"),
        word(id::LO, values::plain, "The lower end, or the whole interval: '[1.2,1.8)'"),
        word(id::HI, values::plain, "The upper end"),
    ]
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

fn all(matches: &ArgMatches, resolve: Resolve) -> Result<Vec<Claim>, Mistake> {
    let mut claims = Vec::new();
    for (id, mode) in
        [(id::KEY, Mode::Write), (id::READ, Mode::Read), (id::PREWRITE, Mode::Prewrite), (id::WRITE, Mode::Write)]
    {
        claims
            .extend(with_places::<Resource>(matches, id).map(|(place, resource)| (place, whole(resource, mode, None))));
    }
    let slots = || with_places::<Slots>(matches, id::SLOT);
    claims.extend(slots().map(|(place, its)| (place, whole(&its.resource, Mode::Slot, Some(its.of)))));
    for (id, mode) in
        [(id::RANGE_READ, Mode::Read), (id::RANGE_PREWRITE, Mode::Prewrite), (id::RANGE_WRITE, Mode::Write)]
    {
        for range in ranges(matches, id) {
            let (place, [key, interval]) = range;
            let claim = interval_claim(key, interval, mode);
            claims.push((place, claim.map_err(|reason| Mistake::plain(format!("--{id}: {reason}")))?));
        }
    }
    for (id, mode) in [(id::PATH, Mode::Write), (id::PATH_READ, Mode::Read)] {
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
    if matches.contains_id(id::SHELL_COMMAND) {
        return Err(Mistake::plain(format!(
            "unexpected '{stray}' beside KEY '{key}': -c takes one STRING and no arguments; \
             for two locks write {two_writes}"
        )));
    }
    Err(Mistake::plain(format!(
        "unexpected second KEY '{stray}': did you forget -- before the command? for two locks write {two_writes}"
    )))
}

/// The bare KEY and the word after it, if there is one.
fn stray(matches: &ArgMatches) -> Option<[&str; 2]> {
    let stray = matches.get_many::<String>(id::STRAY)?.next()?;
    Some([matches.get_one::<Resource>(id::KEY).map_or("", Resource::as_str), stray])
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

/// The claim of `range-*` in this mode.
pub fn of_range(matches: &ArgMatches, mode: Mode) -> Result<Claim, Mistake> {
    let Some(resource) = matches.get_one::<Resource>(id::KEY).cloned() else {
        return Err(Mistake::plain("nothing to lock: name a KEY and its interval, LO HI or '[LO,HI)'"));
    };
    Ok(Claim { resource, mode, span: span(matches)?, slots: None })
}

/// The interval in the words LO HI, or in one word such as `[LO,HI)`.
pub fn span(matches: &ArgMatches) -> Result<Span, Mistake> {
    let word = |id| matches.get_one::<String>(id).map(String::as_str);
    let span = match (word(id::LO), word(id::HI)) {
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
