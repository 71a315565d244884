//! Answers words that are not an invocation: a request for help gets its text, and a mistake is
//! reported in one line.

use std::ffi::OsString;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::hints;
use super::mistake::{Mistake, Usage};
use super::numbers::unmark;
use rlock_model::text::shortened;
use rlock_words::shell_quoted;

/// Up to this number of values, a message lists them all in place of the one that may be meant.
const VALUES_MAX: usize = 9;

impl Usage {
    /// Converts clap's error on the command line of `page`. With `wants_command`, the command line
    /// may still lack a `--` and a command. `of_exec` are words that lack no more than `exec`.
    pub fn of(error: &Error, page: &str, wants_command: bool, of_exec: Option<&[OsString]>) -> Self {
        match error.kind() {
            ErrorKind::InvalidSubcommand if mistake(error).see_help && of_exec.is_some() => {
                let word = text(error, ContextKind::InvalidSubcommand);
                let words = of_exec.into_iter().flatten().map(|word| shell_quoted(&word.to_string_lossy()));
                let line = shortened(&words.collect::<Vec<_>>().join(" "));
                let text = format!("no such subcommand '{word}': did you mean 'rlock exec {line}'?");
                Mistake::plain(text).on(page)
            }
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Self::Information(error.render()),
            ErrorKind::UnknownArgument if hints::of_option(label(text(error, ContextKind::InvalidArg))).is_some() => {
                mistake(error).on(page)
            }
            ErrorKind::UnknownArgument if wants_command && !has_suggestion(error) => {
                let argument = label(text(error, ContextKind::InvalidArg));
                let text = format!("unexpected argument '{argument}': did you forget -- before the command?");
                Mistake::plain(text).on(page)
            }
            _ => mistake(error).on(page),
        }
    }
}

/// The option that clap does not know.
pub fn unknown_option(error: &Error) -> Option<&str> {
    (error.kind() == ErrorKind::UnknownArgument).then(|| label(text(error, ContextKind::InvalidArg)))
}

/// Whether [`mistake`] suggests another option.
fn has_suggestion(error: &Error) -> bool {
    are_alike(label(text(error, ContextKind::InvalidArg)), text(error, ContextKind::SuggestedArg))
}

/// The one-line text for each kind of error.
pub(crate) fn mistake(error: &Error) -> Mistake {
    let argument = label(text(error, ContextKind::InvalidArg));
    let value = unmark(text(error, ContextKind::InvalidValue));
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let what = format!("unexpected argument '{argument}'");
            if let Some(hint) = hints::of_option(argument) {
                return Mistake::plain(format!("{what}: {hint}"));
            }
            let suggestion = text(error, ContextKind::SuggestedArg);
            suggested(what, Some(suggestion).filter(|suggestion| are_alike(argument, suggestion)))
        }
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand);
            let what = format!("no such subcommand '{word}'");
            if let Some(hint) = hints::of_subcommand(word) {
                return Mistake::plain(format!("{what}: {hint}"));
            }
            suggested(
                what,
                texts(error, ContextKind::SuggestedSubcommand).find(|suggestion| are_alike(word, suggestion)),
            )
        }
        ErrorKind::MissingSubcommand => Mistake::unexplained("no subcommand"),
        ErrorKind::WrongNumberOfValues => Mistake::unexplained(format!("{argument} needs {}", names_of_values(error))),
        ErrorKind::InvalidValue if value.is_empty() => Mistake::unexplained(format!("{argument} needs a value")),
        ErrorKind::InvalidValue => {
            let known = values(error);
            let is_meant = |known: &&String| are_alike(value, known.trim_start_matches("rlock-"));
            match known.iter().find(is_meant).filter(|_| known.len() > VALUES_MAX) {
                Some(meant) => suggested(format!("no such {argument} '{value}'"), Some(meant)),
                None => Mistake::plain(format!("{argument} must be {}, not '{value}'", alternatives(known))),
            }
        }
        ErrorKind::ValueValidation => {
            let reason =
                std::error::Error::source(error).map_or_else(|| format!("'{value}' is not valid"), ToString::to_string);
            Mistake::plain(format!("{argument}: {reason}"))
        }
        ErrorKind::TooManyValues => Mistake::plain(format!("{argument} takes no value: leave out '{value}'")),
        ErrorKind::ArgumentConflict => {
            let other = label(first(error, ContextKind::PriorArg));
            Mistake::plain(format!("{argument} and {other} exclude each other: give one of them"))
        }
        ErrorKind::MissingRequiredArgument => {
            Mistake::unexplained(format!("{} is missing", label(first(error, ContextKind::InvalidArg))))
        }
        ErrorKind::InvalidUtf8 => Mistake::plain(
            "a word before the command is not UTF-8: only the command and its arguments may have any bytes",
        ),
        _ => Mistake::unexplained(first_line(error)),
    }
}

/// A mistake with a suggestion of the intended word.
fn suggested(what: String, suggestion: Option<&str>) -> Mistake {
    match suggestion {
        None => Mistake::unexplained(what),
        Some(suggestion) => Mistake::plain(format!("{what}: did you mean '{suggestion}'?")),
    }
}

/// Whether a user may have typed one word for the other: at most two letters are inserted, left out
/// or replaced. clap suggests words that have no more than some letters in common.
pub fn are_alike(one: &str, other: &str) -> bool {
    !one.is_empty() && !other.is_empty() && distance(one, other) <= 2
}

/// The least number of letters to insert, leave out or replace between two words.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<_> = other.chars().collect();
    // The distances from the letters of `one` so far to each start of `other`.
    let mut row: Vec<_> = (0..=other.len()).collect();
    for (index, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (at, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

/// The text of one kind in clap's error; empty if the error has none.
fn text(error: &Error, kind: ContextKind) -> &str {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text,
        _ => "",
    }
}

/// The texts of a kind that may have several.
fn texts(error: &Error, kind: ContextKind) -> impl Iterator<Item = &str> {
    let several = match error.get(kind) {
        Some(ContextValue::Strings(texts)) => texts.as_slice(),
        _ => &[],
    };
    let one = Some(text(error, kind)).filter(|text| !text.is_empty());
    several.iter().map(String::as_str).chain(one)
}

/// The first text of a kind that may have several.
fn first(error: &Error, kind: ContextKind) -> &str {
    texts(error, kind).next().unwrap_or_default()
}

/// The values that clap would have accepted.
fn values(error: &Error) -> &[String] {
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) => values,
        _ => &[],
    }
}

fn alternatives(values: &[String]) -> String {
    match values {
        [] => "something else".to_owned(),
        [init @ .., last] if !init.is_empty() => format!("{} or {last}", init.join(", ")),
        values => values.concat(),
    }
}

/// The name of an argument without the decoration of its values: `--wait` for `--wait <DUR>`, `KEY`
/// for `[KEY]...`.
fn label(argument: &str) -> &str {
    let name =
        if argument.starts_with("--") { argument.split([' ', '=', '[']).next().unwrap_or(argument) } else { argument };
    name.trim_end_matches("...").trim_matches(['<', '>', '[', ']'])
}

/// The names of an argument's values, such as `KEY and INTERVAL`.
fn names_of_values(error: &Error) -> String {
    let names = text(error, ContextKind::InvalidArg).split_whitespace().skip(1);
    names.map(|name| name.trim_matches(['<', '>'])).collect::<Vec<_>>().join(" and ")
}

/// The first line of clap's own text, for kinds of error that none of rlock's definitions can cause
/// today.
fn first_line(error: &Error) -> String {
    let text = error.render().to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
