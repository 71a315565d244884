//! Answers words that are not an invocation: a request for help gets its text, and a mistake is
//! reported in one line.

use std::ffi::OsString;

use clap::Error;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::args::is_of_exec;
use super::hints;
use super::numbers::unmark;
use crate::lock::text::shortened;
use crate::words::{one_line, shell_quoted};

/// The reason why there is nothing to run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Usage {
    /// The user asked for help or the version: print the text to standard output and exit with 0.
    #[error("{0}")]
    Information(StyledStr),
    /// The command line was empty: print the short help to standard error and exit with 64.
    #[error("{0}")]
    Bare(StyledStr),
    /// A mistake, in one line without a prefix: print it to standard error and exit with 64.
    #[error("{0}")]
    Mistake(String),
}

/// A mistake before the help that it should point to is known.
#[derive(Debug)]
pub(super) struct Mistake {
    text: String,
    /// Whether the text does not say what to do instead, so that it must point to the help.
    see_help: bool,
}

impl Mistake {
    /// A mistake whose text says what to do instead.
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), see_help: false }
    }

    /// A mistake whose text must point to the help.
    fn unexplained(text: impl Into<String>) -> Self {
        Self { text: text.into(), see_help: true }
    }

    /// The mistake in one line, without a page to point to.
    pub(super) fn on_line(self) -> String {
        // Words may contain any characters; control characters must neither break the line nor
        // reach the terminal.
        one_line(&self.text.replace('\u{1}', ""))
    }

    /// Turns the mistake into the [`Usage`] error of `page`, such as `rlock exec`.
    pub(super) fn on(mut self, page: &str) -> Usage {
        if self.see_help {
            self.text = format!("{}; see '{page} --help'", self.text);
        }
        Usage::Mistake(self.on_line())
    }
}

