//! Finds out what a line of a client asks for.

use std::time::Duration;

use rlock_arguments::lines::{LineParser, Lock};
use rlock_model::mode::Mode;
use rlock_model::request::Claim;
use rlock_model::resource::Resource;
use rlock_model::span::Span;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// Make a request.
    Lock {
        /// The claims, all of which are granted at once.
        claims: Vec<Claim>,
        /// The maximum wait: `None` for no limit, zero for no wait.
        wait: Option<Duration>,
        /// Whether this is the line `LOCK KEY` of the older protocol, whose answer has no token.
        plain: bool,
    },
    /// Ask for the write lock on the held prewrite claims, or on this part of the held one.
    Upgrade(Option<Span>),
    /// Release what the client holds.
    Unlock,
    /// Keep this part of the claim only. The resource may be left out if the client holds just one.
    Shrink(Span, Option<Resource>),
    /// Lower the mode of the claim to this one. The resource may be left out as with a shrink.
    Downgrade(Mode, Option<Resource>),
    /// List the holders and waiters of a resource, or of all resources.
    Inspect(Option<Resource>),
    /// The token of the client.
    Auth(String),
    /// Answer, so that the client knows that the server does.
    Ping,
    /// The verb is known, and the words after it are wrong.
    Mistake(String),
    /// The line begins with no known verb.
    Unknown,
}

