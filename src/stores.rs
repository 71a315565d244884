//! The stores that there are, and which of them a URL names.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{PathBuf, absolute};
use std::time::Duration;

use rustix::process::geteuid;

use rlock_embedded::Embedded;
use rlock_model::text::Unprintable;
use rlock_postgres::{self as postgres, Postgres};
use rlock_redis::{self as redis, Redis};
use rlock_store::percent::decode;
use rlock_store::{Error, Secrets, Store, identity};
use rlock_sys::files;
use rlock_words::Explained;

/// The namespace of a command line that names none.
pub(crate) const DEFAULT_NAMESPACE: &str = "rlock";

/// The maximum length of a namespace in bytes.
pub(crate) const NAMESPACE_BYTES_MAX: usize = 128;

/// The forms of URLs, for a message about an unknown one.
fn forms() -> String {
    format!("{}, {}", postgres::SCHEME, redis::SCHEMES)
}

/// Opens the store that `url` names, or the embedded store in its default directory. Opening a
/// server's store may take up to `connect_timeout`.
///
/// # Errors
/// The URL, the namespace or a password makes no sense, or the store cannot be used.
pub fn open(
    url: Option<&str>,
    namespace: &str,
    secrets: &Secrets,
    connect_timeout: Duration,
) -> Result<Box<dyn Store>, Error> {
    check_namespace(namespace)?;
    url.map_or(Ok(()), check_url)?;
    match url.map(|url| (url, Target::parse(url))) {
        None => Ok(Box::new(Embedded::open(None, namespace)?)),
        Some((url, None)) => Ok(Box::new(Embedded::open(Some(file_path(url)?), namespace)?)),
        Some((_, Some(Err(error)))) => Err(error),
        Some((_, Some(Ok(Target::Redis(target))))) => {
            let target = complete(target, secrets, connect_timeout)?;
            Ok(Box::new(Redis::new(target, namespace, connect_timeout)))
        }
        Some((_, Some(Ok(Target::Postgres(target))))) => {
            let target = complete_postgres(target, secrets, connect_timeout)?;
            Ok(Box::new(Postgres::new(target, namespace, connect_timeout)))
        }
    }
}

/// The directory of the gate's store, in that of the default one.
const GATE: &str = "gate";

/// The directory of the notes of kept places, in that of the default store.
const PLACES: &str = "places";

/// The folder of the notes of kept places, in the default directory, which must be usable.
///
/// # Errors
/// The directory cannot be made or used.
pub(crate) fn places() -> Result<PathBuf, Error> {
    // Only the default store makes the folders above it.
    Embedded::open(None, DEFAULT_NAMESPACE)?;
    Ok(rlock_embedded::default_place().unwrap_or_default().join(PLACES))
}

/// The folder of the notes of kept places, if this user has made one.
pub(crate) fn made_places() -> Option<PathBuf> {
    rlock_embedded::default_place().map(|place| place.join(PLACES)).filter(|folder| folder.exists())
}

/// Opens the store of the gate before commands that need room.
///
/// # Errors
/// The store cannot be used.
pub(crate) fn open_gate() -> Result<Box<dyn Store>, Error> {
    // Only the default store makes the folders above it.
    let place = Embedded::open(None, DEFAULT_NAMESPACE)?.url();
    open(Some(&format!("{place}/{GATE}")), DEFAULT_NAMESPACE, &Secrets::default(), Duration::ZERO)
}

/// Whether a command of this user has needed room before.
pub(crate) fn has_gate() -> bool {
    rlock_embedded::default_place().is_some_and(|place| place.join(GATE).exists())
}

/// The meaning of the URL of a store on servers.
#[allow(clippy::large_enum_variant, reason = "there is one for each store that is opened")]
enum Target {
    Redis(redis::Target),
    Postgres(postgres::Target),
}

impl Target {
    /// Parses a URL; `None` if its scheme is that of no server.
    fn parse(url: &str) -> Option<Result<Self, Error>> {
        let redis = redis::Target::parse(url).map(|target| target.map(Self::Redis));
        redis.or_else(|| Some(postgres::Target::parse(url)?.map(Self::Postgres)))
    }
}

/// Whether a URL contains a password, so that anybody who sees the URL sees the password.
pub(crate) fn has_password(url: &str) -> bool {
    match Target::parse(url) {
        Some(Ok(Target::Redis(target))) => target.password_in_url(),
        Some(Ok(Target::Postgres(target))) => target.password_in_url(),
        _ => false,
    }
}

/// Whether two URLs have the scheme, hosts, ports and user in common, so that the password for one
/// is meant for the other.
pub(crate) fn are_same_servers(one: &str, other: &str) -> bool {
    match (Target::parse(one), Target::parse(other)) {
        (Some(Ok(Target::Redis(one))), Some(Ok(Target::Redis(other)))) => one.has_same_servers(&other),
        (Some(Ok(Target::Postgres(one))), Some(Ok(Target::Postgres(other)))) => one.has_same_servers(&other),
        _ => false,
    }
}

