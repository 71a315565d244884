//! Reads the password for a URL that has none: a password from the environment, or the first line
//! of a file.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use rlock_sys::files;
use rlock_words::{Explained, reason};

/// The largest password file.
const PASSWORD_BYTES_MAX: u64 = 64 * 1024;

/// A password, which its `Debug` hides.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Vec<u8>);

impl Password {
    /// A password, which may have any bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes, for the server alone.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a password)")
    }
}

/// The password in the environment. It has no `Debug`, so that nothing shows it.
#[derive(Clone, Default)]
pub struct Secrets {
    /// The password itself.
    pub password: Option<OsString>,
    /// The file whose first line is the password, unless there is a `password`.
    pub password_file: Option<PathBuf>,
    /// The same for PostgreSQL alone, as its other clients know it.
    pub libpq: Libpq,
}

/// Where all clients of PostgreSQL look for a password, after those above, and for certificates.
#[derive(Clone, Default)]
pub struct Libpq {
    /// The password itself.
    pub password: Option<OsString>,
    /// The file of the passwords, unless it is the one in the home directory.
    pub passfile: Option<PathBuf>,
    /// The home directory.
    pub home: Option<PathBuf>,
}

impl Secrets {
    /// The file that [`read`](Self::read) opens, if any.
    pub fn file(&self) -> Option<&Path> {
        if self.password.is_some() { None } else { self.password_file.as_deref() }
    }

    /// The password, if there is one.
    ///
    /// # Errors
    /// The file can't be read, or has no password.
    pub fn read(&self) -> Result<Option<Password>, Error> {
        match (&self.password, &self.password_file) {
            (Some(password), _) => Ok(Some(Password::new(password.clone().into_vec()))),
            (None, Some(path)) => first_line(path).map(Some),
            (None, None) => Ok(None),
        }
    }
}

pub(crate) fn first_line(path: &Path) -> Result<Password, Error> {
    let shown = path.display();
    let content = files::read(path, PASSWORD_BYTES_MAX).map_err(|error| {
        let why = reason(&error);
        let what = format!("cannot read the password file '{shown}': {why}");
        Error::Usage(Explained::new(what, "name a regular file, or set RLOCK_PASSWORD"))
    })?;
    let line = match content.iter().position(|byte| *byte == b'\n') {
        Some(end) => content[..end].strip_suffix(b"\r").unwrap_or(&content[..end]).to_vec(),
        None => content,
    };
    if line.is_empty() {
        return Err(Error::Usage(format!("the password file '{shown}' has no password in its first line").into()));
    }
    Ok(Password::new(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_file(content: Option<&[u8]>) -> Result<Vec<u8>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let secrets = Secrets { password_file: Some(path), ..Secrets::default() };
        secrets.read().map(|password| password.unwrap().reveal().to_vec()).map_err(|error| error.to_string())
    }

    #[test]
    fn password_is_the_first_line_without_its_line_end() {
        for content in [&b"pa ss"[..], b"pa ss\n", b"pa ss\r\n", b"pa ss\nmore\n"] {
            assert_eq!(from_file(Some(content)).unwrap(), b"pa ss");
        }
        assert_eq!(from_file(Some(b" \xff\r")).unwrap(), b" \xff\r");
    }

    #[test]
    fn file_without_a_password_is_rejected() {
        assert!(from_file(None).unwrap_err().contains("no such file"));
        for content in [&b""[..], b"\nsecret\n"] {
            let error = from_file(Some(content)).unwrap_err();
            assert!(error.contains("no password") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn variable_precedes_the_file() {
        let secrets =
            Secrets { password: Some("one".into()), password_file: Some("/nonexistent".into()), ..Secrets::default() };
        assert_eq!(secrets.read().unwrap().unwrap().reveal(), b"one");
    }
}
