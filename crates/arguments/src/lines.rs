//! Parses the words of a line that a client of `rlock serve` sends, by the definitions of `exec`,
//! `range-*`, `shrink` and `downgrade`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::{ArgMatches, Args, Command};

use super::claims::{RangeClaim, STRAY};
use super::mistake::Mistake;
use super::narrowing::{Downgrade, Shrink};
use super::options::{KEY, read};
use super::request::WaitOptions;
use super::values::Wait;
use super::{claims, numbers, usage};
use rlock_model::mode::Mode;
use rlock_model::request::Claim;
use rlock_model::resource::Resource;
use rlock_model::span::Span;
use rlock_words::shell_quoted;

/// A request for claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Lock {
    /// The claims: never empty, no span of a resource twice.
    pub claims: Vec<Claim>,
    /// The maximum wait: `None` for no limit, zero for no wait.
    pub wait: Option<Duration>,
}

/// Parses the words after the verb. The definitions are built once.
#[derive(Debug)]
pub struct LineParser {
    lock: Command,
    range: Command,
    shrink: Command,
    downgrade: Command,
}

impl Default for LineParser {
    fn default() -> Self {
        let line = || Command::new("line").no_binary_name(true).args_override_self(true).disable_help_flag(true);
        Self {
            lock: WaitOptions::augment_args(line().args(claims::claims())),
            range: WaitOptions::augment_args(RangeClaim::augment_args(line())),
            shrink: Shrink::augment_args(line()),
            downgrade: Downgrade::augment_args(line()),
        }
    }
}

impl LineParser {
    /// The words after LOCK or TRY.
    ///
    /// # Errors
    /// The mistake in one line. This holds for the other methods too.
    pub fn lock(&mut self, words: Vec<String>) -> Result<Lock, String> {
        let mut matches = matches(&mut self.lock, words, false)?;
        if let Some(stray) = matches.get_many::<String>(STRAY).and_then(|mut words| words.next()) {
            let key = matches.get_one::<Resource>(KEY).map_or("", Resource::as_str);
            let [key, other] = [key, stray].map(shell_quoted);
            return Err(format!("unexpected second KEY {other}: for two locks write --write {key} --write {other}"));
        }
        // The client may be on another machine, and a file system that hangs must not stop the
        // others.
        let as_written = |path: &Path| Ok(path.to_owned());
        let claims = claims::of_exec(&matches, as_written);
        in_one_line(claims.and_then(|claims| Ok(Lock { claims, wait: limit(&mut matches)? })))
    }

    /// The words after RANGE-READ, RANGE-PREWRITE or RANGE-WRITE.
    pub fn range(&mut self, mode: Mode, words: Vec<String>) -> Result<Lock, String> {
        let mut matches = matches(&mut self.range, words, true)?;
        let claim = read::<RangeClaim>(&mut matches).claim(mode);
        in_one_line(claim.and_then(|claim| Ok(Lock { claims: vec![claim], wait: limit(&mut matches)? })))
    }

    /// The words after SHRINK: the remaining span, and the resource if one is named.
    pub fn shrink(&mut self, words: Vec<String>) -> Result<(Span, Option<Resource>), String> {
        let shrink: Shrink = read(&mut matches(&mut self.shrink, words, true)?);
        Ok((in_one_line(shrink.span())?, shrink.resource))
    }

    /// The words after DOWNGRADE: the new mode, and the resource if one is named.
    pub fn downgrade(&mut self, words: Vec<String>) -> Result<(Mode, Option<Resource>), String> {
        let downgrade: Downgrade = read(&mut matches(&mut self.downgrade, words, false)?);
        Ok((downgrade.mode, downgrade.resource))
    }
}

fn matches(command: &mut Command, words: Vec<String>, has_numbers: bool) -> Result<ArgMatches, String> {
    let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
    if has_numbers {
        numbers::mark(&mut words);
    }
    command.try_get_matches_from_mut(words).map_err(|error| usage::mistake(&error).on_line())
}

/// The maximum wait. A client has no default but to wait for ever.
fn limit(matches: &mut ArgMatches) -> Result<Option<Duration>, Mistake> {
    Ok(read::<WaitOptions>(matches).limit()?.and_then(Wait::limit))
}

fn in_one_line<T>(result: Result<T, Mistake>) -> Result<T, String> {
    result.map_err(Mistake::on_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    fn shown(lock: Result<Lock, String>) -> String {
        match lock {
            Err(text) => text,
            Ok(Lock { claims, wait }) => {
                let claims: Vec<_> = claims
                    .iter()
                    .map(|claim| format!("{} {} {} {:?}", claim.mode, claim.resource, claim.span, claim.slots))
                    .collect();
                format!("{}; {wait:?}", claims.join(", "))
            }
        }
    }

    #[test]
    fn lock_line_has_the_claims_and_waits_of_exec_and_nothing_else() {
        let mut parser = LineParser::default();
        for (line, expected) in [
            ("k", "write k whole None; None"),
            ("--read a --write b -n", "read a whole None, write b whole None; Some(0ns)"),
            ("--range-write t [1,2) --range-read t [5,6]", "write t [1,2) None, read t [5,6] None; None"),
            ("--slot s=3 -w 2s", "slot s whole Some(3); Some(2s)"),
            ("k -w ever", "write k whole None; None"),
            ("a b", "unexpected second KEY b: for two locks write --write a --write b"),
            ("--path /w/src --path-read /w/./lib/", "write / /w/src None, read / /w/lib None; None"),
            ("--path src", "--path: the path 'src' does not begin with '/': write the whole path"),
            ("", "nothing to lock: name a KEY, or use --read, --prewrite, --write, --slot or --range-write"),
            ("k --ttl 3s", "unexpected argument '--ttl'"),
            ("k -h", "unexpected argument '-h'"),
            ("--read", "--read needs a value"),
            ("k -w x", "--wait: 'x' is not a duration: write it as 90s, 5m, 1h30m or 500ms"),
        ] {
            assert_eq!(shown(parser.lock(words(line))), expected, "{line}");
        }
    }

    #[test]
    fn range_line_takes_negative_numbers_unquoted() {
        let mut parser = LineParser::default();
        for (line, expected) in [
            ("t -3 -1", "prewrite t [-3,-1] None; None"),
            ("t [1,2) -n", "prewrite t [1,2) None; Some(0ns)"),
            ("t 1", "the interval from '1' lacks its end: write LO HI or '[LO,HI)'"),
        ] {
            assert_eq!(shown(parser.range(Mode::Prewrite, words(line))), expected, "{line}");
        }
    }

    #[test]
    fn shrink_and_downgrade_lines_may_name_a_resource() {
        let mut parser = LineParser::default();
        let k = Resource::new("k").ok();
        assert_eq!(parser.shrink(words("-3 -1")), Ok((Span::parse("[-3,-1]").unwrap(), None)));
        assert_eq!(parser.shrink(words("[0,1) --resource k")), Ok((Span::parse("[0,1)").unwrap(), k.clone())));
        assert_eq!(parser.downgrade(words("read --resource k")), Ok((Mode::Read, k)));
        assert_eq!(parser.downgrade(words("prewrite")), Ok((Mode::Prewrite, None)));
        assert_eq!(parser.downgrade(words("write")), Ok((Mode::Write, None)));
        assert_eq!(parser.downgrade(words("slot")), Err("MODE must be read or prewrite, not 'slot'".to_owned()));
    }
}