impl Usage {
    /// Converts clap's error on the command line of `page`. With `wants_command`, the command line
    /// may still lack a `--` and a command. `of_exec` are words that lack no more than `exec`.
    pub(super) fn of(error: &Error, page: &str, wants_command: bool, of_exec: Option<&[OsString]>) -> Self {
        match error.kind() {
            ErrorKind::InvalidSubcommand if mistake(error).see_help && of_exec.is_some() => {
                let word = text(error, ContextKind::InvalidSubcommand);
                let words = of_exec.into_iter().flatten().map(|word| shell_quoted(&word.to_string_lossy()));
                let line = shortened(&words.collect::<Vec<_>>().join(" "));
                let text = format!("no such subcommand '{word}': did you mean 'rlock exec {line}'?");
                Mistake::plain(text).on(page)
            }
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Self::Information(error.render()),
            ErrorKind::UnknownArgument
                if page == "rlock acquire" && is_of_exec(label(text(error, ContextKind::InvalidArg))) =>
            {
                let argument = label(text(error, ContextKind::InvalidArg));
                let text = format!("{argument} is for the command of 'rlock exec': 'rlock acquire' runs none");
                Mistake::plain(text).on(page)
            }
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

/// Whether [`mistake`] suggests another option.
fn has_suggestion(error: &Error) -> bool {
    are_alike(label(text(error, ContextKind::InvalidArg)), text(error, ContextKind::SuggestedArg))
}

/// The one-line text for each kind of error.
pub(super) fn mistake(error: &Error) -> Mistake {
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
        ErrorKind::InvalidValue => Mistake::plain(format!("{argument} must be {}, not '{value}'", alternatives(error))),
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
fn are_alike(one: &str, other: &str) -> bool {
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
fn alternatives(error: &Error) -> String {
    let Some(ContextValue::Strings(values)) = error.get(ContextKind::ValidValue) else {
        return "something else".to_owned();
    };
    match values.as_slice() {
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use super::super::tests::mistake;
    use super::super::{Usage, parse};

    #[test]
    fn every_usage_error_has_its_one_line_message() {
        for (line, text) in [
            ("--foo", "unexpected argument '--foo'; see 'rlock --help'"),
            ("exec --foo k -- c", "unexpected argument '--foo'; see 'rlock exec --help'"),
            ("exec -y k -- c", "unexpected argument '-y'; see 'rlock exec --help'"),
            ("range-read t 1 2 -j -- c", "unexpected argument '-j'; see 'rlock range-read --help'"),
            ("range-read t 1 2 -3 -- c", "unexpected argument '-3'; see 'rlock range-read --help'"),
            ("exec --tll 5s k -- c", "unexpected argument '--tll': did you mean '--ttl'?"),
            ("--store x", "no subcommand; see 'rlock --help'"),
            ("exce k -- c", "no such subcommand 'exce': did you mean 'exec'?"),
            ("zzz", "no such subcommand 'zzz'; see 'rlock --help'"),
            // Two letters away at most.
            ("upgrade", "no such subcommand 'upgrade'; see 'rlock --help'"),
            ("range k 1 2", "no such subcommand 'range'; see 'rlock --help'"),
            ("inspekt", "no such subcommand 'inspekt': did you mean 'inspect'?"),
            ("inspect --force", "unexpected argument '--force'; see 'rlock inspect --help'"),
            ("inspect --follow", "unexpected argument '--follow'; see 'rlock inspect --help'"),
            ("inspect --colour never", "unexpected argument '--colour': did you mean '--color'?"),
            ("backup -- x", "no such subcommand 'backup': did you mean 'rlock exec backup -- x'?"),
            ("zzz k -- true", "no such subcommand 'zzz'; see 'rlock --help'"),
            ("my_job -n -c a_b", "no such subcommand 'my job': did you mean 'rlock exec 'my job' -n -c 'a b''?"),
            ("exce k -- c", "no such subcommand 'exce': did you mean 'exec'?"),
            (
                "lock k -- c",
                "no such subcommand 'lock': write 'rlock exec KEY -- COMMAND', or 'rlock acquire KEY' for a \
                             lock that outlives rlock",
            ),
            ("exec k -w", "--wait needs a value; see 'rlock exec --help'"),
            ("exec k -c", "--shell needs a value; see 'rlock exec --help'"),
            ("exec k -w x -- c", "--wait: 'x' is not a duration: write it as 90s, 5m, 1h30m or 500ms"),
            ("range-read t 1 2 -w -5 -- c", "--wait: '-5' is not a duration: write it as 90s, 5m, 1h30m or 500ms"),
            ("exec k --connect-timeout 0s -- c", "--connect-timeout: '0s' is too short: give a server at least 1ms"),
            ("exec k --ttl 0 -- c", "--ttl: '0' is too short: a lease lasts at least 1s"),
            ("exec k -E 256 -- c", "--conflict-exit-code: '256' is not an exit code: give a number from 0 to 255"),
            (
                "exec k --replicas x -- c",
                "--replicas: 'x' is not a number of replicas: give 0, 1, 2 and so on, or 1+disk",
            ),
            ("exec --slot db -- c", "--slot: 'db' lacks the number of slots: write db=4"),
            ("exec k -q -v -- c", "--quiet and --verbose exclude each other: give one of them"),
            ("exec k -c a -- c", "--shell and COMMAND exclude each other: give one of them"),
            ("man rlock --dir d", "PAGE and --dir exclude each other: give one of them"),
            ("inspect --json=x", "--json takes no value: leave out 'x'"),
            ("shrink", "LO is missing; see 'rlock shrink --help'"),
            ("shrink 1 2 3", "unexpected argument '3'; see 'rlock shrink --help'"),
            ("downgrade", "MODE is missing; see 'rlock downgrade --help'"),
            ("downgrade slot", "MODE must be read or prewrite, not 'slot'"),
            ("completions", "SHELL is missing; see 'rlock completions --help'"),
            ("completions tcsh", "SHELL must be bash, zsh or fish, not 'tcsh'"),
        ] {
            assert_eq!(mistake(line), text, "{line}");
        }
        assert!(mistake("man exce").starts_with("PAGE must be rlock, rlock-exec, rlock-range-read, "));
    }

    #[test]
    fn word_that_is_not_utf8_is_rejected_before_the_command() {
        let text = "a word before the command is not UTF-8: only the command and its arguments may have any bytes";
        let odd = || OsString::from_vec(vec![0xff]);
        let word = OsString::from;
        for words in [
            vec![word("rlock"), word("exec"), odd(), word("--"), word("c")],
            vec![word("rlock"), word("exec"), word("--read"), odd(), word("--"), word("c")],
            vec![word("rlock"), word("--store"), odd(), word("inspect")],
            vec![word("rlock"), word("range-read"), word("k"), odd(), word("1"), word("--"), word("c")],
        ] {
            assert_eq!(parse(words.into_iter()), Err(Usage::Mistake(text.to_owned())));
        }
    }

    #[test]
    fn usage_error_is_one_line_for_any_words() {
        for line in ["exec --a\nb k -- c", "exec k -w \u{1b}[2J\n -- c", "\u{7}", "completions a\rb", "exec a\nb -- c"]
        {
            let Err(Usage::Mistake(text)) = parse(["rlock"].into_iter().chain(line.split(' ')).map(OsString::from))
            else {
                panic!("{line:?} should be a usage error");
            };
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }

    #[test]
    fn parser_never_panics() {
        let words = [
            "exec",
            "range-read",
            "shrink",
            "k",
            "-3",
            "--",
            "-n",
            "-c",
            "--store",
            "=",
            "",
            "-",
            "[",
            "--read",
            "--break",
        ];
        for one in words {
            for two in words {
                for three in words {
                    let _ = parse(["rlock", one, two, three].into_iter().map(OsString::from));
                }
            }
        }
    }
}
