//! The configuration file, which names the store and some settings where neither an option nor the
//! environment does.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, io};

use super::defaults::Defaults;
use rlock_arguments::values;
use rlock_show::failure::Failure;
use rlock_sys::{exit, files};
use rlock_words::{self as words, Explained, one_line};

/// Names another file than [`PATH`]; an empty value means that there is none.
pub(crate) const VARIABLE: &str = "RLOCK_CONFIG";
const PATH: &str = "/etc/rlock.conf";
/// Maximum size of the file.
const BYTES_MAX: u64 = 64 << 10;

/// The keys of the file, for people.
const KEYS: &str = "store, namespace, password-file, wait, ttl, replicas, connect-timeout, grace and history";

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) store: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) defaults: Defaults,
    /// A warning for each line with a key that this version does not know. Another version may.
    pub(crate) warnings: Vec<String>,
}

/// The path of the file, if there may be one, and whether the file may be missing.
fn path() -> Option<(PathBuf, bool)> {
    match env::var_os(VARIABLE) {
        None => Some((PATH.into(), true)),
        Some(path) if path.is_empty() => None,
        Some(path) => Some((path.into(), false)),
    }
}

/// Reads the file.
///
/// # Errors
/// The file cannot be read, others than root may change it, or a line has a mistake.
pub(crate) fn read() -> Result<Config, Failure> {
    let Some((path, may_be_missing)) = path() else { return Ok(Config::default()) };
    let read = || {
        let file = files::open(&path)?;
        check_owner(&file.metadata()?)?;
        files::content(file, BYTES_MAX)
    };
    let text = match read() {
        Err(error) if may_be_missing && error.kind() == io::ErrorKind::NotFound => return Ok(Config::default()),
        Err(error) => return Err(unusable(&path, &error)),
        Ok(content) => String::from_utf8(content).map_err(|_| unusable(&path, "it is not UTF-8 text"))?,
    };
    let mut config = parse(&text).map_err(|mistake| unusable(&path, mistake))?;
    for warning in &mut config.warnings {
        *warning = format!("warning: the configuration {}, {warning}", quoted(&path));
    }
    Ok(config)
}

fn quoted(path: &Path) -> String {
    format!("'{}'", one_line(&path.to_string_lossy()))
}

/// A mistake in what the file says, which shows only when the store is opened.
pub(crate) fn mistake(words: Explained) -> Failure {
    unusable(&path().map_or_else(PathBuf::new, |(path, _)| path), words)
}

fn unusable(path: &Path, why: impl Into<Explained>) -> Failure {
    let about = format!("the configuration {} cannot be used: ", quoted(path));
    Failure::new(exit::UNAVAILABLE, why.into().behind(about))
}

/// Checks that nobody but root can lead others to a store by this file.
fn check_owner(file: &Metadata) -> io::Result<()> {
    if file.uid() != 0 {
        return Err(Explained::new(format!("it belongs to uid {}", file.uid()), "only root may own it").into());
    }
    let mode = file.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(Explained::new(format!("others may write to it (mode {mode:04o})"), "take that right away").into());
    }
    Ok(())
}

/// Parses lines `name = value`. A `#` begins a comment at the start of a line and after a space.
fn parse(text: &str) -> Result<Config, Explained> {
    let mut config = Config::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        let mistake = |words: Explained| Err(words.behind(format_args!("line {number}: ")));
        let Some((name, value)) = line.split_once('=').map(|(name, value)| (name.trim(), value.trim())) else {
            let shown = one_line(&words::without_passwords(line));
            return mistake(format!("'{shown}' is not of the form NAME = VALUE").into());
        };
        let Config { store, namespace, password_file, defaults, warnings } = &mut config;
        let set = match name {
            "store" => set(store, value, |value| Ok(value.to_owned())),
            "namespace" => set(namespace, value, |value| Ok(value.to_owned())),
            "password-file" => set(password_file, value, absolute),
            "wait" => set(&mut defaults.wait, value, values::wait),
            "ttl" => set(&mut defaults.ttl, value, values::ttl),
            "replicas" => set(&mut defaults.replicas, value, values::replicas),
            "connect-timeout" => set(&mut defaults.connect_timeout, value, values::connect_timeout),
            "grace" => set(&mut defaults.grace, value, values::duration),
            "history" => set(&mut defaults.history, value, values::history),
            _ if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') => {
                let what = format!("'{}' is no key", one_line(name));
                return mistake(Explained::new(what, "keys have lower-case letters"));
            }
            _ => {
                warnings.push(format!("line {number}: '{name}' is none of {KEYS}"));
                Ok(())
            }
        };
        match set {
            Ok(()) => {}
            Err(Unset::Empty) => {
                let remedy = format!("write {name} = VALUE");
                return mistake(Explained::new(format!("{name} has no value"), remedy));
            }
            Err(Unset::Twice) => return mistake(format!("{name} is set twice").into()),
            Err(Unset::Mistake(words)) => return mistake(words.behind(format_args!("{name}: "))),
        }
    }
    Ok(config)
}