impl Line {
    /// Parses a line.
    pub(super) fn parse(line: &[u8], parser: &mut LineParser) -> Self {
        let Ok(text) = str::from_utf8(line) else { return Self::Unknown };
        let text = text.trim_matches([' ', '\t']);
        let (verb, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
        let rest = rest.trim_start_matches([' ', '\t']);
        let known = match verb.to_ascii_uppercase().as_str() {
            "LOCK" => lock(rest, parser),
            "TRY" => words(rest).and_then(|words| {
                let no_wait = std::iter::once("-n".to_owned());
                Ok(asked(parser.lock(no_wait.chain(words).collect())?, false))
            }),
            "RANGE-READ" => range(Mode::Read, rest, parser),
            "RANGE-PREWRITE" => range(Mode::Prewrite, rest, parser),
            "RANGE-WRITE" => range(Mode::Write, rest, parser),
            "UPGRADE" if rest.is_empty() => Ok(Self::Upgrade(None)),
            "UPGRADE" => words(rest).and_then(|words| {
                let (span, resource) = parser.shrink(words)?;
                if resource.is_some() {
                    Err("UPGRADE takes LO HI and no --resource".to_owned())
                } else {
                    Ok(Self::Upgrade(Some(span)))
                }
            }),
            "UNLOCK" => alone(verb, rest, Self::Unlock),
            "SHRINK" => words(rest).and_then(|words| parser.shrink(words)).map(|(span, key)| Self::Shrink(span, key)),
            "DOWNGRADE" => {
                words(rest).and_then(|words| parser.downgrade(words)).map(|(mode, key)| Self::Downgrade(mode, key))
            }
            "INSPECT" => inspect(rest),
            "AUTH" => Ok(Self::Auth(rest.to_owned())),
            "PING" => alone(verb, rest, Self::Ping),
            _ => return Self::Unknown,
        };
        known.unwrap_or_else(Self::Mistake)
    }
}

/// `LOCK KEY` takes the one word as it is, as the older protocol does. All other words are split as
/// a shell splits them.
fn lock(rest: &str, parser: &mut LineParser) -> Result<Line, String> {
    if !rest.is_empty() && !rest.starts_with(['-', '\'', '"']) && !rest.contains([' ', '\t']) {
        return Ok(plain(resource(rest)?));
    }
    let words = words(rest)?;
    match words.as_slice() {
        [word] if !word.starts_with('-') => Ok(plain(resource(word)?)),
        _ => Ok(asked(parser.lock(words)?, false)),
    }
}

fn plain(resource: Resource) -> Line {
    let claim = Claim { resource, mode: Mode::Write, span: Span::Whole, slots: None };
    asked(Lock { claims: vec![claim], wait: None }, true)
}

fn asked(Lock { claims, wait }: Lock, plain: bool) -> Line {
    Line::Lock { claims, wait, plain }
}

fn range(mode: Mode, rest: &str, parser: &mut LineParser) -> Result<Line, String> {
    Ok(asked(parser.range(mode, words(rest)?)?, false))
}

fn inspect(rest: &str) -> Result<Line, String> {
    match words(rest)?.as_slice() {
        [] => Ok(Line::Inspect(None)),
        [word] if !word.starts_with('-') => Ok(Line::Inspect(Some(resource(word)?))),
        _ => Err("INSPECT takes one KEY or none".to_owned()),
    }
}

fn alone(verb: &str, rest: &str, line: Line) -> Result<Line, String> {
    if rest.is_empty() { Ok(line) } else { Err(format!("{} takes no words", verb.to_ascii_uppercase())) }
}

fn resource(word: &str) -> Result<Resource, String> {
    Resource::new(word).map_err(|error| error.to_string())
}

/// Stands for `#` while a line is split, because a line has no comments.
const HASH: &str = "\u{1}";

fn words(rest: &str) -> Result<Vec<String>, String> {
    if rest.contains(HASH) {
        return Err("the line has a control character: send printable text".to_owned());
    }
    let words = shlex::split(&rest.replace('#', HASH));
    let words = words.ok_or_else(|| "a quote or backslash at the end of the line has no partner".to_owned())?;
    Ok(words.into_iter().map(|word| word.replace(HASH, "#")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Line {
        Line::parse(line.as_bytes(), &mut LineParser::default())
    }

    fn lock(line: &str) -> (Vec<String>, Option<Duration>, bool) {
        match parse(line) {
            Line::Lock { claims, wait, plain } => {
                let text = |claim: &Claim| format!("{} {} {}", claim.mode, claim.resource, claim.span);
                (claims.iter().map(text).collect(), wait, plain)
            }
            other => panic!("'{line}' is {other:?}"),
        }
    }

    #[test]
    fn one_word_after_lock_is_taken_as_it_is() {
        for (line, key) in [
            ("LOCK k", "k"),
            ("lock  k ", "k"),
            ("LOCK\tit's", "it's"),
            (r"LOCK a\b", r"a\b"),
            ("LOCK a$b", "a$b"),
            ("LOCK 'a b'", "a b"),
            ("LOCK \"x\"", "x"),
            ("LOCK #1", "#1"),
            ("LOCK '#1 of 2'", "#1 of 2"),
        ] {
            assert_eq!(lock(line), (vec![format!("write {key} whole")], None, true), "{line}");
        }
    }

    #[test]
    fn words_after_lock_are_those_of_exec() {
        let zero = Some(Duration::ZERO);
        for (line, claims, wait) in [
            ("LOCK --write k", vec!["write k whole"], None),
            ("LOCK -n k", vec!["write k whole"], zero),
            (
                "LOCK --read 'a b' --write c -w 2s",
                vec!["read a b whole", "write c whole"],
                Some(Duration::from_secs(2)),
            ),
            ("TRY k", vec!["write k whole"], zero),
            ("try --read k", vec!["read k whole"], zero),
            ("RANGE-READ t -3 -1", vec!["read t [-3,-1]"], None),
            ("RANGE-PREWRITE t [1,2) -n", vec!["prewrite t [1,2)"], zero),
            ("range-write t 1 2", vec!["write t [1,2]"], None),
        ] {
            let claims = claims.into_iter().map(str::to_owned).collect();
            assert_eq!(lock(line), (claims, wait, false), "{line}");
        }
    }

    #[test]
    fn other_lines_are_understood() {
        let span = || Span::parse("[0,1]").unwrap();
        let k = || Resource::new("k").ok();
        for (line, expected) in [
            ("UNLOCK", Line::Unlock),
            ("UPGRADE", Line::Upgrade(None)),
            ("UPGRADE 0 1", Line::Upgrade(Some(span()))),
            ("SHRINK 0 1", Line::Shrink(span(), None)),
            ("SHRINK [0,1] --resource k", Line::Shrink(span(), k())),
            ("DOWNGRADE read", Line::Downgrade(Mode::Read, None)),
            ("INSPECT", Line::Inspect(None)),
            ("INSPECT k", Line::Inspect(k())),
            ("AUTH a b", Line::Auth("a b".to_owned())),
            ("ping", Line::Ping),
            ("", Line::Unknown),
            ("POST / HTTP/1.1", Line::Unknown),
            ("*1", Line::Unknown),
            ("LOCKk", Line::Unknown),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
        assert_eq!(Line::parse(b"LOCK \xff", &mut LineParser::default()), Line::Unknown);
    }

    #[test]
    fn mistake_after_a_known_verb_is_explained() {
        for (line, text) in [
            ("LOCK", "nothing to lock: name a KEY, or use --read, --prewrite, --write, --slot or --range-write"),
            ("LOCK a b", "unexpected second KEY b: for two locks write --write a --write b"),
            ("LOCK --ttl 3s k", "unexpected argument '--ttl'"),
            ("LOCK -n 'k", "a quote or backslash at the end of the line has no partner"),
            ("PING x", "PING takes no words"),
            ("UNLOCK k", "UNLOCK takes no words"),
            ("INSPECT a b", "INSPECT takes one KEY or none"),
            ("INSPECT --json", "INSPECT takes one KEY or none"),
            ("LOCK job #2", "unexpected second KEY '#2': for two locks write --write job --write '#2'"),
            ("LOCK -n a\u{1}", "the line has a control character: send printable text"),
            ("UPGRADE 0 1 --resource k", "UPGRADE takes LO HI and no --resource"),
            ("TRY", "nothing to lock: name a KEY, or use --read, --prewrite, --write, --slot or --range-write"),
        ] {
            assert_eq!(parse(line), Line::Mistake(text.to_owned()), "{line}");
        }
    }
}