/// Adds the settings that a URL takes from its surroundings. All files are read here, so that no
/// file system blocks a poll loop later; only a password that is refused is read again, in a
/// thread.
fn complete(mut target: redis::Target, secrets: &Secrets, limit: Duration) -> Result<redis::Target, Error> {
    target.anchor(std::env::current_dir)?;
    // A password file that is not needed is not read.
    let secrets = if target.lacks_password() { secrets.clone() } else { Secrets::default() };
    if secrets.file().is_none() && !target.speaks_tls() {
        let password = secrets.read()?;
        return target.with_password(password, None, limit);
    }
    let server = target.shown();
    let files: Vec<_> =
        target.files().into_iter().chain(secrets.file()).map(|file| format!("'{}'", file.display())).collect();
    let read = move || {
        let password = secrets.read()?;
        target.with_password(password, secrets.file().and_then(|file| absolute(file).ok()), limit)?.with_tls()
    };
    in_time(limit, &server, &files, read)
}

/// Adds the settings that a URL for PostgreSQL takes from its surroundings, likewise. Connections
/// read the other files.
fn complete_postgres(
    mut target: postgres::Target,
    secrets: &Secrets,
    limit: Duration,
) -> Result<postgres::Target, Error> {
    target.anchor(std::env::current_dir)?;
    if !target.reads_files(secrets) {
        return target.complete(secrets, identity::user(geteuid().as_raw()), limit);
    }
    let (server, secrets) = (target.shown(), secrets.clone());
    let files = target.files().into_iter().chain(secrets.file()).chain(secrets.libpq.passfile.as_deref());
    let files: Vec<_> = files.map(|file| format!("'{}'", file.display())).collect();
    let user = identity::user(geteuid().as_raw());
    in_time(limit, &server, &files, move || target.complete(&secrets, user, limit))
}

/// Reads files in a thread, so that no file system that does not answer keeps anybody waiting.
fn in_time<T: Send + 'static>(
    limit: Duration,
    server: &str,
    files: &[String],
    read: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match files::within(limit, read) {
        Ok(Some(result)) => result,
        Ok(None) => {
            let of = if files.is_empty() { "the system's certificates".to_owned() } else { files.join(", ") };
            let what = format!("'{server}' cannot be used: {of} could not be read in time");
            Err(Error::Unavailable(Explained::new(what, "see whether the file system answers")))
        }
        Err(error) => {
            let words = Explained::from(&error);
            Err(Error::Unavailable(words.behind(format_args!("'{server}' cannot be used: no thread can be started: "))))
        }
    }
}

fn check_namespace(namespace: &str) -> Result<(), Error> {
    if namespace.is_empty() {
        return Err(Error::Usage("a namespace must not be empty".into()));
    }
    let bytes = namespace.len();
    if bytes > NAMESPACE_BYTES_MAX {
        let what = format!("a namespace may have {NAMESPACE_BYTES_MAX} bytes, this one has {bytes}");
        return Err(Error::Usage(what.into()));
    }
    match Unprintable::find(namespace) {
        Some(found) => Err(Error::Usage(Explained::new(format!("the namespace {}", found.what()), Unprintable::CURE))),
        None => Ok(()),
    }
}

/// Refuses what a file of variables leaves in a URL: the carriage return of a line that ends in
/// CR LF, and quotes. Some readers of such files keep the quotes. As a part of the path of a
/// `file` URL, either would name a directory of its own, where nobody else locks.
fn check_url(url: &str) -> Result<(), Error> {
    let mistake = |what, remedy: &str| Err(Error::Usage(Explained::new(what, remedy)));
    if let Some(found) = url.chars().find(|c| c.is_control()) {
        let what = format!("the URL of the store has the control character U+{:04X}", u32::from(found));
        let remedy = match found {
            '\r' => "the file that sets it has lines that end in CR LF: let them end in LF",
            _ => "leave it out, or write it as % and two hexadecimal digits",
        };
        return mistake(what, remedy);
    }
    match url.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            mistake(format!("the URL of the store begins with the quote {quote}"), "write the URL without quotes")
        }
        _ => Ok(()),
    }
}

