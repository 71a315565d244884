//! Which store a URL means.

use std::path::PathBuf;

use super::embedded::Embedded;
use super::{Error, Store};

/// The namespace where none is given.
pub const DEFAULT_NAMESPACE: &str = "rlock";

/// How many bytes a namespace has at most.
pub const NAMESPACE_BYTES_MAX: usize = 128;

/// Opens the store that `url` names, or the embedded one in its default directory.
///
/// # Errors
/// The URL or the namespace makes no sense, or the store can't be used.
pub fn open(url: Option<&str>, namespace: &str) -> Result<Box<dyn Store>, Error> {
    check_namespace(namespace)?;
    let directory = match url {
        None => None,
        Some(url) => Some(file_path(url)?),
    };
    Ok(Box::new(Embedded::open(directory, namespace)?))
}

fn check_namespace(namespace: &str) -> Result<(), Error> {
    if namespace.is_empty() || namespace.len() > NAMESPACE_BYTES_MAX || namespace.chars().any(char::is_control) {
        let shown: String = namespace.chars().map(|c| if c.is_control() { '?' } else { c }).take(40).collect();
        return Err(Error::Usage(format!(
            "the namespace '{shown}' can't be used: it takes 1 to {NAMESPACE_BYTES_MAX} bytes without control characters"
        )));
    }
    Ok(())
}

fn file_path(url: &str) -> Result<PathBuf, Error> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(Error::Usage("the store is no URL: write it as file:///directory".to_owned()));
    };
    if scheme != "file" {
        // Not the whole URL, which may have a password in it.
        return Err(Error::Usage(format!(
            "no store has the scheme '{scheme}': this version has the embedded store only, file:///directory"
        )));
    }
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(Error::Usage(
            "the file URL of the store has no absolute path: write it as file:///directory".to_owned(),
        ));
    }
    decode(path).ok_or_else(|| {
        Error::Usage(
            "the file URL of the store has a % without two hexadecimal digits: write % itself as %25".to_owned(),
        )
    })
}

/// Resolves percent escapes.
fn decode(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first == b'%' {
            let digits = tail.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
        }
    }
    let no_nul = !bytes.contains(&0);
    no_nul.then(|| PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes)))
}

/// The URL of a directory, such that [`open`] finds it again.
pub(super) fn of_directory(path: &std::path::Path) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;

    let mut url = String::from("file://");
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_graphic() && *byte != b'%' {
            url.push(char::from(*byte));
        } else {
            // Writing to a String can't fail.
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_directory_survives_its_url() {
        for path in ["/run/lock/rlock-0", "/a b/100%", "/ümlaut", "/"] {
            assert_eq!(file_path(&of_directory(Path::new(path))).unwrap(), Path::new(path));
        }
        assert_eq!(file_path("file://localhost/x").unwrap(), Path::new("/x"));
    }

    #[test]
    fn what_names_no_store_is_a_usage_error_without_a_password() {
        for url in [
            "nonsense",
            "gopher://x",
            "redis://:secret@h",
            "file://host/x",
            "file:x",
            "file:///%zz",
            "file:///%0",
            "file:///%+1",
            "file://user:secret@h/x",
        ] {
            match file_path(url) {
                Err(Error::Usage(text)) => assert!(!text.contains("secret") && !text.contains('\n'), "{text}"),
                other => panic!("{url}: {other:?}"),
            }
        }
    }

    #[test]
    fn namespaces_have_limits() {
        assert!(check_namespace("a b:c").is_ok());
        assert!(check_namespace(&"x".repeat(NAMESPACE_BYTES_MAX)).is_ok());
        for bad in ["", "a\nb", &"x".repeat(NAMESPACE_BYTES_MAX + 1)] {
            assert!(matches!(check_namespace(bad), Err(Error::Usage(_))));
        }
    }
}