/// Why a line sets nothing.
enum Unset {
    Empty,
    Twice,
    Mistake(Explained),
}

fn set<T>(setting: &mut Option<T>, value: &str, parse: fn(&str) -> Result<T, Explained>) -> Result<(), Unset> {
    if value.is_empty() {
        return Err(Unset::Empty);
    }
    if setting.is_some() {
        return Err(Unset::Twice);
    }
    *setting = Some(parse(value).map_err(Unset::Mistake)?);
    Ok(())
}

fn absolute(path: &str) -> Result<PathBuf, Explained> {
    if path.starts_with('/') { Ok(path.into()) } else { Err(format!("'{path}' is not an absolute path").into()) }
}

fn without_comment(line: &str) -> &str {
    let begins = |(at, _): &(usize, &str)| line[..*at].trim_end().is_empty() || line[..*at].ends_with([' ', '\t']);
    line.match_indices('#').find(begins).map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rlock_arguments::values::Wait;
    use rlock_store::Replicas;

    #[test]
    fn settings_are_read_beside_comments_and_spaces() {
        let text = "# The store of this site.\n\n  store = redis://h:7/1#x  # not another\n\tnamespace=n\n\
                    password-file = /etc/rlock password\n  # end";
        let config = Config {
            store: Some("redis://h:7/1#x".to_owned()),
            namespace: Some("n".to_owned()),
            password_file: Some("/etc/rlock password".into()),
            ..Config::default()
        };
        assert_eq!(parse(text), Ok(config));
        assert_eq!(parse(""), Ok(Config::default()));
        let text = "wait = ever\nttl = 1m\nreplicas = 2+disk\nconnect-timeout = 500ms\ngrace = 9\nhistory = 0";
        let defaults = Defaults {
            wait: Some(Wait::Ever),
            ttl: Some(Duration::from_secs(60)),
            replicas: Some(Replicas { count: 2, on_disk: true }),
            connect_timeout: Some(Duration::from_millis(500)),
            grace: Some(Duration::from_secs(9)),
            history: Some(0),
        };
        assert_eq!(parse(text), Ok(Config { defaults, ..Config::default() }));
    }

    #[test]
    fn unknown_key_is_a_warning() {
        let config = parse("colour =\nstore = a\nsplay = 3s").unwrap();
        assert_eq!(config.store.as_deref(), Some("a"));
        let known = format!("is none of {KEYS}");
        assert_eq!(config.warnings, [format!("line 1: 'colour' {known}"), format!("line 3: 'splay' {known}")]);
    }

    #[test]
    fn mistake_is_named_with_its_line() {
        for (text, mistake) in [
            ("Store = redis://h", "line 1: 'Store' is no key: keys have lower-case letters"),
            ("\u{feff}store = a", "line 1: '?store' is no key: keys have lower-case letters"),
            ("\nredis://:secret@h", "line 2: 'redis://:***@h' is not of the form NAME = VALUE"),
            ("store =", "line 1: store has no value: write store = VALUE"),
            ("namespace", "line 1: 'namespace' is not of the form NAME = VALUE"),
            ("store = # none", "line 1: store has no value: write store = VALUE"),
            ("store = a\nstore = a", "line 2: store is set twice"),
            ("password-file = p", "line 1: password-file: 'p' is not an absolute path"),
            ("ttl = 1s\nttl = 1s", "line 2: ttl is set twice"),
            ("ttl = 10ms", "line 1: ttl: '10ms' is too short: a lease lasts at least 1s"),
            ("replicas = -1", "line 1: replicas: '-1' is not a number of replicas: give 0, 1, 2 and so on, or 1+disk"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), mistake, "{text:?}");
        }
    }
}