fn file_path(url: &str) -> Result<PathBuf, Error> {
    let Some((scheme, rest)) = url.split_once("://") else {
        let remedy = format!("write it as file:///directory or {}", forms());
        return Err(Error::Usage(Explained::new("the store is no URL", remedy)));
    };
    if scheme != "file" {
        // The message does not show the whole URL, because the URL may contain a password. Text
        // that is not a valid scheme may be a password too.
        let is_a_scheme = scheme.len() <= 30 && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'+');
        let shown = if is_a_scheme { format!(" '{scheme}'") } else { String::new() };
        let remedy = format!("write file:///directory or {}", forms());
        return Err(Error::Usage(Explained::new(format!("no store has the scheme{shown} of the URL"), remedy)));
    }
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        let what = "the file URL of the store has no absolute path";
        return Err(Error::Usage(Explained::new(what, "write it as file:///directory")));
    }
    let path = decode(path).filter(|path| !path.contains(&0)).ok_or_else(|| {
        let what = "the file URL of the store has a % without two hexadecimal digits";
        Error::Usage(Explained::new(what, "write % itself as %25"))
    })?;
    Ok(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use rlock_embedded::url_of;

    #[test]
    fn directory_round_trips_through_its_url() {
        for path in ["/run/lock/rlock-0", "/a b/100%", "/ümlaut", "/"] {
            assert_eq!(file_path(&url_of(Path::new(path))).unwrap(), Path::new(path));
        }
        assert_eq!(file_path("file://localhost/x").unwrap(), Path::new("/x"));
    }

    #[test]
    fn password_source_is_read_only_if_the_url_has_no_password() {
        const LIMIT: Duration = Duration::from_secs(60);
        let read = |url: &str| redis::Target::parse(url).unwrap().unwrap();
        let nowhere = Secrets { password_file: Some("/nonexistent".into()), ..Secrets::default() };
        assert!(complete(read("redis://:own@h"), &nowhere, LIMIT).is_ok());
        assert!(
            matches!(complete(read("redis://h"), &nowhere, LIMIT), Err(Error::Usage(words)) if words.what.contains("/nonexistent"))
        );
        let given = Secrets { password: Some("secret".into()), ..Secrets::default() };
        assert!(!complete(read("redis://h"), &given, LIMIT).unwrap().lacks_password());
        assert!(complete(read("redis://h"), &Secrets::default(), LIMIT).unwrap().lacks_password());
    }

    #[test]
    fn servers_are_the_same_by_scheme_hosts_ports_and_user() {
        for (one, other) in [
            ("redis://h", "redis://h:6379/3"),
            ("redis://u:x@h", "redis://u@h"),
            ("redis+sentinel://a,b:1/m", "redis+sentinel://a:26379,b:1/n"),
            ("redis+unix:///s", "redis+unix:///s?db=1"),
            ("postgres://h/a", "postgresql://h:5432/b"),
        ] {
            assert!(are_same_servers(one, other), "{one} {other}");
        }
        for other in [
            "redis://g",
            "redis://h:1",
            "rediss://h",
            "redis+cluster://h",
            "redis://u@h",
            "valkey://h",
            "file:///h",
            "h",
            "postgres://h",
        ] {
            assert!(!are_same_servers("redis://h", other), "{other}");
        }
        assert!(!are_same_servers("embedded", "embedded"));
    }

    #[test]
    fn password_in_a_url_is_detected() {
        assert!(has_password("redis://:secret@h") && has_password("redis+sentinel://h/m?sentinel-password=x"));
        assert!(has_password("postgres://u:secret@h") && has_password("postgresql:///?password=x"));
        assert!(!has_password("postgres://u@h/d"));
        assert!(!has_password("redis://user@h") && !has_password("file:///x:y@z") && !has_password("redis://:secret@"));
    }

    #[test]
    fn invalid_store_url_is_a_usage_error_that_shows_no_password() {
        for url in [
            "nonsense",
            "gopher://x",
            "redsi://:secret@h",
            ":secret@h://x",
            "redis:secret@h",
            "file://host/x",
            "file:x",
            "file:///%zz",
            "file:///%0",
            "file:///%+1",
            "file://user:secret@h/x",
        ] {
            match file_path(url) {
                Err(Error::Usage(words)) => {
                    let text = words.to_string();
                    assert!(!text.contains("secret") && !text.contains('\n'), "{text}");
                }
                other => panic!("{url}: {other:?}"),
            }
        }
    }

    #[test]
    fn url_with_a_control_character_or_a_quote_is_refused_by_its_name() {
        let cr = "the URL of the store has the control character U+000D: the file that sets it has lines that end in CR \
                  LF: let them end in LF";
        let tab = "the URL of the store has the control character U+0009: leave it out, or write it as % and two \
                   hexadecimal digits";
        let quote = |quote| format!("the URL of the store begins with the quote {quote}: write the URL without quotes");
        for (url, expected) in [
            ("file:///d\r", cr.to_owned()),
            ("redis://:secret@h:6379\r", cr.to_owned()),
            ("file:///d\tx", tab.to_owned()),
            ("\"redis://:secret@h\"", quote('"')),
            ("'file:///d'", quote('\'')),
        ] {
            match open(Some(url), "n", &Secrets::default(), Duration::ZERO) {
                Err(Error::Usage(words)) => assert_eq!(words.to_string(), expected),
                other => panic!("{url}: {:?}", other.map(|_| ())),
            }
        }
        assert!(check_url("file:///it's%0D").is_ok());
    }

    #[test]
    fn invalid_namespace_is_a_usage_error() {
        assert!(check_namespace("a b:c").is_ok());
        assert!(check_namespace(&"x".repeat(NAMESPACE_BYTES_MAX)).is_ok());
        for bad in ["", "a\nb", &"x".repeat(NAMESPACE_BYTES_MAX + 1)] {
            assert!(matches!(check_namespace(bad), Err(Error::Usage(_))));
        }
    }
}
